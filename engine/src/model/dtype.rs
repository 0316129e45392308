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
