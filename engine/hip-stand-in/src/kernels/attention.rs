//! Queries and keys at their positions, and attention of few rows.

use super::{Done, Grid, Space, check_launch, demand, dot, store_planes, values};
use crate::arguments::{Attend, CHUNK, MAX_ROWS, PLANES, QUERIES, Qkv, ROTATE_HEADS, Rotate};

impl Qkv {
    /// The position of the first row.
    fn first(&self, space: &Space<'_>) -> Result<usize, String> {
        Ok(space.cells::<u32>(self.start, 1)?[0].get() as usize)
    }

    /// All heads of a row: queries, keys, values.
    fn all(&self) -> usize {
        (self.heads + 2 * self.kv_heads) as usize
    }

    /// One head of a row, queries first, then keys, then values: added up, normed and turned to its position.
    fn head(&self, space: &Space<'_>, row: usize, head: usize, position: usize) -> Result<Vec<f32>, String> {
        let (heads, kv_heads, dim) = (self.heads as usize, self.kv_heads as usize, self.head_dim as usize);
        let (rows, splits, wide) = (self.rows as usize, self.splits as usize, self.partial_width as usize);
        let half = dim / 2;
        demand(wide >= self.all() * dim && splits >= 1 && row < rows, "`partial_width`, `splits`, `rows`")?;
        demand(dim.is_multiple_of(4) && dim <= 256, "`head_dim`")?;
        let partial = space.cells::<f32>(self.partial, splits * rows * wide)?;
        let bias = if self.bias == 0 { None } else { Some(space.cells::<f32>(self.bias, self.all() * dim)?) };
        let (is_query, turns) = (head < heads, head < heads + kv_heads);
        let sum = |at: usize| -> f32 {
            let sum: f32 =
                (0..splits).map(|split| partial[(split * rows + row) * wide + head * dim + at].get()).sum();
            sum + bias.map_or(0.0, |bias| bias[head * dim + at].get())
        };
        let mut value: Vec<f32> = (0..dim).map(sum).collect();
        if !turns {
            return Ok(value);
        }
        let weight = if is_query { self.q_norm } else { self.k_norm };
        if weight != 0 {
            let weight = space.cells::<f32>(weight, dim)?;
            let squares: f64 = value.iter().map(|x| f64::from(*x).powi(2)).sum();
            let scale = (1.0 / (squares / dim as f64 + f64::from(self.epsilon)).sqrt()) as f32;
            for (value, weight) in value.iter_mut().zip(weight) {
                *value *= scale * weight.get();
            }
        }
        let turn = |table: u64| space.cells::<f32>(table + (position * half * 4) as u64, half);
        let (cosines, sines) = (turn(self.cosines)?, turn(self.sines)?);
        for at in 0..half {
            let (low, high, c, s) = (value[at], value[at + half], cosines[at].get(), sines[at].get());
            value[at] = low * c - high * s;
            value[at + half] = high * c + low * s;
        }
        if is_query {
            for value in &mut value {
                *value *= self.scale;
            }
        }
        Ok(value)
    }

    /// Appends the keys or values of a row's key/value head to the cache.
    fn append(&self, space: &Space<'_>, (keys, cached): (u64, u64), row: usize, position: usize) -> Done {
        let (heads, kv_heads, dim) = (self.heads as usize, self.kv_heads as usize, self.head_dim as usize);
        for head in heads..self.all() {
            let to = if head < heads + kv_heads { keys } else { cached };
            let at = (position * kv_heads + (head - heads) % kv_heads) * dim;
            let value = self.head(space, row, head, position)?;
            for (to, value) in space.cells::<f32>(to + (at * 4) as u64, dim)?.iter().zip(value) {
                to.set(value);
            }
        }
        Ok(())
    }
}

/// Turns queries and keys to their positions; appends keys and values to the cache.
pub(super) fn rotate(a: Rotate, grid: Grid, space: &Space<'_>) -> Done {
    let (heads, dim) = (a.qkv.heads as usize, a.qkv.head_dim as usize);
    check_launch(grid, [a.qkv.rows, a.qkv.all().div_ceil(ROTATE_HEADS) as u32, 1], 128, 0)?;
    let start = a.qkv.first(space)?;
    for row in 0..a.qkv.rows as usize {
        a.qkv.append(space, (a.keys, a.values), row, start + row)?;
        for head in 0..heads {
            let at = ((row * heads + head) * dim * 4) as u64;
            let value = a.qkv.head(space, row, head, start + row)?;
            for (to, value) in space.cells::<f32>(a.q + at, dim)?.iter().zip(value) {
                to.set(value);
            }
        }
    }
    Ok(())
}

