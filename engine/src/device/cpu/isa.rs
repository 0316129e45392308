//! Instruction sets: found at run time, one small file each, the same results to rounding.
//!
//! A tile is a few rows times one panel of weights. For each row and output there are two sums, one over the
//! even inputs and one over the odd ones, each in order, added at the end: this order depends on nothing
//! else, so a row's result is the same bits whichever rows share its tile.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod blocks;
mod portable;

use std::ops::Range;

use super::blocks::{Blocks, GROUP};
use super::fixed::Fixed;
use super::lanes::{self, Lanes};
use super::packed::{Kind, Line};

/// Lines between the one in use and the one asked for from memory: 12 KiB. With several rows there is so much
/// arithmetic to a line that the processor does not look far enough ahead by itself.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 192;

/// Rows that a tile can have: what the widest registers hold.
pub(super) const TILE_ROWS: usize = 6;

/// Results of a tile, `[rows, 2, 16]`.
#[derive(Clone, Debug, PartialEq)]
#[repr(C, align(64))]
pub(super) struct Tile(pub(super) [[Lanes; 2]; TILE_ROWS]);

impl Tile {
    /// Room for the results of a tile.
    pub(super) fn new() -> Self {
        Tile([[[0.0; 16]; 2]; TILE_ROWS])
    }
}

/// Some rows of a row-major matrix, `stride` values from one to the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows<'a> {
    pub(super) values: &'a [f32],
    pub(super) stride: usize,
    pub(super) count: usize,
}

impl Rows<'_> {
    /// Some of the rows.
    pub(super) fn part(self, range: &Range<usize>) -> Self {
        Rows { values: &self.values[range.start * self.stride..], count: range.len(), ..self }
    }
}

/// An instruction set of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Isa(Level);

// Values other than `Portable` are made only by `Isa::all`, where the processor has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512 with dot products of bytes.
    #[cfg(target_arch = "x86_64")]
    Vnni,
}

impl Isa {
    /// The fastest that this machine has.
    pub(super) fn detect() -> Self {
        Self::all().pop().unwrap_or(Isa(Level::Portable))
    }

    /// All that this machine has, the fastest last.
    pub(super) fn all() -> Vec<Self> {
        let mut found = vec![Isa(Level::Portable)];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            found.push(Isa(Level::Avx2));
            if is_x86_feature_detected!("avx512f") {
                found.push(Isa(Level::Avx512));
                if is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
                {
                    found.push(Isa(Level::Vnni));
                }
            }
        }
        found
    }

    /// Multiplies `rows`, at most [`TILE_ROWS`], with the first `inputs` inputs of one panel.
    ///
    /// # Panics
    /// When the panel or the rows are shorter than that.
    pub(super) fn tile(self, kind: Kind, panel: &[Line], inputs: usize, rows: Rows<'_>, tile: &mut Tile) {
        assert!(panel.len() >= kind.lines(inputs), "a panel of {inputs} inputs");
        assert!((1..=TILE_ROWS).contains(&rows.count), "rows of a tile");
        assert!(rows.values.len() >= (rows.count - 1) * rows.stride + inputs, "rows of {inputs} inputs");
        match self.0 {
            Level::Portable => portable::tile(kind, panel, inputs, rows, tile),
            // SAFETY: the processor has AVX2, FMA and F16C (see `Level`); the assertions above are what it asks for.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { avx2::tile(kind, panel, inputs, rows, tile) },
            // SAFETY: the processor has AVX-512F (see `Level`); the assertions above are what it asks for.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Vnni => unsafe { avx512::tile(kind, panel, inputs, rows, tile) },
        }
    }

    /// Whether quantised weights are multiplied with [fixed-point](Fixed) rows.
    pub(super) fn fixes(self) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Level::Vnni => true,
            _ => false,
        }
    }

    /// A row in fixed point, a group for each of `out`; nothing where that is not [asked for](Self::fixes).
    pub(super) fn fix(self, row: &[f32], out: &mut [Fixed]) {
        match self.0 {
            // SAFETY: the processor has AVX-512F, BW and VL (see `Level`).
            #[cfg(target_arch = "x86_64")]
            Level::Vnni => unsafe { blocks::vnni::fix(row, out) },
            _ => {}
        }
    }

    /// [`tile`](Self::tile) of a panel of quantised weights. `inputs` are whole blocks; `fixed` are the rows in fixed
    /// point where the instruction set [asks for that](Self::fixes).
    ///
    /// # Panics
    /// When the panel or the rows are shorter than that.
    pub(super) fn blocks(
        self,
        blocks: Blocks,
        panel: &[Line],
        inputs: usize,
        (rows, fixed): (Rows<'_>, &[Fixed]),
        tile: &mut Tile,
    ) {
        assert!((1..=TILE_ROWS).contains(&rows.count), "rows of a tile");
        match self.0 {
            Level::Portable => blocks::portable::tile(blocks, panel, inputs, rows, tile),
            // SAFETY: the processor has AVX2, FMA and F16C (see `Level`).
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { blocks::avx2::tile(blocks, panel, inputs, rows, tile) },
            // SAFETY: the processor has AVX-512F (see `Level`).
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => unsafe { blocks::avx512::tile(blocks, panel, inputs, rows, tile) },
            #[cfg(target_arch = "x86_64")]
            Level::Vnni => {
                let groups = inputs / GROUP;
                let (panel, fixed) = (&panel[..blocks.lines(inputs)], &fixed[..rows.count * groups]);
                // SAFETY: the processor has AVX-512F, BW, VL and VNNI (see `Level`).
                unsafe { blocks::vnni::tile(blocks, panel, fixed, groups, tile) }
            }
        }
    }

    /// The weights of one output of a panel of quantised weights.
    pub(super) fn row(blocks: Blocks, panel: &[Line], lane: usize, row: &mut [f32]) {
        blocks::portable::row(blocks, panel, lane, row);
    }

    /// [`lanes::swiglu`] of the halves of the first `rows` rows of a tile, into the first half.
    pub(super) fn swiglu(self, tile: &mut Tile, rows: usize) {
        match self.0 {
            Level::Portable => swiglu(tile, rows),
            // SAFETY: the processor has AVX2 (see `Level`).
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { avx2::swiglu(tile, rows) },
            // SAFETY: the processor has AVX-512F (see `Level`).
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Vnni => unsafe { avx512::swiglu(tile, rows) },
        }
    }

    /// [`lanes::soften`].
    pub(super) fn soften(self, scores: &mut [f32], len: usize, scale: f32) -> f32 {
        match self.0 {
            Level::Portable => lanes::soften(scores, len, scale),
            // SAFETY: the processor has AVX2 (see `Level`).
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { avx2::soften(scores, len, scale) },
            // SAFETY: the processor has AVX-512F (see `Level`).
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Vnni => unsafe { avx512::soften(scores, len, scale) },
        }
    }

    /// [`lanes::rms_norm`].
    pub(super) fn rms_norm(self, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
        match self.0 {
            Level::Portable => lanes::rms_norm(x, weight, epsilon, out),
            // SAFETY: the processor has AVX2 (see `Level`).
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { avx2::rms_norm(x, weight, epsilon, out) },
            // SAFETY: the processor has AVX-512F (see `Level`).
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Vnni => unsafe { avx512::rms_norm(x, weight, epsilon, out) },
        }
    }
}

