//! Rows times packed weights, the panels shared out over the threads.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::blocks::GROUP;
use super::fixed::Fixed;
use super::isa::{Isa, Rows, TILE_ROWS, Tile};
use super::packed::{LANES, Layout, PANEL, Packed};
use super::pool::{Columns, Pool};
use crate::device::NO_TOKEN;

/// Ranges of at most [`TILE_ROWS`] rows, as even as they can be.
pub(super) fn blocks(rows: usize) -> impl Iterator<Item = Range<usize>> {
    let count = rows.div_ceil(TILE_ROWS);
    (0..count).map(move |block| rows * block / count..rows * (block + 1) / count)
}

thread_local! {
    /// Room for fixed-point rows, kept between products.
    static FIXED: Cell<Vec<Fixed>> = const { Cell::new(Vec::new()) };
}

/// Rows to multiply.
#[derive(Clone, Copy)]
pub(super) enum Operand<'a> {
    Plain(Rows<'a>),
    /// In fixed point already, `[rows, inputs / 32]`: for weights that [want it](Multiplier::fixes).
    Fixed(&'a [Fixed]),
}

impl<'a> From<Rows<'a>> for Operand<'a> {
    fn from(rows: Rows<'a>) -> Self {
        Operand::Plain(rows)
    }
}

/// Rows as they are multiplied.
#[derive(Clone, Copy)]
struct Given<'a> {
    rows: Rows<'a>,
    /// `[rows, inputs / 32]`; empty where nobody wants them.
    fixed: &'a [Fixed],
    /// Groups of a row.
    groups: usize,
}

impl Given<'_> {
    fn part(self, range: &Range<usize>) -> Self {
        let fixed = if self.fixed.is_empty() { self.fixed } else { &self.fixed[range.start * self.groups..] };
        Given { rows: self.rows.part(range), fixed, ..self }
    }
}

/// The threads and the instruction set that a pass runs on.
#[derive(Clone, Copy)]
pub(super) struct Multiplier<'a> {
    pub(super) pool: &'a Pool,
    pub(super) isa: Isa,
}

