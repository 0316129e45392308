//! The NVTX v3 protocol: what the tool reads, what it fills, and the calls through what it filled.
//!
//! A tool is a library with one entry. It gets a function of ours, asks it for an *export table*, and that
//! table's function for the *function tables* of two modules. A function table is an array of pointers
//! to our cells; the tool writes its own functions into as many of them as it likes. An empty cell means
//! that the tool does not want that call, so every call here looks first.
//!
//! Names, numbers and layouts are those of the published headers `nvToolsExt.h` and `nvtxTypes.h`, version 3.
//!
//! With `load/linux.rs` this is the only file with unsafe code. What it relies on: a tool's function does what
//! the header says of it, and a tool writes to our cells only whole pointers to such functions.

#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use marker_core::Label;

/// The function of ours through which a tool finds everything else.
pub(crate) type GetExportTable = extern "C" fn(c_uint) -> *const c_void;
/// A tool's entry; zero says that it does not want to attach.
pub(crate) type Initialize = unsafe extern "C" fn(GetExportTable) -> c_int;

type Cell = AtomicPtr<c_void>;
type MarkEx = unsafe extern "C" fn(*mut c_void, *const Attributes);
type RangeStartEx = unsafe extern "C" fn(*mut c_void, *const Attributes) -> u64;
type RangeEnd = unsafe extern "C" fn(*mut c_void, u64);
type RangePushEx = unsafe extern "C" fn(*mut c_void, *const Attributes) -> c_int;
type RangePop = unsafe extern "C" fn(*mut c_void) -> c_int;
type NameCategory = unsafe extern "C" fn(*mut c_void, u32, *const c_char);
type RegisterString = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type CreateDomain = unsafe extern "C" fn(*const c_char) -> *mut c_void;
type NameOsThread = unsafe extern "C" fn(u32, *const c_char);

/// Cells in a function table; the first one names no function.
const CELLS: usize = 16;
/// Cells that a tool can fill, in both modules.
pub(crate) const FILLABLE: usize = 2 * (CELLS - 1);

/// Module 1: calls without a domain. Only the thread's name has no counterpart with one.
static CORE: [Cell; CELLS] = [const { AtomicPtr::new(ptr::null_mut()) }; CELLS];
const NAME_OS_THREAD: usize = 14;

/// Module 5: calls with a domain.
static CORE2: [Cell; CELLS] = [const { AtomicPtr::new(ptr::null_mut()) }; CELLS];
const MARK_EX: usize = 1;
const RANGE_START_EX: usize = 2;
const RANGE_END: usize = 3;
const RANGE_PUSH_EX: usize = 4;
const RANGE_POP: usize = 5;
const NAME_CATEGORY: usize = 8;
const REGISTER_STRING: usize = 10;
const CREATE_DOMAIN: usize = 12;

/// Pointers to the cells of one module, as the tool walks them: none for the first, and one more at the
/// end, so that a tool which reads past it stops.
type Table = [AtomicPtr<Cell>; CELLS + 1];

const fn table(cells: &'static [Cell; CELLS]) -> Table {
    let mut table = [const { AtomicPtr::new(ptr::null_mut()) }; CELLS + 1];
    let mut at = 1;
    while at < CELLS {
        // The cell is an atomic: writing through the pointer is what it is for.
        table[at] = AtomicPtr::new(ptr::from_ref(&cells[at]).cast_mut());
        at += 1;
    }
    table
}

static CORE_TABLE: Table = table(&CORE);
static CORE2_TABLE: Table = table(&CORE2);

#[repr(C)]
struct Callbacks {
    size: usize,
    get_module_function_table: extern "C" fn(c_int, *mut *const Table, *mut c_uint) -> c_int,
}

#[repr(C)]
struct VersionInfo {
    size: usize,
    version: u32,
    reserved: u32,
    set_injection_version: extern "C" fn(u32),
}

static CALLBACKS: Callbacks =
    Callbacks { size: size_of::<Callbacks>(), get_module_function_table: module_function_table };

static VERSION_INFO: VersionInfo = VersionInfo {
    size: size_of::<VersionInfo>(),
    version: 3,
    reserved: 0,
    set_injection_version: ignore_injection_version,
};

extern "C" fn export_table(id: c_uint) -> *const c_void {
    match id {
        1 => ptr::from_ref(&CALLBACKS).cast(),
        3 => ptr::from_ref(&VERSION_INFO).cast(),
        _ => ptr::null(),
    }
}

