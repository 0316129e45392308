//! Proposing tokens: with a draft model, or by looking up in the text what followed the same words before.

use marker_core::{Fields, Markers, Phase, Scope, range};

use super::accept::{Chooser, Proposal};
use super::lookup::Lookup;
use super::pace::Source;
use crate::device::{DeviceError, MOST_UNSEEN, Path, Proposed};
use crate::shard::Chain;

/// Rows of a pass while the draft reads what it has not seen yet.
const CATCH_UP: usize = 256;

/// More unread rows than a round leaves behind: only the prompt is worth the large-matrix path.
const A_PROMPT: usize = 16;

/// What a round proposes.
pub(super) enum Block {
    /// Token ids, and what each was drawn from.
    Seen(Vec<Proposal>),
    /// What only the device knows.
    Unseen(Proposed),
}

/// What proposes.
pub(super) enum Drafter<'a> {
    /// A model, whose cache holds a prefix of the text.
    Model(&'a mut Chain),
    /// The text itself.
    Lookup(Lookup),
}

impl Drafter<'_> {
    /// Reads what is new in `text`, if reading is cheap, and says where proposals would come from; `None` when
    /// there are none.
    pub(super) fn look(&mut self, text: &[u32]) -> Option<Source> {
        match self {
            Drafter::Model(_) => Some(Source::Model),
            Drafter::Lookup(lookup) => lookup.look(text),
        }
    }

    /// Whether the next proposals cost more than others: the model has to read a prompt first.
    pub(super) fn is_behind(&self, text: &[u32]) -> bool {
        match self {
            Drafter::Model(chain) => text.len() - chain.cached() > A_PROMPT,
            Drafter::Lookup(_) => false,
        }
    }

    /// Whether what it proposes need not be seen by the host to be verified by `target`.
    pub(super) fn shares_memory(&self, target: &Chain) -> bool {
        match self {
            Drafter::Model(chain) => target.shares_memory(chain),
            Drafter::Lookup(_) => false,
        }
    }

    /// Proposes `count` tokens to follow `text`, after [`look`](Self::look) found a source; `unseen` by the host where
    /// it may be, and where one pass for what is new and one for each further token will do.
    pub(super) fn propose(
        &mut self,
        text: &[u32],
        count: usize,
        unseen: bool,
        chooser: &mut Chooser,
        markers: Markers<'_>,
    ) -> Result<Block, DeviceError> {
        if count == 0 {
            return Ok(Block::Seen(Vec::new()));
        }
        range!(markers.at_full_detail(), Fields::new(Scope::DRAFT).tokens(count as u64));
        let is_behind = self.is_behind(text);
        match self {
            Drafter::Model(chain) if unseen && !is_behind && count <= MOST_UNSEEN => {
                let unread = &text[chain.cached()..];
                Ok(Block::Unseen(chain.propose(unread, count)?))
            }
            Drafter::Model(chain) => Ok(Block::Seen(model(chain, text, count, chooser)?)),
            Drafter::Lookup(lookup) => {
                let tokens = lookup.follow(text, count);
                Ok(Block::Seen(tokens.map(|token| Proposal { token, from: None }).collect()))
            }
        }
    }

    /// Forgets what it holds of the text from `len` on.
    pub(super) fn roll_back(&mut self, len: usize) -> Result<(), DeviceError> {
        match self {
            Drafter::Model(chain) => chain.roll_back(len),
            // It has only seen emitted tokens, and those stay.
            Drafter::Lookup(_) => Ok(()),
        }
    }
}

/// The draft model's own choices, each as the target would choose from the draft's logits. It reads what it has
/// not seen of `text` first; afterwards it holds all of `text` and every proposed token but the last.
fn model(
    draft: &mut Chain,
    text: &[u32],
    count: usize,
    chooser: &mut Chooser,
) -> Result<Vec<Proposal>, DeviceError> {
    let mut proposed: Vec<Proposal> = Vec::new();
    let mut history = text.to_vec();
    let mut read = draft.cached();
    while read < text.len() {
        let rows = &text[read..text.len().min(read + CATCH_UP)];
        read += rows.len();
        let path = if rows.len() > A_PROMPT { Path::Dense } else { Path::Decode };
        let last = if read == text.len() { rows.len() - 1..rows.len() } else { 0..0 };
        // Draft passes carry no leaf: the vocabulary's leaves count the target's work.
        let answer = draft.forward(Markers::OFF, Phase::Unspecified, path, rows, &chooser.want(last))?;
        if read == text.len() {
            proposed.push(chooser.draft(answer, 0, &history)?);
        }
    }
    while proposed.len() < count {
        let Some(Proposal { token, .. }) = proposed.last() else { break };
        history.push(*token);
        let rows = [*token];
        let want = chooser.want(0..1);
        let answer = draft.forward(Markers::OFF, Phase::Unspecified, Path::Decode, &rows, &want)?;
        proposed.push(chooser.draft(answer, 0, &history)?);
    }
    Ok(proposed)
}
