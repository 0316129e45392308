//! How weights are stored, and what their bits mean.
//!
//! Quantised types come in blocks: so many values share one or two scales. This file says what each value is,
//! one block at a time and as plainly as the formats are published (the block types of ggml); the devices'
//! kernels must agree with it to the bit, since every product here is exact in `f32` and only the last addition
//! of a value rounds.

use half::{bf16, f16};

/// How a tensor's values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// bfloat16
    Bf16,
    /// IEEE half
    F16,
    /// IEEE single
    F32,
    /// 32 values of 8 bits and a scale.
    Q8_0,
    /// 32 values of 4 bits around 8 and a scale.
    Q4_0,
    /// 32 values of 4 bits, a scale and an offset.
    Q4_1,
    /// 256 values of 4 bits; each 32 have a scale and an offset of 6 bits.
    Q4K,
    /// 256 values of 5 bits; each 32 have a scale and an offset of 6 bits.
    Q5K,
    /// 256 values of 6 bits around 32; each 16 have a scale of 8 bits.
    Q6K,
}

impl Dtype {
    /// Every type.
    pub const ALL: [Dtype; 9] = [
        Dtype::Bf16,
        Dtype::F16,
        Dtype::F32,
        Dtype::Q8_0,
        Dtype::Q4_0,
        Dtype::Q4_1,
        Dtype::Q4K,
        Dtype::Q5K,
        Dtype::Q6K,
    ];

    /// The name that model files give it.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::Bf16 => "BF16",
            Dtype::F16 => "F16",
            Dtype::F32 => "F32",
            Dtype::Q8_0 => "Q8_0",
            Dtype::Q4_0 => "Q4_0",
            Dtype::Q4_1 => "Q4_1",
            Dtype::Q4K => "Q4_K",
            Dtype::Q5K => "Q5_K",
            Dtype::Q6K => "Q6_K",
        }
    }

    /// Values of a block, and its bytes. A row of a matrix is whole blocks.
    pub fn block(self) -> (usize, usize) {
        match self {
            Dtype::Bf16 | Dtype::F16 => (1, 2),
            Dtype::F32 => (1, 4),
            Dtype::Q8_0 => (32, 34),
            Dtype::Q4_0 => (32, 18),
            Dtype::Q4_1 => (32, 20),
            Dtype::Q4K => (256, 144),
            Dtype::Q5K => (256, 176),
            Dtype::Q6K => (256, 210),
        }
    }

    /// Bytes of `values` values, which are whole blocks.
    pub fn bytes(self, values: usize) -> usize {
        let (length, bytes) = self.block();
        values / length * bytes
    }

    /// Whether values come in blocks that share scales.
    pub fn is_quantised(self) -> bool {
        self.block().0 > 1
    }

    /// The values of whole blocks as `f32`. What does not fill a block on either side is left alone.
    pub fn widen(self, bytes: &[u8], values: &mut [f32]) {
        let (length, size) = self.block();
        for (block, values) in bytes.chunks_exact(size).zip(values.chunks_exact_mut(length)) {
            match (self, block) {
                (Dtype::Bf16, &[low, high]) => values[0] = bf16::from_le_bytes([low, high]).to_f32(),
                (Dtype::F32, &[a, b, c, d]) => values[0] = f32::from_le_bytes([a, b, c, d]),
                (Dtype::F16, _) => values[0] = half(block, 0),
                (Dtype::Q8_0, _) => {
                    let scale = half(block, 0);
                    for (value, &byte) in values.iter_mut().zip(&block[2..]) {
                        *value = scale * f32::from(byte.cast_signed());
                    }
                }
                (Dtype::Q4_0, _) => {
                    let scale = half(block, 0);
                    nibbles(&block[2..], values, |nibble| scale * (f32::from(nibble) - 8.0));
                }
                (Dtype::Q4_1, _) => {
                    let (scale, offset) = (half(block, 0), half(block, 2));
                    nibbles(&block[4..], values, |nibble| scale * f32::from(nibble) + offset);
                }
                (Dtype::Q4K, _) => k_quants(block, &block[16..], None, values),
                (Dtype::Q5K, _) => k_quants(block, &block[48..], Some(&block[16..48]), values),
                (Dtype::Q6K, _) => q6_k(block, values),
                (Dtype::Bf16 | Dtype::F32, _) => {}
            }
        }
    }
}

