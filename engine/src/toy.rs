//! A toy model for tests: its every answer depends on all that its cache holds, so that a cache that is one
//! row too long, too short or another one gives other tokens.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::device::{Answer, DeviceError, Input, MOST_UNSEEN, Part, Pass, Proposed, Shard, Want};
use crate::model::{Architecture, Config, Rope, Scaling};
use crate::shard::Chain;

pub(crate) const VOCAB: u32 = 11;
pub(crate) const LAYERS: usize = 6;
pub(crate) const CONTEXT: usize = 96;
/// Values of a row of hidden state: the token, and copies of it that must arrive as they were sent.
pub(crate) const WIDTH: usize = 5;

/// A shard whose hidden state is the tokens, and whose head is a hash of everything cached.
pub(crate) struct Toy {
    part: Part,
    cache: Vec<u32>,
    aside: Option<Vec<u32>>,
    model: Model,
    /// Passes until one fails.
    fuse: Option<Arc<AtomicUsize>>,
    /// Where it keeps proposals to itself, as a GPU does: how many it made.
    unseen: Option<Arc<AtomicUsize>>,
}

/// Which toy. Models of different salts disagree.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Model {
    /// Hashes with this salt.
    Salted(u32),
    /// What `Salted(0)` says, except where the hash says to lie, in this many of 8 cases.
    Lying(u32),
}

fn mix(state: u32, value: u32) -> u32 {
    (state ^ value.wrapping_mul(0x9e37_79b9)).rotate_left(13).wrapping_mul(0x85eb_ca6b) ^ 0x27d4
}

impl Model {
    fn hash(self, cache: &[u32]) -> u32 {
        let hash = |salt| cache.iter().fold(salt, |state, value| mix(state, *value));
        match self {
            Model::Salted(salt) => hash(salt) % VOCAB,
            Model::Lying(eighths) if hash(77) % 8 < eighths => (hash(0) + 1) % VOCAB,
            Model::Lying(_) => hash(0) % VOCAB,
        }
    }
}

impl Toy {
    pub(crate) fn new(model: Model, part: Part, fuse: Option<Arc<AtomicUsize>>) -> Self {
        Toy { part, cache: Vec::new(), aside: None, model, fuse, unseen: None }
    }

    /// Every layer, with embedding and head.
    pub(crate) fn whole(model: Model) -> Self {
        Toy::new(model, Part { layers: 0..LAYERS, embedding: true, head: true, context: CONTEXT }, None)
    }

    /// Appends `tokens`; what the model says after each.
    pub(crate) fn say(&mut self, tokens: &[u32]) -> Vec<u32> {
        let from = self.cache.len();
        self.cache.extend_from_slice(tokens);
        (from..self.cache.len()).map(|at| self.leaves(at + 1)).collect()
    }

    /// Whether a fuse blew in what would be so many passes.
    fn burn(&self, passes: usize) -> Result<(), DeviceError> {
        if let Some(fuse) = &self.fuse {
            for _ in 0..passes {
                if fuse.fetch_sub(1, Relaxed) == 1 {
                    return Err(DeviceError::BadPass("the fuse blew".into()));
                }
            }
        }
        Ok(())
    }

    /// What goes on to the next shard: tokens, and from the last layer on what the model says.
    fn leaves(&self, cached: usize) -> u32 {
        if self.part.layers.end == LAYERS && !self.part.layers.is_empty() {
            self.model.hash(&self.cache[..cached])
        } else {
            self.cache[cached - 1]
        }
    }
}

impl Shard for Toy {
    fn part(&self) -> &Part {
        &self.part
    }

    fn device(&self) -> u32 {
        u32::from(self.part.layers.start > 0)
    }

    fn cached(&self) -> usize {
        self.cache.len()
    }

    fn forward(&mut self, pass: &Pass<'_>, answer: &mut Answer) -> Result<(), DeviceError> {
        assert_eq!(pass.start, self.cache.len(), "rows are appended");
        let rows: Vec<u32> = match pass.input {
            Input::Tokens(tokens) => tokens.to_vec(),
            Input::Hidden(hidden) => hidden
                .chunks(WIDTH)
                .map(|row| {
                    assert!(
                        row.len() == WIDTH && row.iter().all(|value| value.to_bits() == row[0].to_bits()),
                        "{row:?}"
                    );
                    row[0] as u32
                })
                .collect(),
        };
        self.burn(1)?;
        assert!(!rows.is_empty() && self.cache.len() + rows.len() <= self.part.context);
        let from = self.cache.len();
        self.cache.extend_from_slice(&rows);
        *answer = Answer::default();
        let leaves = |row: usize| self.leaves(from + row + 1);
        match &pass.want {
            Want::Hidden => {
                answer.hidden.extend((0..rows.len()).flat_map(|row| [leaves(row) as f32; WIDTH]));
            }
            Want::Tokens(wanted) | Want::Logits(wanted) => answer.tokens.extend(wanted.clone().map(leaves)),
        }
        Ok(())
    }

