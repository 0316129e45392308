//! What streams and graphs remember, and doing it when the stream is synchronised.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::kernels::{self, Grid, Space};
use crate::ledger::{Answer, Function, Ledger, Queued, code};
use crate::memory::{self, Access, POISON};

/// Shared memory of a workgroup of gfx1151, in bytes.
const SHARED: u32 = 64 << 10;

/// One piece of work. `blocks` are those of this library that it uses, by their first address.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    Upload { to: u64, from: u64, bytes: usize, blocks: Vec<u64> },
    Download { to: u64, from: u64, bytes: usize, blocks: Vec<u64> },
    Copy { to: u64, from: u64, bytes: usize, blocks: Vec<u64> },
    Fill { to: u64, byte: u8, bytes: usize, blocks: Vec<u64> },
    Launch { function: Function, grid: Grid, argument: Vec<u8>, blocks: Vec<u64> },
}

impl Task {
    /// What it uses.
    pub(crate) fn blocks(&self) -> &[u64] {
        match self {
            Task::Upload { blocks, .. }
            | Task::Download { blocks, .. }
            | Task::Copy { blocks, .. }
            | Task::Fill { blocks, .. }
            | Task::Launch { blocks, .. } => blocks,
        }
    }

    /// What it leaves the host to do with a block of shared memory; `None` if it does not use it.
    pub(crate) fn leaves_of(&self, block: u64) -> Option<Access> {
        if !self.blocks().contains(&block) {
            return None;
        }
        Some(if matches!(self, Task::Download { .. }) { Access::Nothing } else { Access::Read })
    }

    /// Whether the host's end of a copy is the host's own memory, which may be gone when a graph runs.
    fn is_pageable(&self) -> bool {
        matches!(self, Task::Upload { blocks, .. } | Task::Download { blocks, .. } if blocks.len() < 2)
    }
}

impl Ledger {
    /// A copy from the host.
    pub(crate) fn upload(&mut self, to: u64, from: u64, bytes: usize) -> Answer<Task> {
        let (device, host) = (self.device(to, bytes as u64), self.pinned(from, bytes as u64));
        let blocks = [Some(self.right(device)?), self.right(host)?];
        Ok(Task::Upload { to, from, bytes, blocks: blocks.into_iter().flatten().collect() })
    }

    /// A copy to the host.
    pub(crate) fn download(&mut self, to: u64, from: u64, bytes: usize) -> Answer<Task> {
        let (device, host) = (self.device(from, bytes as u64), self.pinned(to, bytes as u64));
        let blocks = [Some(self.right(device)?), self.right(host)?];
        Ok(Task::Download { to, from, bytes, blocks: blocks.into_iter().flatten().collect() })
    }

    /// A copy within the device.
    pub(crate) fn copy(&mut self, to: u64, from: u64, bytes: usize) -> Answer<Task> {
        let (first, second) = (self.device(to, bytes as u64), self.device(from, bytes as u64));
        let blocks = vec![self.right(first)?, self.right(second)?];
        if to < from + bytes as u64 && from < to + bytes as u64 {
            return Err(self.wrong(code::INVALID_VALUE, "the two ranges overlap"));
        }
        Ok(Task::Copy { to, from, bytes, blocks })
    }

    /// A fill.
    pub(crate) fn fill(&mut self, to: u64, byte: u8, bytes: usize) -> Answer<Task> {
        let device = self.device(to, bytes as u64);
        Ok(Task::Fill { to, byte, bytes, blocks: vec![self.right(device)?] })
    }

    /// A kernel: its addresses must all be memory of the device that lives. How far it goes is seen when it runs.
    pub(crate) fn launch(&mut self, function: u64, grid: Grid, argument: Vec<u8>) -> Answer<Task> {
        let Some(&function) = self.functions.get(&function) else {
            let what = format!("unknown function: {function:#x} is none of this library");
            return Err(self.wrong(code::INVALID_HANDLE, &what));
        };
        self.module(function.module)?;
        let name = function.kernel.name();
        if grid.blocks.contains(&0) || grid.threads == 0 || grid.threads > 1024 {
            return Err(self.wrong(code::INVALID_VALUE, &format!("{name}: no such grid: {grid:?}")));
        }
        if function.needs.shared + grid.shared > SHARED {
            let asked = function.needs.shared + grid.shared;
            let what = format!("{name}: {asked} bytes of shared memory, where a workgroup has {SHARED}");
            return Err(self.wrong(code::INVALID_VALUE, &what));
        }
        let mut blocks = Vec::new();
        for (field, offset) in function.kernel.addresses() {
            let address = argument[offset..offset + 8].try_into().map_or(0, u64::from_le_bytes);
            if address == 0 {
                continue;
            }
            match self.device(address, 1) {
                Ok(block) => blocks.push(block),
                Err(what) => {
                    return Err(self.wrong(code::ILLEGAL_ADDRESS, &format!("{name}, `{field}`: {what}")));
                }
            }
        }
        Ok(Task::Launch { function, grid, argument, blocks })
    }

