//! The decode loop: prefill, then rounds of draft, verify, accept, roll back.

use std::ops::ControlFlow;

use marker_core::{Markers, Phase};

use crate::Error;
use crate::shard::Chain;

/// A request that makes no sense for this model.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The prompt has no token.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
}

/// How drafted tokens are verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// A block in one pass.
    #[default]
    Batched,
    /// One row a pass, stopping at the first disagreement.
    Sequential,
    /// One row a pass, from a full KV snapshot that is restored after a rejection.
    ReferenceExact,
}

/// How the prompt is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefill {
    /// By the kernels that decode uses, token by token unless a chunk is asked for.
    Exact,
    /// Through the large-matrix path, 256 rows a pass unless a chunk is asked for.
    #[default]
    Dense,
}

impl Verify {
    /// The mode of `ds4.spec_decode`.
    pub fn phase(self) -> Phase {
        match self {
            Verify::Batched => Phase::Batched,
            Verify::Sequential => Phase::Sequential,
            Verify::ReferenceExact => Phase::ReferenceExact,
        }
    }
}

/// One request. Greedy: the token with the largest logit, the lowest id on a tie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Token ids of the prompt; at least one.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most, at least one.
    pub max_tokens: usize,
    /// Tokens to draft a round at most, at least one; used when the engine has a draft model.
    pub draft_tokens: usize,
    /// How drafts are verified.
    pub verify: Verify,
    /// How the prompt is read.
    pub prefill: Prefill,
    /// Rows of a prefill pass, at least one; `None`: 1 for exact, 256 for dense.
    pub prefill_chunk: Option<usize>,
    /// Go on past end-of-text tokens.
    pub ignore_eos: bool,
}

/// One round of speculative decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Tokens that the draft proposed.
    pub drafted: usize,
    /// Those of them that were emitted.
    pub accepted: usize,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end-of-text token was emitted.
    EndOfText,
    /// The budget is spent.
    Budget,
    /// The caller's callback asked to stop.
    Cancelled,
}

/// What a request gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// The completion's token ids, an end-of-text token included.
    pub tokens: Vec<u32>,
    /// The speculative rounds in order; empty for a target-only request.
    pub rounds: Vec<Round>,
    /// Target passes after the prefill, not times the shards.
    pub target_passes: usize,
    /// Why it ended.
    pub finish: Finish,
    /// Seconds until the first token was known.
    pub prefill_seconds: f64,
    /// Seconds after that.
    pub decode_seconds: f64,
}

impl Generation {
    /// Drafted tokens over all rounds.
    pub fn drafted(&self) -> usize {
        self.rounds.iter().map(|round| round.drafted).sum()
    }

    /// Drafted tokens that were emitted.
    pub fn accepted(&self) -> usize {
        self.rounds.iter().map(|round| round.accepted).sum()
    }

    /// `accepted / drafted`; `None` when nothing was drafted.
    pub fn acceptance_rate(&self) -> Option<f64> {
        (self.drafted() > 0).then(|| self.accepted() as f64 / self.drafted() as f64)
    }

    /// Tokens after the first over passes after the prefill; `None` when there was no such pass.
    pub fn tokens_per_target_pass(&self) -> Option<f64> {
        (self.target_passes > 0).then(|| (self.tokens.len() - 1) as f64 / self.target_passes as f64)
    }
}

/// A target model, perhaps a draft model, and what ends a text.
pub struct Engine {
    target: Chain,
    draft: Option<Chain>,
    eos: Vec<u32>,
}

impl Engine {
    /// An engine from loaded models. `eos` are the token ids that end a text.
    ///
    /// # Errors
    /// [`RequestError`] when target and draft do not share a vocabulary.
    pub fn new(target: Chain, draft: Option<Chain>, eos: Vec<u32>) -> Result<Self, Error> {
        Ok(Engine { target, draft, eos })
    }

    /// Generates. `emit` gets every token in order and may stop the request.
    ///
    /// Whatever happens, the engine is then ready for the next request, which starts from empty caches.
    ///
    /// # Errors
    /// [`Error::Request`] before anything is computed, [`Error::Device`] when a pass fails.
    pub fn generate(
        &mut self,
        request: &Request,
        markers: Markers<'_>,
        emit: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Generation, Error> {
        let _ = (&mut self.target, &mut self.draft, &self.eos, request, markers, emit);
        Err(RequestError::EmptyPrompt.into())
    }
}