/// The half at byte `at`.
fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Values of 4 bits: the low ones of all bytes, then the high ones.
fn nibbles(bytes: &[u8], values: &mut [f32], value: impl Fn(u8) -> f32) {
    let (low, high) = values.split_at_mut(bytes.len());
    for ((&byte, low), high) in bytes.iter().zip(low).zip(high) {
        (*low, *high) = (value(byte & 15), value(byte >> 4));
    }
}

/// Scale and offset of sub-block `number` of eight, 6 bits each, from twelve bytes.
pub(crate) fn six_bits(packed: &[u8], number: usize) -> (u8, u8) {
    if number < 4 {
        (packed[number] & 63, packed[number + 4] & 63)
    } else {
        let (shared, low, high) = (packed[number + 4], packed[number - 4], packed[number]);
        (shared & 15 | low >> 6 << 4, shared >> 4 | high >> 6 << 4)
    }
}

/// Eight sub-blocks of 32 values. Two sub-blocks share 32 bytes, as [`nibbles`] has it; `fifth` holds one more
/// bit of each value, bit `n` of its bytes for sub-block `n`.
fn k_quants(block: &[u8], bytes: &[u8], fifth: Option<&[u8]>, values: &mut [f32]) {
    let (scale, offset) = (half(block, 0), half(block, 2));
    for (number, values) in values.chunks_exact_mut(32).enumerate() {
        let (sub_scale, sub_offset) = six_bits(&block[4..16], number);
        let (scale, offset) = (scale * f32::from(sub_scale), offset * f32::from(sub_offset));
        let bytes = &bytes[number / 2 * 32..];
        for (at, value) in values.iter_mut().enumerate() {
            let low = bytes[at] >> (number % 2 * 4) & 15;
            let high = fifth.map_or(0, |fifth| fifth[at] >> number & 1);
            *value = scale * f32::from(high << 4 | low) - offset;
        }
    }
}