impl Multiplier<'_> {
    /// Whether rows come to these weights in fixed point, all of them.
    pub(super) fn fixes(&self, weights: &Packed) -> bool {
        self.isa.fixes() && weights.is_blocks()
    }

    /// `out = weights rows + bias`, `[rows, panels * 32]`.
    pub(super) fn store<'r>(&self, weights: &Packed, rows: impl Into<Operand<'r>>, out: &mut [f32]) {
        let mut fixed = FIXED.take();
        let given = self.given(weights, rows, &mut fixed);
        self.pool.columns(out, weights.panels() * PANEL, PANEL, |mut columns| {
            self.panels(weights, given, &mut columns, |out, result| out.copy_from_slice(result));
        });
        FIXED.set(fixed);
    }

    /// `out = out + weights rows + bias`, `[rows, panels * 32]`.
    pub(super) fn add<'r>(&self, weights: &Packed, rows: impl Into<Operand<'r>>, out: &mut [f32]) {
        let mut fixed = FIXED.take();
        let given = self.given(weights, rows, &mut fixed);
        self.pool.columns(out, weights.panels() * PANEL, PANEL, |mut columns| {
            self.panels(weights, given, &mut columns, |out, result| {
                for (out, result) in out.iter_mut().zip(result) {
                    *out += result;
                }
            });
        });
        FIXED.set(fixed);
    }

    /// [`store`](Self::store) of the first `panels` panels, `[rows, panels * 32]`, and each row's largest output noted
    /// in `greedy`.
    pub(super) fn head(
        &self,
        weights: &Packed,
        panels: usize,
        rows: Rows<'_>,
        out: &mut [f32],
        greedy: &[Greedy],
    ) {
        let mut fixed = FIXED.take();
        let given = self.given(weights, rows, &mut fixed);
        self.pool.columns(out, panels * PANEL, PANEL, |mut columns| {
            self.panels(weights, given, &mut columns, |out, result| out.copy_from_slice(result));
            let range = columns.range();
            let count = weights.outputs.min(range.end).saturating_sub(range.start);
            for (row, greedy) in greedy.iter().enumerate() {
                greedy.offer(range.start, &columns.row(row)[..count]);
            }
        });
        FIXED.set(fixed);
    }

    /// `out = silu(gate) * up` of paired weights, `[rows, panels * 16]`.
    pub(super) fn gated(&self, weights: &Packed, rows: Rows<'_>, out: &mut [f32]) {
        let mut fixed = FIXED.take();
        let given = self.given(weights, rows, &mut fixed);
        self.pool.columns(out, weights.panels() * LANES, LANES, |mut columns| {
            let mut tile = Tile::new();
            let from = columns.range().start;
            for panel in columns.range().step_by(LANES) {
                for range in blocks(given.rows.count) {
                    self.gate(weights, panel / LANES, given.part(&range), &mut tile);
                    for (row, [result, _]) in range.zip(&tile.0) {
                        columns.row(row)[panel - from..][..LANES].copy_from_slice(result);
                    }
                }
            }
        });
        FIXED.set(fixed);
    }

    /// [`gated`](Self::gated) in fixed point, `[rows, panels / 2]`, of an even number of panels: who has computed a
    /// value fixes it, in the same piece of work.
    pub(super) fn gated_fixed(&self, weights: &Packed, rows: Rows<'_>, out: &mut [Fixed]) {
        let mut fixed = FIXED.take();
        let given = self.given(weights, rows, &mut fixed);
        self.pool.columns(out, weights.panels() / 2, 1, |mut columns| {
            let mut tiles = [Tile::new(), Tile::new()];
            let from = columns.range().start;
            for group in columns.range() {
                for range in blocks(given.rows.count) {
                    for (half, tile) in tiles.iter_mut().enumerate() {
                        self.gate(weights, 2 * group + half, given.part(&range), tile);
                    }
                    for (at, row) in range.enumerate() {
                        let values = [tiles[0].0[at][0], tiles[1].0[at][0]];
                        self.isa.fix(values.as_flattened(), &mut columns.row(row)[group - from..][..1]);
                    }
                }
            }
        });
        FIXED.set(fixed);
    }

    /// One panel of paired weights: `silu(gate) * up` in the first half of the tile.
    fn gate(&self, weights: &Packed, panel: usize, given: Given<'_>, tile: &mut Tile) {
        self.tile(weights, panel, given, tile);
        self.isa.swiglu(tile, given.rows.count);
    }

    /// The rows as these weights want them, in `fixed` if that is fixed point.
    fn given<'a, 'r: 'a>(
        &self,
        weights: &Packed,
        rows: impl Into<Operand<'r>>,
        fixed: &'a mut Vec<Fixed>,
    ) -> Given<'a> {
        let groups = weights.inputs / GROUP;
        let rows = match rows.into() {
            Operand::Plain(rows) => rows,
            Operand::Fixed(fixed) => {
                let rows = Rows { values: &[], stride: 0, count: fixed.len() / groups };
                return Given { rows, fixed, groups };
            }
        };
        fixed.clear();
        if self.isa.fixes() && weights.has_blocks() {
            fixed.resize(rows.count * groups, Fixed::ZERO);
            let fix = |row: usize, out: &mut [Fixed]| {
                self.isa.fix(&rows.values[row * rows.stride..][..weights.inputs], out);
            };
            // A few rows take less time than waking the other threads for them.
            if rows.count > TILE_ROWS {
                let mut scratch = vec![(); self.pool.threads()];
                self.pool.units(fixed, groups, &mut scratch, |(), row, out| fix(row, out));
            } else {
                fixed.chunks_mut(groups).enumerate().for_each(|(row, out)| fix(row, out));
            }
        }
        Given { rows, fixed, groups }
    }

    /// The panels of some columns, each result given to `then`.
    fn panels(
        &self,
        weights: &Packed,
        given: Given<'_>,
        columns: &mut Columns<'_, f32>,
        then: impl Fn(&mut [f32], &[f32]),
    ) {
        let mut tile = Tile::new();
        let from = columns.range().start;
        for column in columns.range().step_by(PANEL) {
            for range in blocks(given.rows.count) {
                self.tile(weights, column / PANEL, given.part(&range), &mut tile);
                for (row, result) in range.zip(&tile.0) {
                    then(&mut columns.row(row)[column - from..][..PANEL], result.as_flattened());
                }
            }
        }
    }

    /// One panel times at most [`TILE_ROWS`] rows, with the bias.
    fn tile(&self, weights: &Packed, panel: usize, given: Given<'_>, tile: &mut Tile) {
        let Given { rows, fixed, .. } = given;
        match weights.panel(panel) {
            (Layout::Plain(kind), lines) => self.isa.tile(kind, lines, weights.inputs, rows, tile),
            (Layout::Blocks(blocks), lines) => {
                self.isa.blocks(blocks, lines, weights.inputs, (rows, fixed), tile);
            }
        }
        if let Some(bias) = weights.bias(panel) {
            for row in &mut tile.0[..rows.count] {
                for (value, bias) in row.as_flattened_mut().iter_mut().zip(bias) {
                    *value += bias;
                }
            }
        }
    }
}

