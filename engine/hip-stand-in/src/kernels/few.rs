//! A matrix times few rows.

use std::cell::Cell;

use super::stream::norm_later;
use super::{
    Done, Grid, Space, check_launch, demand, dot, join_planes, silu_times, store_planes, values, widen,
};
use crate::arguments::{
    ADD_OUTPUTS, ADD_THREADS, Add, FEW_K, FEW_OUTPUTS, FEW_THREADS, Few, MAX_ROWS, PLANES,
};

/// Partial sums of up to eight rows.
pub(super) fn few_8(a: Few, grid: Grid, space: &Space<'_>) -> Done {
    few(a, grid, space, 8)
}

/// Partial sums of up to sixteen rows.
pub(super) fn few_16(a: Few, grid: Grid, space: &Space<'_>) -> Done {
    few(a, grid, space, 16)
}

/// Gated values of up to eight rows.
pub(super) fn gated_8(a: Few, grid: Grid, space: &Space<'_>) -> Done {
    gated(a, grid, space, 8)
}

/// Gated values of up to sixteen rows.
pub(super) fn gated_16(a: Few, grid: Grid, space: &Space<'_>) -> Done {
    gated(a, grid, space, 16)
}

/// A matrix times few rows.
struct Product {
    planes: u64,
    weights: u64,
    outputs: usize,
    width: usize,
    w_planes: usize,
    rows: usize,
    /// Sums of an output, each of its share of k.
    splits: usize,
}

impl Product {
    /// Gives `put` every split's sum of every output and row.
    fn sums(&self, space: &Space<'_>, mut put: impl FnMut(usize, usize, usize, f32)) -> Done {
        let &Product { outputs, width, w_planes, rows, splits, .. } = self;
        demand(width.is_multiple_of(32) && splits > 0, "`width`, `splits`")?;
        // The rows may be some of those that lie there.
        let there = ((PLANES - 1) * MAX_ROWS + rows) * width;
        let x = join_planes(space.cells::<u16>(self.planes, there)?, rows, width);
        let weights = space.cells::<u16>(self.weights, outputs * w_planes * width)?;
        let steps = w_planes * width / 32;
        let mut values = vec![0.0; w_planes * width];
        for (output, weights) in weights.chunks(w_planes * width).enumerate() {
            for (value, bits) in values.iter_mut().zip(weights) {
                *value = widen(bits.get());
            }
            for split in 0..splits {
                for row in 0..rows {
                    let x = &x[row * width..][..width];
                    let mut sum = 0.0;
                    for part in FEW_K * split..FEW_K * (split + 1) {
                        let bound = |part: usize| steps * part / (FEW_K * splits) * 32;
                        let (mut from, end) = (bound(part), bound(part + 1));
                        // The planes of a weight all meet the same row.
                        while from < end {
                            let upto = end.min((from / width + 1) * width);
                            let at = from % width;
                            sum += dot(&values[from..upto], &x[at..at + upto - from]);
                            from = upto;
                        }
                    }
                    put(split, row, output, sum);
                }
            }
        }
        Ok(())
    }
}

/// What is only asked for ahead of time must be there too.
fn ahead(space: &Space<'_>, at: u64, bytes: u32) -> Done {
    if bytes == 0 { Ok(()) } else { space.cells::<u16>(at, bytes as usize / 2).map(drop) }
}

/// As the argument says it; the grid is the one for that.
fn product(a: &Few, grid: Grid, space: &Space<'_>, most_rows: u32) -> Result<Product, String> {
    check_launch(grid, [a.outputs / FEW_OUTPUTS as u32, a.splits, 1], FEW_THREADS, 0)?;
    demand(a.rows >= 1 && a.rows <= most_rows, "`rows`")?;
    demand((a.outputs as usize).is_multiple_of(FEW_OUTPUTS), "`outputs`")?;
    ahead(space, a.ahead, a.ahead_bytes)?;
    Ok(Product {
        planes: a.planes,
        weights: a.weights,
        outputs: a.outputs as usize,
        width: a.width as usize,
        w_planes: a.w_planes as usize,
        rows: a.rows as usize,
        splits: a.splits as usize,
    })
}

