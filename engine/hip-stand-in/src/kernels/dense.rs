//! Many rows, in bf16.

use std::cell::Cell;

use half::bf16;

use super::{Done, Grid, Space, check_launch, demand, dot, silu_times, widen};
use crate::arguments::{DENSE_ROWS, Dense, FLASH_ROWS, Flash, WIDE_THREADS};

/// Outputs of a block on gfx1151, and the shared memory that it takes.
const OUTPUTS: u32 = 128;
const SHARED: u32 = 2 * (128 + 128) * 32 * 2;

/// Sums of many rows.
pub(super) fn dense_rows(a: Dense, grid: Grid, space: &Space<'_>) -> Done {
    let outputs = a.outputs as usize;
    let out = space.cells::<f32>(a.out, a.rows as usize * outputs)?;
    sums(&a, grid, space, |row, output, sum| out[row * outputs + output].set(sum))
}

/// Gated values of many rows, in bf16.
pub(super) fn dense_gated(a: Dense, grid: Grid, space: &Space<'_>) -> Done {
    let (rows, half, width) = (a.rows as usize, a.outputs as usize / 2, a.out_width as usize);
    demand(width <= half, "`out_width`")?;
    let out = space.cells::<u16>(a.out, rows * width)?;
    let bias = if a.bias == 0 { None } else { Some(space.cells::<f32>(a.bias, 2 * half)?) };
    let mut all = vec![0.0; rows * 2 * half];
    sums(&a, grid, space, |row, output, sum| {
        all[row * 2 * half + output] = sum + bias.map_or(0.0, |bias| bias[output].get());
    })?;
    for (all, out) in all.chunks(2 * half).zip(out.chunks(width)) {
        for (column, out) in out.iter().enumerate() {
            out.set(bf16::from_f32(silu_times(all[column], all[half + column])).to_bits());
        }
    }
    Ok(())
}

fn widened(cells: &[Cell<u16>]) -> Vec<f32> {
    cells.iter().map(|bits| widen(bits.get())).collect()
}

fn sums(a: &Dense, grid: Grid, space: &Space<'_>, mut put: impl FnMut(usize, usize, f32)) -> Done {
    let (rows, outputs, width) = (a.rows as usize, a.outputs as usize, a.width as usize);
    let blocks = [a.rows.div_ceil(DENSE_ROWS as u32), a.outputs.div_ceil(OUTPUTS), 1];
    check_launch(grid, blocks, WIDE_THREADS as u32, SHARED)?;
    demand(width.is_multiple_of(32), "`width`")?;
    // The kernel reads whole tiles of rows.
    let x = widened(&space.cells::<u16>(a.x, rows.next_multiple_of(DENSE_ROWS) * width)?[..rows * width]);
    let planes = a.w_planes as usize;
    let weights = space.cells::<u16>(a.weights, outputs * planes * width)?;
    for (output, weights) in weights.chunks(planes * width).enumerate() {
        let weights = widened(weights);
        for (row, x) in x.chunks(width).enumerate() {
            put(row, output, weights.chunks(width).map(|plane| dot(plane, x)).sum());
        }
    }
    Ok(())
}

/// Attention of many rows with heads up to 32 wide.
pub(super) fn flash_32(a: Flash, grid: Grid, space: &Space<'_>) -> Done {
    flash(a, grid, space, 32)
}

/// Attention of many rows with heads up to 64 wide.
pub(super) fn flash_64(a: Flash, grid: Grid, space: &Space<'_>) -> Done {
    flash(a, grid, space, 64)
}

/// Attention of many rows with heads up to 128 wide.
pub(super) fn flash_128(a: Flash, grid: Grid, space: &Space<'_>) -> Done {
    flash(a, grid, space, 128)
}

fn flash(a: Flash, grid: Grid, space: &Space<'_>, widest: usize) -> Done {
    let (heads, kv_heads, dim) = (a.heads as usize, a.kv_heads as usize, a.head_dim as usize);
    let (start, rows, width) = (a.start as usize, a.rows as usize, a.width as usize);
    check_launch(grid, [a.rows.div_ceil(FLASH_ROWS as u32), a.heads, 1], WIDE_THREADS as u32, 0)?;
    demand(dim <= widest && width >= heads * dim, "`head_dim`, `width`")?;
    let rounded = |at: u64, count: usize| -> Result<Vec<f32>, String> {
        let cells = space.cells::<f32>(at, count)?;
        Ok(cells.iter().map(|value| bf16::from_f32(value.get()).to_f32()).collect())
    };
    let q = rounded(a.q, rows * heads * dim)?;
    let cached = (start + rows) * kv_heads * dim;
    let (keys, values) = (rounded(a.keys, cached)?, rounded(a.values, cached)?);
    let out = space.cells::<u16>(a.out, rows * width)?;
    for row in 0..rows {
        for head in 0..heads {
            let query = &q[(row * heads + head) * dim..][..dim];
            let row_of = |position: usize| (position * kv_heads + head / (heads / kv_heads)) * dim;
            let scores: Vec<f32> =
                (0..=start + row).map(|at| dot(query, &keys[row_of(at)..][..dim])).collect();
            let top = scores.iter().copied().fold(-3.0e38, f32::max);
            let (mut total, mut sum) = (0.0, vec![0.0; dim]);
            for (position, score) in scores.iter().enumerate() {
                let share = bf16::from_f32((score - top).exp2()).to_f32();
                total += share;
                for (sum, value) in sum.iter_mut().zip(&values[row_of(position)..][..dim]) {
                    *sum += share * value;
                }
            }
            for (to, sum) in out[row * width + head * dim..][..dim].iter().zip(sum) {
                to.set(bf16::from_f32(sum / total).to_bits());
            }
        }
    }
    Ok(())
}
