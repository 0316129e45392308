//! The calls over host memory.

use std::ffi::{CStr, c_void};

use crate::arguments::Kernel;
use crate::calls::Runtime;
use crate::image;
use crate::kernels::Grid;
use crate::ledger::{Answer, Block, Function, Graph, Ledger, Module, Stream, code};
use crate::memory::{Image, Pages};
use crate::trap;

/// Bytes of the device unless the environment says.
const MEMORY: u64 = 16 << 30;

fn total() -> u64 {
    let asked = std::env::var("PHASEMARK_STAND_IN_MEMORY").ok();
    asked.and_then(|bytes| bytes.parse().ok()).unwrap_or(MEMORY)
}

impl Ledger {
    fn new_block(&mut self, bytes: usize, pinned: bool) -> Answer<u64> {
        self.not_while_capturing()?;
        if bytes == 0 {
            return Err(self.wrong(code::INVALID_VALUE, "no bytes were asked for"));
        }
        if !pinned && self.used() + bytes as u64 > total() {
            return Err(code::OUT_OF_MEMORY);
        }
        let pages = Pages::new(bytes).ok_or(code::OUT_OF_MEMORY)?;
        let at = pages.at();
        if pinned {
            trap::watch(at, pages.end());
        }
        self.blocks.insert(at, Block { pages, bytes, pinned, freed: false });
        Ok(at)
    }

    fn free_block(&mut self, at: u64, pinned: bool) -> Answer {
        self.not_while_capturing()?;
        let what = match self.blocks.get(&at) {
            None => format!("{at:#x} was never given out"),
            Some(block) if block.freed => format!("freed twice: {at:#x} of {} bytes", block.bytes),
            Some(block) if block.pinned != pinned => format!("{at:#x} is memory of the other kind"),
            Some(_) => {
                let in_use = !self.users(at).is_empty();
                if let Some(block) = self.blocks.get_mut(&at) {
                    block.freed = true;
                    trap::forget(at);
                    block.pages.close();
                }
                if !in_use {
                    return Ok(());
                }
                format!("freed while in use: work under way uses {at:#x}")
            }
        };
        Err(self.wrong(code::INVALID_VALUE, &what))
    }
}

impl Runtime for Ledger {
    fn init(&mut self) -> Answer {
        Ok(())
    }

    fn device_count(&mut self) -> Answer<i32> {
        Ok(1)
    }

    fn set_device(&mut self, device: i32) -> Answer {
        if device == 0 { Ok(()) } else { Err(self.wrong(code::INVALID_DEVICE, "there is one device, 0")) }
    }

    fn memory(&mut self) -> Answer<(usize, usize)> {
        Ok((total().saturating_sub(self.used()) as usize, total() as usize))
    }

    fn malloc(&mut self, bytes: usize) -> Answer<u64> {
        self.new_block(bytes, false)
    }

    fn free(&mut self, at: u64) -> Answer {
        self.free_block(at, false)
    }

    fn host_malloc(&mut self, bytes: usize) -> Answer<u64> {
        self.new_block(bytes, true)
    }

    fn host_free(&mut self, at: u64) -> Answer {
        self.free_block(at, true)
    }

    fn create_stream(&mut self) -> Answer<u64> {
        let handle = self.handle();
        self.streams.insert(handle, Stream::default());
        Ok(handle)
    }

    fn destroy_stream(&mut self, stream: u64) -> Answer {
        let it = self.stream(stream)?;
        it.ended = true;
        let (waits, captures) = (!it.queue.is_empty(), it.capturing.take().is_some());
        self.discard(stream);
        if waits || captures {
            let what = if waits { "work waits on it" } else { "it is capturing" };
            return Err(self.wrong(code::INVALID_VALUE, &format!("destroy order: {what}")));
        }
        Ok(())
    }

    fn synchronise(&mut self, stream: u64) -> Answer {
        Ledger::synchronise(self, stream)
    }

    fn discard(&mut self, stream: u64) -> Answer {
        Ledger::discard(self, stream);
        Ok(())
    }

    fn upload(&mut self, to: u64, from: u64, bytes: usize, on: u64) -> Answer {
        let task = Ledger::upload(self, to, from, bytes)?;
        self.enqueue(on, vec![task], None)
    }

    fn download(&mut self, to: u64, from: u64, bytes: usize, on: u64) -> Answer {
        let task = Ledger::download(self, to, from, bytes)?;
        self.enqueue(on, vec![task], None)
    }

    fn copy(&mut self, to: u64, from: u64, bytes: usize, on: u64) -> Answer {
        let task = Ledger::copy(self, to, from, bytes)?;
        self.enqueue(on, vec![task], None)
    }

