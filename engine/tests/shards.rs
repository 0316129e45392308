//! Shards in processes of their own, with the shipped pair.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what the tests share fails by panic")]

#[cfg(feature = "record")]
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use engine::decode::{Engine, Generation, Request};
use engine::device::cpu::Cpu;
use engine::device::{Device, Part, Path as Kernels, Shard, Want};
use engine::model::Checkpoint;
use engine::shard::{Chain, Limits, Link, RemoteShard, Terms};
use marker_core::{Markers, Phase};
use rustix::process::Signal;
use serde_json::Value;

#[path = "shards/process.rs"]
#[allow(dead_code, reason = "each test takes what it needs")]
mod process;
use process::{Process, phasemark, send, spawned, within, workspace};

const LAYERS: usize = 8;
const CONTEXT: usize = 96;
const PROMPT: [u32; 5] = [3498, 1808, 29, 53, 31];

fn model(name: &str) -> PathBuf {
    workspace().join("models/pair").join(name)
}

/// The pair, opened once a test.
struct Models {
    target: Checkpoint,
    draft: Checkpoint,
    cpu: Cpu,
}

impl Models {
    fn open() -> Self {
        Models {
            target: Checkpoint::open(&model("target")).unwrap(),
            draft: Checkpoint::open(&model("draft")).unwrap(),
            cpu: Cpu::new(1),
        }
    }

    fn part(&self, layers: Range<usize>, embedding: bool, head: bool) -> Box<dyn Shard> {
        self.cpu.load(&self.target, Part { layers, embedding, head, context: CONTEXT }).unwrap()
    }

    fn terms(&self, layers: Range<usize>) -> Terms {
        Terms { fingerprint: self.target.fingerprint(), layers, width: self.target.config().hidden }
    }

    fn remote(&self, link: Link, layers: Range<usize>, limits: Limits) -> Box<dyn Shard> {
        Box::new(RemoteShard::connect(link, self.terms(layers), limits).unwrap())
    }

    /// A chain over shards that are here (`None`) or elsewhere.
    fn chain(&self, shards: Vec<(Range<usize>, Option<Link>)>, limits: Limits) -> Chain {
        let last = shards.len() - 1;
        let ends = shards[0].1.is_some() || shards[last].1.is_some();
        let shards = shards.into_iter().enumerate().map(|(index, (layers, link))| match link {
            Some(link) => self.remote(link, layers, limits),
            None => self.part(layers, index == 0 && !ends, index == last && !ends),
        });
        let shards = shards.collect();
        let config = self.target.config();
        if ends {
            Chain::with_ends(config, self.part(0..0, true, true), shards).unwrap()
        } else {
            Chain::new(config, shards).unwrap()
        }
    }

    fn engine(&self, target: Chain, draft: bool) -> Engine {
        let whole =
            Part { layers: 0..self.draft.config().layers, embedding: true, head: true, context: CONTEXT };
        let draft = draft.then(|| {
            Chain::new(self.draft.config(), vec![self.cpu.load(&self.draft, whole).unwrap()]).unwrap()
        });
        Engine::new(target, draft, vec![]).unwrap()
    }
}

fn generate(engine: &mut Engine, max_tokens: usize) -> Result<Generation, engine::Error> {
    let request = Request { max_tokens, ..Request::new(PROMPT.to_vec()) };
    engine.generate(&request, Markers::OFF, &mut |_| ControlFlow::Continue(()))
}

/// Greedy ids with a draft, and the bits of the logits after each of them.
fn says(models: &Models, target: Chain) -> (Vec<u32>, Vec<u32>) {
    let mut engine = models.engine(target, true);
    let ids = generate(&mut engine, 16).unwrap().tokens;
    let target = engine.target_mut();
    target.roll_back(0).unwrap();
    let mut bits = Vec::new();
    let text = [&PROMPT[..], &ids].concat();
    for (path, rows) in
        [(Kernels::Dense, &text[..9]), (Kernels::Decode, &text[9..14]), (Kernels::Decode, &text[14..15])]
    {
        let want = Want::Logits(0..rows.len());
        let answer = target.forward(Markers::OFF, Phase::Verify, path, rows, &want).unwrap();
        bits.extend(answer.logits.iter().map(|logit| logit.to_bits()));
    }
    (ids, bits)
}

