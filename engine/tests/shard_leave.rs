//! A shard that is asked to leave before it serves: it reads no further weights, and returns from `main`. And a parent that
//! cannot have its shards: it reads none.
//!
//! The model here has far more weights than the process may have memory, all of them zeros that take no room on disk: who
//! goes on reading is seen to, however fast or slow the machine is.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Map, Value, json};

#[path = "shards/process.rs"]
#[allow(dead_code, reason = "each test takes what it needs")]
mod process;
use process::{PROGRAM, send, within};

const LAYERS: usize = 200;
const HIDDEN: usize = 1024;
const INNER: usize = 2816;
/// As many as the tokenizer of the shipped pair has.
const VOCAB: usize = 4096;
/// KiB of memory that a shard may have: some 40 layers.
const MEMORY: &str = "1048576";

/// A model of 5 GB that nobody can load with so little memory.
fn endless_model(folder: &Path) -> PathBuf {
    let model = folder.join("endless");
    fs::create_dir(&model).unwrap();
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HIDDEN / 64,
        "num_key_value_heads": HIDDEN / 64, "head_dim": 64, "vocab_size": VOCAB, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": true, "eos_token_id": 0,
    });
    fs::write(model.join("config.json"), config.to_string()).unwrap();

    let (mut tensors, mut end) = (Map::new(), 0);
    let mut add = |name: String, shape: &[usize]| {
        let begin = end;
        end += 2 * shape.iter().product::<usize>();
        tensors.insert(name, json!({ "dtype": "BF16", "shape": shape, "data_offsets": [begin, end] }));
    };
    add("model.embed_tokens.weight".into(), &[VOCAB, HIDDEN]);
    add("model.norm.weight".into(), &[HIDDEN]);
    for layer in 0..LAYERS {
        let mut add = |part: &str, shape: &[usize]| add(format!("model.layers.{layer}.{part}.weight"), shape);
        add("input_layernorm", &[HIDDEN]);
        add("post_attention_layernorm", &[HIDDEN]);
        for head in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            add(&format!("self_attn.{head}"), &[HIDDEN, HIDDEN]);
        }
        add("mlp.gate_proj", &[INNER, HIDDEN]);
        add("mlp.up_proj", &[INNER, HIDDEN]);
        add("mlp.down_proj", &[HIDDEN, INNER]);
    }
    let header = Value::Object(tensors).to_string();
    let mut file = File::create(model.join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len((8 + header.len() + end) as u64).unwrap();
    model
}

/// A command of `phasemark` that may have little memory.
fn with_little_memory(args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -d {MEMORY} && exec \"$0\" \"$@\""), PROGRAM]).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// A shard of all layers of `model`.
fn shard(model: &Path, listen: &str, more: &[&str]) -> Command {
    let layers = format!("0..{LAYERS}");
    let mut command =
        with_little_memory(&["shard", "--threads", "1", "--listen", listen, "--layers", &layers, "--model"]);
    command.arg(model).args(more);
    command
}

/// The code of its end, and what it said.
fn end_of(mut child: Child) -> (std::process::ExitStatus, String) {
    let status = within(Duration::from_mins(1), "the shard leaves", || child.try_wait().unwrap());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (status, said)
}

/// It was asked to leave, and nothing went wrong.
#[track_caller]
fn leaves_in_silence(child: Child) {
    let (status, said) = end_of(child);
    assert_eq!((status.code(), &*said), (Some(0), ""), "{status}");
}

#[test]
fn a_signal_ends_the_reading_of_weights() {
    let folder = tempfile::tempdir().unwrap();
    let model = endless_model(folder.path());
    for signal in [Signal::TERM, Signal::INT] {
        let (socket, stats) = (folder.path().join("shard"), folder.path().join("stats.json"));
        let listen = format!("unix:{}", socket.display());
        let child = shard(&model, &listen, &["--stats", stats.to_str().unwrap()]).spawn().unwrap();
        // It listens before it reads.
        within(Duration::from_secs(30), "it listens", || socket.exists().then_some(()));
        send(child.id(), signal);
        let (status, said) = end_of(child);
        assert_eq!(
            (status.code(), &*said),
            (Some(0), ""),
            "{status}: it is no failure, and it never was ready"
        );
        assert!(!socket.exists());
        let stats: Value = serde_json::from_str(&fs::read_to_string(stats).unwrap()).unwrap();
        assert_eq!(stats["generations"], 0, "whole, as of a shard that served nobody");
    }
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        2,
        "the model, and the statistics: nothing half"
    );
}

