//! What the tests stand on: shards served in threads, and frames written by hand, so that the wire's
//! description is checked and not its own code.

use std::io::{Read, Write};
use std::ops::{ControlFlow, Range};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use marker_core::Markers;
use tempfile::TempDir;

use crate::decode::{Engine, Generation, Request};
use crate::device::{Answer, DeviceError, Part, Pass, Shard};
use crate::shard::{
    Address, Chain, Limits, Link, Listener, RemoteShard, Service, ShardError, Stop, Stopper, Terms,
};
use crate::toy::{CONTEXT, LAYERS, Model, Toy, VOCAB, WIDTH, chain, config};

pub(super) const FINGERPRINT: u64 = 0x0123_4567_89ab_cdef;

/// Short enough for a test, long enough for a busy machine.
pub(super) const LIMITS: Limits = Limits {
    connect: Duration::from_secs(10),
    load: Duration::from_secs(10),
    answer: Duration::from_secs(10),
    frame: Duration::from_secs(10),
    idle: Duration::from_mins(1),
    leave: Duration::from_secs(10),
};

pub(super) fn terms(layers: Range<usize>) -> Terms {
    Terms { fingerprint: FINGERPRINT, layers, width: WIDTH }
}

/// A toy whose cache can be looked at from elsewhere.
struct Watched {
    toy: Toy,
    cache: Arc<Mutex<Vec<f32>>>,
}

impl Watched {
    fn show<T>(&mut self, done: T) -> T {
        *self.cache.lock().unwrap() = self.toy.cache_rows(0).unwrap().0;
        done
    }
}

impl Shard for Watched {
    fn part(&self) -> &Part {
        self.toy.part()
    }
    fn device(&self) -> u32 {
        self.toy.device()
    }
    fn cached(&self) -> usize {
        self.toy.cached()
    }
    fn forward(&mut self, pass: &Pass<'_>, answer: &mut Answer) -> Result<(), DeviceError> {
        let done = self.toy.forward(pass, answer);
        self.show(done)
    }
    fn roll_back(&mut self, len: usize) -> Result<(), DeviceError> {
        let done = self.toy.roll_back(len);
        self.show(done)
    }
    fn snapshot(&mut self) -> Result<(), DeviceError> {
        self.toy.snapshot()
    }
    fn restore(&mut self, accepted: usize) -> Result<(), DeviceError> {
        let done = self.toy.restore(accepted);
        self.show(done)
    }
    fn cache_rows(&mut self, layer: usize) -> Result<(Vec<f32>, Vec<f32>), DeviceError> {
        self.toy.cache_rows(layer)
    }
}

/// A shard that listens in a thread of its own, and leaves when this is dropped.
pub(super) struct Served {
    pub(super) address: Address,
    pub(super) layers: Range<usize>,
    /// What it told a person.
    pub(super) told: Arc<Mutex<Vec<String>>>,
    /// Generations that ended.
    pub(super) ended: Arc<AtomicUsize>,
    pub(super) cache: Arc<Mutex<Vec<f32>>>,
    stop: Option<Stopper>,
    thread: Option<JoinHandle<()>>,
    _folder: TempDir,
}

/// Which kind of socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Socket {
    Unix,
    Tcp,
}

/// Serves these layers of the toy target.
pub(super) fn serve(layers: Range<usize>, socket: Socket, limits: Limits) -> Served {
    serve_with(layers, socket, limits, Markers::OFF, None)
}

pub(super) fn serve_with(
    layers: Range<usize>,
    socket: Socket,
    limits: Limits,
    markers: Markers<'static>,
    fuse: Option<Arc<AtomicUsize>>,
) -> Served {
    let part = Part { layers, embedding: false, head: false, context: CONTEXT };
    serve_part(part, socket, limits, markers, fuse)
}

