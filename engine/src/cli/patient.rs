//! Pipes that nobody reads. A shard takes a signal for a wish, which it hears where it waits for its parent; an opening or a
//! write that never ends would keep it for ever. So it looks for a reader as long as nobody asks it to leave, and a write that
//! waits too long is a failure.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Bytes that a pipe which is ready takes without waiting.
const AT_ONCE: usize = libc::PIPE_BUF;

/// How long a pipe without a reader is left alone.
const PAUSE: Duration = Duration::from_millis(20);

/// Nobody reads a pipe, and nobody waits for that any longer.
pub(super) struct Unread;

/// Waits until somebody reads the pipe at `path`, or until `leaves` says so. While what it gives is held, opening the pipe
/// waits for nobody. `None` where there is no pipe, or none that can be opened: whoever opens that says what is wrong with it.
pub(super) fn reader_of(path: &Path, leaves: &impl Fn() -> bool) -> Result<Option<File>, Unread> {
    if !path.metadata().is_ok_and(|there| there.file_type().is_fifo()) {
        return Ok(None);
    }
    loop {
        match File::options().write(true).custom_flags(libc::O_NONBLOCK).open(path) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => {
                if leaves() {
                    return Err(Unread);
                }
                std::thread::sleep(PAUSE);
            }
            opened => return Ok(opened.ok()),
        }
    }
}

/// Writes as `out` does, but gives up when that takes nothing for `limit`.
pub(super) struct Patient<W> {
    pub(super) out: W,
    pub(super) limit: Duration,
}

impl<W: Write + AsFd> Write for Patient<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let until = Instant::now() + self.limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec {
                tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            match poll(&mut [PollFd::new(&self.out, PollFlags::OUT)], Some(&timeout)) {
                Ok(0) if left.is_zero() => {
                    let why = format!("nobody read of it for {} s", self.limit.as_secs_f64());
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                // Woken early, or by a signal.
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return self.out.write(&bytes[..bytes.len().min(AT_ONCE)]),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_pipe_that_is_read_gets_all_and_one_that_is_not_is_given_up() {
        let text = "0123456789".repeat(100_000);
        let (mut read, write) = io::pipe().unwrap();
        let reader = std::thread::spawn(move || {
            let mut got = String::new();
            read.read_to_string(&mut got).unwrap();
            got
        });
        let mut patient = Patient { out: write, limit: Duration::from_mins(1) };
        patient.write_all(text.as_bytes()).unwrap();
        drop(patient);
        assert_eq!(reader.join().unwrap(), text);

        let (_read, write) = io::pipe().unwrap();
        let mut patient = Patient { out: write, limit: Duration::from_millis(50) };
        let error = patient.write_all(text.as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "nobody read of it for 0.05 s");
    }
}
