//! Many requests on one engine, as text: load once, ask often.
//!
//! A [`Session`] keeps what its caches hold between requests. When the next prompt begins like the text before it,
//! as the next turn of a conversation does, only what is new is read. Every request can be cancelled at any token,
//! and one that fails leaves nothing behind.
//!
//! What is kept was computed by the kernels of decode and verify where a fresh request would read it through the
//! large-matrix path of dense prefill; on devices where these differ in the last bit, so may logits. With
//! [`Prefill::Exact`](crate::decode::Prefill::Exact) they do not.

use std::ops::ControlFlow;

use marker_core::Markers;

use crate::Error;
use crate::chat::{self, Message};
use crate::decode::{Engine, Generation, Request};
use crate::load::Pair;
use crate::model::ModelError;

/// How an answer is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Everything but the prompt, which the session fills in.
    pub request: Request,
    /// Strings that end the answer and are no part of it.
    pub stop: Vec<String>,
}

impl Default for Options {
    /// Greedy, 64 tokens, no stop strings.
    fn default() -> Self {
        Options { request: Request::new(Vec::new()), stop: Vec::new() }
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Its text, as it was streamed.
    pub text: String,
    /// The stop string that ended it, if one did; the tokens that spelled it are counted in `generation`.
    pub stopped_by: Option<String>,
    /// Its tokens, and what was counted.
    pub generation: Generation,
}

/// Loaded models, and what their caches hold.
pub struct Session<'m> {
    pair: Pair,
    engine: Engine,
    markers: Markers<'m>,
}

impl<'m> Session<'m> {
    /// A session on `engine`, which was loaded from `pair`. Its requests share the positions that it was loaded for.
    pub fn new(pair: Pair, engine: Engine) -> Self {
        Session { pair, engine, markers: Markers::OFF }
    }

    /// Marks phases from now on.
    #[must_use]
    pub fn with_markers(self, markers: Markers<'m>) -> Self {
        Session { markers, ..self }
    }

    /// Goes on from `prompt`. `on_text` gets the answer as it comes, once a token: whole characters, and an empty
    /// piece where a character or a possible stop string is unfinished. It may cancel.
    ///
    /// # Errors
    /// [`Error`]; a prompt and a budget that do not fit the context are refused before anything is computed.
    pub fn complete(
        &mut self,
        prompt: &str,
        options: &Options,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Reply, Error> {
        let prompt = self.pair.tokenizer.encode(prompt)?;
        self.reply(prompt, &[], options, on_text)
    }

    /// Answers the last of `messages`, all of which the model's own template turns into the prompt.
    ///
    /// # Errors
    /// As [`complete`](Self::complete), and [`Error::Chat`] when the model has no template or it fails.
    pub fn chat(
        &mut self,
        messages: &[Message],
        options: &Options,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Reply, Error> {
        let (prompt, ends) = chat::prompt_ids(&self.pair.tokenizer, messages)?;
        self.reply(prompt, &ends, options, on_text)
    }

    fn reply(
        &mut self,
        prompt: Vec<u32>,
        ends: &[u32],
        options: &Options,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Reply, Error> {
        let mut request = Request { prompt, keep_prefix: true, ..options.request.clone() };
        request.stop_tokens.extend_from_slice(ends);
        let mut stream = self.pair.tokenizer.stream_until(options.stop.clone());
        let mut text = String::new();
        let (mut failed, mut cancelled): (Option<ModelError>, bool) = (None, false);
        let generation = self.engine.generate(&request, self.markers, &mut |token| {
            let piece = match stream.push(token) {
                Ok(piece) => piece,
                Err(error) => {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            };
            text.push_str(&piece);
            if on_text(&piece).is_break() {
                cancelled = true;
                return ControlFlow::Break(());
            }
            if stream.stopped_by().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        // Whoever cancelled hears no more.
        let rest = stream.finish()?;
        if !rest.is_empty() && !cancelled {
            text.push_str(&rest);
            // Nothing is left to cancel.
            let _ = on_text(&rest);
        }
        Ok(Reply { text, stopped_by: stream.stopped_by().map(str::to_owned), generation })
    }
}