/// Sixteen sub-blocks of 16 values. Half a block, 128 values, is 64 bytes of low halves and 32 bytes of two
/// high bits for each of four runs of 32.
fn q6_k(block: &[u8], values: &mut [f32]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let scale = half(block, 208);
    for (at, value) in values.iter_mut().enumerate() {
        let (part, run, lane) = (at / 128, at % 128 / 32, at % 32);
        let low = low[part * 64 + run % 2 * 32 + lane] >> (run / 2 * 4) & 15;
        let high = high[part * 32 + lane] >> (2 * run) & 3;
        let sub_scale = f32::from(scales[at / 16].cast_signed());
        *value = scale * sub_scale * (f32::from(high << 4 | low) - 32.0);
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::float_cmp, reason = "every value here is exact")]

    use super::*;

    fn half(value: f32) -> [u8; 2] {
        f16::from_f32(value).to_le_bytes()
    }

    /// Numbers below `end` in no order.
    fn numbers(count: usize, end: usize) -> Vec<u8> {
        (0..count).map(|at| (at * 131 + at / 7 * 29 + 5) % end).map(|number| number as u8).collect()
    }

    fn widen(dtype: Dtype, block: &[u8]) -> Vec<f32> {
        let (length, size) = dtype.block();
        assert_eq!(block.len(), size);
        let mut values = vec![f32::NAN; length];
        dtype.widen(block, &mut values);
        values
    }

    #[test]
    fn q8_0_is_a_scale_times_signed_bytes() {
        let mut block = half(0.5).to_vec();
        block.extend((0..32u8).map(|at| at.wrapping_mul(37)));
        let values = widen(Dtype::Q8_0, &block);
        assert_eq!(values[..5], [0.0, 18.5, 37.0, 55.5, -54.0]);
        block[2 + 31] = 0x80;
        assert_eq!(widen(Dtype::Q8_0, &block)[31], -64.0);
    }

    #[test]
    fn q4_0_counts_from_minus_eight_low_halves_first() {
        let mut block = half(2.0).to_vec();
        block.extend([0x88; 16]);
        block[2] = 0xf0;
        block[17] = 0x1c;
        let values = widen(Dtype::Q4_0, &block);
        assert_eq!([values[0], values[16], values[15], values[31]], [-16.0, 14.0, 8.0, -14.0]);
        assert!(values[1..15].iter().all(|value| *value == 0.0));
    }

    #[test]
    fn q4_1_adds_an_offset_low_halves_first() {
        let mut block = [half(0.5), half(-1.0)].concat();
        block.extend([0x00; 16]);
        block[4 + 1] = 0x3a;
        let values = widen(Dtype::Q4_1, &block);
        assert_eq!([values[1], values[17], values[0]], [4.0, 0.5, -1.0]);
    }

    /// Six-bit scales and offsets, packed as the format's own quantiser packs them.
    fn pack_six(scales: &[u8], offsets: &[u8]) -> [u8; 12] {
        let mut packed = [0; 12];
        for at in 0..8 {
            if at < 4 {
                packed[at] = scales[at];
                packed[at + 4] = offsets[at];
            } else {
                packed[at + 4] = (scales[at] & 0xf) | ((offsets[at] & 0xf) << 4);
                packed[at - 4] |= (scales[at] >> 4) << 6;
                packed[at] |= (offsets[at] >> 4) << 6;
            }
        }
        packed
    }

    /// `scale * scales[at / 32] * numbers[at] - offset * offsets[at / 32]`
    fn expected_k(scale: f32, offset: f32, scales: &[u8], offsets: &[u8], numbers: &[u8]) -> Vec<f32> {
        let value = |(at, &number): (usize, &u8)| {
            scale * f32::from(scales[at / 32]) * f32::from(number) - offset * f32::from(offsets[at / 32])
        };
        numbers.iter().enumerate().map(value).collect()
    }

    #[test]
    fn q4_k_has_a_scale_and_an_offset_for_each_32_and_halves_of_bytes_for_two_runs() {
        let (numbers, scales, offsets) = (numbers(256, 16), numbers(8, 64), numbers(16, 64));
        let offsets = &offsets[8..];
        let mut block = [half(0.25), half(0.5)].concat();
        block.extend(pack_six(&scales, offsets));
        for pair in numbers.chunks(64) {
            block.extend((0..32).map(|at| pair[at] | pair[at + 32] << 4));
        }
        assert_eq!(widen(Dtype::Q4K, &block), expected_k(0.25, 0.5, &scales, offsets, &numbers));
    }

    #[test]
    fn q5_k_keeps_the_fifth_bits_of_all_runs_in_32_bytes() {
        let (numbers, scales, offsets) = (numbers(256, 32), numbers(8, 64), numbers(16, 64));
        let offsets = &offsets[8..];
        let mut block = [half(0.25), half(0.5)].concat();
        block.extend(pack_six(&scales, offsets));
        block.extend((0..32).map(|at| (0..8).map(|run| numbers[32 * run + at] >> 4 << run).sum::<u8>()));
        for pair in numbers.chunks(64) {
            block.extend((0..32).map(|at| (pair[at] & 15) | (pair[at + 32] & 15) << 4));
        }
        assert_eq!(widen(Dtype::Q5K, &block), expected_k(0.25, 0.5, &scales, offsets, &numbers));
    }

    #[test]
    fn q6_k_has_signed_scales_for_each_16_and_counts_from_minus_32() {
        let numbers = numbers(256, 64);
        let scales: Vec<i8> = (0..16).map(|at| (at * 17 - 128i32) as i8).collect();
        let mut block = Vec::new();
        for part in numbers.chunks(128) {
            block.extend((0..64).map(|at| (part[at] & 15) | (part[at + 64] & 15) << 4));
        }
        for part in numbers.chunks(128) {
            block.extend(
                (0..32).map(|at| (0..4).map(|run| part[32 * run + at] >> 4 << (2 * run)).sum::<u8>()),
            );
        }
        block.extend(scales.iter().map(|scale| scale.cast_unsigned()));
        block.extend(half(0.125));
        let expected =
            |(at, &number): (usize, &u8)| 0.125 * f32::from(scales[at / 16]) * (f32::from(number) - 32.0);
        let expected: Vec<f32> = numbers.iter().enumerate().map(expected).collect();
        assert_eq!(widen(Dtype::Q6K, &block), expected);
    }
}
