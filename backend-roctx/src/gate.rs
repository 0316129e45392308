//! Keeps a pause of the profiler and open ranges apart.
//!
//! One word holds both the number of open ranges and whether the profiler is paused, so that neither can
//! change behind the other's back: a range announces itself before it is sent, and a pause succeeds only
//! from "nothing is open".

use crate::sync::{AcqRel, Acquire, AtomicU64, Mutex, PoisonError, Release};

/// Why the profiler was not paused or resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PauseError {
    /// The search was not made [pausable](crate::Search::pausable), so open ranges are not counted.
    #[error("the profiler was not paused: ask for it when ROCTX is loaded, with `Search::pausable`")]
    NotAskedFor,
    /// The library has no pause and resume.
    #[error("the profiler was not paused: this ROCTX lacks roctxProfilerPause and roctxProfilerResume")]
    NotInLibrary,
    /// It is paused.
    #[error("the profiler is paused already")]
    AlreadyPaused,
    /// It is not paused.
    #[error("the profiler is not paused")]
    NotPaused,
    /// Ranges are open, this many.
    #[error("the profiler was not paused: {0} ranges are open, close them first")]
    RangesOpen(u64),
    /// The tool answered this.
    #[error("the profiler refused to pause or resume, with code {0}")]
    Refused(i32),
}

const PAUSED: u64 = 1 << 63;

/// Counts open ranges, if asked to, and knows whether the profiler is paused.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Without it nothing is counted, and ranges pay one branch.
    pausable: bool,
    /// Open ranges, and [`PAUSED`].
    state: AtomicU64,
    /// Held while the tool is told.
    switching: Mutex<()>,
}

impl Gate {
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "nothing is found there"))]
    pub(crate) fn new(pausable: bool) -> Gate {
        Gate { pausable, state: AtomicU64::new(0), switching: Mutex::new(()) }
    }

    /// Whether open ranges are counted, so that whoever closes one has to say so.
    #[inline]
    #[allow(dead_code, reason = "loom's tests of the gate have no use for it")]
    pub(crate) fn counts(&self) -> bool {
        self.pausable
    }

    /// Announces a range that is about to be sent. False while paused: then it must not be sent.
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        if !self.pausable {
            return true;
        }
        let paused = self.state.fetch_add(1, AcqRel) & PAUSED != 0;
        if paused {
            self.leave(1);
        }
        !paused
    }

    /// `n` ranges were closed, or announced and not taken.
    #[inline]
    pub(crate) fn leave(&self, n: u32) {
        if self.pausable && n > 0 {
            self.state.fetch_sub(n.into(), AcqRel);
        }
    }

    /// Runs `tell` if nothing is open. From then on no range may be sent.
    pub(crate) fn pause(&self, tell: impl FnOnce() -> Option<i32>) -> Result<(), PauseError> {
        if !self.pausable {
            return Err(PauseError::NotAskedFor);
        }
        let _switching = self.switching.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.compare_exchange(0, PAUSED, AcqRel, Acquire).map_err(|state| match state & PAUSED {
            0 => PauseError::RangesOpen(state),
            _ => PauseError::AlreadyPaused,
        })?;
        let told = told(tell());
        if told.is_err() {
            self.state.fetch_and(!PAUSED, Release);
        }
        told
    }

    /// Runs `tell` if paused. Ranges may be sent again when it has succeeded.
    pub(crate) fn resume(&self, tell: impl FnOnce() -> Option<i32>) -> Result<(), PauseError> {
        let _switching = self.switching.lock().unwrap_or_else(PoisonError::into_inner);
        if self.state.load(Acquire) & PAUSED == 0 {
            return Err(PauseError::NotPaused);
        }
        told(tell())?;
        self.state.fetch_and(!PAUSED, Release);
        Ok(())
    }
}

fn told(answer: Option<i32>) -> Result<(), PauseError> {
    match answer {
        Some(0) => Ok(()),
        Some(code) => Err(PauseError::Refused(code)),
        None => Err(PauseError::NotInLibrary),
    }
}
