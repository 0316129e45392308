//! Threads that share one pass: a fixed crew, work split by position, no queue.
//!
//! A pass is some forty short pieces of work one after the other, each a few microseconds, so handing one
//! out must cost less than that. The calling thread publishes a closure, does its own share, and waits for
//! the others; between pieces they spin for a moment, then yield, then park, since other processes want
//! these cores too. What a thread may write follows from its number alone, and the two ways of sharing a
//! buffer here ([`Pool::columns`], [`Pool::units`]) hand out parts that cannot overlap: the rest of the
//! room needs no `unsafe` to write from several threads.

use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// Looks at a value that another core is about to change before giving the core away.
const SPINS: u32 = 2_000;
/// Times a worker gives its core away before it sleeps.
const YIELDS: u32 = 400;

/// The crew: the caller is thread 0.
pub(super) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One piece of work at a time, whichever shard it is for.
    turn: Mutex<()>,
}

/// One cache line to itself, so that spinning on it disturbs nobody.
#[repr(align(128))]
struct Apart<T>(T);

struct Shared {
    /// Counts the pieces of work published.
    epoch: Apart<AtomicUsize>,
    /// Workers that have not finished the current piece.
    pending: Apart<AtomicUsize>,
    job: UnsafeCell<Job>,
    parked: Vec<Apart<AtomicBool>>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A borrowed closure, its type forgotten.
#[derive(Clone, Copy)]
struct Job {
    closure: *const (),
    call: unsafe fn(*const (), usize),
}

// SAFETY: `job` is written by the caller only while no worker runs (`pending` is 0 and `epoch` not yet
// advanced) and read by workers only after they saw `epoch` advance; `epoch` and `pending` order the two.
// The closure behind it is `Sync` (see `run`).
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is only followed between publication and the end of that piece of work.
unsafe impl Send for Shared {}

impl Pool {
    /// A crew of `threads`, at least one, the caller among them. Where the system refuses a thread the crew
    /// is smaller.
    pub(super) fn new(threads: usize) -> Self {
        let wanted = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            epoch: Apart(AtomicUsize::new(0)),
            pending: Apart(AtomicUsize::new(0)),
            job: UnsafeCell::new(Job { closure: std::ptr::null(), call: nothing }),
            parked: (0..wanted).map(|_| Apart(AtomicBool::new(false))).collect(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut workers = Vec::with_capacity(wanted);
        for index in 0..wanted {
            let shared = Arc::clone(&shared);
            let name = format!("cpu-{}", index + 1);
            match thread::Builder::new().name(name).spawn(move || shared.work(index)) {
                Ok(worker) => workers.push(worker),
                Err(_) => break,
            }
        }
        Pool { shared, workers, turn: Mutex::new(()) }
    }

    /// Threads in the crew.
    pub(super) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `work(thread)` once on each thread and returns when all are done. A panic on any of them goes on
    /// in the caller.
    pub(super) fn run<F: Fn(usize) + Sync>(&self, work: F) {
        if self.workers.is_empty() {
            return work(0);
        }
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: we hold the turn and the piece before ended with `pending` at 0, so no worker reads `job`.
        unsafe { *shared.job.get() = Job { closure: (&raw const work).cast(), call: call::<F> } };
        shared.pending.0.store(self.workers.len(), Ordering::Relaxed);
        shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        for (parked, worker) in shared.parked.iter().zip(&self.workers) {
            // With the worker's own store and load this is Dekker's handshake: either we see it parked, or
            // it sees the new epoch.
            if parked.0.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        // `work` must outlive every worker's use of it, also when our own share panics.
        let own = catch_unwind(AssertUnwindSafe(|| work(0)));
        let mut waited = 0;
        while shared.pending.0.load(Ordering::Acquire) != 0 {
            pause(&mut waited);
        }
        let theirs = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(turn);
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// Splits the columns of `matrix`, rows of `stride` values, into one run of whole groups of `group`
    /// columns for each thread, and runs `work` with each.
    pub(super) fn columns<F>(&self, matrix: &mut [f32], stride: usize, group: usize, work: F)
    where
        F: Fn(Columns<'_>) + Sync,
    {
        assert!(stride > 0 && group > 0 && stride.is_multiple_of(group), "whole groups of columns");
        let rows = matrix.len() / stride;
        let groups = stride / group;
        let threads = self.threads();
        let base = Base(matrix.as_mut_ptr());
        self.run(|thread| {
            let base = &base;
            let from = groups * thread / threads * group;
            let to = groups * (thread + 1) / threads * group;
            work(Columns { first: base.0, rows, stride, range: from..to, matrix: PhantomData });
        });
    }

    /// Cuts `items` into units of `unit` items, of which thread `t` of `n` takes numbers `t`, `t + n`, … and
    /// runs `work(scratch of the thread, number, unit)` on each. A remainder shorter than a unit is left out.
    pub(super) fn units<T, S, F>(&self, items: &mut [T], unit: usize, scratch: &mut [S], work: F)
    where
        T: Send,
        S: Send,
        F: Fn(&mut S, usize, &mut [T]) + Sync,
    {
        assert!(unit > 0 && scratch.len() >= self.threads(), "a scratch for each thread");
        let count = items.len() / unit;
        let threads = self.threads();
        let items = Base(items.as_mut_ptr());
        let scratch = Base(scratch.as_mut_ptr());
        self.run(|thread| {
            let (items, scratch) = (&items, &scratch);
            // SAFETY: `thread < threads <= scratch.len()`, each thread has a number of its own, and the
            // exclusive borrow of `scratch` outlives `run`.
            let own = unsafe { &mut *scratch.0.add(thread) };
            for number in (thread..count).step_by(threads) {
                // SAFETY: `number < count`, so the unit lies inside `items`; no two threads share a number
                // modulo `threads`, so units are disjoint; the exclusive borrow of `items` outlives `run`.
                let part = unsafe { std::slice::from_raw_parts_mut(items.0.add(number * unit), unit) };
                work(own, number, part);
            }
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches every panic of the work, so there is none to pass on here.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// A worker's life.
    fn work(&self, index: usize) {
        let mut seen = 0;
        loop {
            self.wait(index, seen);
            seen += 1;
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            // SAFETY: the epoch advanced, so the caller has written `job` and keeps its closure alive until
            // `pending` reaches 0, to which our share is still missing.
            let job = unsafe { *self.job.get() };
            // SAFETY: `call` was instantiated for this closure's type.
            let done = catch_unwind(AssertUnwindSafe(|| unsafe { (job.call)(job.closure, index + 1) }));
            if let Err(panic) = done {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
            self.pending.0.fetch_sub(1, Ordering::Release);
        }
    }

    /// Until the epoch has gone past `seen`.
    fn wait(&self, index: usize, seen: usize) {
        let mut waited = 0;
        while self.epoch.0.load(Ordering::Acquire) == seen {
            if waited < SPINS + YIELDS {
                pause(&mut waited);
                continue;
            }
            self.parked[index].0.store(true, Ordering::SeqCst);
            if self.epoch.0.load(Ordering::SeqCst) == seen {
                thread::park();
            }
            self.parked[index].0.store(false, Ordering::SeqCst);
        }
    }
}

/// Spins at first, then gives the core away.
fn pause(waited: &mut u32) {
    if *waited < SPINS {
        std::hint::spin_loop();
    } else {
        thread::yield_now();
    }
    *waited = waited.saturating_add(1);
}

/// # Safety
/// `closure` points to a live `F`.
unsafe fn call<F: Fn(usize) + Sync>(closure: *const (), thread: usize) {
    // SAFETY: the caller's promise.
    unsafe { (*closure.cast::<F>())(thread) }
}

/// The job before the first.
unsafe fn nothing(_: *const (), _: usize) {}

/// Where a shared buffer starts.
struct Base<T>(*mut T);

// SAFETY: only used to derive disjoint parts, one thread each, of a buffer of `T: Send` that is borrowed
// exclusively meanwhile.
unsafe impl<T: Send> Sync for Base<T> {}

/// Some columns of a matrix, all rows, for one thread alone.
pub(super) struct Columns<'a> {
    first: *mut f32,
    rows: usize,
    stride: usize,
    range: Range<usize>,
    matrix: PhantomData<&'a mut [f32]>,
}

impl Columns<'_> {
    /// Which columns.
    pub(super) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Row `row` of these columns.
    pub(super) fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: `row < rows` and `range` ends at `stride` at most, so this lies inside the matrix that
        // `Pool::columns` borrows exclusively; other threads' ranges are disjoint from ours, and `&mut self`
        // keeps two of our own slices from living at once.
        unsafe {
            let start = self.first.add(row * self.stride + self.range.start);
            std::slice::from_raw_parts_mut(start, self.range.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_runs_once_a_piece() {
        for threads in 1..=4 {
            let pool = Pool::new(threads);
            let ran: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..500 {
                pool.run(|thread| {
                    ran[thread].fetch_add(1, Ordering::Relaxed);
                });
            }
            assert!(ran.iter().all(|count| count.load(Ordering::Relaxed) == 500), "{threads} threads");
        }
    }

    #[test]
    fn parked_workers_wake() {
        let pool = Pool::new(3);
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let ran = AtomicUsize::new(0);
            pool.run(|_| {
                ran.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(ran.into_inner(), 3);
        }
    }

    #[test]
    fn columns_cover_the_matrix_once() {
        for threads in 1..=5 {
            let pool = Pool::new(threads);
            let mut matrix = vec![0.0; 7 * 12];
            pool.columns(&mut matrix, 12, 4, |mut columns| {
                for row in 0..7 {
                    let from = columns.range().start;
                    for (at, value) in columns.row(row).iter_mut().enumerate() {
                        *value += (row * 12 + from + at) as f32;
                    }
                }
            });
            assert!(matrix.iter().enumerate().all(|(at, &value)| value == at as f32));
        }
    }

    #[test]
    fn units_cover_the_items_once() {
        for threads in 1..=5 {
            let pool = Pool::new(threads);
            let mut items = vec![0usize; 21];
            let mut taken = vec![0; threads];
            pool.units(&mut items, 3, &mut taken, |taken, number, unit| {
                *taken += 1;
                unit.iter_mut().for_each(|item| *item += number + 1);
            });
            assert!(items.iter().enumerate().all(|(at, &item)| item == at / 3 + 1));
            assert_eq!(taken.iter().sum::<usize>(), 7);
        }
    }

    #[test]
    fn a_panic_anywhere_reaches_the_caller_and_the_crew_lives_on() {
        let pool = Pool::new(3);
        for bad in 0..3 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(|thread| assert!(thread != bad, "thread {bad} fails"));
            }));
            assert!(caught.is_err(), "thread {bad}");
            let ran = AtomicUsize::new(0);
            pool.run(|_| {
                ran.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(ran.into_inner(), 3);
        }
    }

    #[test]
    fn callers_take_turns() {
        let pool = Pool::new(2);
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        pool.run(|thread| {
                            if thread == 0 {
                                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                                inside.fetch_sub(1, Ordering::SeqCst);
                            }
                        });
                    }
                });
            }
        });
    }
}
