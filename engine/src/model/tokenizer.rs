//! Words to token ids and back.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::error::short;
use super::freed::compact;
use super::gguf::{self, Gguf, Words};
use super::json::{parse, read_bytes};
use super::{ModelError, TextStream};

/// A model's tokenizer.
#[derive(Clone)]
pub struct Tokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
    known: HashSet<u32>,
    special: HashSet<u32>,
    /// Tokens that stand for one byte in runs that are text only as a whole (`<0xE2>`).
    bytes: HashSet<u32>,
    rules: Rules,
    settings: Settings,
}

/// What a model says of conversations.
#[derive(Clone, Default)]
struct Settings {
    chat_template: Option<String>,
    bos: Option<String>,
    eos: Option<String>,
}

/// What a tokenizer does beside its vocabulary, hashed part by part: enough to say which part differs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rules(Vec<(&'static str, [u8; 32])>);

impl Tokenizer {
    /// Reads the tokenizer of a model: `tokenizer.json` of its directory, or the metadata of a GGUF file.
    ///
    /// # Errors
    /// [`ModelError`] when it is missing or not a tokenizer.
    pub fn open(model: &Path) -> Result<Self, ModelError> {
        compact(|| Self::read(model))
    }

    fn read(model: &Path) -> Result<Self, ModelError> {
        if let Some(file) = gguf::find(model)? {
            let Words { definition, chat_template, bos, eos } = Gguf::open(&file)?.words()?;
            let model = Model::of(&definition);
            let inner = serde_json::from_value(definition).map_err(Into::into);
            return Self::new(file, inner, &model, Settings { chat_template, bos, eos });
        }
        let path = model.join("tokenizer.json");
        let bytes = read_bytes(&path)?;
        // Syntax first: the library panics on a file that ends in the middle of some parts.
        let definition = parse(&path, &bytes)?;
        let inner = tokenizers::Tokenizer::from_bytes(&bytes);
        Self::new(path, inner, &Model::of(&definition), Settings::read(model)?)
    }

    fn new(
        path: PathBuf,
        inner: tokenizers::Result<tokenizers::Tokenizer>,
        model: &Model,
        settings: Settings,
    ) -> Result<Self, ModelError> {
        let fail =
            |problem: String| ModelError::NotATokenizer { path: path.clone(), problem: short(&problem) };
        let mut inner = inner.map_err(|error| fail(error.to_string()))?;
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
            rules: Rules::of(&inner, model).map_err(|error| fail(error.to_string()))?,
            settings,
            path,
            inner,
        })
    }

    /// The Jinja template that turns a conversation into a prompt, where the model has one: `chat_template.jinja`,
    /// `tokenizer_config.json` or the metadata of a GGUF file.
    pub fn chat_template(&self) -> Option<&str> {
        self.settings.chat_template.as_deref()
    }

    /// The words that a text is cut into before their parts are merged.
    #[cfg(test)]
    pub(super) fn pieces<'a>(&self, text: &'a str) -> Vec<&'a str> {
        use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};
        let mut cut = PreTokenizedString::from(text);
        self.inner.get_pre_tokenizer().unwrap().pre_tokenize(&mut cut).unwrap();
        let splits = cut.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(_, (from, to), _)| &text[from..to]).collect()
    }

    /// The token that a text may begin with, as templates spell it (`bos_token`).
    pub fn bos(&self) -> Option<&str> {
        self.settings.bos.as_deref()
    }

    /// The token that ends a text, as templates spell it (`eos_token`).
    pub fn eos(&self) -> Option<&str> {
        self.settings.eos.as_deref()
    }

    /// The id of a token, special or not, by its text in the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
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
        self.stream_until(Vec::new())
    }

    /// As [`stream`](Self::stream), up to the first of these strings, which is not given out.
    pub fn stream_until(&self, stop: Vec<String>) -> TextStream<'_> {
        TextStream::new(self, stop)
    }
}

