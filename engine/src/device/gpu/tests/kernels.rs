//! Every kernel against `f64` on random data of odd sizes. Outputs are poisoned, and every buffer lies between
//! guard zones that must come back as they were.

use std::cell::RefCell;
use std::sync::Arc;

use half::bf16;

use super::super::driver::{Buffer, Driver, Plain, Stream};
use super::super::kernels::{
    ADD_OUTPUTS, ADD_THREADS, Accept, Add, Argmax, Argument, Attend, CHUNK, DENSE_ROWS, Dense, EMBED_PARTS,
    Embed, FEW_OUTPUTS, FEW_THREADS, FLASH_ROWS, Few, Flash, KEY_DIM, Kernel, Kernels, MAX_ROWS, Norm,
    PLANES, QUERIES, Qkv, ROTATE_HEADS, Rotate, WIDE_THREADS,
};

/// Bytes of a guard zone.
const GUARD: usize = 1024;
const PATTERN: u8 = 0xa5;

/// A device with nothing on it but what a test puts there.
struct Bench {
    driver: Arc<dyn Driver>,
    kernels: Kernels,
    stream: Stream,
    buffers: RefCell<Vec<Buffer>>,
    seed: RefCell<u64>,
}

/// A buffer's values, by address and length.
#[derive(Clone, Copy)]
struct On {
    at: u64,
    index: usize,
    bytes: usize,
}

impl Bench {
    fn new() -> Self {
        let driver = super::driver();
        driver.enter().unwrap();
        let kernels = Kernels::load(&driver).unwrap();
        let stream = Stream::new(&driver).unwrap();
        let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        eprintln!("seed {seed}");
        Bench { driver, kernels, stream, buffers: RefCell::default(), seed: RefCell::new(seed) }
    }

    /// Uniform in -1..1, never zero.
    fn random(&self) -> f32 {
        let mut seed = self.seed.borrow_mut();
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((*seed >> 40) as f32 + 0.5) / (1 << 23) as f32 - 1.0
    }

    fn randoms(&self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.random()).collect()
    }

    fn room(&self, bytes: usize) -> On {
        let buffer = Buffer::new(&self.driver, bytes + 2 * GUARD, "a test").unwrap();
        buffer.write(0, &vec![PATTERN; bytes + 2 * GUARD], self.stream.handle()).unwrap();
        let mut buffers = self.buffers.borrow_mut();
        buffers.push(buffer);
        let index = buffers.len() - 1;
        On { at: buffers[index].at() + GUARD as u64, index, bytes }
    }

    /// Room for an output: not a number wherever it is not written.
    fn poisoned(&self, bytes: usize) -> On {
        let room = self.room(bytes);
        self.buffers.borrow()[room.index].write(GUARD, &vec![0xff_u8; bytes], self.stream.handle()).unwrap();
        room
    }

    fn put<T: Plain>(&self, values: &[T]) -> On {
        let room = self.room(size_of_val(values));
        self.buffers.borrow()[room.index].write(GUARD, values, self.stream.handle()).unwrap();
        room
    }

    fn get<T: Plain + Default>(&self, from: On) -> Vec<T> {
        let mut values = vec![T::default(); from.bytes / size_of::<T>()];
        self.buffers.borrow()[from.index].read(GUARD, &mut values, self.stream.handle()).unwrap();
        values
    }

    fn launch<A: Argument>(&self, kernel: Kernel, blocks: [usize; 3], threads: usize, argument: A) {
        self.kernels.launch(kernel, blocks, threads, argument, self.stream.handle()).unwrap();
        self.stream.synchronise().unwrap();
    }

    /// Ends a case: the guard zones are whole.
    fn done(&self) {
        for buffer in self.buffers.borrow_mut().drain(..) {
            let mut bytes = vec![0; buffer.bytes()];
            buffer.read(0, &mut bytes, self.stream.handle()).unwrap();
            let (front, back) = (&bytes[..GUARD], &bytes[bytes.len() - GUARD..]);
            assert!(front.iter().chain(back).all(|byte| *byte == PATTERN), "a guard zone was written");
        }
    }
}

/// Splits values into planes: `[PLANES, MAX_ROWS, width]` from `[rows, width]`.
fn split(values: &[f32], width: usize) -> Vec<u16> {
    let mut planes = vec![0; PLANES * MAX_ROWS * width];
    for (at, value) in values.iter().enumerate() {
        let mut rest = *value;
        for plane in 0..PLANES {
            let part = bf16::from_f32(rest);
            planes[plane * MAX_ROWS * width + at] = part.to_bits();
            rest -= part.to_f32();
        }
    }
    planes
}

/// Adds planes up again, `count` values, exactly.
fn join(planes: &[u16], width: usize, count: usize) -> Vec<f32> {
    let part = |plane: usize, at: usize| bf16::from_bits(planes[plane * MAX_ROWS * width + at]).to_f32();
    (0..count).map(|at| part(0, at) + (part(1, at) + part(2, at))).collect()
}

