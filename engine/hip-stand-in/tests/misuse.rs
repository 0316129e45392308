//! Every check of the stand-in, by committing what it is to see. What is right passes without a word.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests, but not in functions that say so")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the misuse is the point, and the library says what it sees"
)]

use std::ffi::{CString, c_void};
use std::path::Path;
use std::process::Command;
use std::ptr::{null_mut, read_volatile, write_volatile};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use hip_stand_in::calls::*;
use hip_stand_in::report::report;

#[path = "../../src/device/gpu/arguments.rs"]
#[allow(dead_code, reason = "one of them is enough here")]
mod arguments;
use arguments::Embed;

type Pointer = *mut c_void;

/// The library has one ledger a process: tests take turns, and each begins anew.
struct Turn(#[allow(dead_code, reason = "held")] MutexGuard<'static, ()>);

fn begin() -> Turn {
    static TURN: Mutex<()> = Mutex::new(());
    let guard = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    stand_in_begin(0, 0);
    Turn(guard)
}

impl Turn {
    /// The lines of the report that begin like this.
    #[allow(clippy::unused_self, reason = "the report is the turn's")]
    fn lines(&self, kind: &str) -> Vec<String> {
        report().lines().filter_map(|line| line.strip_prefix(kind)).map(str::to_owned).collect()
    }

    /// The one thing that was wrong.
    #[track_caller]
    fn saw(&self, call: &str, what: &str) {
        let wrongs = self.lines("wrong ");
        let [wrong] = &wrongs[..] else { panic!("one thing is wrong, {call} {what}: {wrongs:?}") };
        assert!(wrong.starts_with(call) && wrong.contains(what), "{wrong}");
    }
}

fn malloc(bytes: usize) -> Pointer {
    let mut at = null_mut();
    assert_eq!(unsafe { hipMalloc(&raw mut at, bytes) }, 0);
    at
}

fn host_malloc(bytes: usize) -> *mut u8 {
    let mut at = null_mut();
    assert_eq!(unsafe { hipHostMalloc(&raw mut at, bytes, 0) }, 0);
    at.cast()
}

fn stream() -> Pointer {
    let mut stream = null_mut();
    assert_eq!(unsafe { hipStreamCreateWithFlags(&raw mut stream, 1) }, 0);
    stream
}

fn fill(to: Pointer, byte: u8, bytes: usize, on: Pointer) -> u32 {
    unsafe { hipMemsetD8Async(to, byte, bytes, on) }
}

fn upload(to: Pointer, from: *const u8, bytes: usize, on: Pointer) -> u32 {
    unsafe { hipMemcpyHtoDAsync(to, from.cast_mut().cast(), bytes, on) }
}

fn download(to: *mut u8, from: Pointer, bytes: usize, on: Pointer) -> u32 {
    unsafe { hipMemcpyDtoHAsync(to.cast(), from, bytes, on) }
}

fn wait(on: Pointer) -> u32 {
    unsafe { hipStreamSynchronize(on) }
}

fn read(at: *const u8) -> u8 {
    unsafe { read_volatile(at) }
}

/// A code object for `processor`, from the engine's own source or another.
fn compiled(processor: &str, source: &Path) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let done = Command::new("clang++-19")
        .args(["-xhip", "--offload-device-only", "--no-gpu-bundle-output", "-nogpulib", "-nogpuinc"])
        .args(["-fuse-cuid=none", "-O1", "-std=c++17", &format!("--offload-arch={processor}"), "-o"])
        .args([&image, source])
        .status()
        .expect("these tests need clang-19 and lld-19");
    assert!(done.success());
    std::fs::read(image).unwrap()
}

fn kernels() -> &'static [u8] {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/kernels/phasemark.cpp");
    IMAGE.get_or_init(|| compiled("gfx1151", &source))
}

fn module(image: &[u8]) -> Result<Pointer, u32> {
    let mut module = null_mut();
    match unsafe { hipModuleLoadData(&raw mut module, image.as_ptr().cast()) } {
        0 => Ok(module),
        code => Err(code),
    }
}

fn function(module: Pointer, name: &str) -> Result<Pointer, u32> {
    let (mut function, name) = (null_mut(), CString::new(name).unwrap());
    match unsafe { hipModuleGetFunction(&raw mut function, module, name.as_ptr()) } {
        0 => Ok(function),
        code => Err(code),
    }
}

/// Four rows of 32 values of a table of four: what `embed` needs, on a stream that has nothing to do.
struct Embedding {
    stream: Pointer,
    module: Pointer,
    function: Pointer,
    x: Pointer,
    tokens: Pointer,
    table: Pointer,
}

