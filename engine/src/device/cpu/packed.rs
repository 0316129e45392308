//! Weights in the order in which they are read.
//!
//! A panel holds 32 outputs. For each pair of inputs it has two lines of 64 bytes, one for each half of its
//! outputs; a line of `bf16` holds both inputs of a pair for 16 outputs (low half the even input, high half
//! the odd one), so that one load, a shift and a mask give two vectors of `f32`. A line of `f16` holds the same two
//! inputs, all outputs' even ones before the odd ones, because processors widen halves that lie side by side. Wider
//! types take one line for each input. A pass reads each panel front to back once, whatever its rows: one sequential
//! stream.

#![forbid(unsafe_code)]

use super::blocks::Blocks;
use super::isa::Isa;
use super::lanes::{self, Lanes};
use super::pool::Pool;
use crate::model::{Dtype, Linear, Tensor};

/// Outputs in half a panel: the lanes of a line.
pub(super) const LANES: usize = 16;
/// Outputs in a panel.
pub(super) const PANEL: usize = 2 * LANES;

/// A cache line of weights, bits as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u32; LANES]);

impl Line {
    /// Half `at` of the 32 in the line.
    #[inline]
    fn half(&self, at: usize) -> f32 {
        lanes::widen((self.0[at / 2] >> (at % 2 * 16)) as u16)
    }

    /// One of the two sixteens of halves in the line.
    #[inline]
    pub(super) fn halves(&self, which: usize) -> Lanes {
        std::array::from_fn(|lane| self.half(which * LANES + lane))
    }

    /// Puts a half where a zero is.
    pub(super) fn put_half(&mut self, at: usize, half: [u8; 2]) {
        self.0[at / 2] |= u32::from(u16::from_le_bytes(half)) << (at % 2 * 16);
    }
}

/// What a line holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Two inputs, `bf16`.
    Bf16,
    /// Two inputs, `f16`, the first for all outputs and then the second.
    F16,
    /// One input, `f32`.
    F32,
}

impl Kind {
    /// Lines of a panel over `inputs` inputs.
    pub(super) fn lines(self, inputs: usize) -> usize {
        match self {
            Kind::Bf16 | Kind::F16 => 2 * inputs.div_ceil(2),
            Kind::F32 => 2 * inputs,
        }
    }
}

/// How a panel is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Line after line of weights.
    Plain(Kind),
    /// Blocks of quantised weights.
    Blocks(Blocks),
}

impl Layout {
    /// Lines of a panel over `inputs` inputs.
    fn lines(self, inputs: usize) -> usize {
        match self {
            Layout::Plain(kind) => kind.lines(inputs),
            Layout::Blocks(blocks) => blocks.lines(inputs),
        }
    }

    /// For outputs of these types.
    fn of(mut dtypes: impl Iterator<Item = Dtype>) -> Self {
        let first = dtypes.next();
        match first.filter(|first| dtypes.all(|dtype| dtype == *first)) {
            Some(Dtype::Bf16) => Layout::Plain(Kind::Bf16),
            Some(Dtype::F16) => Layout::Plain(Kind::F16),
            Some(dtype) => Blocks::of(dtype).map_or(Layout::Plain(Kind::F32), Layout::Blocks),
            None => Layout::Plain(Kind::F32),
        }
    }
}

/// A matrix as it lies in the file, `[outputs, inputs]`, with a bias perhaps.
#[derive(Clone, Debug)]
pub(super) struct Matrix<'a> {
    pub(super) dtype: Dtype,
    pub(super) bytes: &'a [u8],
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    pub(super) bias: Option<Vec<f32>>,
}

impl<'a> Matrix<'a> {
    /// A matrix without bias.
    pub(super) fn new(tensor: &'a Tensor<'_>) -> Self {
        let (outputs, inputs) = match tensor.shape[..] {
            [outputs, inputs] => (outputs, inputs),
            ref other => (1, other.iter().product()),
        };
        Matrix { dtype: tensor.dtype, bytes: &tensor.bytes, outputs, inputs, bias: None }
    }

    /// A matrix with the bias that the model gives it.
    pub(super) fn linear(linear: &'a Linear<'_>) -> Self {
        Matrix { bias: linear.bias.as_ref().map(Tensor::to_f32), ..Matrix::new(&linear.weight) }
    }

    /// The bytes of one output's weights.
    fn row(&self, output: usize) -> &'a [u8] {
        let bytes = self.dtype.bytes(self.inputs);
        &self.bytes[output * bytes..][..bytes]
    }
}

