//! Text while it is generated: what is given out is never taken back.
//!
//! A token's text may depend on its neighbours: several tokens spell one character, and some decoders treat
//! the first token of a text differently. So a short window of tokens is decoded again and again: those whose
//! text was given last, for context, and those still unfinished. When the window's text ends in a whole
//! character, what follows the context's text is given and the window moves on.

use super::{ModelError, Stops, Tokenizer};

/// Text as tokens come. Over a whole stream it gives what [`Tokenizer::decode`] gives for all its tokens.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    window: Vec<u32>,
    /// How many tokens of the window are context.
    context: usize,
    /// The context's text.
    given: String,
    stops: Stops,
}

impl<'a> TextStream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, stop: Vec<String>) -> Self {
        TextStream {
            tokenizer,
            window: Vec::new(),
            context: 0,
            given: String::new(),
            stops: Stops::new(stop),
        }
    }

    /// The text that `token` completed; empty while a character is unfinished, or what could become a stop string.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`]. The stream then goes on as if the token had not come.
    pub fn push(&mut self, token: u32) -> Result<String, ModelError> {
        let text = self.completed(token)?;
        Ok(self.stops.push(&text))
    }

    /// The stop string that ended the text; nothing is given out any more.
    pub fn stopped_by(&self) -> Option<&str> {
        self.stops.found()
    }

    fn completed(&mut self, token: u32) -> Result<String, ModelError> {
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
    pub fn finish(&mut self) -> Result<String, ModelError> {
        let text = self.tokenizer.decode(&self.window)?;
        self.window.clear();
        let last = self.stops.push(text.strip_prefix(&self.given).unwrap_or_default());
        Ok(last + &self.stops.finish())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;
    use tempfile::TempDir;

    use super::*;
    use crate::model::samples::shipped;

    fn pieces(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
        let mut stream = tokenizer.stream();
        let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
        pieces.push(stream.finish().unwrap());
        pieces
    }

    fn pair() -> Tokenizer {
        Tokenizer::open(&shipped("pair/target")).unwrap()
    }

    #[test]
    fn a_character_of_several_tokens_comes_whole_with_the_last_of_them() {
        let tokenizer = pair();
        let text = "a\u{1f980}b";
        let ids = tokenizer.encode(text).unwrap();
        assert!(ids.len() > 3, "the crab is no token of its own");
        let pieces = pieces(&tokenizer, &ids);
        let crab = pieces.len() - 3;
        assert_eq!(pieces[0], "a");
        assert!(pieces[1..crab].iter().all(String::is_empty), "{pieces:?}");
        assert_eq!(pieces[crab..], ["\u{1f980}", "b", ""]);
    }

    #[test]
    fn plain_words_come_at_once_and_special_tokens_have_no_text() {
        let tokenizer = pair();
        assert_eq!(pieces(&tokenizer, &[2195, 0, 524, 263]), ["It", "", " was", " a", ""]);
    }

    #[test]
    fn an_unfinished_character_is_replaced_at_the_end() {
        let tokenizer = pair();
        let ids = tokenizer.encode("\u{1f980}").unwrap();
        let pieces = pieces(&tokenizer, &ids[..ids.len() - 1]);
        assert_eq!(pieces.concat(), "\u{fffd}");
        assert_eq!(pieces.last().unwrap(), "\u{fffd}");
    }

    #[test]
    fn a_stop_string_ends_the_text_wherever_its_tokens_end() {
        let tokenizer = pair();
        let ids = tokenizer.encode("It was a\u{1f980}b").unwrap();
        for stop in ["s a", "\u{1f980}", "b"] {
            let mut stream = tokenizer.stream_until(vec!["never comes".into(), stop.into()]);
            let mut given: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
            given += &stream.finish().unwrap();
            assert_eq!(given, "It was a\u{1f980}b".split(stop).next().unwrap());
            assert_eq!(stream.stopped_by(), Some(stop));
        }
    }

    #[test]
    fn an_unknown_token_is_an_error_and_the_stream_goes_on() {
        let tokenizer = pair();
        let mut stream = tokenizer.stream();
        assert_eq!(stream.push(2195).unwrap(), "It");
        assert!(stream.push(u32::MAX).is_err());
        assert_eq!(stream.push(524).unwrap(), " was");
        assert_eq!(stream.finish().unwrap(), "");
    }

    /// The kind that Llama 2 and early Mistral have: a space goes in front of a text and is taken away again,
    /// and bytes that are no token of their own are spelled `<0x..>`.
    fn falling_back() -> Tokenizer {
        let dir = TempDir::new().unwrap();
        let words = ["<unk>", "<s>", "</s>", "\u{2581}", "a", "\u{2581}a", "\u{2581}\u{2581}", "\u{e9}"];
        let bytes = [0x0a, 0x41, 0xc3, 0xa9, 0xe2, 0x82, 0xac, 0xff].map(|byte| format!("<0x{byte:02X}>"));
        let vocabulary: serde_json::Map<_, _> = (words.map(str::to_owned).into_iter().chain(bytes))
            .enumerate()
            .map(|(id, token)| (token, json!(id)))
            .collect();
        let special = |id: usize| {
            json!({
                "id": id, "content": words[id], "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        };
        let definition = json!({
            "version": "1.0", "truncation": null, "padding": null, "pre_tokenizer": null, "post_processor": null,
            "added_tokens": [special(0), special(1), special(2)],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "\u{2581}"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
            ]},
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ]},
            "model": {
                "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true,
                "vocab": vocabulary, "merges": ["\u{2581} a", "\u{2581} \u{2581}"],
            },
        });
        std::fs::write(dir.path().join("tokenizer.json"), definition.to_string()).unwrap();
        Tokenizer::open(dir.path()).unwrap()
    }

    #[test]
    fn only_the_first_space_of_a_text_is_taken_away() {
        let tokenizer = falling_back();
        let ids = tokenizer.encode("a a \u{20ac}a").unwrap();
        assert_eq!(ids, [5, 5, 3, 12, 13, 14, 4]);
        let pieces = pieces(&tokenizer, &ids);
        assert_eq!(pieces, ["a", " a", " ", "", "", "", "\u{20ac}a", ""]);
    }

    proptest! {
        #[test]
        fn pieces_make_up_the_whole_text(ids in prop::collection::vec(0..4096_u32, 0..80)) {
            thread_local!(static TOKENIZER: Tokenizer = pair());
            TOKENIZER.with(|tokenizer| {
                assert_eq!(pieces(tokenizer, &ids).concat(), tokenizer.decode(&ids).unwrap());
            });
        }

        /// The 256 tokens of one byte each, most of them no text alone.
        #[test]
        fn pieces_of_stray_bytes_make_up_the_whole_text(ids in prop::collection::vec(0..260_u32, 0..40)) {
            thread_local!(static TOKENIZER: Tokenizer = pair());
            TOKENIZER.with(|tokenizer| {
                assert_eq!(pieces(tokenizer, &ids).concat(), tokenizer.decode(&ids).unwrap());
            });
        }

        #[test]
        fn pieces_make_up_any_text_that_was_spelled(text in "\\PC{0,40}") {
            thread_local!(static TOKENIZER: Tokenizer = pair());
            TOKENIZER.with(|tokenizer| {
                let ids = tokenizer.encode(&text).unwrap();
                assert_eq!(pieces(tokenizer, &ids).concat(), text);
            });
        }

        #[test]
        fn pieces_make_up_the_whole_text_where_bytes_fall_back(ids in prop::collection::vec(0..16_u32, 0..40)) {
            thread_local!(static TOKENIZER: Tokenizer = falling_back());
            TOKENIZER.with(|tokenizer| {
                assert_eq!(pieces(tokenizer, &ids).concat(), tokenizer.decode(&ids).unwrap());
            });
        }
    }
}
