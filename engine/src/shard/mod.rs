//! A model over one or several shards: the passes, and the leaf range around each.
//!
//! A shard is a run of layers on a device of this process, or in another process: a child
//! ([`Link::Spawned`]) or one that listens somewhere ([`Service`]). `docs/shards.md` is for those who use
//! them; the wire is described in the private module `wire`.

use std::ops::Range;

use marker_core::{Fields, Markers, Phase, Scope, range};

cfg_select! {
    unix => {
        mod limits;
        mod link;
        mod listen;
        mod remote;
        mod serve;
        mod wire;

        pub use limits::Limits;
        pub use link::{Link, Spawned};
        pub use listen::{Listener, Stop, Stopper, is_orphaned};
        pub use remote::RemoteShard;
        pub use serve::{Service, last_word};
        pub use wire::handshake::Terms;
    }
    _ => {}
}
mod advice;
mod error;
mod numbers;
mod place;
mod split;
#[cfg(all(test, unix))]
mod tests;

pub use error::{ShardError, Why};
pub use place::{Address, Place, PlaceError};
pub use split::{Placed, SplitError, read_range, split};

use numbers::no_numbers;

use crate::device::{Answer, DeviceError, Input, Pass, Path, Proposed, Shard, Want};
use crate::model::Config;

/// A whole model, its layers spread over shards that follow each other.
///
/// Every pass over a shard is one `ds4.layer_range`; the first shard's encloses the embedding, the last
/// one's the norm, head and argmax, where these shards are in this process. The leaf of a shard in another
/// process is emitted there, and embedding or head beside it lie outside any leaf. The draft model is a chain
/// too: its passes are given [`Markers::OFF`], since the vocabulary wants no leaf for them.
pub struct Chain {
    shards: Vec<Box<dyn Shard>>,
    /// The embedding and the head, when a shard at either end is elsewhere.
    ends: Option<Box<dyn Shard>>,
    layers: usize,
    vocab: usize,
    context: usize,
    answer: Answer,
    /// The hidden state on its way from one shard to the next, `[rows, hidden]`.
    hidden: Vec<f32>,
}

impl Chain {
    /// A model from shards that together hold every layer once, in order, the embedding first and the head
    /// last.
    ///
    /// # Errors
    /// [`DeviceError::BadPass`] when they do not.
    pub fn new(config: &Config, shards: Vec<Box<dyn Shard>>) -> Result<Self, DeviceError> {
        Chain::build(config, None, shards)
    }

    /// The same where shards at either end are elsewhere: `ends` has no layers, but the embedding and the
    /// head, and no shard has them.
    ///
    /// # Errors
    /// [`DeviceError::BadPass`] when it is otherwise.
    pub fn with_ends(
        config: &Config,
        ends: Box<dyn Shard>,
        shards: Vec<Box<dyn Shard>>,
    ) -> Result<Self, DeviceError> {
        Chain::build(config, Some(ends), shards)
    }

    fn build(
        config: &Config,
        ends: Option<Box<dyn Shard>>,
        shards: Vec<Box<dyn Shard>>,
    ) -> Result<Self, DeviceError> {
        let layers = config.layers;
        let wrong = |what: String| Err(DeviceError::BadPass(what));
        if let Some(part) = ends.as_ref().map(|ends| ends.part())
            && !(part.layers.is_empty() && part.embedding && part.head)
        {
            return wrong("the ends of a chain are the embedding and the head, and no layers".into());
        }
        let mut next = 0;
        for (index, shard) in shards.iter().enumerate() {
            let part = shard.part();
            if part.layers.start != next || part.layers.is_empty() {
                return wrong(format!(
                    "shard {index} holds layers {:?}, but layer {next} comes next: shards must follow each other",
                    part.layers
                ));
            }
            let (first, last) = (index == 0, index + 1 == shards.len());
            if (part.embedding, part.head) != (first && ends.is_none(), last && ends.is_none()) {
                return wrong(format!(
                    "shard {index} of {}: the embedding comes first and the head last, once each",
                    shards.len()
                ));
            }
            next = part.layers.end;
        }
        if next != layers || shards.is_empty() {
            return wrong(format!("the shards hold layers 0..{next} of a model of {layers}"));
        }
        let parts = shards.iter().chain(&ends).map(|shard| shard.part().context);
        let context = parts.min().unwrap_or(0).min(config.context);
        Ok(Chain {
            shards,
            ends,
            layers,
            vocab: config.vocab,
            context,
            answer: Answer::default(),
            hidden: Vec::new(),
        })
    }

