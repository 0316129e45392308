//! Pages of this process that stand for a device's memory and for memory that host and device share.
//!
//! New ones are poisoned; freed ones can no longer be touched, and their addresses are never given out again, so that
//! what is used too late is seen and not taken for something newer.

#![allow(unsafe_code, reason = "memory by address")]

use std::cell::Cell;
use std::ffi::c_void;

use crate::arguments::Argument;
use crate::image::Bytes;

/// Every byte of memory that nobody has written: not a number as `f32` and as bf16, and no token id.
pub(crate) const POISON: u8 = 0xff;

/// What the host may do with pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Access {
    /// The device writes them: nothing.
    Nothing,
    /// The device reads them.
    Read,
    /// No work under way uses them.
    All,
}

/// A run of pages.
#[derive(Debug)]
pub(crate) struct Pages {
    at: u64,
    mapped: usize,
}

impl Pages {
    /// Room for `bytes`, all of it poison. `None`: the system has none.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        let mapped = bytes.max(1).checked_next_multiple_of(4096)?;
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the system's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), mapped, access, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: just mapped, that long, and writable.
        unsafe { at.cast::<u8>().write_bytes(POISON, mapped) };
        Some(Pages { at: at as u64, mapped })
    }

    /// Where they begin.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Where they end.
    pub(crate) fn end(&self) -> u64 {
        self.at + self.mapped as u64
    }

    /// From now on the host may do that with them.
    pub(crate) fn allow(&self, access: Access) {
        let access = match access {
            Access::Nothing => libc::PROT_NONE,
            Access::Read => libc::PROT_READ,
            Access::All => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: this mapping, whole.
        unsafe { libc::mprotect(self.at as *mut c_void, self.mapped, access) };
    }

    /// Gives the memory back and keeps the addresses, which nobody may touch any more.
    pub(crate) fn close(&self) {
        self.allow(Access::Nothing);
        // SAFETY: this mapping, whole; what it held is not needed any more.
        unsafe { libc::madvise(self.at as *mut c_void, self.mapped, libc::MADV_DONTNEED) };
    }
}

/// `len` values at an address, which may be read and written while others look at them too.
///
/// # Safety
/// There are that many, aligned, of a type for which any bytes are a value, for as long as `'a`; no other thread writes.
pub(crate) unsafe fn cells<'a, T>(at: u64, len: usize) -> &'a [Cell<T>] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(at as *const Cell<T>, len) }
}

/// Copies bytes, which may overlap.
///
/// # Safety
/// Both ranges are there, and the second may be written.
pub(crate) unsafe fn copy(from: u64, to: u64, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
}

/// Sets bytes.
///
/// # Safety
/// The range is there and may be written.
pub(crate) unsafe fn fill(to: u64, byte: u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { (to as *mut u8).write_bytes(byte, bytes) };
}

/// A kernel's argument from its bytes, of which there are as many as it takes.
pub(crate) fn take<T: Argument>(from: &[u8]) -> T {
    assert_eq!(from.len(), size_of::<T>(), "the argument's bytes");
    // SAFETY: as many bytes as the type has, and arguments are plain numbers.
    unsafe { from.as_ptr().cast::<T>().read_unaligned() }
}

/// An image at an address, of a length that only it knows.
pub(crate) struct Image(u64);

impl Image {
    /// # Safety
    /// An image is there, whole, for as long as this.
    pub(crate) unsafe fn new(at: *const c_void) -> Self {
        Image(at as u64)
    }
}

impl Bytes for Image {
    fn bytes(&self, offset: usize, count: usize) -> Vec<u8> {
        let from = (self.0 + offset as u64) as *const u8;
        // SAFETY: `new`: what the image's own header says is there.
        unsafe { std::slice::from_raw_parts(from, count) }.to_vec()
    }
}
