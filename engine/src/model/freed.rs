//! Memory that was let go, given back: the one `unsafe` call into the allocator.
//!
//! A tokenizer is read by way of a tree of its whole file, several times its own size. The system's allocator keeps what
//! that took for later, in pieces between what stays, and the weights behind it are too large to fill them.
#![allow(unsafe_code)]

/// Gives memory that is not in use back to the system, where its allocator can.
pub(crate) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` may be called at any time, by any thread; it changes nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
