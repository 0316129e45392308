//! The decode loop: prefill, then rounds of draft, verify, accept, roll back.
//!
//! ```text
//!  prompt --prefill--> first token
//!  round:  a draft model, or a look-up in the text, proposes at most min(draft_tokens, remaining - 1) tokens
//!          target verifies [last token, proposals...]      (one pass, or one row a pass)
//!          the agreeing prefix and the target's next token are emitted, up to an end of text
//!          both caches roll back to "every emitted token but the last"
//! ```
//!
//! The invariant between rounds, which makes speculative output equal target-only output: the target's
//! cache holds exactly the prompt and every emitted token but the last, and the draft's a prefix of that.
//!
//! Greedy or sampled, the loop is the same: [`Sampling`] says how a row of logits becomes a token, and what is
//! emitted is distributed as the target alone would have it.

mod accept;
mod draft;
mod generation;
mod lookup;
mod pace;
mod request;
mod sample;
mod verify;

#[cfg(test)]
mod chance_tests;

#[cfg(test)]
mod tests;

use std::ops::ControlFlow;
use std::time::Instant;

use marker_core::{Fields, Markers, Phase, Scope, range};

use crate::Error;
use crate::device::{DeviceError, Path};
use crate::shard::Chain;

use accept::Chooser;
use draft::Drafter;
use lookup::Lookup;
use pace::{Pace, Took};

pub use generation::{Finish, Generation, Round};
pub use request::{Drafting, Prefill, Request, RequestError, Verify};
pub use sample::Sampling;

/// A target model, perhaps a draft model, and what ends a text.
pub struct Engine {
    target: Chain,
    draft: Option<Chain>,
    eos: Vec<u32>,
    /// The text of which the target's caches hold every token, and the draft's a prefix; empty where that is not
    /// known.
    held: Vec<u32>,
}

impl Engine {
    /// An engine from loaded models. `eos` are the token ids that end a text.
    ///
    /// # Errors
    /// [`RequestError::VocabulariesDiffer`].
    pub fn new(target: Chain, draft: Option<Chain>, eos: Vec<u32>) -> Result<Self, Error> {
        if let Some(draft) = &draft
            && draft.vocab() != target.vocab()
        {
            let (draft, target) = (draft.vocab(), target.vocab());
            return Err(RequestError::VocabulariesDiffer { draft, target }.into());
        }
        Ok(Engine { target, draft, eos, held: Vec::new() })
    }

    /// The target, for those who look into its caches.
    pub fn target_mut(&mut self) -> &mut Chain {
        &mut self.target
    }

    /// The draft, if there is one.
    pub fn draft_mut(&mut self) -> Option<&mut Chain> {
        self.draft.as_mut()
    }

    /// Lets every shard leave. Shards elsewhere that are dropped without it leave too, and nobody hears how.
    ///
    /// # Errors
    /// [`DeviceError`] of the first one that could not finish its work.
    pub fn close(self) -> Result<(), DeviceError> {
        self.target.close()
    }

