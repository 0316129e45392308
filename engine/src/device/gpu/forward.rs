//! A decoder's passes, as launches on a stream.

#![allow(clippy::too_many_arguments, clippy::struct_field_names, reason = "the kernels' own")]

use std::ops::Range;
use std::sync::Arc;

use super::driver::{Buffer, Driver, Handle, Pinned, Stream};
use super::kernels::{
    Argmax, Attend, CHUNK, Embed, FEW_K, FEW_OUTPUTS, FEW_THREADS, Few, Kernel, Kernels, MAX_ROWS,
    NORM_WIDTH, Norm, PLANES, Rotate,
};
use super::weights::{Matrix, values_on, vector};
use crate::device::{DeviceError, Part};
use crate::model::{Checkpoint, Config, LayerWeights, Linear};

/// Inputs that a step of the matrix kernels takes.
const STEP: usize = 32;
/// Gate and up columns of a block of the matrix kernels.
const COLUMNS: usize = FEW_OUTPUTS / 2;
/// Blocks that keep a large GPU's memory busy. A constant: the order of sums must not depend on the device.
const BUSY: usize = 256;
/// Splits of a sum at most: the next kernel has to add them.
const MOST_SPLITS: usize = 16;
/// Bytes of the next matrix to ask for while small kernels run: what helped most on an H200, of 4 to 32 MiB.
const AHEAD: usize = 8 << 20;
/// What one such request brings.
const AHEAD_LINE: u32 = 128;
/// Logits that one block of `argmax` takes.
const ARGMAX: usize = 8192;

/// Numbers that all layers of a model share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) hidden: usize,
    /// Width of the residual stream's rows.
    pub(super) width: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    /// Width of a row of attended values.
    pub(super) attended: usize,
    /// Width of a row of gated values.
    pub(super) inner: usize,
    pub(super) vocab: usize,
    epsilon: f32,
}

impl Shape {
    /// Of a model, if the kernels can run it.
    pub(super) fn new(device: &str, config: &Config) -> Result<Self, DeviceError> {
        let shape = Shape {
            hidden: config.hidden,
            width: config.hidden.next_multiple_of(STEP),
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            attended: (config.heads * config.head_dim).next_multiple_of(STEP),
            inner: config.intermediate.next_multiple_of(COLUMNS),
            vocab: config.vocab,
            epsilon: config.norm_epsilon,
        };
        let unfit = |why: String| Err(DeviceError::Unfit { device: device.to_owned(), why });
        if !config.head_dim.is_multiple_of(4) || config.head_dim > 256 {
            return unfit(format!(
                "heads {} wide; they take a multiple of 4 of at most 256",
                config.head_dim
            ));
        }
        if shape.width > NORM_WIDTH {
            return unfit(format!("a hidden width of {}; they take {NORM_WIDTH}", config.hidden));
        }
        Ok(shape)
    }

    /// Values of one position in a layer's keys, and as many in its values.
    pub(super) fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

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

pub(super) struct Head {
    pub(super) norm: Buffer,
    /// `None`: the embedding.
    weights: Option<Matrix>,
}

/// A part of a model on a device.
pub(super) struct Model {
    pub(super) part: Part,
    pub(super) shape: Shape,
    pub(super) kernels: Arc<Kernels>,
    pub(super) embedding: Option<Matrix>,
    pub(super) layers: Vec<Layer>,
    head: Option<Head>,
    cosines: Buffer,
    sines: Buffer,
}

/// Where a pass's rows are on their way, kept between passes.
pub(super) struct Buffers {
    /// The first row's position, then the rows' token ids.
    pub(super) inputs: Buffer,
    pub(super) inputs_host: Pinned<u32>,
    /// The residual stream, `[MAX_ROWS, width]`.
    pub(super) x: Buffer,
    pub(super) x_host: Pinned<f32>,
    /// Planes of normed, attended and gated rows.
    normed: Buffer,
    attended: Buffer,
    gated: Buffer,
    /// Sums of the last matrix, by split.
    partial: Buffer,
    q: Buffer,
    chunk_sums: Buffer,
    chunk_stats: Buffer,
    /// `[MAX_ROWS, vocab]`, padded.
    pub(super) logits: Buffer,
    tops: Buffer,
    ids: Buffer,
    pub(super) tokens: Buffer,
    pub(super) tokens_host: Pinned<u32>,
}

/// What a pass over at most [`MAX_ROWS`] rows is to do; equal ones are the same launches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Steps {
    pub(super) rows: usize,
    /// Whether token ids come in, rather than hidden state.
    pub(super) tokens: bool,
    /// Chunks of the cache that attention looks at, at least those in use.
    pub(super) chunks: usize,
    pub(super) out: Out,
}