/// `‖got - exact‖ / ‖exact‖`, and every value is a number.
fn off(got: &[f32], exact: &[f64]) -> f64 {
    assert_eq!(got.len(), exact.len());
    assert!(got.iter().all(|value| value.is_finite()), "a value was not written or is no number");
    let (mut error, mut size) = (0.0, 0.0);
    for (got, exact) in got.iter().zip(exact) {
        error += (f64::from(*got) - exact).powi(2);
        size += exact.powi(2);
    }
    (error / size).sqrt()
}

fn near(what: &str, got: &[f32], exact: &[f64], tolerance: f64) -> f64 {
    let off = off(got, exact);
    assert!(off < tolerance, "{what}: off by {off:e}");
    off
}

/// Random bf16 weights `[outputs, planes, width]`, and their values `[outputs, width]`.
fn weights(bench: &Bench, outputs: usize, planes: usize, width: usize) -> (Vec<u16>, Vec<f64>) {
    let mut bits = Vec::with_capacity(outputs * planes * width);
    let mut values = vec![0.0; outputs * width];
    for output in 0..outputs {
        for plane in 0..planes {
            for at in 0..width {
                let part = bf16::from_f32(bench.random() * [1.0, 0.004, 0.000_016][plane]);
                bits.push(part.to_bits());
                values[output * width + at] += part.to_f64();
            }
        }
    }
    (bits, values)
}

/// `[rows, outputs]` of `[rows, width]` times `[outputs, width]`.
fn multiply(x: &[f32], weights: &[f64], width: usize) -> Vec<f64> {
    let dot = |x: &[f32], w: &[f64]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * w).sum::<f64>();
    x.chunks(width).flat_map(|x| weights.chunks(width).map(move |w| dot(x, w))).collect()
}

#[test]
#[ignore = "needs a GPU: `scripts/gpu run DIR` runs it"]
fn embed_takes_rows_of_the_table_and_leaves_them_normed() {
    let bench = Bench::new();
    for (planes, width) in [(1, 32), (2, 96), (3, 416)] {
        let (table, values) = weights(&bench, 50, planes, width);
        let tokens = [49_u32, 0, 7, 7];
        let parts = width.next_multiple_of(FEW_OUTPUTS) / ADD_OUTPUTS;
        let norm = bench.randoms(width);
        let (table, ids, on_norm) = (bench.put(&table), bench.put(&tokens), bench.put(&norm));
        let x = bench.poisoned(4 * width * 4);
        let exact: Vec<f64> =
            tokens.iter().flat_map(|&id| values[id as usize * width..][..width].to_vec()).collect();
        // From the table, and as they are in x then.
        for table in [table.at, 0] {
            let out = bench.poisoned(PLANES * MAX_ROWS * width * 2);
            let squares = bench.poisoned(4 * parts * 4);
            let argument = Embed {
                x: x.at,
                tokens: ids.at,
                table,
                norm: on_norm.at,
                out: out.at,
                squares: squares.at,
                width: width as u32,
                w_planes: planes as u32,
                square_parts: parts as u32,
            };
            bench.launch(Kernel::Embed, [4, parts.div_ceil(EMBED_PARTS), 1], 256, argument);
            near("embed", &bench.get(x), &exact, 1e-7);
            let normed: Vec<f64> =
                exact.iter().enumerate().map(|(at, x)| x * f64::from(norm[at % width])).collect();
            near("normed", &join(&bench.get(out), width, 4 * width), &normed, 1e-6);
            let squares: Vec<f32> = bench.get(squares);
            for (squares, exact) in squares.chunks(parts).zip(exact.chunks(width)) {
                let exact: f64 = exact.iter().map(|x| x * x).sum();
                assert!((f64::from(squares.iter().sum::<f32>()) / exact - 1.0).abs() < 1e-5);
            }
        }
        bench.done();
    }
}

