//! A decoder's passes, as launches on a stream.

#![allow(clippy::too_many_arguments, clippy::struct_field_names, reason = "the kernels' own")]

use std::ops::Range;
use std::sync::Arc;

use super::buffers::{Ahead, Buffers, Ids, Out, Steps};
use super::driver::{Buffer, Driver, Handle, Stream};
use super::kernels::{
    ADD_OUTPUTS, ADD_THREADS, Accept, Add, Argmax, Attend, EMBED_PARTS, Embed, FEW_K, FEW_OUTPUTS,
    FEW_THREADS, Few, KEY_DIM, Kernel, Kernels, MAX_ROWS, NORM_WIDTH, Norm, QUERIES, Qkv, ROTATE_HEADS,
    Rotate,
};
use super::weights::{COLUMNS, Head, Layer, Matrix, STEP, values_on, vector};
use crate::device::{DeviceError, Part};
use crate::model::{Checkpoint, Config};

/// Blocks that keep a large GPU's memory busy. A constant: the order of sums must not depend on the device.
const BUSY: usize = 256;
/// Splits of a sum at most: the next kernel has to add them.
const MOST_SPLITS: usize = 16;
/// Bytes of the next matrix to ask for as one ends. On an H200 0 to 4 MiB made no difference, more was slower.
const AHEAD: usize = 2 << 20;
/// What one such request brings.
const AHEAD_LINE: u32 = 128;
/// Rows of a pass whose queries are turned by every block of attention that needs them. For more that takes longer than a
/// kernel of its own.
const TURNED_ROWS: usize = 2;
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
pub(super) fn splits(matrix: &Matrix) -> usize {
    let blocks = matrix.outputs / FEW_OUTPUTS;
    // A wave's share of k should be two steps at least.
    (BUSY / blocks.max(1)).min(matrix.steps() / (2 * FEW_K)).clamp(1, MOST_SPLITS)
}

