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
        lanes::widen(self.0[at / 2] >> (at % 2 * 16) & 0xffff)
    }

    /// One of the two sixteens of halves in the line.
    #[inline]
    pub(super) fn halves(&self, which: usize) -> Lanes {
        let mut halves = [0; LANES];
        for (pair, bits) in halves.chunks_exact_mut(2).zip(&self.0[which * LANES / 2..]) {
            (pair[0], pair[1]) = (bits & 0xffff, bits >> 16);
        }
        let mut values = [0.0; LANES];
        for (value, half) in values.iter_mut().zip(halves) {
            *value = lanes::widen(half);
        }
        values
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