#[test]
#[ignore = "needs a GPU: `scripts/gpu run DIR` runs it"]
fn norm_adds_what_waits_and_norms() {
    let bench = Bench::new();
    let mut worst = 0.0_f64;
    for (hidden, rows, first, splits, biased) in [
        (30, 1, 0, 0, false),
        (64, 16, 0, 1, true),
        (100, 3, 2, 5, false),
        (384, 8, 0, 3, true),
        (4096, 2, 7, 8, false),
        (5000, 5, 0, 2, true),
        (16384, 1, 0, 4, false),
    ] {
        let width = usize::next_multiple_of(hidden, 32);
        let wide = width + 128;
        let all = first + rows;
        let clean = |row: usize| {
            let mut values = bench.randoms(row * width);
            values.chunks_mut(width).for_each(|row| row[hidden..].fill(0.0));
            values
        };
        let (x, weight, bias) = (clean(all), clean(1), clean(1));
        let mut partial = bench.randoms(splits * all * wide);
        partial.chunks_mut(wide).for_each(|row| row[hidden..width].fill(0.0));
        let (on_x, on_partial) = (bench.put(&x), bench.put(&partial));
        let (on_weight, on_bias) = (bench.put(&weight), bench.put(&bias));
        let planes = bench.poisoned(PLANES * MAX_ROWS * width * 2);
        let threads = usize::next_multiple_of(width / 4, 32).min(1024);
        let mut argument = Norm {
            x: on_x.at,
            partial: on_partial.at,
            bias: if biased { on_bias.at } else { 0 },
            weight: on_weight.at,
            planes: planes.at,
            hidden: hidden as u32,
            width: width as u32,
            partial_width: wide as u32,
            splits: splits as u32,
            rows: all as u32,
            first: first as u32,
            threads: threads as u32,
            dense: 0,
            epsilon: 1e-5,
        };
        bench.launch(Kernel::Norm, [rows, 1, 1], threads, argument);
        let mut sums: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        for row in first..all {
            for at in 0..width {
                let sum = &mut sums[row * width + at];
                *sum += (0..splits).map(|s| f64::from(partial[(s * all + row) * wide + at])).sum::<f64>();
                *sum += if biased { f64::from(bias[at]) } else { 0.0 };
            }
        }
        near("sum", &bench.get(on_x), &sums, 1e-6);
        let exact: Vec<f64> = sums[first * width..]
            .chunks(width)
            .flat_map(|row| {
                let mean = row.iter().map(|x| x * x).sum::<f64>() / hidden as f64;
                let scale = 1.0 / (mean + 1e-5).sqrt();
                row.iter().zip(&weight).map(|(x, w)| x * scale * f64::from(*w)).collect::<Vec<_>>()
            })
            .collect();
        let got = join(&bench.get(planes), width, rows * width);
        worst = worst.max(near("norm", &got, &exact, 1e-6));
        // Only bf16, for the dense path: one plane of rows that follow each other.
        let dense = bench.poisoned(rows * width * 2);
        argument.planes = dense.at;
        (argument.splits, argument.bias, argument.dense) = (0, 0, 1);
        bench.launch(Kernel::Norm, [rows, 1, 1], threads, argument);
        let got: Vec<f32> = bench.get(dense).iter().map(|&bits| bf16::from_bits(bits).to_f32()).collect();
        near("dense norm", &got, &exact, 3e-3);
        bench.done();
    }
    eprintln!("norm: off by {worst:e}");
}

#[test]
#[ignore = "needs a GPU: `scripts/gpu run DIR` runs it"]
fn few_rows_times_a_matrix() {
    let bench = Bench::new();
    let mut worst = 0.0_f64;
    for (outputs, width, w_planes, splits) in [
        (128, 32, 1, 1),
        (128, 64, 2, 1),
        (256, 96, 1, 2),
        (384, 416, 3, 3),
        (128, 2080, 1, 16),
        (256, 4096, 1, 5),
        (128, 14336, 1, 1),
    ] {
        let (bits, values) = weights(&bench, outputs, w_planes, width);
        let x = bench.randoms(MAX_ROWS * width);
        let (on_weights, planes) = (bench.put(&bits), bench.put(&split(&x, width)));
        let exact = multiply(&x, &values, width);
        let mut alone: Vec<Vec<f32>> = Vec::new();
        for rows in [1, 2, 3, 7, 8, 9, 13, 16] {
            let out = bench.poisoned(splits * rows * outputs * 4);
            let argument = Few {
                out: out.at,
                planes: planes.at,
                weights: on_weights.at,
                bias: 0,
                ahead: on_weights.at,
                ahead_bytes: bits.len() as u32 * 2,
                ahead_line: 128,
                outputs: outputs as u32,
                width: width as u32,
                w_planes: w_planes as u32,
                rows: rows as u32,
                splits: splits as u32,
                ..Few::default()
            };
            let kernel = if rows <= 8 { Kernel::Few8 } else { Kernel::Few16 };
            bench.launch(kernel, [outputs / FEW_OUTPUTS, splits, 1], FEW_THREADS as usize, argument);
            let parts: Vec<f32> = bench.get(out);
            assert!(parts.iter().all(|part| part.is_finite()), "a sum was not written");
            let sum = |at: usize| (0..splits).map(|s| parts[s * rows * outputs + at]).sum::<f32>();
            let got: Vec<f32> = (0..rows * outputs).map(sum).collect();
            worst = worst.max(near("few", &got, &exact[..rows * outputs], 2e-6));
            // A row's sums are the same bits whatever the other rows are.
            for (row, sums) in got.chunks(outputs).enumerate() {
                match alone.get(row) {
                    Some(alone) => assert_eq!(alone, sums, "row {row} of {rows}, width {width}"),
                    None => alone.push(sums.to_vec()),
                }
            }
        }
        bench.done();
    }
    eprintln!("few rows: off by {worst:e}");
}