impl Settings {
    /// From `tokenizer_config.json` and `chat_template.jinja`, where they are.
    fn read(dir: &Path) -> Result<Self, ModelError> {
        let optional = |name: &str| match read_bytes(&dir.join(name)) {
            Err(ModelError::MissingFile { .. }) => Ok(None),
            other => other.map(Some),
        };
        let mut settings = Settings::default();
        let name = "tokenizer_config.json";
        if let Some(bytes) = optional(name)? {
            let config = parse(&dir.join(name), &bytes)?;
            // A token is its text, or an object that holds it.
            let token = |name: &str| {
                let value = config.get(name)?;
                value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
            };
            // One template, or a list of named ones.
            let template = config.get("chat_template").and_then(|template| match template {
                Value::Array(list) => list
                    .iter()
                    .find(|one| one.get("name").and_then(Value::as_str) == Some("default"))
                    .and_then(|one| one.get("template")?.as_str()),
                one => one.as_str(),
            });
            let chat_template = template.map(str::to_owned);
            settings = Settings { bos: token("bos_token"), eos: token("eos_token"), chat_template };
        }
        if let Some(bytes) = optional("chat_template.jinja")? {
            settings.chat_template = Some(String::from_utf8_lossy(&bytes).into_owned());
        }
        Ok(settings)
    }
}

impl Rules {
    /// Of each part in a form that does not depend on how its file was written. A post-processor is left
    /// out: it only adds special tokens, which are not asked for.
    fn of(inner: &tokenizers::Tokenizer, model: &Model) -> serde_json::Result<Self> {
        let mut added: Vec<_> = inner.get_added_tokens_decoder().into_iter().collect();
        added.sort_by_key(|(id, _)| *id);
        let hash = |part: String| Sha256::digest(part).into();
        Ok(Rules(vec![
            ("special tokens", hash(canonical(&added)?)),
            ("merges", model.merges),
            ("normalisation rules", hash(canonical(inner.get_normalizer())?)),
            ("word-splitting rules", hash(canonical(inner.get_pre_tokenizer())?)),
            ("model rules", model.rules),
            ("decoding rules", hash(canonical(inner.get_decoder())?)),
        ]))
    }
}

/// The rules that a tokenizer's definition has for merging, hashed.
struct Model {
    merges: [u8; 32],
    rules: [u8; 32],
}