impl Embedding {
    fn new() -> Self {
        let module = module(kernels()).unwrap();
        let function = function(module, "embed").unwrap();
        let (stream, x, tokens, table) = (stream(), malloc(4 * 32 * 4), malloc(16), malloc(4 * 32 * 2));
        let ids: Vec<u8> = [3_u32, 0, 1, 3].iter().flat_map(|id| id.to_ne_bytes()).collect();
        // bf16 1 and so on.
        let values: Vec<u8> = [0x3f80_u16, 0x4000, 0x4040, 0x4080]
            .iter()
            .flat_map(|v| [v.to_ne_bytes(); 32])
            .flatten()
            .collect();
        assert_eq!(upload(tokens, ids.as_ptr(), 16, stream), 0);
        assert_eq!(upload(table, values.as_ptr(), 256, stream), 0);
        assert_eq!(wait(stream), 0);
        Embedding { stream, module, function, x, tokens, table }
    }

    fn argument(&self) -> Embed {
        let [x, tokens, table] = [self.x, self.tokens, self.table].map(|at| at as u64);
        Embed { x, tokens, table, width: 32, w_planes: 1, square_parts: 1, ..Embed::default() }
    }

    fn launch(&self, argument: Embed, threads: u32, shared: u32) -> u32 {
        let (mut argument, stream) = (argument, self.stream);
        let mut arguments = [(&raw mut argument).cast::<c_void>()];
        let arguments = arguments.as_mut_ptr();
        unsafe {
            hipModuleLaunchKernel(
                self.function,
                4,
                1,
                1,
                threads,
                1,
                1,
                shared,
                stream,
                arguments,
                null_mut(),
            )
        }
    }

    fn rows(&self) -> Vec<f32> {
        let mut bytes = vec![0_u8; 512];
        assert_eq!(download(bytes.as_mut_ptr(), self.x, 512, self.stream), 0);
        assert_eq!(wait(self.stream), 0);
        bytes.as_chunks().0.iter().map(|&bytes| f32::from_ne_bytes(bytes)).collect()
    }

    fn end(self) {
        assert_eq!(wait(self.stream), 0);
        unsafe {
            for at in [self.x, self.tokens, self.table] {
                assert_eq!(hipFree(at), 0);
            }
            assert_eq!(hipStreamDestroy(self.stream), 0);
            assert_eq!(hipModuleUnload(self.module), 0);
        }
    }
}

#[test]
fn what_is_right_passes_without_a_word_and_leaves_nothing() {
    let turn = begin();
    let it = Embedding::new();
    assert_eq!(it.launch(it.argument(), 256, 0), 0);
    let rows = it.rows();
    let expected: Vec<f32> = [4.0, 1.0, 2.0, 4.0].iter().flat_map(|&value| [value; 32]).collect();
    assert_eq!(rows, expected);
    it.end();
    assert_eq!((turn.lines("wrong "), turn.lines("left ")), (vec![], vec![]));
}

#[test]
fn what_was_never_given_back_is_named() {
    let turn = begin();
    malloc(48);
    host_malloc(80);
    stream();
    module(kernels()).unwrap();
    let left = turn.lines("left ");
    for what in ["memory 0x", "of 48 bytes", "host memory 0x", "of 80 bytes", "stream 0x", "module 0x"] {
        assert!(left.iter().any(|line| line.contains(what)), "{what}: {left:?}");
    }
    assert_eq!(left.len(), 4);
}

#[test]
fn memory_that_is_freed_twice_or_was_never_given_out() {
    let turn = begin();
    let at = malloc(48);
    unsafe { hipFree(at) };
    assert_ne!(unsafe { hipFree(at) }, 0);
    turn.saw("hipFree", "freed twice");
    let turn = {
        drop(turn);
        begin()
    };
    assert_ne!(unsafe { hipFree(0x1000 as Pointer) }, 0);
    turn.saw("hipFree", "was never given out");
    drop(turn);
    let turn = begin();
    assert_ne!(unsafe { hipFree(host_malloc(8).cast()) }, 0);
    turn.saw("hipFree", "of the other kind");
}

#[test]
fn memory_that_is_used_after_it_was_freed() {
    let turn = begin();
    let (at, on) = (malloc(48), stream());
    unsafe { hipFree(at) };
    assert_ne!(fill(at, 0, 48, on), 0);
    turn.saw("hipMemsetD8Async", "used after free");
}