#[test]
#[ignore = "needs a GPU: `scripts/gpu run DIR` runs it"]
fn gated_rows() {
    let bench = Bench::new();
    let mut worst = 0.0_f64;
    for (inner, width, w_planes, biased) in [(64, 32, 1, true), (192, 96, 2, false), (1024, 384, 1, false)] {
        let (bits, values) = weights(&bench, 2 * inner, w_planes, width);
        let (x, bias) = (bench.randoms(MAX_ROWS * width), bench.randoms(2 * inner));
        let (on_weights, planes, on_bias) =
            (bench.put(&bits), bench.put(&split(&x, width)), bench.put(&bias));
        let mut sums = multiply(&x, &values, width);
        let squares: Vec<f32> = bench.randoms(MAX_ROWS * 5).iter().map(|x| x * x * 9.0).collect();
        let on_squares = bench.put(&squares);
        for (sums, squares) in sums.chunks_mut(2 * inner).zip(squares.chunks(5)) {
            let mean = squares.iter().map(|x| f64::from(*x)).sum::<f64>() / width as f64;
            for sum in sums {
                *sum /= (mean + 1e-5).sqrt();
            }
        }
        let mut first: Vec<u16> = Vec::new();
        for rows in [1, 5, 8, 11, 16] {
            let out = bench.poisoned(PLANES * MAX_ROWS * inner * 2);
            let argument = Few {
                out: out.at,
                planes: planes.at,
                weights: on_weights.at,
                bias: if biased { on_bias.at } else { 0 },
                ahead: 0,
                ahead_bytes: 0,
                ahead_line: 0,
                outputs: 2 * inner as u32,
                width: width as u32,
                w_planes: w_planes as u32,
                rows: rows as u32,
                splits: 1,
                out_width: inner as u32,
                squares: on_squares.at,
                square_parts: 5,
                hidden: width as u32,
                epsilon: 1e-5,
            };
            let kernel = if rows <= 8 { Kernel::Gated8 } else { Kernel::Gated16 };
            bench.launch(kernel, [2 * inner / FEW_OUTPUTS, 1, 1], FEW_THREADS as usize, argument);
            let got: Vec<u16> = bench.get(out);
            let exact: Vec<f64> = (0..rows * inner)
                .map(|at| {
                    let (row, column) = (at / inner, at % inner);
                    let bias = |at: usize| if biased { f64::from(bias[at]) } else { 0.0 };
                    let gate = sums[row * 2 * inner + column] + bias(column);
                    let up = sums[row * 2 * inner + inner + column] + bias(inner + column);
                    gate / (1.0 + (-gate).exp()) * up
                })
                .collect();
            worst = worst.max(near("gated", &join(&got, inner, rows * inner), &exact, 2e-6));
            if first.is_empty() {
                first = got;
            } else {
                assert_eq!(first[..inner], got[..inner], "the first row of {rows}");
            }
        }
        bench.done();
    }
    eprintln!("gated rows: off by {worst:e}");
}

#[test]
#[ignore = "needs a GPU: `scripts/gpu run DIR` runs it"]
fn a_matrix_added_to_the_residual_stream() {
    let bench = Bench::new();
    let mut worst = 0.0_f64;
    for (outputs, x_width, width, w_planes, biased) in [
        (128, 32, 32, 1, true),
        (128, 96, 64, 3, false),
        (512, 416, 96, 2, true),
        (256, 256, 4096, 1, false),
        (128, 128, 14336, 1, true),
    ] {
        let (bits, values) = weights(&bench, outputs, w_planes, width);
        let (rows_in, x) = (bench.randoms(MAX_ROWS * width), bench.randoms(MAX_ROWS * x_width));
        let (norm, bias) = (bench.randoms(outputs), bench.randoms(outputs));
        let (on_weights, planes) = (bench.put(&bits), bench.put(&split(&rows_in, width)));
        let (on_norm, on_bias) = (bench.put(&norm), bench.put(&bias));
        let parts = outputs / ADD_OUTPUTS;
        let mut alone: Vec<(Vec<f32>, Vec<f32>)> = Vec::new();
        for rows in [1, 2, 7, 8, 9, 16] {
            let on_x = bench.put(&x);
            let out = bench.poisoned(PLANES * MAX_ROWS * x_width * 2);
            let squares = bench.poisoned(MAX_ROWS * parts * 4);
            let argument = Add {
                x: on_x.at,
                out: out.at,
                squares: squares.at,
                planes: planes.at,
                weights: on_weights.at,
                bias: if biased { on_bias.at } else { 0 },
                norm: on_norm.at,
                ahead: on_weights.at,
                ahead_bytes: bits.len() as u32 * 2,
                ahead_line: 128,
                outputs: outputs as u32,
                width: width as u32,
                w_planes: w_planes as u32,
                rows: rows as u32,
                x_width: x_width as u32,
            };
            let kernel = if rows <= 8 { Kernel::Add8 } else { Kernel::Add16 };
            bench.launch(kernel, [parts, 1, 1], ADD_THREADS, argument);
            let products = multiply(&rows_in[..rows * width], &values, width);
            let sums: Vec<f64> = (0..rows * x_width)
                .map(|at| {
                    let (row, column) = (at / x_width, at % x_width);
                    let bias = if biased { f64::from(bias[column]) } else { 0.0 };
                    f64::from(x[at]) + products[row * outputs + column] + bias
                })
                .collect();
            let got: Vec<f32> = bench.get(on_x);
            assert_eq!(got[rows * x_width..], x[rows * x_width..], "rows that are not the pass's");
            worst = worst.max(near("sum", &got[..rows * x_width], &sums, 2e-6));
            let normed: Vec<f64> =
                sums.iter().enumerate().map(|(at, x)| x * f64::from(norm[at % x_width])).collect();
            let got_normed = join(&bench.get(out), x_width, rows * x_width);
            near("normed", &got_normed, &normed, 2e-6);
            let squares: Vec<f32> = bench.get(squares);
            for (row, sums) in sums.chunks(x_width).enumerate() {
                let squares = &squares[row * parts..][..parts];
                let exact: f64 = sums.iter().map(|x| x * x).sum();
                let got: f64 = squares.iter().map(|x| f64::from(*x)).sum();
                assert!((got / exact - 1.0).abs() < 1e-5, "{got} {exact}");
                // A row is the same bits whatever the other rows are.
                let bits = (got_normed[row * x_width..][..x_width].to_vec(), squares.to_vec());
                match alone.get(row) {
                    Some(alone) => assert_eq!(alone, &bits, "row {row} of {rows}, width {width}"),
                    None => alone.push(bits),
                }
            }
        }
        bench.done();
    }
    eprintln!("added: off by {worst:e}");
}

