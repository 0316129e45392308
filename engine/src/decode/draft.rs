//! Proposing tokens: with a draft model, or by looking up in the text what followed the same words before.

use marker_core::{Fields, Markers, Phase, Scope, range};

use super::accept::{Chooser, Proposal};
use super::lookup::Lookup;
use super::pace::{Heard, Pace, Source};
use crate::device::{DeviceError, MOST_UNSEEN, NO_TOKEN, Path, Proposed, Want};
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

impl Block {
    /// Tokens in it.
    pub(super) fn len(&self) -> usize {
        match self {
            Block::Seen(proposed) => proposed.len(),
            Block::Unseen(proposed) => proposed.count,
        }
    }
}

/// What proposes.
pub(super) enum Drafter<'a> {
    /// A model, whose cache holds a prefix of the text.
    Model(&'a mut Chain),
    /// The text itself.
    Lookup(Lookup),
    /// The text where a long run of it comes again, which costs no pass and is right more often; else a model.
    Both(&'a mut Chain, Lookup, Source),
}

impl Drafter<'_> {
    /// Reads what is new in `text`, if reading is cheap, and says where proposals would come from; `None` when
    /// there are none.
    pub(super) fn look(&mut self, text: &[u32]) -> Option<Source> {
        match self {
            Drafter::Model(_) => Some(Source::Model),
            Drafter::Lookup(lookup) => lookup.look(text),
            Drafter::Both(_, lookup, from) => {
                *from =
                    lookup.look(text).filter(|source| *source == Source::LongMatch).unwrap_or(Source::Model);
                Some(*from)
            }
        }
    }

    /// Whether the next proposals cost something else than a model's usually do: it has to read a prompt first, or has
    /// no part in them.
    pub(super) fn is_behind(&self, text: &[u32]) -> bool {
        match self {
            Drafter::Model(chain) | Drafter::Both(chain, _, Source::Model) => {
                text.len() - chain.cached() > A_PROMPT
            }
            Drafter::Lookup(_) => false,
            Drafter::Both(..) => true,
        }
    }

    /// Whether what it proposes need not be seen by the host to be verified by `target`.
    pub(super) fn shares_memory(&self, target: &Chain) -> bool {
        match self {
            Drafter::Model(chain) => target.shares_memory(chain),
            Drafter::Lookup(_) | Drafter::Both(..) => false,
        }
    }

    /// Proposes `count` tokens to follow `text`, after [`look`](Self::look) found a source; fewer, or none, where `pace`
    /// hears that a model is not sure of them. They are `unseen` by the host where they may be, and where one pass for
    /// what is new and one for each further token will do.
    pub(super) fn propose(
        &mut self,
        text: &[u32],
        count: usize,
        unseen: bool,
        chooser: &mut Chooser,
        markers: Markers<'_>,
        pace: Option<&mut Pace>,
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
            Drafter::Model(chain) | Drafter::Both(chain, _, Source::Model) => {
                Ok(Block::Seen(model(chain, text, count, chooser, pace)?))
            }
            Drafter::Lookup(lookup) | Drafter::Both(_, lookup, _) => {
                let tokens = lookup.follow(text, count);
                Ok(Block::Seen(tokens.map(|token| Proposal { token, from: None }).collect()))
            }
        }
    }

    /// Forgets what it holds of the text from `len` on.
    pub(super) fn roll_back(&mut self, len: usize) -> Result<(), DeviceError> {
        match self {
            Drafter::Model(chain) | Drafter::Both(chain, ..) => chain.roll_back(len),
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
    mut pace: Option<&mut Pace>,
) -> Result<Vec<Proposal>, DeviceError> {
    let mut proposed: Vec<Proposal> = Vec::new();
    let mut history = text.to_vec();
    let mut read = draft.cached();
    while read < text.len() + count - 1 {
        let rows = match proposed.last() {
            Some(Proposal { token, .. }) => {
                history.push(*token);
                &history[read..]
            }
            None => &text[read..text.len().min(read + CATCH_UP)],
        };
        read += rows.len();
        let path = if rows.len() > A_PROMPT { Path::Dense } else { Path::Decode };
        let last = if read >= text.len() { rows.len() - 1..rows.len() } else { 0..0 };
        let want = if pace.is_some() { Want::Logits(last) } else { chooser.want(last) };
        // Draft passes carry no leaf: the vocabulary's leaves count the target's work.
        let answer = draft.forward(Markers::OFF, Phase::Unspecified, path, rows, &want)?;
        if read < text.len() {
            continue;
        }
        let proposal = chooser.draft(answer, 0, &history)?;
        if proposal.token == NO_TOKEN {
            // A draft that has gone wrong proposes nothing; the target goes on alone.
            break;
        }
        let heard = pace.as_mut().map_or(Heard::GoOn, |pace| pace.hear(margin(&answer.logits)));
        if heard != Heard::Drop {
            proposed.push(proposal);
        }
        if heard != Heard::GoOn {
            break;
        }
    }
    Ok(proposed)
}

/// How far the largest logit is above the next.
fn margin(logits: &[f32]) -> f32 {
    /// Enough for the compiler to compare several at a time.
    const LANES: usize = 16;
    let (mut first, mut second) = ([f32::NEG_INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    let (lanes, rest) = logits.as_chunks::<LANES>();
    for lanes in lanes {
        for ((first, second), &logit) in first.iter_mut().zip(&mut second).zip(lanes) {
            let lower = if logit < *first { logit } else { *first };
            *second = if lower > *second { lower } else { *second };
            *first = if logit > *first { logit } else { *first };
        }
    }
    let all = first.iter().chain(&second).chain(rest);
    let [first, second] = all.fold([f32::NEG_INFINITY; 2], |[first, second], &logit| {
        if logit > first { [logit, first] } else { [first, second.max(logit)] }
    });
    first - second
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_is_between_the_two_largest_wherever_they_are() {
        for (one, other) in [(0, 1), (0, 16), (3, 99), (98, 99), (20, 36), (99, 0)] {
            let mut logits: Vec<f32> = (0..100).map(|at| -(at as f32)).collect();
            (logits[one], logits[other]) = (7.5, 5.0);
            assert!((margin(&logits) - 2.5).abs() < 1e-6, "{one} {other}");
        }
        assert!(margin(&[4.0, 4.0, 1.0]).abs() < 1e-6);
    }
}
