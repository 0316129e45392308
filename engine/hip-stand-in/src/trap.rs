//! Catches the host where it reads or writes memory that work under way uses: the missing synchronisation.
//!
//! Such pages are closed while the work is queued ([`Pages::allow`](crate::memory::Pages::allow)). A touch then raises
//! a signal; the handler notes it, opens the pages and lets the program go on, which sees poison. Other faults go to
//! whoever handled them before.

#![allow(unsafe_code, reason = "a signal handler")]

use std::ffi::{c_int, c_void};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::SeqCst};

const MOST: usize = 256;
#[allow(clippy::declare_interior_mutable_const, reason = "what an array is made of")]
const NONE: AtomicU64 = AtomicU64::new(0);
/// Where watched pages begin, and where they end. A handler may not wait for a lock.
static BEGINS: [AtomicU64; MOST] = [NONE; MOST];
static ENDS: [AtomicU64; MOST] = [NONE; MOST];
/// Where the first touches were.
static TOUCHED: [AtomicU64; 16] = [NONE; 16];
static TOUCHES: AtomicUsize = AtomicUsize::new(0);
/// What handled the signal before.
static BEFORE: AtomicU64 = AtomicU64::new(0);
static BEFORE_FLAGS: AtomicI32 = AtomicI32::new(0);

/// From now on a touch of these closed pages is noted.
pub(crate) fn watch(begin: u64, end: u64) {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(install);
    for (slot, ends) in BEGINS.iter().zip(&ENDS) {
        if ends.load(SeqCst) == 0 {
            slot.store(begin, SeqCst);
            ends.store(end, SeqCst);
            return;
        }
    }
}

/// No longer.
pub(crate) fn forget(begin: u64) {
    if let Some(at) = BEGINS.iter().position(|slot| slot.load(SeqCst) == begin) {
        ENDS[at].store(0, SeqCst);
    }
}

/// Where the host touched since this was last asked.
pub(crate) fn touched() -> Vec<u64> {
    let count = TOUCHES.swap(0, SeqCst).min(TOUCHED.len());
    TOUCHED[..count].iter().map(|at| at.load(SeqCst)).collect()
}

fn install() {
    // SAFETY: zeros are a valid value of this plain struct; both are filled by the calls below.
    let (mut action, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_fault as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: a handler of the kind that the flags say, and room for what was there before.
    unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut before) };
    BEFORE.store(before.sa_sigaction as u64, SeqCst);
    BEFORE_FLAGS.store(before.sa_flags, SeqCst);
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel's own, for this signal.
    let at = unsafe { (*info).si_addr() } as u64;
    for (begin, end) in BEGINS.iter().zip(&ENDS) {
        let (begin, end) = (begin.load(SeqCst), end.load(SeqCst));
        if (begin..end).contains(&at) {
            let count = TOUCHES.fetch_add(1, SeqCst);
            if let Some(slot) = TOUCHED.get(count) {
                slot.store(at, SeqCst);
            }
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: pages of this library's own.
            unsafe { libc::mprotect(begin as *mut c_void, (end - begin) as usize, access) };
            return;
        }
    }
    // SAFETY: zeros are a valid value; then what was there before handles it when the instruction is tried again.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        before.sa_sigaction = BEFORE.load(SeqCst) as usize;
        before.sa_flags = BEFORE_FLAGS.load(SeqCst);
        libc::sigaction(signal, &raw const before, std::ptr::null_mut());
    }
}