/// Sums of queries, keys and values of a pass's rows, and what `f64` makes of them.
struct Heads {
    qkv: Qkv,
    /// `[rows, heads + 2 kv_heads, head_dim]`.
    exact: Vec<f64>,
}

impl Heads {
    fn new(
        bench: &Bench,
        (heads, kv_heads, head_dim): (usize, usize, usize),
        (start, rows, context): (usize, usize, usize),
        splits: usize,
        (normed, biased): (bool, bool),
    ) -> Self {
        let all = heads + 2 * kv_heads;
        let wide = usize::next_multiple_of(all * head_dim, 128);
        let half = head_dim / 2;
        let partial = bench.randoms(splits * rows * wide);
        let (bias, q_norm, k_norm) =
            (bench.randoms(all * head_dim), bench.randoms(head_dim), bench.randoms(head_dim));
        let angles = bench.randoms(context * half);
        let cosines: Vec<f32> = angles.iter().map(|a| a.cos()).collect();
        let sines: Vec<f32> = angles.iter().map(|a| a.sin()).collect();
        let mut exact = Vec::new();
        for row in 0..rows {
            for head in 0..all {
                let mut values: Vec<f64> = (0..head_dim)
                    .map(|at| {
                        let column = head * head_dim + at;
                        let sum = (0..splits).map(|s| f64::from(partial[(s * rows + row) * wide + column]));
                        sum.sum::<f64>() + if biased { f64::from(bias[column]) } else { 0.0 }
                    })
                    .collect();
                let (is_query, is_key) = (head < heads, (heads..heads + kv_heads).contains(&head));
                if normed && (is_query || is_key) {
                    let mean = values.iter().map(|x| x * x).sum::<f64>() / head_dim as f64;
                    let weight = if is_query { &q_norm } else { &k_norm };
                    let scale = 1.0 / (mean + 1e-6).sqrt();
                    values.iter_mut().zip(weight).for_each(|(x, w)| *x *= scale * f64::from(*w));
                }
                if is_query || is_key {
                    for at in 0..half {
                        let angle = (start + row) * half + at;
                        let (c, s) = (f64::from(cosines[angle]), f64::from(sines[angle]));
                        let (a, b) = (values[at], values[at + half]);
                        (values[at], values[at + half]) = (a * c - b * s, b * c + a * s);
                    }
                }
                if is_query {
                    for x in &mut values {
                        *x *= f64::from(0.3_f32);
                    }
                }
                exact.extend(values);
            }
        }
        let qkv = Qkv {
            partial: bench.put(&partial).at,
            bias: if biased { bench.put(&bias).at } else { 0 },
            q_norm: if normed { bench.put(&q_norm).at } else { 0 },
            k_norm: if normed { bench.put(&k_norm).at } else { 0 },
            cosines: bench.put(&cosines).at,
            sines: bench.put(&sines).at,
            start: bench.put(&[start as u32]).at,
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            head_dim: head_dim as u32,
            splits: splits as u32,
            rows: rows as u32,
            partial_width: wide as u32,
            epsilon: 1e-6,
            scale: 0.3,
        };
        Heads { qkv, exact }
    }

    fn head(&self, row: usize, head: usize) -> &[f64] {
        let Qkv { heads, kv_heads, head_dim, .. } = self.qkv;
        let (all, dim) = ((heads + 2 * kv_heads) as usize, head_dim as usize);
        &self.exact[(row * all + head) * dim..][..dim]
    }
}