pub(super) fn serve_part(
    part: Part,
    socket: Socket,
    limits: Limits,
    markers: Markers<'static>,
    fuse: Option<Arc<AtomicUsize>>,
) -> Served {
    let layers = part.layers.clone();
    let folder = tempfile::tempdir().unwrap();
    let address = match socket {
        Socket::Unix => Address::Unix(folder.path().join("shard")),
        Socket::Tcp => Address::Tcp("127.0.0.1:0".into()),
    };
    let listener = Listener::bind(&address, false).unwrap();
    let address: Address = listener.to_string().parse().unwrap();
    let (stop, stopper) = Stop::by_hand().unwrap();
    let (told, ended, cache) = (Arc::default(), Arc::new(AtomicUsize::new(0)), Arc::default());
    let shard = Watched { toy: Toy::new(Model::Salted(0), part, fuse), cache: Arc::clone(&cache) };
    let (tell_to, count): (Arc<Mutex<Vec<String>>>, _) = (Arc::clone(&told), Arc::clone(&ended));
    let its_terms = terms(layers.clone());
    let thread = std::thread::spawn(move || {
        let mut ended = || {
            count.fetch_add(1, SeqCst);
        };
        let mut tell = |line: &str| tell_to.lock().unwrap().push(line.to_owned());
        let mut service = Service {
            shard: Box::new(shard),
            terms: its_terms,
            markers,
            limits,
            ended: &mut ended,
            tell: &mut tell,
        };
        service.listen(&listener, &stop).unwrap();
    });
    Served { address, layers, told, ended, cache, stop: Some(stopper), thread: Some(thread), _folder: folder }
}

impl Served {
    pub(super) fn link(&self) -> Link {
        Link::Listening { address: self.address.clone(), insecure: false }
    }

    pub(super) fn connect(&self, limits: Limits) -> Result<RemoteShard, ShardError> {
        RemoteShard::connect(self.link(), terms(self.layers.clone()), limits)
    }

    /// A socket to a shard at a Unix address, for frames by hand.
    pub(super) fn raw(&self) -> Raw {
        let Address::Unix(path) = &self.address else { panic!("{} is no Unix socket", self.address) };
        Raw::new(UnixStream::connect(path).unwrap())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.stop.take());
        let left = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            left.unwrap().expect("a shard never panics");
        }
    }
}

/// The embedding and the head alone.
pub(super) fn ends() -> Box<dyn Shard> {
    let part = Part { layers: 0..0, embedding: true, head: true, context: CONTEXT };
    Box::new(Toy::new(Model::Salted(0), part, None))
}

/// The whole target as one remote shard.
pub(super) fn remote_chain(remote: RemoteShard) -> Chain {
    Chain::with_ends(&config(VOCAB as usize), ends(), vec![Box::new(remote)]).unwrap()
}

/// The whole target behind one remote shard, with a draft that is right most of the time.
pub(super) fn remote_engine(served: &Served, limits: Limits) -> Engine {
    let target = remote_chain(served.connect(limits).unwrap());
    Engine::new(target, Some(chain(Model::Lying(2), 1, None)), vec![]).unwrap()
}

/// What the target says without any shard elsewhere.
pub(super) fn expected(request: &Request) -> Vec<u32> {
    let mut plain = Engine::new(chain(Model::Salted(0), 1, None), None, vec![]).unwrap();
    run(&mut plain, request).unwrap().tokens
}

pub(super) fn run(engine: &mut Engine, request: &Request) -> Result<Generation, crate::Error> {
    engine.generate(request, Markers::OFF, &mut |_| ControlFlow::Continue(()))
}

/// All of them.
pub(super) const WHOLE: Range<usize> = 0..LAYERS;

// Frames by hand.

pub(super) const HELLO: u32 = 1;
pub(super) const PASS: u32 = 2;
pub(super) const COMMIT: u32 = 3;
pub(super) const WELCOME: u32 = 4;
pub(super) const ANSWER: u32 = 5;
pub(super) const ERROR: u32 = 6;

pub(super) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(super) fn head(kind: u32, id: u64, length: u64) -> Vec<u8> {
    [&b"phmk"[..], &kind.to_le_bytes(), &id.to_le_bytes(), &length.to_le_bytes()].concat()
}

pub(super) fn frame(kind: u32, id: u64, body: &[u8]) -> Vec<u8> {
    [head(kind, id, body.len() as u64), body.to_vec()].concat()
}

