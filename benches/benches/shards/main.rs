//! What it costs to have a shard elsewhere: microseconds that a pass takes longer than with the same split in
//! one process, and bytes on the wire.
//!
//! Criterion times the passes over the shard; before each of them the same pass runs without it, so that both
//! meet the same machine, and the table is of the differences, pair by pair.

use std::error::Error;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use benches::{child, machine};
use criterion::Criterion;
use engine::device::cpu::Cpu;
use engine::device::{Answer, Device, Input, Part, Pass, Path as Kernels, Shard, Want};
use engine::model::Checkpoint;
use engine::shard::{Address, Chain, Limits, Link, RemoteShard, Terms};
use marker_core::{Markers, Phase};

mod elsewhere;
mod nothing;

use elsewhere::{Process, listening, relay, spawned};
use nothing::{Nothing, Served};

type Done<T> = Result<T, Box<dyn Error>>;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/pair/target");
/// Positions in the caches while passes are measured.
const FILLED: usize = 32;
const CONTEXT: usize = 64;
/// Tokens over which bytes are counted.
const COUNTED: usize = 16;

fn main() -> ExitCode {
    if let Some(code) = child::engine() {
        return code;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shards: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Done<()> {
    let mut costs = Costs {
        criterion: Criterion::default()
            .sample_size(30)
            .warm_up_time(Duration::from_millis(200))
            .measurement_time(Duration::from_secs(1))
            .without_plots()
            .configure_from_args(),
        table: format!(
            "\n### A shard elsewhere\n\n{}; one thread a process\n\n\
             | pass | shard | µs without | µs added, median | 5 to 95 % |\n|---|---|---:|---:|---:|\n",
            machine::describe()
        ),
    };
    wire_alone(&mut costs)?;
    let bytes = pair(&mut costs)?;
    costs.criterion.final_summary();
    println!("{}\n{bytes}", costs.table);
    Ok(())
}

/// Criterion, and what the pairs of passes said.
struct Costs {
    criterion: Criterion,
    table: String,
}

impl Costs {
    /// Measures `there`, with `here` before each pass; both answer how long their pass took.
    fn measure(
        &mut self,
        pass: &str,
        shard: &str,
        mut here: impl FnMut() -> Done<Duration>,
        mut there: impl FnMut() -> Done<Duration>,
    ) -> Done<()> {
        let (mut base, mut added) = (Vec::new(), Vec::new());
        let mut failed = None;
        self.criterion.bench_function(&format!("{pass}/{shard}"), |bencher| {
            bencher.iter_custom(|times| {
                let mut sum = Duration::ZERO;
                for _ in 0..times {
                    match here().and_then(|here| Ok((here, there()?))) {
                        Ok((here, there)) => {
                            let [here, micros] = [here, there].map(|took| took.as_secs_f64() * 1e6);
                            base.push(here);
                            added.push(micros - here);
                            sum += there;
                        }
                        Err(error) => {
                            failed.get_or_insert(error);
                            // Nothing measured: criterion needs a number to go on to its end.
                            return Duration::from_nanos(times);
                        }
                    }
                }
                sum
            });
        });
        if let Some(error) = failed {
            return Err(error);
        }
        // None when the command line chose others.
        if !added.is_empty() {
            let ((_, base, _), (low, median, high)) = (percentiles(&mut base), percentiles(&mut added));
            writeln!(
                self.table,
                "| {pass} | {shard} | {base:.1} | {median:+.1} | {low:+.1} to {high:+.1} |"
            )?;
        }
        Ok(())
    }
}

/// The 5th, 50th and 95th percentile.
fn percentiles(times: &mut [f64]) -> (f64, f64, f64) {
    times.sort_by(f64::total_cmp);
    let at = |part: usize| times[(times.len() - 1) * part / 100];
    (at(5), at(50), at(95))
}

/// Round trips of one and of eight rows, with no layers behind them, against a call.
fn wire_alone(costs: &mut Costs) -> Done<()> {
    for (rows, width) in [(1, 384), (8, 384), (1, 4096), (8, 4096)] {
        let hidden = vec![1.0; width * rows];
        let folder = tempfile::tempdir()?;
        for (name, address) in [
            ("unix", Address::Unix(folder.path().join("shard"))),
            ("tcp", Address::Tcp("127.0.0.1:0".into())),
        ] {
            let mut here = Nothing::new();
            let mut served = Served::start(&address, width)?;
            let (mut call, mut trip) = (Answer::default(), Answer::default());
            costs.measure(
                &format!("{rows} x {width}, no layers"),
                name,
                || hop(&mut here, &hidden, &mut call),
                || hop(&mut served.remote, &hidden, &mut trip),
            )?;
        }
    }
    Ok(())
}

fn hop(shard: &mut dyn Shard, hidden: &[f32], answer: &mut Answer) -> Done<Duration> {
    shard.roll_back(0)?;
    let pass = Pass {
        input: Input::Hidden(hidden),
        start: 0,
        phase: Phase::Decode,
        path: Kernels::Decode,
        want: Want::Hidden,
    };
    let began = Instant::now();
    shard.forward(&pass, answer)?;
    Ok(began.elapsed())
}

/// Passes of the shipped target over 0..4 and 4..8, the second half here or elsewhere. Answers what crosses.
fn pair(costs: &mut Costs) -> Done<String> {
    let model = Path::new(MODEL);
    let checkpoint = Checkpoint::open(model)?;
    let (config, width) = (checkpoint.config(), checkpoint.config().hidden);
    let cpu = Cpu::new(1);
    let load = |layers: Range<usize>, embedding, head| {
        cpu.load(&checkpoint, Part { layers, embedding, head, context: CONTEXT })
    };
    let remote = |link| -> Done<Chain> {
        let terms = Terms { fingerprint: checkpoint.fingerprint(), layers: 4..8, width };
        let there = RemoteShard::connect(link, terms, Limits::default())?;
        let shards: Vec<Box<dyn Shard>> = vec![load(0..4, false, false)?, Box::new(there)];
        Ok(Chain::with_ends(config, load(0..0, true, true)?, shards)?)
    };
    let split = || -> Done<Chain> {
        Ok(Chain::new(config, vec![load(0..4, true, false)?, load(4..8, false, true)?])?)
    };
    let folder = tempfile::tempdir()?;
    let unix = Process::start(model, &format!("unix:{}/shard", folder.path().display()))?;
    let tcp = Process::start(model, "tcp:127.0.0.1:0")?;
    let counted = Process::start(model, "tcp:127.0.0.1:0")?;

    let text: Vec<u32> = (100..100 + FILLED as u32).collect();
    let mut whole = Chain::new(config, vec![load(0..8, true, true)?])?;
    let mut here = split()?;
    let mut places = [
        // What the split itself costs; the others are against this one.
        ("local, against no split", split()?),
        ("spawned", remote(spawned(model)?)?),
        ("unix", remote(unix.link())?),
        ("tcp", remote(tcp.link())?),
    ];
    for chain in places.iter_mut().map(|(_, chain)| chain).chain([&mut whole, &mut here]) {
        forward(chain, &text)?;
    }
    for (rows, pass) in [(1, "1 row, pair target"), (5, "5 rows, pair target")] {
        for (index, (name, there)) in places.iter_mut().enumerate() {
            let base = if index == 0 { &mut whole } else { &mut here };
            costs.measure(pass, name, || decode(base, &text[..rows]), || decode(there, &text[..rows]))?;
        }
    }
    bytes(&mut |link| remote(link), &counted, &text, width)
}

fn decode(chain: &mut Chain, rows: &[u32]) -> Done<Duration> {
    chain.roll_back(FILLED)?;
    let began = Instant::now();
    forward(chain, rows)?;
    Ok(began.elapsed())
}

fn forward(chain: &mut Chain, rows: &[u32]) -> Done<()> {
    chain.forward(Markers::OFF, Phase::Decode, Kernels::Decode, rows, &Want::Tokens(0..rows.len()))?;
    Ok(())
}

/// Bytes on the wire of one token a pass.
fn bytes(
    remote: &mut dyn FnMut(Link) -> Done<Chain>,
    shard: &Process,
    text: &[u32],
    width: usize,
) -> Done<String> {
    let (address, bytes) = relay(&shard.address)?;
    let mut chain = remote(listening(address))?;
    forward(&mut chain, text)?;
    let sent = || [0, 1].map(|way: usize| bytes[way].load(Relaxed));
    let before = sent();
    for row in 0..COUNTED {
        forward(&mut chain, &text[row..=row])?;
    }
    let after = sent();
    let [there, back] = [0, 1].map(|way| (after[way] - before[way]) as f64 / COUNTED as f64);
    Ok(format!("Bytes a token: {there} there and {back} back; hidden x 4 is {}.", 4 * width))
}