    fn fill(&mut self, to: u64, byte: u8, bytes: usize, on: u64) -> Answer {
        let task = Ledger::fill(self, to, byte, bytes)?;
        self.enqueue(on, vec![task], None)
    }

    fn load_module(&mut self, image: *const c_void) -> Answer<u64> {
        if image.is_null() {
            return Err(self.wrong(code::INVALID_VALUE, "no image"));
        }
        #[allow(unsafe_code, reason = "memory by address")]
        // SAFETY: HIP's own demand of the caller.
        let image = unsafe { Image::new(image) };
        let kernels = image::kernels(&image).map_err(|what| self.wrong(code::NO_BINARY_FOR_GPU, &what))?;
        let handle = self.handle();
        self.modules.insert(handle, Module { kernels, ended: false });
        Ok(handle)
    }

    fn unload_module(&mut self, module: u64) -> Answer {
        self.module(module)?.ended = true;
        let uses = |stream: &Stream| {
            stream.queue.iter().any(
                |queued| matches!(&queued.task, crate::work::Task::Launch { function, .. } if function.module == module),
            )
        };
        if self.streams.values().any(uses) {
            return Err(self.wrong(code::INVALID_VALUE, "destroy order: its kernels wait on a stream"));
        }
        Ok(())
    }

    fn function(&mut self, module: u64, name: &CStr) -> Answer<u64> {
        let name = name.to_string_lossy().into_owned();
        let Some(&needs) = self.module(module)?.kernels.get(&name) else {
            let what = format!("unknown function: the image has no kernel `{name}`");
            return Err(self.wrong(code::NOT_FOUND, &what));
        };
        let Some(&kernel) = Kernel::ALL.iter().find(|kernel| kernel.name() == name) else {
            let what = format!("unknown function: the host has no argument for the kernel `{name}`");
            return Err(self.wrong(code::NOT_FOUND, &what));
        };
        if needs.arguments < kernel.argument_size() {
            let (image, host) = (needs.arguments, kernel.argument_size());
            let what = format!("`{name}` takes {image} bytes in the image and {host} of the host");
            return Err(self.wrong(code::INVALID_VALUE, &what));
        }
        let handle = self.handle();
        self.functions.insert(handle, Function { kernel, module, needs });
        Ok(handle)
    }

    fn launch(&mut self, function: u64, grid: Grid, argument: *mut c_void, on: u64) -> Answer {
        let size = self.functions.get(&function).map_or(0, |function| function.kernel.argument_size());
        #[allow(unsafe_code, reason = "memory by address")]
        // SAFETY: HIP's own demand of the caller; the size is the kernel's, 0 for none.
        let argument = unsafe { std::slice::from_raw_parts(argument.cast::<u8>(), size) }.to_vec();
        let task = Ledger::launch(self, function, grid, argument)?;
        self.enqueue(on, vec![task], None)
    }

    fn begin_capture(&mut self, stream: u64) -> Answer {
        let it = self.stream(stream)?;
        if it.capturing.is_some() {
            return Err(self.wrong(code::CAPTURE_UNSUPPORTED, "the stream is capturing already"));
        }
        it.capturing = Some((Vec::new(), std::thread::current().id()));
        Ok(())
    }

    fn end_capture(&mut self, stream: u64) -> Answer<u64> {
        let Some((tasks, _)) = self.stream(stream)?.capturing.take() else {
            return Err(self.wrong(code::CAPTURE_UNSUPPORTED, "the stream is not capturing"));
        };
        let handle = self.handle();
        self.graphs.insert(handle, Graph { tasks, ready: false, ended: false });
        Ok(handle)
    }

    fn instantiate(&mut self, graph: u64) -> Answer<u64> {
        let tasks = self.graph(graph, false)?.tasks.clone();
        let handle = self.handle();
        self.graphs.insert(handle, Graph { tasks, ready: true, ended: false });
        Ok(handle)
    }

    fn destroy_graph(&mut self, graph: u64) -> Answer {
        self.graph(graph, false)?.ended = true;
        Ok(())
    }

    fn launch_graph(&mut self, graph: u64, on: u64) -> Answer {
        let tasks = self.graph(graph, true)?.tasks.clone();
        self.enqueue(on, tasks, Some(graph))
    }

    fn destroy_ready_graph(&mut self, graph: u64) -> Answer {
        self.graph(graph, true)?.ended = true;
        let waits = |stream: &Stream| stream.queue.iter().any(|queued| queued.graph == Some(graph));
        if self.streams.values().any(waits) {
            return Err(self.wrong(code::INVALID_VALUE, "destroy order: its work waits on a stream"));
        }
        Ok(())
    }
}
