//! A soak: thousands of requests over shards whose processes and connections fail at random.
//!
//! No wrong token, every failure named, nothing leaked. 1,000 requests; `PHASEMARK_SOAK=10000 cargo test -p
//! engine --test shard_soak` runs 10,000, and `PHASEMARK_SOAK_SEED` another sequence of faults. Alone in its
//! file: it counts this process's descriptors, children and memory.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what the tests share fails by panic")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use engine::decode::{Engine, Prefill, Request, Verify};
use engine::device::cpu::Cpu;
use engine::device::{Device, Part, Shard};
use engine::model::Checkpoint;
use engine::shard::{Address, Chain, Limits, Link, RemoteShard, Terms};
use marker_core::Markers;
use rustix::process::Signal;

#[path = "shards/process.rs"]
#[allow(dead_code, reason = "each test takes what it needs")]
mod process;
use process::{Process, children, send, spawned, within, workspace};

const CONTEXT: usize = 64;
const LIMITS: Limits = Limits {
    connect: Duration::from_secs(10),
    load: Duration::from_mins(1),
    answer: Duration::from_millis(700),
    frame: Duration::from_secs(5),
    idle: Duration::from_mins(1),
    leave: Duration::from_secs(10),
};

/// xorshift64*
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}

const NOTHING: u32 = 0;
const CUT: u32 = 1;
const CUT_INSIDE: u32 = 2;
const STALL: u32 = 3;
const GARBAGE: u32 = 4;
const TWICE: u32 = 5;

