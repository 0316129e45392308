//! The inner loop over quantised weights, written once: what differs between instruction sets is a [`Vector`], what
//! differs between types of weights is a [`Format`].
//!
//! Weights become `f32` in registers, once for all rows of a tile, and are then added up as other weights are: the
//! even inputs in one sum and the odd ones in another, each in order. Every product on the way to a weight is exact
//! (see [`Dtype`](crate::model::Dtype)), so a weight is the same bits on every instruction set, and the results are
//! those of the same weights stored as `f32`.
//!
//! All is `inline(always)` and plain loops: what the compiler leaves as a function of its own (it does so with the
//! closures of `array::from_fn`) is not compiled for the instruction set, and then its vectors go through memory. So
//! do arrays of vectors with an index that is not a constant, which is why eight inputs are written one by one.

#![allow(clippy::inline_always, reason = "to be compiled for the caller's instruction set")]
#![allow(clippy::needless_range_loop, reason = "several arrays of registers by one constant index")]

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
pub(super) mod portable;
#[cfg(target_arch = "x86_64")]
pub(super) mod vnni;

use super::super::blocks::{Blocks, GROUP};
use super::super::packed::Line;
use super::{Rows, Tile};

/// Inputs that share a scale in every format.
const RUN: usize = 16;
/// Inputs whose four-bit weights share a lane.
const EIGHT: usize = 8;
/// Rows at a time where registers hold no more.
const ROWS: usize = 3;

/// Sixteen values of `f32`, one for each output of half a panel.
pub(super) trait Vector: Copy {
    /// A line as sixteen whole numbers.
    type Bits: Copy;

    /// Zeros.
    fn zero() -> Self;
    /// One value in every lane.
    fn splat(value: f32) -> Self;
    /// `self * by`
    fn times(self, by: Self) -> Self;
    /// `self * by + to`, where the product is exact or may be rounded once with the sum.
    fn times_plus(self, by: Self, to: Self) -> Self;
    /// A line's bits.
    fn bits(line: &Line) -> Self::Bits;
    /// Four bits from bit `at` on, as a number.
    fn nibble(bits: Self::Bits, at: u32) -> Self;
    /// Four bits from bit `at` on and, above them, those of `high` that `mask` leaves from bit `high_at` on.
    fn joined(bits: Self::Bits, at: u32, high: Self::Bits, high_at: u32, mask: u32) -> Self;
    /// Eight bits from bit `at` on, as a number.
    fn byte(bits: Self::Bits, at: u32) -> Self;
    /// One of the two sixteens of halves in a line.
    fn halves(line: &Line, which: usize) -> Self;
    /// One of the four sixteens of bytes in a line.
    fn bytes(line: &Line, which: usize) -> Self;
    /// The same, bytes with a sign.
    fn signed_bytes(line: &Line, which: usize) -> Self;
    /// The values.
    fn store(self, to: &mut [f32; RUN]);
}

/// How weights of a type are read from their lines.
pub(super) trait Format {
    const BLOCKS: Blocks;

    /// Scale and offset of run `run` of a group, for one half of the panel.
    fn scale<V: Vector>(head: &[Line], group: &[Line], run: usize, half: usize) -> (V, V);

    /// The lines that hold inputs `8 * eight ..` of a group.
    type Loaded<'a, V: Vector>: Copy;
    fn load<V: Vector>(group: &[Line], eight: usize, half: usize) -> Self::Loaded<'_, V>;

    /// The weight of input `at` of those eight.
    fn weight<V: Vector>(loaded: Self::Loaded<'_, V>, eight: usize, at: usize, scale: (V, V)) -> V;
}

pub(super) struct Q8_0;
pub(super) struct Q4_0;
pub(super) struct Q4_1;
pub(super) struct Q4K;
pub(super) struct Q5K;
pub(super) struct Q6K;

#[inline(always)]
fn nibbles<V: Vector>(group: &[Line], first: usize, eight: usize, half: usize) -> V::Bits {
    V::bits(&group[first + 2 * eight + half])
}

impl Format for Q8_0 {
    const BLOCKS: Blocks = Blocks::Q8_0;
    type Loaded<'a, V: Vector> = [V::Bits; 2];

    #[inline(always)]
    fn scale<V: Vector>(_: &[Line], group: &[Line], _: usize, half: usize) -> (V, V) {
        let scale = V::halves(&group[0], half);
        (scale, scale.times(V::splat(-128.0)))
    }

    #[inline(always)]
    fn load<V: Vector>(group: &[Line], eight: usize, half: usize) -> Self::Loaded<'_, V> {
        [V::bits(&group[1 + 4 * eight + half]), V::bits(&group[3 + 4 * eight + half])]
    }

