//! AVX2 with FMA and half-precision conversion: half a panel is two registers. Three rows of half a panel
//! keep 12 sums, which leaves enough for weights of `f32`; two inputs of 16 bits at a time need more, and get two rows.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _MM_HINT_T0, _mm_load_si128, _mm_prefetch, _mm256_add_ps, _mm256_and_si256,
    _mm256_castsi256_ps, _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_load_si256, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_setzero_ps, _mm256_slli_epi32, _mm256_store_ps,
};

use super::super::lanes;
use super::super::packed::{Kind, Line};
use super::{AHEAD, Rows, Tile};

/// See [`Isa::tile`](super::Isa::tile).
///
/// # Safety
/// `panel` has the lines of `inputs` inputs; `rows` has 1 to `TILE_ROWS` rows of at least `inputs` values.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn tile(kind: Kind, panel: &[Line], inputs: usize, rows: Rows<'_>, tile: &mut Tile) {
    let stride = rows.stride;
    let most = match kind {
        Kind::Bf16 | Kind::F16 => 2,
        Kind::F32 => 3,
    };
    for from in (0..rows.count).step_by(most) {
        let out = &mut tile.0[from..rows.count.min(from + most)];
        for half in 0..2 {
            // SAFETY: the caller's promise, handed on for these rows and this half.
            unsafe {
                let (lines, x) = (panel.as_ptr().add(half), rows.values.as_ptr().add(from * stride));
                match (kind, out.len()) {
                    (Kind::Bf16, 1) => pairs::<1, false>(lines, inputs, x, stride, half, out),
                    (Kind::Bf16, _) => pairs::<2, false>(lines, inputs, x, stride, half, out),
                    (Kind::F16, 1) => pairs::<1, true>(lines, inputs, x, stride, half, out),
                    (Kind::F16, _) => pairs::<2, true>(lines, inputs, x, stride, half, out),
                    (Kind::F32, 1) => f32::<1>(lines, inputs, x, stride, half, out),
                    (Kind::F32, 2) => f32::<2>(lines, inputs, x, stride, half, out),
                    (Kind::F32, _) => f32::<3>(lines, inputs, x, stride, half, out),
                }
            }
        }
    }
}

/// Sums by row, quarter of the panel and parity of the input.
type Sums<const R: usize> = [[[__m256; 2]; 2]; R];

/// Adds one input's products to the sums of its parity.
///
/// # Safety
/// `x` has `R` rows, `stride` apart.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add<const R: usize>(
    sums: &mut Sums<R>,
    parity: usize,
    weights: [__m256; 2],
    x: *const f32,
    stride: usize,
) {
    for (row, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        let x = _mm256_set1_ps(unsafe { *x.add(row * stride) });
        for quarter in 0..2 {
            sums[quarter][parity] = _mm256_fmadd_ps(weights[quarter], x, sums[quarter][parity]);
        }
    }
}

/// The line's two registers.
///
/// # Safety
/// `line` is one.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn load(line: *const Line) -> [__m256i; 2] {
    // SAFETY: a line is 64 bytes, aligned to 64.
    unsafe { [_mm256_load_si256(line.cast()), _mm256_load_si256(line.cast::<__m256i>().add(1))] }
}

/// Asks for a line that will be needed soon. Past the weights' end it asks for nothing of use, which is
/// allowed: a prefetch does not fault.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn prefetch(lines: *const Line, at: usize) {
    _mm_prefetch::<_MM_HINT_T0>(lines.wrapping_add(at + AHEAD).cast());
}

