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

/// The number that four bits from bit `at` on are, in each lane, and above them those of `high` that `mask` leaves.
#[inline(always)]
fn joined(bits: __m256i, at: u32, high: __m256i, high_at: u32, mask: u32) -> __m256 {
    // SAFETY: see `all`.
    unsafe {
        let low = _mm256_and_si256(_mm256_srlv_epi32(bits, all(at)), all(15));
        let high = if high_at < 4 {
            _mm256_sllv_epi32(high, all(4 - high_at))
        } else {
            _mm256_srlv_epi32(high, all(high_at - 4))
        };
        _mm256_cvtepi32_ps(_mm256_or_si256(low, _mm256_and_si256(high, all(mask << 4))))
    }
}

#[inline(always)]
fn nibble(bits: __m256i, at: u32) -> __m256 {
    // SAFETY: see `all`.
    unsafe { _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srlv_epi32(bits, all(at)), all(15))) }
}

/// A quarter of a line of halves.
#[inline(always)]
fn halves(line: &Line, quarter: usize) -> __m256 {
    assert!(quarter < 4, "a quarter of a line");
    // SAFETY: see `all`; a line is four times 16 bytes, aligned to 64.
    unsafe { _mm256_cvtph_ps(_mm_load_si128((&raw const *line).cast::<__m128i>().add(quarter))) }
}

/// An eighth of a line of bytes.
#[inline(always)]
fn eighth(line: &Line, eighth: usize) -> __m128i {
    let (eighths, _) = line.0.as_chunks::<2>();
    // SAFETY: see `all`; an eighth of a line is 8 bytes.
    unsafe { _mm_loadl_epi64(eighths[eighth].as_ptr().cast()) }
}

#[inline(always)]
fn bytes(bytes: __m128i) -> __m256 {
    // SAFETY: see `all`.
    unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)) }
}

#[inline(always)]
fn signed_bytes(bytes: __m128i) -> __m256 {
    // SAFETY: see `all`.
    unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)) }
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
        let (Two([a, b]), Two([c, d])) = (self, by);
        // SAFETY: see `all`.
        Two(unsafe { [_mm256_mul_ps(a, c), _mm256_mul_ps(b, d)] })
    }

    #[inline(always)]
    fn times_plus(self, by: Self, to: Self) -> Self {
        let (Two([a, b]), Two([c, d]), Two([e, f])) = (self, by, to);
        // SAFETY: see `all`.
        Two(unsafe { [_mm256_fmadd_ps(a, c, e), _mm256_fmadd_ps(b, d, f)] })
    }

    #[inline(always)]
    fn bits(line: &Line) -> Self::Bits {
        let line = (&raw const *line).cast::<__m256i>();
        // SAFETY: see `all`; a line is 64 bytes, aligned to 64.
        unsafe { [_mm256_load_si256(line), _mm256_load_si256(line.add(1))] }
    }

    #[inline(always)]
    fn nibble([a, b]: Self::Bits, at: u32) -> Self {
        Two([nibble(a, at), nibble(b, at)])
    }

    #[inline(always)]
    fn joined([a, b]: Self::Bits, at: u32, [c, d]: Self::Bits, high_at: u32, mask: u32) -> Self {
        Two([joined(a, at, c, high_at, mask), joined(b, at, d, high_at, mask)])
    }

    #[inline(always)]
    fn byte([a, b]: Self::Bits, at: u32) -> Self {
        // SAFETY: see `all`.
        let byte = |bits| unsafe {
            _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srlv_epi32(bits, all(at)), all(255)))
        };
        Two([byte(a), byte(b)])
    }

    #[inline(always)]
    fn halves(line: &Line, which: usize) -> Self {
        Two([halves(line, 2 * which), halves(line, 2 * which + 1)])
    }

    #[inline(always)]
    fn bytes(line: &Line, which: usize) -> Self {
        Two([bytes(eighth(line, 2 * which)), bytes(eighth(line, 2 * which + 1))])
    }

    #[inline(always)]
    fn signed_bytes(line: &Line, which: usize) -> Self {
        Two([signed_bytes(eighth(line, 2 * which)), signed_bytes(eighth(line, 2 * which + 1))])
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; RUN]) {
        let (Two([a, b]), to) = (self, to.as_mut_ptr());
        // SAFETY: see `all`; there is room for sixteen values.
        unsafe {
            _mm256_storeu_ps(to, a);
            _mm256_storeu_ps(to.add(8), b);
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