impl Model {
    fn of(definition: &Value) -> Self {
        let model = definition.get("model");
        let mut merges = Sha256::new();
        for pair in
            model.and_then(|model| model.get("merges")).and_then(Value::as_array).into_iter().flatten()
        {
            merges.update(merge(pair));
            merges.update("\n\0");
        }
        // The vocabulary is compared token by token, unless its order and numbers are rules themselves.
        let mut rules = Sha256::new();
        let fields: BTreeMap<_, _> = model.and_then(Value::as_object).into_iter().flatten().collect();
        for (name, value) in fields {
            let said = !matches!(value, Value::Null | Value::Bool(false)) && *value != "";
            if said && name != "merges" && !(name == "vocab" && value.is_object()) {
                rules.update(format!("{name:?}: {value}\n"));
            }
        }
        Model { merges: merges.finalize().into(), rules: rules.finalize().into() }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::samples::{Copy, json, shipped};

    const PAIR: &str = "pair/draft";
    const FILE: &str = "tokenizer.json";

    #[test]
    fn texts_are_spelled_as_the_reference_spells_them_and_read_back() {
        let reference = json(&shipped("pair/reference.json"));
        let cases = reference["tokenizer_cases"].as_array().unwrap();
        assert_eq!(cases.len(), 31);
        let tokenizer = Tokenizer::open(&shipped("pair/target")).unwrap();
        for case in cases {
            let text = case["text"].as_str().unwrap();
            let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
            assert_eq!(tokenizer.encode(text).unwrap(), ids, "{text:?}");
            let special = ids.iter().any(|&id| tokenizer.is_special(id));
            assert!(special || tokenizer.decode(&ids).unwrap() == text, "{text:?}");
        }
        for prompt in reference["prompts"].as_array().unwrap() {
            let ids: Vec<u32> = serde_json::from_value(prompt["target_greedy_ids"].clone()).unwrap();
            assert_eq!(tokenizer.decode(&ids).unwrap(), prompt["target_text"].as_str().unwrap());
        }
    }

    #[test]
    fn ids_are_known_or_an_error() {
        let dir = shipped(PAIR);
        let tokenizer = Tokenizer::open(&dir).unwrap();
        assert_eq!((tokenizer.vocabulary_size(), tokenizer.largest_id()), (4096, Some(4095)));
        assert!(tokenizer.knows(4095) && !tokenizer.knows(4096));
        assert!(tokenizer.is_special(0) && tokenizer.is_special(1) && !tokenizer.is_special(2));
        assert_eq!(tokenizer.decode(&[0, 1]).unwrap(), "", "special tokens have no text");
        assert_eq!(
            tokenizer.decode(&[2, 4096]).unwrap_err().to_string(),
            format!(
                "cannot use the model in {}: tokenizer.json has no token with the id 4096; use ids of this model's \
                 tokenizer",
                dir.display()
            )
        );
    }

    #[test]
    fn a_trainings_truncation_and_padding_change_nothing() {
        let copy = Copy::of(PAIR);
        copy.edit(FILE, |definition| {
            definition["truncation"] =
                json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
            definition["padding"] = json!({
                "strategy": {"Fixed": 50}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 1,
                "pad_type_id": 0, "pad_token": "<|pad|>",
            });
        });
        let ids = Tokenizer::open(copy.dir()).unwrap().encode("It was a truth well known").unwrap();
        assert_eq!(ids, [2195, 524, 263, 3850, 1183, 2421]);
    }

    #[test]
    fn a_file_that_is_no_tokenizer_is_refused() {
        let copy = Copy::of(PAIR);
        let complaint = || {
            let error = Tokenizer::open(copy.dir()).err().unwrap().to_string();
            let begin = format!("cannot use the model in {}: tokenizer.json ", copy.dir().display());
            error.strip_prefix(&begin).unwrap().to_owned()
        };
        copy.write(FILE, r#"{"version":"1.0"}"#);
        assert!(complaint().starts_with("is not a tokenizer ("), "{}", complaint());
        copy.write(FILE, "[1]");
        assert!(complaint().starts_with("is not a tokenizer ("), "{}", complaint());
        copy.write(FILE, "{");
        assert_eq!(
            complaint(),
            "is not valid JSON (EOF while parsing an object at line 1 column 1); download it again"
        );
        copy.remove(FILE);
        assert_eq!(complaint(), "is missing; download it again");
    }

    #[test]
    fn a_tokenizer_cut_anywhere_is_refused_without_a_panic() {
        let copy = Copy::of(PAIR);
        let whole = copy.read(FILE);
        for len in (0..2000).step_by(7).chain((2000..whole.len()).step_by(9973)) {
            copy.write(FILE, &whole[..len]);
            assert!(Tokenizer::open(copy.dir()).is_err(), "cut after {len} bytes");
        }
    }

    /// A change to a tokenizer's definition, and what is said of it.
    type Row = (fn(&mut Value), &'static str);

    /// What is said of the shipped tokenizer and a changed one.
    fn difference(change: impl FnOnce(&mut Value)) -> Option<String> {
        let copy = Copy::of(PAIR);
        copy.edit(FILE, change);
        let (shipped, changed) =
            (Tokenizer::open(&shipped(PAIR)).unwrap(), Tokenizer::open(copy.dir()).unwrap());
        let sentence = shipped.same_as(&changed).err().map(|error| error.to_string());
        assert_eq!(sentence.is_some(), changed.same_as(&shipped).is_err(), "it goes both ways");
        sentence.map(|sentence| {
            let begin =
                format!("{} and {} do not spell alike: ", shipped.path.display(), changed.path.display());
            let rest = sentence.strip_prefix(&begin).unwrap();
            rest.strip_suffix("; use a draft made for its target").unwrap().to_owned()
        })
    }

    #[test]
    fn tokenizers_that_spell_alike_are_the_same_however_they_are_written() {
        let target = Tokenizer::open(&shipped("pair/target")).unwrap();
        for other in [PAIR, "tiny/qwen2-bias-tied", "tiny/qwen3-qknorm", "tiny/llama3-gqa-untied-sharded"] {
            target.same_as(&Tokenizer::open(&shipped(other)).unwrap()).unwrap();
        }
        let rewritten = difference(|definition| {
            definition["truncation"] =
                json!({"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0});
            definition["model"]["dropout"] = Value::Null;
            definition["model"]["continuing_subword_prefix"] = json!("");
            definition["model"].as_object_mut().unwrap().remove("ignore_merges");
            for merge in definition["model"]["merges"].as_array_mut().unwrap() {
                *merge = match &*merge {
                    Value::String(joined) => json!(joined.split(' ').collect::<Vec<_>>()),
                    list => json!(format!("{} {}", list[0].as_str().unwrap(), list[1].as_str().unwrap())),
                };
            }
        });
        assert_eq!(rewritten, None);
    }

    #[test]
    fn tokenizers_that_differ_are_told_apart_by_their_first_difference() {
        let added = |content: &str, id| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        };
        let rows: &[Row] = &[
            (
                |definition| {
                    definition["model"]["vocab"]["!"] = json!(3);
                    definition["model"]["vocab"]["\""] = json!(2);
                },
                "token \"!\" is 2 in the first and 3 in the second",
            ),
            (
                |definition| {
                    let vocabulary = definition["model"]["vocab"].as_object_mut().unwrap();
                    let id = vocabulary.remove("<|pad|>").unwrap();
                    vocabulary.insert("<|fill|>".to_owned(), id);
                    definition["added_tokens"][1]["content"] = json!("<|fill|>");
                },
                "token \"<|pad|>\" is 1 in the first and not in the second",
            ),
            (
                |definition| definition["added_tokens"][1]["special"] = json!(false),
                "their special tokens differ",
            ),
            (
                |definition| definition["added_tokens"][1]["lstrip"] = json!(true),
                "their special tokens differ",
            ),
            (
                |definition| definition["model"]["merges"].as_array_mut().unwrap().swap(5, 6),
                "their merges differ",
            ),
            (
                |definition| definition["normalizer"] = json!({"type": "NFC"}),
                "their normalisation rules differ",
            ),
            (
                |definition| {
                    definition["pre_tokenizer"]["pretokenizers"][0]["individual_digits"] = json!(false);
                },
                "their word-splitting rules differ",
            ),
            (|definition| definition["model"]["ignore_merges"] = json!(true), "their model rules differ"),
            (|definition| definition["decoder"] = json!({"type": "Fuse"}), "their decoding rules differ"),
        ];
        for (change, expected) in rows {
            assert_eq!(difference(change).as_deref(), Some(*expected));
        }
        let one_more = difference(|definition| {
            definition["added_tokens"].as_array_mut().unwrap().push(added("<|more|>", 4096));
        });
        assert_eq!(one_more.as_deref(), Some("the first has 4096 tokens and the second 4097"));
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(200))]

        #[test]
        fn no_change_of_a_tokenizers_bytes_makes_it_panic(
            changes in proptest::collection::vec((0..1200_usize, 32..127_u8), 1..4),
        ) {
            thread_local!(static COPY: Copy = Copy::of(PAIR));
            let mut bytes = std::fs::read(shipped(PAIR).join(FILE)).unwrap();
            for (place, byte) in changes {
                bytes[place] = byte;
            }
            COPY.with(|copy| {
                copy.write(FILE, bytes);
                match Tokenizer::open(copy.dir()) {
                    Ok(tokenizer) => {
                        let ids = tokenizer.encode("It was 1813, a truth\n").unwrap();
                        let _ = tokenizer.decode(&ids);
                    }
                    Err(error) => assert!(error.to_string().lines().count() <= 4),
                }
            });
        }
    }
}