#[test]
#[ignore = "needs a GPU: `scripts/gpu run DIR` runs it"]
fn rotate_norms_turns_and_appends() {
    let bench = Bench::new();
    for (heads, kv_heads, head_dim, rows, splits, normed, biased) in [
        (3, 1, 8, 1, 1, false, false),
        (4, 2, 64, 5, 3, true, true),
        (2, 2, 80, 16, 2, true, false),
        (7, 1, 256, 2, 8, false, true),
    ] {
        let (context, start, all) = (40_usize, 9_usize, heads + 2 * kv_heads);
        let shape = (heads, kv_heads, head_dim);
        let input = Heads::new(&bench, shape, (start, rows, context), splits, (normed, biased));
        let q = bench.poisoned(rows * heads * head_dim * 4);
        let cache = context * kv_heads * head_dim;
        let (keys, values) = (bench.poisoned(cache * 4), bench.poisoned(cache * 4));
        let argument = Rotate { qkv: input.qkv, q: q.at, keys: keys.at, values: values.at };
        bench.launch(Kernel::Rotate, [rows, all.div_ceil(ROTATE_HEADS), 1], 128, argument);
        let (q, keys, values) = (bench.get::<f32>(q), bench.get::<f32>(keys), bench.get::<f32>(values));
        for row in 0..rows {
            for head in 0..all {
                let got = if head < heads {
                    &q[(row * heads + head) * head_dim..][..head_dim]
                } else {
                    let kv = (head - heads) % kv_heads;
                    let rows = if head < heads + kv_heads { &keys } else { &values };
                    &rows[((start + row) * kv_heads + kv) * head_dim..][..head_dim]
                };
                near("rotate", got, input.head(row, head), 1e-6);
            }
        }
        // Nothing else of the cache was touched.
        let width = kv_heads * head_dim;
        for cache in [&keys, &values] {
            assert!(cache[..start * width].iter().all(|value| value.is_nan()));
            assert!(cache[(start + rows) * width..].iter().all(|value| value.is_nan()));
        }
        bench.done();
    }
}

#[test]
#[ignore = "needs a GPU: `scripts/gpu run DIR` runs it"]
fn attention_over_the_cache() {
    let bench = Bench::new();
    let mut worst = 0.0_f64;
    for (heads, kv_heads, head_dim, normed, biased) in [
        (2, 2, 8, false, false),
        (6, 2, 64, true, false),
        (4, 1, 80, false, true),
        (9, 1, 32, false, false),
        (8, 2, 128, true, true),
        (3, 1, 160, false, false),
        (3, 1, 256, false, false),
        (20, 1, 256, false, false),
    ] {
        for (start, rows) in [(0, 1), (0, 7), (62, 1), (63, 2), (60, 9), (200, 16), (1000, 3)] {
            let context = start + rows + 5;
            let width = usize::next_multiple_of(heads * head_dim, 32);
            let shape = (heads, kv_heads, head_dim);
            let input = Heads::new(&bench, shape, (start, rows, context), 1, (normed, biased));
            let kv_width = kv_heads * head_dim;
            let most = if head_dim > KEY_DIM { QUERIES / 2 } else { QUERIES };
            let cache = || {
                let mut values = bench.randoms(context * kv_width);
                values[start * kv_width..].fill(f32::NAN);
                values
            };
            let (keys, values) = (cache(), cache());
            // All rows by so many at a time; what was attended is that of the last ones.
            let run = |count: usize, end: usize, apart: bool, together: usize| {
                let chunks = usize::div_ceil(start + end, CHUNK).next_power_of_two();
                let planes = bench.poisoned(PLANES * MAX_ROWS * width * 2);
                let (on_keys, on_values) = (bench.put(&keys), bench.put(&values));
                let blocks = (count * heads / kv_heads).div_ceil(together);
                let done = bench.put(&vec![0_u32; blocks * kv_heads]);
                let stats = bench.poisoned(MAX_ROWS * heads * chunks * 2 * 4);
                let sums = bench.poisoned(MAX_ROWS * heads * chunks * head_dim * 4);
                for first in (0..end).step_by(count) {
                    let qkv = Qkv {
                        partial: input.qkv.partial + (first * input.qkv.partial_width as usize * 4) as u64,
                        start: bench.put(&[(start + first) as u32]).at,
                        rows: count as u32,
                        ..input.qkv
                    };
                    let q = bench.poisoned(count * heads * head_dim * 4);
                    if apart {
                        let rotate = Rotate { qkv, q: q.at, keys: on_keys.at, values: on_values.at };
                        let blocks = [count, (heads + 2 * kv_heads).div_ceil(ROTATE_HEADS), 1];
                        bench.launch(Kernel::Rotate, blocks, 128, rotate);
                    }
                    let argument = Attend {
                        qkv,
                        q: if apart { q.at } else { 0 },
                        keys: on_keys.at,
                        values: on_values.at,
                        sums: sums.at,
                        stats: stats.at,
                        planes: planes.at,
                        done: done.at,
                        chunks: chunks as u32,
                        width: width as u32,
                        together: together as u32,
                    };
                    bench.launch(Kernel::Attend, [kv_heads, chunks, blocks], 256, argument);
                }
                assert!(bench.get::<u32>(done).iter().all(|count| *count == 0), "counts are zeros again");
                let planes: Vec<u16> = bench.get(planes);
                let rows = join(&planes, width, count * width);
                let attended = rows.chunks(width).flat_map(|row| row[..heads * head_dim].to_vec());
                (attended.collect::<Vec<f32>>(), bench.get::<f32>(on_keys), bench.get::<f32>(on_values))
            };
            let (together, got_keys, got_values) = run(rows, rows, false, most);
            assert_eq!(run(rows, rows, true, most).0, together, "whoever turns the queries");
            assert_eq!(run(rows, rows, true, 3).0, together, "however many are taken together");
            let (mut all_keys, mut all_values): (Vec<f64>, Vec<f64>) = (
                keys.iter().map(|x| f64::from(*x)).collect(),
                values.iter().map(|x| f64::from(*x)).collect(),
            );
            for row in 0..rows {
                for kv in 0..kv_heads {
                    let at = ((start + row) * kv_heads + kv) * head_dim;
                    all_keys[at..at + head_dim].copy_from_slice(input.head(row, heads + kv));
                    all_values[at..at + head_dim].copy_from_slice(input.head(row, heads + kv_heads + kv));
                }
            }
            let used = (start + rows) * kv_width;
            near("keys", &got_keys[..used], &all_keys[..used], 1e-6);
            near("values", &got_values[..used], &all_values[..used], 1e-6);
            assert!(got_keys[used..].iter().chain(&got_values[used..]).all(|value| value.is_nan()));
            let mut exact = Vec::new();
            for row in 0..rows {
                for head in 0..heads {
                    let kv = head / (heads / kv_heads);
                    let query = input.head(row, head);
                    let at = |position: usize| (position * kv_heads + kv) * head_dim;
                    let scores: Vec<f64> = (0..=start + row)
                        .map(|p| query.iter().zip(&all_keys[at(p)..]).map(|(q, k)| q * k).sum())
                        .collect();
                    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let shares: Vec<f64> = scores.iter().map(|score| (score - top).exp2()).collect();
                    let total: f64 = shares.iter().sum();
                    exact.extend((0..head_dim).map(|d| {
                        let sum = shares.iter().enumerate().map(|(p, share)| share * all_values[at(p) + d]);
                        sum.sum::<f64>() / total
                    }));
                }
            }
            worst = worst.max(near("attention", &together, &exact, 2e-6));
            for row in [0, rows - 1] {
                let alone = run(1, row + 1, false, most).0;
                assert_eq!(
                    alone,
                    together[row * heads * head_dim..][..heads * head_dim],
                    "row {row} of {rows}"
                );
            }
            bench.done();
        }
    }
    eprintln!("attention: off by {worst:e}");
}

