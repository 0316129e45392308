//! AVX2 with FMA and half-precision conversion: half a panel is two registers.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _mm_load_si128, _mm_loadl_epi64, _mm256_and_si256, _mm256_cvtepi8_epi32,
    _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32, _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_load_si256,
    _mm256_mul_ps, _mm256_or_si256, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_sllv_epi32,
    _mm256_srlv_epi32, _mm256_storeu_ps,
};

use super::super::super::blocks::Blocks;
use super::super::super::packed::Line;
use super::super::{Rows, Tile};
use super::{Q4_0, Q4_1, Q4K, Q5K, Q6K, Q8_0, RUN, Vector, by_halves};

/// Sixteen values. Only code of [`tile`], compiled for AVX2, FMA and F16C, has any.
#[derive(Clone, Copy)]
struct Two([__m256; 2]);

/// Eight times a number.
#[inline(always)]
fn all(value: u32) -> __m256i {
    // SAFETY: as `Two` says, the processor has AVX2, FMA and F16C. So it is for all functions here.
    unsafe { _mm256_set1_epi32(value.cast_signed()) }
}

impl Vector for Two {
    type Bits = [__m256i; 2];

    #[inline(always)]
    fn zero() -> Self {
        // SAFETY: see `all`.
        Two([unsafe { _mm256_setzero_ps() }; 2])
    }

    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: see `all`.
        Two([unsafe { _mm256_set1_ps(value) }; 2])
    }

    #[inline(always)]
    fn times(self, by: Self) -> Self {
        // SAFETY: see `all`.
        Two([0, 1].map(|side| unsafe { _mm256_mul_ps(self.0[side], by.0[side]) }))
    }

    #[inline(always)]
    fn times_plus(self, by: Self, to: Self) -> Self {
        // SAFETY: see `all`.
        Two([0, 1].map(|side| unsafe { _mm256_fmadd_ps(self.0[side], by.0[side], to.0[side]) }))
    }

    #[inline(always)]
    fn bits(line: &Line) -> Self::Bits {
        let line = (&raw const *line).cast::<__m256i>();
        // SAFETY: see `all`; a line is 64 bytes, aligned to 64.
        [0, 1].map(|side| unsafe { _mm256_load_si256(line.add(side)) })
    }

    #[inline(always)]
    fn nibble(bits: Self::Bits, at: u32) -> Self {
        // SAFETY: see `all`.
        Two(bits.map(|bits| unsafe {
            _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srlv_epi32(bits, all(at)), all(15)))
        }))
    }

    #[inline(always)]
    fn joined(bits: Self::Bits, at: u32, high: Self::Bits, high_at: u32, mask: u32) -> Self {
        // SAFETY: see `all`.
        Two([0, 1].map(|side| unsafe {
            let low = _mm256_and_si256(_mm256_srlv_epi32(bits[side], all(at)), all(15));
            let high = if high_at < 4 {
                _mm256_sllv_epi32(high[side], all(4 - high_at))
            } else {
                _mm256_srlv_epi32(high[side], all(high_at - 4))
            };
            _mm256_cvtepi32_ps(_mm256_or_si256(low, _mm256_and_si256(high, all(mask << 4))))
        }))
    }

    #[inline(always)]
    fn halves(line: &Line, which: usize) -> Self {
        let (quarters, _) = line.0.as_chunks::<4>();
        // SAFETY: see `all`; a quarter of a line is 16 bytes, aligned to 16.
        Two([0, 1].map(|side| unsafe {
            _mm256_cvtph_ps(_mm_load_si128(quarters[2 * which + side].as_ptr().cast::<__m128i>()))
        }))
    }

    #[inline(always)]
    fn bytes(line: &Line, which: usize) -> Self {
        let (eighths, _) = line.0.as_chunks::<2>();
        // SAFETY: see `all`; an eighth of a line is 8 bytes.
        Two([0, 1].map(|side| unsafe {
            let bytes = _mm_loadl_epi64(eighths[2 * which + side].as_ptr().cast());
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))
        }))
    }

    #[inline(always)]
    fn signed_bytes(line: &Line, which: usize) -> Self {
        let (eighths, _) = line.0.as_chunks::<2>();
        // SAFETY: see `all`; an eighth of a line is 8 bytes.
        Two([0, 1].map(|side| unsafe {
            let bytes = _mm_loadl_epi64(eighths[2 * which + side].as_ptr().cast());
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))
        }))
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; RUN]) {
        let (sides, _) = to.as_chunks_mut::<8>();
        for (values, side) in self.0.into_iter().zip(sides) {
            // SAFETY: see `all`; there is room for eight values.
            unsafe { _mm256_storeu_ps(side.as_mut_ptr(), values) };
        }
    }
}

/// See [`Isa::blocks`](super::super::Isa::blocks).
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn tile(blocks: Blocks, panel: &[Line], inputs: usize, rows: Rows<'_>, tile: &mut Tile) {
    match blocks {
        Blocks::Q8_0 => by_halves::<Two, Q8_0>(panel, inputs, rows, tile),
        Blocks::Q4_0 => by_halves::<Two, Q4_0>(panel, inputs, rows, tile),
        Blocks::Q4_1 => by_halves::<Two, Q4_1>(panel, inputs, rows, tile),
        Blocks::Q4K => by_halves::<Two, Q4K>(panel, inputs, rows, tile),
        Blocks::Q5K => by_halves::<Two, Q5K>(panel, inputs, rows, tile),
        Blocks::Q6K => by_halves::<Two, Q6K>(panel, inputs, rows, tile),
    }
}
