//! The residual stream: the embedding's rows, sums and norms.

use half::bf16;

use super::{Done, Grid, Space, check_launch, demand, store_planes, values, widen};
use crate::arguments::{ADD_OUTPUTS, EMBED_PARTS, Embed, MAX_ROWS, NORM_WIDTH, Norm, PLANES};

/// How rows come in: the embedding of tokens[row], or what is there; with a norm also what `add` leaves.
pub(super) fn embed(a: Embed, grid: Grid, space: &Space<'_>) -> Done {
    let (rows, parts) = (grid.blocks[0] as usize, a.square_parts as usize);
    check_launch(grid, [rows as u32, parts.div_ceil(EMBED_PARTS) as u32, 1], 256, 0)?;
    let (width, planes) = (a.width as usize, a.w_planes as usize);
    demand(parts * ADD_OUTPUTS >= width, "`square_parts`")?;
    let x = space.cells::<f32>(a.x, rows * width)?;
    if a.table != 0 {
        let tokens = space.cells::<u32>(a.tokens, rows)?;
        for (token, x) in tokens.iter().zip(x.chunks(width)) {
            let from = a.table + u64::from(token.get()) * (planes * width * 2) as u64;
            let from = space.cells::<u16>(from, planes * width)?;
            for (at, x) in x.iter().enumerate() {
                x.set((0..planes).rev().map(|plane| widen(from[plane * width + at].get())).sum());
            }
        }
    }
    for (row, x) in x.chunks(width).enumerate() {
        norm_later(space, a.norm, a.out, a.squares, (row, parts), &values(x))?;
    }
    Ok(())
}

/// What is left of a row for a norm whose scale is applied later: the row times the norm's weight, as planes, and the
/// sums of its squares by part. Nothing without a weight.
pub(super) fn norm_later(
    space: &Space<'_>,
    weight: u64,
    out: u64,
    squares: u64,
    (row, parts): (usize, usize),
    x: &[f32],
) -> Done {
    if weight == 0 {
        return Ok(());
    }
    let width = x.len();
    let weight = space.cells::<f32>(weight, width)?;
    let out = space.cells::<u16>(out, PLANES * MAX_ROWS * width)?;
    for (at, (x, weight)) in x.iter().zip(weight).enumerate() {
        store_planes(out, MAX_ROWS * width, row * width + at, x * weight.get());
    }
    let squares = space.cells::<f32>(squares + (row * parts * 4) as u64, parts)?;
    for (part, square) in squares.iter().enumerate() {
        let some = x.iter().skip(part * ADD_OUTPUTS).take(ADD_OUTPUTS);
        square.set(some.map(|x| x * x).sum());
    }
    Ok(())
}

/// x[row] += what waits; then the planes, or bf16, of its RMS norm.
pub(super) fn norm(a: Norm, grid: Grid, space: &Space<'_>) -> Done {
    let wanted = grid.blocks[0] as usize;
    check_launch(grid, [wanted as u32, 1, 1], a.threads, 0)?;
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
