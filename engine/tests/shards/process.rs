//! `phasemark shard` as a process of a test's own: started, signalled, and reaped whatever happens.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use engine::shard::{Address, Limits, Link, Spawned};
use rustix::process::{Pid, Signal, kill_process};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_phasemark");

pub(crate) fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The binary, in the workspace's folder, with none of the variables that choose markers.
pub(crate) fn phasemark(args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(args).current_dir(workspace()).stdin(Stdio::null());
    for name in ["PHASEMARK", "DFLASH_DS4_ROCTX", "LUCE_DS4_ROCTX"] {
        command.env_remove(name);
    }
    command
}

/// A shard that listens.
pub(crate) struct Process {
    child: Child,
    pub(crate) address: Address,
}

impl Process {
    /// Starts it and waits until it listens.
    pub(crate) fn start(model: &Path, layers: &str, address: &str, more: &[&str]) -> Self {
        Process::begin(model, layers, address, more).ready()
    }

    /// Starts it.
    pub(crate) fn begin(model: &Path, layers: &str, address: &str, more: &[&str]) -> Beginning {
        let model = model.to_str().unwrap();
        let args = ["shard", "--model", model, "--layers", layers, "--listen", address, "--threads", "1"];
        let mut command = phasemark(&[&args[..], more].concat());
        Beginning(command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    pub(crate) fn link(&self) -> Link {
        Link::Listening { address: self.address.clone(), insecure: false }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.child.id(), signal);
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        within(Duration::from_secs(30), "the shard leaves", || self.child.try_wait().unwrap())
    }
}

/// A shard that reads its weights.
pub(crate) struct Beginning(Child);

impl Beginning {
    pub(crate) fn ready(mut self) -> Process {
        let mut lines = BufReader::new(self.0.stderr.take().unwrap()).lines();
        let mut seen = Vec::new();
        let address = loop {
            let Some(Ok(line)) = lines.next() else {
                let _ = self.0.wait();
                panic!("the shard ended: {seen:?}");
            };
            if let Some(address) = line.strip_prefix("listening on ") {
                break address.parse().unwrap();
            }
            seen.push(line);
        };
        // It must never wait for somebody to read what it says.
        std::thread::spawn(move || for _ in lines.map_while(Result::ok) {});
        Process { child: self.0, address }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn send(id: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(id).unwrap()).unwrap(), signal).unwrap();
}

/// Waits until `what` gives something.
pub(crate) fn within<T>(limit: Duration, what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + limit;
    loop {
        if let Some(done) = done() {
            return done;
        }
        assert!(Instant::now() < until, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A child of this process that serves these layers.
pub(crate) fn spawned(model: &Path, layers: &str, limits: &Limits) -> Spawned {
    let model: PathBuf = model.into();
    let args = ["shard", "--listen", "inherited", "--threads", "1", "--layers", layers, "--model"];
    let args = args.iter().map(Into::into).chain([model.into()]).collect();
    Spawned::start("spawn:cpu".into(), PROGRAM.into(), args, limits).unwrap()
}

/// The children of this process.
pub(crate) fn children() -> Vec<u32> {
    let mut children = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let list = std::fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default();
        children.extend(list.split_whitespace().map(|id| id.parse::<u32>().unwrap()));
    }
    children
}
