//! Memory that was let go, given back to the system.
//!
//! A tokenizer is read by way of a tree of its whole file, several times its own size, and what stays of it lies between
//! what was let go: a page that holds a word is never free. So it is read on a thread of its own, whose allocations the
//! system's allocator keeps apart from others, copied, and let go as a whole.
#![allow(unsafe_code)]

use std::panic::resume_unwind;
use std::thread;

/// A copy of what `work` makes, in memory that is not strewn with what it took on the way.
pub(super) fn compact<T: Clone + Send, E: Send>(work: impl FnOnce() -> Result<T, E> + Send) -> Result<T, E> {
    let made = thread::scope(|scope| scope.spawn(work).join());
    let copy = made.unwrap_or_else(|panic| resume_unwind(panic)).map(|made| T::clone(&made));
    give_back();
    copy
}

/// Gives memory that is not in use back, where the system's allocator can.
pub(crate) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` may be called at any time, by any thread; it changes nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// For a program that reads a model and little else: large allocations are the system's own, and what is let go at the
/// end of others goes back at once. Else the allocator raises both bounds with the largest that it ever saw freed.
pub(crate) fn keep_nothing() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` may be called at any time; it only sets what later calls do.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 64 << 10);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 64 << 10);
    }
}