#[test]
fn memory_that_is_freed_while_work_that_uses_it_waits() {
    let turn = begin();
    let (at, on) = (malloc(48), stream());
    assert_eq!(fill(at, 0, 48, on), 0);
    assert_ne!(unsafe { hipFree(at) }, 0);
    turn.saw("hipFree", "freed while in use");
    // And the work finds it gone.
    assert_ne!(wait(on), 0);
    assert!(turn.lines("wrong ")[1].contains("used after free"));
}

#[test]
fn host_memory_that_is_freed_while_a_copy_of_it_waits() {
    let turn = begin();
    let (at, from, on) = (malloc(48), host_malloc(48), stream());
    unsafe { from.write_bytes(7, 48) };
    assert_eq!(upload(at, from, 48, on), 0);
    assert_ne!(unsafe { hipHostFree(from.cast()) }, 0);
    turn.saw("hipHostFree", "freed while in use");
}

#[test]
fn a_copy_or_fill_past_the_end() {
    type Call = fn(Pointer, Pointer, *mut u8, Pointer) -> u32;
    let calls: [(&str, Call); 5] = [
        ("hipMemcpyHtoDAsync", |at, _, host, on| upload(at, host, 49, on)),
        ("hipMemcpyDtoHAsync", |at, _, host, on| download(host, at, 49, on)),
        ("hipMemcpyDtoDAsync", |at, other, _, on| unsafe { hipMemcpyDtoDAsync(other, at, 49, on) }),
        ("hipMemsetD8Async", |at, _, _, on| fill(unsafe { at.byte_add(40) }, 0, 9, on)),
        // The host's end is checked where it is this library's.
        ("hipMemcpyHtoDAsync", |_, other, host, on| upload(other, unsafe { host.add(60) }, 5, on)),
    ];
    for (name, call) in calls {
        let turn = begin();
        assert_ne!(call(malloc(48), malloc(64), host_malloc(64), stream()), 0);
        turn.saw(name, "past the end");
    }
}

#[test]
fn a_stream_that_is_none_or_was_destroyed() {
    let turn = begin();
    assert_ne!(fill(malloc(8), 0, 8, 0x1230 as Pointer), 0);
    turn.saw("hipMemsetD8Async", "wrong stream");
    drop(turn);
    let turn = begin();
    let on = stream();
    unsafe { hipStreamDestroy(on) };
    assert_ne!(wait(on), 0);
    turn.saw("hipStreamSynchronize", "wrong stream: ");
}

#[test]
fn memory_that_another_streams_work_uses() {
    let turn = begin();
    let (at, first, second) = (malloc(8), stream(), stream());
    assert_eq!(fill(at, 0, 8, first), 0);
    assert_ne!(fill(at, 1, 8, second), 0);
    turn.saw("hipMemsetD8Async", "wrong stream: the memory");
    // Once the first has waited it is free for all.
    assert_eq!((wait(first), fill(at, 1, 8, second)), (0, 0));
}

#[test]
fn a_host_read_that_did_not_wait_is_seen_and_sees_poison() {
    let turn = begin();
    let (at, to, on) = (malloc(8), host_malloc(8), stream());
    unsafe { to.write_bytes(1, 8) };
    assert_eq!((fill(at, 5, 8, on), download(to, at, 8, on)), (0, 0));
    assert_eq!(read(to), 0xff);
    turn.saw("missing synchronisation", "the host touched");
    assert_eq!((wait(on), read(to)), (0, 5));
    drop(turn);
    // The host's own memory cannot be watched, but it holds poison until then.
    let turn = begin();
    let (at, mut own, on) = (malloc(8), [1_u8; 8], stream());
    assert_eq!((fill(at, 5, 8, on), download(own.as_mut_ptr(), at, 8, on)), (0, 0));
    assert_eq!(read(own.as_ptr()), 0xff);
    assert_eq!((wait(on), read(own.as_ptr())), (0, 5));
    assert!(turn.lines("wrong ").is_empty());
}

#[test]
fn a_host_write_to_what_is_still_to_be_read_is_seen_and_a_read_is_not() {
    let turn = begin();
    let (at, from, on) = (malloc(8), host_malloc(8), stream());
    unsafe { from.write_bytes(1, 8) };
    assert_eq!(upload(at, from, 8, on), 0);
    assert_eq!(read(from), 1);
    assert!(turn.lines("wrong ").is_empty());
    unsafe { write_volatile(from, 2) };
    turn.saw("missing synchronisation", "the host touched");
}