/// What comes back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Out {
    /// Nothing: only the cache grows.
    Nothing,
    /// The residual stream.
    Hidden,
    /// The token ids of these rows.
    Tokens(Range<usize>),
    /// Those, and the logits are left on the device.
    Logits(Range<usize>),
}

/// Where a residual stream is, and sums that may be added to it.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) x: &'a Buffer,
    pub(super) partial: &'a Buffer,
    pub(super) rows: usize,
}

/// The sums of the last matrix that wait to be added to the residual stream.
#[derive(Clone, Copy, Default)]
pub(super) struct Waiting {
    pub(super) splits: usize,
    pub(super) width: usize,
    pub(super) bias: u64,
}

pub(super) fn at(buffer: Option<&Buffer>) -> u64 {
    buffer.map_or(0, Buffer::at)
}

/// Splits of a matrix's sums: by its shape only.
fn splits(matrix: &Matrix) -> usize {
    let blocks = matrix.outputs / FEW_OUTPUTS;
    // A wave's share of k should be two steps at least.
    (BUSY / blocks.max(1)).min(matrix.steps() / (2 * FEW_K)).clamp(1, MOST_SPLITS)
}

/// What to ask for of the matrix that is read next.
fn ahead(next: Option<&Matrix>) -> (u64, u32) {
    next.map_or((0, 0), |next| (next.at(), next.bytes().min(AHEAD) as u32))
}

