//! The real HIP runtime of Debian 12 on a machine without an AMD GPU: it says that there is no device, and so does the
//! engine. Nothing crashes and nothing is lost.
//!
//! `cargo xtask hip` unpacks it; the tests fail where it is not.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::stand_in::workspace;

/// Where the runtime and what it links to are.
fn libraries() -> String {
    let here = std::env::current_exe().unwrap();
    let found = here.ancestors().map(|folder| folder.join("tools/hip")).find(|path| path.exists());
    let prefix: PathBuf = found.expect("no HIP runtime in target/tools; `cargo xtask hip` gets it");
    ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"]
        .map(|folder| prefix.join(folder).display().to_string())
        .join(":")
}

fn run(program: &str, args: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(args).current_dir(workspace()).stdin(Stdio::null());
    command.env_remove("PHASEMARK").env("LD_LIBRARY_PATH", libraries());
    command.output().unwrap()
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_phasemark");

/// With an AMD GPU the runtime finds it, and there is nothing to try.
fn there_is_a_gpu() -> bool {
    let there = fs::exists("/dev/kfd").unwrap();
    if there {
        println!("not tried: /dev/kfd is here, and this is for machines without an AMD GPU");
    }
    there
}

#[test]
fn there_is_no_device_and_every_command_says_so() {
    if there_is_a_gpu() {
        return;
    }
    let doctor = run(PROGRAM, &["doctor"]);
    assert_eq!(doctor.status.code(), Some(0));
    let report = String::from_utf8(doctor.stdout).unwrap();
    let line = report.lines().find(|line| line.starts_with("hip ")).unwrap();
    assert!(line.contains("the HIP runtime finds no device (hipInit failed: hipError"), "{line}");
    let why = line.strip_prefix("hip").unwrap().trim();

    for args in [
        &["generate", "--device", "hip", "--max-tokens", "2"][..],
        &["generate", "--shards", "0..4@cpu,4..8@hip:0", "--max-tokens", "2"],
        &["generate", "--shards", "0..4@cpu,4..8@spawn:hip", "--max-tokens", "2"],
        &["verify-model", "models/pair/target", "--device", "hip"],
        &["bench", "--device", "hip"],
        &["shard", "--device", "hip", "--layers", "0..4", "--listen", "tcp:localhost:0"],
    ] {
        let output = run(PROGRAM, args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(output.stdout.is_empty(), "{args:?}: nothing half written");
        assert!(error.contains("no device 'hip") && error.contains(why), "{args:?}: {error}");
        assert!(error.lines().count() <= 4, "{args:?}: {error}");
    }
}

#[test]
fn nothing_is_lost_and_no_memory_is_misused() {
    if there_is_a_gpu() {
        return;
    }
    let valgrind = ["--quiet", "--leak-check=full", "--errors-for-leak-kinds=definite,indirect,possible"];
    let args = ["--error-exitcode=9", PROGRAM, "generate", "--device", "hip"];
    let output = run("valgrind", &[&valgrind[..], &args].concat());
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("no device 'hip:0'"), "{error}");
}

#[test]
fn asking_again_and_again_opens_nothing_that_stays() {
    // A process that finds the runtime: the libraries' folder is read when it starts.
    let name = "debian::asks_again_and_again";
    let here = std::env::current_exe().unwrap();
    let args = ["--exact", name, "--ignored", "--nocapture"];
    let output = run(here.to_str().unwrap(), &args);
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "the test above starts it with the runtime in its path: `cargo test -p engine --features cuda,hip --test hip`"]
fn asks_again_and_again() {
    let open_files = || fs::read_dir("/proc/self/fd").unwrap().count();
    let refused = || engine::device::open("hip:0", 1).err().unwrap().to_string();
    let first = refused();
    assert!(first.contains("the HIP runtime finds no device"), "{first}");
    let before = open_files();
    for _ in 0..50 {
        assert_eq!(refused(), first);
    }
    assert_eq!(open_files(), before);
}
