//! What every backend owes, with what was recorded as the witness. In a program of its own: the suite fills the
//! table of labels.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use backend_record::{EventKind, Recorder};
use marker_core::conformance::{Call, Expect, Seen, Witness, check};

/// Reads the recording on from where it was.
struct Recording {
    recorder: &'static Recorder,
    read: AtomicUsize,
}

impl Witness for Recording {
    fn take(&self) -> Vec<Seen> {
        let events = self.recorder.events();
        let read = self.read.swap(events.len(), Relaxed);
        events.into_iter().skip(read).filter_map(seen).collect()
    }
}

fn seen(event: backend_record::Event) -> Option<Seen> {
    let id = event.pair as u64;
    let call = match event.kind {
        EventKind::Begin => Call::Push,
        EventKind::End => Call::Pop,
        EventKind::Start => Call::Start(id),
        EventKind::Stop => Call::Stop(id),
        EventKind::Mark => Call::Mark,
        EventKind::ThreadName => return None,
    };
    Some(Seen { thread: event.thread as u64, call, text: Some(event.label) })
}

fn recorder(entries: usize) -> &'static Recorder {
    Box::leak(Box::new(Recorder::with_capacity(entries)))
}

#[test]
fn the_contract_is_kept() {
    let recorder = recorder(backend_record::DEFAULT_ENTRIES);
    check(recorder, Expect::TAKEN, Some(&Recording { recorder, read: AtomicUsize::new(0) }));
    assert!(recorder.ranges().len() > 100_000, "everything was let in");
}

#[test]
fn the_contract_is_kept_when_room_runs_out_and_when_there_is_none() {
    for entries in [5_000, 0] {
        let recorder = recorder(entries);
        check(recorder, Expect::TAKEN, Some(&Recording { recorder, read: AtomicUsize::new(0) }));
        assert!(recorder.ranges().len() <= entries);
    }
}
