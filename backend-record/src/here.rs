//! What a thread knows about itself: who it is, and where it stands in the recorder that it used last.
//!
//! Plain cells without a destructor, so that markers work while a thread or the process is torn down.
//! Finding out who a thread is must not allocate either, which is why this reads `/proc` and asks neither
//! `std::thread::current` (which may allocate, and panics late in a thread's life) nor libc (`unsafe`).

use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};

use marker_core::Shard;

thread_local! {
    pub(crate) static HERE: Here = const { Here::new() };
}

/// Bytes of a thread's name as the system keeps it: 15 and a NUL.
const NAME: usize = 16;

/// Who a thread is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Who {
    /// Which thread of the process, counted from 1 as they come; never given twice, unlike `tid`.
    pub(crate) key: u64,
    /// The system's number for the thread; `key` where the system does not tell.
    pub(crate) tid: u64,
    name: [u8; NAME],
}

impl Who {
    /// The name that the system knows, cut at 15 bytes; empty where it does not tell.
    pub(crate) fn name(&self) -> &str {
        let len = self.name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
        // The system cuts at a byte, perhaps within a character.
        let whole = self.name[..len].utf8_chunks().next();
        whole.map_or("", |chunk| chunk.valid())
    }
}

pub(crate) struct Here {
    who: Cell<Option<Who>>,
    /// The recorder that this thread used last, and its place there.
    last: Cell<(u64, usize)>,
    pub(crate) shard: Shard,
}

impl Here {
    const fn new() -> Self {
        Here { who: Cell::new(None), last: Cell::new((0, 0)), shard: Shard::new() }
    }

    pub(crate) fn who(&self) -> Who {
        self.who.get().unwrap_or_else(|| {
            let who = find_out();
            self.who.set(Some(who));
            who
        })
    }

    /// This thread's place in `recorder`, if that is the one it used last.
    pub(crate) fn place_in(&self, recorder: u64) -> Option<usize> {
        let (last, place) = self.last.get();
        (last == recorder).then_some(place)
    }

    pub(crate) fn remember(&self, recorder: u64, place: usize) {
        self.last.set((recorder, place));
    }
}

#[cold]
fn find_out() -> Who {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let key = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut who = Who { key, tid: key, name: [0; NAME] };
    // `<tid> (<name>) S ...`; the name is at most 15 bytes and may itself hold parentheses.
    let mut stat = [0; 64];
    if let Ok(read) = File::open("/proc/thread-self/stat").and_then(|mut file| file.read(&mut stat)) {
        parse_stat(&stat[..read], &mut who);
    }
    who
}

fn parse_stat(stat: &[u8], who: &mut Who) {
    let Some(open) = stat.iter().position(|byte| *byte == b'(') else { return };
    let tid = str::from_utf8(&stat[..open]).ok().and_then(|tid| tid.trim().parse().ok());
    let Some(tid) = tid else { return };
    who.tid = tid;
    let rest = &stat[open + 1..];
    let rest = &rest[..rest.len().min(NAME)];
    if let Some(close) = rest.iter().rposition(|byte| *byte == b')') {
        who.name[..close].copy_from_slice(&rest[..close]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(stat: &[u8]) -> (u64, String) {
        let mut who = Who { key: 7, tid: 7, ..Who::default() };
        parse_stat(stat, &mut who);
        (who.tid, who.name().to_owned())
    }

    #[test]
    fn the_systems_line_gives_number_and_name() {
        assert_eq!(parsed(b"4711 (phasemark) S 1 2 3"), (4711, "phasemark".into()));
        assert_eq!(parsed(b"1 (a) b (c)) R 0 0"), (1, "a) b (c)".into()));
        assert_eq!(parsed(b"1 (fifteen bytes_!) R 0 0"), (1, "fifteen bytes_!".into()));
        assert_eq!(parsed("1 (fourteen bytes\u{e9}) R".as_bytes()).0, 1);
        assert_eq!(parsed(b"1 (cut within \xc3) R 0"), (1, "cut within ".into()));
    }

    #[test]
    fn a_line_that_says_nothing_leaves_the_count() {
        assert_eq!(parsed(b""), (7, String::new()));
        assert_eq!(parsed(b"x (y) z"), (7, String::new()));
        assert_eq!(parsed(b"12 (never closed"), (12, String::new()));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_knows_its_own_number_and_name() {
        let worker = std::thread::Builder::new().name("draft worker".into());
        let who = worker.spawn(|| HERE.with(Here::who)).unwrap().join().unwrap();
        assert_eq!(who.name(), "draft worker");
        let link = std::fs::read_link("/proc/thread-self").unwrap();
        let tid = HERE.with(Here::who).tid;
        assert_eq!(link.file_name().unwrap().to_str().unwrap(), tid.to_string());
        assert_ne!(who.tid, tid);
    }
}
