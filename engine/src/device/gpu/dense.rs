//! Passes over many rows: bf16 rows through the matrix units, tile by tile.

use std::sync::Arc;

use super::buffers::Buffers;
use super::driver::{Buffer, Driver, Handle, Stream};
use super::forward::{Model, Rows, Shape, Waiting, at};
use super::kernels::{DENSE_ROWS, Dense, FLASH_DIM, FLASH_ROWS, Flash, Kernel, WIDE_THREADS};
use super::weights::Matrix;
use crate::device::DeviceError;

/// Rows that go through a layer at a time, at most.
pub(super) const MOST_ROWS: usize = 2048;

/// Where many rows are on their way; made for the first dense pass and kept.
pub(super) struct Wide {
    /// Rows that there is room for, whole tiles.
    room: usize,
    /// The first row's position, then the rows' token ids.
    inputs: Buffer,
    pub(super) x: Buffer,
    /// bf16.
    normed: Buffer,
    attended: Buffer,
    gated: Buffer,
    pub(super) partial: Buffer,
    q: Buffer,
}

impl Wide {
    /// Room for `rows` rows of a model.
    pub(super) fn new(
        driver: &Arc<dyn Driver>,
        model: &Model,
        rows: usize,
        on: Handle,
    ) -> Result<Self, DeviceError> {
        let room = rows.next_multiple_of(DENSE_ROWS);
        let Shape { width, heads, head_dim, attended, inner, .. } = model.shape;
        let outputs = model.layers.iter().flat_map(|layer| [&layer.qkv, &layer.o, &layer.down]);
        let outputs = outputs.map(|matrix| matrix.outputs).max().unwrap_or(0);
        // Zeros, so that what pads a row or a tile is a number.
        let new = |bytes| Buffer::zeroed(driver, room * bytes, "a dense pass", on);
        Ok(Wide {
            room,
            inputs: Buffer::zeroed(driver, (1 + room) * 4, "a dense pass", on)?,
            x: new(width * 4)?,
            normed: new(width * 2)?,
            attended: new(attended * 2)?,
            gated: new(inner * 2)?,
            partial: new(outputs * 4)?,
            q: new(heads * head_dim * 4)?,
        })
    }

    /// Whether `rows` rows fit.
    pub(super) fn fits(&self, rows: usize) -> bool {
        rows <= self.room
    }
}

/// What goes into a dense pass.
#[derive(Clone, Copy)]
pub(super) enum Enter<'a> {
    /// Token ids.
    Tokens(&'a [u32]),
    /// Hidden state, `[rows, width]`.
    Hidden(&'a [f32]),
}

impl Model {
    /// Whether the dense kernels can run this model.
    pub(super) fn is_wide(&self) -> bool {
        self.shape.head_dim <= FLASH_DIM
    }

    /// Appends rows from position `start` on. What waits then is to be added to `wide.x`.
    pub(super) fn dense(
        &self,
        enter: Enter<'_>,
        start: usize,
        wide: &Wide,
        buffers: &Buffers,
        cache: &Buffer,
        stream: &Stream,
    ) -> Result<(usize, Waiting), DeviceError> {
        let on = stream.handle();
        let Shape { width, .. } = self.shape;
        wide.inputs.write(0, &[start as u32], on)?;
        let rows = match enter {
            Enter::Tokens(tokens) => {
                wide.inputs.write(size_of::<u32>(), tokens, on)?;
                let Some(table) = &self.embedding else {
                    return Err(DeviceError::BadPass("token ids for a part without the embedding".into()));
                };
                let ids = wide.inputs.at() + size_of::<u32>() as u64;
                self.enter(Some(table), None, &wide.x, ids, buffers, tokens.len(), on)?;
                tokens.len()
            }
            Enter::Hidden(values) => {
                wide.x.write(0, values, on)?;
                values.len() / width
            }
        };
        let stream = Rows { x: &wide.x, partial: &wide.partial, rows };
        let mut waiting = Waiting::default();
        for (number, layer) in self.layers.iter().enumerate() {
            let keys = cache.at() + (2 * number * self.cache_bytes()) as u64;
            self.norm(Some(&layer.input_norm), waiting, stream, 0..rows, (&wide.normed, true), on)?;
            self.multiply_dense(&layer.qkv, &wide.normed, &wide.partial, rows, on)?;
            self.rotate(layer, (&wide.partial, 1), &wide.q, wide.inputs.at(), keys, rows, on)?;
            self.flash(wide, keys, start, rows, on)?;
            self.multiply_dense(&layer.o, &wide.attended, &wide.partial, rows, on)?;
            waiting = Waiting { splits: 1, width: layer.o.outputs, bias: at(layer.o_bias.as_ref()) };
            self.norm(Some(&layer.post_norm), waiting, stream, 0..rows, (&wide.normed, true), on)?;
            let (gate_up, bias) = (&layer.gate_up, at(layer.gate_up_bias.as_ref()));
            let argument = self.argument(gate_up, &wide.normed, &wide.gated, rows, bias);
            self.tiles(Kernel::DenseGated, gate_up, argument, on)?;
            self.multiply_dense(&layer.down, &wide.gated, &wide.partial, rows, on)?;
            waiting = Waiting { splits: 1, width: layer.down.outputs, bias: at(layer.down_bias.as_ref()) };
        }
        Ok((rows, waiting))
    }

    fn flash(
        &self,
        wide: &Wide,
        keys: u64,
        start: usize,
        rows: usize,
        on: Handle,
    ) -> Result<(), DeviceError> {
        let Shape { heads, kv_heads, head_dim, attended, .. } = self.shape;
        let flash = Flash {
            q: wide.q.at(),
            keys,
            values: keys + self.cache_bytes() as u64,
            out: wide.attended.at(),
            start: start as u32,
            rows: rows as u32,
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            head_dim: head_dim as u32,
            width: attended as u32,
        };
        let kernel = match head_dim {
            ..=32 => Kernel::Flash32,
            33..=64 => Kernel::Flash64,
            _ => Kernel::Flash128,
        };
        self.kernels.launch(kernel, [rows.div_ceil(FLASH_ROWS), heads, 1], WIDE_THREADS, flash, on)
    }

    fn multiply_dense(
        &self,
        matrix: &Matrix,
        x: &Buffer,
        out: &Buffer,
        rows: usize,
        on: Handle,
    ) -> Result<(), DeviceError> {
        self.tiles(Kernel::DenseRows, matrix, self.argument(matrix, x, out, rows, 0), on)
    }

    fn argument(&self, matrix: &Matrix, x: &Buffer, out: &Buffer, rows: usize, bias: u64) -> Dense {
        Dense {
            out: out.at(),
            x: x.at(),
            weights: matrix.at(),
            bias,
            outputs: matrix.outputs as u32,
            width: matrix.width as u32,
            w_planes: matrix.planes as u32,
            rows: rows as u32,
            out_width: self.shape.inner as u32,
        }
    }

    fn tiles(&self, kernel: Kernel, matrix: &Matrix, argument: Dense, on: Handle) -> Result<(), DeviceError> {
        let rows = (argument.rows as usize).div_ceil(DENSE_ROWS);
        let outputs = matrix.outputs.div_ceil(self.kernels.dense_outputs());
        self.kernels.launch(kernel, [rows, outputs, 1], WIDE_THREADS, argument, on)
    }
}
