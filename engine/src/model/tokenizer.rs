//! Words to token ids and back.

use std::path::Path;

use super::ModelError;

/// A model's tokenizer.
pub struct Tokenizer {}

impl Tokenizer {
    /// Reads `tokenizer.json` of a model directory.
    ///
    /// # Errors
    /// [`ModelError`] when it is missing or not a tokenizer.
    pub fn open(dir: &Path) -> Result<Self, ModelError> {
        todo!("{}", dir.display())
    }

    /// Token ids of a text, no special tokens added.
    ///
    /// # Errors
    /// [`ModelError`] when the tokenizer cannot spell the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        todo!("{text}")
    }

    /// The text of token ids, special tokens left out, bytes that are not UTF-8 replaced.
    ///
    /// # Errors
    /// [`ModelError`] when an id is not the tokenizer's.
    pub fn decode(&self, ids: &[u32]) -> Result<String, ModelError> {
        todo!("{ids:?}")
    }

    /// Whether both spell every text the same: else a draft's tokens would mean something else to the target.
    ///
    /// # Errors
    /// [`ModelError`] says where they first differ.
    pub fn same_as(&self, other: &Tokenizer) -> Result<(), ModelError> {
        let _ = other;
        todo!()
    }

    /// A stream that gives text as tokens come, never half a character.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream { tokenizer: self }
    }
}

/// Text as tokens come.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
}

impl TextStream<'_> {
    /// The text that `token` completed; empty while a character is unfinished.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn push(&mut self, token: u32) -> Result<String, ModelError> {
        let _ = self.tokenizer;
        todo!("{token}")
    }

    /// What is left when no token follows.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn finish(self) -> Result<String, ModelError> {
        todo!()
    }
}
