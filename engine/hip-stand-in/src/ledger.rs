//! What lives on the device that is stood in for, and what callers did wrong with it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use crate::arguments::Kernel;
use crate::image::Needs;
use crate::memory::{Access, Pages};
use crate::trap;
use crate::work::Task;

/// HIP's numbers for what can be wrong.
pub(crate) mod code {
    pub(crate) const INVALID_VALUE: u32 = 1;
    pub(crate) const OUT_OF_MEMORY: u32 = 2;
    pub(crate) const INVALID_DEVICE: u32 = 101;
    pub(crate) const NO_BINARY_FOR_GPU: u32 = 209;
    pub(crate) const INVALID_HANDLE: u32 = 400;
    pub(crate) const NOT_FOUND: u32 = 500;
    pub(crate) const ILLEGAL_ADDRESS: u32 = 700;
    pub(crate) const LAUNCH_FAILURE: u32 = 719;
    pub(crate) const CAPTURE_UNSUPPORTED: u32 = 900;
}

/// Done, or the error's number.
pub(crate) type Answer<T = ()> = Result<T, u32>;

/// Memory, which once freed is remembered.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) pages: Pages,
    pub(crate) bytes: usize,
    /// Of the host, for both.
    pub(crate) pinned: bool,
    pub(crate) freed: bool,
}

/// A stream.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) queue: Vec<Queued>,
    /// What is remembered instead of queued, and the thread that asked for it.
    pub(crate) capturing: Option<(Vec<Task>, ThreadId)>,
    pub(crate) ended: bool,
}

/// Work that waits on a stream.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) task: Task,
    /// The graph that it is of.
    pub(crate) graph: Option<u64>,
}

/// A loaded image.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) kernels: BTreeMap<String, Needs>,
    pub(crate) ended: bool,
}

/// A kernel of a loaded image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    pub(crate) kernel: Kernel,
    pub(crate) module: u64,
    pub(crate) needs: Needs,
}

/// Captured work.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) tasks: Vec<Task>,
    pub(crate) ready: bool,
    pub(crate) ended: bool,
}

/// All of it. What has ended stays known, so that a second end has a name.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) blocks: BTreeMap<u64, Block>,
    pub(crate) streams: BTreeMap<u64, Stream>,
    pub(crate) modules: BTreeMap<u64, Module>,
    pub(crate) functions: BTreeMap<u64, Function>,
    pub(crate) graphs: BTreeMap<u64, Graph>,
    handles: u64,
    calls: BTreeMap<&'static str, u64>,
    /// The call that is under way, for what is said of it.
    call: &'static str,
    wrongs: Vec<String>,
    /// The calls whose turn it was to fail.
    failed: Vec<&'static str>,
}

