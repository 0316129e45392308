//! An allocator that counts, to be made a program's `#[global_allocator]`.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static MADE: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// The system's allocator, with a count a thread.
#[derive(Debug)]
pub struct Counting;

/// Allocations of the calling thread so far and their bytes, of programs whose allocator is [`Counting`].
pub fn so_far() -> (u64, u64) {
    MADE.get()
}

/// What `work` allocates on the calling thread: how often, and how many bytes.
pub fn of(work: impl FnOnce()) -> (u64, u64) {
    let before = so_far();
    work();
    let after = so_far();
    (after.0 - before.0, after.1 - before.1)
}

fn count(bytes: usize) {
    // A thread that is being torn down is not counted.
    let _ = MADE.try_with(|made| {
        let (times, all) = made.get();
        made.set((times + 1, all + bytes as u64));
    });
}

// SAFETY: the system's allocator does the work; the count beside it allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as the caller promised.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}