/// The largest value offered by any thread and its index, the lowest on a tie; NaN is never the largest.
#[derive(Debug, Default)]
pub(super) struct Greedy(AtomicU64);

impl Greedy {
    /// Values of the indices from `start` on.
    fn offer(&self, start: usize, values: &[f32]) {
        let mut largest = [f32::NEG_INFINITY; LANES];
        let (lanes, rest) = values.as_chunks::<LANES>();
        for lanes in lanes {
            for (largest, &value) in largest.iter_mut().zip(lanes) {
                *largest = if value > *largest { value } else { *largest };
            }
        }
        let largest = largest.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
        let Some(at) = values.iter().position(|&value| value >= largest) else { return };
        // Bits in the order of the numbers, above the index counted backwards; both zeros are one.
        let bits = (largest + 0.0).to_bits();
        let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
        self.0.fetch_max(u64::from(ordered) << 32 | u64::from(!((start + at) as u32)), Ordering::Relaxed);
    }

    /// The index; [`NO_TOKEN`] where nothing but NaN was offered.
    pub(super) fn index(&self) -> u32 {
        match self.0.load(Ordering::Relaxed) {
            0 => NO_TOKEN,
            best => !(best as u32),
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::float_cmp, reason = "the same bits are what is asked for")]

    use half::{bf16, f16};
    use proptest::prelude::*;

    use super::*;
    use crate::device::cpu::packed::Matrix;
    use crate::model::Dtype;

