//! A shard without work, so that what is measured is the wire.

use std::thread::JoinHandle;

use engine::device::{Answer, DeviceError, Input, Part, Pass, Shard};
use engine::shard::{Address, Limits, Link, Listener, RemoteShard, Service, Stop, Stopper, Terms};
use marker_core::Markers;

use crate::Done;

/// Its layers answer with what they got.
pub(crate) struct Nothing {
    part: Part,
    cached: usize,
}

impl Nothing {
    pub(crate) fn new() -> Self {
        Nothing { part: Part { layers: 0..1, embedding: false, head: false, context: 1 << 16 }, cached: 0 }
    }
}

impl Shard for Nothing {
    fn part(&self) -> &Part {
        &self.part
    }
    fn device(&self) -> u32 {
        0
    }
    fn cached(&self) -> usize {
        self.cached
    }
    fn forward(&mut self, pass: &Pass<'_>, answer: &mut Answer) -> Result<(), DeviceError> {
        if let Input::Hidden(hidden) = pass.input {
            answer.hidden.clear();
            answer.hidden.extend_from_slice(hidden);
            self.cached += 1;
        }
        Ok(())
    }
    fn roll_back(&mut self, len: usize) -> Result<(), DeviceError> {
        self.cached = self.cached.min(len);
        Ok(())
    }
    fn snapshot(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }
    fn restore(&mut self, _: usize) -> Result<(), DeviceError> {
        Ok(())
    }
    fn cache_rows(&mut self, _: usize) -> Result<(Vec<f32>, Vec<f32>), DeviceError> {
        Ok((Vec::new(), Vec::new()))
    }
}

/// One that is served by a thread, which ends with this.
pub(crate) struct Served {
    pub(crate) remote: RemoteShard,
    stopper: Option<Stopper>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl Served {
    pub(crate) fn start(address: &Address, width: usize) -> Done<Self> {
        let terms = Terms { fingerprint: 1, layers: 0..1, width };
        let listener = Listener::bind(address, false)?;
        let link = Link::Listening { address: listener.to_string().parse()?, insecure: false };
        let (stop, stopper) = Stop::by_hand()?;
        let its_terms = terms.clone();
        let thread = std::thread::spawn(move || {
            let mut service = Service {
                shard: Box::new(Nothing::new()),
                terms: its_terms,
                markers: Markers::OFF,
                limits: Limits::default(),
                ended: &mut || {},
                tell: &mut |line| eprintln!("{line}"),
            };
            service.listen(&listener, &stop)
        });
        let remote = RemoteShard::connect(link, terms, Limits::default())?;
        Ok(Served { remote, stopper: Some(stopper), thread: Some(thread) })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.stopper.take());
        if let Some(thread) = self.thread.take() {
            // What went wrong, the parent's side has said.
            let _ = thread.join();
        }
    }
}
