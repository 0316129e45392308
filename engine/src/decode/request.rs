//! What is asked for, and whether it makes sense.

use marker_core::Phase;

use super::Sampling;

/// A request that makes no sense for this model.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The prompt has no token.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
    /// A count that must be at least one is zero.
    #[error("{0} is 0: ask for at least 1")]
    Zero(&'static str),
    /// A token id is not the model's.
    #[error(
        "token id {id} at position {position} of the prompt is out of range: the model knows ids 0 to {last}"
    )]
    UnknownToken {
        /// The id.
        id: u32,
        /// Its place in the prompt.
        position: usize,
        /// The largest id.
        last: usize,
    },
    /// Prompt and budget do not fit the context.
    #[error(
        "a prompt of {prompt} tokens and a budget of {max_tokens} need {} positions, but the {model} model has {context}: \
         shorten the prompt or lower the budget{}",
        .prompt.saturating_add(*.max_tokens), if *.model == "draft" { ", or leave the draft out" } else { "" }
    )]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// The budget.
        max_tokens: usize,
        /// Positions.
        context: usize,
        /// `target` or `draft`.
        model: &'static str,
    },
    /// A setting of the sampling is out of its range.
    #[error("{setting} is {found}, but it must be {expected}")]
    Sampling {
        /// Which.
        setting: &'static str,
        /// Its value.
        found: String,
        /// What it may be.
        expected: &'static str,
    },
    /// The draft's tokens are not the target's.
    #[error(
        "the draft model knows {draft} token ids and the target {target}: a draft must share its target's vocabulary"
    )]
    VocabulariesDiffer {
        /// Of the draft.
        draft: usize,
        /// Of the target.
        target: usize,
    },
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

impl Verify {
    /// Every mode.
    pub const ALL: [Verify; 3] = [Verify::Batched, Verify::Sequential, Verify::ReferenceExact];

    /// The mode of `ds4.spec_decode`.
    pub fn phase(self) -> Phase {
        match self {
            Verify::Batched => Phase::Batched,
            Verify::Sequential => Phase::Sequential,
            Verify::ReferenceExact => Phase::ReferenceExact,
        }
    }
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

impl Prefill {
    /// The mode of `ds4.prefill` and of its leaves.
    pub fn phase(self) -> Phase {
        match self {
            Prefill::Exact => Phase::Exact,
            Prefill::Dense => Phase::Dense,
        }
    }

    /// Rows of a pass unless the request says otherwise.
    pub fn default_chunk(self) -> usize {
        match self {
            Prefill::Exact => 1,
            Prefill::Dense => 256,
        }
    }
}

/// What proposes tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Drafting {
    /// The engine's draft model; nothing where it has none.
    #[default]
    Model,
    /// What followed the same tokens earlier in the text, the longest match first. It costs no pass, adapts its
    /// block to what is accepted, and rests where nothing is.
    Lookup,
    /// Nothing: one ordinary token a pass.
    Nothing,
}

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Token ids of the prompt; at least one.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most, at least one.
    pub max_tokens: usize,
    /// How tokens are chosen by chance; `None` is greedy: the token with the largest logit, the lowest id on a tie.
    pub sampling: Option<Sampling>,
    /// What proposes tokens.
    pub drafting: Drafting,
    /// Tokens to draft a round at most, at least one.
    pub draft_tokens: usize,
    /// Adapt the block, up to `draft_tokens`, to the measured acceptance and, for a greedy request, to measured costs.
    /// Before a draft model is asked, a long run that the text has had before is looked up.
    /// Greedy output does not depend on it; a sampled one is still the same for the same seed. Blocks that
    /// are verified one row a pass cost the same whatever was drafted, and are not adapted.
    pub adapt: bool,
    /// How drafts are verified.
    pub verify: Verify,
    /// How the prompt is read.
    pub prefill: Prefill,
    /// Rows of a prefill pass, at least one; `None`: 1 for exact, 256 for dense.
    pub prefill_chunk: Option<usize>,
    /// Go on past end-of-text tokens.
    pub ignore_eos: bool,
    /// Tokens that end this text beside the model's own, for example an end of turn.
    pub stop_tokens: Vec<u32>,
    /// Keep what the caches hold of the prompt from the request before, and read only the rest. Else every request
    /// starts from empty caches.
    pub keep_prefix: bool,
}

impl Request {
    /// A greedy request with the defaults of the command line: 64 tokens, 4 drafted by the draft model if there is
    /// one, batched, dense.
    pub fn new(prompt: Vec<u32>) -> Self {
        Request {
            prompt,
            max_tokens: 64,
            sampling: None,
            drafting: Drafting::default(),
            draft_tokens: 4,
            adapt: false,
            verify: Verify::default(),
            prefill: Prefill::default(),
            prefill_chunk: None,
            ignore_eos: false,
            stop_tokens: Vec::new(),
            keep_prefix: false,
        }
    }

    /// Whether models with this vocabulary and these contexts can answer: known before a weight is read.
    pub(crate) fn check(
        &self,
        vocab: usize,
        target_context: usize,
        draft_context: Option<usize>,
    ) -> Result<(), RequestError> {
        if self.prompt.is_empty() {
            return Err(RequestError::EmptyPrompt);
        }
        for (count, name) in [
            (self.max_tokens, "the token budget"),
            (self.draft_tokens, "the number of drafted tokens"),
            (self.prefill_chunk.unwrap_or(1), "the prefill chunk"),
        ] {
            if count == 0 {
                return Err(RequestError::Zero(name));
            }
        }
        if let Some(sampling) = &self.sampling {
            sampling.check()?;
        }
        if let Some(position) = self.prompt.iter().position(|id| *id as usize >= vocab) {
            return Err(RequestError::UnknownToken { id: self.prompt[position], position, last: vocab - 1 });
        }
        for (model, context) in [("target", Some(target_context)), ("draft", draft_context)] {
            let (prompt, max_tokens) = (self.prompt.len(), self.max_tokens);
            let drafts = model == "target" || self.drafting == Drafting::Model;
            if let Some(context) = context
                && drafts
                && prompt.saturating_add(max_tokens) > context
            {
                return Err(RequestError::TooLong { prompt, max_tokens, context, model });
            }
        }
        Ok(())
    }
}
