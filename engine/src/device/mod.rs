//! The seam between the decode loop and the hardware.
//!
//! A [`Device`] loads part of a model and gives back a [`Shard`]: some layers with their KV cache, the
//! embedding and the head if it was asked to hold them. The decode loop sees token ids and, between
//! shards, hidden state; everything else stays on the device.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use marker_core::Phase;

use crate::model::Checkpoint;

pub mod cpu;
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
pub mod cuda;
#[cfg(any(feature = "cuda", feature = "hip"))]
pub mod gpu;
#[cfg(feature = "hip")]
#[allow(unsafe_code)]
pub mod hip;

/// What a device could not do.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// There is no device of this name in this build or on this machine.
    #[error("no device '{name}': {why}")]
    NoSuchDevice {
        /// As it was asked for.
        name: String,
        /// The reason and what to do.
        why: String,
    },
    /// A pass does not fit what the shard holds. A bug in the caller, reported and not panicked on.
    #[error("a pass does not fit its shard: {0}")]
    BadPass(String),
    /// A device has less memory than was asked for.
    #[error(
        "{device} has no room for {what}: {asked} bytes were asked for and {free} of {total} are free: \
         use a shorter context, more shards, or a smaller model"
    )]
    OutOfMemory {
        /// The device's name.
        device: String,
        /// What the memory was for.
        what: &'static str,
        /// Bytes.
        asked: u64,
        /// Bytes.
        free: u64,
        /// Bytes.
        total: u64,
    },
    /// A call of a device's driver found no room for what it needs itself; how much that is it does not say.
    #[error(
        "{device} has no room: {call} failed: {why}; {free} of {total} bytes are free: use a shorter context, \
         more shards, or a smaller model"
    )]
    NoRoom {
        /// The device's name.
        device: String,
        /// The driver's function.
        call: &'static str,
        /// The driver's own words.
        why: String,
        /// Bytes.
        free: u64,
        /// Bytes.
        total: u64,
    },
    /// A call of a device's driver failed.
    #[error("{device}: {call} failed: {why}")]
    Call {
        /// The device's name.
        device: String,
        /// The driver's function.
        call: &'static str,
        /// The driver's own words.
        why: String,
    },
    /// A device's kernels cannot run this model.
    #[error("the kernels of {device} cannot run this model: it has {why}: use another device")]
    Unfit {
        /// The device's name.
        device: String,
        /// What does not fit.
        why: String,
    },
    /// The model could not be read while it was loaded.
    #[error(transparent)]
    Model(#[from] crate::model::ModelError),
    /// A shard in another process failed, or the way to it.
    #[error(transparent)]
    Shard(#[from] crate::shard::ShardError),
}

/// Which part of a model a shard holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The layers, end exclusive. Empty for a part that holds the embedding and the head for layers that
    /// are elsewhere: it then takes token ids as well as hidden state, and gives what is wanted of either.
    pub layers: Range<usize>,
    /// Whether token ids come in, rather than hidden state.
    pub embedding: bool,
    /// Whether the final norm and the head are here, so that logits or token ids come out.
    pub head: bool,
    /// Positions that the KV cache must be able to hold.
    pub context: usize,
}

/// The kinds of device in this build.
pub const KINDS: &[&str] = &[
    "cpu",
    #[cfg(feature = "cuda")]
    "cuda",
    #[cfg(feature = "hip")]
    "hip",
];

/// The device called `name`: a kind of [`KINDS`], and behind a colon the ordinal of a GPU, 0 if left out. The CPU
/// uses `threads` threads.
///
/// # Errors
/// [`DeviceError::NoSuchDevice`] says what this build or this machine lacks.
pub fn open(name: &str, threads: usize) -> Result<Box<dyn Device>, DeviceError> {
    match read(name)? {
        #[cfg(feature = "cuda")]
        ("cuda", ordinal) => cuda::open(ordinal),
        #[cfg(feature = "hip")]
        ("hip", ordinal) => hip::open(ordinal),
        // The one that is left.
        _ => Ok(Box::new(cpu::Cpu::new(threads))),
    }
}