#[test]
fn new_memory_is_poison() {
    let _turn = begin();
    assert_eq!(read(host_malloc(8)), 0xff);
    let (at, mut own, on) = (malloc(8), [0_u8; 8], stream());
    assert_eq!((download(own.as_mut_ptr(), at, 8, on), wait(on)), (0, 0));
    assert_eq!(own, [0xff; 8]);
    // A kernel that reads it has no numbers, and a copy of it as a token id leads nowhere.
    assert!(f32::from_bits(u32::MAX).is_nan());
}

#[test]
fn an_image_for_another_processor_and_what_is_no_image() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/kernels/phasemark.cpp");
    let turn = begin();
    assert_eq!(module(&compiled("gfx1100", &source)), Err(209));
    turn.saw("hipModuleLoadData", "the image is not for gfx1151");
    drop(turn);
    let turn = begin();
    assert_eq!(module(&[b'x'; 64]), Err(209));
    turn.saw("hipModuleLoadData", "no ELF file");
}

#[test]
fn a_function_that_is_unknown() {
    let turn = begin();
    let module = module(kernels()).unwrap();
    assert_eq!(function(module, "few_9"), Err(500));
    turn.saw("hipModuleGetFunction", "unknown function: the image has no kernel `few_9`");
    drop(turn);
    let turn = begin();
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("stranger.cpp");
    std::fs::write(&source, "extern \"C\" __attribute__((global)) void stranger(int *a) { *a = 1; }")
        .unwrap();
    let image = compiled("gfx1151", &source);
    let mut other = null_mut();
    assert_eq!(unsafe { hipModuleLoadData(&raw mut other, image.as_ptr().cast()) }, 0);
    assert_eq!(function(other, "stranger"), Err(500));
    turn.saw("hipModuleGetFunction", "unknown function: the host has no argument");
    drop(turn);
    let turn = begin();
    let it = Embedding::new();
    let it = Embedding { function: 0x5550 as Pointer, ..it };
    assert_ne!(it.launch(it.argument(), 256, 0), 0);
    turn.saw("hipModuleLaunchKernel", "unknown function: 0x5550");
}

#[test]
fn a_launch_that_the_kernel_or_the_processor_cannot_take() {
    let turn = begin();
    let it = Embedding::new();
    assert_ne!(it.launch(it.argument(), 256, 70_000), 0);
    turn.saw("hipModuleLaunchKernel", "70000 bytes of shared memory, where a workgroup has 65536");
    drop(turn);
    let turn = begin();
    let it = Embedding::new();
    assert_ne!(it.launch(it.argument(), 2048, 0), 0);
    turn.saw("hipModuleLaunchKernel", "no such grid");
    drop(turn);
    // What only the kernel knows is seen when it runs.
    let turn = begin();
    let it = Embedding::new();
    assert_eq!(it.launch(it.argument(), 128, 0), 0);
    assert_ne!(wait(it.stream), 0);
    turn.saw("hipStreamSynchronize", "embed: started as Grid");
}

#[test]
fn a_kernels_address_that_is_none_or_too_short() {
    let turn = begin();
    let it = Embedding::new();
    assert_ne!(it.launch(Embed { table: 0x4000, ..it.argument() }, 256, 0), 0);
    turn.saw("hipModuleLaunchKernel", "embed, `table`: 0x4000 is no memory");
    drop(turn);
    let turn = begin();
    let it = Embedding::new();
    assert_eq!(it.launch(Embed { width: 64, square_parts: 2, ..it.argument() }, 256, 0), 0);
    assert_ne!(wait(it.stream), 0);
    turn.saw("hipStreamSynchronize", "embed: past the end");
    drop(turn);
    // A token id that was never written leads nowhere.
    let turn = begin();
    let it = Embedding::new();
    assert_eq!(it.launch(Embed { tokens: malloc(16) as u64, ..it.argument() }, 256, 0), 0);
    assert_ne!(wait(it.stream), 0);
    turn.saw("hipStreamSynchronize", "embed: ");
}

#[test]
fn what_is_ended_while_work_needs_it() {
    let turn = begin();
    let on = stream();
    fill(malloc(8), 0, 8, on);
    assert_ne!(unsafe { hipStreamDestroy(on) }, 0);
    turn.saw("hipStreamDestroy", "destroy order: work waits on it");
    drop(turn);
    let turn = begin();
    let it = Embedding::new();
    it.launch(it.argument(), 256, 0);
    assert_ne!(unsafe { hipModuleUnload(it.module) }, 0);
    turn.saw("hipModuleUnload", "destroy order");
    drop(turn);
    let turn = begin();
    let it = Embedding::new();
    unsafe { hipModuleUnload(it.module) };
    assert_ne!(it.launch(it.argument(), 256, 0), 0);
    turn.saw("hipModuleLaunchKernel", "was unloaded before");
}