/// The weights of one input of a pair, the even or the odd one, `f16` or else `bf16`.
///
/// # Safety
/// `line` is one.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn input<const F16: bool, const ODD: bool>(line: *const Line) -> [__m256; 2] {
    // SAFETY: a line is 64 bytes, aligned to 64.
    unsafe {
        if F16 {
            let quarters = line.cast::<__m128i>().add(if ODD { 2 } else { 0 });
            let (first, second) = (_mm_load_si128(quarters), _mm_load_si128(quarters.add(1)));
            return [_mm256_cvtph_ps(first), _mm256_cvtph_ps(second)];
        }
        let [first, second] = load(line);
        let (first, second) = if ODD {
            let high = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
            (_mm256_and_si256(first, high), _mm256_and_si256(second, high))
        } else {
            (_mm256_slli_epi32::<16>(first), _mm256_slli_epi32::<16>(second))
        };
        [_mm256_castsi256_ps(first), _mm256_castsi256_ps(second)]
    }
}

/// # Safety
/// As [`tile`], with `R` rows; `lines` starts at the half's first.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn pairs<const R: usize, const F16: bool>(
    lines: *const Line,
    inputs: usize,
    x: *const f32,
    stride: usize,
    half: usize,
    out: &mut [[lanes::Lanes; 2]],
) {
    let mut sums = [[[_mm256_setzero_ps(); 2]; 2]; R];
    for at in 0..inputs / 2 {
        prefetch(lines, 2 * at);
        // SAFETY: a half panel has every second line, one a pair, and each row two values.
        unsafe {
            let line = lines.add(2 * at);
            add(&mut sums, 0, input::<F16, false>(line), x.add(2 * at), stride);
            add(&mut sums, 1, input::<F16, true>(line), x.add(2 * at + 1), stride);
        }
    }
    if inputs % 2 == 1 {
        // SAFETY: the last, half filled line, and each row's last value.
        unsafe {
            let even = input::<F16, false>(lines.add(inputs - 1));
            add(&mut sums, 0, even, x.add(inputs - 1), stride);
        }
    }
    store(&sums, half, out);
}

/// # Safety
/// As [`tile`], with `R` rows; `lines` starts at the half's first.
#[target_feature(enable = "avx2,fma")]
unsafe fn f32<const R: usize>(
    lines: *const Line,
    inputs: usize,
    x: *const f32,
    stride: usize,
    half: usize,
    out: &mut [[lanes::Lanes; 2]],
) {
    let mut sums = [[[_mm256_setzero_ps(); 2]; 2]; R];
    // SAFETY: called with `input < inputs`; a half panel has every second line, one an input.
    let weights = |input: usize| unsafe { load(lines.add(2 * input)).map(|bits| _mm256_castsi256_ps(bits)) };
    for pair in 0..inputs / 2 {
        prefetch(lines, 4 * pair);
        prefetch(lines, 4 * pair + 2);
        // SAFETY: each row has two values a pair.
        unsafe {
            add(&mut sums, 0, weights(2 * pair), x.add(2 * pair), stride);
            add(&mut sums, 1, weights(2 * pair + 1), x.add(2 * pair + 1), stride);
        }
    }
    if inputs % 2 == 1 {
        // SAFETY: each row's last value.
        unsafe { add(&mut sums, 0, weights(inputs - 1), x.add(inputs - 1), stride) };
    }
    store(&sums, half, out);
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn store<const R: usize>(sums: &Sums<R>, half: usize, out: &mut [[lanes::Lanes; 2]]) {
    for (sums, out) in sums.iter().zip(out) {
        let (quarters, _) = out[half].as_chunks_mut::<8>();
        for ([even, odd], out) in sums.iter().zip(quarters) {
            // SAFETY: a quarter row of a tile is 32 bytes and, the tile being aligned to 64, aligned.
            unsafe { _mm256_store_ps(out.as_mut_ptr(), _mm256_add_ps(*even, *odd)) };
        }
    }
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn swiglu(tile: &mut Tile, rows: usize) {
    super::swiglu(tile, rows);
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn soften(scores: &mut [f32], len: usize, scale: f32) -> f32 {
    lanes::soften(scores, len, scale)
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    lanes::rms_norm(x, weight, epsilon, out);
}
