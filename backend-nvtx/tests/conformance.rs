//! What every backend owes, with the shim as the witness and with nobody there.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests, but not in functions that say so")]

mod child;
mod shim;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::Mutex;

use backend_nvtx::Nvtx;
use marker_core::Detail;
use marker_core::conformance::{Call, Expect, Seen, Witness, check};
use shim::Shim;

/// Reads the shim's log on from where it was.
struct Tail(Mutex<BufReader<File>>);

impl Witness for Tail {
    fn take(&self) -> Vec<Seen> {
        let mut log = self.0.lock().unwrap();
        let mut seen = Vec::new();
        let mut line = String::new();
        while log.read_line(&mut line).unwrap() > 0 {
            seen.extend(parse(line.trim_end_matches('\n')));
            line.clear();
        }
        seen
    }
}

/// `None` for what the shim says when it attaches.
fn parse(line: &str) -> Option<Seen> {
    let [thread, call, id, text] = line.split('\t').collect::<Vec<_>>().try_into().ok()?;
    let id = id.parse().unwrap();
    let call = match call {
        "push" => Call::Push,
        "pop" => Call::Pop,
        "mark" => Call::Mark,
        "start" => Call::Start(id),
        "end" => Call::Stop(id),
        _ => panic!("{line}"),
    };
    let text = (!matches!(call, Call::Stop(_))).then(|| text.replace("\\n", "\n"));
    Some(Seen { thread: thread.parse().unwrap(), call, text })
}

#[test]
#[ignore = "a scene that other tests start in a process of its own: `cargo test -p backend-nvtx --test conformance`"]
fn scene_conformance() {
    let nvtx = Box::leak(Box::new(Nvtx::load_or_diagnose(Detail::Full)));
    let expect = match std::env::var("SHIM_OMIT").as_deref() {
        Ok("5.5") => Expect { push: false, start: true },
        Ok("5.3") => Expect { push: true, start: false },
        _ if nvtx.is_attached() => Expect::TAKEN,
        _ => Expect::NOT_TAKEN,
    };
    let log = std::env::var_os("SHIM_LOG").filter(|_| nvtx.is_attached());
    let tail = log.map(|log| Tail(Mutex::new(BufReader::new(File::open(log).unwrap()))));
    check(nvtx, expect, tail.as_ref().map(|tail| tail as &dyn Witness));
    println!("> attached: {}", nvtx.is_attached());
}

#[test]
fn the_contract_is_kept_whatever_the_tool_wants() {
    let shim = Shim::new();
    let environments: [&[(&str, &str)]; 5] = [
        &[],
        &[("SHIM_PUSH", "7")],
        &[("SHIM_OMIT", "5.5")],
        &[("SHIM_OMIT", "5.3")],
        &[("SHIM_OMIT", "5.10")],
    ];
    for environment in environments {
        let mut scene = shim.scene("scene_conformance");
        scene.env("SHIM_WITNESS", "1").envs(environment.iter().copied());
        let (ended, _) = shim.run(&mut scene);
        assert_eq!(ended.told(), ["attached: true"], "{environment:?}");
    }
}

#[test]
fn the_contract_is_kept_when_nobody_hears() {
    let ended = child::run(&mut child::scene("scene_conformance"), child::LIMIT).well();
    assert_eq!(ended.told(), ["attached: false"]);
}