#[test]
#[ignore = "needs a GPU: `scripts/gpu run DIR` runs it"]
fn the_lowest_of_the_largest_logits() {
    let bench = Bench::new();
    for (vocab, stride, parts) in [(5, 128, 1), (4096, 4096, 1), (1000, 1024, 3), (128_256, 128_256, 16)] {
        let rows = 4;
        let mut logits = bench.randoms(rows * stride);
        // What is behind the vocabulary is large and must not count.
        logits.chunks_mut(stride).for_each(|row| row[vocab..].fill(9.0));
        logits[vocab - 1] = 3.0;
        for at in [2, 4, vocab - 2] {
            logits[stride + at] = 2.0;
        }
        logits[2 * stride..2 * stride + vocab].fill(f32::NAN);
        logits[2 * stride + 3] = -7.0;
        logits[3 * stride..3 * stride + vocab].fill(f32::NAN);
        let tokens = bench.poisoned(rows * 4);
        let argument = Argmax {
            logits: bench.put(&logits).at,
            tokens: tokens.at,
            tops: bench.poisoned(rows * parts * 4).at,
            ids: bench.poisoned(rows * parts * 4).at,
            vocab: vocab as u32,
            stride: stride as u32,
            parts: parts as u32,
        };
        bench.launch(Kernel::Argmax, [rows, parts, 1], 1024, argument);
        if parts > 1 {
            bench.launch(Kernel::Choose, [rows, 1, 1], 32, argument);
        }
        assert_eq!(bench.get::<u32>(tokens), [vocab as u32 - 1, 2, 3, 0]);
        bench.done();
    }
}

#[test]
#[ignore = "needs a GPU: `scripts/gpu run DIR` runs it"]
fn what_stands_is_what_the_model_says_itself() {
    let bench = Bench::new();
    for count in 1..=15 {
        for stands in 0..=count {
            let proposed: Vec<u32> = (0..count).map(|at| 7 * at + 3).collect();
            let mut said = [&proposed[..], &[99]].concat();
            if stands < count {
                said[stands as usize] += 1;
            }
            let accepted = bench.poisoned(4);
            let argument = Accept {
                said: bench.put(&said).at,
                proposed: bench.put(&proposed).at,
                accepted: accepted.at,
                count,
            };
            bench.launch(Kernel::Accept, [1, 1, 1], 32, argument);
            assert_eq!(bench.get::<u32>(accepted), [stands]);
            bench.done();
        }
    }
}

/// Random bf16 rows `[rows, width]`, in room for whole tiles that is no number behind them, and their values.
fn bf16_rows(bench: &Bench, rows: usize, width: usize) -> (On, Vec<f32>) {
    let mut bits: Vec<u16> = (0..rows * width).map(|_| bf16::from_f32(bench.random()).to_bits()).collect();
    let values = bits.iter().map(|&bits| bf16::from_bits(bits).to_f32()).collect();
    bits.resize(rows.next_multiple_of(DENSE_ROWS) * width, 0xffff);
    (bench.put(&bits), values)
}

