//! AVX-512: a half panel is one register; the widest tile keeps 24 sums.

use std::arch::x86_64::{
    __m256i, __m512, _MM_HINT_T0, _mm_prefetch, _mm256_load_si256, _mm512_add_ps, _mm512_and_si512,
    _mm512_castsi512_ps, _mm512_cvtph_ps, _mm512_fmadd_ps, _mm512_load_si512, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32, _mm512_store_ps,
};

use super::super::lanes;
use super::super::packed::{Kind, Line};
use super::{AHEAD, Rows, Tile};

/// See [`Isa::tile`](super::Isa::tile).
///
/// # Safety
/// `panel` has the lines of `inputs` inputs; `rows` has 1 to `TILE_ROWS` rows of at least `inputs` values.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn tile(kind: Kind, panel: &[Line], inputs: usize, rows: Rows<'_>, tile: &mut Tile) {
    let (lines, x) = (panel.as_ptr(), rows.values.as_ptr());
    // SAFETY: the caller's promise, handed on.
    unsafe {
        match (kind, rows.count) {
            (Kind::Bf16, 1) => pairs::<1, false>(lines, inputs, x, rows.stride, tile),
            (Kind::Bf16, 2) => pairs::<2, false>(lines, inputs, x, rows.stride, tile),
            (Kind::Bf16, 3) => pairs::<3, false>(lines, inputs, x, rows.stride, tile),
            (Kind::Bf16, 4) => pairs::<4, false>(lines, inputs, x, rows.stride, tile),
            (Kind::Bf16, 5) => pairs::<5, false>(lines, inputs, x, rows.stride, tile),
            (Kind::Bf16, _) => pairs::<6, false>(lines, inputs, x, rows.stride, tile),
            (Kind::F16, 1) => pairs::<1, true>(lines, inputs, x, rows.stride, tile),
            (Kind::F16, 2) => pairs::<2, true>(lines, inputs, x, rows.stride, tile),
            (Kind::F16, 3) => pairs::<3, true>(lines, inputs, x, rows.stride, tile),
            (Kind::F16, 4) => pairs::<4, true>(lines, inputs, x, rows.stride, tile),
            (Kind::F16, 5) => pairs::<5, true>(lines, inputs, x, rows.stride, tile),
            (Kind::F16, _) => pairs::<6, true>(lines, inputs, x, rows.stride, tile),
            (Kind::F32, 1) => f32::<1>(lines, inputs, x, rows.stride, tile),
            (Kind::F32, 2) => f32::<2>(lines, inputs, x, rows.stride, tile),
            (Kind::F32, 3) => f32::<3>(lines, inputs, x, rows.stride, tile),
            (Kind::F32, 4) => f32::<4>(lines, inputs, x, rows.stride, tile),
            (Kind::F32, 5) => f32::<5>(lines, inputs, x, rows.stride, tile),
            (Kind::F32, _) => f32::<6>(lines, inputs, x, rows.stride, tile),
        }
    }
}

/// Sums by row, half and parity of the input.
type Sums<const R: usize> = [[[__m512; 2]; 2]; R];

/// Adds one input's products to the sums of its parity.
///
/// # Safety
/// `x` has `R` rows, `stride` apart.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn add<const R: usize>(
    sums: &mut Sums<R>,
    parity: usize,
    weights: [__m512; 2],
    x: *const f32,
    stride: usize,
) {
    for (row, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        let x = _mm512_set1_ps(unsafe { *x.add(row * stride) });
        for half in 0..2 {
            sums[half][parity] = _mm512_fmadd_ps(weights[half], x, sums[half][parity]);
        }
    }
}

/// Asks for a line that will be needed soon. Past the weights' end it asks for nothing of use, which is
/// allowed: a prefetch does not fault.
#[inline]
#[target_feature(enable = "avx512f")]
fn prefetch(lines: *const Line, at: usize) {
    _mm_prefetch::<_MM_HINT_T0>(lines.wrapping_add(at + AHEAD).cast());
}

