//! Any processor: plain Rust.

#![forbid(unsafe_code)]

use super::super::lanes::Lanes;
use super::super::packed::{Kind, LANES, Line};
use super::{Rows, TILE_ROWS, Tile};

/// See [`Isa::tile`](super::Isa::tile). Weights are widened once for all rows.
pub(super) fn tile(kind: Kind, panel: &[Line], inputs: usize, rows: Rows<'_>, tile: &mut Tile) {
    for half in 0..2 {
        // By row and parity of the input.
        let mut sums = [[[0.0; LANES]; 2]; TILE_ROWS];
        for input in 0..inputs {
            let (pair, parity) = (input / 2, input % 2);
            let weights = match (kind, parity) {
                (Kind::Bf16, 0) => widen(&panel[2 * pair + half], |bits| bits << 16),
                (Kind::Bf16, _) => widen(&panel[2 * pair + half], |bits| bits & 0xffff_0000),
                (Kind::F16, _) => panel[2 * pair + half].halves(parity),
                (Kind::F32, _) => widen(&panel[2 * input + half], |bits| bits),
            };
            for (row, sums) in sums[..rows.count].iter_mut().enumerate() {
                let x = rows.values[row * rows.stride + input];
                for (sum, weight) in sums[parity].iter_mut().zip(weights) {
                    *sum += weight * x;
                }
            }
        }
        for ([even, odd], out) in sums[..rows.count].iter().zip(&mut tile.0) {
            out[half] = std::array::from_fn(|lane| even[lane] + odd[lane]);
        }
    }
}

#[inline]
fn widen(line: &Line, bits: impl Fn(u32) -> u32) -> Lanes {
    line.0.map(|lane| f32::from_bits(bits(lane)))
}