pub(super) fn hello(version: u32, dtype: u32, fingerprint: u64, layers: Range<u32>, width: u32) -> Vec<u8> {
    [words(&[version, dtype]), fingerprint.to_le_bytes().to_vec(), words(&[layers.start, layers.end, width])]
        .concat()
}

pub(super) fn good_hello() -> Vec<u8> {
    hello(1, 1, FINGERPRINT, 0..LAYERS as u32, WIDTH as u32)
}

/// A pass, right unless a test changes a field.
#[derive(Clone, Debug)]
pub(super) struct PassBody {
    pub(super) keep: u32,
    pub(super) restore: u32,
    pub(super) flags: u32,
    pub(super) rows: u32,
    pub(super) width: u32,
    pub(super) path: u32,
    pub(super) phases: u32,
    pub(super) phase: Vec<i32>,
    pub(super) values: Vec<f32>,
}

/// Rows of these tokens, behind `keep` positions.
pub(super) fn good_pass(keep: u32, tokens: &[u32]) -> PassBody {
    PassBody {
        keep,
        restore: u32::MAX,
        flags: 0,
        rows: tokens.len() as u32,
        width: WIDTH as u32,
        path: 0,
        phases: 1,
        phase: vec![5],
        values: tokens.iter().flat_map(|token| [*token as f32; WIDTH]).collect(),
    }
}

impl PassBody {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let PassBody { keep, restore, flags, rows, width, path, phases, phase, values } = self;
        let mut bytes = words(&[*keep, *restore, *flags, *rows, *width, *path, *phases]);
        bytes.extend(phase.iter().flat_map(|phase| phase.to_le_bytes()));
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        bytes
    }
}

/// A frame as it was received.
#[derive(Debug, PartialEq)]
pub(super) struct Got {
    pub(super) kind: u32,
    pub(super) id: u64,
    pub(super) body: Vec<u8>,
}

impl Got {
    pub(super) fn code(&self) -> u32 {
        u32::from_le_bytes(self.body[..4].try_into().unwrap())
    }
}

/// A socket for frames by hand. No wait on it is longer than the time limit.
pub(super) struct Raw(pub(super) UnixStream);

impl Raw {
    pub(super) fn new(stream: UnixStream) -> Self {
        let limit = Some(Duration::from_secs(20));
        stream.set_read_timeout(limit).unwrap();
        stream.set_write_timeout(limit).unwrap();
        Raw(stream)
    }

    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// The next frame; `None` at the end.
    pub(super) fn receive(&mut self) -> Option<Got> {
        let mut head = [0; 24];
        match self.0.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return None,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
            Err(error) => panic!("no frame within the time limit: {error}"),
        }
        assert_eq!(&head[..4], b"phmk");
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
        let mut body = vec![0; usize::try_from(long(16)).unwrap()];
        self.0.read_exact(&mut body).unwrap();
        Some(Got { kind: word(4), id: long(8), body })
    }

    /// Agrees with a shard of the whole toy.
    pub(super) fn greet(&mut self, id: u64) {
        self.send(&frame(HELLO, id, &good_hello()));
        let welcome = self.receive().expect("a welcome");
        assert_eq!((welcome.kind, welcome.id, welcome.body.len()), (WELCOME, id, 36));
        assert_eq!(&welcome.body[..28], good_hello());
        assert_eq!(&welcome.body[32..], words(&[0]), "the device's ordinal");
    }

    /// A good pass from an empty cache succeeds here and now.
    pub(super) fn works(&mut self, id: u64) {
        self.send(&frame(PASS, id, &good_pass(0, &[3, 1, 4]).bytes()));
        let answer = self.receive().expect("an answer");
        assert_eq!((answer.kind, answer.id), (ANSWER, id), "{}", String::from_utf8_lossy(&answer.body));
        let mut local = Toy::whole(Model::Salted(0));
        let said = local.say(&[3, 1, 4]);
        let expected: Vec<u8> =
            said.iter().flat_map(|token| (*token as f32).to_le_bytes().repeat(WIDTH)).collect();
        assert_eq!(answer.body, [words(&[3, WIDTH as u32]), expected].concat());
    }
}
