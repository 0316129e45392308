//! Any processor: plain Rust.

#![forbid(unsafe_code)]

use super::super::lanes::Lanes;
use super::super::packed::{Kind, LANES, Line};
use super::{Rows, Tile};

/// See [`Isa::tile`](super::Isa::tile).
pub(super) fn tile(kind: Kind, panel: &[Line], inputs: usize, rows: Rows<'_>, tile: &mut Tile) {
    for (row, out) in tile.0[..rows.count].iter_mut().enumerate() {
        let x = &rows.values[row * rows.stride..][..inputs];
        let (pairs, last) = x.as_chunks::<2>();
        for (half, out) in out.iter_mut().enumerate() {
            let (mut even, mut odd) = ([0.0; LANES], [0.0; LANES]);
            for (pair, x) in pairs.iter().enumerate() {
                match kind {
                    Kind::Bf16 => {
                        let line = &panel[2 * pair + half];
                        add(&mut even, widen(line, |bits| bits << 16), x[0]);
                        add(&mut odd, widen(line, |bits| bits & 0xffff_0000), x[1]);
                    }
                    Kind::F16 => {
                        let line = &panel[2 * pair + half];
                        add(&mut even, line.halves(0), x[0]);
                        add(&mut odd, line.halves(1), x[1]);
                    }
                    Kind::F32 => {
                        add(&mut even, widen(&panel[4 * pair + half], |bits| bits), x[0]);
                        add(&mut odd, widen(&panel[4 * pair + 2 + half], |bits| bits), x[1]);
                    }
                }
            }
            if let &[x] = last {
                let weights = match kind {
                    Kind::Bf16 => widen(&panel[2 * pairs.len() + half], |bits| bits << 16),
                    Kind::F16 => panel[2 * pairs.len() + half].halves(0),
                    Kind::F32 => widen(&panel[4 * pairs.len() + half], |bits| bits),
                };
                add(&mut even, weights, x);
            }
            *out = std::array::from_fn(|lane| even[lane] + odd[lane]);
        }
    }
}

#[inline]
fn widen(line: &Line, bits: impl Fn(u32) -> u32) -> Lanes {
    line.0.map(|lane| f32::from_bits(bits(lane)))
}

#[inline]
fn add(sum: &mut Lanes, weights: Lanes, x: f32) {
    for (sum, weight) in sum.iter_mut().zip(weights) {
        *sum += weight * x;
    }
}
