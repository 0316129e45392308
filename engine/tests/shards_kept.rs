//! What a request leaves to chance or to the one before it, over shards in processes of their own: a seed gives the
//! same text, and a kept prefix is kept there too.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what the tests share fails by panic")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use engine::decode::{Drafting, Engine, Prefill, Request, Sampling};
use engine::device::cpu::Cpu;
use engine::device::{Device, Part, Shard};
use engine::load::Pair;
use engine::session::{Options, Session};
use engine::shard::{Chain, Limits, Link, RemoteShard, Terms};
use marker_core::Markers;
use rustix::process::Signal;

#[path = "shards/process.rs"]
#[allow(dead_code, reason = "each test takes what it needs")]
mod process;
use process::{Process, spawned, workspace};

const LAYERS: usize = 8;
const CONTEXT: usize = 160;

fn model(name: &str) -> PathBuf {
    workspace().join("models/pair").join(name)
}

fn pair() -> Pair {
    Pair::open(&model("target"), Some(&model("draft"))).unwrap()
}

/// The pair, its layers from 3 on behind `link` if there is one.
fn engine(pair: &Pair, link: Option<Link>) -> Engine {
    let cpu = Cpu::new(1);
    let Some(link) = link else { return pair.load(&cpu, CONTEXT).unwrap() };
    let part = |layers, embedding, head| {
        cpu.load(&pair.target, Part { layers, embedding, head, context: CONTEXT }).unwrap()
    };
    let config = pair.target.config();
    let terms = Terms { fingerprint: pair.target.fingerprint(), layers: 3..LAYERS, width: config.hidden };
    let remote: Box<dyn Shard> = Box::new(RemoteShard::connect(link, terms, Limits::default()).unwrap());
    let shards = vec![part(0..3, false, false), remote];
    let target = Chain::with_ends(config, part(0..0, true, true), shards).unwrap();
    pair.around(target, &cpu, CONTEXT).unwrap()
}

fn child() -> Link {
    Link::Spawned(spawned(&model("target"), "3..8", &Limits::default()))
}

fn listening(folder: &Path) -> Process {
    Process::start(&model("target"), "3..8", &format!("unix:{}/shard", folder.display()), &[])
}

#[test]
fn a_seeded_run_is_the_same_over_shards_elsewhere() {
    let (pair, folder) = (pair(), tempfile::tempdir().unwrap());
    let unix = listening(folder.path());
    let mut engines = [engine(&pair, None), engine(&pair, Some(child())), engine(&pair, Some(unix.link()))];
    let prompt: Vec<u32> = (100..112).collect();
    for drafting in [Drafting::Nothing, Drafting::Model, Drafting::Lookup] {
        let sampling = Sampling { temperature: 0.9, top_k: 60, seed: 5, ..Sampling::default() };
        let request = Request {
            drafting,
            sampling: Some(sampling),
            max_tokens: 32,
            ignore_eos: true,
            ..Request::new(prompt.repeat(2))
        };
        let mut run = |engine: &mut Engine| {
            let got = engine.generate(&request, Markers::OFF, &mut |_| ControlFlow::Continue(())).unwrap();
            (got.tokens, got.rounds)
        };
        let [expected, spawned, unix] = engines.each_mut().map(&mut run);
        assert_eq!(spawned, expected, "spawned, {drafting:?}");
        assert_eq!(unix, expected, "unix, {drafting:?}");
    }
    drop(engines);
    unix.signal(Signal::TERM);
}

#[test]
fn a_session_keeps_its_prefix_over_a_shard_elsewhere_and_reads_it_again_after_that_was_lost() {
    let folder = tempfile::tempdir().unwrap();
    let mut shard = Some(listening(folder.path()));
    let link = shard.as_ref().map(Process::link);
    let [mut local, mut remote] = [None, link].map(|link| {
        let pair = pair();
        let engine = engine(&pair, link);
        Session::new(pair, engine)
    });
    // Exact prefill: what is kept was computed by its very kernels.
    let request =
        Request { max_tokens: 16, prefill: Prefill::Exact, ignore_eos: true, ..Request::new(Vec::new()) };
    let options = Options { request, ..Options::default() };
    let say = |session: &mut Session<'_>, prompt: &str| {
        session.complete(prompt, &options, &mut |_| ControlFlow::Continue(())).unwrap()
    };
    let first = "In the beginning God created the heaven";
    let text = say(&mut local, first).text;
    assert_eq!(say(&mut remote, first).text, text);
    let next = format!("{first}{text} and said");
    let (expected, got) = (say(&mut local, &next), say(&mut remote, &next));
    assert_eq!(got.text, expected.text);
    assert!(got.generation.kept > 8, "the prompt before and its answer: {}", got.generation.kept);
    assert_eq!(got.generation.kept, expected.generation.kept);

    // Another process with the same layers: nothing of the text is there. The request that finds out fails, and the next
    // one reads the text again.
    drop(shard.take());
    let _shard = listening(folder.path());
    let error = remote.complete(&next, &options, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(error.to_string().starts_with("shard 3..8 at unix:"), "{error}");
    let again = say(&mut remote, &next);
    assert_eq!((again.text, again.generation.kept), (expected.text, 0));
}
