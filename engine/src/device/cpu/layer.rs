//! One decoder layer, top to bottom: norm, attention, norm, gated MLP, each added to the residual stream.

#![forbid(unsafe_code)]

use super::attention::{Angles, Scratch, attend};
use super::blocks::GROUP;
use super::cache::Head;
use super::fixed::Fixed;
use super::isa::{Isa, Rows, TILE_ROWS};
use super::multiply::{Multiplier, Operand};
use super::packed::{LANES, Matrix, PANEL, Packed};
use super::pool::Pool;
use crate::model::{Config, LayerWeights, Tensor};

/// A layer's weights.
#[derive(Debug)]
pub(super) struct Layer {
    input_norm: Vec<f32>,
    /// Queries, keys and values of all heads, one above the other.
    qkv: Packed,
    q_norm: Option<Vec<f32>>,
    k_norm: Option<Vec<f32>>,
    o: Packed,
    post_norm: Vec<f32>,
    gate_up: Packed,
    down: Packed,
}

/// Numbers that all layers of a model share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Width of the residual stream, and of its rows in buffers: padded to whole panels.
    pub(super) hidden: usize,
    pub(super) padded: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) intermediate: usize,
    pub(super) epsilon: f32,
}

impl Shape {
    /// Of a model.
    pub(super) fn new(config: &Config) -> Self {
        Shape {
            hidden: config.hidden,
            padded: config.hidden.next_multiple_of(PANEL),
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            intermediate: config.intermediate,
            epsilon: config.norm_epsilon,
        }
    }

    /// Width of the query heads that share a key-value head: they lie side by side.
    fn group(&self) -> usize {
        self.heads / self.kv_heads * self.head_dim
    }

    /// Width of a row of queries, keys and values.
    fn qkv(&self) -> usize {
        ((self.heads + 2 * self.kv_heads) * self.head_dim).next_multiple_of(PANEL)
    }
}

/// Room for what a pass computes on its way, kept between passes.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// The residual stream, `[rows, padded]`.
    pub(super) stream: Vec<f32>,
    /// `[rows, padded]`
    pub(super) normed: Vec<f32>,
    qkv: Vec<f32>,
    /// `[rows, heads * head_dim]`
    attended: Vec<f32>,
    /// `[rows, intermediate]`, padded to whole lanes.
    gated: Vec<f32>,
    /// What is attended, and then what is gated, where that comes in fixed point: `[rows, width / 32]`.
    fixed: Vec<Fixed>,
    /// One a thread.
    scratch: Vec<Scratch>,
}

impl Buffers {
    /// Room for `rows` rows on `threads` threads.
    pub(super) fn reserve(&mut self, shape: &Shape, rows: usize, threads: usize) {
        for (buffer, width) in [
            (&mut self.stream, shape.padded),
            (&mut self.normed, shape.padded),
            (&mut self.qkv, shape.qkv()),
            (&mut self.attended, shape.heads * shape.head_dim),
            (&mut self.gated, shape.intermediate.next_multiple_of(LANES)),
        ] {
            buffer.resize(rows * width, 0.0);
        }
        self.scratch.resize_with(threads, Scratch::default);
    }
}

/// What a pass gives to each of its layers.
#[derive(Clone, Copy)]
pub(super) struct Step<'a> {
    pub(super) pool: &'a Pool,
    pub(super) isa: Isa,
    pub(super) shape: &'a Shape,
    pub(super) angles: &'a Angles,
    /// The position of the first row.
    pub(super) start: usize,
    pub(super) rows: usize,
}

impl Layer {
    /// Packs a layer's weights.
    pub(super) fn pack(pool: &Pool, weights: &LayerWeights<'_>) -> Self {
        let linear = Matrix::linear;
        Layer {
            input_norm: weights.input_norm.to_f32(),
            qkv: Packed::stacked(pool, &[linear(&weights.q), linear(&weights.k), linear(&weights.v)]),
            q_norm: weights.q_norm.as_ref().map(Tensor::to_f32),
            k_norm: weights.k_norm.as_ref().map(Tensor::to_f32),
            o: Packed::stacked(pool, &[linear(&weights.o)]),
            post_norm: weights.post_norm.to_f32(),
            gate_up: Packed::paired(pool, linear(&weights.gate), linear(&weights.up)),
            down: Packed::stacked(pool, &[linear(&weights.down)]),
        }
    }