/// Even ranges.
fn cut(count: usize) -> Vec<Range<usize>> {
    (0..count).map(|shard| shard * LAYERS / count..(shard + 1) * LAYERS / count).collect()
}

#[derive(Clone, Copy)]
enum Kind {
    Here,
    Child,
    Unix,
    Tcp,
}

/// The target over shards of these kinds in turn gives the same bits as one shard here, in every split.
fn every_split_is_the_same(kinds: &[Kind]) {
    let models = Models::open();
    let expected = says(&models, models.chain(vec![(0..LAYERS, None)], Limits::default()));
    let mut plain = models.engine(models.chain(vec![(0..LAYERS, None)], Limits::default()), false);
    assert_eq!(generate(&mut plain, 16).unwrap().tokens, expected.0, "and without a draft");
    let folder = tempfile::tempdir().unwrap();
    for count in 1..=LAYERS {
        let mut beginnings = Vec::new();
        let mut shards = Vec::new();
        for (index, layers) in cut(count).into_iter().enumerate() {
            let text = format!("{}..{}", layers.start, layers.end);
            let mut listen = |address: &str| {
                beginnings.push((index, Process::begin(&model("target"), &text, address, &[])));
                None
            };
            let link = match kinds[index % kinds.len()] {
                Kind::Here => None,
                Kind::Child => Some(Link::Spawned(spawned(&model("target"), &text, &Limits::default()))),
                Kind::Unix => listen(&format!("unix:{}/{count}-{index}", folder.path().display())),
                Kind::Tcp => listen("tcp:localhost:0"),
            };
            shards.push((layers, link));
        }
        let mut listening = Vec::new();
        for (index, beginning) in beginnings {
            let process = beginning.ready();
            shards[index].1 = Some(process.link());
            listening.push(process);
        }
        let got = says(&models, models.chain(shards, Limits::default()));
        assert_eq!(got.0, expected.0, "ids, {count} shards");
        assert!(got.1 == expected.1, "logits, {count} shards");
        for mut process in listening {
            process.signal(Signal::TERM);
            assert!(process.wait().success());
        }
    }
}

#[test]
fn local_shards_give_the_same_bits() {
    every_split_is_the_same(&[Kind::Here]);
}

#[test]
fn spawned_shards_give_the_same_bits() {
    every_split_is_the_same(&[Kind::Child]);
}

#[test]
fn unix_shards_give_the_same_bits() {
    every_split_is_the_same(&[Kind::Unix]);
}

#[test]
fn tcp_shards_give_the_same_bits() {
    every_split_is_the_same(&[Kind::Tcp]);
}

#[test]
fn mixed_shards_give_the_same_bits() {
    every_split_is_the_same(&[Kind::Child, Kind::Here, Kind::Unix, Kind::Tcp]);
    every_split_is_the_same(&[Kind::Here, Kind::Tcp]);
}

fn read_json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

#[cfg(feature = "record")]
fn counts(stats: &Value) -> BTreeMap<String, u64> {
    serde_json::from_value(stats["phases"].clone()).unwrap()
}