/// A captured fill of `bytes`, ready to run, and the memory.
fn ready(on: Pointer, bytes: usize) -> (Pointer, Pointer) {
    let (at, mut graph, mut ready) = (malloc(bytes), null_mut(), null_mut());
    unsafe {
        assert_eq!(hipStreamBeginCapture(on, 1), 0);
        assert_eq!(fill(at, 9, bytes, on), 0);
        assert_eq!(hipStreamEndCapture(on, &raw mut graph), 0);
        assert_eq!(hipGraphInstantiate(&raw mut ready, graph, null_mut(), null_mut(), 0), 0);
        assert_eq!(hipGraphDestroy(graph), 0);
    }
    (ready, at)
}

#[test]
fn a_graph_does_its_work_when_it_is_launched_and_the_stream_waits() {
    let turn = begin();
    let on = stream();
    let (ready, at) = ready(on, 8);
    let mut own = [0; 8];
    let mut seen = || {
        assert_eq!((download(own.as_mut_ptr(), at, 8, on), wait(on)), (0, 0));
        own[0]
    };
    assert_eq!(seen(), 0xff, "captured work is not done");
    assert_eq!(unsafe { hipGraphLaunch(ready, on) }, 0);
    assert_eq!(seen(), 9);
    unsafe {
        assert_eq!((hipGraphExecDestroy(ready), hipFree(at), hipStreamDestroy(on)), (0, 0, 0));
    }
    assert_eq!((turn.lines("wrong "), turn.lines("left ")), (vec![], vec![]));
}

#[test]
fn a_graph_that_is_ended_too_soon_or_used_too_late() {
    let turn = begin();
    let on = stream();
    let (graph, _) = ready(on, 8);
    unsafe { hipGraphLaunch(graph, on) };
    assert_ne!(unsafe { hipGraphExecDestroy(graph) }, 0);
    turn.saw("hipGraphExecDestroy", "destroy order");
    drop(turn);
    let turn = begin();
    let on = stream();
    let (graph, _) = ready(on, 8);
    unsafe { hipGraphExecDestroy(graph) };
    assert_ne!(unsafe { hipGraphLaunch(graph, on) }, 0);
    turn.saw("hipGraphLaunch", "was destroyed before");
    drop(turn);
    let turn = begin();
    let on = stream();
    let (graph, at) = ready(on, 8);
    unsafe { hipFree(at) };
    assert_ne!(unsafe { hipGraphLaunch(graph, on) }, 0);
    turn.saw("hipGraphLaunch", "used after free");
}

#[test]
fn what_may_not_be_done_while_a_stream_captures() {
    let turn = begin();
    let on = stream();
    unsafe { hipStreamBeginCapture(on, 1) };
    assert_ne!(wait(on), 0);
    turn.saw("hipStreamSynchronize", "the stream is capturing");
    drop(turn);
    let turn = begin();
    let on = stream();
    unsafe { hipStreamBeginCapture(on, 1) };
    let mut at = null_mut();
    assert_ne!(unsafe { hipMalloc(&raw mut at, 8) }, 0);
    turn.saw("hipMalloc", "not while this thread captures");
    drop(turn);
    let turn = begin();
    let (on, at, own) = (stream(), malloc(8), [0_u8; 8]);
    unsafe { hipStreamBeginCapture(on, 1) };
    assert_ne!(upload(at, own.as_ptr(), 8, on), 0);
    turn.saw("hipMemcpyHtoDAsync", "the host's own memory");
    drop(turn);
    let turn = begin();
    let mut graph = null_mut();
    assert_ne!(unsafe { hipStreamEndCapture(stream(), &raw mut graph) }, 0);
    turn.saw("hipStreamEndCapture", "is not capturing");
}

#[test]
fn a_call_fails_in_its_turn_and_only_then() {
    let turn = begin();
    stand_in_begin(2, 77);
    let mut at = null_mut();
    let mut ask = || unsafe { hipMalloc(&raw mut at, 8) };
    assert_eq!([ask(), ask(), ask()], [0, 77, 0]);
    assert_eq!((turn.lines("failed "), turn.lines("wrong ")), (vec!["hipMalloc".to_owned()], vec![]));
    assert_eq!(turn.lines("left ").len(), 2);
}
