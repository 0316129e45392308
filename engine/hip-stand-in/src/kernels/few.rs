//! A matrix times few rows.

use super::{Done, Grid, Space, demand, dot, expect, join_planes, silu_times, store_planes, widen};
use crate::arguments::{FEW_K, FEW_OUTPUTS, FEW_THREADS, Few, MAX_ROWS, PLANES};

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

/// Gives `put` every split's sum of every output and row.
fn sums(
    a: &Few,
    grid: Grid,
    space: &Space<'_>,
    most_rows: u32,
    mut put: impl FnMut(usize, usize, usize, f32),
) -> Done {
    expect(grid, [a.outputs / FEW_OUTPUTS as u32, a.splits, 1], FEW_THREADS, 0)?;
    demand(a.rows >= 1 && a.rows <= most_rows, "`rows`")?;
    demand(
        (a.outputs as usize).is_multiple_of(FEW_OUTPUTS) && a.width.is_multiple_of(32),
        "`outputs`, `width`",
    )?;
    let (outputs, width, rows) = (a.outputs as usize, a.width as usize, a.rows as usize);
    let (w_planes, splits) = (a.w_planes as usize, a.splits as usize);
    let x = join_planes(space.cells::<u16>(a.planes, PLANES * MAX_ROWS * width)?, rows, width);
    let weights = space.cells::<u16>(a.weights, outputs * w_planes * width)?;
    // Only asked for ahead of time, but it must be there.
    space
        .cells::<u16>(a.ahead, a.ahead_bytes as usize / 2)
        .map(drop)
        .or_else(|why| if a.ahead_bytes == 0 { Ok(()) } else { Err(why) })?;
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

fn few(a: Few, grid: Grid, space: &Space<'_>, most_rows: u32) -> Done {
    let (outputs, rows) = (a.outputs as usize, a.rows as usize);
    let out = space.cells::<f32>(a.out, a.splits as usize * rows * outputs)?;
    sums(&a, grid, space, most_rows, |split, row, output, sum| {
        out[(split * rows + row) * outputs + output].set(sum);
    })
}

fn gated(a: Few, grid: Grid, space: &Space<'_>, most_rows: u32) -> Done {
    demand(a.splits == 1 && a.out_width <= a.outputs / 2, "`splits`, `out_width`")?;
    let (half, rows, width) = (a.outputs as usize / 2, a.rows as usize, a.out_width as usize);
    let out = space.cells::<u16>(a.out, PLANES * MAX_ROWS * width)?;
    let bias = if a.bias == 0 { None } else { Some(space.cells::<f32>(a.bias, 2 * half)?) };
    let mut all = vec![0.0; rows * 2 * half];
    sums(&a, grid, space, most_rows, |_, row, output, sum| {
        all[row * 2 * half + output] = sum + bias.map_or(0.0, |bias| bias[output].get());
    })?;
    for (row, all) in all.chunks(2 * half).enumerate() {
        for column in 0..width {
            let value = silu_times(all[column], all[half + column]);
            store_planes(out, MAX_ROWS * width, row * width + column, value);
        }
    }
    Ok(())
}