/// The command line: spawned shards write beside their parent's files, a listening one rewrites its own, and all
/// together count and tile what section 2 of the vocabulary says.
#[cfg(feature = "record")]
#[test]
fn recordings_of_all_processes_tile_every_pass() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    let address = format!("unix:{}", at("shard").display());
    let (stats, record) = (text(at("there.json")), text(at("there-trace.json")));
    let mut listening = Process::start(
        &model("target"),
        "5..8",
        &address,
        &["--markers", "record", "--stats", &stats, "--record", &record],
    );
    let shards = format!("0..2@spawn:cpu,2..5@cpu,5..8@{address}");
    let ids = PROMPT.map(|id| id.to_string()).join(",");
    let (ours, trace) = (text(at("s.json")), text(at("r.json")));
    let generate = |shards: &[&str]| {
        let args = [
            &["generate", "--prompt-ids", &ids, "--max-tokens", "20", "--prefill", "exact", "--print-ids"],
            shards,
        ]
        .concat();
        let output = phasemark(&args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let alone = generate(&[]);
    let files = ["--markers", "record", "--stats", &ours, "--record", &trace, "--shards", &shards];
    for generation in 1..=2 {
        assert_eq!(generate(&files), alone);
        // Written before the parent was told that the generation is over.
        let there = read_json(&at("there.json"));
        assert_eq!(there["generations"], generation);
        assert_eq!(there["layers"], serde_json::json!([5, 8]));
    }
    listening.signal(Signal::INT);
    assert!(listening.wait().success());
    assert!(!at("shard").exists(), "its socket is gone");

    let parent = read_json(&at("s.json"));
    let (prompt, passes) = (PROMPT.len() as u64, parent["target_passes"].as_u64().unwrap());
    let leaves = [("ds4.layer_range exact", prompt), ("ds4.layer_range verify", passes)];
    let leaves: BTreeMap<_, _> = leaves.map(|(name, count)| (name.to_owned(), count)).into();
    let mut with_scopes = leaves.clone();
    with_scopes.extend(["ds4.prefill exact", "ds4.spec_decode batched"].map(|name| (name.to_owned(), 1)));
    assert_eq!(counts(&parent), with_scopes, "this process's own shard, and what encloses");
    assert_eq!(counts(&read_json(&at("s.shard0.json"))), leaves);
    let twice: BTreeMap<_, _> = leaves.iter().map(|(name, count)| (name.clone(), 2 * count)).collect();
    assert_eq!(counts(&read_json(&at("there.json"))), twice, "both generations");

    // Pass by pass, the leaves of the three processes are the three ranges of layers with one mode and row count.
    let leaves = |name: &str| -> Vec<(String, u64, u64, u64)> {
        let trace = read_json(&at(name));
        let events = trace["traceEvents"].as_array().unwrap();
        let leaf = |event: &&Value| event["name"].as_str().unwrap().starts_with("ds4.layer_range");
        let number = |event: &Value, name: &str| event["args"][name].as_u64().unwrap();
        let fields = |event: &Value| {
            let mode = event["args"]["mode"].as_str().unwrap().to_owned();
            (mode, number(event, "tokens"), number(event, "layer_begin"), number(event, "layer_end"))
        };
        events.iter().filter(leaf).map(fields).collect()
    };
    let (first, second, third) = (leaves("r.shard0.json"), leaves("r.json"), leaves("there-trace.json"));
    let third = &third[third.len() / 2..];
    assert_eq!(first.len() as u64, prompt + passes);
    assert_eq!((first.len(), first.len()), (second.len(), third.len()));
    for ((a, b), c) in first.iter().zip(&second).zip(third) {
        assert_eq!([(a.2, a.3), (b.2, b.3), (c.2, c.3)], [(0, 2), (2, 5), (5, 8)]);
        assert!(a.0 == b.0 && b.0 == c.0 && a.1 == b.1 && b.1 == c.1, "{a:?} {b:?} {c:?}");
    }
}

/// What `phasetrace check --stats` says of one request over spawned shards: each process's recording and counts
/// together are fine, and each pass is one range a shard.
#[cfg(feature = "record")]
#[test]
fn recordings_of_parent_and_children_are_one_fine_run() {
    const SHARDS: u64 = 3;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    let ids = PROMPT.map(|id| id.to_string()).join(",");
    let mut command = phasemark(&[
        "generate",
        "--shards",
        "0..2@spawn:cpu,2..5@cpu,5..8@spawn:cpu",
        "--prompt-ids",
        &ids,
        "--max-tokens",
        "20",
        "--prefill",
        "exact",
        "--markers",
        "record",
        "--stats",
        &text(at("s.json")),
        "--record",
        &text(at("r.json")),
    ]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let recordings = ["r.json", "r.shard0.json", "r.shard2.json"].map(at);
    let stats = ["s.json", "s.shard0.json", "s.shard2.json"].map(at);
    let counted = trace::check::counts(&stats).unwrap();
    let (prompt, passes) = (PROMPT.len() as u64, read_json(&stats[0])["target_passes"].as_u64().unwrap());
    assert!(passes > 1);
    let expected = [
        ("ds4.prefill exact", 1),
        ("ds4.layer_range exact", prompt * SHARDS),
        ("ds4.spec_decode batched", 1),
        ("ds4.layer_range verify", passes * SHARDS),
    ];
    assert_eq!(counted, expected.map(|(phase, count)| (phase.to_owned(), count)).into());

    let mut merged = trace::read(&recordings).unwrap();
    assert_eq!(merged.processes.len() as u64, SHARDS);
    let report = trace::check::check(&mut merged, Some(&counted));
    assert!(report.findings.list.is_empty(), "not even a note: {:?}", report.findings.list);
    assert_eq!(report.ranges, (1 + prompt * SHARDS) + (1 + passes * SHARDS));

    // Without one of the three it is not whole, and that is seen.
    for missing in 0..recordings.len() {
        let mut files = recordings.to_vec();
        files.remove(missing);
        let report = trace::check::check(&mut trace::read(&files).unwrap(), Some(&counted));
        assert!(!report.is_fine(), "without {}", recordings[missing].display());
    }
}

/// Limits that make waiting for nobody short.
const SHORT: Limits = Limits {
    connect: Duration::from_secs(10),
    load: Duration::from_mins(1),
    answer: Duration::from_secs(2),
    frame: Duration::from_secs(10),
    idle: Duration::from_mins(1),
    leave: Duration::from_secs(10),
};

#[test]
fn a_child_that_is_killed_is_named_reaped_and_replaced() {
    let models = Models::open();
    let child = spawned(&model("target"), "3..8", &SHORT);
    let target = models.chain(vec![(0..3, None), (3..8, Some(Link::Spawned(child)))], SHORT);
    let mut engine = models.engine(target, true);
    let expected = generate(&mut engine, 24).unwrap().tokens;
    // Other tests of this file have children at the same time.
    let mine = || {
        let mut mine = process::children();
        mine.retain(|id| {
            let line = fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
            line.contains("\0inherited\0") && line.contains("\x003..8\0")
        });
        mine
    };
    let only_child = || match mine()[..] {
        [id] => id,
        ref others => panic!("one child, not {others:?}"),
    };
    // Before a request: there is nothing to lose, so a new one takes its place.
    let victim = only_child();
    send(victim, Signal::KILL);
    // A zombie has closed its sockets once its last thread is gone; before that, a request may still meet its end.
    within(Duration::from_secs(10), "it is dead", || {
        let zombie = fs::read_to_string(format!("/proc/{victim}/stat")).unwrap().contains(") Z ");
        (zombie && fs::read_dir(format!("/proc/{victim}/task")).unwrap().count() == 1).then_some(())
    });
    assert_eq!(generate(&mut engine, 24).unwrap().tokens, expected);
    // During one, between frames.
    let victim = only_child();
    let request = Request { max_tokens: 24, ..Request::new(PROMPT.to_vec()) };
    let mut seen = 0;
    let error = engine
        .generate(&request, Markers::OFF, &mut |_| {
            seen += 1;
            if seen == 3 {
                send(victim, Signal::KILL);
            }
            ControlFlow::Continue(())
        })
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("shard 3..8 at spawn:cpu (process "), "{error}");
    assert!(error.ends_with("its process ended with signal: 9 (SIGKILL)"), "{error}");
    assert_eq!(generate(&mut engine, 24).unwrap().tokens, expected);
    assert_ne!(only_child(), victim);
    // During one, while the parent waits for its answer.
    let victim = only_child();
    send(victim, Signal::STOP);
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        send(victim, Signal::KILL);
    });
    let error = generate(&mut engine, 24).unwrap_err().to_string();
    killer.join().unwrap();
    assert!(error.ends_with("its process ended with signal: 9 (SIGKILL)"), "{error}");
    assert_eq!(generate(&mut engine, 24).unwrap().tokens, expected);
    // One that is stopped does not keep its parent.
    send(only_child(), Signal::STOP);
    let error = generate(&mut engine, 24).unwrap_err().to_string();
    assert!(error.contains("no answer within 2 s"), "{error}");
    let stopped = only_child();
    send(stopped, Signal::CONT);
    assert_eq!(generate(&mut engine, 24).unwrap().tokens, expected, "the late answer is dropped");
    assert_eq!(only_child(), stopped, "the same one");
    drop(engine);
    assert!(mine().is_empty(), "reaped");
}