#[expect(clippy::inline_always, reason = "to be compiled for the caller's instruction set")]
#[inline(always)]
fn swiglu(tile: &mut Tile, rows: usize) {
    for [gate, up] in &mut tile.0[..rows] {
        lanes::swiglu(gate, up);
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::float_cmp, reason = "the same bits are what is asked for")]

    use super::*;
    use crate::device::cpu::packed::{Layout, Matrix, Packed};
    use crate::device::cpu::pool::Pool;
    use crate::model::Dtype;

    #[test]
    fn every_instruction_set_agrees_on_a_tile_to_rounding_and_on_the_rest_to_the_bit() {
        let pool = Pool::new(1);
        for inputs in 1..70usize {
            let weights: Vec<f32> = (0..PANEL * inputs).map(|at| (at as f32 * 1.37).sin()).collect();
            let x: Vec<f32> = (0..TILE_ROWS * inputs).map(|at| (at as f32 * 0.71).cos()).collect();
            for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
                let bytes: Vec<u8> = match dtype {
                    Dtype::Bf16 => {
                        weights.iter().flat_map(|w| half::bf16::from_f32(*w).to_le_bytes()).collect()
                    }
                    Dtype::F16 => {
                        weights.iter().flat_map(|w| half::f16::from_f32(*w).to_le_bytes()).collect()
                    }
                    _ => weights.iter().flat_map(|w| w.to_le_bytes()).collect(),
                };
                let matrix = Matrix { dtype, bytes: &bytes, outputs: PANEL, inputs, bias: None };
                let packed = Packed::stacked(&pool, &[matrix]);
                let (Layout::Plain(kind), panel) = packed.panel(0) else { panic!("no blocks") };
                for count in 1..=TILE_ROWS {
                    let rows = Rows { values: &x, stride: inputs, count };
                    let mut expected = Tile::new();
                    Isa(Level::Portable).tile(kind, panel, inputs, rows, &mut expected);
                    for isa in Isa::all() {
                        let mut tile = Tile::new();
                        isa.tile(kind, panel, inputs, rows, &mut tile);
                        let close = |a: &f32, b: &f32| (a - b).abs() < 1e-5;
                        let (got, want) =
                            (tile.0.as_flattened().as_flattened(), expected.0.as_flattened().as_flattened());
                        assert!(got.iter().zip(want).all(|(a, b)| close(a, b)), "{isa:?} {inputs} {count}");
                        let mut scores = got.to_vec();
                        let mut portable = scores.clone();
                        assert_eq!(
                            isa.soften(&mut scores, inputs, 0.3),
                            lanes::soften(&mut portable, inputs, 0.3)
                        );
                        assert_eq!(scores, portable);
                        let mut other = tile.clone();
                        isa.swiglu(&mut tile, count);
                        swiglu(&mut other, count);
                        assert_eq!(tile, other);
                        let (mut normed, mut portable) = (vec![0.0; inputs], vec![0.0; inputs]);
                        isa.rms_norm(&x[..inputs], &weights, 1e-6, &mut normed);
                        lanes::rms_norm(&x[..inputs], &weights, 1e-6, &mut portable);
                        assert_eq!(normed, portable);
                    }
                }
            }
        }
    }

    use crate::device::cpu::packed::PANEL;
}