/// The kind and the ordinal in a device's name. Whether this machine has that device is not looked at.
///
/// # Errors
/// [`DeviceError::NoSuchDevice`] when this build has no such kind, or the ordinal is no number.
pub fn read(name: &str) -> Result<(&str, u32), DeviceError> {
    let unknown = |why: String| Err(DeviceError::NoSuchDevice { name: name.to_owned(), why });
    let (kind, ordinal) = match name.split_once(':') {
        None => (name, Some(0)),
        Some((kind, ordinal)) => (kind, ordinal.parse().ok()),
    };
    match ordinal {
        _ if !KINDS.contains(&kind) => unknown(format!("this build has {}", KINDS.join(", "))),
        Some(1..) if kind == "cpu" => unknown("there is one cpu".into()),
        Some(ordinal) => Ok((kind, ordinal)),
        None => unknown("write a number behind the colon".into()),
    }
}

/// Loads parts of models.
pub trait Device {
    /// The device's ordinal on its host, for labels; 0 for the CPU.
    fn ordinal(&self) -> u32;

    /// The most of its memory, in bytes, that what was loaded from it held at once; `None` where nobody counts.
    fn peak_memory(&self) -> Option<u64> {
        None
    }

    /// Whether [`Path::Dense`] keeps `f32`'s precision. Matrix units that take bf16 do not.
    fn dense_is_exact(&self) -> bool {
        true
    }

    /// Loads `part` of `checkpoint`. Weights are read once, here.
    ///
    /// # Errors
    /// [`DeviceError`] when a tensor is missing or of another shape, or the device has no room.
    fn load(&self, checkpoint: &Checkpoint, part: Part) -> Result<Box<dyn Shard>, DeviceError>;
}

/// What goes into a pass.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Token ids, one a row, for a part with the embedding.
    Tokens(&'a [u32]),
    /// Hidden state `[rows, hidden]`, row major, for a part without.
    Hidden(&'a [f32]),
}

/// Which kernels a pass runs through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// The kernels of decode and verify: each row's arithmetic does not depend on the other rows.
    Decode,
    /// The large-matrix kernels of dense prefill.
    Dense,
}

/// What a pass answers with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// Hidden state `[rows, hidden]` after the part's last layer.
    Hidden,
    /// The greedy token id of each of these rows. Needs the head.
    Tokens(Range<usize>),
    /// Logits `[rows, vocab]` of these rows, and their greedy token ids. Needs the head.
    Logits(Range<usize>),
}

/// One forward pass over one shard.
#[derive(Clone, Debug)]
pub struct Pass<'a> {
    /// The rows.
    pub input: Input<'a>,
    /// The position of the first row. It equals [`Shard::cached`]: rows are appended.
    pub start: usize,
    /// What the pass is for: the mode of the leaf around it.
    pub phase: Phase,
    /// Which kernels.
    pub path: Path,
    /// What to answer.
    pub want: Want,
}

/// The token id of a row whose logits are all NaN, where a device tells: no model has so many.
pub const NO_TOKEN: u32 = u32::MAX;

/// What a pass answered. Buffers are kept between passes; a pass overwrites those it was asked for and
/// clears the others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Hidden state `[rows, hidden]`.
    pub hidden: Vec<f32>,
    /// Greedy token ids, one for each row asked for; the lowest id wins a tie.
    pub tokens: Vec<u32>,
    /// Logits `[rows, vocab]`.
    pub logits: Vec<f32>,
}

/// Proposals a round, at most, of which the host sees nothing: [`Shard::propose`].
pub const MOST_UNSEEN: usize = 15;

/// Token ids that a draft chose and left in its device's memory. The host has not seen them, nor waited for them.
#[derive(Clone)]
pub struct Proposed {
    /// How many.
    pub count: usize,
    /// Where they are; shards of the same [`memory`](Shard::memory) know what it is.
    pub place: Arc<dyn Any + Send + Sync>,
}

