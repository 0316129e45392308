//! Quantised weights in the order in which they are read.
//!
//! A panel is as in [`packed`](super::packed), 32 outputs in two halves of 16 lanes, but its inputs come in blocks
//! as the file has them: first the lines with what a block shares, then groups of 32 inputs, each with its scales
//! and then its weights. The weights stay as many bits as they were, so that a panel is as long as the file's
//! bytes, or one part in 37 longer where six-bit scales become whole bytes:
//!
//! | type | a block's head | a group's scales | a group's weights |
//! |---|---|---|---|
//! | `Q8_0` | | 1: a half for each output | 16: four inputs each |
//! | `Q4_0` | | 1: a half for each output | 8: eight inputs each |
//! | `Q4_1` | | 2: scale and offset, by half panel | 8 |
//! | `Q4_K` | 2: scale and offset, by half panel | 1: scale and offset, bytes | 8 |
//! | `Q5_K` | 2 | 1 | 8, and 2 with the fifth bits |
//! | `Q6_K` | 1: scale | 1: scales of two runs of 16 inputs | 8, and 4 with the two high bits |
//!
//! Lines of weights alternate between the halves. A lane of a line of four-bit weights has eight inputs, the first
//! in its low bits, so that its bytes hold the even inputs in their low halves and the odd ones in their high halves.
//! Wider weights keep that order: a line of `Q8_0` has the even or the odd ones of eight inputs, 128 added so that
//! they have no sign, and fifth and sixth bits lie in the byte that their weight's other bits are in.

#![forbid(unsafe_code)]

use super::packed::{LANES, Line};
use crate::model::{Dtype, six_bits};

/// Inputs of a group.
pub(super) const GROUP: usize = 32;

/// A quantised type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocks {
    Q8_0,
    Q4_0,
    Q4_1,
    Q4K,
    Q5K,
    Q6K,
}

impl Blocks {
    /// The layout for weights of this type; none for a type without blocks.
    pub(super) fn of(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::Q8_0 => Some(Blocks::Q8_0),
            Dtype::Q4_0 => Some(Blocks::Q4_0),
            Dtype::Q4_1 => Some(Blocks::Q4_1),
            Dtype::Q4K => Some(Blocks::Q4K),
            Dtype::Q5K => Some(Blocks::Q5K),
            Dtype::Q6K => Some(Blocks::Q6K),
            Dtype::Bf16 | Dtype::F16 | Dtype::F32 => None,
        }
    }

    fn dtype(self) -> Dtype {
        match self {
            Blocks::Q8_0 => Dtype::Q8_0,
            Blocks::Q4_0 => Dtype::Q4_0,
            Blocks::Q4_1 => Dtype::Q4_1,
            Blocks::Q4K => Dtype::Q4K,
            Blocks::Q5K => Dtype::Q5K,
            Blocks::Q6K => Dtype::Q6K,
        }
    }

    /// Lines of a block's head, and of each of its groups.
    pub(super) const fn shape(self) -> (usize, usize) {
        match self {
            Blocks::Q8_0 => (0, 17),
            Blocks::Q4_0 => (0, 9),
            Blocks::Q4_1 => (0, 10),
            Blocks::Q4K => (2, 9),
            Blocks::Q5K => (2, 11),
            Blocks::Q6K => (1, 13),
        }
    }

    /// Groups of a block.
    pub(super) const fn groups(self) -> usize {
        match self {
            Blocks::Q8_0 | Blocks::Q4_0 | Blocks::Q4_1 => 1,
            Blocks::Q4K | Blocks::Q5K | Blocks::Q6K => 8,
        }
    }

    /// Lines of a block.
    pub(super) const fn block(self) -> usize {
        let (head, group) = self.shape();
        head + self.groups() * group
    }

    /// Lines of a panel over `inputs` inputs, which are whole blocks.
    pub(super) fn lines(self, inputs: usize) -> usize {
        inputs / (GROUP * self.groups()) * self.block()
    }

    /// Puts one output's row, as the file has it, into its lane of an empty panel.
    pub(super) fn fill(self, lines: &mut [Line], lane: usize, row: &[u8]) {
        let lane = Lane { half: lane / LANES, lane: lane % LANES };
        let bytes = self.dtype().block().1;
        let (head, group) = self.shape();
        for (block, lines) in row.chunks_exact(bytes).zip(lines.chunks_exact_mut(self.block())) {
            let (head, groups) = lines.split_at_mut(head);
            match self {
                Blocks::Q8_0 => {
                    lane.half_at(&mut groups[0], lane.half, &block[..2]);
                    for (at, &byte) in block[2..].iter().enumerate() {
                        let (quad, place) = (at / 8 * 2 + at % 2, at % 8 / 2);
                        groups[1 + 2 * quad + lane.half].0[lane.lane] |=
                            u32::from(byte ^ 0x80) << (8 * place);
                    }
                }
                Blocks::Q4_0 => {
                    lane.half_at(&mut groups[0], lane.half, &block[..2]);
                    lane.simple_nibbles(&mut groups[1..], &block[2..]);
                }
                Blocks::Q4_1 => {
                    lane.half_at(&mut groups[lane.half], 0, &block[..2]);
                    lane.half_at(&mut groups[lane.half], 1, &block[2..4]);
                    lane.simple_nibbles(&mut groups[2..], &block[4..]);
                }
                Blocks::Q4K | Blocks::Q5K => {
                    lane.half_at(&mut head[lane.half], 0, &block[..2]);
                    lane.half_at(&mut head[lane.half], 1, &block[2..4]);
                    let low = if self == Blocks::Q4K { 16 } else { 48 };
                    for (number, lines) in groups.chunks_exact_mut(group).enumerate() {
                        let (scale, offset) = six_bits(&block[4..16], number);
                        lane.byte(&mut lines[0], 2 * lane.half, scale);
                        lane.byte(&mut lines[0], 2 * lane.half + 1, offset);
                        let low = &block[low + number / 2 * 32..][..32];
                        lane.nibbles(&mut lines[1..9], low, number % 2 * 4);
                        if self == Blocks::Q5K {
                            lines[9 + lane.half].0[lane.lane] = gather(&block[16..48], number, 1);
                        }
                    }
                }
                Blocks::Q6K => {
                    lane.half_at(&mut head[0], lane.half, &block[208..210]);
                    for (number, lines) in groups.chunks_exact_mut(group).enumerate() {
                        let (part, run) = (number / 4, number % 4);
                        for sub in 0..2 {
                            lane.byte(&mut lines[0], 2 * lane.half + sub, block[192 + 2 * number + sub]);
                            let high = &block[128 + part * 32 + sub * 16..][..16];
                            lines[9 + 2 * sub + lane.half].0[lane.lane] = gather(high, 2 * run, 2);
                        }
                        let low = &block[part * 64 + run % 2 * 32..][..32];
                        lane.nibbles(&mut lines[1..9], low, run / 2 * 4);
                    }
                }
            }
        }
    }
}