    fn roll_back(&mut self, len: usize) -> Result<(), DeviceError> {
        self.cache.truncate(len);
        Ok(())
    }

    fn snapshot(&mut self) -> Result<(), DeviceError> {
        self.aside = Some(self.cache.clone());
        Ok(())
    }

    fn restore(&mut self, accepted: usize) -> Result<(), DeviceError> {
        let wrong = || DeviceError::BadPass("no copy, or fewer rows behind it".into());
        let mut cache = self.aside.take().ok_or_else(wrong)?;
        let kept = self.cache.get(cache.len()..cache.len() + accepted).ok_or_else(wrong)?;
        cache.extend_from_slice(kept);
        self.cache = cache;
        Ok(())
    }

    fn memory(&self) -> Option<&str> {
        self.unseen.as_ref().map(|_| "toy")
    }

    fn propose(&mut self, tokens: &[u32], count: usize) -> Result<Proposed, DeviceError> {
        assert!(!tokens.is_empty() && (1..=MOST_UNSEEN).contains(&count));
        assert!(self.cache.len() + tokens.len() + count - 1 <= self.part.context);
        self.burn(count)?;
        self.unseen.as_ref().map(|unseen| unseen.fetch_add(count, Relaxed));
        let mut proposed = vec![*self.say(tokens).last().unwrap_or(&0)];
        while proposed.len() < count {
            let next = self.say(&proposed[proposed.len() - 1..])[0];
            proposed.push(next);
        }
        Ok(Proposed { count, place: Arc::new(proposed) })
    }

    fn verify(&mut self, last: u32, proposed: &Proposed, answer: &mut Answer) -> Result<(), DeviceError> {
        let tokens =
            proposed.place.downcast_ref::<Vec<u32>>().filter(|tokens| tokens.len() == proposed.count);
        let tokens = tokens.ok_or_else(|| DeviceError::BadPass("another memory".into()))?;
        assert!(self.cache.len() + 1 + tokens.len() <= self.part.context);
        self.burn(1)?;
        *answer = Answer::default();
        answer.tokens = self.say(&[&[last], &tokens[..]].concat());
        let agree = answer.tokens.iter().zip(tokens).take_while(|(said, proposed)| said == proposed).count();
        answer.tokens.truncate(agree + 1);
        Ok(())
    }

    fn cache_rows(&mut self, _layer: usize) -> Result<(Vec<f32>, Vec<f32>), DeviceError> {
        Ok((self.cache.iter().map(|row| *row as f32).collect(), Vec::new()))
    }
}

pub(crate) fn config(vocab: usize) -> Config {
    Config {
        architecture: Architecture::Llama,
        layers: LAYERS,
        hidden: WIDTH,
        heads: 1,
        kv_heads: 1,
        head_dim: 2,
        intermediate: 1,
        vocab,
        context: CONTEXT,
        norm_epsilon: 1e-5,
        rope: Rope { theta: 1e4, scaling: Scaling::Default },
        qk_norm: false,
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        tied: true,
        eos: Vec::new(),
    }
}

/// A shard with the embedding if it begins the model and the head if it ends it.
pub(crate) fn toy(model: Model, layers: Range<usize>, fuse: Option<Arc<AtomicUsize>>) -> Box<dyn Shard> {
    let part = Part { embedding: layers.start == 0, head: layers.end == LAYERS, layers, context: CONTEXT };
    Box::new(Toy::new(model, part, fuse))
}

/// A whole model over so many shards.
pub(crate) fn chain(model: Model, shards: usize, fuse: Option<&Arc<AtomicUsize>>) -> Chain {
    let cut = |shard| shard * LAYERS / shards;
    let shards = (0..shards).map(|shard| toy(model, cut(shard)..cut(shard + 1), fuse.cloned())).collect();
    Chain::new(&config(VOCAB as usize), shards).unwrap()
}

/// A whole model in one shard that keeps proposals to itself, and counts them in `unseen`.
pub(crate) fn silent(model: Model, unseen: &Arc<AtomicUsize>, fuse: Option<&Arc<AtomicUsize>>) -> Chain {
    let mut toy = Toy::whole(model);
    (toy.unseen, toy.fuse) = (Some(Arc::clone(unseen)), fuse.cloned());
    Chain::new(&config(VOCAB as usize), vec![Box::new(toy)]).unwrap()
}
