//! Any processor: plain Rust.

#![forbid(unsafe_code)]

use super::super::super::blocks::{Blocks, GROUP};
use super::super::super::packed::{LANES, Line};
use super::super::{Rows, Tile};
use super::{EIGHT, Format, Q4_0, Q4_1, Q4K, Q5K, Q6K, Q8_0, RUN, Vector, by_halves};

#[derive(Clone, Copy)]
struct Lanes([f32; LANES]);

impl Lanes {
    #[inline]
    fn of(value: impl Fn(usize) -> f32) -> Self {
        Lanes(std::array::from_fn(value))
    }
}

fn byte(line: &Line, at: usize) -> u8 {
    (line.0[at / 4] >> (at % 4 * 8)) as u8
}

impl Vector for Lanes {
    type Bits = [u32; LANES];

    #[inline]
    fn zero() -> Self {
        Lanes([0.0; LANES])
    }

    #[inline]
    fn splat(value: f32) -> Self {
        Lanes([value; LANES])
    }

    #[inline]
    fn times(self, by: Self) -> Self {
        Lanes::of(|lane| self.0[lane] * by.0[lane])
    }

    #[inline]
    fn times_plus(self, by: Self, to: Self) -> Self {
        Lanes::of(|lane| to.0[lane] + self.0[lane] * by.0[lane])
    }

    #[inline]
    fn bits(line: &Line) -> Self::Bits {
        line.0
    }

    #[inline]
    fn nibble(bits: Self::Bits, at: u32) -> Self {
        Lanes::of(|lane| (bits[lane] >> at & 15) as f32)
    }

    #[inline]
    fn joined(bits: Self::Bits, at: u32, high: Self::Bits, high_at: u32, mask: u32) -> Self {
        Lanes::of(|lane| (bits[lane] >> at & 15 | (high[lane] >> high_at & mask) << 4) as f32)
    }

    #[inline]
    fn byte(bits: Self::Bits, at: u32) -> Self {
        Lanes::of(|lane| (bits[lane] >> at & 255) as f32)
    }

    #[inline]
    fn halves(line: &Line, which: usize) -> Self {
        Lanes(line.halves(which))
    }

    #[inline]
    fn bytes(line: &Line, which: usize) -> Self {
        Lanes::of(|lane| f32::from(byte(line, which * LANES + lane)))
    }

    #[inline]
    fn signed_bytes(line: &Line, which: usize) -> Self {
        Lanes::of(|lane| f32::from(byte(line, which * LANES + lane).cast_signed()))
    }

    #[inline]
    fn store(self, to: &mut [f32; RUN]) {
        *to = self.0;
    }
}

/// See [`Isa::blocks`](super::super::Isa::blocks).
pub(in super::super) fn tile(blocks: Blocks, panel: &[Line], inputs: usize, rows: Rows<'_>, tile: &mut Tile) {
    match blocks {
        Blocks::Q8_0 => by_halves::<Lanes, Q8_0>(panel, inputs, rows, tile),
        Blocks::Q4_0 => by_halves::<Lanes, Q4_0>(panel, inputs, rows, tile),
        Blocks::Q4_1 => by_halves::<Lanes, Q4_1>(panel, inputs, rows, tile),
        Blocks::Q4K => by_halves::<Lanes, Q4K>(panel, inputs, rows, tile),
        Blocks::Q5K => by_halves::<Lanes, Q5K>(panel, inputs, rows, tile),
        Blocks::Q6K => by_halves::<Lanes, Q6K>(panel, inputs, rows, tile),
    }
}

/// The weights of one output, `lane` of a panel.
pub(in super::super) fn row(blocks: Blocks, panel: &[Line], lane: usize, row: &mut [f32]) {
    match blocks {
        Blocks::Q8_0 => lane_of::<Q8_0>(panel, lane, row),
        Blocks::Q4_0 => lane_of::<Q4_0>(panel, lane, row),
        Blocks::Q4_1 => lane_of::<Q4_1>(panel, lane, row),
        Blocks::Q4K => lane_of::<Q4K>(panel, lane, row),
        Blocks::Q5K => lane_of::<Q5K>(panel, lane, row),
        Blocks::Q6K => lane_of::<Q6K>(panel, lane, row),
    }
}

fn lane_of<F: Format>(panel: &[Line], lane: usize, row: &mut [f32]) {
    let (half, lane) = (lane / LANES, lane % LANES);
    let (head, length) = F::BLOCKS.shape();
    let blocks = panel.chunks_exact(F::BLOCKS.block()).flat_map(|block| {
        let (head, groups) = block.split_at(head);
        groups.chunks_exact(length).map(move |group| (head, group))
    });
    for ((head, group), row) in blocks.zip(row.chunks_exact_mut(GROUP)) {
        for (eight, row) in row.chunks_exact_mut(EIGHT).enumerate() {
            let scale = F::scale::<Lanes>(head, group, eight / 2, half);
            let loaded = F::load::<Lanes>(group, eight, half);
            for (at, value) in row.iter_mut().enumerate() {
                *value = F::weight(loaded, eight, at, scale).0[lane];
            }
        }
    }
}
