//! Text while it is generated: what is given out is never taken back.
//!
//! A token's text may depend on its neighbours: several tokens spell one character, and some decoders treat
//! the first token of a text differently. So a short window of tokens is decoded again and again: those whose
//! text was given last, for context, and those still unfinished. When the window's text ends in a whole
//! character, what follows the context's text is given and the window moves on.

use super::{ModelError, Tokenizer};

/// Text as tokens come. Over a whole stream it gives what [`Tokenizer::decode`] gives for all its tokens.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    window: Vec<u32>,
    /// How many tokens of the window are context.
    context: usize,
    /// The context's text.
    given: String,
}

impl<'a> TextStream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        TextStream { tokenizer, window: Vec::new(), context: 0, given: String::new() }
    }

    /// The text that `token` completed; empty while a character is unfinished.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`]. The stream then goes on as if the token had not come.
    pub fn push(&mut self, token: u32) -> Result<String, ModelError> {
        if self.tokenizer.is_special(token) {
            return Ok(String::new());
        }
        self.window.push(token);
        if self.tokenizer.is_byte(token) {
            return Ok(String::new());
        }
        let text = match self.tokenizer.decode(&self.window) {
            Ok(text) => text,
            Err(error) => {
                self.window.pop();
                return Err(error);
            }
        };
        let new = match text.strip_prefix(&self.given) {
            Some(new) if !new.is_empty() && !new.ends_with(char::REPLACEMENT_CHARACTER) => new.to_owned(),
            _ => return Ok(String::new()),
        };
        self.window.drain(..self.context);
        self.context = self.window.len();
        self.given = self.tokenizer.decode(&self.window)?;
        Ok(new)
    }

    /// What is left when no token follows.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn finish(self) -> Result<String, ModelError> {
        let text = self.tokenizer.decode(&self.window)?;
        Ok(text.strip_prefix(&self.given).unwrap_or_default().to_owned())
    }
}
