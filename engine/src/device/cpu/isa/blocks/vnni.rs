//! AVX-512 with dot products of bytes: quantised weights are never widened.
//!
//! A row comes in fixed point (see [`fixed`](super::super::super::fixed)): sixteen bits an input, as two planes of
//! bytes, with a scale for each 32. Weights are whole numbers of at most eight bits already, so that a group's sum is a
//! whole number and exact; scale and offset are applied to it once a group instead of once a weight. With one row this
//! leaves a pass waiting for memory, and a few rows cost hardly more than one.

use std::arch::x86_64::{
    __m128i, __m512i, _MM_HINT_T0, _mm_prefetch, _mm_set_epi64x, _mm_shuffle_epi8, _mm_storeu_si128,
    _mm512_abs_ps, _mm512_add_epi32, _mm512_and_si512, _mm512_castps_si512, _mm512_cvtepi32_epi8,
    _mm512_cvtepi32_ps, _mm512_cvtps_epi32, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_load_si512,
    _mm512_loadu_ps, _mm512_max_epu32, _mm512_mul_ps, _mm512_reduce_add_epi32, _mm512_reduce_max_epu32,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_slli_epi32,
    _mm512_srai_epi32, _mm512_srli_epi32, _mm512_store_ps, _mm512_sub_epi32, _mm512_ternarylogic_epi32,
};
use std::array;

use super::super::super::blocks::{Blocks, GROUP};
use super::super::super::fixed::{Fixed, scale};
use super::super::super::packed::Line;
use super::super::{AHEAD, Tile};
use super::avx512::Wide;
use super::{Format, Q4_0, Q4_1, Q4K, Q5K, Q6K, Q8_0};

/// Weights as bytes without a sign: `byte` j of word `lane` of quad `2 * eight + parity` is input
/// `8 * eight + 2 * j + parity` of output `lane`.
trait Bytes: Format {
    /// What the byte has too much, to be without a sign.
    const EXCESS: i32;
    /// Scales of a group: each is for as many inputs.
    const RUNS: usize = 1;
    /// Whether weights have an offset of their own.
    const OFFSET: bool = false;

    /// Two quads.
    fn quads(group: &[Line], eight: usize, half: usize) -> [__m512i; 2];
}

#[inline(always)]
fn line(group: &[Line], at: usize) -> __m512i {
    // SAFETY: only code of `tile`, compiled for what it needs, comes here; a line is 64 bytes, aligned to 64. So it is
    // for all functions here.
    unsafe { _mm512_load_si512((&raw const group[at]).cast()) }
}

#[inline(always)]
fn nibbles(group: &[Line], first: usize, eight: usize, half: usize) -> [__m512i; 2] {
    let bits = line(group, first + 2 * eight + half);
    // SAFETY: see `line`.
    unsafe {
        let mask = _mm512_set1_epi32(0x0f0f_0f0f);
        [_mm512_and_si512(bits, mask), _mm512_and_si512(_mm512_srli_epi32::<4>(bits), mask)]
    }
}

/// The bits of `high` that `mask` leaves once bit `at` of each byte has come to bit 4, above `low`.
#[inline(always)]
fn above(low: __m512i, high: __m512i, at: usize, mask: i32) -> __m512i {
    const LOW_OR_BOTH: i32 = 0b1111_1000;
    // SAFETY: see `line`.
    unsafe {
        let high = match at {
            0 => _mm512_slli_epi32::<4>(high),
            1 => _mm512_slli_epi32::<3>(high),
            2 => _mm512_slli_epi32::<2>(high),
            3 => _mm512_slli_epi32::<1>(high),
            4 => high,
            5 => _mm512_srli_epi32::<1>(high),
            6 => _mm512_srli_epi32::<2>(high),
            _ => _mm512_srli_epi32::<3>(high),
        };
        _mm512_ternarylogic_epi32::<LOW_OR_BOTH>(low, high, _mm512_set1_epi32(mask))
    }
}

impl Bytes for Q8_0 {
    const EXCESS: i32 = 128;

    #[inline(always)]
    fn quads(group: &[Line], eight: usize, half: usize) -> [__m512i; 2] {
        [line(group, 1 + 4 * eight + half), line(group, 3 + 4 * eight + half)]
    }
}

