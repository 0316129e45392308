//! The tokenizer that GGUF metadata describes, written as the `tokenizer.json` that it came from.
//!
//! The file holds tokens, merges and the types of tokens; how text is cut into words before merging it only
//! names. What the names stand for is written here as the models' own `tokenizer.json` files have it.

use serde_json::{Map, Value, json};

use super::Gguf;
use crate::model::ModelError;
use crate::model::error::short;

/// Types of tokens that are not cut out of text by merging.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// Contractions, words, single digits or up to three of them, punctuation, line ends, space.
macro_rules! words {
    ($digits:literal) => {
        concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
}

/// As [`words`], with a word cut before each capital letter that follows a small one.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How text is cut into words.
#[derive(Clone, Copy)]
enum Cut {
    /// GPT-2's rule, which the tokenizer library knows.
    Gpt2,
    /// The same after each digit was cut off.
    Digits,
    /// A rule.
    Rule(&'static str),
}

/// What stands behind the name of a way to cut.
struct Pre {
    names: &'static [&'static str],
    cut: Cut,
    /// Characters are composed before.
    composed: bool,
    /// A word that is a token is not merged.
    whole_words: bool,
}

const PRES: [Pre; 5] = [
    Pre {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"],
        cut: Cut::Digits,
        composed: false,
        whole_words: false,
    },
    Pre { names: &["gpt-2", "olmo", "mpt", "phi-2"], cut: Cut::Gpt2, composed: false, whole_words: false },
    Pre {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3"],
        cut: Cut::Rule(words!(r"\p{N}{1,3}")),
        composed: false,
        whole_words: true,
    },
    Pre {
        names: &["qwen2", "deepseek-r1-qwen"],
        cut: Cut::Rule(words!(r"\p{N}")),
        composed: true,
        whole_words: false,
    },
    Pre { names: &["tekken"], cut: Cut::Rule(TEKKEN), composed: false, whole_words: true },
];

/// A tokenizer's parts.
pub(in crate::model) struct Words {
    /// As in `tokenizer.json`.
    pub(in crate::model) definition: Value,
    /// The template that turns a conversation into text.
    pub(in crate::model) chat_template: Option<String>,
    /// The tokens that a text may begin with and that end it.
    pub(in crate::model) bos: Option<String>,
    pub(in crate::model) eos: Option<String>,
}

impl Gguf {
    /// The tokenizer.
    ///
    /// # Errors
    /// [`ModelError`] when there is none, or one of a kind that is not read here.
    pub(in crate::model) fn words(&self) -> Result<Words, ModelError> {
        let fields = self.fields();
        let full = |name: &str| format!("tokenizer.ggml.{name}");
        let text = |name: &str| fields.need(&full(name), fields.text(&full(name))?);
        let missing =
            |name: &str| ModelError::MissingField { path: self.path().to_owned(), field: full(name) };
        let model = text("model")?;
        if model != "gpt2" {
            let supported = "gpt2, byte-level BPE";
            return Err(fields.unsupported(&full("model"), short(&model), supported));
        }
        let name = text("pre")?;
        let Some(pre) = PRES.iter().find(|pre| pre.names.contains(&&*name)) else {
            let known: Vec<&str> = PRES.iter().flat_map(|pre| pre.names).copied().collect();
            return Err(fields.unsupported(
                &full("pre"),
                short(&name),
                &format!("one of {}", known.join(", ")),
            ));
        };
        let tokens = self.texts(&full("tokens"))?.ok_or_else(|| missing("tokens"))?;
        let merges = self.texts(&full("merges"))?.ok_or_else(|| missing("merges"))?;
        let types = self.numbers(&full("token_type"))?.unwrap_or_default();
        if !types.is_empty() && types.len() != tokens.len() {
            let problem = format!("it has {} tokens and {} types of tokens", tokens.len(), types.len());
            return Err(self.broken(&problem));
        }
        let named = |name: &str| {
            let id = fields.token_ids(&full(name))?.and_then(|ids| ids.first().copied());
            Ok::<_, ModelError>(id.and_then(|id| tokens.get(id as usize)).map(|token| (*token).to_owned()))
        };
        Ok(Words {
            definition: definition(pre, &tokens, &merges, &types),
            chat_template: fields.text("tokenizer.chat_template")?,
            bos: named("bos_token_id")?,
            eos: named("eos_token_id")?,
        })
    }
}

fn definition(pre: &Pre, tokens: &[&str], merges: &[&str], types: &[i64]) -> Value {
    let added = tokens.iter().zip(types).enumerate();
    let added =
        added.filter(|(_, (_, kind))| [CONTROL, USER_DEFINED].contains(kind)).map(|(id, (content, kind))| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": *kind == CONTROL,
            })
        });
    let vocab: Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), id.into())).collect();
    let bytes = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
    let sequence =
        |first: Value, second: Value| json!({"type": "Sequence", "pretokenizers": [first, second]});
    let cut = match pre.cut {
        Cut::Gpt2 => bytes(true),
        Cut::Digits => sequence(json!({"type": "Digits", "individual_digits": true}), bytes(true)),
        Cut::Rule(rule) => sequence(
            json!({"type": "Split", "pattern": {"Regex": rule}, "behavior": "Isolated", "invert": false}),
            bytes(false),
        ),
    };
    let normalizer = if pre.composed { json!({"type": "NFC"}) } else { Value::Null };
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": normalizer,
        "pre_tokenizer": cut,
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": pre.whole_words, "vocab": vocab, "merges": merges,
        },
    })
}
