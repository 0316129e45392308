//! Threads that share one pass: a fixed crew, work split by position, what is left over taken by whoever is free.
//!
//! A pass is some forty short pieces of work one after the other, each a few microseconds, so handing one
//! out must cost less than that. The calling thread publishes a closure and starts on its own share; workers
//! join while the piece is open, each with a share of its own that it always has (its weights are then in
//! its core's cache), and then help the others out. A worker that the system does not let run is not waited
//! for: the caller waits only for those that joined. Between pieces workers spin for a moment, then yield,
//! then park, since other processes want these cores too.
//!
//! The two ways of sharing a buffer here ([`Pool::columns`], [`Pool::units`]) hand out parts that cannot
//! overlap: the rest of the room needs no `unsafe` to write from several threads.

use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// Looks at a value that another core is about to change before giving the core away.
const SPINS: u32 = 500;
/// Times a worker gives its core away before it sleeps.
const YIELDS: u32 = 400;
/// Portions into which a thread's share of columns is cut, so that others can help out.
const PORTIONS: usize = 4;
/// Threads at most: what [`State`] can count, and more than any machine has.
const MOST: usize = 1 << 14;

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
    state: Apart<Board>,
    /// One a thread: how far its share of a piece is taken.
    taken: Vec<Apart<AtomicU64>>,
    /// One a worker: whether it sleeps.
    parked: Vec<Apart<AtomicBool>>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// The piece of work on offer.
struct Board {
    /// A [`State`].
    state: AtomicU64,
    job: UnsafeCell<Job>,
}

/// Which piece of work, whether it may be joined, and how many workers are at it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State(u64);

impl State {
    const OPEN: u64 = 1 << 15;

    fn piece(self) -> u64 {
        self.0 >> 16
    }

    fn open(self) -> bool {
        self.0 & Self::OPEN != 0
    }

    fn joined(self) -> u64 {
        self.0 & (Self::OPEN - 1)
    }
}

/// A borrowed closure, its type forgotten.
#[derive(Clone, Copy)]
struct Job {
    closure: *const (),
    call: unsafe fn(*const (), usize, u64),
}

// SAFETY: `job` is written by the caller, who holds the turn, only while the piece before is closed and no
// worker is joined to it, and read by workers only after they joined an open piece; `state` orders the two.
// The closure behind it is `Sync` (see `run`).
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is only followed by workers joined to the piece that it belongs to.
unsafe impl Send for Shared {}