impl Bytes for Q4_0 {
    const EXCESS: i32 = 8;

    #[inline(always)]
    fn quads(group: &[Line], eight: usize, half: usize) -> [__m512i; 2] {
        nibbles(group, 1, eight, half)
    }
}

impl Bytes for Q4_1 {
    const EXCESS: i32 = 0;
    const OFFSET: bool = true;

    #[inline(always)]
    fn quads(group: &[Line], eight: usize, half: usize) -> [__m512i; 2] {
        nibbles(group, 2, eight, half)
    }
}

impl Bytes for Q4K {
    const EXCESS: i32 = 0;
    const OFFSET: bool = true;

    #[inline(always)]
    fn quads(group: &[Line], eight: usize, half: usize) -> [__m512i; 2] {
        nibbles(group, 1, eight, half)
    }
}

impl Bytes for Q5K {
    const EXCESS: i32 = 0;
    const OFFSET: bool = true;

    #[inline(always)]
    fn quads(group: &[Line], eight: usize, half: usize) -> [__m512i; 2] {
        let (low, high) = (nibbles(group, 1, eight, half), line(group, 9 + half));
        [above(low[0], high, 2 * eight, 0x1010_1010), above(low[1], high, 2 * eight + 1, 0x1010_1010)]
    }
}

impl Bytes for Q6K {
    const EXCESS: i32 = 32;
    const RUNS: usize = 2;

    #[inline(always)]
    fn quads(group: &[Line], eight: usize, half: usize) -> [__m512i; 2] {
        let (low, high) = (nibbles(group, 1, eight, half), line(group, 9 + eight / 2 * 2 + half));
        let at = 4 * (eight % 2);
        [above(low[0], high, at, 0x3030_3030), above(low[1], high, at + 2, 0x3030_3030)]
    }
}

/// A row in fixed point; see [`Isa::fix`](super::super::Isa::fix).
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in super::super) fn fix(row: &[f32], out: &mut [Fixed]) {
    let (groups, _) = row.as_chunks::<GROUP>();
    // The even inputs of eight before the odd ones.
    let order = _mm_set_epi64x(0x0f0d_0b09_0e0c_0a08, 0x0705_0301_0604_0200);
    for (group, out) in groups.iter().zip(out) {
        let halves = group.as_chunks::<16>().0;
        // SAFETY: each is sixteen values.
        let x = [0, 1].map(|half| unsafe { _mm512_loadu_ps(halves[half].as_ptr()) });
        let bits = x.map(|x| _mm512_castps_si512(_mm512_abs_ps(x)));
        let (unit, inverse) = scale(_mm512_reduce_max_epu32(_mm512_max_epu32(bits[0], bits[1])));
        if inverse == 0.0 {
            *out = Fixed::ZERO;
            out.finish(unit, [0; 2]);
            continue;
        }
        let mut sums = [0; 2];
        for half in 0..2 {
            let whole = _mm512_cvtps_epi32(_mm512_mul_ps(x[half], _mm512_set1_ps(inverse)));
            let high = _mm512_srai_epi32::<8>(_mm512_add_epi32(whole, _mm512_set1_epi32(128)));
            let low = _mm512_sub_epi32(whole, _mm512_slli_epi32::<8>(high));
            let ordered = |plane| _mm_shuffle_epi8(_mm512_cvtepi32_epi8(plane), order);
            let to: [*mut __m128i; 2] =
                [out.high.as_mut_ptr(), out.low.as_mut_ptr()].map(<*mut i32>::cast::<__m128i>);
            // SAFETY: a plane is twice sixteen bytes.
            unsafe {
                _mm_storeu_si128(to[0].add(half), ordered(high));
                _mm_storeu_si128(to[1].add(half), ordered(low));
            }
            sums[half] = _mm512_reduce_add_epi32(whole);
        }
        out.finish(unit, sums);
    }
}

