//! Where a prompt comes from.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::args::PromptArgs;
use super::error::CliError;
use crate::Error;
use crate::chat::{self, Message};
use crate::model::Tokenizer;

/// The prompt when none is given: the pair was trained on Rust among other things and writes it best.
const BUILT_IN: &str = "impl<T> Iterator for";

/// A prompt, before any model is opened.
pub(super) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
    Chat(Vec<Message>),
}

impl Prompt {
    /// Reads what `args` name. `system` goes before a question.
    pub(super) fn read(args: &PromptArgs, system: Option<&str>) -> Result<Self, CliError> {
        Ok(if let Some(question) = &args.chat {
            let system = system.map(Message::system);
            Prompt::Chat(system.into_iter().chain([Message::user(question)]).collect())
        } else if let Some(ids) = &args.prompt_ids {
            Prompt::Ids(ids.clone())
        } else if let Some(path) = &args.prompt_file {
            Prompt::Text(read_text(path)?)
        } else {
            Prompt::Text(args.prompt.clone().unwrap_or_else(|| BUILT_IN.into()))
        })
    }

    /// The prompt's token ids, and those that end its completion beside the model's own.
    pub(super) fn ids(self, tokenizer: &Tokenizer) -> Result<(Vec<u32>, Vec<u32>), Error> {
        match self {
            Prompt::Text(text) => Ok((tokenizer.encode(&text)?, Vec::new())),
            Prompt::Ids(ids) => Ok((ids, Vec::new())),
            Prompt::Chat(messages) => chat::prompt_ids(tokenizer, &messages),
        }
    }
}

/// Bytes that a prompt may have: more than any model's context holds, and little enough to be read at once.
const MOST_BYTES: u64 = 16 << 20;

fn read_text(path: &Path) -> Result<String, CliError> {
    let standard = path == Path::new("-");
    let read = if standard { bounded(std::io::stdin().lock()) } else { File::open(path).and_then(bounded) };
    let path = if standard { "standard input".into() } else { path.to_owned() };
    let bytes = read.map_err(|why| CliError::Unreadable { path: path.clone(), why })?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(CliError::PromptTooLong { path, most: MOST_BYTES >> 20 });
    }
    String::from_utf8(bytes).map_err(|error| CliError::NotUtf8 { path, at: error.utf8_error().valid_up_to() })
}

/// All bytes, or one more than a prompt may have.
fn bounded(from: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(MOST_BYTES + 1).read_to_end(&mut bytes).map(|_| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_without_end_is_not_read_to_its_end() {
        let read = bounded(std::io::repeat(b'a')).unwrap();
        assert_eq!(read.len() as u64, MOST_BYTES + 1);
    }
}