/// A run of a model's layers on one device, with the KV cache of those layers.
pub trait Shard: Send {
    /// Which part of the model this is.
    fn part(&self) -> &Part;

    /// The device's ordinal on its host, for labels.
    fn device(&self) -> u32;

    /// Positions in the KV cache.
    fn cached(&self) -> usize;

    /// Whether the leaf range around a pass is emitted where the layers are, in another process.
    fn emits_leaf(&self) -> bool {
        false
    }

    /// Runs rows through the layers and appends them to the KV cache.
    ///
    /// # Errors
    /// [`DeviceError`]; the cache then holds what it held before the pass.
    fn forward(&mut self, pass: &Pass<'_>, answer: &mut Answer) -> Result<(), DeviceError>;

    /// Drops cached positions from the end until `len` are left. Longer than the cache: nothing to drop.
    ///
    /// # Errors
    /// [`DeviceError`] when the device fails.
    fn roll_back(&mut self, len: usize) -> Result<(), DeviceError>;

    /// Copies the whole KV cache aside, replacing an earlier copy.
    ///
    /// # Errors
    /// [`DeviceError`] when the device has no room or fails.
    fn snapshot(&mut self) -> Result<(), DeviceError>;

    /// Puts the copy back as it was and keeps, behind it, the first `accepted` rows that were appended
    /// since: they are copied, not recomputed.
    ///
    /// # Errors
    /// [`DeviceError`] when there is no copy, fewer rows were appended, or the device fails.
    fn restore(&mut self, accepted: usize) -> Result<(), DeviceError>;

    /// The name of the memory in which this shard, a whole model, can leave and find proposals that the host does not
    /// see. `None` where it can neither [`propose`](Self::propose) nor [`verify`](Self::verify).
    fn memory(&self) -> Option<&str> {
        None
    }

    /// Appends `tokens`, and then, one a pass, what the model greedily says behind them, until it has said `count`
    /// tokens, the last of which is not appended. At least one of both, at most [`MOST_UNSEEN`] said. The host does not
    /// wait: a failure of the device shows in the next call that does.
    ///
    /// # Errors
    /// [`DeviceError`]; the cache then holds what it held before.
    fn propose(&mut self, _tokens: &[u32], _count: usize) -> Result<Proposed, DeviceError> {
        Err(DeviceError::BadPass("proposals from a shard that cannot keep them to itself".into()))
    }

    /// Appends `last` and what was proposed to follow it. `answer.tokens` is what the model greedily says after each
    /// row, up to and including the first that was not proposed: so the last one alone is new.
    ///
    /// # Errors
    /// [`DeviceError`] when the proposals are in another memory or the device fails; the cache then holds what it
    /// held before.
    fn verify(&mut self, _last: u32, _proposed: &Proposed, _answer: &mut Answer) -> Result<(), DeviceError> {
        Err(DeviceError::BadPass("proposals for a shard that cannot find them".into()))
    }

    /// From now on only token ids below `tokens` need be said: the logits of others may be minus infinity. For a draft,
    /// whose head is most of its work and whose tokens are only proposals. Whoever cannot do less goes on as before.
    fn shortlist(&mut self, _tokens: usize) {}

    /// A generation is over, finished or not: a shard elsewhere brings its cache and its statistics up to date.
    fn end_generation(&mut self) {}

    /// The shard is needed no more: a child of this process leaves, and has written what it was to write.
    ///
    /// # Errors
    /// [`DeviceError::Shard`] when it could not.
    fn close(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// The keys and values of one layer as the device holds them, widened to `f32`: `[cached, kv_heads *
    /// head_dim]` each, for tests that compare caches.
    ///
    /// # Errors
    /// [`DeviceError`] when the layer is not this shard's or the device fails.
    fn cache_rows(&mut self, layer: usize) -> Result<(Vec<f32>, Vec<f32>), DeviceError>;
}