/// The one ledger of the process.
pub(crate) fn lock() -> MutexGuard<'static, Ledger> {
    static LEDGER: Mutex<Ledger> = Mutex::new(Ledger {
        blocks: BTreeMap::new(),
        streams: BTreeMap::new(),
        modules: BTreeMap::new(),
        functions: BTreeMap::new(),
        graphs: BTreeMap::new(),
        handles: 0,
        calls: BTreeMap::new(),
        call: "",
        wrongs: Vec::new(),
        failed: Vec::new(),
    });
    LEDGER.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ledger {
    /// A call begins: how many of that name, and of all names, there were with it.
    pub(crate) fn count(&mut self, call: &'static str) -> (u64, u64) {
        self.call = call;
        let same = self.calls.entry(call).or_default();
        *same += 1;
        (*same, self.calls.values().sum())
    }

    /// A call fails because it is its turn.
    pub(crate) fn fail(&mut self, call: &'static str) {
        self.failed.push(call);
    }

    /// The calls whose turn it was.
    pub(crate) fn failed(&self) -> &[&'static str] {
        &self.failed
    }

    /// How often each call was made.
    pub(crate) fn calls(&self) -> &BTreeMap<&'static str, u64> {
        &self.calls
    }

    /// Notes what the call under way did wrong, for `Err(ledger.wrong(..))`.
    pub(crate) fn wrong(&mut self, code: u32, what: &str) -> u32 {
        self.wrongs.push(format!("{}: {what}", self.call));
        code
    }

    /// What was done wrong so far.
    pub(crate) fn wrongs(&self) -> &[String] {
        &self.wrongs
    }

    /// Notes where the host touched what it must not.
    pub(crate) fn note_touches(&mut self) {
        for at in trap::touched() {
            self.wrongs.push(format!(
                "missing synchronisation: the host touched {at:#x} before {}, while work under way used it",
                if self.call.is_empty() { "any call" } else { self.call }
            ));
        }
    }

    /// What lives.
    pub(crate) fn left(&self) -> Vec<String> {
        let blocks = self.blocks.iter().filter(|(_, block)| !block.freed).map(|(at, block)| {
            let kind = if block.pinned { "host memory" } else { "memory" };
            format!("{kind} {at:#x} of {} bytes", block.bytes)
        });
        let name = |kind, handle: &u64| format!("{kind} {handle:#x}");
        let streams = self.streams.iter().filter(|(_, it)| !it.ended).map(|(at, _)| name("stream", at));
        let modules = self.modules.iter().filter(|(_, it)| !it.ended).map(|(at, _)| name("module", at));
        let graphs = self.graphs.iter().filter(|(_, it)| !it.ended).map(|(at, _)| name("graph", at));
        blocks.chain(streams).chain(modules).chain(graphs).collect()
    }

    /// Forgets everything that was counted, done wrong or left, for the next test of this process.
    pub(crate) fn forget(&mut self) {
        for block in self.blocks.values().filter(|block| !block.freed) {
            block.pages.close();
        }
        trap::touched();
        self.blocks.clear();
        self.streams.clear();
        self.modules.clear();
        self.functions.clear();
        self.graphs.clear();
        self.calls.clear();
        self.wrongs.clear();
        self.failed.clear();
        self.call = "";
    }

    /// A number that no other handle has, and that looks like none of the addresses.
    pub(crate) fn handle(&mut self) -> u64 {
        self.handles += 1;
        0x5a_0000_0000 + self.handles * 16
    }

    /// Bytes of the device in use.
    pub(crate) fn used(&self) -> u64 {
        let used = self.blocks.values().filter(|block| !block.freed && !block.pinned);
        used.map(|block| block.bytes as u64).sum()
    }

    /// The block that holds `bytes` from `at` on; else what is wrong with them.
    pub(crate) fn holding(&self, at: u64, bytes: u64) -> Result<(u64, &Block), String> {
        let found = self.blocks.range(..=at).next_back().filter(|(_, block)| at < block.pages.end());
        let Some((&base, block)) = found else {
            return Err(format!("{at:#x} is no memory of this library"));
        };
        if block.freed {
            return Err(format!("used after free: {at:#x} of {} bytes at {base:#x}", block.bytes));
        }
        let (offset, size) = (at - base, block.bytes as u64);
        if offset.checked_add(bytes).is_none_or(|end| end > size) {
            return Err(format!("past the end: {bytes} bytes at {offset} of {size}"));
        }
        Ok((base, block))
    }

    /// As [`holding`](Self::holding), of the device alone.
    pub(crate) fn device(&self, at: u64, bytes: u64) -> Result<u64, String> {
        match self.holding(at, bytes)? {
            (base, block) if !block.pinned => Ok(base),
            _ => Err(format!("{at:#x} is memory of the host")),
        }
    }

    /// The shared host memory that holds `bytes` from `at` on; `None` where the host's own memory is meant.
    pub(crate) fn pinned(&self, at: u64, bytes: u64) -> Result<Option<u64>, String> {
        let near = self.blocks.range(..=at).next_back().filter(|(_, block)| at < block.pages.end());
        if near.is_none() {
            return Ok(None);
        }
        match self.holding(at, bytes)? {
            (base, block) if block.pinned => Ok(Some(base)),
            _ => Err(format!("{at:#x} is memory of the device")),
        }
    }

    /// The streams whose queued work uses a block.
    pub(crate) fn users(&self, base: u64) -> Vec<u64> {
        let uses = |stream: &Stream| stream.queue.iter().any(|queued| queued.task.blocks().contains(&base));
        self.streams.iter().filter(|(_, stream)| uses(stream)).map(|(&handle, _)| handle).collect()
    }

    /// Lets the host do with shared memory what the work under way allows.
    pub(crate) fn guard(&self) {
        for (&base, block) in self.blocks.iter().filter(|(_, block)| block.pinned && !block.freed) {
            let tasks = self.streams.values().flat_map(|stream| &stream.queue);
            let access = tasks.filter_map(|queued| queued.task.leaves_of(base)).min();
            block.pages.allow(access.unwrap_or(Access::All));
        }
    }

    /// A stream that lives.
    pub(crate) fn stream(&mut self, handle: u64) -> Answer<&mut Stream> {
        if self.streams.get(&handle).is_some_and(|stream| !stream.ended) {
            return self.streams.get_mut(&handle).ok_or(code::INVALID_HANDLE);
        }
        let known = self.streams.contains_key(&handle);
        let what = if known { "was destroyed before" } else { "is no stream of this library" };
        Err(self.wrong(code::INVALID_HANDLE, &format!("wrong stream: {handle:#x} {what}")))
    }

    /// A module that lives.
    pub(crate) fn module(&mut self, handle: u64) -> Answer<&mut Module> {
        if self.modules.get(&handle).is_some_and(|module| !module.ended) {
            return self.modules.get_mut(&handle).ok_or(code::INVALID_HANDLE);
        }
        let known = self.modules.contains_key(&handle);
        let what = if known { "was unloaded before" } else { "is no module of this library" };
        Err(self.wrong(code::INVALID_HANDLE, &format!("module {handle:#x} {what}")))
    }

    /// A graph that lives, ready to run or not.
    pub(crate) fn graph(&mut self, handle: u64, ready: bool) -> Answer<&mut Graph> {
        if self.graphs.get(&handle).is_some_and(|graph| !graph.ended && graph.ready == ready) {
            return self.graphs.get_mut(&handle).ok_or(code::INVALID_HANDLE);
        }
        let ended = self.graphs.get(&handle).is_some_and(|graph| graph.ended);
        let what = if ended { "was destroyed before" } else { "is no graph of that kind" };
        Err(self.wrong(code::INVALID_HANDLE, &format!("graph {handle:#x} {what}")))
    }

    /// Calls that a thread may not make while it captures.
    pub(crate) fn not_while_capturing(&mut self) -> Answer {
        let here = std::thread::current().id();
        let mut captured = self.streams.values().filter_map(|stream| stream.capturing.as_ref());
        if captured.any(|(_, thread)| *thread == here) {
            return Err(self.wrong(code::CAPTURE_UNSUPPORTED, "not while this thread captures a stream"));
        }
        Ok(())
    }
}