/// `R` rows of `groups` groups each, one after the other, times a panel.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn multiply<F: Bytes, const R: usize>(panel: &[Line], rows: &[Fixed], groups: usize, tile: &mut Tile) {
    let (head, length) = const { F::BLOCKS.shape() };
    let rows: [&[Fixed]; R] = array::from_fn(|row| &rows[row * groups..][..groups]);
    let zero = _mm512_setzero_ps();
    let mut sums = [[zero; 2]; R];
    let mut number = 0;
    for block in panel.chunks_exact(const { F::BLOCKS.block() }) {
        let (head, weights) = block.split_at(head);
        for group in weights.chunks_exact(length) {
            for line in group {
                _mm_prefetch::<_MM_HINT_T0>((&raw const *line).wrapping_add(AHEAD).cast());
            }
            let mut x = [&rows[0][number]; R];
            for row in 1..R {
                x[row] = &rows[row][number];
            }
            number += 1;
            for run in 0..F::RUNS {
                let mut scales = [(Wide(zero), Wide(zero)); 2];
                let (first, end) = (4 / F::RUNS * run, 4 / F::RUNS * (run + 1));
                let mut quads = [[[_mm512_setzero_si512(); 2]; 4]; 2];
                for half in 0..2 {
                    scales[half] = F::scale::<Wide>(head, group, run, half);
                    for eight in first..end {
                        quads[half][eight] = F::quads(group, eight, half);
                    }
                }
                for row in 0..R {
                    let mut high = [_mm512_setzero_si512(); 2];
                    let mut low = high;
                    if F::EXCESS != 0 {
                        low = [_mm512_set1_epi32(-F::EXCESS * x[row].sum_of(run, F::RUNS)); 2];
                    }
                    for eight in first..end {
                        for parity in 0..2 {
                            let word = 2 * eight + parity;
                            let one = _mm512_set1_epi32(x[row].high[word]);
                            let other = _mm512_set1_epi32(x[row].low[word]);
                            for half in 0..2 {
                                let weights = quads[half][eight][parity];
                                high[half] = _mm512_dpbusd_epi32(high[half], weights, one);
                                low[half] = _mm512_dpbusd_epi32(low[half], weights, other);
                            }
                        }
                    }
                    let (unit, total) = (_mm512_set1_ps(x[row].unit), _mm512_set1_ps(x[row].sum));
                    for half in 0..2 {
                        let (scale, offset) = scales[half];
                        let sum = _mm512_add_epi32(_mm512_slli_epi32::<8>(high[half]), low[half]);
                        let to = &mut sums[row][half];
                        *to = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scale.0, unit), *to);
                        if F::OFFSET {
                            *to = _mm512_fmadd_ps(offset.0, total, *to);
                        }
                    }
                }
            }
        }
    }
    for (sums, out) in sums.iter().zip(&mut tile.0) {
        for (sum, out) in sums.iter().zip(out) {
            // SAFETY: half a row of a tile is 64 bytes and, the tile being aligned to 64, aligned.
            unsafe { _mm512_store_ps(out.as_mut_ptr(), *sum) };
        }
    }
}

/// See [`Isa::blocks`](super::super::Isa::blocks).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(in super::super) fn tile(blocks: Blocks, panel: &[Line], rows: &[Fixed], groups: usize, tile: &mut Tile) {
    match blocks {
        Blocks::Q8_0 => whole::<Q8_0>(panel, rows, groups, tile),
        Blocks::Q4_0 => whole::<Q4_0>(panel, rows, groups, tile),
        Blocks::Q4_1 => whole::<Q4_1>(panel, rows, groups, tile),
        Blocks::Q4K => whole::<Q4K>(panel, rows, groups, tile),
        Blocks::Q5K => whole::<Q5K>(panel, rows, groups, tile),
        Blocks::Q6K => whole::<Q6K>(panel, rows, groups, tile),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn whole<F: Bytes>(panel: &[Line], rows: &[Fixed], groups: usize, tile: &mut Tile) {
    match rows.len() / groups {
        1 => multiply::<F, 1>(panel, rows, groups, tile),
        2 => multiply::<F, 2>(panel, rows, groups, tile),
        3 => multiply::<F, 3>(panel, rows, groups, tile),
        4 => multiply::<F, 4>(panel, rows, groups, tile),
        5 => multiply::<F, 5>(panel, rows, groups, tile),
        _ => multiply::<F, 6>(panel, rows, groups, tile),
    }
}
