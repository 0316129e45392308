//! Lines on standard error that nobody waits for: a shard goes on serving, and leaves when it is told to, where
//! nobody reads what it says.

use std::cell::Cell;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Lines that may wait for a reader; those beyond are left out, and counted.
const MOST: usize = 64;
/// How long the last lines may take at the end.
const FLUSH: Duration = Duration::from_millis(200);

/// Says lines from a thread of its own.
pub(super) struct Teller {
    /// `None` only while it is dropped.
    lines: Option<SyncSender<String>>,
    /// Ends when all is said.
    said: Receiver<()>,
    left_out: Cell<u64>,
}

impl Teller {
    /// One that writes to `out`.
    ///
    /// # Errors
    /// When the system has no thread for it.
    pub(super) fn new(mut out: impl Write + Send + 'static) -> io::Result<Self> {
        let (lines, to_say) = sync_channel::<String>(MOST);
        let (done, said) = sync_channel(0);
        std::thread::Builder::new().name("teller".into()).spawn(move || {
            for line in to_say {
                // Whoever closed it wants to hear nothing.
                let _ = writeln!(out, "{line}").and_then(|()| out.flush());
            }
            drop(done);
        })?;
        Ok(Teller { lines: Some(lines), said, left_out: Cell::new(0) })
    }

    /// Says `line`, or leaves it out where too many wait.
    pub(super) fn tell(&self, line: String) {
        let Some(lines) = &self.lines else { return };
        let left_out = self.left_out.get();
        let line = match left_out {
            0 => line,
            _ => format!("({left_out} lines were left out: nobody read them)\n{line}"),
        };
        self.left_out.set(if lines.try_send(line).is_ok() { 0 } else { left_out + 1 });
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.lines = None;
        let _ = self.said.recv_timeout(FLUSH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    #[test]
    fn lines_are_said_in_order_and_those_that_nobody_reads_are_counted() {
        let (read, write) = io::pipe().unwrap();
        let teller = Teller::new(write).unwrap();
        let long = "x".repeat(4096);
        // More than a pipe and the lines in waiting hold.
        for _ in 0..1000 {
            teller.tell(long.clone());
        }
        let left_out = teller.left_out.get();
        assert!(left_out > 100, "nobody read, and nobody waited");
        let mut lines = BufReader::new(read).lines();
        for _ in 0..1000 - left_out {
            assert_eq!(lines.next().unwrap().unwrap(), long);
        }
        teller.tell("last".into());
        drop(teller);
        let rest: Vec<_> = lines.map(Result::unwrap).collect();
        assert_eq!(rest, [format!("({left_out} lines were left out: nobody read them)"), "last".into()]);
    }
}
