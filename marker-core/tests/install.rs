//! The process's backend: chosen once, whoever asks first, and a convenience beside backends passed as values.
//!
//! One test, because a process has one backend.

mod heard;

use std::sync::Barrier;

use heard::Heard;
use marker_core::{AlreadyInstalled, Detail, Markers, Scope, install, range};

#[test]
fn of_many_threads_that_install_one_wins_and_all_hear_through_it() {
    const THREADS: usize = 8;
    {
        range!("before anybody hears");
        assert!(!Markers::global().is_on());
    }
    let candidates: &'static [Heard] = Vec::leak((0..THREADS).map(|_| Heard::default()).collect());
    let ready = Barrier::new(THREADS);
    let answers: Vec<_> = std::thread::scope(|threads| {
        let ask = |candidate: &'static Heard| {
            let ready = &ready;
            threads.spawn(move || {
                ready.wait();
                let answer = install(candidate, Detail::Full);
                // While others install: heard by nobody or by the winner, and balanced either way.
                range!("during");
                answer
            })
        };
        let asked: Vec<_> = candidates.iter().map(ask).collect();
        asked.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let winners: Vec<_> = (0..THREADS).filter(|at| answers[*at].is_ok()).collect();
    assert_eq!(winners.len(), 1, "{answers:?}");
    for (at, candidate) in candidates.iter().enumerate() {
        let lines = candidate.lines();
        assert_eq!(lines.iter().filter(|line| *line == "+ during").count() * 2, lines.len());
        assert!(lines.is_empty() || at == winners[0]);
        // The winner's own thread has passed its install, so at least that one heard.
        assert!(!lines.is_empty() || at != winners[0]);
    }
    let winner = &candidates[winners[0]];

    let late = Heard::default();
    assert_eq!(install(Box::leak(Box::new(Heard::default())), Detail::Phases), Err(AlreadyInstalled));
    assert!(AlreadyInstalled.to_string().contains("once"));
    assert_eq!(Markers::global().detail(), Detail::Full, "the first choice stays");
    assert_eq!(
        format!("{:?} {:?}", Markers::global(), Markers::OFF),
        "Markers(heard, Full) Markers(off, Phases)"
    );

    // A backend that is passed as a value hears its own and nothing else.
    {
        range!("global");
        range!(late.markers(), "value");
        range!(Markers::global().at_full_detail(), Scope::DRAFT);
        range!(late.markers().at_full_detail(), Scope::DRAFT);
    }
    assert_eq!(winner.lines(), ["+ global", "+ ds4.draft", "-", "-"]);
    assert_eq!(late.lines(), ["+ value", "-"]);
    std::thread::spawn(|| Markers::global().mark("from any thread")).join().unwrap();
    assert_eq!(winner.lines(), ["! from any thread"]);
}