/// What to ask for of the matrix that is read next.
fn ahead(next: Option<&Matrix>) -> (u64, u32) {
    next.map_or((0, 0), |next| (next.at(), next.bytes().min(AHEAD) as u32))
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
        ahead: &Ahead,
        cache: &Buffer,
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        let (rows, on) = (steps.rows, stream.handle());
        let ids =
            Ids { start: buffers.inputs.at(), tokens: buffers.tokens_in(), chosen: buffers.tokens.at() };
        match &steps.out {
            Out::Proposed(count) => {
                buffers.ahead_host.upload(&ahead.ids, Ahead::CHOSEN, on)?;
                for pass in 0..*count {
                    let (from, rows) =
                        if pass == 0 { (Ahead::TOKENS, rows) } else { (Ahead::CHOSEN + pass - 1, 1) };
                    let steps = Steps { rows, out: Out::Tokens(rows - 1..rows), ..steps.clone() };
                    let ids = Ids {
                        start: ahead.id(pass),
                        tokens: ahead.id(from),
                        chosen: ahead.id(Ahead::CHOSEN + pass),
                    };
                    self.pass(&steps, ids, buffers, cache, on)?;
                }
                Ok(())
            }
            Out::Accepted => {
                buffers.inputs_host.upload(&buffers.inputs, 2, on)?;
                let steps = Steps { out: Out::Tokens(0..rows), ..steps.clone() };
                self.pass(&steps, ids, buffers, cache, on)?;
                let accept = Accept {
                    said: ids.chosen,
                    proposed: ids.tokens + size_of::<u32>() as u64,
                    accepted: ids.chosen + (MAX_ROWS * size_of::<u32>()) as u64,
                    count: rows as u32 - 1,
                };
                self.kernels.launch(Kernel::Accept, [1, 1, 1], 32, accept, on)?;
                buffers.tokens_host.download(&buffers.tokens, 1 + MAX_ROWS, on)
            }
            out => {
                buffers.inputs_host.upload(&buffers.inputs, 1 + rows, on)?;
                self.pass(steps, ids, buffers, cache, on)?;
                match out {
                    Out::Tokens(wanted) | Out::Logits(wanted) => {
                        buffers.tokens_host.download(&buffers.tokens, wanted.len(), on)
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// One pass, from where its inputs are on the device to where its answer is.
    fn pass(
        &self,
        steps: &Steps,
        ids: Ids,
        buffers: &Buffers,
        cache: &Buffer,
        on: Handle,
    ) -> Result<(), DeviceError> {
        let (rows, Shape { width, .. }) = (steps.rows, self.shape);
        if steps.hidden {
            buffers.x_host.upload(&buffers.x, rows * width, on)?;
        }
        let table = self.embedding.as_ref().filter(|_| !steps.hidden);
        let head_norm = self.head.as_ref().map(|head| &head.norm);
        let norm = self.layers.first().map(|layer| &layer.input_norm).or(head_norm);
        self.enter(table, norm, &buffers.x, ids.tokens, buffers, rows, on)?;
        for number in 0..self.layers.len() {
            let keys = cache.at() + (2 * number * self.cache_bytes()) as u64;
            self.layer(number, steps, ids, buffers, keys, on)?;
        }
        match &steps.out {
            Out::Hidden => buffers.x_host.download(&buffers.x, rows * width, on),
            Out::Tokens(wanted) | Out::Logits(wanted) => {
                let planes = buffers.normed.at() + (wanted.start * width * 2) as u64;
                let squares = buffers.squares.at() + (wanted.start * self.square_parts() * 4) as u64;
                self.head(planes, squares, wanted.len(), ids.chosen, buffers, on)
            }
            Out::Nothing | Out::Proposed(_) | Out::Accepted => Ok(()),
        }
    }

    /// How rows come in: from a table by their token ids, else as they are in `x`. With a norm they are normed but for
    /// the scale, as [`add`](Self::add) leaves them.
    pub(super) fn enter(
        &self,
        table: Option<&Matrix>,
        norm: Option<&Buffer>,
        x: &Buffer,
        tokens: u64,
        buffers: &Buffers,
        rows: usize,
        on: Handle,
    ) -> Result<(), DeviceError> {
        let parts = self.square_parts();
        let embed = Embed {
            x: x.at(),
            tokens,
            table: table.map_or(0, Matrix::at),
            norm: at(norm),
            out: buffers.normed.at(),
            squares: buffers.squares.at(),
            width: self.shape.width as u32,
            w_planes: table.map_or(0, |table| table.planes) as u32,
            square_parts: parts as u32,
        };
        self.kernels.launch(Kernel::Embed, [rows, parts.div_ceil(EMBED_PARTS), 1], 256, embed, on)
    }

    /// A layer over normed rows that are still to be scaled; so are those that it leaves.
    fn layer(
        &self,
        number: usize,
        steps: &Steps,
        ids: Ids,
        buffers: &Buffers,
        keys: u64,
        on: Handle,
    ) -> Result<(), DeviceError> {
        let layer = &self.layers[number];
        let next = self.layers.get(number + 1);
        let Shape { heads, kv_heads, head_dim, attended, inner, .. } = self.shape;
        let Steps { rows, chunks, .. } = *steps;
        let (normed, squares, splits) = (buffers.normed.at(), buffers.squares.at(), splits(&layer.qkv));
        let qkv = self.few_argument(&layer.qkv, Some(&layer.o), normed, squares, rows, splits);
        self.few_rows(Few { out: buffers.partial.at(), ..qkv }, on)?;
        let turns = rows <= TURNED_ROWS;
        if !turns {
            self.rotate(layer, (&buffers.partial, splits), &buffers.q, ids.start, keys, rows, on)?;
        }
        // Few queries a block while there are too few blocks for all of the device, more when the cache is long.
        let queries = rows * heads / kv_heads;
        let most = if head_dim > KEY_DIM { QUERIES / 2 } else { QUERIES };
        let few = QUERIES / 2;
        let together = if queries.div_ceil(few) * chunks * kv_heads > BUSY { most } else { few };
        let attend = Attend {
            together: together as u32,
            qkv: self.qkv(layer, (&buffers.partial, splits), ids.start, rows),
            q: if turns { 0 } else { buffers.q.at() },
            keys,
            values: keys + self.cache_bytes() as u64,
            sums: buffers.chunk_sums.at(),
            stats: buffers.chunk_stats.at(),
            planes: buffers.attended.at(),
            done: buffers.chunks_done.at(),
            chunks: chunks as u32,
            width: attended as u32,
        };
        self.kernels.launch(
            Kernel::Attend,
            [kv_heads, chunks, queries.div_ceil(together)],
            256,
            attend,
            on,
        )?;
        let (o, bias) = (&layer.o, layer.o_bias.as_ref());
        let post_norm = Some(&layer.post_norm);
        self.add(o, bias, Some(&layer.gate_up), post_norm, &buffers.attended, buffers, rows, on)?;
        let gate_up = &layer.gate_up;
        let gated = Few {
            out: buffers.gated.at(),
            bias: at(layer.gate_up_bias.as_ref()),
            out_width: inner as u32,
            ..self.few_argument(gate_up, Some(&layer.down), normed, squares, rows, 1)
        };
        let kernel = if rows <= 8 { Kernel::Gated8 } else { Kernel::Gated16 };
        let blocks = [gate_up.outputs / FEW_OUTPUTS, 1, 1];
        self.kernels.launch(kernel, blocks, FEW_THREADS as usize, gated, on)?;
        let (down, bias) = (&layer.down, layer.down_bias.as_ref());
        let (next_matrix, next_norm) = match next {
            Some(next) => (Some(&next.qkv), Some(&next.input_norm)),
            None => (self.head_weights(), self.head.as_ref().map(|head| &head.norm)),
        };
        self.add(down, bias, next_matrix, next_norm, &buffers.gated, buffers, rows, on)
    }

    /// Norm, head and argmax of the wanted rows, at most [`MAX_ROWS`]; their token ids go to `chosen`.
    pub(super) fn leave(
        &self,
        waiting: Waiting,
        stream: Rows<'_>,
        wanted: Range<usize>,
        chosen: u64,
        buffers: &Buffers,
        on: Handle,
    ) -> Result<(), DeviceError> {
        let (count, norm) = (wanted.len(), self.head.as_ref().map(|head| &head.norm));
        self.norm(norm, waiting, stream, wanted, (&buffers.normed, false), on)?;
        self.head(buffers.normed.at(), 0, count, chosen, buffers, on)
    }

    /// Head and argmax of `count` normed rows.
    fn head(
        &self,
        planes: u64,
        squares: u64,
        count: usize,
        chosen: u64,
        buffers: &Buffers,
        on: Handle,
    ) -> Result<(), DeviceError> {
        let Some(weights) = self.head_weights() else {
            return Err(DeviceError::BadPass("token ids from a part without the head".into()));
        };
        let few = self.few_argument(weights, None, planes, squares, count, 1);
        self.few_rows(Few { out: buffers.logits.at(), ..few }, on)?;
        let parts = self.shape.vocab.div_ceil(ARGMAX).min(32);
        let argmax = Argmax {
            logits: buffers.logits.at(),
            tokens: chosen,
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
        start: u64,
        keys: u64,
        rows: usize,
        on: Handle,
    ) -> Result<(), DeviceError> {
        let qkv = self.qkv(layer, (partial, splits), start, rows);
        let rotate = Rotate { qkv, q: q.at(), keys, values: keys + self.cache_bytes() as u64 };
        let heads = self.shape.heads + 2 * self.shape.kv_heads;
        self.kernels.launch(Kernel::Rotate, [rows, heads.div_ceil(ROTATE_HEADS), 1], 128, rotate, on)
    }

    /// What becomes of the sums of queries, keys and values in `partial`.
    fn qkv(&self, layer: &Layer, (partial, splits): (&Buffer, usize), start: u64, rows: usize) -> Qkv {
        let Shape { heads, kv_heads, head_dim, epsilon, .. } = self.shape;
        Qkv {
            partial: partial.at(),
            bias: at(layer.qkv_bias.as_ref()),
            q_norm: at(layer.q_norm.as_ref()),
            k_norm: at(layer.k_norm.as_ref()),
            cosines: self.cosines.at(),
            sines: self.sines.at(),
            start,
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            head_dim: head_dim as u32,
            splits: splits as u32,
            rows: rows as u32,
            partial_width: layer.qkv.outputs as u32,
            epsilon,
            // Scores are powers of two, so that the softmax is `exp2`.
            scale: std::f32::consts::LOG2_E / (head_dim as f32).sqrt(),
        }
    }

    /// Sums of squares of a row.
    pub(super) fn square_parts(&self) -> usize {
        self.shape.width.next_multiple_of(FEW_OUTPUTS) / ADD_OUTPUTS
    }

    fn few_argument(
        &self,
        matrix: &Matrix,
        next: Option<&Matrix>,
        planes: u64,
        squares: u64,
        rows: usize,
        splits: usize,
    ) -> Few {
        let (ahead, ahead_bytes) = ahead(next);
        Few {
            planes,
            weights: matrix.at(),
            squares,
            ahead,
            ahead_bytes,
            ahead_line: AHEAD_LINE,
            outputs: matrix.outputs as u32,
            width: matrix.width as u32,
            w_planes: matrix.planes as u32,
            rows: rows as u32,
            splits: splits as u32,
            square_parts: self.square_parts() as u32,
            hidden: self.shape.hidden as u32,
            epsilon: self.shape.epsilon,
            ..Few::default()
        }
    }

    /// Sums of a matrix by split.
    fn few_rows(&self, few: Few, on: Handle) -> Result<(), DeviceError> {
        let kernel = if few.rows <= 8 { Kernel::Few8 } else { Kernel::Few16 };
        let blocks = [few.outputs as usize / FEW_OUTPUTS, few.splits as usize, 1];
        self.kernels.launch(kernel, blocks, FEW_THREADS as usize, few, on)
    }

    /// Adds a matrix's products to the residual stream, and leaves it normed by `norm` but for the scale.
    fn add(
        &self,
        matrix: &Matrix,
        bias: Option<&Buffer>,
        next: Option<&Matrix>,
        norm: Option<&Buffer>,
        planes: &Buffer,
        buffers: &Buffers,
        rows: usize,
        on: Handle,
    ) -> Result<(), DeviceError> {
        let (ahead, ahead_bytes) = ahead(next);
        let add = Add {
            x: buffers.x.at(),
            out: buffers.normed.at(),
            squares: buffers.squares.at(),
            planes: planes.at(),
            weights: matrix.at(),
            bias: at(bias),
            norm: at(norm),
            ahead,
            ahead_bytes,
            ahead_line: AHEAD_LINE,
            outputs: matrix.outputs as u32,
            width: matrix.width as u32,
            w_planes: matrix.planes as u32,
            rows: rows as u32,
            x_width: self.shape.width as u32,
        };
        let kernel = if rows <= 8 { Kernel::Add8 } else { Kernel::Add16 };
        self.kernels.launch(kernel, [matrix.outputs / ADD_OUTPUTS, 1, 1], ADD_THREADS, add, on)
    }
}
