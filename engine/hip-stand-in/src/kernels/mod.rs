//! The kernels as plain functions: `few_8` in `few`, and so on. Each takes the host's argument struct, the grid and
//! the device's memory, checks that the grid is the one that the kernel is written for, and does what
//! `engine/src/kernels/phasemark.cpp` says of it. A new kernel is one function, and one line in [`run_function`].
//!
//! Sums are taken in another order than a GPU takes them, but a row's never depend on the other rows of its pass.

use std::cell::Cell;

use half::bf16;

use crate::arguments::{Kernel, MAX_ROWS, PLANES};
use crate::ledger::Ledger;
use crate::memory;

mod attention;
mod choose;
mod compiled;
mod dense;
mod few;
mod stream;

/// How many threads a kernel was started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    /// Blocks along x, y and z.
    pub(crate) blocks: [u32; 3],
    /// Threads of a block.
    pub(crate) threads: u32,
    /// Bytes of shared memory beyond what the kernel declares.
    pub(crate) shared: u32,
}

/// The device's memory as kernels see it: `cells` of it that are there.
pub(crate) struct Space<'a>(pub(crate) &'a Ledger);

/// Done, or what was wrong.
pub(crate) type Done = Result<(), String>;

/// Runs a kernel: its function here, or where the environment names a library of them, the source for AMD itself,
/// compiled for this processor.
pub(crate) fn run(kernel: Kernel, argument: &[u8], grid: Grid, space: &Space<'_>) -> Done {
    match compiled::library() {
        Some(library) => library.run(kernel, argument, grid),
        None => run_function(kernel, argument, grid, space),
    }
}

fn run_function(kernel: Kernel, argument: &[u8], grid: Grid, space: &Space<'_>) -> Done {
    macro_rules! with {
        ($function:expr) => {
            $function(memory::take(argument), grid, space)
        };
    }
    match kernel {
        Kernel::Embed => with!(stream::embed),
        Kernel::Norm => with!(stream::norm),
        Kernel::Few8 => with!(few::few_8),
        Kernel::Few16 => with!(few::few_16),
        Kernel::Gated8 => with!(few::gated_8),
        Kernel::Gated16 => with!(few::gated_16),
        Kernel::Add8 => with!(few::add_8),
        Kernel::Add16 => with!(few::add_16),
        Kernel::Rotate => with!(attention::rotate),
        Kernel::Attend => with!(attention::attend),
        Kernel::DenseRows => with!(dense::dense_rows),
        Kernel::DenseGated => with!(dense::dense_gated),
        Kernel::Flash32 => with!(dense::flash_32),
        Kernel::Flash64 => with!(dense::flash_64),
        Kernel::Flash128 => with!(dense::flash_128),
        Kernel::Argmax => with!(choose::argmax),
        Kernel::Choose => with!(choose::choose),
        Kernel::Accept => with!(choose::accept),
    }
}

/// Refuses a grid that the kernel is not written for.
fn check_launch(grid: Grid, blocks: [u32; 3], threads: u32, shared: u32) -> Done {
    let expected = Grid { blocks, threads, shared };
    if grid == expected { Ok(()) } else { Err(format!("started as {grid:?}, written for {expected:?}")) }
}

/// Refuses an argument that makes no sense.
fn demand(sense: bool, what: &str) -> Done {
    if sense { Ok(()) } else { Err(format!("its argument does not fit: {what}")) }
}

fn widen(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The values in cells.
fn values<T: Copy>(cells: &[Cell<T>]) -> Vec<T> {
    cells.iter().map(Cell::get).collect()
}

/// Splits a value into its planes at index `at`; a plane has `plane` values.
fn store_planes(planes: &[Cell<u16>], plane: usize, at: usize, value: f32) {
    let mut rest = value;
    for number in 0..PLANES {
        let part = bf16::from_f32(rest);
        planes[number * plane + at].set(part.to_bits());
        rest -= part.to_f32();
    }
}

/// Rows of few, `[rows, width]`, whose planes add up again.
fn join_planes(planes: &[Cell<u16>], rows: usize, width: usize) -> Vec<f32> {
    let part = |number: usize, at: usize| widen(planes[number * MAX_ROWS * width + at].get());
    (0..rows * width).map(|at| part(0, at) + (part(1, at) + part(2, at))).collect()
}

/// A product's sum, eight sums at a time.
fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 8];
    let (x_chunks, x_rest) = x.as_chunks::<8>();
    let (y_chunks, y_rest) = y.as_chunks::<8>();
    for (x, y) in x_chunks.iter().zip(y_chunks) {
        for lane in 0..8 {
            sums[lane] += x[lane] * y[lane];
        }
    }
    let rest: f32 = x_rest.iter().zip(y_rest).map(|(x, y)| x * y).sum();
    sums.iter().sum::<f32>() + rest
}

/// The gated value of a gate and its up: silu(gate) * up.
fn silu_times(gate: f32, up: f32) -> f32 {
    gate / (1.0 + (gate * -std::f32::consts::LOG2_E).exp2()) * up
}
