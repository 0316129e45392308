//! AVX-512: half a panel is one register, and a whole panel's sums stay in registers for every tile.

use std::arch::x86_64::{
    __m128i, __m256i, __m512, __m512i, _mm_load_si128, _mm256_load_si256, _mm512_and_si512,
    _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_cvtph_ps, _mm512_fmadd_ps,
    _mm512_load_si512, _mm512_mul_ps, _mm512_or_si512, _mm512_permutexvar_ps, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_setr_ps, _mm512_setzero_ps, _mm512_sllv_epi32, _mm512_srlv_epi32,
    _mm512_storeu_ps,
};

use super::super::super::blocks::Blocks;
use super::super::super::packed::Line;
use super::super::{Rows, Tile};
use super::{Format, Q4_0, Q4_1, Q4K, Q5K, Q6K, Q8_0, RUN, Vector, multiply};

/// Sixteen values. Only code of [`tile`], compiled for AVX-512F, has any.
#[derive(Clone, Copy)]
pub(super) struct Wide(pub(super) __m512);

/// Sixteen times a number.
#[inline(always)]
fn all(value: u32) -> __m512i {
    // SAFETY: as `Wide` says, the processor has AVX-512F. So it is for all functions here.
    unsafe { _mm512_set1_epi32(value.cast_signed()) }
}

/// A quarter of a line.
#[inline(always)]
fn quarter(line: &Line, which: usize) -> __m128i {
    assert!(which < 4, "a quarter of a line");
    // SAFETY: see `all`; a line is four times 16 bytes, aligned to 64.
    unsafe { _mm_load_si128((&raw const *line).cast::<__m128i>().add(which)) }
}

impl Vector for Wide {
    type Bits = __m512i;

    #[inline(always)]
    fn zero() -> Self {
        // SAFETY: see `all`.
        Wide(unsafe { _mm512_setzero_ps() })
    }

    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: see `all`.
        Wide(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    fn times(self, by: Self) -> Self {
        // SAFETY: see `all`.
        Wide(unsafe { _mm512_mul_ps(self.0, by.0) })
    }

    #[inline(always)]
    fn times_plus(self, by: Self, to: Self) -> Self {
        // SAFETY: see `all`.
        Wide(unsafe { _mm512_fmadd_ps(self.0, by.0, to.0) })
    }

    #[inline(always)]
    fn bits(line: &Line) -> Self::Bits {
        // SAFETY: see `all`; a line is 64 bytes, aligned to 64.
        unsafe { _mm512_load_si512((&raw const *line).cast()) }
    }

    #[inline(always)]
    fn nibble(bits: Self::Bits, at: u32) -> Self {
        // SAFETY: see `all`.
        Wide(unsafe {
            // Looked up by the low four bits of each lane, whatever is above them.
            let table = _mm512_setr_ps(
                0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
            );
            let index = _mm512_srlv_epi32(bits, all(at));
            _mm512_permutexvar_ps(index, table)
        })
    }

    #[inline(always)]
    fn joined(bits: Self::Bits, at: u32, high: Self::Bits, high_at: u32, mask: u32) -> Self {
        // SAFETY: see `all`.
        Wide(unsafe {
            let low = _mm512_and_si512(_mm512_srlv_epi32(bits, all(at)), all(15));
            let high = if high_at < 4 {
                _mm512_sllv_epi32(high, all(4 - high_at))
            } else {
                _mm512_srlv_epi32(high, all(high_at - 4))
            };
            _mm512_cvtepi32_ps(_mm512_or_si512(low, _mm512_and_si512(high, all(mask << 4))))
        })
    }

    #[inline(always)]
    fn byte(bits: Self::Bits, at: u32) -> Self {
        // SAFETY: see `all`.
        Wide(unsafe { _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srlv_epi32(bits, all(at)), all(255))) })
    }

    #[inline(always)]
    fn halves(line: &Line, which: usize) -> Self {
        assert!(which < 2, "half a line");
        // SAFETY: see `all`; a line is twice 32 bytes, aligned to 64.
        Wide(unsafe { _mm512_cvtph_ps(_mm256_load_si256((&raw const *line).cast::<__m256i>().add(which))) })
    }

    #[inline(always)]
    fn bytes(line: &Line, which: usize) -> Self {
        // SAFETY: see `all`.
        Wide(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(quarter(line, which))) })
    }

    #[inline(always)]
    fn signed_bytes(line: &Line, which: usize) -> Self {
        // SAFETY: see `all`.
        Wide(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(quarter(line, which))) })
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; RUN]) {
        // SAFETY: see `all`; there is room for sixteen values.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), self.0) }
    }
}

/// See [`Isa::blocks`](super::super::Isa::blocks).
#[target_feature(enable = "avx512f")]
pub(in super::super) fn tile(blocks: Blocks, panel: &[Line], inputs: usize, rows: Rows<'_>, tile: &mut Tile) {
    match blocks {
        Blocks::Q8_0 => whole::<Q8_0>(panel, inputs, rows, tile),
        Blocks::Q4_0 => whole::<Q4_0>(panel, inputs, rows, tile),
        Blocks::Q4_1 => whole::<Q4_1>(panel, inputs, rows, tile),
        Blocks::Q4K => whole::<Q4K>(panel, inputs, rows, tile),
        Blocks::Q5K => whole::<Q5K>(panel, inputs, rows, tile),
        Blocks::Q6K => whole::<Q6K>(panel, inputs, rows, tile),
    }
}

#[target_feature(enable = "avx512f")]
fn whole<F: Format>(panel: &[Line], inputs: usize, rows: Rows<'_>, tile: &mut Tile) {
    match rows.count {
        1 => multiply::<Wide, F, 1, 2>(panel, inputs, rows, (0, 0), tile),
        2 => multiply::<Wide, F, 2, 2>(panel, inputs, rows, (0, 0), tile),
        3 => multiply::<Wide, F, 3, 2>(panel, inputs, rows, (0, 0), tile),
        4 => multiply::<Wide, F, 4, 2>(panel, inputs, rows, (0, 0), tile),
        5 => multiply::<Wide, F, 5, 2>(panel, inputs, rows, (0, 0), tile),
        _ => multiply::<Wide, F, 6, 2>(panel, inputs, rows, (0, 0), tile),
    }
}
