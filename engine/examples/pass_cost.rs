//! What a pass costs on the CPU by its rows, beside a plain read of as many bytes by as many threads.
//!
//!     cargo run --release -p engine --example pass_cost -- [MODEL] [THREADS] [CACHED] [ROWS,ROWS,…]
//!
//! Medians, and the best of twenty in brackets: on a machine that is busy otherwise only the latter says much.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use engine::device::cpu::Cpu;
use engine::device::{Answer, Device, Input, Part, Pass, Path as Kernels, Shard, Want};
use engine::model::Checkpoint;
use marker_core::Phase;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().unwrap_or_else(|| "models/pair/target".into());
    let cores = std::thread::available_parallelism()?.get();
    let threads = arguments.next().map_or(Ok(cores), |threads| threads.parse())?;
    let cached = arguments.next().map_or(Ok(64), |cached| cached.parse())?;

    let checkpoint = Checkpoint::open(Path::new(&model))?;
    let config = checkpoint.config();
    let layers = 0..config.layers;
    let head = checkpoint.head()?.bytes.len();
    let bytes = checkpoint.layer_bytes(layers.clone()) as usize + head;
    let started = Instant::now();
    let part = Part { layers, embedding: true, head: true, context: config.context };
    let mut shard = Cpu::new(threads).load(&checkpoint, part)?;
    println!("{model}: {:.1} MB a pass, {threads} threads, {cached} positions cached", bytes as f64 / 1e6);
    println!("load      {:8.3} ms", started.elapsed().as_secs_f64() * 1e3);

    let tokens: Vec<u32> = (0..256).map(|at| at * 7 % config.vocab as u32).collect();
    let mut answer = Answer::default();
    let mut cost = |shard: &mut dyn Shard, start: usize, rows: usize, path, want| {
        shard.roll_back(start)?;
        let pass = Pass { input: Input::Tokens(&tokens[..rows]), start, phase: Phase::Decode, path, want };
        let started = Instant::now();
        shard.forward(&pass, &mut answer)?;
        Ok::<_, Box<dyn std::error::Error>>(started.elapsed().as_secs_f64() * 1e3)
    };
    cost(&mut *shard, 0, cached, Kernels::Dense, Want::Tokens(0..0))?;

    // Taken in turns, so that what else the machine does falls on all of them alike.
    let rows = arguments.next().unwrap_or_else(|| "1,2,4,5,8".into());
    let rows = rows.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    let mut costs = vec![Vec::new(); rows.len()];
    let mut reads = Vec::new();
    let buffer = vec![1u64; bytes / 8];
    for _ in 0..200 {
        reads.push(read(&buffer, threads));
        for (costs, &rows) in costs.iter_mut().zip(&rows) {
            for _ in 0..4 {
                costs.push(cost(&mut *shard, cached, rows, Kernels::Decode, Want::Tokens(0..rows))?);
            }
        }
    }
    let (read, best_read) = quantiles(&mut reads);
    let rate = bytes as f64 / 1e6;
    println!("read      {read:8.3} ({best_read:.3}) ms, {:.1} ({:.1}) GB/s", rate / read, rate / best_read);
    let (one, best_one) = quantiles(&mut costs[0]);
    for (costs, rows) in costs.iter_mut().zip(rows) {
        let (cost, best) = quantiles(costs);
        println!(
            "{rows:3} rows  {cost:8.3} ({best:.3}) ms, {:.2} ({:.2}) x the first, {:.2} ({:.2}) x read",
            cost / one,
            best / best_one,
            cost / read,
            best / best_read
        );
    }
    let mut dense = Vec::new();
    for _ in 0..7 {
        dense.push(cost(&mut *shard, 0, tokens.len(), Kernels::Dense, Want::Tokens(255..256))?);
    }
    let (cost, best) = quantiles(&mut dense);
    println!("256 dense {cost:8.3} ({best:.3}) ms");
    Ok(())
}

/// Milliseconds to read the buffer once, each thread its own part.
fn read(buffer: &[u64], threads: usize) -> f64 {
    let barrier = std::sync::Barrier::new(threads);
    let part = |thread: usize| {
        let words = &buffer[buffer.len() * thread / threads..buffer.len() * (thread + 1) / threads];
        let sum = || words.iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
        black_box(sum());
        barrier.wait();
        let started = Instant::now();
        black_box(sum());
        started.elapsed()
    };
    let slowest = std::thread::scope(|scope| {
        let part = &part;
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || part(thread))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).max()
    });
    slowest.unwrap_or_default().as_secs_f64() * 1e3
}

/// The median and the best twentieth.
fn quantiles(values: &mut [f64]) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[values.len() / 20])
}