    #[inline(always)]
    fn weight<V: Vector>(loaded: Self::Loaded<'_, V>, _: usize, at: usize, (scale, offset): (V, V)) -> V {
        V::byte(loaded[at % 2], 8 * (at / 2) as u32).times_plus(scale, offset)
    }
}

impl Format for Q4_0 {
    const BLOCKS: Blocks = Blocks::Q4_0;
    type Loaded<'a, V: Vector> = V::Bits;

    #[inline(always)]
    fn scale<V: Vector>(_: &[Line], group: &[Line], _: usize, half: usize) -> (V, V) {
        let scale = V::halves(&group[0], half);
        (scale, scale.times(V::splat(-8.0)))
    }

    #[inline(always)]
    fn load<V: Vector>(group: &[Line], eight: usize, half: usize) -> Self::Loaded<'_, V> {
        nibbles::<V>(group, 1, eight, half)
    }

    #[inline(always)]
    fn weight<V: Vector>(bits: Self::Loaded<'_, V>, _: usize, at: usize, (scale, offset): (V, V)) -> V {
        V::nibble(bits, 4 * at as u32).times_plus(scale, offset)
    }
}

impl Format for Q4_1 {
    const BLOCKS: Blocks = Blocks::Q4_1;
    type Loaded<'a, V: Vector> = V::Bits;

    #[inline(always)]
    fn scale<V: Vector>(_: &[Line], group: &[Line], _: usize, half: usize) -> (V, V) {
        (V::halves(&group[half], 0), V::halves(&group[half], 1))
    }

    #[inline(always)]
    fn load<V: Vector>(group: &[Line], eight: usize, half: usize) -> Self::Loaded<'_, V> {
        nibbles::<V>(group, 2, eight, half)
    }

    #[inline(always)]
    fn weight<V: Vector>(bits: Self::Loaded<'_, V>, _: usize, at: usize, (scale, offset): (V, V)) -> V {
        V::nibble(bits, 4 * at as u32).times_plus(scale, offset)
    }
}

/// Of `Q4_K` and `Q5_K`.
#[inline(always)]
fn scale_k<V: Vector>(head: &[Line], group: &[Line], half: usize) -> (V, V) {
    let scale = V::halves(&head[half], 0).times(V::bytes(&group[0], 2 * half));
    let offset = V::halves(&head[half], 1).times(V::bytes(&group[0], 2 * half + 1));
    (scale, offset.times(V::splat(-1.0)))
}

impl Format for Q4K {
    const BLOCKS: Blocks = Blocks::Q4K;
    type Loaded<'a, V: Vector> = V::Bits;

    #[inline(always)]
    fn scale<V: Vector>(head: &[Line], group: &[Line], _: usize, half: usize) -> (V, V) {
        scale_k(head, group, half)
    }

    #[inline(always)]
    fn load<V: Vector>(group: &[Line], eight: usize, half: usize) -> Self::Loaded<'_, V> {
        nibbles::<V>(group, 1, eight, half)
    }

    #[inline(always)]
    fn weight<V: Vector>(bits: Self::Loaded<'_, V>, _: usize, at: usize, (scale, offset): (V, V)) -> V {
        V::nibble(bits, 4 * at as u32).times_plus(scale, offset)
    }
}

impl Format for Q5K {
    const BLOCKS: Blocks = Blocks::Q5K;
    type Loaded<'a, V: Vector> = (V::Bits, V::Bits);

    #[inline(always)]
    fn scale<V: Vector>(head: &[Line], group: &[Line], _: usize, half: usize) -> (V, V) {
        scale_k(head, group, half)
    }

    #[inline(always)]
    fn load<V: Vector>(group: &[Line], eight: usize, half: usize) -> Self::Loaded<'_, V> {
        (nibbles::<V>(group, 1, eight, half), V::bits(&group[9 + half]))
    }

    #[inline(always)]
    fn weight<V: Vector>(bits: Self::Loaded<'_, V>, eight: usize, at: usize, (scale, offset): (V, V)) -> V {
        let (low, high) = bits;
        let high_at = (at / 2 * 8 + 2 * eight + at % 2) as u32;
        V::joined(low, 4 * at as u32, high, high_at, 1).times_plus(scale, offset)
    }
}

impl Format for Q6K {
    const BLOCKS: Blocks = Blocks::Q6K;
    type Loaded<'a, V: Vector> = (V::Bits, V::Bits);

    #[inline(always)]
    fn scale<V: Vector>(head: &[Line], group: &[Line], run: usize, half: usize) -> (V, V) {
        let scale = V::halves(&head[0], half).times(V::signed_bytes(&group[0], 2 * half + run));
        (scale, scale.times(V::splat(-32.0)))
    }