/// Where an output's weights go.
#[derive(Clone, Copy)]
struct Lane {
    half: usize,
    lane: usize,
}

impl Lane {
    /// The lane's place among 16 halves, the first or second of a line.
    fn half_at(self, line: &mut Line, which: usize, bytes: &[u8]) {
        line.put_half(which * LANES + self.lane, [bytes[0], bytes[1]]);
    }

    /// The lane's place among 16 bytes, the first to fourth of a line.
    fn byte(self, line: &mut Line, which: usize, byte: u8) {
        let at = which * LANES + self.lane;
        line.0[at / 4] |= u32::from(byte) << (at % 4 * 8);
    }

    /// Four-bit weights at bit `shift` of 32 bytes.
    fn nibbles(self, lines: &mut [Line], bytes: &[u8], shift: usize) {
        let (bytes, _) = bytes.as_chunks();
        for (pair, bytes) in lines.chunks_exact_mut(2).zip(bytes) {
            pair[self.half].0[self.lane] = narrow(*bytes, shift);
        }
    }

    /// 32 four-bit weights: the low halves of 16 bytes, then the high ones.
    fn simple_nibbles(self, lines: &mut [Line], bytes: &[u8]) {
        let (low, high) = lines.split_at_mut(4);
        self.nibbles(low, bytes, 0);
        self.nibbles(high, bytes, 4);
    }
}

/// Four bits of each of eight bytes, the first lowest.
fn narrow(bytes: [u8; 8], shift: usize) -> u32 {
    let spread = u64::from_le_bytes(bytes) >> shift & 0x0f0f_0f0f_0f0f_0f0f;
    let spread = (spread | spread >> 4) & 0x00ff_00ff_00ff_00ff;
    let spread = (spread | spread >> 8) & 0x0000_ffff_0000_ffff;
    (spread | spread >> 16) as u32
}