    /// Takes the residual stream through the layer and writes the rows' keys and values.
    pub(super) fn forward(&self, step: &Step<'_>, heads: &mut [Head], buffers: &mut Buffers) {
        let Step { shape, rows: count, .. } = *step;
        let Buffers { stream, normed, qkv, attended, gated, fixed, scratch } = buffers;
        let multiplier = Multiplier { pool: step.pool, isa: step.isa };
        let gated_width = shape.intermediate.next_multiple_of(LANES);

        step.norm(stream, &self.input_norm, normed);
        multiplier.store(&self.qkv, Rows { values: normed, stride: shape.padded, count }, qkv);
        self.append(step, heads, qkv, scratch);
        let width = shape.heads * shape.head_dim;
        if multiplier.fixes(&self.o) && shape.group().is_multiple_of(GROUP) {
            let fixed = of_length(fixed, count * width / GROUP);
            self.attend_fixed(step, heads, qkv, scratch, fixed);
            multiplier.add(&self.o, Operand::Fixed(fixed), stream);
        } else {
            self.attend(step, heads, qkv, scratch, attended);
            multiplier.add(&self.o, Rows { values: attended, stride: width, count }, stream);
        }

        step.norm(stream, &self.post_norm, normed);
        let rows = Rows { values: normed, stride: shape.padded, count };
        if multiplier.fixes(&self.down) {
            let fixed = of_length(fixed, count * shape.intermediate / GROUP);
            multiplier.gated_fixed(&self.gate_up, rows, fixed);
            multiplier.add(&self.down, Operand::Fixed(fixed), stream);
        } else {
            multiplier.gated(&self.gate_up, rows, gated);
            multiplier.add(&self.down, Rows { values: gated, stride: gated_width, count }, stream);
        }
    }

    /// Writes the rows' keys, normed and turned, and values behind the cache.
    fn append(&self, step: &Step<'_>, heads: &mut [Head], qkv: &[f32], scratch: &mut [Scratch]) {
        let Shape { head_dim, kv_heads, .. } = *step.shape;
        let put = |key: &mut Vec<f32>, number: usize, head: &mut Head| {
            key.resize(head_dim, 0.0);
            for (row, qkv) in qkv.chunks(step.shape.qkv()).enumerate() {
                let keys = &qkv[step.shape.heads * head_dim..];
                step.place(row, &keys[number * head_dim..][..head_dim], self.k_norm.as_deref(), key);
                let value = &keys[(kv_heads + number) * head_dim..][..head_dim];
                head.put(step.start + row, key, value);
            }
        };
        if step.rows > TILE_ROWS {
            step.pool.units(heads, 1, scratch, |scratch, number, heads| {
                put(&mut scratch.queries, number, &mut heads[0]);
            });
        } else if let [scratch, ..] = scratch {
            heads.iter_mut().enumerate().for_each(|(number, head)| put(&mut scratch.queries, number, head));
        }
    }

    /// Attention of every row and head over the cache and the rows before.
    fn attend(
        &self,
        step: &Step<'_>,
        heads: &[Head],
        qkv: &[f32],
        scratch: &mut [Scratch],
        attended: &mut [f32],
    ) {
        step.pool.units(attended, step.shape.group(), scratch, |scratch, number, out| {
            self.attend_group(step, heads, qkv, scratch, (number, out));
        });
    }

    /// The same in fixed point, by whoever attended.
    fn attend_fixed(
        &self,
        step: &Step<'_>,
        heads: &[Head],
        qkv: &[f32],
        scratch: &mut [Scratch],
        attended: &mut [Fixed],
    ) {
        let group = step.shape.group();
        step.pool.units(attended, group / GROUP, scratch, |scratch, number, out| {
            let mut attended = std::mem::take(&mut scratch.attended);
            attended.resize(group, 0.0);
            self.attend_group(step, heads, qkv, scratch, (number, &mut attended));
            step.isa.fix(&attended, out);
            scratch.attended = attended;
        });
    }

    /// Attention of group `number`, counted through the rows: the query heads of a row that share a key-value head.
    fn attend_group(
        &self,
        step: &Step<'_>,
        heads: &[Head],
        qkv: &[f32],
        scratch: &mut Scratch,
        (number, out): (usize, &mut [f32]),
    ) {
        let Shape { head_dim, kv_heads, .. } = *step.shape;
        let group = step.shape.group();
        let (row, kv_head) = (number / kv_heads, number % kv_heads);
        scratch.queries.resize(group, 0.0);
        let queries = &qkv[row * step.shape.qkv() + kv_head * group..][..group];
        for (query, placed) in queries.chunks(head_dim).zip(scratch.queries.chunks_mut(head_dim)) {
            step.place(row, query, self.q_norm.as_deref(), placed);
        }
        attend(step.isa, &heads[kv_head], step.start + row + 1, head_dim, scratch, out);
    }
}