    #[inline(always)]
    fn load<V: Vector>(group: &[Line], eight: usize, half: usize) -> Self::Loaded<'_, V> {
        (nibbles::<V>(group, 1, eight, half), V::bits(&group[9 + eight / 2 * 2 + half]))
    }

    #[inline(always)]
    fn weight<V: Vector>(bits: Self::Loaded<'_, V>, eight: usize, at: usize, (scale, offset): (V, V)) -> V {
        let (low, high) = bits;
        let high_at = (at / 2 * 8 + 2 * (eight % 2 * 2 + at % 2)) as u32;
        V::joined(low, 4 * at as u32, high, high_at, 3).times_plus(scale, offset)
    }
}

/// `R` rows from `first` on times `H` halves of a panel from `half` on.
///
/// # Panics
/// When the panel or the rows are shorter than `inputs`.
#[inline(always)]
pub(super) fn multiply<V: Vector, F: Format, const R: usize, const H: usize>(
    panel: &[Line],
    inputs: usize,
    rows: Rows<'_>,
    (first, half): (usize, usize),
    tile: &mut Tile,
) {
    let (head, length) = const { F::BLOCKS.shape() };
    let (mut even, mut odd) = ([[V::zero(); H]; R], [[V::zero(); H]; R]);
    let nothing: &[[f32; GROUP]] = &[];
    let mut x = [nothing; R];
    for row in 0..R {
        x[row] = rows.values[(first + row) * rows.stride..][..inputs].as_chunks().0;
    }
    let mut number = 0;
    for block in panel[..F::BLOCKS.lines(inputs)].chunks_exact(const { F::BLOCKS.block() }) {
        let (head, groups) = block.split_at(head);
        for group in groups.chunks_exact(length) {
            let mut inputs = [&[0.0; GROUP]; R];
            for row in 0..R {
                inputs[row] = &x[row][number];
            }
            number += 1;
            for run in 0..GROUP / RUN {
                let mut scales = [(V::zero(), V::zero()); H];
                for h in 0..H {
                    scales[h] = F::scale(head, group, run, half + h);
                }
                for second in 0..RUN / EIGHT {
                    let eight = 2 * run + second;
                    let mut loaded = [F::load::<V>(group, eight, half); H];
                    for h in 1..H {
                        loaded[h] = F::load(group, eight, half + h);
                    }
                    let here = (eight, &loaded, &scales, &inputs);
                    add::<V, F, R, H>(&mut even, here, 0);
                    add::<V, F, R, H>(&mut odd, here, 1);
                    add::<V, F, R, H>(&mut even, here, 2);
                    add::<V, F, R, H>(&mut odd, here, 3);
                    add::<V, F, R, H>(&mut even, here, 4);
                    add::<V, F, R, H>(&mut odd, here, 5);
                    add::<V, F, R, H>(&mut even, here, 6);
                    add::<V, F, R, H>(&mut odd, here, 7);
                }
            }
        }
    }
    for row in 0..R {
        for h in 0..H {
            even[row][h].times_plus(V::splat(1.0), odd[row][h]).store(&mut tile.0[first + row][half + h]);
        }
    }
}

/// Which eight inputs of a group, their lines and scales by half, and the group's inputs by row.
type Here<'a, V, F, const R: usize, const H: usize> =
    (usize, &'a [<F as Format>::Loaded<'a, V>; H], &'a [(V, V); H], &'a [&'a [f32; GROUP]; R]);

/// Adds the products of input `at` of eight to the sums.
#[inline(always)]
fn add<V: Vector, F: Format, const R: usize, const H: usize>(
    sums: &mut [[V; H]; R],
    (eight, loaded, scales, inputs): Here<'_, V, F, R, H>,
    at: usize,
) {
    let mut weights = [V::zero(); H];
    for h in 0..H {
        weights[h] = F::weight(loaded[h], eight, at, scales[h]);
    }
    for row in 0..R {
        let x = V::splat(inputs[row][EIGHT * eight + at]);
        for h in 0..H {
            sums[row][h] = weights[h].times_plus(x, sums[row][h]);
        }
    }
}

/// A tile, half a panel and a few rows at a time.
#[inline(always)]
pub(super) fn by_halves<V: Vector, F: Format>(
    panel: &[Line],
    inputs: usize,
    rows: Rows<'_>,
    tile: &mut Tile,
) {
    for first in (0..rows.count).step_by(ROWS) {
        for half in 0..2 {
            let at = (first, half);
            match rows.count - first {
                1 => multiply::<V, F, 1, 1>(panel, inputs, rows, at, tile),
                2 => multiply::<V, F, 2, 1>(panel, inputs, rows, at, tile),
                _ => multiply::<V, F, ROWS, 1>(panel, inputs, rows, at, tile),
            }
        }
    }
}