#[test]
fn the_end_of_its_parent_ends_the_reading_of_weights() {
    let folder = tempfile::tempdir().unwrap();
    let model = endless_model(folder.path());
    for asked in [&b""[..], b"a parent that was killed may have said something before"] {
        let (mut parent, theirs) = UnixStream::pair().unwrap();
        parent.write_all(asked).unwrap();
        let mut command = shard(&model, "inherited", &[]);
        command.stdin(OwnedFd::from(theirs));
        drop(parent);
        let child = command.spawn().unwrap();
        // Its own copy of the child's end would be no end.
        drop(command);
        leaves_in_silence(child);
    }
}

/// An address with a slip in it is told at once, not after all that can be read here was.
#[test]
fn a_shard_that_is_not_there_is_told_before_weights_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let model = endless_model(folder.path());
    fs::copy(process::workspace().join("models/pair/target/tokenizer.json"), model.join("tokenizer.json"))
        .unwrap();
    for (place, why) in [
        ("unix:/nowhere/at/all", "start it first with `phasemark shard`"),
        ("tcp:192.0.2.1:7", "is not this host"),
        ("nonesuch", "no device 'nonesuch'"),
    ] {
        let shards = format!("0..100@cpu,100..150@spawn:cpu,150..{LAYERS}@{place}");
        let mut command = with_little_memory(&[
            "generate",
            "--prompt-ids",
            "1",
            "--draft",
            "none",
            "--shards",
            &shards,
            "--model",
        ]);
        let (status, said) = end_of(command.arg(&model).spawn().unwrap());
        assert_eq!(status.code(), Some(2), "{said}");
        assert!(said.contains(why) && said.lines().count() == 1, "{said}");
    }
}

/// A pipe with a name, which nobody has opened.
fn named_pipe(folder: &Path) -> PathBuf {
    let pipe = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    pipe
}

/// Nobody knows whether there will ever be a reader.
#[test]
fn a_signal_and_the_end_of_its_parent_end_a_shard_that_waits_for_the_reader_of_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = named_pipe(folder.path());
    let more = ["--stats", pipe.to_str().unwrap()];
    let hears_signals = |child: &Child| {
        let status = PathBuf::from(format!("/proc/{}/status", child.id()));
        let both =
            [Signal::TERM, Signal::INT].iter().fold(0, |both, signal| both | 1 << (signal.as_raw() - 1));
        within(Duration::from_secs(30), "it hears signals", || {
            let status = fs::read_to_string(&status).unwrap_or_default();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
            (u64::from_str_radix(caught.trim(), 16).unwrap() & both == both).then_some(())
        });
    };

    let child = shard(Path::new("nowhere"), "tcp:127.0.0.1:0", &more).spawn().unwrap();
    hears_signals(&child);
    send(child.id(), Signal::TERM);
    leaves_in_silence(child);

    let (parent, theirs) = UnixStream::pair().unwrap();
    let mut command = shard(Path::new("nowhere"), "inherited", &more);
    let child = command.stdin(OwnedFd::from(theirs)).spawn().unwrap();
    drop(command);
    hears_signals(&child);
    drop(parent);
    leaves_in_silence(child);
}

/// It looks at the pipe without waiting, and then writes to it as to any other.
#[test]
fn a_reader_of_a_pipe_who_comes_late_gets_all() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = named_pipe(folder.path());
    let model = process::workspace().join("models/pair/target");
    let more = ["--stats", pipe.to_str().unwrap()];
    let shard = process::Process::begin(&model, "7..8", "tcp:127.0.0.1:0", &more);
    let mut reader = File::open(&pipe).unwrap();
    let mut shard = shard.ready();
    shard.signal(Signal::TERM);
    let mut stats = String::new();
    reader.read_to_string(&mut stats).unwrap();
    assert_eq!(shard.wait().code(), Some(0));
    assert_eq!(serde_json::from_str::<Value>(&stats).unwrap()["generations"], 0);
}

/// A write that never ends would keep the signal from being heard, for ever.
#[test]
fn a_pipe_that_nobody_empties_does_not_keep_a_shard() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = named_pipe(folder.path());
    // A reader that reads nothing, of a pipe that is full.
    let mut full = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&pipe).unwrap();
    while full.write(&[0; 4096]).is_ok() {}
    let model = process::workspace().join("models/pair/target");
    let more = ["--stats", pipe.to_str().unwrap()];
    let mut shard = process::Process::start(&model, "7..8", "tcp:127.0.0.1:0", &more);
    shard.signal(Signal::TERM);
    assert_eq!(shard.wait().code(), Some(2), "it could not write, and left");
}