    /// Token ids are below this.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Says only token ids below `tokens` from now on, where that is less work: [`Shard::shortlist`].
    pub fn shortlist(&mut self, tokens: usize) {
        self.shards.iter_mut().for_each(|shard| shard.shortlist(tokens));
    }

    /// Positions that the model and its caches can hold.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Positions in the caches now.
    pub fn cached(&self) -> usize {
        self.shards.first().map_or(0, |shard| shard.cached())
    }

    /// The shards, for those who look into their caches.
    pub fn shards_mut(&mut self) -> &mut [Box<dyn Shard>] {
        &mut self.shards
    }

    /// The fields of a range over the whole model: `layers` all of them, `device` the first shard's.
    pub fn whole(&self, scope: Scope, mode: Phase, tokens: usize) -> Fields {
        let device = self.shards.first().map_or(0, |shard| shard.device());
        Fields::new(scope).mode(mode).tokens(tokens as u64).layers(0..self.layers as u32).device(device)
    }

    /// Appends `tokens`, one a row, and answers as `want` says. `phase` is the mode of the leaves.
    ///
    /// # Errors
    /// [`DeviceError`]; no shard's cache is then longer than before, as far as the devices still answer.
    pub fn forward(
        &mut self,
        markers: Markers<'_>,
        phase: Phase,
        path: Path,
        tokens: &[u32],
        want: &Want,
    ) -> Result<&Answer, DeviceError> {
        let start = self.cached();
        if let Err(error) = self.pass(markers, phase, path, tokens, want) {
            for shard in &mut self.shards {
                // The first failure is the one to tell; a device that fails again says nothing new.
                let _ = shard.roll_back(start);
            }
            return Err(error);
        }
        Ok(&self.answer)
    }

    fn pass(
        &mut self,
        markers: Markers<'_>,
        phase: Phase,
        path: Path,
        tokens: &[u32],
        want: &Want,
    ) -> Result<(), DeviceError> {
        let Chain { shards, ends, answer, hidden, .. } = self;
        let last = shards.len() - 1;
        let hop = Pass { input: Input::Tokens(tokens), start: 0, phase, path, want: Want::Hidden };
        for (index, shard) in shards.iter_mut().enumerate() {
            let here = if shard.emits_leaf() { Markers::OFF } else { markers };
            range!(here, leaf(&**shard, phase, tokens.len()));
            if index == 0
                && let Some(ends) = ends
            {
                at_the_ends(&mut **ends, &hop, answer)?;
                is_numbers(&answer.hidden, tokens.len(), || "of the embedding".into())?;
                std::mem::swap(hidden, &mut answer.hidden);
            }
            let pass = Pass {
                input: if index == 0 && ends.is_none() { hop.input } else { Input::Hidden(hidden) },
                start: shard.cached(),
                want: if index == last && ends.is_none() { want.clone() } else { Want::Hidden },
                ..hop
            };
            shard.forward(&pass, answer)?;
            if !shard.emits_leaf() {
                // What comes from elsewhere was judged when it came.
                let Range { start, end } = shard.part().layers;
                is_numbers(&answer.hidden, tokens.len(), || format!("{start}..{end}"))?;
            }
            if index < last {
                std::mem::swap(hidden, &mut answer.hidden);
            } else if *want != Want::Hidden
                && let Some(ends) = ends
            {
                std::mem::swap(hidden, &mut answer.hidden);
                let pass = Pass { input: Input::Hidden(hidden), want: want.clone(), ..hop };
                at_the_ends(&mut **ends, &pass, answer)?;
            }
        }
        Ok(())
    }