/// The weights of both inputs of a pair, `f16` or else `bf16`.
///
/// # Safety
/// `line` is one.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn pair<const F16: bool>(line: *const Line) -> [__m512; 2] {
    // SAFETY: a line is 64 bytes, aligned to 64.
    unsafe {
        if F16 {
            let halves = line.cast::<__m256i>();
            let (even, odd) = (_mm256_load_si256(halves), _mm256_load_si256(halves.add(1)));
            return [_mm512_cvtph_ps(even), _mm512_cvtph_ps(odd)];
        }
        let bits = _mm512_load_si512(line.cast());
        let high = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
        let (even, odd) = (_mm512_slli_epi32::<16>(bits), _mm512_and_si512(bits, high));
        [_mm512_castsi512_ps(even), _mm512_castsi512_ps(odd)]
    }
}

/// # Safety
/// As [`tile`], with `R` rows.
#[target_feature(enable = "avx512f")]
unsafe fn pairs<const R: usize, const F16: bool>(
    lines: *const Line,
    inputs: usize,
    x: *const f32,
    stride: usize,
    tile: &mut Tile,
) {
    let mut sums = [[[_mm512_setzero_ps(); 2]; 2]; R];
    for at in 0..inputs / 2 {
        prefetch(lines, 2 * at);
        prefetch(lines, 2 * at + 1);
        // SAFETY: a panel has two lines a pair, and each row two values.
        unsafe {
            let (first, second) = (pair::<F16>(lines.add(2 * at)), pair::<F16>(lines.add(2 * at + 1)));
            add(&mut sums, 0, [first[0], second[0]], x.add(2 * at), stride);
            add(&mut sums, 1, [first[1], second[1]], x.add(2 * at + 1), stride);
        }
    }
    if inputs % 2 == 1 {
        // SAFETY: the last, half filled pair of lines, and each row's last value.
        unsafe {
            let even = [pair::<F16>(lines.add(inputs - 1))[0], pair::<F16>(lines.add(inputs))[0]];
            add(&mut sums, 0, even, x.add(inputs - 1), stride);
        }
    }
    store(&sums, tile);
}

/// # Safety
/// As [`tile`], with `R` rows.
#[target_feature(enable = "avx512f")]
unsafe fn f32<const R: usize>(
    lines: *const Line,
    inputs: usize,
    x: *const f32,
    stride: usize,
    tile: &mut Tile,
) {
    let mut sums = [[[_mm512_setzero_ps(); 2]; 2]; R];
    // SAFETY: called with `input < inputs`; a panel has two lines an input.
    let weights = |input: usize| unsafe {
        [0, 1].map(|half| _mm512_castsi512_ps(_mm512_load_si512(lines.add(2 * input + half).cast())))
    };
    for pair in 0..inputs / 2 {
        for line in 0..4 {
            prefetch(lines, 4 * pair + line);
        }
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
    store(&sums, tile);
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store<const R: usize>(sums: &Sums<R>, tile: &mut Tile) {
    for (sums, out) in sums.iter().zip(&mut tile.0) {
        for ([even, odd], out) in sums.iter().zip(out) {
            // SAFETY: a half row of a tile is 64 bytes and, the tile being aligned to 64, aligned.
            unsafe { _mm512_store_ps(out.as_mut_ptr(), _mm512_add_ps(*even, *odd)) };
        }
    }
}

#[target_feature(enable = "avx512f")]
pub(super) fn swiglu(tile: &mut Tile, rows: usize) {
    super::swiglu(tile, rows);
}

#[target_feature(enable = "avx512f")]
pub(super) fn soften(scores: &mut [f32], len: usize, scale: f32) -> f32 {
    lanes::soften(scores, len, scale)
}

#[target_feature(enable = "avx512f")]
pub(super) fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    lanes::rms_norm(x, weight, epsilon, out);
}