/// A matrix ready to be multiplied with.
#[derive(Debug)]
pub(super) struct Packed {
    pub(super) inputs: usize,
    /// Outputs that mean something; the rest of the last panel is zero.
    pub(super) outputs: usize,
    /// Panel after panel.
    lines: Vec<Line>,
    /// Of each panel, where it starts.
    panels: Vec<(Layout, usize)>,
    /// `[panels, PANEL]`
    bias: Option<Vec<f32>>,
}

impl Packed {
    /// Matrices over the same inputs, one above the other.
    pub(super) fn stacked(pool: &Pool, parts: &[Matrix<'_>]) -> Self {
        let outputs = parts.iter().map(|part| part.outputs).sum();
        Self::pack(pool, parts, outputs, outputs.div_ceil(PANEL), |panel, lane| {
            let mut output = panel * PANEL + lane;
            for (at, part) in parts.iter().enumerate() {
                if output < part.outputs {
                    return Some((at, output));
                }
                output -= part.outputs;
            }
            None
        })
    }

    /// Two matrices of one shape, side by side: each panel has 16 outputs of the first, then the same 16 of
    /// the second.
    pub(super) fn paired(pool: &Pool, first: Matrix<'_>, second: Matrix<'_>) -> Self {
        let outputs = first.outputs;
        Self::pack(pool, &[first, second], outputs, outputs.div_ceil(LANES), |panel, lane| {
            let output = panel * LANES + lane % LANES;
            (output < outputs).then_some((lane / LANES, output))
        })
    }

    fn pack<F>(pool: &Pool, parts: &[Matrix<'_>], outputs: usize, panels: usize, place: F) -> Self
    where
        F: Fn(usize, usize) -> Option<(usize, usize)> + Sync,
    {
        let inputs = parts.first().map_or(0, |part| part.inputs);
        let mut end = 0;
        let panels: Vec<_> = (0..panels)
            .map(|panel| {
                let places = (0..PANEL).filter_map(|lane| place(panel, lane));
                let layout = Layout::of(places.map(|(part, _)| parts[part].dtype));
                let start = end;
                end += layout.lines(inputs);
                (layout, start)
            })
            .collect();
        let mut lines = vec![Line::default(); end];
        let mut rest = &mut lines[..];
        let mut open: Vec<_> = panels
            .iter()
            .map(|(layout, _)| rest.split_off_mut(..layout.lines(inputs)).unwrap_or_default())
            .collect();
        pool.units(&mut open, 1, &mut vec![(); pool.threads()], |(), panel, lines| {
            for lane in 0..PANEL {
                if let Some((part, output)) = place(panel, lane) {
                    fill(&mut *lines[0], panels[panel].0, lane, &parts[part], output);
                }
            }
        });
        let bias = parts.iter().any(|part| part.bias.is_some()).then(|| {
            let value = |at: usize| {
                let (part, output) = place(at / PANEL, at % PANEL)?;
                parts[part].bias.as_ref().map(|bias| bias[output])
            };
            (0..panels.len() * PANEL).map(|at| value(at).unwrap_or(0.0)).collect()
        });
        Packed { inputs, outputs, lines, panels, bias }
    }

    /// Panels.
    pub(super) fn panels(&self) -> usize {
        self.panels.len()
    }

    /// Whether any panel is of quantised weights.
    pub(super) fn has_blocks(&self) -> bool {
        self.panels.iter().any(|(layout, _)| matches!(layout, Layout::Blocks(_)))
    }

    /// Whether all panels are.
    pub(super) fn is_blocks(&self) -> bool {
        self.panels.iter().all(|(layout, _)| matches!(layout, Layout::Blocks(_)))
    }

    /// The lines of one panel, and how they are laid out.
    pub(super) fn panel(&self, panel: usize) -> (Layout, &[Line]) {
        let (layout, start) = self.panels[panel];
        (layout, &self.lines[start..][..layout.lines(self.inputs)])
    }

    /// The bias of one panel's outputs.
    pub(super) fn bias(&self, panel: usize) -> Option<&[f32]> {
        self.bias.as_ref().map(|bias| &bias[panel * PANEL..][..PANEL])
    }

    /// The weights of one output of a stacked matrix, as `f32`.
    pub(super) fn row(&self, output: usize, row: &mut [f32]) {
        let (layout, lines) = self.panel(output / PANEL);
        let half = output % PANEL / LANES;
        let lane = output % LANES;
        match layout {
            Layout::Blocks(blocks) => Isa::row(blocks, lines, output % PANEL, row),
            Layout::Plain(Kind::Bf16) => {
                for (pair, values) in row.chunks_mut(2).enumerate() {
                    let bits = lines[2 * pair + half].0[lane];
                    values[0] = f32::from_bits(bits << 16);
                    if let Some(odd) = values.get_mut(1) {
                        *odd = f32::from_bits(bits & 0xffff_0000);
                    }
                }
            }
            Layout::Plain(Kind::F16) => {
                for (input, value) in row.iter_mut().enumerate() {
                    *value = lines[input / 2 * 2 + half].half(input % 2 * LANES + lane);
                }
            }
            Layout::Plain(Kind::F32) => {
                for (input, value) in row.iter_mut().enumerate() {
                    *value = f32::from_bits(lines[2 * input + half].0[lane]);
                }
            }
        }
    }
}

/// Puts one output's weights into its lane of a panel.
fn fill(lines: &mut [Line], layout: Layout, lane: usize, matrix: &Matrix<'_>, output: usize) {
    let row = matrix.row(output);
    let kind = match layout {
        Layout::Plain(kind) => kind,
        Layout::Blocks(blocks) => return blocks.fill(lines, lane, row),
    };
    let lines = lines[lane / LANES..].iter_mut().step_by(2);
    let lane = lane % LANES;
    if kind == Kind::Bf16 {
        for (line, pair) in lines.zip(row.chunks(4)) {
            let mut bytes = [0; 4];
            bytes[..pair.len()].copy_from_slice(pair);
            line.0[lane] = u32::from_le_bytes(bytes);
        }
        return;
    }
    if kind == Kind::F16 {
        for (line, pair) in lines.zip(row.chunks(4)) {
            for (parity, half) in pair.as_chunks().0.iter().enumerate() {
                line.put_half(parity * LANES + lane, *half);
            }
        }
        return;
    }
    let (length, size) = matrix.dtype.block();
    let mut values = vec![0.0; length];
    let mut lines = lines;
    for block in row.chunks_exact(size) {
        matrix.dtype.widen(block, &mut values);
        for (value, line) in values.iter().zip(&mut lines) {
            line.0[lane] = value.to_bits();
        }
    }
}

/// Rows to look token ids up in, where the head is not there to look them up in: stored as in the file.
#[derive(Debug)]
pub(super) struct Table {
    dtype: Dtype,
    width: usize,
    bytes: Vec<u8>,
}

impl Table {
    /// A copy of the matrix.
    pub(super) fn new(matrix: &Matrix<'_>) -> Self {
        Table { dtype: matrix.dtype, width: matrix.inputs, bytes: matrix.bytes.to_vec() }
    }

    /// One row, as `f32`.
    pub(super) fn row(&self, index: usize, row: &mut [f32]) {
        let size = self.dtype.bytes(self.width);
        self.dtype.widen(&self.bytes[index * size..][..size], row);
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::super::isa::{Rows, TILE_ROWS};
    use super::super::multiply::Multiplier;
    use super::*;

    /// Zeros, subnormals, the largest, infinities, and NaNs quiet and signalling.
    const SPECIAL: [u16; 15] = [
        0x0000, 0x8000, 0x0001, 0x8001, 0x0200, 0x03ff, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x7c00, 0xfc00,
        0x7e00, 0x7c01, 0xfdab,
    ];

    fn noise(count: usize) -> Vec<f32> {
        (0..count).map(|at| (at as f32 * 1.37).sin()).collect()
    }

    /// Halves of every kind of a matrix: ordinary ones; all finite ones in no order; ordinary ones with a special
    /// one in every row.
    fn halves(outputs: usize, inputs: usize) -> [Vec<u16>; 3] {
        let ordinary: Vec<u16> =
            noise(outputs * inputs).into_iter().map(|value| f16::from_f32(value).to_bits()).collect();
        let any = |at: usize| (at * 40_503 + 77) as u16;
        let finite = (0..ordinary.len()).map(|at| if any(at) & 0x7c00 == 0x7c00 { 1 } else { any(at) });
        let mut special = ordinary.clone();
        for (output, row) in special.chunks_mut(inputs).enumerate() {
            row[output * 7 % inputs] = SPECIAL[output % SPECIAL.len()];
        }
        [ordinary.clone(), finite.collect(), special]
    }

    /// Of the values, all NaN alike: which of several comes out of a sum, Rust does not say.
    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| if value.is_nan() { u32::MAX } else { value.to_bits() }).collect()
    }

    fn products(packed: &Packed, isa: Isa, pool: &Pool, rows: Rows<'_>) -> [Vec<u32>; 3] {
        let multiplier = Multiplier { pool, isa };
        let mut stored = vec![1.0; rows.count * packed.panels() * PANEL];
        multiplier.store(packed, rows, &mut stored);
        let mut added = vec![1.0; stored.len()];
        multiplier.add(packed, rows, &mut added);
        let mut gated = vec![1.0; stored.len() / 2];
        multiplier.gated(packed, rows, &mut gated);
        [bits(&stored), bits(&added), bits(&gated)]
    }

    #[test]
    fn halves_give_the_bits_that_the_same_weights_in_f32_give() {
        let pool = Pool::new(2);
        for (outputs, inputs) in [(1, 1), (15, 2), (45, 37), (33, 64), (70, 131)] {
            let count = 2 * TILE_ROWS + 1;
            let mut x = noise(count * inputs);
            x[inputs] = f32::INFINITY;
            x[2 * inputs] = f32::MIN_POSITIVE / 4.0;
            for halves in halves(outputs, inputs) {
                let stored: Vec<u8> = halves.iter().copied().flat_map(u16::to_le_bytes).collect();
                let values: Vec<f32> = halves.iter().map(|&half| f16::from_bits(half).to_f32()).collect();
                let wide: Vec<u8> = values.iter().copied().flat_map(f32::to_le_bytes).collect();
                let matrix =
                    |dtype, bytes| Matrix { dtype, bytes, outputs, inputs, bias: Some(noise(outputs)) };
                let (half, single) = (matrix(Dtype::F16, &stored), matrix(Dtype::F32, &wide));
                let packed = [
                    Packed::stacked(&pool, &[half.clone(), half.clone()]),
                    Packed::paired(&pool, half.clone(), half),
                ];
                let expected = [
                    Packed::stacked(&pool, &[single.clone(), single.clone()]),
                    Packed::paired(&pool, single.clone(), single),
                ];
                for output in 0..outputs {
                    let mut row = vec![0.0; inputs];
                    packed[0].row(output, &mut row);
                    assert_eq!(bits(&row), bits(&values[output * inputs..][..inputs]));
                }
                for (packed, expected) in packed.iter().zip(&expected) {
                    for isa in Isa::all() {
                        for count in 1..=count {
                            let rows = Rows { values: &x, stride: inputs, count };
                            let [got, want] =
                                [packed, expected].map(|packed| products(packed, isa, &pool, rows));
                            assert!(got == want, "{isa:?}, {outputs} outputs, {inputs} inputs, {count} rows");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn every_half_is_multiplied_as_what_it_is() {
        let (pool, inputs) = (Pool::new(2), 2);
        let stored: Vec<u8> =
            (0..=u16::MAX).flat_map(|bits| [bits, !bits]).flat_map(u16::to_le_bytes).collect();
        let matrix = Matrix { dtype: Dtype::F16, bytes: &stored, outputs: 1 << 16, inputs, bias: None };
        let packed = Packed::stacked(&pool, &[matrix]);
        for isa in Isa::all() {
            for (x, invert) in [([1.0, 0.0], 0), ([0.0, 1.0], u16::MAX)] {
                let mut out = vec![0.0; 1 << 16];
                let rows = Rows { values: &x, stride: inputs, count: 1 };
                Multiplier { pool: &pool, isa }.store(&packed, rows, &mut out);
                for (at, got) in (0..=u16::MAX).zip(&out) {
                    // Of a half and its inverse only one can be infinite or not a number, and that times zero is none.
                    let half = |bits: u16| f16::from_bits(bits).to_f32();
                    let expected = half(at ^ invert) + 0.0 * half(!at ^ invert);
                    assert_eq!(bits(&[*got]), bits(&[expected + 0.0]), "{isa:?}, {at:#06x}");
                }
            }
        }
    }

    #[test]
    fn weights_of_16_bits_take_no_more_room_than_in_the_file_unless_a_panel_has_two_types() {
        let (pool, inputs) = (Pool::new(1), 6);
        let bytes = [bf16::ONE.to_le_bytes(), f16::ONE.to_le_bytes()];
        let bytes = bytes.map(|value| value.repeat(48 * inputs));
        let matrix = |dtype, bytes| Matrix { dtype, bytes, outputs: 48, inputs, bias: None };
        let parts = [matrix(Dtype::Bf16, &bytes[0]), matrix(Dtype::F16, &bytes[1])];
        let packed = Packed::stacked(&pool, &parts);
        let panels = (0..packed.panels()).map(|panel| packed.panel(panel));
        let panels: Vec<_> = panels.map(|(layout, lines)| (layout, size_of_val(lines))).collect();
        let stored = Dtype::F16.bytes(PANEL * inputs);
        let plain = |kind, size| (Layout::Plain(kind), size);
        assert_eq!(
            panels,
            [plain(Kind::Bf16, stored), plain(Kind::F32, 2 * stored), plain(Kind::F16, stored)]
        );
        let mut row = vec![0.0; inputs];
        for output in 0..96 {
            packed.row(output, &mut row);
            assert_eq!(bits(&row), bits(&vec![1.0; inputs]), "output {output}");
        }
    }
}