    fn right<T>(&mut self, checked: Result<T, String>) -> Answer<T> {
        checked.map_err(|what| self.wrong(code::INVALID_VALUE, &what))
    }

    /// Puts work on a stream, or to what the stream remembers.
    pub(crate) fn enqueue(&mut self, on: u64, tasks: Vec<Task>, graph: Option<u64>) -> Answer {
        if let Some((captured, _)) = &mut self.stream(on)?.capturing {
            let pageable = tasks.iter().any(Task::is_pageable);
            captured.extend(tasks);
            if pageable {
                let what = "a captured copy uses the host's own memory, which may be gone when it runs";
                return Err(self.wrong(code::CAPTURE_UNSUPPORTED, what));
            }
            return Ok(());
        }
        for task in tasks {
            for &block in task.blocks() {
                if self.blocks.get(&block).is_none_or(|block| block.freed) {
                    let what = format!("used after free: a graph's work uses the memory at {block:#x}");
                    return Err(self.wrong(code::INVALID_VALUE, &what));
                }
                if self.users(block).iter().any(|&stream| stream != on) {
                    let what = format!(
                        "wrong stream: the memory at {block:#x} is used by work under way on another stream"
                    );
                    return Err(self.wrong(code::INVALID_VALUE, &what));
                }
            }
            if let Task::Launch { function, .. } = &task {
                self.module(function.module)?;
            }
            // What an upload before it is still to read stays: there the host's access is closed, and that is enough.
            if let Task::Download { to, bytes, ref blocks, .. } = task
                && !blocks[1..].iter().any(|&block| !self.users(block).is_empty())
            {
                self.open(blocks);
                #[allow(unsafe_code, reason = "memory by address")]
                // SAFETY: of this library and that long; or the caller's, which HIP demands to be there.
                unsafe {
                    memory::fill(to, POISON, bytes);
                }
            }
            self.stream(on)?.queue.push(Queued { task, graph });
        }
        self.guard();
        Ok(())
    }

    fn open(&self, blocks: &[u64]) {
        for block in blocks.iter().filter_map(|block| self.blocks.get(block)).filter(|block| block.pinned) {
            block.pages.allow(Access::All);
        }
    }

    /// Does everything that waits on a stream.
    pub(crate) fn synchronise(&mut self, handle: u64) -> Answer {
        let stream = self.stream(handle)?;
        if stream.capturing.is_some() {
            return Err(self.wrong(code::CAPTURE_UNSUPPORTED, "the stream is capturing"));
        }
        let queue = std::mem::take(&mut stream.queue);
        let mut done = Ok(());
        for Queued { task, .. } in &queue {
            self.open(task.blocks());
            // What comes after a failure is not done.
            done = done.and_then(|()| self.run(task));
        }
        self.guard();
        done.map_err(|what| self.wrong(code::LAUNCH_FAILURE, &what))
    }

    /// Drops what waits on a stream, as a device does whose work failed.
    pub(crate) fn discard(&mut self, handle: u64) {
        if let Some(stream) = self.streams.get_mut(&handle) {
            stream.queue.clear();
        }
        self.guard();
    }

    fn run(&self, task: &Task) -> Result<(), String> {
        // What was checked may have been freed since.
        for &block in task.blocks() {
            self.holding(block, 1)?;
        }
        match *task {
            Task::Upload { to, from, bytes, .. }
            | Task::Download { to, from, bytes, .. }
            | Task::Copy { to, from, bytes, .. } => {
                #[allow(unsafe_code, reason = "memory by address")]
                // SAFETY: ranges of this library were checked and live; the host's own are its promise to HIP.
                unsafe {
                    memory::copy(from, to, bytes);
                }
                Ok(())
            }
            Task::Fill { to, byte, bytes, .. } => {
                #[allow(unsafe_code, reason = "memory by address")]
                // SAFETY: checked, and it lives.
                unsafe {
                    memory::fill(to, byte, bytes);
                }
                Ok(())
            }
            Task::Launch { ref function, grid, ref argument, .. } => {
                let name = function.kernel.name();
                let run = || kernels::run(function.kernel, argument, grid, &Space(self));
                match catch_unwind(AssertUnwindSafe(run)) {
                    Ok(done) => done.map_err(|what| format!("{name}: {what}")),
                    Err(_) => Err(format!("{name}: it read or wrote past the end of an array")),
                }
            }
        }
    }
}

impl Space<'_> {
    /// `len` values at an address of the device.
    pub(crate) fn cells<T: Plain>(&self, at: u64, len: usize) -> Result<&[Cell<T>], String> {
        self.0.device(at, (len * size_of::<T>()) as u64)?;
        if !at.is_multiple_of(align_of::<T>() as u64) {
            return Err(format!("{at:#x} is not aligned to {} bytes", align_of::<T>()));
        }
        #[allow(unsafe_code, reason = "memory by address")]
        // SAFETY: checked; kernels run one after the other, under the ledger's lock.
        Ok(unsafe { memory::cells(at, len) })
    }
}

/// Values that are their bytes, whatever the bytes.
pub(crate) trait Plain: Copy {}
impl Plain for u16 {}
impl Plain for u32 {}
impl Plain for f32 {}
