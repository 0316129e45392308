//! Rotary positions and attention over the cache.

#![forbid(unsafe_code)]

use super::cache::Head;
use super::isa::{Isa, Rows, Tile};
use super::multiply::blocks;
use super::packed::{Kind, PANEL};

/// Cosines and sines of the positions met so far.
#[derive(Debug)]
pub(super) struct Angles {
    /// Radians per position of each pair of a head's values.
    frequencies: Vec<f32>,
    /// `[positions, head_dim / 2]` pairs of cosine and sine, all cosines of a position first.
    table: Vec<f32>,
}

impl Angles {
    /// Of a model's frequencies.
    pub(super) fn new(frequencies: Vec<f32>) -> Self {
        Angles { frequencies, table: Vec::new() }
    }

    /// Makes the positions below `end` known.
    pub(super) fn reach(&mut self, end: usize) {
        let width = 2 * self.frequencies.len();
        for position in self.table.len() / width.max(1)..end {
            // As the models' own code: the angle is rounded to f32 before the cosine is taken.
            let angles = self.frequencies.iter().map(|frequency| position as f32 * frequency);
            self.table.extend(angles.clone().map(f32::cos));
            self.table.extend(angles.map(f32::sin));
        }
    }

    /// Turns one head's values to a position: the first half against the second.
    pub(super) fn turn(&self, position: usize, head: &mut [f32]) {
        let half = self.frequencies.len();
        let (cos, sin) = self.table[position * 2 * half..][..2 * half].split_at(half);
        let (first, second) = head.split_at_mut(half);
        for (((first, second), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
            let (a, b) = (*first, *second);
            *first = a * cos - b * sin;
            *second = b * cos + a * sin;
        }
    }
}

/// What one thread needs to attend.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Queries of the heads that share a key-value head, `[heads, head_dim]`.
    pub(super) queries: Vec<f32>,
    /// `[heads, positions]`, positions rounded up to whole panels.
    scores: Vec<f32>,
    /// A result that is still to be fixed, `[heads, head_dim]`.
    pub(super) attended: Vec<f32>,
}

/// Attention of one position's queries over the first `len` positions of a key-value head:
/// `out = softmax(queries keys / sqrt(head_dim)) values`, `[heads, head_dim]`.
pub(super) fn attend(
    isa: Isa,
    head: &Head,
    len: usize,
    head_dim: usize,
    scratch: &mut Scratch,
    out: &mut [f32],
) {
    let Scratch { queries, scores, .. } = scratch;
    let count = queries.len() / head_dim;
    let stride = len.next_multiple_of(PANEL);
    if scores.len() < count * stride {
        scores.resize(count * stride, 0.0);
    }
    let mut tile = Tile::new();
    let rows = Rows { values: queries, stride: head_dim, count };
    for panel in 0..stride / PANEL {
        for range in blocks(count) {
            isa.tile(Kind::F32, head.keys(panel), head_dim, rows.part(&range), &mut tile);
            for (row, result) in range.zip(&tile.0) {
                scores[row * stride + panel * PANEL..][..PANEL].copy_from_slice(result.as_flattened());
            }
        }
    }
    let scale = 1.0 / (head_dim as f32).sqrt();
    for (scores, out) in scores.chunks_mut(stride).zip(out.chunks_mut(head_dim)) {
        // The sum waits in the output's first slot until the values are there to be divided by it.
        out[0] = isa.soften(scores, len, scale);
    }
    let rows = Rows { values: scores, stride, count };
    for range in blocks(count) {
        let mut shares = [0.0; super::isa::TILE_ROWS];
        for (share, row) in shares.iter_mut().zip(range.clone()) {
            *share = 1.0 / out[row * head_dim];
        }
        for (panel, columns) in (0..head_dim).step_by(PANEL).enumerate() {
            isa.tile(Kind::F32, head.values(panel), len, rows.part(&range), &mut tile);
            for ((row, result), share) in range.clone().zip(&tile.0).zip(shares) {
                let out = &mut out[row * head_dim..][..head_dim];
                for (out, value) in out[columns..].iter_mut().zip(result.as_flattened()) {
                    *out = value * share;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::float_cmp, reason = "the same bits are what is asked for")]

    use super::*;
    use crate::device::cpu::cache::Cache;

    fn wave(at: usize, by: f32) -> f32 {
        ((at + 1) as f32 * by).sin() * 2.0
    }

    #[test]
    fn attention_against_f64() {
        for head_dim in [2, 6, 16, 24, 32, 64, 80] {
            for len in [1, 2, 3, 16, 31, 32, 33, 100] {
                for count in [1, 2, 3, 7, 8] {
                    let mut cache = Cache::new(1, 1, head_dim, 200);
                    cache.reserve(len + 1);
                    let mut keys = Vec::new();
                    let mut values = Vec::new();
                    for position in 0..len {
                        let key: Vec<f32> =
                            (0..head_dim).map(|at| wave(position * head_dim + at, 0.37)).collect();
                        let value: Vec<f32> =
                            (0..head_dim).map(|at| wave(position * head_dim + at, 1.13)).collect();
                        cache.layer(0)[0].put(position, &key, &value);
                        keys.push(key);
                        values.push(value);
                    }
                    // What lies behind the end must not count.
                    cache.layer(0)[0].put(len, &vec![f32::NAN; head_dim], &vec![f32::NAN; head_dim]);
                    let queries: Vec<f32> = (0..count * head_dim).map(|at| wave(at, 0.71)).collect();
                    for isa in Isa::all() {
                        let mut scratch = Scratch {
                            queries: queries.clone(),
                            scores: vec![f32::NAN; 9],
                            ..Scratch::default()
                        };
                        let mut out = vec![0.0; count * head_dim];
                        attend(isa, &cache.layer(0)[0], len, head_dim, &mut scratch, &mut out);
                        for (query, out) in queries.chunks(head_dim).zip(out.chunks(head_dim)) {
                            let score = |key: &Vec<f32>| {
                                let products =
                                    key.iter().zip(query).map(|(k, q)| f64::from(*k) * f64::from(*q));
                                products.sum::<f64>() / (head_dim as f64).sqrt()
                            };
                            let scores: Vec<f64> = keys.iter().map(score).collect();
                            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                            let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
                            for (at, out) in out.iter().enumerate() {
                                let terms = scores.iter().zip(&values);
                                let exact: f64 =
                                    terms.map(|(s, v)| (s - largest).exp() / sum * f64::from(v[at])).sum();
                                assert!(
                                    (f64::from(*out) - exact).abs() < 2e-5,
                                    "{isa:?} {head_dim} {len} {count}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn turning_keeps_lengths_and_differences_of_positions() {
        let mut angles = Angles::new(vec![1.0, 0.1, 0.01]);
        angles.reach(50);
        angles.reach(10);
        let dot = |a: usize, b: usize| {
            let (mut query, mut key) = ([0.3, -0.7, 1.1, 0.2, 0.9, -0.4], [0.5, 0.1, -0.6, 0.8, -1.0, 0.7]);
            angles.turn(a, &mut query);
            angles.turn(b, &mut key);
            query.iter().zip(key).map(|(a, b)| a * b).sum::<f32>()
        };
        assert!((dot(3, 1) - dot(49, 47)).abs() < 1e-5);
        assert!((dot(0, 0) - dot(49, 49)).abs() < 1e-5);
        let mut head = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        angles.turn(2, &mut head);
        assert_eq!(head, [2f32.cos(), 0.0, 0.0, 2f32.sin(), 0.0, 0.0]);
    }
}