/// The first `length`, all of which will be written: what is there already is left as it is.
fn of_length(fixed: &mut Vec<Fixed>, length: usize) -> &mut [Fixed] {
    if fixed.len() < length {
        fixed.resize(length, Fixed::ZERO);
    }
    &mut fixed[..length]
}

impl Step<'_> {
    /// A head's query or key of one row, normed where the model wants it and turned to its position.
    fn place(&self, row: usize, head: &[f32], norm: Option<&[f32]>, placed: &mut [f32]) {
        match norm {
            Some(norm) => self.isa.rms_norm(head, norm, self.shape.epsilon, placed),
            None => placed.copy_from_slice(head),
        }
        self.angles.turn(self.start + row, placed);
    }

    /// Norms every row of `[rows, padded]`.
    pub(super) fn norm(&self, rows: &[f32], weight: &[f32], normed: &mut [f32]) {
        let Shape { hidden, padded, epsilon, .. } = *self.shape;
        let norm = |row: usize, out: &mut [f32]| {
            self.isa.rms_norm(&rows[row * padded..][..hidden], weight, epsilon, &mut out[..hidden]);
        };
        // A few rows take less time than waking the other threads for them.
        if rows.len() / padded > TILE_ROWS {
            let mut scratch = vec![(); self.pool.threads()];
            self.pool.units(normed, padded, &mut scratch, |(), row, out| norm(row, out));
        } else {
            normed.chunks_mut(padded).enumerate().for_each(|(row, out)| norm(row, out));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cache::Cache;
    use super::*;

    fn wave(at: usize, by: f32) -> f32 {
        ((at + 1) as f32 * by).sin() * 2.0
    }

    #[test]
    fn what_is_attended_in_fixed_point_is_what_would_be_fixed_later() {
        let (start, epsilon) = (3, 1e-5);
        for isa in Isa::all().into_iter().filter(|isa| isa.fixes()) {
            for threads in [1, 2, 3, 7] {
                let pool = Pool::new(threads);
                let none = || Packed::stacked(&pool, &[]);
                let layer = Layer {
                    input_norm: Vec::new(),
                    qkv: none(),
                    q_norm: None,
                    k_norm: None,
                    o: none(),
                    post_norm: Vec::new(),
                    gate_up: none(),
                    down: none(),
                };
                // One room for all shapes: what an earlier one left in it must not count.
                let mut scratch = Vec::new();
                scratch.resize_with(threads, Scratch::default);
                // Groups of 160, 64, 96, 32 and 160.
                for (heads, kv_heads, head_dim) in
                    [(6, 3, 80), (8, 1, 8), (9, 3, 32), (1, 1, 32), (10, 2, 32)]
                {
                    let (hidden, intermediate) = (heads * head_dim, 0);
                    let shape =
                        Shape { hidden, padded: hidden, heads, kv_heads, head_dim, intermediate, epsilon };
                    let mut angles = Angles::new((1..=head_dim / 2).map(|at| 1.0 / at as f32).collect());
                    angles.reach(start + 20);
                    for rows in [1, 2, 5, 7, 20] {
                        let mut cache = Cache::new(1, kv_heads, head_dim, 64);
                        cache.reserve(start + rows);
                        for (number, head) in cache.layer(0).iter_mut().enumerate() {
                            for position in 0..start + rows {
                                let values = |by| -> Vec<f32> {
                                    let first = (number * 64 + position) * head_dim;
                                    (first..first + head_dim).map(|at| wave(at, by)).collect()
                                };
                                head.put(position, &values(0.37), &values(1.13));
                            }
                        }
                        let step = Step { pool: &pool, isa, shape: &shape, angles: &angles, start, rows };
                        let qkv: Vec<f32> = (0..rows * shape.qkv()).map(|at| wave(at, 0.71)).collect();
                        let mut attended = vec![f32::NAN; rows * hidden];
                        layer.attend(&step, cache.layer(0), &qkv, &mut scratch, &mut attended);
                        let mut expected = vec![Fixed::ZERO; attended.len() / GROUP];
                        isa.fix(&attended, &mut expected);
                        let mut fixed = vec![Fixed::ZERO; expected.len()];
                        layer.attend_fixed(&step, cache.layer(0), &qkv, &mut scratch, &mut fixed);
                        assert_eq!(fixed, expected, "{threads} threads, {rows} rows, {shape:?}");
                        assert!(fixed.iter().all(|fixed| fixed.unit > 0.0), "{shape:?}");
                    }
                }
            }
        }
    }
}
