//! The decode loop: prefill, then rounds of draft, verify, accept, roll back.
//!
//! ```text
//!  prompt --prefill--> first token
//!  round:  draft proposes min(draft_tokens, remaining - 1) tokens
//!          target verifies [last token, proposals...]      (one pass, or one row a pass)
//!          the agreeing prefix and the target's next token are emitted, up to an end of text
//!          both caches roll back to "every emitted token but the last"
//! ```
//!
//! The invariant between rounds, which makes speculative output equal target-only output: the target's
//! cache holds exactly the prompt and every emitted token but the last, and the draft's a prefix of that.

mod accept;
mod draft;
mod generation;
mod request;
mod verify;

#[cfg(test)]
mod tests;

use std::ops::ControlFlow;
use std::time::Instant;

use marker_core::{Fields, Markers, Phase, Scope, range};

use crate::Error;
use crate::device::{DeviceError, Path, Want};
use crate::shard::Chain;

pub use generation::{Finish, Generation, Round};
pub use request::{Prefill, Request, RequestError, Verify};

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
    /// [`RequestError::VocabulariesDiffer`].
    pub fn new(target: Chain, draft: Option<Chain>, eos: Vec<u32>) -> Result<Self, Error> {
        if let Some(draft) = &draft
            && draft.vocab() != target.vocab()
        {
            let (draft, target) = (draft.vocab(), target.vocab());
            return Err(RequestError::VocabulariesDiffer { draft, target }.into());
        }
        Ok(Engine { target, draft, eos })
    }

    /// The target, for those who look into its caches.
    pub fn target_mut(&mut self) -> &mut Chain {
        &mut self.target
    }

    /// The draft, if there is one.
    pub fn draft_mut(&mut self) -> Option<&mut Chain> {
        self.draft.as_mut()
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
        // What an earlier request left, finished, cancelled or failed, is no part of this one.
        self.target.roll_back(0)?;
        if let Some(draft) = &mut self.draft {
            draft.roll_back(0)?;
        }
        range!(markers.at_full_detail(), Fields::new(Scope::REQUEST).tokens(request.max_tokens as u64));

        let started = Instant::now();
        let mut output = Output::new(request, &self.eos, emit);
        let first = prefill(&mut self.target, request, markers)?;
        let prefill_seconds = started.elapsed().as_secs_f64();
        output.push(first);

        let started = Instant::now();
        let mut counts = Counts::default();
        if output.finish.is_none() {
            let target = &mut self.target;
            match &mut self.draft {
                Some(draft) => speculate(target, draft, request, markers, &mut output, &mut counts),
                None => decode(target, markers, &mut output, &mut counts),
            }?;
        }
        Ok(Generation {
            tokens: output.text.split_off(request.prompt.len()),
            rounds: counts.rounds,
            target_passes: counts.target_passes,
            finish: output.finish.unwrap_or(Finish::Budget),
            prefill_seconds,
            decode_seconds: started.elapsed().as_secs_f64(),
        })
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
    eos: &'a [u32],
    emit: &'a mut dyn FnMut(u32) -> ControlFlow<()>,
    finish: Option<Finish>,
}

impl<'a> Output<'a> {
    fn new(request: &Request, eos: &'a [u32], emit: &'a mut dyn FnMut(u32) -> ControlFlow<()>) -> Self {
        Output {
            text: request.prompt.clone(),
            prompt: request.prompt.len(),
            budget: request.max_tokens,
            eos: if request.ignore_eos { &[] } else { eos },
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

/// Reads the prompt; the target's choice after it.
fn prefill(target: &mut Chain, request: &Request, markers: Markers<'_>) -> Result<u32, DeviceError> {
    let mode = request.prefill.phase();
    range!(markers, target.whole(Scope::PREFILL, mode, request.prompt.len()));
    let path = match request.prefill {
        Prefill::Exact => Path::Decode,
        Prefill::Dense => Path::Dense,
    };
    let mut chunks = request.prompt.chunks(request.prefill_chunk.unwrap_or(request.prefill.default_chunk()));
    loop {
        let (rows, last) = match chunks.next() {
            Some(rows) => (rows, chunks.len() == 0),
            None => return Err(DeviceError::BadPass("a prompt without tokens".into())),
        };
        // Nobody asks what follows a token inside the prompt, so the head is left out there.
        let want = Want::Tokens(if last { rows.len() - 1..rows.len() } else { 0..0 });
        let answer = target.forward(markers, mode, path, rows, &want)?;
        if last {
            range!(markers.at_full_detail(), Fields::new(Scope::SAMPLE).tokens(1));
            return only(&answer.tokens);
        }
    }
}

/// One ordinary token a pass.
fn decode(
    target: &mut Chain,
    markers: Markers<'_>,
    output: &mut Output<'_>,
    counts: &mut Counts,
) -> Result<(), DeviceError> {
    while output.finish.is_none() {
        let rows = [output.last()];
        let answer = target.forward(markers, Phase::Decode, Path::Decode, &rows, &Want::Tokens(0..1))?;
        counts.target_passes += 1;
        range!(markers.at_full_detail(), Fields::new(Scope::SAMPLE).tokens(1));
        output.push(only(&answer.tokens)?);
    }
    Ok(())
}

/// Rounds of draft, verify, accept, roll back.
fn speculate(
    target: &mut Chain,
    draft: &mut Chain,
    request: &Request,
    markers: Markers<'_>,
    output: &mut Output<'_>,
    counts: &mut Counts,
) -> Result<(), DeviceError> {
    range!(markers, target.whole(Scope::SPEC_DECODE, request.verify.phase(), request.max_tokens));
    let (mut block, mut proposed) = (Vec::new(), Vec::new());
    while output.finish.is_none() {
        let drafted = request.draft_tokens.min(output.remaining() - 1);
        block.clear();
        block.push(output.last());
        if drafted > 0 {
            draft::propose(draft, &output.text, drafted, markers, &mut proposed)?;
            block.extend_from_slice(&proposed);
        }
        let before = target.cached();
        if request.verify == Verify::ReferenceExact {
            target.snapshot()?;
        }
        let verified = verify::verify(target, request.verify, &block, markers, output)?;
        counts.target_passes += verified.passes;
        counts.rounds.push(Round { drafted, accepted: verified.accepted });

        let dropped = drafted - verified.accepted;
        let keep = output.text.len() - 1;
        let full = if dropped > 0 { markers.at_full_detail() } else { Markers::OFF };
        range!(full, Fields::new(Scope::ROLLBACK).tokens(dropped as u64));
        if dropped > 0 && request.verify == Verify::ReferenceExact {
            target.restore(keep - before)?;
        }
        // Also when all was accepted: the text may have ended before the last row's answer.
        target.roll_back(keep)?;
        draft.roll_back(keep)?;
    }
    Ok(())
}

/// The one token of a pass that was asked for one.
fn only(tokens: &[u32]) -> Result<u32, DeviceError> {
    match tokens {
        [token] => Ok(*token),
        _ => Err(DeviceError::BadPass(format!("one row gave {} tokens", tokens.len()))),
    }
}
