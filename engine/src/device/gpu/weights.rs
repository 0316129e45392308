//! Weights on the device: bf16 rows, padded with zeros, uploaded once from the mapped file.
//!
//! What bf16 cannot hold is the sum of planes: f16 of two, f32 of three. The planes of a row follow each other,
//! so that a row with planes is only a longer row to the matrix kernels.

use std::sync::Arc;

use half::{bf16, f16};

use super::driver::{Buffer, Driver, Handle};
use super::kernels::FEW_OUTPUTS;
use crate::device::DeviceError;
use crate::model::{Dtype, LayerWeights, Linear, Tensor};

/// Inputs that a step of the matrix kernels takes.
pub(super) const STEP: usize = 32;
/// Gate and up columns of a block of the matrix kernels.
pub(super) const COLUMNS: usize = FEW_OUTPUTS / 2;
/// Bytes that are packed on the host at a time, about.
const PACKED_AT_ONCE: usize = 16 << 20;

/// A matrix as the kernels read it: `[outputs, planes, width]` bf16.
pub(super) struct Matrix {
    buffer: Buffer,
    /// Rows, with those that are padding.
    pub(super) outputs: usize,
    /// Inputs, padded.
    pub(super) width: usize,
    /// bf16 planes of a value.
    pub(super) planes: usize,
}

