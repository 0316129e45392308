//! The residual stream: the embedding's rows, sums and norms.

use half::bf16;

use super::{Done, Grid, Space, demand, expect, store_planes, values, widen};
use crate::arguments::{Embed, MAX_ROWS, NORM_WIDTH, Norm, PLANES};

/// x[row] = the embedding of tokens[row].
pub(super) fn embed(a: Embed, grid: Grid, space: &Space<'_>) -> Done {
    let rows = grid.blocks[0];
    expect(grid, [rows, 1, 1], 256, 0)?;
    let (width, planes) = (a.width as usize, a.w_planes as usize);
    let tokens = space.cells::<u32>(a.tokens, rows as usize)?;
    let x = space.cells::<f32>(a.x, rows as usize * width)?;
    for (token, x) in tokens.iter().zip(x.chunks(width)) {
        let from = a.table + u64::from(token.get()) * (planes * width * 2) as u64;
        let from = space.cells::<u16>(from, planes * width)?;
        for (at, x) in x.iter().enumerate() {
            x.set((0..planes).rev().map(|plane| widen(from[plane * width + at].get())).sum());
        }
    }
    Ok(())
}

/// x[row] += what waits; then the planes, or bf16, of its RMS norm.
pub(super) fn norm(a: Norm, grid: Grid, space: &Space<'_>) -> Done {
    let wanted = grid.blocks[0] as usize;
    expect(grid, [wanted as u32, 1, 1], a.threads, 0)?;
    let (width, hidden, first) = (a.width as usize, a.hidden as usize, a.first as usize);
    let (rows, wide, splits) = (a.rows as usize, a.partial_width as usize, a.splits as usize);
    demand(width <= NORM_WIDTH && width <= 16 * a.threads as usize, "`width`")?;
    demand(first + wanted <= rows, "`rows`")?;
    demand(splits == 0 || wide >= width, "`partial_width`")?;
    let x = space.cells::<f32>(a.x + (first * width * 4) as u64, wanted * width)?;
    let partial =
        if splits > 0 { space.cells::<f32>(a.partial, splits * rows * wide)? } else { Default::default() };
    let bias = if a.bias == 0 { None } else { Some(space.cells::<f32>(a.bias, width)?) };
    for (row, x) in x.chunks(width).enumerate() {
        for (at, x) in x.iter().enumerate().filter(|_| splits > 0) {
            let sum: f32 =
                (0..splits).map(|split| partial[(split * rows + first + row) * wide + at].get()).sum();
            x.set(x.get() + sum + bias.map_or(0.0, |bias| bias[at].get()));
        }
        if a.weight == 0 {
            continue;
        }
        let weight = space.cells::<f32>(a.weight, width)?;
        let x = values(x);
        let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
        let scale = (1.0 / (squares / hidden as f64 + f64::from(a.epsilon)).sqrt()) as f32;
        let normed = x.iter().zip(weight).map(|(x, weight)| x * scale * weight.get());
        if a.dense == 0 {
            let planes = space.cells::<u16>(a.planes, PLANES * MAX_ROWS * width)?;
            for (at, value) in normed.enumerate() {
                store_planes(planes, MAX_ROWS * width, row * width + at, value);
            }
        } else {
            let to = space.cells::<u16>(a.planes + (row * width * 2) as u64, width)?;
            for (to, value) in to.iter().zip(normed) {
                to.set(bf16::from_f32(value).to_bits());
            }
        }
    }
    Ok(())
}