    /// Whether what `draft` proposes can be verified here with none of it seen by the host: both are one shard, in the
    /// same memory.
    pub fn shares_memory(&self, draft: &Chain) -> bool {
        self.memory().is_some_and(|memory| draft.memory() == Some(memory))
    }

    fn memory(&self) -> Option<&str> {
        match (&self.shards[..], &self.ends) {
            ([whole], None) => whole.memory(),
            _ => None,
        }
    }

    /// Appends `tokens` and what follows them greedily, until `count` tokens are chosen: [`Shard::propose`].
    ///
    /// # Errors
    /// [`DeviceError`]; the cache is then no longer than before.
    pub fn propose(&mut self, tokens: &[u32], count: usize) -> Result<Proposed, DeviceError> {
        self.shards[0].propose(tokens, count)
    }

    /// Appends `last` and what was proposed to follow it, and answers the tokens that stand and the one behind them:
    /// [`Shard::verify`].
    ///
    /// # Errors
    /// [`DeviceError`]; the cache is then no longer than before.
    pub fn verify(
        &mut self,
        markers: Markers<'_>,
        last: u32,
        proposed: &Proposed,
    ) -> Result<&Answer, DeviceError> {
        let Chain { shards, answer, .. } = self;
        let shard = &mut shards[0];
        range!(markers, leaf(&**shard, Phase::Verify, 1 + proposed.count));
        shard.verify(last, proposed, answer)?;
        Ok(answer)
    }

    /// Drops cached positions from the end until `len` are left.
    ///
    /// # Errors
    /// [`DeviceError`] of the first shard that fails.
    pub fn roll_back(&mut self, len: usize) -> Result<(), DeviceError> {
        self.shards.iter_mut().try_for_each(|shard| shard.roll_back(len))
    }

    /// Copies every shard's KV cache aside.
    ///
    /// # Errors
    /// [`DeviceError`] of the first shard that fails.
    pub fn snapshot(&mut self) -> Result<(), DeviceError> {
        self.shards.iter_mut().try_for_each(|shard| shard.snapshot())
    }

    /// Puts the copies back and keeps the first `accepted` rows appended since.
    ///
    /// # Errors
    /// [`DeviceError`] of the first shard that fails.
    pub fn restore(&mut self, accepted: usize) -> Result<(), DeviceError> {
        self.shards.iter_mut().try_for_each(|shard| shard.restore(accepted))
    }

    /// Tells every shard that a generation is over, finished or not.
    pub fn end_generation(&mut self) {
        self.shards.iter_mut().for_each(|shard| shard.end_generation());
    }

    /// Lets every shard leave.
    ///
    /// # Errors
    /// [`DeviceError`] of the first one that could not finish its work.
    pub fn close(mut self) -> Result<(), DeviceError> {
        // The others leave all the same, here or when they are dropped.
        self.shards.iter_mut().map(|shard| shard.close()).fold(Ok(()), Result::and)
    }
}

/// What a leaf around a pass of `rows` rows says.
fn leaf(shard: &dyn Shard, phase: Phase, rows: usize) -> Fields {
    let Range { start, end } = shard.part().layers;
    Fields::new(Scope::LAYER_RANGE)
        .mode(phase)
        .tokens(rows as u64)
        .layers(start as u32..end as u32)
        .device(shard.device())
}

/// That the hidden state of `rows` rows that a shard of this process gave is numbers: a shard that gets it next must not
/// be blamed. Nothing was given where the head is behind the layers.
fn is_numbers(hidden: &[f32], rows: usize, shard: impl Fn() -> String) -> Result<(), ShardError> {
    match no_numbers(hidden, hidden.len() / rows.max(1)) {
        None => Ok(()),
        Some(row) => {
            Err(ShardError { shard: format!("{} in this process", shard()), why: Why::NoNumbers { row } })
        }
    }
}

/// A pass through the embedding or the head: no layers, so nothing of it is to be remembered.
fn at_the_ends(ends: &mut dyn Shard, pass: &Pass<'_>, answer: &mut Answer) -> Result<(), DeviceError> {
    ends.roll_back(0)?;
    ends.forward(pass, answer)
}