impl Matrix {
    /// Uploads `parts`, one above the other, each padded to a multiple of `each` rows and all of them to a
    /// multiple of `all`; inputs padded to a multiple of `inputs`.
    pub(super) fn upload(
        driver: &Arc<dyn Driver>,
        on: Handle,
        parts: &[&Tensor<'_>],
        (each, all, inputs): (usize, usize, usize),
    ) -> Result<Self, DeviceError> {
        // The matrix units take no quantised blocks: those are widened.
        let parts: Vec<_> = parts.iter().map(|part| part.plain()).collect();
        let planes = parts.iter().map(|part| planes(part.dtype)).max().unwrap_or(1);
        let columns = parts.iter().map(|part| part.shape[1]).max().unwrap_or(0);
        let width = columns.next_multiple_of(inputs);
        let rows = |part: &Tensor<'_>| part.shape[0].next_multiple_of(each);
        let outputs = parts.iter().map(rows).sum::<usize>().next_multiple_of(all);
        let row_bytes = planes * width * 2;
        let buffer = Buffer::zeroed(driver, outputs * row_bytes, "weights", on)?;
        let mut offset = 0;
        for part in &parts {
            let straight = part.dtype == Dtype::Bf16 && planes == 1 && width == part.shape[1];
            if straight {
                buffer.write(offset, &part.bytes, on)?;
            } else {
                let at_once = (PACKED_AT_ONCE / row_bytes.max(1)).max(1);
                let mut packed: Vec<u16> = Vec::new();
                let row = part.shape[1] * stored(part.dtype);
                for (number, rows) in part.bytes.chunks(at_once * row).enumerate() {
                    packed.clear();
                    packed.resize(rows.len() / row * planes * width, 0);
                    for (from, to) in rows.chunks(row).zip(packed.chunks_mut(planes * width)) {
                        pack(part.dtype, from, to, width);
                    }
                    buffer.write(offset + number * at_once * row_bytes, &packed, on)?;
                }
            }
            offset += rows(part) * row_bytes;
        }
        Ok(Matrix { buffer, outputs, width, planes })
    }

    /// Where it lies.
    pub(super) fn at(&self) -> u64 {
        self.buffer.at()
    }

    /// Its length.
    pub(super) fn bytes(&self) -> usize {
        self.buffer.bytes()
    }

    /// Steps of 32 inputs.
    pub(super) fn steps(&self) -> usize {
        self.planes * self.width / 32
    }
}

/// Uploads parts of a vector as f32, each padded to a multiple of `each` values.
pub(super) fn vector(
    driver: &Arc<dyn Driver>,
    on: Handle,
    parts: &[&Tensor<'_>],
    each: usize,
) -> Result<Buffer, DeviceError> {
    let mut values = Vec::new();
    for part in parts {
        values.extend(part.to_f32());
        values.resize(values.len().next_multiple_of(each), 0.0);
    }
    values_on(driver, on, &values)
}

/// Uploads f32 values.
pub(super) fn values_on(driver: &Arc<dyn Driver>, on: Handle, values: &[f32]) -> Result<Buffer, DeviceError> {
    let buffer = Buffer::new(driver, size_of_val(values), "weights")?;
    buffer.write(0, values, on)?;
    Ok(buffer)
}

fn planes(dtype: Dtype) -> usize {
    match dtype {
        Dtype::Bf16 => 1,
        Dtype::F16 => 2,
        _ => 3,
    }
}

fn stored(dtype: Dtype) -> usize {
    match dtype {
        Dtype::Bf16 | Dtype::F16 => 2,
        _ => 4,
    }
}

/// Splits one row's values into planes of `width`.
fn pack(dtype: Dtype, from: &[u8], to: &mut [u16], width: usize) {
    let mut put = |at: usize, value: f32| {
        let mut rest = value;
        for plane in to.chunks_mut(width) {
            let part = bf16::from_f32(rest);
            plane[at] = part.to_bits();
            rest -= part.to_f32();
        }
    };
    match dtype {
        Dtype::Bf16 => {
            for (at, &pair) in from.as_chunks().0.iter().enumerate() {
                put(at, bf16::from_le_bytes(pair).to_f32());
            }
        }
        Dtype::F16 => {
            for (at, &pair) in from.as_chunks().0.iter().enumerate() {
                put(at, f16::from_le_bytes(pair).to_f32());
            }
        }
        _ => {
            for (at, &quad) in from.as_chunks().0.iter().enumerate() {
                put(at, f32::from_le_bytes(quad));
            }
        }
    }
}

/// One layer's.
pub(super) struct Layer {
    pub(super) input_norm: Buffer,
    pub(super) qkv: Matrix,
    pub(super) qkv_bias: Option<Buffer>,
    pub(super) q_norm: Option<Buffer>,
    pub(super) k_norm: Option<Buffer>,
    pub(super) o: Matrix,
    pub(super) o_bias: Option<Buffer>,
    pub(super) post_norm: Buffer,
    pub(super) gate_up: Matrix,
    pub(super) gate_up_bias: Option<Buffer>,
    pub(super) down: Matrix,
    pub(super) down_bias: Option<Buffer>,
}

/// What follows the last layer.
pub(super) struct Head {
    pub(super) norm: Buffer,
    /// `None`: the embedding.
    pub(super) weights: Option<Matrix>,
}

impl Layer {
    /// Uploads them.
    pub(super) fn upload(
        driver: &Arc<dyn Driver>,
        on: Handle,
        weights: &LayerWeights<'_>,
    ) -> Result<Self, DeviceError> {
        let matrix = |linear: &Linear<'_>, inputs| {
            Matrix::upload(driver, on, &[&linear.weight], (1, FEW_OUTPUTS, inputs))
        };
        let bias = |parts: &[&Linear<'_>], each| -> Result<Option<Buffer>, DeviceError> {
            let parts: Vec<_> = parts.iter().filter_map(|linear| linear.bias.as_ref()).collect();
            if parts.is_empty() { Ok(None) } else { Ok(Some(vector(driver, on, &parts, each)?)) }
        };
        let norm = |tensor| vector(driver, on, &[tensor], FEW_OUTPUTS);
        let (q, k, v) = (&weights.q, &weights.k, &weights.v);
        Ok(Layer {
            input_norm: norm(&weights.input_norm)?,
            qkv: Matrix::upload(driver, on, &[&q.weight, &k.weight, &v.weight], (1, FEW_OUTPUTS, STEP))?,
            qkv_bias: bias(&[q, k, v], 1)?,
            q_norm: weights.q_norm.as_ref().map(norm).transpose()?,
            k_norm: weights.k_norm.as_ref().map(norm).transpose()?,
            o: matrix(&weights.o, STEP)?,
            o_bias: bias(&[&weights.o], FEW_OUTPUTS)?,
            post_norm: norm(&weights.post_norm)?,
            gate_up: Matrix::upload(
                driver,
                on,
                &[&weights.gate.weight, &weights.up.weight],
                (COLUMNS, FEW_OUTPUTS, STEP),
            )?,
            gate_up_bias: bias(&[&weights.gate, &weights.up], COLUMNS)?,
            down: matrix(&weights.down, COLUMNS)?,
            down_bias: bias(&[&weights.down], FEW_OUTPUTS)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_add_up_to_the_value() {
        let values = [1.0_f32, -0.333_333_34, 1e-3, 123_456.79, -7.25e-6, 0.0];
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut packed = vec![0; 3 * 32];
        pack(Dtype::F32, &bytes, &mut packed, 32);
        for (at, value) in values.iter().enumerate() {
            let sum: f32 = (0..3).rev().map(|plane| bf16::from_bits(packed[plane * 32 + at]).to_f32()).sum();
            assert_eq!(sum.to_bits(), value.to_bits());
        }
        let halves = [1.0_f32, 0.333, -65504.0, 6.1e-5].map(f16::from_f32);
        let bytes: Vec<u8> = halves.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut packed = vec![0; 2 * 32];
        pack(Dtype::F16, &bytes, &mut packed, 32);
        for (at, value) in halves.iter().enumerate() {
            let sum = bf16::from_bits(packed[at]).to_f32() + bf16::from_bits(packed[32 + at]).to_f32();
            assert_eq!(sum.to_bits(), value.to_f32().to_bits());
        }
    }
}