extern "C" fn module_function_table(module: c_int, out: *mut *const Table, size: *mut c_uint) -> c_int {
    let table = match module {
        1 => &CORE_TABLE,
        5 => &CORE2_TABLE,
        _ => return 0,
    };
    // SAFETY: the protocol says that each is null or points to a place for the answer.
    unsafe {
        if !size.is_null() {
            size.write(CELLS as c_uint);
        }
        if !out.is_null() {
            out.write(table);
        }
    }
    1
}

/// The tool may say which version of its own it speaks. Nothing here depends on it.
extern "C" fn ignore_injection_version(_: u32) {}

/// Calls a tool's entry. False when it does not want to attach; whatever it filled is then emptied again.
///
/// # Safety
/// `entry` is the entry of an NVTX v3 tool, whose code stays loaded for the life of the process.
pub(crate) unsafe fn attach(entry: Initialize) -> bool {
    // SAFETY: the caller says what it is.
    let attached = unsafe { entry(export_table) } != 0;
    if !attached {
        for cell in CORE.iter().chain(&CORE2) {
            cell.store(ptr::null_mut(), Ordering::Relaxed);
        }
    }
    attached
}

/// How many cells the tool filled, of [`FILLABLE`].
pub(crate) fn filled() -> usize {
    CORE.iter().chain(&CORE2).filter(|cell| !cell.load(Ordering::Relaxed).is_null()).count()
}

/// The function in a cell, if the tool wants that call.
///
/// # Safety
/// `F` is the pointer type that the header gives to that cell's function.
#[inline]
unsafe fn function<F: Copy>(cell: &Cell) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // Relaxed: whoever holds an attached backend got it through the lock under which the tool filled the cells.
    let pointer = cell.load(Ordering::Relaxed);
    // SAFETY: the tool wrote a function of this type, says the caller; a pointer to it has the size of `F`.
    (!pointer.is_null()).then(|| unsafe { core::mem::transmute_copy::<*mut c_void, F>(&pointer) })
}

/// A domain of the tool. Without the call that makes one it is the default domain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Domain(*mut c_void);

// SAFETY: a handle that only the tool reads, and the tool takes it on any thread.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

/// A string that the tool knows by a handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registered(*mut c_void);

// SAFETY: a handle that only the tool reads, and the tool takes it on any thread.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

/// What a range or mark says. 48 bytes where pointers have 64 bits.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_void,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Attributes>() == 48);

const COLOR_ARGB: i32 = 1;
const PAYLOAD_U64: i32 = 1;
const MESSAGE_ASCII: i32 = 1;
const MESSAGE_REGISTERED: i32 = 3;

// SAFETY: nobody writes to what the message points to: a handle that only the tool reads, on any thread, or a text.
unsafe impl Send for Attributes {}
// SAFETY: as above.
unsafe impl Sync for Attributes {}

/// What a tool is told of a range or mark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event<'l>(Attributes, PhantomData<&'l Label>);

impl<'l> Event<'l> {
    /// Named by this string, or not named yet.
    pub(crate) fn of(string: Option<Registered>) -> Self {
        let attributes = Attributes {
            version: 3,
            size: size_of::<Attributes>() as u16,
            category: 0,
            color_type: 0,
            color: 0,
            payload_type: 0,
            reserved: 0,
            payload: 0,
            message_type: MESSAGE_REGISTERED,
            message: string.map_or(ptr::null(), |string| string.0.cast_const()),
        };
        Event(attributes, PhantomData)
    }

    /// Whether it has a name. Without one it must not be sent.
    #[inline]
    pub(crate) fn has_name(&self) -> bool {
        !self.0.message.is_null()
    }

    /// Named by the label's own text, if it has no name yet.
    #[inline]
    pub(crate) fn named_by<'t>(mut self, label: &'t Label) -> Event<'t>
    where
        'l: 't,
    {
        if !self.has_name() {
            self.0.message_type = MESSAGE_ASCII;
            self.0.message = label.as_ptr().cast();
        }
        Event(self.0, PhantomData)
    }

    /// In a category; 0 is none.
    #[inline]
    pub(crate) fn category(mut self, category: u32) -> Self {
        self.0.category = category;
        self
    }

    /// In a colour, 0xAARRGGBB.
    #[inline]
    pub(crate) fn color(mut self, argb: Option<u32>) -> Self {
        if let Some(argb) = argb {
            self.0.color_type = COLOR_ARGB;
            self.0.color = argb;
        }
        self
    }

    /// With a number.
    #[inline]
    pub(crate) fn payload(mut self, number: Option<u64>) -> Self {
        if let Some(number) = number {
            self.0.payload_type = PAYLOAD_U64;
            self.0.payload = number;
        }
        self
    }
}