    /// Generates. `emit` gets every token in order and may stop the request.
    ///
    /// Whatever happens, the engine is then ready for the next request, which starts from empty caches unless it asks
    /// to [keep](Request::keep_prefix) what they hold of its prompt. Then `ds4.prefill` counts the tokens that are
    /// read, not those that were there: at least one, the last.
    ///
    /// # Errors
    /// [`Error::Request`] before anything is computed, [`Error::Device`] when a pass fails.
    pub fn generate(
        &mut self,
        request: &Request,
        markers: Markers<'_>,
        emit: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Generation, Error> {
        request.check(self.target.vocab(), self.target.context(), self.draft.as_ref().map(Chain::context))?;
        let generation = self.generation(request, markers, emit);
        self.target.end_generation();
        generation
    }

    fn generation(
        &mut self,
        request: &Request,
        markers: Markers<'_>,
        emit: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Generation, Error> {
        // What an earlier request left, finished, cancelled or failed, is no part of this one, unless it is asked for.
        let held = std::mem::take(&mut self.held);
        let kept = if request.keep_prefix { self.kept(&held, &request.prompt) } else { 0 };
        self.target.roll_back(kept)?;
        if let Some(draft) = &mut self.draft {
            draft.roll_back(kept)?;
        }
        range!(markers.at_full_detail(), Fields::new(Scope::REQUEST).tokens(request.max_tokens as u64));

        let started = Instant::now();
        let mut chooser = Chooser::new(request.sampling.as_ref(), self.target.vocab());
        let mut output = Output::new(request, &self.eos, emit);
        let first = prefill(&mut self.target, request, kept, &mut chooser, markers)?;
        let prefill_seconds = started.elapsed().as_secs_f64();
        output.push(first);

        let started = Instant::now();
        let mut counts = Counts::default();
        if output.finish.is_none() {
            let target = &mut self.target;
            let drafter = match (request.drafting, &mut self.draft) {
                (Drafting::Model, Some(draft)) => Some(Drafter::Model(draft)),
                (Drafting::Lookup, _) => Some(Drafter::Lookup(Lookup::default())),
                (Drafting::Model, None) | (Drafting::Nothing, _) => None,
            };
            match drafter {
                Some(drafter) => {
                    speculate(target, drafter, request, &mut chooser, markers, &mut output, &mut counts)
                }
                None => decode(target, &mut chooser, markers, &mut output, &mut counts),
            }?;
        }
        let finish = output.finish.unwrap_or(Finish::Budget);
        let mut text = output.text;
        let tokens = text.split_off(request.prompt.len());
        self.held = text;
        self.held.extend_from_slice(&tokens[..tokens.len() - 1]);
        Ok(Generation {
            tokens,
            rounds: counts.rounds,
            kept,
            target_passes: counts.target_passes,
            finish,
            prefill_seconds,
            decode_seconds: started.elapsed().as_secs_f64(),
        })
    }
    /// How many tokens of `prompt` the caches hold, if they hold `held`. Its last one is read again in any case: what
    /// follows it is asked.
    fn kept(&mut self, held: &[u32], prompt: &[u32]) -> usize {
        let alike =
            held.iter().zip(&prompt[..prompt.len() - 1]).take_while(|(one, other)| one == other).count();
        // A shard elsewhere may have lost its cache in the meantime.
        self.target.shards_mut().iter().map(|shard| shard.cached()).min().unwrap_or(0).min(alike)
    }
}

#[derive(Default)]
struct Counts {
    rounds: Vec<Round>,
    target_passes: usize,
}

/// The text so far, and the one place that says when it ends: nothing is emitted after an end of text or
/// past the budget, wherever in a block they fall.
struct Output<'a> {
    /// The prompt and every emitted token.
    text: Vec<u32>,
    prompt: usize,
    budget: usize,
    /// Empty when end-of-text tokens are to be ignored.
    eos: Vec<u32>,
    emit: &'a mut dyn FnMut(u32) -> ControlFlow<()>,
    finish: Option<Finish>,
}

impl<'a> Output<'a> {
    fn new(request: &Request, eos: &[u32], emit: &'a mut dyn FnMut(u32) -> ControlFlow<()>) -> Self {
        Output {
            text: request.prompt.clone(),
            prompt: request.prompt.len(),
            budget: request.max_tokens,
            eos: if request.ignore_eos { Vec::new() } else { [eos, &request.stop_tokens].concat() },
            emit,
            finish: None,
        }
    }

    /// Emits `token` unless the text has ended. Whether it was emitted.
    fn push(&mut self, token: u32) -> bool {
        if self.finish.is_some() {
            return false;
        }
        self.text.push(token);
        if (self.emit)(token).is_break() {
            self.finish = Some(Finish::Cancelled);
        } else if self.eos.contains(&token) {
            self.finish = Some(Finish::EndOfText);
        } else if self.remaining() == 0 {
            self.finish = Some(Finish::Budget);
        }
        true
    }

    fn remaining(&self) -> usize {
        self.budget - (self.text.len() - self.prompt)
    }

