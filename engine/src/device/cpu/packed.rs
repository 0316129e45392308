//! Weights in the order in which they are read.
//!
//! A panel holds 32 outputs. For each pair of inputs it has two lines of 64 bytes, one for each half of its
//! outputs; a line of `bf16` holds both inputs of a pair for 16 outputs (low half the even input, high half
//! the odd one), so that one load, a shift and a mask give two vectors of `f32`. Wider types take one line
//! for each input. A pass reads each panel front to back once, whatever its rows: one sequential stream.

#![forbid(unsafe_code)]

use half::f16;

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

/// What a line holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Two inputs, `bf16`.
    Bf16,
    /// One input, `f32`.
    F32,
}

impl Kind {
    /// Lines of a panel over `inputs` inputs.
    pub(super) fn lines(self, inputs: usize) -> usize {
        match self {
            Kind::Bf16 => 2 * inputs.div_ceil(2),
            Kind::F32 => 2 * inputs,
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
    pub(super) fn new(tensor: &Tensor<'a>) -> Self {
        let (outputs, inputs) = match tensor.shape[..] {
            [outputs, inputs] => (outputs, inputs),
            ref other => (1, other.iter().product()),
        };
        Matrix { dtype: tensor.dtype, bytes: tensor.bytes, outputs, inputs, bias: None }
    }

    /// A matrix with the bias that the model gives it.
    pub(super) fn linear(linear: &Linear<'a>) -> Self {
        Matrix { bias: linear.bias.as_ref().map(Tensor::to_f32), ..Matrix::new(&linear.weight) }
    }

    /// The bytes of one output's weights.
    fn row(&self, output: usize) -> &'a [u8] {
        let bytes = self.inputs * size(self.dtype);
        &self.bytes[output * bytes..][..bytes]
    }
}

/// A matrix ready to be multiplied with.
#[derive(Debug)]
pub(super) struct Packed {
    pub(super) kind: Kind,
    pub(super) inputs: usize,
    /// Outputs that mean something; the rest of the last panel is zero.
    pub(super) outputs: usize,
    /// `[panels, lines of a panel]`
    lines: Vec<Line>,
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
        let bf16 = parts.iter().all(|part| part.dtype == Dtype::Bf16);
        let kind = if bf16 { Kind::Bf16 } else { Kind::F32 };
        let mut lines = vec![Line::default(); panels * kind.lines(inputs)];
        pool.units(
            &mut lines,
            kind.lines(inputs).max(1),
            &mut vec![(); pool.threads()],
            |(), panel, lines| {
                for lane in 0..PANEL {
                    if let Some((part, output)) = place(panel, lane) {
                        fill(lines, kind, lane, &parts[part], output);
                    }
                }
            },
        );
        let bias = parts.iter().any(|part| part.bias.is_some()).then(|| {
            let value = |at: usize| {
                let (part, output) = place(at / PANEL, at % PANEL)?;
                parts[part].bias.as_ref().map(|bias| bias[output])
            };
            (0..panels * PANEL).map(|at| value(at).unwrap_or(0.0)).collect()
        });
        Packed { kind, inputs, outputs, lines, bias }
    }

    /// Panels.
    pub(super) fn panels(&self) -> usize {
        self.lines.len() / self.kind.lines(self.inputs).max(1)
    }

    /// The lines of one panel.
    pub(super) fn panel(&self, panel: usize) -> &[Line] {
        let lines = self.kind.lines(self.inputs);
        &self.lines[panel * lines..][..lines]
    }

    /// The bias of one panel's outputs.
    pub(super) fn bias(&self, panel: usize) -> Option<&[f32]> {
        self.bias.as_ref().map(|bias| &bias[panel * PANEL..][..PANEL])
    }

    /// The weights of one output of a stacked matrix, as `f32`.
    pub(super) fn row(&self, output: usize, row: &mut [f32]) {
        let lines = self.panel(output / PANEL);
        let half = output % PANEL / LANES;
        let lane = output % LANES;
        match self.kind {
            Kind::Bf16 => {
                for (pair, values) in row.chunks_mut(2).enumerate() {
                    let bits = lines[2 * pair + half].0[lane];
                    values[0] = f32::from_bits(bits << 16);
                    if let Some(odd) = values.get_mut(1) {
                        *odd = f32::from_bits(bits & 0xffff_0000);
                    }
                }
            }
            Kind::F32 => {
                for (input, value) in row.iter_mut().enumerate() {
                    *value = f32::from_bits(lines[2 * input + half].0[lane]);
                }
            }
        }
    }
}

/// Puts one output's weights into its lane of a panel.
fn fill(lines: &mut [Line], kind: Kind, lane: usize, matrix: &Matrix<'_>, output: usize) {
    let row = matrix.row(output);
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
    let values = row.chunks_exact(size(matrix.dtype)).map(|bytes| widen(matrix.dtype, bytes));
    for (line, value) in lines.zip(values) {
        line.0[lane] = value.to_bits();
    }
}

/// Bytes of a value.
fn size(dtype: Dtype) -> usize {
    match dtype {
        Dtype::Bf16 | Dtype::F16 => 2,
        Dtype::F32 => 4,
    }
}

/// One value as `f32`, exactly.
fn widen(dtype: Dtype, bytes: &[u8]) -> f32 {
    match (dtype, bytes) {
        (Dtype::Bf16, &[low, high]) => f32::from_bits(u32::from(u16::from_le_bytes([low, high])) << 16),
        (Dtype::F16, &[low, high]) => f16::from_le_bytes([low, high]).to_f32(),
        (Dtype::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        _ => 0.0,
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
        let size = size(self.dtype);
        let bytes = &self.bytes[index * self.width * size..][..self.width * size];
        for (value, bytes) in row.iter_mut().zip(bytes.chunks_exact(size)) {
            *value = widen(self.dtype, bytes);
        }
    }
}
