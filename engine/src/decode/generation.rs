//! What a request gave, and what is counted of it: every count is defined here and nowhere else.

/// One round of speculative decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Tokens that were proposed.
    pub drafted: usize,
    /// Those of them that were emitted. A token that agreed but stood behind an end of text was not.
    pub accepted: usize,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end-of-text token was emitted.
    EndOfText,
    /// The budget is spent.
    Budget,
    /// The caller asked to stop, for example at a stop string.
    Cancelled,
}

/// What a request gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// The completion's token ids, an end-of-text token included.
    pub tokens: Vec<u32>,
    /// The speculative rounds in order; empty for a target-only request.
    pub rounds: Vec<Round>,
    /// Tokens of the prompt that were in the caches already; the prefill read the others.
    pub kept: usize,
    /// Target passes after the prefill, not times the shards.
    pub target_passes: usize,
    /// Why it ended.
    pub finish: Finish,
    /// Seconds until the first token was known.
    pub prefill_seconds: f64,
    /// Seconds after that, the draft's reading of the prompt included.
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

    /// Tokens after the first, over passes after the prefill; `None` when there was no such pass.
    pub fn tokens_per_target_pass(&self) -> Option<f64> {
        (self.target_passes > 0)
            .then(|| self.tokens.len().saturating_sub(1) as f64 / self.target_passes as f64)
    }
}