#[test]
#[ignore = "needs a GPU: `scripts/gpu run DIR` runs it"]
fn many_rows_times_a_matrix() {
    let bench = Bench::new();
    let mut worst = 0.0_f64;
    for (outputs, width, w_planes, rows) in
        [(128, 32, 1, 17), (384, 64, 2, 128), (256, 96, 1, 130), (640, 416, 3, 77), (512, 1024, 1, 300)]
    {
        let (bits, values) = weights(&bench, outputs, w_planes, width);
        let (x, exact_x) = bf16_rows(&bench, rows, width);
        let on_weights = bench.put(&bits);
        let sums = multiply(&exact_x, &values, width);
        let blocks = [rows.div_ceil(DENSE_ROWS), outputs.div_ceil(bench.kernels.dense_outputs()), 1];
        let out = bench.poisoned(rows * outputs * 4);
        let mut argument = Dense {
            out: out.at,
            x: x.at,
            weights: on_weights.at,
            bias: 0,
            outputs: outputs as u32,
            width: width as u32,
            w_planes: w_planes as u32,
            rows: rows as u32,
            out_width: outputs as u32 / 2,
        };
        bench.launch(Kernel::DenseRows, blocks, WIDE_THREADS, argument);
        worst = worst.max(near("dense", &bench.get(out), &sums, 5e-6));
        for biased in [false, true] {
            let (inner, bias) = (outputs / 2, bench.randoms(outputs));
            let gated = bench.poisoned(rows * inner * 2);
            argument.out = gated.at;
            argument.bias = if biased { bench.put(&bias).at } else { 0 };
            bench.launch(Kernel::DenseGated, blocks, WIDE_THREADS, argument);
            let got: Vec<f32> = bench.get(gated).iter().map(|&bits| bf16::from_bits(bits).to_f32()).collect();
            let exact: Vec<f64> = (0..rows * inner)
                .map(|at| {
                    let (row, column) = (at / inner, at % inner);
                    let bias = |at: usize| if biased { f64::from(bias[at]) } else { 0.0 };
                    let gate = sums[row * outputs + column] + bias(column);
                    let up = sums[row * outputs + inner + column] + bias(inner + column);
                    gate / (1.0 + (-gate).exp()) * up
                })
                .collect();
            near("dense gated", &got, &exact, 3e-3);
        }
        bench.done();
    }
    eprintln!("many rows: off by {worst:e}");
}

#[test]
#[ignore = "needs a GPU: `scripts/gpu run DIR` runs it"]
fn attention_of_many_rows() {
    let bench = Bench::new();
    let mut worst = 0.0_f64;
    for (heads, kv_heads, head_dim) in [(2, 1, 8), (3, 1, 32), (6, 2, 64), (4, 2, 80), (4, 1, 128)] {
        for (start, rows) in [(0, 17), (0, 64), (0, 200), (5, 129), (333, 77)] {
            let context = start + rows + 3;
            let width = usize::next_multiple_of(heads * head_dim, 32);
            let mut keys = bench.randoms(context * kv_heads * head_dim);
            let mut values = bench.randoms(context * kv_heads * head_dim);
            keys[(start + rows) * kv_heads * head_dim..].fill(f32::NAN);
            values[(start + rows) * kv_heads * head_dim..].fill(f32::NAN);
            let q = bench.randoms(rows * heads * head_dim);
            let out = bench.poisoned(rows * width * 2);
            let argument = Flash {
                q: bench.put(&q).at,
                keys: bench.put(&keys).at,
                values: bench.put(&values).at,
                out: out.at,
                start: start as u32,
                rows: rows as u32,
                heads: heads as u32,
                kv_heads: kv_heads as u32,
                head_dim: head_dim as u32,
                width: width as u32,
            };
            let kernel = match head_dim {
                ..=32 => Kernel::Flash32,
                33..=64 => Kernel::Flash64,
                _ => Kernel::Flash128,
            };
            bench.launch(kernel, [rows.div_ceil(FLASH_ROWS), heads, 1], WIDE_THREADS, argument);
            let got: Vec<f32> = bench.get(out).iter().map(|&bits| bf16::from_bits(bits).to_f32()).collect();
            let got: Vec<f32> = got.chunks(width).flat_map(|row| row[..heads * head_dim].to_vec()).collect();
            // What the kernel makes of its inputs: bf16.
            let round = |value: f32| bf16::from_f32(value).to_f64();
            let mut exact = Vec::new();
            for row in 0..rows {
                for head in 0..heads {
                    let kv = head / (heads / kv_heads);
                    let query = &q[(row * heads + head) * head_dim..][..head_dim];
                    let at = |position: usize| (position * kv_heads + kv) * head_dim;
                    let scores: Vec<f64> = (0..=start + row)
                        .map(|p| query.iter().zip(&keys[at(p)..]).map(|(q, k)| round(*q) * round(*k)).sum())
                        .collect();
                    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let shares: Vec<f64> = scores.iter().map(|score| (score - top).exp2()).collect();
                    let total: f64 = shares.iter().sum();
                    exact.extend((0..head_dim).map(|d| {
                        let sum =
                            shares.iter().enumerate().map(|(p, share)| share * round(values[at(p) + d]));
                        sum.sum::<f64>() / total
                    }));
                }
            }
            worst = worst.max(near("attention of many rows", &got, &exact, 5e-3));
            bench.done();
        }
    }
    eprintln!("attention of many rows: off by {worst:e}");
}
