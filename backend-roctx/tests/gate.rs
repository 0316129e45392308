//! The gate between ranges and a pause of the profiler, under every order in which threads may run.

#![allow(clippy::unwrap_used, reason = "all of this program is a test")]

#[allow(unreachable_pub, reason = "public in the crate that it belongs to")]
#[path = "../src/gate.rs"]
mod gate;

/// loom's, where the crate has the standard library's.
mod sync {
    pub(crate) use loom::sync::atomic::AtomicU64;
    pub(crate) use loom::sync::{
        Mutex, atomic::Ordering::AcqRel, atomic::Ordering::Acquire, atomic::Ordering::Release,
    };
    pub(crate) use std::sync::PoisonError;
}

use gate::{Gate, PauseError};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// What both a range and the tool's pause touch. loom finds any order in which they do so at once.
struct Tool(UnsafeCell<u32>);

// SAFETY: that this holds is what loom tries.
unsafe impl Sync for Tool {}
// SAFETY: a number.
unsafe impl Send for Tool {}

impl Tool {
    fn touch(&self) {
        self.0.with_mut(|calls| {
            // SAFETY: loom stops the test if another thread is inside.
            unsafe { *calls += 1 }
        });
    }
}

#[test]
fn a_pause_never_meets_an_open_range_on_another_thread() {
    loom::model(|| {
        let shared = Arc::new((Gate::new(true), Tool(UnsafeCell::new(0))));
        let theirs = Arc::clone(&shared);
        let range = thread::spawn(move || {
            let (gate, tool) = &*theirs;
            for _ in 0..2 {
                if gate.enter() {
                    tool.touch();
                    gate.leave(1);
                }
            }
        });
        let (gate, tool) = &*shared;
        let tell = || {
            tool.touch();
            Some(0)
        };
        if gate.pause(tell).is_ok() {
            tool.touch(); // paused: all ours
            gate.resume(tell).unwrap();
        }
        range.join().unwrap();
        assert!(gate.enter(), "nothing is left of it");
        gate.leave(1);
        gate.pause(tell).unwrap();
    });
}

#[test]
fn two_at_once_pause_once_and_resume_once() {
    loom::model(|| {
        let shared = Arc::new((Gate::new(true), Tool(UnsafeCell::new(0))));
        let switch = |(gate, tool): &(Gate, Tool)| {
            let tell = || {
                tool.touch();
                Some(0)
            };
            (gate.pause(tell).is_ok(), gate.resume(tell).is_ok())
        };
        let theirs = Arc::clone(&shared);
        let other = thread::spawn(move || switch(&theirs));
        let (one, other) = (switch(&shared), other.join().unwrap());
        // Either one after the other, or one of them found the other's pause.
        assert_eq!(u8::from(one.0) + u8::from(other.0), u8::from(one.1) + u8::from(other.1));
        assert!(one.0 || other.0);
    });
}

#[test]
fn never_twice_and_never_inside_a_range() {
    loom::model(|| {
        let gate = Gate::new(true);
        let tell = || Some(0);
        assert_eq!(gate.resume(tell), Err(PauseError::NotPaused));
        assert!(gate.enter() && gate.enter());
        assert_eq!(gate.pause(tell), Err(PauseError::RangesOpen(2)));
        gate.leave(2);
        assert_eq!(gate.pause(tell), Ok(()));
        assert!(!gate.enter(), "nothing is sent while paused");
        assert_eq!(gate.pause(tell), Err(PauseError::AlreadyPaused));
        assert_eq!(gate.resume(tell), Ok(()));
        assert_eq!(gate.resume(tell), Err(PauseError::NotPaused));
        assert!(gate.enter());
    });
}

#[test]
fn what_the_tool_refuses_changes_nothing() {
    loom::model(|| {
        let gate = Gate::new(true);
        assert_eq!(gate.pause(|| Some(3)), Err(PauseError::Refused(3)));
        assert_eq!(gate.pause(|| None), Err(PauseError::NotInLibrary));
        assert_eq!(gate.pause(|| Some(0)), Ok(()));
        assert_eq!(gate.resume(|| Some(3)), Err(PauseError::Refused(3)));
        assert!(!gate.enter(), "still paused");
        assert_eq!(gate.resume(|| Some(0)), Ok(()));
        assert_eq!(Gate::new(false).pause(|| Some(0)), Err(PauseError::NotAskedFor));
    });
}
