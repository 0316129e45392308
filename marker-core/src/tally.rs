//! Counting what a backend emitted without a locked instruction on the marker path.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// What a backend did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Ranges opened, of both kinds.
    pub pushed: u64,
    /// Ranges closed, of both kinds.
    pub popped: u64,
    /// Ranges that the tool did not take.
    pub failed: u64,
    /// Events lost for want of room.
    pub dropped: u64,
}

/// Threads that count in a place of their own; later ones share the last.
const SHARDS: usize = 64;

/// Counters that threads add to at the same time: every thread writes a cache line of its own, so an
/// addition is a load and a store.
#[derive(Debug)]
pub struct Tally {
    shards: [Line; SHARDS],
}

#[derive(Debug)]
#[repr(align(64))]
struct Line([AtomicU64; 4]);

/// One thread's place in every [`Tally`]. Put it in a `thread_local!` with `const { Shard::new() }`.
#[derive(Debug)]
pub struct Shard(Cell<usize>);

/// The next thread's place, over all tallies of the process: places are never given twice.
static NEXT: AtomicUsize = AtomicUsize::new(0);

impl Shard {
    /// A place that is given out at first use.
    pub const fn new() -> Self {
        Shard(Cell::new(usize::MAX))
    }

    /// Whether the thread has a place of its own by now. Counting calls nothing then: whoever asks first and goes another
    /// way otherwise has no register to save for it.
    #[inline]
    pub fn is_own(&self) -> bool {
        self.0.get() < SHARDS - 1
    }
}

impl Default for Shard {
    fn default() -> Self {
        Shard::new()
    }
}

impl Tally {
    /// All zero.
    pub const fn new() -> Self {
        Tally { shards: [const { Line([const { AtomicU64::new(0) }; 4]) }; SHARDS] }
    }

    #[inline]
    fn add(&self, shard: &Shard, which: usize, n: u64) {
        if shard.is_own() {
            // No other thread writes this one.
            let counter = &self.shards[shard.0.get()].0[which];
            counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
        } else {
            self.add_elsewhere(shard, which, n);
        }
    }

    /// For a thread that has no place yet, or none of its own.
    #[cold]
    #[inline(never)]
    fn add_elsewhere(&self, shard: &Shard, which: usize, n: u64) {
        if shard.0.get() == usize::MAX {
            shard.0.set(NEXT.fetch_add(1, Relaxed).min(SHARDS - 1));
        }
        // Atomic all the same: the last place is of many threads.
        self.shards[shard.0.get()].0[which].fetch_add(n, Relaxed);
    }

    /// A range was opened.
    #[inline]
    pub fn pushed(&self, shard: &Shard) {
        self.add(shard, 0, 1);
    }

    /// `n` ranges were closed.
    #[inline]
    pub fn popped(&self, shard: &Shard, n: u32) {
        self.add(shard, 1, n.into());
    }

    /// The tool did not take a range.
    #[inline]
    pub fn failed(&self, shard: &Shard) {
        self.add(shard, 2, 1);
    }

    /// An event was lost.
    #[inline]
    pub fn dropped(&self, shard: &Shard) {
        self.add(shard, 3, 1);
    }

    /// The sums over all threads.
    pub fn counters(&self) -> Counters {
        let sum = |which: usize| self.shards.iter().map(|line| line.0[which].load(Relaxed)).sum();
        Counters { pushed: sum(0), popped: sum(1), failed: sum(2), dropped: sum(3) }
    }
}

impl Default for Tally {
    fn default() -> Self {
        Tally::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;

    #[test]
    fn no_count_is_lost_between_more_threads_than_shards() {
        let tally = Tally::new();
        std::thread::scope(|threads| {
            for _ in 0..SHARDS + 16 {
                threads.spawn(|| {
                    let shard = Shard::new();
                    for _ in 0..1000 {
                        tally.pushed(&shard);
                        tally.popped(&shard, 2);
                    }
                });
            }
        });
        let all = 1000 * (SHARDS as u64 + 16);
        assert_eq!(tally.counters(), Counters { pushed: all, popped: 2 * all, failed: 0, dropped: 0 });
    }
}