    fn last(&self) -> u32 {
        self.text[self.text.len() - 1]
    }
}

/// Reads the prompt behind its first `kept` tokens; the target's choice after it.
fn prefill(
    target: &mut Chain,
    request: &Request,
    kept: usize,
    chooser: &mut Chooser,
    markers: Markers<'_>,
) -> Result<u32, DeviceError> {
    let mode = request.prefill.phase();
    let unread = &request.prompt[kept..];
    range!(markers, target.whole(Scope::PREFILL, mode, unread.len()));
    let path = match request.prefill {
        Prefill::Exact => Path::Decode,
        Prefill::Dense => Path::Dense,
    };
    let mut chunks = unread.chunks(request.prefill_chunk.unwrap_or(request.prefill.default_chunk()));
    loop {
        let (rows, last) = match chunks.next() {
            Some(rows) => (rows, chunks.len() == 0),
            None => return Err(DeviceError::BadPass("a prompt without tokens".into())),
        };
        // Nobody asks what follows a token inside the prompt, so the head is left out there.
        let want = chooser.want(if last { rows.len() - 1..rows.len() } else { 0..0 });
        let answer = target.forward(markers, mode, path, rows, &want)?;
        if last {
            range!(markers.at_full_detail(), Fields::new(Scope::SAMPLE).tokens(1));
            return chooser.say(answer, 0, &request.prompt, None);
        }
    }
}

/// One ordinary token a pass.
fn decode(
    target: &mut Chain,
    chooser: &mut Chooser,
    markers: Markers<'_>,
    output: &mut Output<'_>,
    counts: &mut Counts,
) -> Result<(), DeviceError> {
    while output.finish.is_none() {
        let rows = [output.last()];
        let want = chooser.want(0..1);
        let answer = target.forward(markers, Phase::Decode, Path::Decode, &rows, &want)?;
        counts.target_passes += 1;
        range!(markers.at_full_detail(), Fields::new(Scope::SAMPLE).tokens(1));
        output.push(chooser.say(answer, 0, &output.text, None)?);
    }
    Ok(())
}

/// Rounds of draft, verify, accept, roll back.
fn speculate(
    target: &mut Chain,
    mut drafter: Drafter<'_>,
    request: &Request,
    chooser: &mut Chooser,
    markers: Markers<'_>,
    output: &mut Output<'_>,
    counts: &mut Counts,
) -> Result<(), DeviceError> {
    range!(markers, target.whole(Scope::SPEC_DECODE, request.verify.phase(), request.max_tokens));
    let adapts = request.verify == Verify::Batched && (request.adapt || request.drafting == Drafting::Lookup);
    let timed = request.adapt && chooser.is_greedy();
    // Tokens stay on the device, unless somebody asks what passes cost: then each is waited for.
    let unseen = chooser.is_greedy()
        && request.verify == Verify::Batched
        && !request.adapt
        && drafter.shares_memory(target);
    let mut pace = Pace::new();
    while output.finish.is_none() {
        let most = request.draft_tokens.min(output.remaining() - 1);
        let source = drafter.look(&output.text);
        let drafted = match source {
            Some(source) if adapts => pace.decide(source, most),
            Some(_) => most,
            None => 0,
        };
        let began = Instant::now();
        let reads_prompt = drafter.is_behind(&output.text);
        let block = drafter.propose(&output.text, drafted, unseen, chooser, markers)?;
        let draft_seconds = began.elapsed().as_secs_f64();
        let before = target.cached();
        if request.verify == Verify::ReferenceExact {
            target.snapshot()?;
        }
        let began = Instant::now();
        let verified = verify::verify(target, request.verify, &block, chooser, markers, output)?;
        let verify_seconds = began.elapsed().as_secs_f64();
        counts.target_passes += verified.passes;
        counts.rounds.push(Round { drafted, accepted: verified.accepted });
        if let Some(source) = source {
            pace.learn(source, drafted, verified.accepted, verified.rejected);
        }
        if timed {
            let draft = (!reads_prompt).then_some(draft_seconds);
            pace.time(drafted, Took { draft, verify: verify_seconds });
        }

        let dropped = drafted - verified.accepted;
        let keep = output.text.len() - 1;
        let full = if dropped > 0 { markers.at_full_detail() } else { Markers::OFF };
        range!(full, Fields::new(Scope::ROLLBACK).tokens(dropped as u64));
        if dropped > 0 && request.verify == Verify::ReferenceExact {
            target.restore(keep - before)?;
        }
        // Also when all was accepted: the text may have ended before the last row's answer.
        target.roll_back(keep)?;
        drafter.roll_back(keep)?;
    }
    Ok(())
}