impl Layer {
    fn upload(driver: &Arc<dyn Driver>, on: Handle, weights: &LayerWeights<'_>) -> Result<Self, DeviceError> {
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

impl Model {
    /// Uploads a part's weights.
    pub(super) fn upload(
        driver: &Arc<dyn Driver>,
        kernels: &Arc<Kernels>,
        on: Handle,
        checkpoint: &Checkpoint,
        part: Part,
    ) -> Result<Self, DeviceError> {
        let config = checkpoint.config();
        let shape = Shape::new(driver.name(), config)?;
        let table = |tensor| Matrix::upload(driver, on, &[&tensor], (1, FEW_OUTPUTS, STEP));
        let tied = part.head && config.tied;
        let embedding = if part.embedding || tied { Some(table(checkpoint.embedding()?)?) } else { None };
        let head = if part.head {
            let weights = if tied { None } else { Some(table(checkpoint.head()?)?) };
            Some(Head { norm: vector(driver, on, &[&checkpoint.final_norm()?], FEW_OUTPUTS)?, weights })
        } else {
            None
        };
        let layers = part.layers.clone().map(|layer| Layer::upload(driver, on, &checkpoint.layer(layer)?));
        let layers = layers.collect::<Result<_, DeviceError>>()?;
        let frequencies = config.rope.frequencies(config.head_dim);
        // As the models' own code: the angle is rounded to f32 before the cosine is taken.
        let angles: Vec<f32> = (0..part.context)
            .flat_map(|position| frequencies.iter().map(move |frequency| position as f32 * frequency))
            .collect();
        let cosines: Vec<f32> = angles.iter().map(|angle| angle.cos()).collect();
        let sines: Vec<f32> = angles.iter().map(|angle| angle.sin()).collect();
        Ok(Model {
            part,
            shape,
            kernels: Arc::clone(kernels),
            embedding,
            layers,
            head,
            cosines: values_on(driver, on, &cosines)?,
            sines: values_on(driver, on, &sines)?,
        })
    }

    fn head_weights(&self) -> Option<&Matrix> {
        let head = self.head.as_ref()?;
        head.weights.as_ref().or(self.embedding.as_ref())
    }

    /// Width of a row of logits on the device.
    pub(super) fn logits_width(&self) -> usize {
        self.head_weights().map_or(0, |weights| weights.outputs)
    }

    /// Bytes of a layer's keys, and as many of its values.
    pub(super) fn cache_bytes(&self) -> usize {
        self.part.context * self.shape.kv_width() * size_of::<f32>()
    }

    /// Does a pass's work, later. `cache` holds each layer's keys, then its values.
    pub(super) fn few(
        &self,
        steps: &Steps,
        buffers: &Buffers,
        cache: &Buffer,
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        let (rows, on) = (steps.rows, stream.handle());
        let Shape { width, .. } = self.shape;
        buffers.inputs_host.upload(&buffers.inputs, 1 + rows, on)?;
        if let Some(table) = self.embedding.as_ref().filter(|_| steps.tokens) {
            let embed = Embed {
                x: buffers.x.at(),
                tokens: buffers.tokens_in(),
                table: table.at(),
                width: width as u32,
                w_planes: table.planes as u32,
            };
            self.kernels.launch(Kernel::Embed, [rows, 1, 1], 256, embed, on)?;
        } else {
            buffers.x_host.upload(&buffers.x, rows * width, on)?;
        }
        let stream_rows = Rows { x: &buffers.x, partial: &buffers.partial, rows };
        let mut waiting = Waiting::default();
        for (number, layer) in self.layers.iter().enumerate() {
            let keys = cache.at() + (2 * number * self.cache_bytes()) as u64;
            let next = self.layers.get(number + 1).map(|layer| &layer.qkv);
            waiting = self.layer(layer, next.or(self.head_weights()), waiting, steps, buffers, keys, on)?;
        }
        match &steps.out {
            Out::Nothing => Ok(()),
            Out::Hidden => {
                if waiting.splits > 0 {
                    self.norm(None, waiting, stream_rows, 0..rows, (&buffers.normed, false), on)?;
                }
                buffers.x_host.download(&buffers.x, rows * width, on)
            }
            Out::Tokens(wanted) | Out::Logits(wanted) => {
                self.leave(waiting, stream_rows, wanted.clone(), buffers, on)?;
                buffers.tokens_host.download(&buffers.tokens, wanted.len(), on)
            }
        }
    }

    fn layer(
        &self,
        layer: &Layer,
        next: Option<&Matrix>,
        waiting: Waiting,
        steps: &Steps,
        buffers: &Buffers,
        keys: u64,
        on: Handle,
    ) -> Result<Waiting, DeviceError> {
        let Shape { heads, kv_heads, head_dim, attended, inner, .. } = self.shape;
        let stream = Rows { x: &buffers.x, partial: &buffers.partial, rows: steps.rows };
        let Steps { rows, chunks, .. } = *steps;
        self.norm(Some(&layer.input_norm), waiting, stream, 0..rows, (&buffers.normed, false), on)?;
        let splits =
            self.multiply(&layer.qkv, Some(&layer.o), &buffers.normed, &buffers.partial, rows, on)?;
        let values = keys + self.cache_bytes() as u64;
        self.rotate(layer, (&buffers.partial, splits), &buffers.q, &buffers.inputs, keys, rows, on)?;
        let attend = Attend {
            q: buffers.q.at(),
            keys,
            values,
            sums: buffers.chunk_sums.at(),
            stats: buffers.chunk_stats.at(),
            planes: buffers.attended.at(),
            start: buffers.inputs.at(),
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            head_dim: head_dim as u32,
            chunks: chunks as u32,
            width: attended as u32,
        };
        self.kernels.launch(Kernel::Attend, [kv_heads, chunks, rows], 256, attend, on)?;
        if chunks > 1 {
            self.kernels.launch(Kernel::Merge, [rows, heads, 1], 64, attend, on)?;
        }
        let splits =
            self.multiply(&layer.o, Some(&layer.gate_up), &buffers.attended, &buffers.partial, rows, on)?;
        let waiting = Waiting { splits, width: layer.o.outputs, bias: at(layer.o_bias.as_ref()) };
        self.norm(Some(&layer.post_norm), waiting, stream, 0..rows, (&buffers.normed, false), on)?;
        let gate_up = &layer.gate_up;
        let (ahead, ahead_bytes) = ahead(Some(&layer.down));
        let few = Few {
            out: buffers.gated.at(),
            planes: buffers.normed.at(),
            weights: gate_up.at(),
            bias: at(layer.gate_up_bias.as_ref()),
            ahead,
            ahead_bytes,
            ahead_line: AHEAD_LINE,
            outputs: gate_up.outputs as u32,
            width: gate_up.width as u32,
            w_planes: gate_up.planes as u32,
            rows: rows as u32,
            splits: 1,
            out_width: inner as u32,
        };
        let kernel = if rows <= 8 { Kernel::Gated8 } else { Kernel::Gated16 };
        let blocks = [gate_up.outputs / FEW_OUTPUTS, 1, 1];
        self.kernels.launch(kernel, blocks, FEW_THREADS as usize, few, on)?;
        let splits = self.multiply(&layer.down, next, &buffers.gated, &buffers.partial, rows, on)?;
        Ok(Waiting { splits, width: layer.down.outputs, bias: at(layer.down_bias.as_ref()) })
    }

    /// Norm, head and argmax of the wanted rows, at most [`MAX_ROWS`].
    pub(super) fn leave(
        &self,
        waiting: Waiting,
        stream: Rows<'_>,
        wanted: Range<usize>,
        buffers: &Buffers,
        on: Handle,
    ) -> Result<(), DeviceError> {
        let (Some(head), Some(weights)) = (&self.head, self.head_weights()) else {
            return Err(DeviceError::BadPass("token ids from a part without the head".into()));
        };
        let count = wanted.len();
        self.norm(Some(&head.norm), waiting, stream, wanted, (&buffers.normed, false), on)?;
        self.few_rows(weights, None, &buffers.normed, &buffers.logits, count, 1, on)?;
        let parts = self.shape.vocab.div_ceil(ARGMAX).min(32);
        let argmax = Argmax {
            logits: buffers.logits.at(),
            tokens: buffers.tokens.at(),
            tops: buffers.tops.at(),
            ids: buffers.ids.at(),
            vocab: self.shape.vocab as u32,
            stride: weights.outputs as u32,
            parts: parts as u32,
        };
        self.kernels.launch(Kernel::Argmax, [count, parts, 1], 1024, argmax, on)?;
        if parts > 1 {
            self.kernels.launch(Kernel::Choose, [count, 1, 1], 32, argmax, on)?;
        }
        Ok(())
    }

    /// Adds what waits to the residual stream; with a weight, the norm of the `wanted` rows to `normed`.
    pub(super) fn norm(
        &self,
        weight: Option<&Buffer>,
        waiting: Waiting,
        stream: Rows<'_>,
        wanted: Range<usize>,
        (normed, dense): (&Buffer, bool),
        on: Handle,
    ) -> Result<(), DeviceError> {
        let Shape { hidden, width, epsilon, .. } = self.shape;
        let threads = (width / 4).next_multiple_of(32).min(1024);
        let norm = Norm {
            x: stream.x.at(),
            partial: stream.partial.at(),
            bias: waiting.bias,
            weight: at(weight),
            planes: normed.at(),
            hidden: hidden as u32,
            width: width as u32,
            partial_width: waiting.width as u32,
            splits: waiting.splits as u32,
            rows: stream.rows as u32,
            first: wanted.start as u32,
            threads: threads as u32,
            dense: u32::from(dense),
            epsilon,
        };
        self.kernels.launch(Kernel::Norm, [wanted.len(), 1, 1], threads, norm, on)
    }

    /// Turns queries and keys of `rows` rows and appends to the cache; sums come from `partial`.
    pub(super) fn rotate(
        &self,
        layer: &Layer,
        (partial, splits): (&Buffer, usize),
        q: &Buffer,
        start: &Buffer,
        keys: u64,
        rows: usize,
        on: Handle,
    ) -> Result<(), DeviceError> {
        let Shape { heads, kv_heads, head_dim, epsilon, .. } = self.shape;
        let rotate = Rotate {
            partial: partial.at(),
            bias: at(layer.qkv_bias.as_ref()),
            q_norm: at(layer.q_norm.as_ref()),
            k_norm: at(layer.k_norm.as_ref()),
            cosines: self.cosines.at(),
            sines: self.sines.at(),
            q: q.at(),
            keys,
            values: keys + self.cache_bytes() as u64,
            start: start.at(),
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            head_dim: head_dim as u32,
            splits: splits as u32,
            rows: rows as u32,
            partial_width: layer.qkv.outputs as u32,
            epsilon,
            // Scores are powers of two, so that the softmax is `exp2`.
            scale: std::f32::consts::LOG2_E / (head_dim as f32).sqrt(),
        };
        self.kernels.launch(Kernel::Rotate, [rows, heads + 2 * kv_heads, 1], 128, rotate, on)
    }

    /// Sums of a matrix by split, to `out`; answers how many splits.
    fn multiply(
        &self,
        matrix: &Matrix,
        next: Option<&Matrix>,
        planes: &Buffer,
        out: &Buffer,
        rows: usize,
        on: Handle,
    ) -> Result<usize, DeviceError> {
        let splits = splits(matrix);
        self.few_rows(matrix, next, planes, out, rows, splits, on)?;
        Ok(splits)
    }

    fn few_rows(
        &self,
        matrix: &Matrix,
        next: Option<&Matrix>,
        planes: &Buffer,
        out: &Buffer,
        rows: usize,
        splits: usize,
        on: Handle,
    ) -> Result<(), DeviceError> {
        let (ahead, ahead_bytes) = ahead(next);
        let few = Few {
            out: out.at(),
            planes: planes.at(),
            weights: matrix.at(),
            bias: 0,
            ahead,
            ahead_bytes,
            ahead_line: AHEAD_LINE,
            outputs: matrix.outputs as u32,
            width: matrix.width as u32,
            w_planes: matrix.planes as u32,
            rows: rows as u32,
            splits: splits as u32,
            out_width: 0,
        };
        let kernel = if rows <= 8 { Kernel::Few8 } else { Kernel::Few16 };
        let blocks = [matrix.outputs / FEW_OUTPUTS, splits, 1];
        self.kernels.launch(kernel, blocks, FEW_THREADS as usize, few, on)
    }
}

impl Buffers {
    /// Room for a model's passes.
    pub(super) fn new(driver: &Arc<dyn Driver>, model: &Model, on: Handle) -> Result<Self, DeviceError> {
        let Shape { width, heads, head_dim, attended, inner, .. } = model.shape;
        let new = |bytes| Buffer::zeroed(driver, bytes, "a pass", on);
        let planes = |width| new(PLANES * MAX_ROWS * width * 2);
        let sums = |matrix: &Matrix| splits(matrix) * MAX_ROWS * matrix.outputs * 4;
        let layers = model.layers.iter().flat_map(|layer| [&layer.qkv, &layer.o, &layer.down]);
        let chunks = model.part.context.div_ceil(CHUNK).next_power_of_two();
        let values = MAX_ROWS * heads * chunks * 4;
        Ok(Buffers {
            inputs: new((1 + MAX_ROWS) * 4)?,
            inputs_host: Pinned::new(driver, 1 + MAX_ROWS)?,
            x: new(MAX_ROWS * width * 4)?,
            x_host: Pinned::new(driver, MAX_ROWS * width)?,
            normed: planes(width)?,
            attended: planes(attended)?,
            gated: planes(inner)?,
            partial: new(layers.map(sums).max().unwrap_or(0))?,
            q: new(MAX_ROWS * heads * head_dim * 4)?,
            chunk_sums: new(values * head_dim)?,
            chunk_stats: new(values * 2)?,
            logits: new(MAX_ROWS * model.logits_width() * 4)?,
            tops: new(MAX_ROWS * 32 * 4)?,
            ids: new(MAX_ROWS * 32 * 4)?,
            tokens: new(MAX_ROWS * 4)?,
            tokens_host: Pinned::new(driver, MAX_ROWS)?,
        })
    }

    /// Where the rows' token ids are.
    fn tokens_in(&self) -> u64 {
        self.inputs.at() + size_of::<u32>() as u64
    }
}