impl Pool {
    /// A crew of `threads`, at least one, the caller among them. Where the system refuses a thread the crew
    /// is smaller.
    pub(super) fn new(threads: usize) -> Self {
        let wanted = threads.clamp(1, MOST) - 1;
        let job = UnsafeCell::new(Job { closure: std::ptr::null(), call: nothing });
        let shared = Arc::new(Shared {
            state: Apart(Board { state: AtomicU64::new(0), job }),
            taken: (0..=wanted).map(|_| Apart(AtomicU64::new(0))).collect(),
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

    /// Takes every portion of every thread's share once: `work(thread, share, portion)`, where thread is who
    /// does it and `share` whose it was, of `0..length(share)`. Returns when all are done; a panic in any of
    /// them goes on in the caller.
    fn share<L, F>(&self, portions: usize, length: L, work: F)
    where
        L: Fn(usize) -> usize + Sync,
        F: Fn(usize, usize, Range<usize>) + Sync,
    {
        let threads = self.threads();
        assert!((0..threads).all(|share| length(share) < 1 << 24), "a share that can be counted");
        if threads == 1 {
            return work(0, 0, 0..length(0));
        }
        self.run(|thread, piece| {
            for share in (thread..threads).chain(0..thread) {
                let length = length(share);
                let portion = length.div_ceil(portions);
                while let Some(from) = self.shared.take(share, piece, portion, length) {
                    work(thread, share, from..length.min(from + portion));
                }
            }
        });
    }

    /// Runs `work(thread, piece)` in the caller and in each worker that comes in time.
    fn run<F: Fn(usize, u64) + Sync>(&self, work: F) {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        let Board { state, job } = &shared.state.0;
        let piece = State(state.load(Ordering::Relaxed)).piece() + 1;
        // SAFETY: we hold the turn, and the piece before was closed and left by all when its `run` returned.
        unsafe { *job.get() = Job { closure: (&raw const work).cast(), call: call::<F> } };
        state.store(piece << 16 | State::OPEN, Ordering::SeqCst);
        for (parked, worker) in shared.parked.iter().zip(&self.workers) {
            // With the worker's own store and load this is Dekker's handshake: either we see it parked, or
            // it sees the new piece.
            if parked.0.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        // `work` must outlive every worker's use of it, also when our own share panics.
        let own = catch_unwind(AssertUnwindSafe(|| work(0, piece)));
        state.fetch_and(!State::OPEN, Ordering::AcqRel);
        let mut waited = 0;
        while State(state.load(Ordering::Acquire)).joined() != 0 {
            pause(&mut waited);
        }
        let theirs = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(turn);
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// Splits the columns of `matrix`, rows of `stride` values, into runs of whole groups of `group` columns
    /// and runs `work` with each. A thread's columns are the same ones for every matrix of this stride.
    pub(super) fn columns<T, F>(&self, matrix: &mut [T], stride: usize, group: usize, work: F)
    where
        T: Send,
        F: Fn(Columns<'_, T>) + Sync,
    {
        assert!(stride > 0 && group > 0 && stride.is_multiple_of(group), "whole groups of columns");
        let rows = matrix.len() / stride;
        let groups = stride / group;
        let threads = self.threads();
        let base = Base(matrix.as_mut_ptr());
        let start = |share: usize| groups * share / threads;
        let length = |share| start(share + 1) - start(share);
        self.share(PORTIONS, length, |_, share, portion| {
            let base = &base;
            let range = (start(share) + portion.start) * group..(start(share) + portion.end) * group;
            // Portions of a share are disjoint, and so are shares: nobody else has these columns.
            work(Columns { first: base.0, rows, stride, range, matrix: PhantomData });
        });
    }

    /// Cuts `items` into units of `unit` items and runs `work(scratch of the thread, number, unit)` on each.
    /// Of `n` threads thread `t` has numbers `t`, `t + n`, …; a remainder shorter than a unit is left out.
    pub(super) fn units<T, S, F>(&self, items: &mut [T], unit: usize, scratch: &mut [S], work: F)
    where
        T: Send,
        S: Send,
        F: Fn(&mut S, usize, &mut [T]) + Sync,
    {
        let threads = self.threads();
        assert!(unit > 0 && scratch.len() >= threads, "a scratch for each thread");
        let count = items.len() / unit;
        let items = Base(items.as_mut_ptr());
        let scratch = Base(scratch.as_mut_ptr());
        let length = |share: usize| count.saturating_sub(share).div_ceil(threads);
        self.share(count.max(1), length, |thread, share, portion| {
            let (items, scratch) = (&items, &scratch);
            // SAFETY: `thread < threads <= scratch.len()`, a thread does one portion at a time, and the
            // exclusive borrow of `scratch` outlives `share`.
            let own = unsafe { &mut *scratch.0.add(thread) };
            for at in portion {
                let number = share + at * threads;
                // SAFETY: `at < length(share)`, so `number < count` and the unit lies inside `items`; every
                // pair of share and place is taken once and no two have the same number, so units are
                // disjoint; the exclusive borrow of `items` outlives `share`.
                let part = unsafe { std::slice::from_raw_parts_mut(items.0.add(number * unit), unit) };
                work(own, number, part);
            }
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
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
        while let Some(piece) = self.join(index, seen) {
            seen = piece;
            // SAFETY: we joined this piece while it was open, so the caller has written `job` and neither
            // changes it nor lets go of its closure before we leave.
            let job = unsafe { *self.state.0.job.get() };
            // SAFETY: `call` was instantiated for this closure's type.
            let done =
                catch_unwind(AssertUnwindSafe(|| unsafe { (job.call)(job.closure, index + 1, piece) }));
            if let Err(panic) = done {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
            self.state.0.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for an open piece other than `seen` and joins it; none when the crew is dismissed.
    fn join(&self, index: usize, seen: u64) -> Option<u64> {
        let board = &self.state.0.state;
        let mut waited = 0;
        loop {
            let state = State(board.load(Ordering::Acquire));
            if state.open() && state.piece() != seen {
                let joined = state.0 + 1;
                if board.compare_exchange(state.0, joined, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    return Some(state.piece());
                }
                continue;
            }
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
            if waited < SPINS + YIELDS {
                pause(&mut waited);
                continue;
            }
            self.parked[index].0.store(true, Ordering::SeqCst);
            let state = State(board.load(Ordering::SeqCst));
            if !(state.open() && state.piece() != seen || self.stop.load(Ordering::SeqCst)) {
                thread::park();
            }
            self.parked[index].0.store(false, Ordering::SeqCst);
        }
    }

    /// Takes the next portion of a share of `length`: where it starts.
    fn take(&self, share: usize, piece: u64, portion: usize, length: usize) -> Option<usize> {
        // The piece's number above the place, so that nobody has to reset the count for a new piece.
        let taken = &self.taken[share].0;
        let mut seen = taken.load(Ordering::Relaxed);
        loop {
            let from = if seen >> 24 == piece & (u64::MAX >> 24) { seen & 0xff_ffff } else { 0 };
            if from >= length as u64 {
                return None;
            }
            let next = piece << 24 | (length as u64).min(from + portion as u64);
            match taken.compare_exchange_weak(seen, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(from as usize),
                Err(now) => seen = now,
            }
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
unsafe fn call<F: Fn(usize, u64) + Sync>(closure: *const (), thread: usize, piece: u64) {
    // SAFETY: the caller's promise.
    unsafe { (*closure.cast::<F>())(thread, piece) }
}

/// The job before the first.
unsafe fn nothing(_: *const (), _: usize, _: u64) {}

/// Where a shared buffer starts.
struct Base<T>(*mut T);

// SAFETY: only used to derive disjoint parts, one thread each, of a buffer of `T: Send` that is borrowed
// exclusively meanwhile.
unsafe impl<T: Send> Sync for Base<T> {}

/// Some columns of a matrix, all rows, for one thread alone.
pub(super) struct Columns<'a, T> {
    first: *mut T,
    rows: usize,
    stride: usize,
    range: Range<usize>,
    matrix: PhantomData<&'a mut [T]>,
}

impl<T> Columns<'_, T> {
    /// Which columns.
    pub(super) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Row `row` of these columns.
    pub(super) fn row(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: `row < rows` and `range` ends at `stride` at most, so this lies inside the matrix that
        // `Pool::columns` borrows exclusively; it hands out every column once, and `&mut self` keeps two of
        // our own slices from living at once.
        unsafe {
            let start = self.first.add(row * self.stride + self.range.start);
            std::slice::from_raw_parts_mut(start, self.range.len())
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::float_cmp, reason = "the same bits are what is asked for")]

    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;

    /// Counts how often each of some numbers is worked on.
    fn count(pool: &Pool, numbers: usize) -> Vec<usize> {
        let mut counts = vec![0usize; numbers];
        pool.units(&mut counts, 1, &mut vec![(); pool.threads()], |(), _, count| count[0] += 1);
        counts
    }

    #[test]
    fn every_piece_is_done_once_and_whole() {
        for threads in 1..=4 {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads);
            for round in 0..500 {
                assert_eq!(count(&pool, round % 13), vec![1; round % 13]);
            }
        }
    }

    #[test]
    fn workers_come_and_wake_from_sleep() {
        let pool = Pool::new(3);
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(20));
            // Each share waits until all three threads are at work.
            let at_work = AtomicUsize::new(0);
            pool.units(&mut [(); 3], 1, &mut [(); 3], |(), _, _| {
                at_work.fetch_add(1, Ordering::SeqCst);
                while at_work.load(Ordering::SeqCst) < 3 {
                    thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn a_share_is_taken_over_when_its_thread_is_busy() {
        let pool = Pool::new(2);
        let done = AtomicUsize::new(0);
        // Whoever has the first unit is at it until the other nineteen are done, half of them its own share.
        pool.units(&mut [(); 20], 1, &mut [(); 2], |(), number, _| {
            done.fetch_add(1, Ordering::SeqCst);
            while number == 0 && done.load(Ordering::SeqCst) < 20 {
                thread::yield_now();
            }
        });
        assert_eq!(done.into_inner(), 20);
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
                for item in unit {
                    *item += number + 1;
                }
            });
            assert!(items.iter().enumerate().all(|(at, &item)| item == at / 3 + 1));
            assert_eq!(taken.iter().sum::<usize>(), 7);
        }
    }

    #[test]
    fn a_panic_anywhere_reaches_the_caller_and_the_crew_lives_on() {
        let pool = Pool::new(3);
        for bad in 0..30 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.units(&mut [(); 30], 1, &mut [(); 3], |(), number, _| {
                    assert!(number != bad, "unit {bad} fails");
                });
            }));
            assert!(caught.is_err(), "unit {bad}");
            assert_eq!(count(&pool, 30), [1; 30]);
        }
    }

    #[test]
    fn callers_take_turns() {
        let pool = Pool::new(2);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..100).for_each(|_| assert_eq!(count(&pool, 7), [1; 7])));
            }
        });
    }
}
