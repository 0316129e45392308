//! Words to token ids and back.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::error::short;
use super::json::{parse, read_bytes};
use super::{ModelError, TextStream};

/// A model's tokenizer.
pub struct Tokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
    known: HashSet<u32>,
    special: HashSet<u32>,
    /// Tokens that stand for one byte in runs that are text only as a whole (`<0xE2>`).
    bytes: HashSet<u32>,
    rules: Rules,
}

/// What a tokenizer does beside its vocabulary, hashed part by part: enough to say which part differs.
#[derive(Debug, PartialEq, Eq)]
struct Rules(Vec<(&'static str, [u8; 32])>);

impl Tokenizer {
    /// Reads `tokenizer.json` of a model directory.
    ///
    /// # Errors
    /// [`ModelError`] when it is missing or not a tokenizer.
    pub fn open(dir: &Path) -> Result<Self, ModelError> {
        let path = dir.join("tokenizer.json");
        let bytes = read_bytes(&path)?;
        // Syntax first: the library panics on a file that ends in the middle of some parts.
        let definition = parse(&path, &bytes)?;
        let fail =
            |problem: String| ModelError::NotATokenizer { path: path.clone(), problem: short(&problem) };
        let mut inner = tokenizers::Tokenizer::from_bytes(&bytes).map_err(|error| fail(error.to_string()))?;
        // A training's settings: they would cut or fill up prompts in silence.
        inner.with_padding(None).with_truncation(None).map_err(|error| fail(error.to_string()))?;
        let vocabulary = inner.get_vocab(true);
        let special = inner.get_added_tokens_decoder().into_iter().filter(|(_, token)| token.special);
        let decoder = canonical(inner.get_decoder()).map_err(|error| fail(error.to_string()))?;
        let falls_back = decoder.contains("\"ByteFallback\"");
        let is_byte = |token: &str| {
            token.len() == 6
                && token
                    .strip_prefix("<0x")
                    .and_then(|rest| rest.strip_suffix('>'))
                    .is_some_and(|hex| u8::from_str_radix(hex, 16).is_ok())
        };
        Ok(Tokenizer {
            known: vocabulary.values().copied().collect(),
            special: special.map(|(id, _)| id).collect(),
            bytes: vocabulary
                .iter()
                .filter(|(token, _)| falls_back && is_byte(token))
                .map(|(_, &id)| id)
                .collect(),
            rules: Rules::of(&inner, &definition).map_err(|error| fail(error.to_string()))?,
            path,
            inner,
        })
    }

    /// Token ids of a text, no special tokens added.
    ///
    /// # Errors
    /// [`ModelError`] when the tokenizer cannot spell the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        let encoding = self.inner.encode_fast(text, false).map_err(|error| ModelError::Unspellable {
            path: self.path.clone(),
            problem: short(&error.to_string()),
        })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of token ids, special tokens left out, bytes that are not UTF-8 replaced.
    ///
    /// # Errors
    /// [`ModelError`] when an id is not the tokenizer's.
    pub fn decode(&self, ids: &[u32]) -> Result<String, ModelError> {
        if let Some(&token) = ids.iter().find(|id| !self.knows(**id)) {
            return Err(ModelError::UnknownToken { path: self.path.clone(), token });
        }
        self.inner.decode(ids, true).map_err(|error| ModelError::Undecodable {
            path: self.path.clone(),
            problem: short(&error.to_string()),
        })
    }

    /// Tokens, special ones included. Ids may have gaps: see [`largest_id`](Self::largest_id).
    pub fn vocabulary_size(&self) -> usize {
        self.known.len()
    }

    /// The largest id of any token; `None` for a tokenizer without tokens. A model can read all of a
    /// tokenizer's ids if this is below its `Config::vocab`.
    pub fn largest_id(&self) -> Option<u32> {
        self.known.iter().max().copied()
    }

    /// Whether a token has this id.
    pub fn knows(&self, id: u32) -> bool {
        self.known.contains(&id)
    }

    /// Whether this id is a special token's: it has no text.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }

    /// Whether text must wait for what follows this token.
    pub(super) fn is_byte(&self, id: u32) -> bool {
        self.bytes.contains(&id)
    }

    /// Whether both spell every text the same: else a draft's tokens would mean something else to the target.
    ///
    /// # Errors
    /// [`ModelError`] says where they first differ.
    pub fn same_as(&self, other: &Tokenizer) -> Result<(), ModelError> {
        match self.difference(other) {
            None => Ok(()),
            Some(difference) => Err(ModelError::TokenizersDiffer {
                this: self.path.clone(),
                other: other.path.clone(),
                difference,
            }),
        }
    }

    fn difference(&self, other: &Tokenizer) -> Option<String> {
        let (size, other_size) = (self.vocabulary_size(), other.vocabulary_size());
        if size != other_size {
            return Some(format!("the first has {size} tokens and the second {other_size}"));
        }
        let theirs: HashMap<String, u32> = other.inner.get_vocab(true);
        let ours: BTreeSet<(u32, String)> =
            self.inner.get_vocab(true).into_iter().map(|(token, id)| (id, token)).collect();
        for (id, token) in ours {
            let quoted = short(&format!("{token:?}"));
            match theirs.get(&token) {
                Some(&theirs) if theirs == id => {}
                Some(theirs) => {
                    return Some(format!("token {quoted} is {id} in the first and {theirs} in the second"));
                }
                None => return Some(format!("token {quoted} is {id} in the first and not in the second")),
            }
        }
        if self.rules == other.rules {
            return None;
        }
        let differing = self.rules.0.iter().zip(&other.rules.0).find(|(ours, theirs)| ours != theirs);
        Some(format!("their {} differ", differing.map_or("rules", |((part, _), _)| part)))
    }

    /// A stream that gives text as tokens come, never half a character.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream::new(self)
    }
}

impl Rules {
    /// Of each part in a form that does not depend on how its file was written. A post-processor is left
    /// out: it only adds special tokens, which are not asked for.
    fn of(inner: &tokenizers::Tokenizer, definition: &Value) -> serde_json::Result<Self> {
        let mut added: Vec<_> = inner.get_added_tokens_decoder().into_iter().collect();
        added.sort_by_key(|(id, _)| *id);
        let model = definition.get("model");
        let merges = model.and_then(|model| model.get("merges")).and_then(Value::as_array);
        let merges: Vec<String> = merges.into_iter().flatten().map(merge).collect();
        // The vocabulary is compared token by token, unless its order and numbers are rules themselves.
        let model: BTreeMap<&String, &Value> = model
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .filter(|(name, value)| {
                let said = !matches!(value, Value::Null | Value::Bool(false)) && *value != "";
                said && *name != "merges" && !(*name == "vocab" && value.is_object())
            })
            .collect();
        let hash = |part: String| Sha256::digest(part).into();
        Ok(Rules(vec![
            ("special tokens", hash(canonical(&added)?)),
            ("merges", hash(canonical(&merges)?)),
            ("normalisation rules", hash(canonical(inner.get_normalizer())?)),
            ("word-splitting rules", hash(canonical(inner.get_pre_tokenizer())?)),
            ("model rules", hash(canonical(&model)?)),
            ("decoding rules", hash(canonical(inner.get_decoder())?)),
        ]))
    }
}

/// A merge as its two tokens: old files join them with a space, new ones list them.
fn merge(value: &Value) -> String {
    let pair: Vec<&str> = match value {
        Value::String(joined) => joined.splitn(2, ' ').collect(),
        Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    pair.join("\0")
}

fn canonical(part: impl serde::Serialize) -> serde_json::Result<String> {
    serde_json::to_string(&part)
}