/// What the norm scales each row by: 1 where there is none.
fn scales(a: &Few, space: &Space<'_>) -> Result<Vec<f32>, String> {
    let (rows, parts) = (a.rows as usize, a.square_parts as usize);
    if a.squares == 0 {
        return Ok(vec![1.0; rows]);
    }
    let squares = space.cells::<f32>(a.squares, rows * parts)?;
    let scale = |squares: &[Cell<f32>]| {
        let sum: f64 = squares.iter().map(|square| f64::from(square.get())).sum();
        (1.0 / (sum / f64::from(a.hidden) + f64::from(a.epsilon)).sqrt()) as f32
    };
    Ok(squares.chunks(parts).map(scale).collect())
}

fn few(a: Few, grid: Grid, space: &Space<'_>, most_rows: u32) -> Done {
    let (outputs, rows) = (a.outputs as usize, a.rows as usize);
    let (product, scales) = (product(&a, grid, space, most_rows)?, scales(&a, space)?);
    let out = space.cells::<f32>(a.out, a.splits as usize * rows * outputs)?;
    product.sums(space, |split, row, output, sum| {
        out[(split * rows + row) * outputs + output].set(sum * scales[row]);
    })
}

fn gated(a: Few, grid: Grid, space: &Space<'_>, most_rows: u32) -> Done {
    demand(a.splits == 1 && a.out_width <= a.outputs / 2, "`splits`, `out_width`")?;
    let (half, rows, width) = (a.outputs as usize / 2, a.rows as usize, a.out_width as usize);
    let (product, scales) = (product(&a, grid, space, most_rows)?, scales(&a, space)?);
    let out = space.cells::<u16>(a.out, PLANES * MAX_ROWS * width)?;
    let bias = if a.bias == 0 { None } else { Some(space.cells::<f32>(a.bias, 2 * half)?) };
    let mut all = vec![0.0; rows * 2 * half];
    product.sums(space, |_, row, output, sum| {
        all[row * 2 * half + output] = sum * scales[row] + bias.map_or(0.0, |bias| bias[output].get());
    })?;
    for (row, all) in all.chunks(2 * half).enumerate() {
        for column in 0..width {
            let value = silu_times(all[column], all[half + column]);
            store_planes(out, MAX_ROWS * width, row * width + column, value);
        }
    }
    Ok(())
}

/// What up to eight rows add to the residual stream.
pub(super) fn add_8(a: Add, grid: Grid, space: &Space<'_>) -> Done {
    add(a, grid, space, 8)
}

/// What up to sixteen rows add to the residual stream.
pub(super) fn add_16(a: Add, grid: Grid, space: &Space<'_>) -> Done {
    add(a, grid, space, 16)
}

fn add(a: Add, grid: Grid, space: &Space<'_>, most_rows: u32) -> Done {
    let (outputs, rows, width) = (a.outputs as usize, a.rows as usize, a.x_width as usize);
    check_launch(grid, [(outputs / ADD_OUTPUTS) as u32, 1, 1], ADD_THREADS as u32, 0)?;
    demand(a.rows >= 1 && a.rows <= most_rows, "`rows`")?;
    demand(outputs.is_multiple_of(ADD_OUTPUTS) && width <= outputs, "`outputs`, `x_width`")?;
    ahead(space, a.ahead, a.ahead_bytes)?;
    let product = Product {
        planes: a.planes,
        weights: a.weights,
        outputs,
        width: a.width as usize,
        w_planes: a.w_planes as usize,
        rows,
        splits: 1,
    };
    let x = space.cells::<f32>(a.x, rows * width)?;
    let bias = if a.bias == 0 { None } else { Some(space.cells::<f32>(a.bias, width)?) };
    product.sums(space, |_, row, output, sum| {
        if output < width {
            let x = &x[row * width + output];
            x.set(sum + x.get() + bias.map_or(0.0, |bias| bias[output].get()));
        }
    })?;
    for (row, x) in x.chunks(width).enumerate() {
        norm_later(space, a.norm, a.out, a.squares, (row, outputs / ADD_OUTPUTS), &values(x))?;
    }
    Ok(())
}
