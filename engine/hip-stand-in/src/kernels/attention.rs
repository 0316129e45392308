//! Queries and keys at their positions, and attention of few rows.

use super::{Done, Grid, Space, demand, dot, expect, store_planes, values};
use crate::arguments::{Attend, CHUNK, MAX_ROWS, PLANES, Rotate};

/// Turns queries and keys to their positions; appends keys and values to the cache.
pub(super) fn rotate(a: Rotate, grid: Grid, space: &Space<'_>) -> Done {
    let (heads, kv_heads, dim) = (a.heads as usize, a.kv_heads as usize, a.head_dim as usize);
    let (rows, splits, wide, half) = (a.rows as usize, a.splits as usize, a.partial_width as usize, dim / 2);
    let all = heads + 2 * kv_heads;
    expect(grid, [a.rows, all as u32, 1], 128, 0)?;
    demand(half <= 128 && wide >= all * dim && splits >= 1, "`head_dim`, `partial_width`, `splits`")?;
    let start = space.cells::<u32>(a.start, 1)?[0].get() as usize;
    let partial = space.cells::<f32>(a.partial, splits * rows * wide)?;
    let bias = if a.bias == 0 { None } else { Some(space.cells::<f32>(a.bias, all * dim)?) };
    for row in 0..rows {
        let position = start + row;
        let turn = |table: u64| space.cells::<f32>(table + (position * half * 4) as u64, half);
        let (cosines, sines) = (turn(a.cosines)?, turn(a.sines)?);
        for head in 0..all {
            let (is_query, is_key) = (head < heads, head >= heads && head < heads + kv_heads);
            let sum = |at: usize| -> f32 {
                let sum: f32 = (0..splits)
                    .map(|split| partial[(split * rows + row) * wide + head * dim + at].get())
                    .sum();
                sum + bias.map_or(0.0, |bias| bias[head * dim + at].get())
            };
            let mut value: Vec<f32> = (0..dim).map(sum).collect();
            let weight = if is_query { a.q_norm } else { a.k_norm };
            if (is_query || is_key) && weight != 0 {
                let weight = space.cells::<f32>(weight, dim)?;
                let squares: f64 = value.iter().map(|x| f64::from(*x).powi(2)).sum();
                let scale = (1.0 / (squares / dim as f64 + f64::from(a.epsilon)).sqrt()) as f32;
                for (value, weight) in value.iter_mut().zip(weight) {
                    *value *= scale * weight.get();
                }
            }
            if is_query || is_key {
                for at in 0..half {
                    let (low, high, c, s) = (value[at], value[at + half], cosines[at].get(), sines[at].get());
                    value[at] = low * c - high * s;
                    value[at + half] = high * c + low * s;
                }
            }
            let (to, at) = if is_query {
                for value in &mut value {
                    *value *= a.scale;
                }
                (a.q, (row * heads + head) * dim)
            } else {
                let kv = (head - heads) % kv_heads;
                (if is_key { a.keys } else { a.values }, (position * kv_heads + kv) * dim)
            };
            for (to, value) in space.cells::<f32>(to + (at * 4) as u64, dim)?.iter().zip(value) {
                to.set(value);
            }
        }
    }
    Ok(())
}

/// Attention of few rows, a chunk of positions at a time.
pub(super) fn attend(a: Attend, grid: Grid, space: &Space<'_>) -> Done {
    let (heads, kv_heads, dim) = (a.heads as usize, a.kv_heads as usize, a.head_dim as usize);
    let (rows, chunks, width) = (grid.blocks[2] as usize, a.chunks as usize, a.width as usize);
    expect(grid, [a.kv_heads, a.chunks, rows as u32], 256, 0)?;
    demand(rows <= MAX_ROWS && dim <= 256 && width >= heads * dim, "`head_dim`, `width`")?;
    let start = space.cells::<u32>(a.start, 1)?[0].get() as usize;
    demand((start + rows).div_ceil(CHUNK) <= chunks, "fewer `chunks` than the cache has")?;
    let q = space.cells::<f32>(a.q, rows * heads * dim)?;
    let planes = space.cells::<u16>(a.planes, PLANES * MAX_ROWS * width)?;
    let kv_width = kv_heads * dim;
    let cache = |at: u64| space.cells::<f32>(at, (start + rows) * kv_width);
    let (keys, cached) = (values(cache(a.keys)?), values(cache(a.values)?));
    for row in 0..rows {
        for chunk in 0..=(start + row) / CHUNK {
            let positions = chunk * CHUNK..(start + row + 1).min((chunk + 1) * CHUNK);
            for head in 0..heads {
                let kv = head / (heads / kv_heads);
                let query = values(&q[(row * heads + head) * dim..][..dim]);
                let row_of = |position: usize| (position * kv_heads + kv) * dim;
                let scores: Vec<f32> =
                    positions.clone().map(|at| dot(&query, &keys[row_of(at)..][..dim])).collect();
                let top = scores.iter().copied().fold(-3.0e38, f32::max);
                let shares: Vec<f32> = scores.iter().map(|score| (score - top).exp2()).collect();
                let total: f32 = shares.iter().sum();
                let mut sum = vec![0.0; dim];
                for (share, position) in shares.iter().zip(positions.clone()) {
                    for (sum, value) in sum.iter_mut().zip(&cached[row_of(position)..][..dim]) {
                        *sum += share * value;
                    }
                }
                if chunks == 1 {
                    for (at, sum) in sum.iter().enumerate() {
                        store_planes(planes, MAX_ROWS * width, row * width + head * dim + at, sum / total);
                    }
                    continue;
                }
                let at = (row * heads + head) * chunks + chunk;
                for (to, sum) in space.cells::<f32>(a.sums + (at * dim * 4) as u64, dim)?.iter().zip(sum) {
                    to.set(sum);
                }
                let stats = space.cells::<f32>(a.stats + (at * 2 * 4) as u64, 2)?;
                stats[0].set(top);
                stats[1].set(total);
            }
        }
    }
    Ok(())
}

/// Puts the chunks of each row and head together.
pub(super) fn merge(a: Attend, grid: Grid, space: &Space<'_>) -> Done {
    let (heads, dim, chunks, width) =
        (a.heads as usize, a.head_dim as usize, a.chunks as usize, a.width as usize);
    let rows = grid.blocks[0] as usize;
    expect(grid, [rows as u32, a.heads, 1], 64, 0)?;
    let start = space.cells::<u32>(a.start, 1)?[0].get() as usize;
    let planes = space.cells::<u16>(a.planes, PLANES * MAX_ROWS * width)?;
    for row in 0..rows {
        let used = (start + row) / CHUNK + 1;
        demand(used <= chunks, "fewer `chunks` than the cache has")?;
        for head in 0..heads {
            let first = (row * heads + head) * chunks;
            let stats = values(space.cells::<f32>(a.stats + (first * 2 * 4) as u64, used * 2)?);
            let sums = space.cells::<f32>(a.sums + (first * dim * 4) as u64, used * dim)?;
            let top = stats.chunks(2).map(|stat| stat[0]).fold(-3.0e38, f32::max);
            let (mut total, mut sum) = (0.0, vec![0.0; dim]);
            for (stat, sums) in stats.chunks(2).zip(sums.chunks(dim)) {
                let share = (stat[0] - top).exp2();
                total += stat[1] * share;
                for (sum, other) in sum.iter_mut().zip(sums) {
                    *sum += other.get() * share;
                }
            }
            for (at, sum) in sum.iter().enumerate() {
                store_planes(planes, MAX_ROWS * width, row * width + head * dim + at, sum / total);
            }
        }
    }
    Ok(())
}