/// Attention of few rows, a chunk of positions at a time, then the chunks together. Without queries that are turned
/// already, those of `qkv`, whose keys and values it appends.
pub(super) fn attend(a: Attend, grid: Grid, space: &Space<'_>) -> Done {
    let (heads, kv_heads, dim) = (a.qkv.heads as usize, a.qkv.kv_heads as usize, a.qkv.head_dim as usize);
    let (rows, chunks, width) = (a.qkv.rows as usize, a.chunks as usize, a.width as usize);
    demand(heads.is_multiple_of(kv_heads) && a.together >= 1, "`heads`, `together`")?;
    let blocks = (rows * heads / kv_heads).div_ceil(a.together as usize);
    check_launch(grid, [a.qkv.kv_heads, a.chunks, blocks as u32], 256, 0)?;
    demand(rows <= MAX_ROWS && width >= heads * dim, "`rows`, `width`")?;
    demand(a.together as usize <= if dim > 128 { QUERIES / 2 } else { QUERIES }, "`together`")?;
    let start = a.qkv.first(space)?;
    demand((start + rows).div_ceil(CHUNK) <= chunks, "fewer `chunks` than the cache has")?;
    if chunks > 1 {
        let done = space.cells::<u32>(a.done, blocks * kv_heads)?;
        demand(done.iter().all(|count| count.get() == 0), "`done` begins with zeros")?;
        // Where the kernel keeps what it puts together in the end.
        space.cells::<f32>(a.sums, rows * heads * chunks * dim)?;
        space.cells::<f32>(a.stats, rows * heads * chunks * 2)?;
    }
    if a.q == 0 {
        for row in 0..rows {
            a.qkv.append(space, (a.keys, a.values), row, start + row)?;
        }
    }
    let planes = space.cells::<u16>(a.planes, PLANES * MAX_ROWS * width)?;
    let cache = |at: u64| space.cells::<f32>(at, (start + rows) * kv_heads * dim);
    let (keys, cached) = (values(cache(a.keys)?), values(cache(a.values)?));
    for row in 0..rows {
        for head in 0..heads {
            let query = if a.q == 0 {
                a.qkv.head(space, row, head, start + row)?
            } else {
                values(space.cells::<f32>(a.q + ((row * heads + head) * dim * 4) as u64, dim)?)
            };
            let row_of = |position: usize| (position * kv_heads + head / (heads / kv_heads)) * dim;
            // Of each chunk: its largest score, the sum of its weights, and that of weights times values.
            let mut parts: Vec<(f32, f32, Vec<f32>)> = Vec::new();
            for from in (0..=start + row).step_by(CHUNK) {
                let positions = from..(start + row + 1).min(from + CHUNK);
                let scores: Vec<f32> =
                    positions.clone().map(|at| dot(&query, &keys[row_of(at)..][..dim])).collect();
                let top = scores.iter().copied().fold(-3.0e38, f32::max);
                let shares: Vec<f32> = scores.iter().map(|score| (score - top).exp2()).collect();
                let mut sum = vec![0.0; dim];
                for (share, position) in shares.iter().zip(positions) {
                    for (sum, value) in sum.iter_mut().zip(&cached[row_of(position)..][..dim]) {
                        *sum += share * value;
                    }
                }
                parts.push((top, shares.iter().sum(), sum));
            }
            let top = parts.iter().map(|part| part.0).fold(-3.0e38, f32::max);
            let (mut total, mut all) = (0.0, vec![0.0; dim]);
            for (part, weights, sum) in parts {
                let share = (part - top).exp2();
                total += weights * share;
                for (all, sum) in all.iter_mut().zip(sum) {
                    *all += sum * share;
                }
            }
            for (at, sum) in all.iter().enumerate() {
                store_planes(planes, MAX_ROWS * width, row * width + head * dim + at, sum / total);
            }
        }
    }
    Ok(())
}
