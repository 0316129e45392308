//! Lines on standard error that nobody waits for: a shard goes on serving, and leaves when it is told to, where
//! nobody reads what it says.

use std::cell::Cell;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Lines that may wait for a reader; those beyond are left out, and counted.
const MOST: usize = 64;
/// How long the last lines may take at the end: long on a busy machine, and short of what a parent waits for its child.
const FLUSH: Duration = Duration::from_secs(2);

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
    use std::sync::{Arc, Mutex};

    /// Takes nothing while the test holds `said`, and says when it is asked to.
    struct Held {
        said: Arc<Mutex<String>>,
        asked: SyncSender<()>,
    }

    impl Write for Held {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.asked.try_send(());
            self.said.lock().unwrap().push_str(std::str::from_utf8(bytes).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_said_in_order_and_those_that_nobody_reads_are_counted() {
        let said = Arc::new(Mutex::new(String::new()));
        let (asked, is_asked) = sync_channel(1);
        let teller = Teller::new(Held { said: Arc::clone(&said), asked }).unwrap();
        let until = |line: &str| {
            for _ in 0..30_000 {
                if said.lock().unwrap().ends_with(line) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let held = said.lock().unwrap();
        teller.tell("0".into());
        is_asked.recv().unwrap();
        // Nobody reads, and nobody waits: one line is on its way and others are in waiting.
        (1..1000).for_each(|line| teller.tell(line.to_string()));
        assert_eq!(teller.left_out.get(), 999 - MOST as u64);
        drop(held);
        until(&format!("\n{MOST}\n"));
        teller.tell("last".into());
        until("\nlast\n");
        drop(teller);
        let mut expected: Vec<_> = (0..=MOST).map(|line| line.to_string()).collect();
        expected.extend(["(935 lines were left out: nobody read them)".into(), "last".into()]);
        assert_eq!(said.lock().unwrap().lines().collect::<Vec<_>>(), expected);
    }
}