/// Stands between a parent and a shard, and does one misdeed when it is told to.
fn proxy(path: &Path, shard: PathBuf) -> Arc<AtomicU32> {
    let listener = UnixListener::bind(path).unwrap();
    let misdeed = Arc::new(AtomicU32::new(NOTHING));
    let told = Arc::clone(&misdeed);
    std::thread::spawn(move || {
        for parent in listener.incoming() {
            let parent = parent.unwrap();
            // The shard may be away for a while.
            let Ok(shard) = UnixStream::connect(&shard) else { continue };
            for (from, to, answers) in [(&parent, &shard, false), (&shard, &parent, true)] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let told = Arc::clone(&told);
                std::thread::spawn(move || {
                    let _ = pump(&from, &to, answers, &told);
                    let _ = from.shutdown(Shutdown::Both);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    misdeed
}

fn pump(mut from: &UnixStream, mut to: &UnixStream, answers: bool, told: &AtomicU32) -> std::io::Result<()> {
    let mut chunk = vec![0; 1 << 16];
    loop {
        let read = from.read(&mut chunk)?;
        let chunk = &chunk[..read];
        let misdeed = if answers { told.swap(NOTHING, SeqCst) } else { NOTHING };
        match misdeed {
            _ if read == 0 => return Ok(()),
            CUT => return Ok(()),
            CUT_INSIDE => return to.write_all(&chunk[..read / 2]),
            STALL => std::thread::sleep(LIMITS.answer + Duration::from_millis(300)),
            GARBAGE => to.write_all(b"no frame at all, but longer than a head")?,
            TWICE => to.write_all(chunk)?,
            _ => {}
        }
        to.write_all(chunk)?;
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn no_fault_gives_a_wrong_token_or_leaks() {
    let number = |name: &str, otherwise| std::env::var(name).map_or(otherwise, |text| text.parse().unwrap());
    let (requests, seed) = (number("PHASEMARK_SOAK", 1000), number("PHASEMARK_SOAK_SEED", 20_250_607));
    let mut dice = Dice(seed | 1);
    let folder = tempfile::tempdir().unwrap();
    let tiny = |name: &str| workspace().join("models/tiny").join(name);
    let (model, draft) = (tiny("llama3-gqa-untied-sharded"), tiny("qwen2-bias-tied"));
    let (target, draft) = (Checkpoint::open(&model).unwrap(), Checkpoint::open(&draft).unwrap());
    let cpu = Cpu::new(1);
    let load = |checkpoint: &Checkpoint, layers, embedding, head| {
        cpu.load(checkpoint, Part { layers, embedding, head, context: CONTEXT }).unwrap()
    };
    let whole = |checkpoint: &Checkpoint| {
        let shard = load(checkpoint, 0..checkpoint.config().layers, true, true);
        Chain::new(checkpoint.config(), vec![shard]).unwrap()
    };
    let mut alone = Engine::new(whole(&target), None, vec![]).unwrap();

    let shard_path = folder.path().join("shard");
    let address = format!("unix:{}", shard_path.display());
    let listen = || Process::start(&model, "2..4", &address, &["--context", "64"]);
    let mut listening = listen();
    let proxied = folder.path().join("proxy");
    let misdeed = proxy(&proxied, shard_path.clone());
    let remote = |link, layers| -> Box<dyn Shard> {
        let terms = Terms { fingerprint: target.fingerprint(), layers, width: target.config().hidden };
        Box::new(RemoteShard::connect(link, terms, LIMITS).unwrap())
    };
    let shards = vec![
        load(&target, 0..1, false, false),
        remote(Link::Spawned(spawned(&model, "1..2", &LIMITS)), 1..2),
        remote(Link::Listening { address: Address::Unix(proxied), insecure: false }, 2..4),
    ];
    let chain = Chain::with_ends(target.config(), load(&target, 0..0, true, true), shards).unwrap();
    let mut engine = Engine::new(chain, Some(whole(&draft)), vec![]).unwrap();

    let mut named: BTreeMap<String, usize> = BTreeMap::new();
    let mut flat = None;
    let mut succeeded = 0;
    for number in 0..requests {
        let prompt: Vec<u32> = (0..=dice.below(5)).map(|_| dice.below(4096) as u32).collect();
        let request = Request {
            max_tokens: 1 + dice.below(8) as usize,
            draft_tokens: 1 + dice.below(3) as usize,
            verify: Verify::ALL[dice.below(3) as usize],
            prefill: if dice.below(2) == 0 { Prefill::Exact } else { Prefill::Dense },
            ..Request::new(prompt)
        };
        let (fault, moment) = (dice.below(100), dice.below(4));
        let child = children().into_iter().find(|id| *id != listening.id());
        let mut restart = false;
        let strike = || match fault {
            0..15 => misdeed.store(1 + fault as u32 % 5, SeqCst),
            15..18 => listening.signal(Signal::KILL),
            18..21 => {
                if let Some(child) = child {
                    send(child, Signal::KILL);
                }
            }
            21 => {
                if let Some(child) = child {
                    send(child, Signal::STOP);
                }
            }
            _ => {}
        };
        if moment == 0 {
            strike();
        }
        let mut seen = 0;
        let done = engine.generate(&request, Markers::OFF, &mut |_| {
            seen += 1;
            if seen == moment {
                strike();
            }
            ControlFlow::Continue(())
        });
        match done {
            Ok(generation) => {
                succeeded += 1;
                let expected =
                    alone.generate(&request, Markers::OFF, &mut |_| ControlFlow::Continue(())).unwrap();
                assert_eq!(generation.tokens, expected.tokens, "request {number}: {request:?}");
            }
            Err(error) => {
                let error = error.to_string();
                assert!(
                    error.starts_with("shard 1..2 at spawn:cpu") || error.starts_with("shard 2..4 at unix:"),
                    "request {number}: a failure without a name: {error}"
                );
                // Without the shard's name and whatever is of one case only.
                let what = error.split_once(": ").unwrap().1;
                let what = what.split(" (").next().unwrap().split(": it").next().unwrap();
                *named.entry(what.to_owned()).or_default() += 1;
            }
        }
        // Who was struck recovers, or is started again as an operator would.
        if fault == 21 {
            for child in children() {
                send(child, Signal::CONT);
            }
        }
        if (15..18).contains(&fault) && seen >= moment {
            restart = true;
        }
        if restart {
            listening.signal(Signal::KILL);
            listening.wait();
            listening = listen();
        }
        misdeed.store(NOTHING, SeqCst);

        // At rest: what is held now is what was held before.
        if number == requests / 5 || number + 1 == requests {
            let last = Request { max_tokens: 4, ..Request::new(vec![1, 2, 3]) };
            // The last fault may be found only now.
            within(Duration::from_secs(30), "all is well again", || {
                engine.generate(&last, Markers::OFF, &mut |_| ControlFlow::Continue(())).ok()
            });
            match flat {
                None => flat = Some((descriptors(), resident_kib())),
                Some((open, resident)) => {
                    within(Duration::from_secs(20), "descriptors are given back", || {
                        (descriptors() <= open).then_some(())
                    });
                    assert_eq!(children().len(), 2, "one spawned, one listening");
                    let grown = resident_kib().saturating_sub(resident);
                    assert!(grown < 8 * 1024, "memory grew by {grown} KiB over {requests} requests");
                }
            }
        }
    }
    println!("{succeeded} of {requests} requests succeeded; the others: {named:?}");
    assert!(succeeded * 2 > requests, "{named:?}");
    assert!(requests < 500 || named.len() >= 3, "faults were met: {named:?}");
    drop(engine);
    assert_eq!(children(), [listening.id()], "what was spawned is reaped, and nothing else");
}