    /// Numbers between -1 and 1 that look random and are not.
    fn noise(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// Bytes as stored, and the numbers that they stand for.
    fn stored(values: &[f32], dtype: Dtype) -> (Vec<u8>, Vec<f32>) {
        match dtype {
            Dtype::F32 => (values.iter().flat_map(|v| v.to_le_bytes()).collect(), values.to_vec()),
            Dtype::Bf16 => {
                let values: Vec<bf16> = values.iter().map(|&v| bf16::from_f32(v)).collect();
                (
                    values.iter().flat_map(|v| v.to_le_bytes()).collect(),
                    values.iter().map(|v| v.to_f32()).collect(),
                )
            }
            Dtype::F16 => {
                let values: Vec<f16> = values.iter().map(|&v| f16::from_f32(v)).collect();
                (
                    values.iter().flat_map(|v| v.to_le_bytes()).collect(),
                    values.iter().map(|v| v.to_f32()).collect(),
                )
            }
            _ => panic!("{dtype:?} has blocks"),
        }
    }

    /// `W x + b` of every row in `f64`.
    fn exact(weights: &[f32], bias: Option<&[f32]>, x: &[f32], rows: usize, inputs: usize) -> Vec<f64> {
        let outputs = weights.len() / inputs;
        let mut out = Vec::new();
        for row in x.chunks(inputs).take(rows) {
            for output in 0..outputs {
                let products = weights[output * inputs..][..inputs].iter().zip(row);
                let sum: f64 = products.map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                out.push(sum + bias.map_or(0.0, |bias| f64::from(bias[output])));
            }
        }
        out
    }

    fn silu(x: f64) -> f64 {
        x / (1.0 + (-x).exp())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn products_against_f64(
            outputs in 1usize..70, inputs in 1usize..70, count in 1usize..10, bias: bool, threads in 1usize..4,
            dtype in prop::sample::select(vec![Dtype::Bf16, Dtype::F16, Dtype::F32]), seed: u64,
        ) {
            let pool = Pool::new(threads);
            let (bytes, weights) = stored(&noise(outputs * inputs, seed), dtype);
            let bias = bias.then(|| noise(outputs, seed ^ 1));
            let x = noise(count * inputs, seed ^ 2);
            let rows = Rows { values: &x, stride: inputs, count };
            let matrix = Matrix { dtype, bytes: &bytes, outputs, inputs, bias: bias.clone() };
            let expected = exact(&weights, bias.as_deref(), &x, count, inputs);
            let stacked = Packed::stacked(&pool, std::slice::from_ref(&matrix));
            let paired = Packed::paired(&pool, matrix.clone(), matrix.clone());
            let twice = Packed::stacked(&pool, &[matrix.clone(), matrix]);
            let mut row = vec![0.0; inputs];
            stacked.row(outputs - 1, &mut row);
            prop_assert_eq!(&row[..], &weights[(outputs - 1) * inputs..]);
            for isa in Isa::all() {
                let multiplier = Multiplier { pool: &pool, isa };
                let width = stacked.panels() * PANEL;
                let mut out = vec![1.0; count * width];
                multiplier.store(&stacked, rows, &mut out);
                let mut sum = out.clone();
                multiplier.add(&stacked, rows, &mut sum);
                let gated_width = paired.panels() * LANES;
                let mut gated = vec![1.0; count * gated_width];
                multiplier.gated(&paired, rows, &mut gated);
                let twice_width = twice.panels() * PANEL;
                let mut both = vec![1.0; count * twice_width];
                multiplier.store(&twice, rows, &mut both);
                for row in 0..count {
                    for output in 0..outputs {
                        let exact = expected[row * outputs + output];
                        let got = out[row * width + output];
                        prop_assert!((f64::from(got) - exact).abs() < 1e-5, "{:?} {} {}", isa, got, exact);
                        prop_assert_eq!(sum[row * width + output], got + got);
                        let value = f64::from(gated[row * gated_width + output]);
                        prop_assert!((value - silu(exact) * exact).abs() < 1e-4);
                        prop_assert_eq!(both[row * twice_width + output], got);
                        prop_assert_eq!(both[row * twice_width + outputs + output], got);
                    }
                    prop_assert!(out[row * width..][..width][outputs..].iter().all(|&value| value == 0.0));
                }
            }
        }
    }

    #[test]
    fn a_row_is_the_same_bits_in_any_company_on_any_crew() {
        let (outputs, inputs) = (45, 37);
        for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
            let (bytes, _) = stored(&noise(outputs * inputs, 3), dtype);
            let x = noise(40 * inputs, 4);
            for isa in Isa::all() {
                let mut alone = Vec::new();
                for threads in 1..=3 {
                    let pool = Pool::new(threads);
                    let matrix = Matrix { dtype, bytes: &bytes, outputs, inputs, bias: None };
                    let packed = Packed::stacked(&pool, &[matrix]);
                    let multiplier = Multiplier { pool: &pool, isa };
                    let width = packed.panels() * PANEL;
                    if alone.is_empty() {
                        alone = vec![0.0; 40 * width];
                        for (x, out) in x.chunks(inputs).zip(alone.chunks_mut(width)) {
                            multiplier.store(&packed, Rows { values: x, stride: inputs, count: 1 }, out);
                        }
                    }
                    for count in (1..=13).chain([40]) {
                        let mut out = vec![0.0; count * width];
                        multiplier.store(&packed, Rows { values: &x, stride: inputs, count }, &mut out);
                        assert_eq!(out, alone[..count * width], "{isa:?}, {threads} threads, {count} rows");
                    }
                }
            }
        }
    }

    #[test]
    fn greedy_takes_the_lowest_of_the_largest_and_no_nan() {
        let greedy = |values: &[f32], parts: usize| {
            let greedy = Greedy::default();
            for (part, values) in values.chunks(parts).enumerate() {
                greedy.offer(part * parts, values);
            }
            greedy.index()
        };
        let nan = f32::NAN;
        let infinite = f32::NEG_INFINITY;
        for parts in [1, 2, 3, 20, 50] {
            assert_eq!(greedy(&[1.0, 3.0, 2.0, 3.0], parts), 1);
            assert_eq!(greedy(&[-4.0, -3.0, -3.0, -5.0], parts), 1);
            assert_eq!(greedy(&[-1.0, -0.0, 0.0], parts), 1);
            assert_eq!(greedy(&[nan, nan, -2.0, nan, -2.0], parts), 2);
            assert_eq!(greedy(&[nan, nan], parts), NO_TOKEN);
            assert_eq!(greedy(&[infinite, infinite], parts), 0);
            let mut long = vec![0.5; 45];
            long[41] = 0.75;
            assert_eq!(greedy(&long, parts), 41);
        }
    }

    #[test]
    fn blocks_are_even_and_cover_the_rows() {
        for rows in 0..50 {
            let ranges: Vec<_> = blocks(rows).collect();
            assert!(ranges.iter().all(|range| (1..=TILE_ROWS).contains(&range.len())));
            assert_eq!(ranges.into_iter().flatten().collect::<Vec<_>>(), (0..rows).collect::<Vec<_>>());
        }
    }
}
