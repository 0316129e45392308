//! Shards in processes of their own, and a relay that counts what such a one is sent.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use benches::child;
use engine::shard::{Address, Limits, Link, Spawned};

use crate::Done;

/// The words of a command that serves the upper half of the target.
fn words(model: &Path, address: &str) -> Done<Vec<OsString>> {
    let args = ["shard", "--layers", "4..8", "--threads", "1", "--listen", address, "--model"];
    let args: Vec<_> = args.iter().map(Into::into).chain([model.into()]).collect();
    Ok(child::command(&args)?)
}

/// A child of the parent that will use it.
pub(crate) fn spawned(model: &Path) -> Done<Link> {
    let mut words = words(model, "inherited")?;
    let program = words.remove(0).into();
    Ok(Link::Spawned(Spawned::start("spawn:cpu".into(), program, words, &Limits::default())?))
}

/// A shard that listens.
pub(crate) struct Process {
    child: Child,
    pub(crate) address: Address,
}

impl Process {
    pub(crate) fn start(model: &Path, address: &str) -> Done<Self> {
        let words = words(model, address)?;
        let mut child = Command::new(&words[0]).args(&words[1..]).stderr(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stderr.take().ok_or("no standard error")?).read_line(&mut line)?;
        let address = line.trim_end().strip_prefix("listening on ").ok_or_else(|| line.clone())?.parse()?;
        Ok(Process { child, address })
    }

    pub(crate) fn link(&self) -> Link {
        listening(self.address.clone())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A link to a shard that listens on this host.
pub(crate) fn listening(address: Address) -> Link {
    Link::Listening { address, insecure: false }
}

/// Bytes to the shard and back.
pub(crate) type Bytes = Arc<[AtomicU64; 2]>;

/// A TCP relay to `shard` that counts the bytes there and back, for one connection.
pub(crate) fn relay(shard: &Address) -> Done<(Address, Bytes)> {
    let Address::Tcp(shard) = shard.clone() else { return Err("the counted shard is at TCP".into()) };
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = Address::Tcp(listener.local_addr()?.to_string());
    let bytes = Bytes::default();
    let counts = Arc::clone(&bytes);
    std::thread::spawn(move || -> std::io::Result<()> {
        let (parent, _) = listener.accept()?;
        let shard = TcpStream::connect(shard)?;
        let (back_from, back_to) = (shard.try_clone()?, parent.try_clone()?);
        let back = Arc::clone(&counts);
        std::thread::spawn(move || pump(&back_from, &back_to, &back[1]));
        pump(&parent, &shard, &counts[0])
    });
    Ok((address, bytes))
}

fn pump(mut from: &TcpStream, mut to: &TcpStream, count: &AtomicU64) -> std::io::Result<()> {
    let mut chunk = vec![0; 1 << 16];
    loop {
        let read = from.read(&mut chunk)?;
        if read == 0 {
            return to.shutdown(Shutdown::Both);
        }
        count.fetch_add(read as u64, Relaxed);
        to.write_all(&chunk[..read])?;
    }
}