#[test]
fn a_listening_shard_may_be_stopped_killed_and_restarted() {
    let models = Models::open();
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:{}/shard", folder.path().display());
    let start = || Process::start(&model("target"), "3..8", &address, &[]);
    let first = start();
    let target = models.chain(vec![(0..3, None), (3..8, Some(first.link()))], SHORT);
    let mut engine = models.engine(target, true);
    let expected = generate(&mut engine, 24).unwrap().tokens;

    first.signal(Signal::STOP);
    let error = generate(&mut engine, 24).unwrap_err().to_string();
    assert!(error.contains("no answer within 2 s"), "{error}");
    first.signal(Signal::CONT);
    assert_eq!(generate(&mut engine, 24).unwrap().tokens, expected);

    drop(first);
    let error = generate(&mut engine, 24).unwrap_err().to_string();
    assert!(error.starts_with(&format!("shard 3..8 at {address}: no connection (")), "{error}");
    // Its socket was left behind by the kill.
    let second = start();
    assert_eq!(generate(&mut engine, 24).unwrap().tokens, expected);
    drop(second);
    let _third = start();
    assert_eq!(generate(&mut engine, 24).unwrap().tokens, expected, "restarted in between: nothing is lost");
}

#[test]
fn a_childs_end_follows_its_parents_however_that_ends() {
    let folder = tempfile::tempdir().unwrap();
    let stats = folder.path().join("s.json");
    let child_stats = folder.path().join("s.shard1.json");
    let mut parent = phasemark(&[
        "generate",
        "--shards",
        "0..4@cpu,4..8@spawn:cpu",
        "--max-tokens",
        "400",
        "--ignore-eos",
        "--draft",
        "none",
        "--stats",
        stats.to_str().unwrap(),
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    // It has begun to generate when its summary of the load is out.
    let mut line = String::new();
    BufReader::new(parent.stderr.take().unwrap()).read_line(&mut line).unwrap();
    parent.kill().unwrap();
    parent.wait().unwrap();
    // The child returns from main and writes what it counted.
    within(Duration::from_secs(30), "the child leaves", || child_stats.exists().then_some(()));
    assert!(!stats.exists());
}

#[test]
fn a_signal_makes_a_shard_return_from_main() {
    let folder = tempfile::tempdir().unwrap();
    for (name, signal) in [("term", Signal::TERM), ("int", Signal::INT)] {
        let (socket, stats) = (folder.path().join(name), folder.path().join(format!("{name}.json")));
        let address = format!("unix:{}", socket.display());
        let mut shard =
            Process::start(&model("target"), "7..8", &address, &["--stats", stats.to_str().unwrap()]);
        // Connected to or not.
        let _parent = (signal == Signal::TERM)
            .then(|| RemoteShard::connect(shard.link(), Models::open().terms(7..8), SHORT).unwrap());
        shard.signal(signal);
        assert_eq!(shard.wait().code(), Some(0));
        assert!(!socket.exists());
        assert_eq!(read_json(&stats)["generations"], 0);
    }
}

/// A process without a descriptor to let a second parent in with neither spins nor forgets the first one.
#[test]
fn a_shard_without_descriptors_goes_on_serving() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard");
    let shard = Process::start(&model("target"), "4..8", &format!("unix:{}", path.display()), &[]);
    let proc = PathBuf::from(format!("/proc/{}", shard.id()));
    // The lowest number is given to the first parent; from the next free one on there is none.
    let taken: Vec<u64> = fs::read_dir(proc.join("fd"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect();
    let most = (0..).filter(|number| !taken.contains(number)).nth(1).unwrap();
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    let id = Pid::from_raw(i32::try_from(shard.id()).unwrap());
    prlimit(id, Resource::Nofile, limit).unwrap();

    let models = Models::open();
    let mut engine =
        models.engine(models.chain(vec![(0..4, None), (4..8, Some(shard.link()))], Limits::default()), false);
    let expected = generate(&mut engine, 8).unwrap().tokens;
    let knocking = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let ticks = || {
        let stat = fs::read_to_string(proc.join("stat")).unwrap();
        let fields: Vec<u64> = stat.split(' ').skip(13).take(2).map(|field| field.parse().unwrap()).collect();
        fields[0] + fields[1]
    };
    let before = ticks();
    std::thread::sleep(Duration::from_secs(2));
    assert!(ticks() - before < 50, "of some 200 in two seconds of a core that spins");
    assert_eq!(generate(&mut engine, 8).unwrap().tokens, expected);
    drop(knocking);
}

/// A child knows why it cannot serve, and its parent which shard that is: one tells the other, and people once.
#[test]
fn a_child_that_cannot_serve_tells_its_parent_why_and_nobody_else() {
    let models = Models::open();
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing").display().to_string();
    let stats = folder.path().join("missing/stats.json").display().to_string();
    let target = model("target").display().to_string();
    let said = folder.path().join("said");
    for (model, more, why) in [
        (&target, ["--device", "cuda:99"], "no device 'cuda:99': "),
        (&missing, ["--device", "cpu"], "no model at "),
        (
            &target,
            ["--stats", &stats],
            ": it cannot be written: No such file or directory (os error 2); nothing was written;",
        ),
    ] {
        let script = format!("exec \"$0\" \"$@\" 2>{}", said.display());
        let args = [
            "-c",
            &script,
            process::PROGRAM,
            "shard",
            "--listen",
            "inherited",
            "--layers",
            "4..8",
            "--model",
            model,
        ];
        let args = args.iter().chain(&more).map(Into::into).collect();
        let child = engine::shard::Spawned::start("spawn:it".into(), "sh".into(), args, &SHORT).unwrap();
        let error =
            RemoteShard::connect(Link::Spawned(child), models.terms(4..8), SHORT).err().unwrap().to_string();
        assert!(error.starts_with("shard 4..8 at spawn:it (process "), "{error}");
        assert!(error.contains(why) && !error.contains("connection"), "{error}");
        assert_eq!(fs::read_to_string(&said).unwrap(), "", "the parent tells");
    }
}

/// Without a parent that listens, a child says it itself.
#[test]
fn a_child_whose_parent_is_gone_says_why_it_cannot_serve() {
    let (parent, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(parent);
    let mut command = phasemark(&["shard", "--listen", "inherited", "--layers", "4..9"]);
    let output = command.stdin(std::os::fd::OwnedFd::from(theirs)).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("phasemark: --layers 4..9: ") && said.lines().count() == 1, "{said}");
}

#[test]
fn a_variable_that_names_no_backend_is_told_once_and_not_by_every_child() {
    let mut command = phasemark(&["generate", "--shards", "cpu,spawn:cpu,spawn:cpu", "--max-tokens", "4"]);
    let output = command.env("PHASEMARK", "nonesuch").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.matches("nonesuch").count() == 1, "{said}");
}

#[test]
fn what_cannot_be_is_one_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let live =
        Process::start(&model("target"), "4..8", &format!("unix:{}/live", folder.path().display()), &[]);
    let at = live.address.to_string();
    let small = format!("unix:{}/small", folder.path().display());
    let small = Process::start(&model("target"), "4..8", &small, &["--context", "10"]);
    let small = small.address.to_string();
    // A child can write neither its part of this record nor say so before the work.
    std::os::unix::fs::symlink("/dev/full", folder.path().join("full.shard1.json")).unwrap();
    let files = |stats: &str, record: &str| {
        let at = |name: &str| folder.path().join(name).display().to_string();
        ["--max-tokens", "4", "--stats", &at(stats), "--record", &at(record)].map(String::from).to_vec()
    };
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let file = format!("unix:{}", file.display());
    let generate = |shards: &str| vec!["generate".to_owned(), "--shards".into(), shards.into()];
    let shard = |listen: &str, layers: &str| {
        ["shard", "--listen", listen, "--layers", layers].map(String::from).to_vec()
    };
    let cases = [
        (generate("0..4@cpu,5..8@cpu"), "shard 1 begins at layer 5, but layer 4 comes next"),
        (generate("0..4@cpu"), "the shards end at layer 4, but the model has 8 layers"),
        (generate("0..8@gpu"), "no device 'gpu'"),
        (generate("0..4@cpu,4..8@spawn:gpu"), "no device 'gpu'"),
        (generate(&format!("0..4@cpu,4..8@{small}")), "its cache holds 10 positions, and 70 are needed"),
        ([generate("cpu,spawn:cpu"), files("k.json", "k.shard1.json")].concat(), "k.shard1.json"),
        (
            [generate("cpu,spawn:cpu"), files("n.json", "full.json")].concat(),
            ": /dev/full: it cannot be written: No space left on device",
        ),
        (generate("0..4@cpu,4..8@unix:/nowhere/at/all"), "start it first with `phasemark shard`"),
        (generate("0..4@cpu,4..8@tcp:192.0.2.1:7"), "use an SSH tunnel"),
        (generate(&format!("0..3@cpu,3..8@{at}")), "the parent says layers 3..8 and the shard 4..8"),
        (
            [
                generate(&format!("0..4@cpu,4..8@{at}")),
                ["--model", "models/tiny/qwen2-bias-tied"].map(String::from).to_vec(),
            ]
            .concat(),
            "the shards end at layer 8",
        ),
        (shard(&at, "4..8"), "another shard listens there already"),
        (shard(&file, "4..8"), "no socket: it is left alone"),
        (shard("tcp:0.0.0.0:0", "4..8"), "is not this host"),
        (shard("nowhere", "4..8"), "is no address"),
        (shard("tcp:localhost:0", "4..9"), "the model has layers 0..8"),
        (shard("tcp:localhost:0", "4..4"), "the model has layers 0..8"),
        (shard("tcp:localhost:0", "4-8"), "is no range of layers"),
        (shard("inherited", "4..8"), "the standard input is no socket of a parent"),
    ];
    for (args, says) in cases {
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let output = phasemark(&args).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(says), "{args:?}: {error}");
        let told = error.lines().filter(|line| line.starts_with("phasemark")).count();
        assert_eq!(told, 1, "once, by whoever knows: {args:?}: {error}");
        assert!(output.stdout.is_empty() || says.contains("No space left"), "{args:?}");
    }
}
