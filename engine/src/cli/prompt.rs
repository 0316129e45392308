//! Where a prompt comes from.

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

fn read_text(path: &Path) -> Result<String, CliError> {
    let read = if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        std::fs::read(path)
    };
    let name = if path == Path::new("-") { "standard input".into() } else { path.to_owned() };
    let bytes = read.map_err(|why| CliError::Unreadable { path: name.clone(), why })?;
    String::from_utf8(bytes)
        .map_err(|error| CliError::NotUtf8 { path: name, at: error.utf8_error().valid_up_to() })
}