/// The tool's call that opens a nested range.
#[derive(Clone, Copy)]
pub(crate) struct Nested(RangePushEx);

/// `None` when the tool does not want nested ranges; half a pair counts as none.
#[inline]
pub(crate) fn nested() -> Option<Nested> {
    // SAFETY: the types are those of the cells.
    let pair = unsafe { function(&CORE2[RANGE_PUSH_EX]).zip(function::<RangePop>(&CORE2[RANGE_POP])) };
    pair.map(|(push, _)| Nested(push))
}

impl Nested {
    /// Opens a nested range.
    #[inline]
    pub(crate) fn push(self, domain: Domain, event: &Event<'_>) {
        // SAFETY: the attributes live through the call and their message until the matching pop.
        // The answer means nothing: nsys answers -1 and records all the same.
        unsafe { (self.0)(domain.0, &raw const event.0) };
    }
}

/// Closes the top nested range.
#[inline]
pub(crate) fn pop(domain: Domain) {
    // SAFETY: the type is that of the cell, and it takes a domain.
    unsafe {
        if let Some(pop) = function::<RangePop>(&CORE2[RANGE_POP]) {
            pop(domain.0);
        }
    }
}

/// The tool's call that opens a range by id.
#[derive(Clone, Copy)]
pub(crate) struct Spans(RangeStartEx);

/// `None` when the tool does not want ranges by id; half a pair counts as none.
#[inline]
pub(crate) fn spans() -> Option<Spans> {
    // SAFETY: the types are those of the cells.
    let pair = unsafe { function(&CORE2[RANGE_START_EX]).zip(function::<RangeEnd>(&CORE2[RANGE_END])) };
    pair.map(|(start, _)| Spans(start))
}

impl Spans {
    /// Opens a range, and answers its id.
    #[inline]
    pub(crate) fn start(self, domain: Domain, event: &Event<'_>) -> u64 {
        // SAFETY: the attributes and their message live through the call.
        unsafe { (self.0)(domain.0, &raw const event.0) }
    }
}

/// Closes the range with this id.
#[inline]
pub(crate) fn end(domain: Domain, id: u64) {
    // SAFETY: the type is that of the cell, and it takes a domain and any id.
    unsafe {
        if let Some(end) = function::<RangeEnd>(&CORE2[RANGE_END]) {
            end(domain.0, id);
        }
    }
}

/// Marks a moment.
#[inline]
pub(crate) fn mark(domain: Domain, event: &Event<'_>) {
    // SAFETY: the type is that of the cell; the attributes and their message live through the call.
    unsafe {
        if let Some(mark) = function::<MarkEx>(&CORE2[MARK_EX]) {
            mark(domain.0, &raw const event.0);
        }
    }
}

/// A domain of this name; the default one when the tool does not want domains.
pub(crate) fn create_domain(name: &CStr) -> Domain {
    // SAFETY: the type is that of the cell; the name lives through the call.
    let handle =
        unsafe { function::<CreateDomain>(&CORE2[CREATE_DOMAIN]).map(|create| create(name.as_ptr())) };
    Domain(handle.unwrap_or(ptr::null_mut()))
}

/// Names a category.
pub(crate) fn name_category(domain: Domain, category: u32, name: &Label) {
    // SAFETY: the type is that of the cell; the name lives through the call.
    unsafe {
        if let Some(name_category) = function::<NameCategory>(&CORE2[NAME_CATEGORY]) {
            name_category(domain.0, category, name.as_ptr());
        }
    }
}

/// Registers a text. `None` when the tool does not want that, or could not.
pub(crate) fn register(domain: Domain, text: &Label) -> Option<Registered> {
    // SAFETY: the type is that of the cell; the text lives through the call, in which the tool copies it.
    let handle = unsafe { function::<RegisterString>(&CORE2[REGISTER_STRING])?(domain.0, text.as_ptr()) };
    (!handle.is_null()).then_some(Registered(handle))
}

/// Names the calling thread.
pub(crate) fn name_thread(name: &Label) {
    // SAFETY: the type is that of the cell; the name lives through the call.
    unsafe {
        if let Some(name_os_thread) = function::<NameOsThread>(&CORE[NAME_OS_THREAD]) {
            name_os_thread(thread_id(), name.as_ptr());
        }
    }
}

#[cfg(target_os = "linux")]
fn thread_id() -> u32 {
    // SAFETY: it asks the kernel for a number and cannot fail.
    unsafe { libc::gettid() }.cast_unsigned()
}

/// No tool attaches elsewhere.
#[cfg(not(target_os = "linux"))]
fn thread_id() -> u32 {
    0
}