/// `width` bits at bit `shift` of each byte. Of eight bytes the even ones come into one place of the four bytes of a
/// word, then the odd ones into the next place.
fn gather(bytes: &[u8], shift: usize, width: usize) -> u32 {
    let mask = (1 << width) - 1;
    let place = |at: usize| at % 8 / 2 * 8 + width * (at / 8 * 2 + at % 2);
    let field = |(at, &byte): (usize, &u8)| (u32::from(byte) >> shift & mask) << place(at);
    bytes.iter().enumerate().map(field).fold(0, |all, one| all | one)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fixed::Fixed;
    use super::super::isa::{Isa, Rows};
    use super::super::multiply::{Multiplier, Operand};
    use super::super::packed::{Layout, Matrix, PANEL, Packed};
    use super::super::pool::Pool;
    use super::*;
    use crate::model::gguf_blocks;

    fn quantised() -> Vec<Dtype> {
        Dtype::ALL.into_iter().filter(|dtype| dtype.is_quantised()).collect()
    }

    fn widened(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
        let (length, size) = dtype.block();
        let mut values = vec![0.0; bytes.len() / size * length];
        dtype.widen(bytes, &mut values);
        values
    }

    fn inputs(count: usize) -> Vec<f32> {
        (0..count).map(|at| (at as f32 * 0.71).cos()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Two matrices of any types, one above the other: panels of one type, of the other and of both.
        #[test]
        fn products_against_f64(
            first in prop::sample::select(quantised()), second in prop::sample::select(Dtype::ALL.to_vec()),
            outputs in (1usize..70, 0usize..70), width in 1usize..3, count in 1usize..14, seed in 0u64..1000,
        ) {
            let pool = Pool::new(2);
            let width = 256 * width;
            let (first_bytes, second_bytes) =
                (gguf_blocks(first, outputs.0 * width, seed), gguf_blocks(second, outputs.1 * width, seed + 1));
            let weights = [widened(first, &first_bytes), widened(second, &second_bytes)].concat();
            let matrix = |dtype, bytes, outputs| Matrix { dtype, bytes, outputs, inputs: width, bias: None };
            let parts = [matrix(first, &first_bytes, outputs.0), matrix(second, &second_bytes, outputs.1)];
            let packed = Packed::stacked(&pool, &parts);
            let x = inputs(count * width);
            let rows = Rows { values: &x, stride: width, count };
            let mut row = vec![0.0; width];
            for (output, weights) in weights.chunks(width).enumerate() {
                packed.row(output, &mut row);
                prop_assert_eq!(&row[..], weights, "the weights of output {}", output);
            }
            for isa in Isa::all() {
                let stride = packed.panels() * PANEL;
                let mut out = vec![1.0; count * stride];
                Multiplier { pool: &pool, isa }.store(&packed, rows, &mut out);
                for (x, out) in x.chunks(width).zip(out.chunks(stride)) {
                    for (weights, got) in weights.chunks(width).zip(out) {
                        let exact: f64 = weights.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                        prop_assert!((f64::from(*got) - exact).abs() < 1e-3, "{:?} {} {}", isa, got, exact);
                    }
                    prop_assert!(out[outputs.0 + outputs.1..].iter().all(|value| *value == 0.0));
                }
            }
        }
    }

    #[test]
    fn a_row_is_the_same_bits_in_any_company_and_without_fixed_point_as_with_the_same_weights_in_f32() {
        let (outputs, width) = (40, 512);
        let pool = Pool::new(2);
        for dtype in quantised() {
            let bytes = gguf_blocks(dtype, outputs * width, 7);
            let matrix = Matrix { dtype, bytes: &bytes, outputs, inputs: width, bias: None };
            let packed = Packed::stacked(&pool, &[matrix]);
            let plain: Vec<u8> = widened(dtype, &bytes).into_iter().flat_map(f32::to_le_bytes).collect();
            let plain = Matrix { dtype: Dtype::F32, bytes: &plain, outputs, inputs: width, bias: None };
            let plain = Packed::stacked(&pool, &[plain]);
            let (x, stride) = (inputs(13 * width), packed.panels() * PANEL);
            for isa in Isa::all() {
                let multiplier = Multiplier { pool: &pool, isa };
                let weights = if isa.fixes() { &packed } else { &plain };
                let mut alone = vec![0.0; 13 * stride];
                for (x, out) in x.chunks(width).zip(alone.chunks_mut(stride)) {
                    multiplier.store(weights, Rows { values: x, stride: width, count: 1 }, out);
                }
                for count in 1..=13 {
                    let mut out = vec![0.0; count * stride];
                    multiplier.store(&packed, Rows { values: &x, stride: width, count }, &mut out);
                    assert_eq!(out, alone[..count * stride], "{dtype:?}, {isa:?}, {count} rows");
                }
            }
        }
    }

    #[test]
    fn what_is_fixed_by_whoever_computed_it_is_what_would_be_fixed_later() {
        let (hidden, outputs) = (64, 40);
        // One group of 32 or more, fewer than there are threads and not a multiple of them.
        for (threads, width) in
            [1, 2, 3, 7].into_iter().flat_map(|threads| [32, 96, 160].map(|width| (threads, width)))
        {
            let pool = Pool::new(threads);
            let pack = |outputs: usize, inputs: usize, salt: u64| {
                let bytes = gguf_blocks(Dtype::Q4_1, outputs * inputs, salt);
                Matrix { dtype: Dtype::Q4_1, bytes: bytes.leak(), outputs, inputs, bias: None }
            };
            let gate_up = Packed::paired(&pool, pack(width, hidden, 1), pack(width, hidden, 2));
            let down = Packed::stacked(&pool, &[pack(outputs, width, 3)]);
            for isa in Isa::all() {
                let multiplier = Multiplier { pool: &pool, isa };
                if !multiplier.fixes(&down) {
                    continue;
                }
                for count in [1, 2, 5, 6, 7, 20] {
                    let x = inputs(count * hidden);
                    let rows = Rows { values: &x, stride: hidden, count };
                    let mut gated = vec![0.0; count * width];
                    multiplier.gated(&gate_up, rows, &mut gated);
                    let mut expected = vec![0.0; count * down.panels() * PANEL];
                    multiplier.store(&down, Rows { values: &gated, stride: width, count }, &mut expected);
                    let mut fixed = vec![Fixed::ZERO; count * width / GROUP];
                    multiplier.gated_fixed(&gate_up, rows, &mut fixed);
                    let mut out = vec![0.0; expected.len()];
                    multiplier.store(&down, Operand::Fixed(&fixed), &mut out);
                    assert_eq!(out, expected, "{isa:?}, {threads} threads, {count} rows of {width}");
                }
            }
        }
    }

    #[test]
    fn fixed_point_takes_what_is_not_finite_for_no_number_and_keeps_zeros() {
        let pool = Pool::new(1);
        for dtype in quantised() {
            let bytes = gguf_blocks(dtype, 32 * 512, 7);
            let matrix = Matrix { dtype, bytes: &bytes, outputs: 32, inputs: 512, bias: None };
            let packed = Packed::stacked(&pool, &[matrix]);
            for isa in Isa::all() {
                let product = |at: usize, value: f32| {
                    let (mut x, mut out) = (vec![0.0; 512], vec![1.0; 32]);
                    x[at] = value;
                    let rows = Rows { values: &x, stride: 512, count: 1 };
                    Multiplier { pool: &pool, isa }.store(&packed, rows, &mut out);
                    out
                };
                for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    assert!(product(300, value).iter().all(|out| !out.is_finite()), "{dtype:?} {isa:?}");
                }
                for value in [0.0, 1e-38, f32::MIN_POSITIVE / 4.0] {
                    assert!(product(300, value).iter().all(|out| out.abs() < 1e-30), "{dtype:?} {isa:?}");
                }
            }
        }
    }

    #[test]
    fn a_panel_is_hardly_longer_than_the_file() {
        for dtype in quantised() {
            let stored = dtype.bytes(PANEL * 512);
            let lines = Blocks::of(dtype).unwrap().lines(512);
            assert!(lines * size_of::<Line>() <= stored + stored / 36, "{dtype:?}");
        }
        let layout = |types: &[Dtype]| {
            let bytes = vec![0; Dtype::F32.bytes(32 * 256)];
            let part = |&dtype: &Dtype| Matrix { dtype, bytes: &bytes, outputs: 32, inputs: 256, bias: None };
            let packed = Packed::stacked(&Pool::new(1), &types.iter().map(part).collect::<Vec<_>>());
            (0..packed.panels()).map(|panel| packed.panel(panel).0).collect::<Vec<_>>()
        };
        let expected = [Layout::Blocks(Blocks::Q4K), Layout::Blocks(Blocks::Q6K)];
        assert_eq!(layout(&[Dtype::Q4K, Dtype::Q6K]), expected);
    }
}
