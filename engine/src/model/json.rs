//! JSON files of a model, read with a bound on their length and field by field, so that an error can name
//! the field.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::ModelError;
use super::error::short;

/// Far above any real tokenizer, the longest of these files.
const LONGEST: u64 = 256 << 20;

/// Any count above this is a lie, and below it a product of two cannot overflow.
const LARGEST_COUNT: u64 = i32::MAX as u64;

/// The length of a regular file: opening a pipe would wait for ever.
pub(super) fn file_len(path: &Path) -> Result<u64, ModelError> {
    let meta = fs::metadata(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => ModelError::MissingFile { path: path.to_owned() },
        _ => ModelError::Unreadable { path: path.to_owned(), source },
    })?;
    if meta.is_file() { Ok(meta.len()) } else { Err(ModelError::NotAFile { path: path.to_owned() }) }
}

/// The bytes of a JSON file.
pub(super) fn read_bytes(path: &Path) -> Result<Vec<u8>, ModelError> {
    let len = file_len(path)?;
    if len > LONGEST {
        return Err(ModelError::TooLong { path: path.to_owned(), len, limit: LONGEST });
    }
    fs::read(path).map_err(|source| ModelError::Unreadable { path: path.to_owned(), source })
}

/// What JSON bytes of `path` hold.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Value, ModelError> {
    serde_json::from_slice(bytes)
        .map_err(|error| ModelError::NotJson { path: path.to_owned(), problem: short(&error.to_string()) })
}

/// An object of a JSON file, and where it is. A field that is `null` counts as absent.
pub(super) struct Fields {
    path: PathBuf,
    /// What leads to this object: empty, or ends in a dot.
    prefix: String,
    map: Map<String, Value>,
}

impl Fields {
    pub(super) fn read(path: &Path) -> Result<Self, ModelError> {
        match parse(path, &read_bytes(path)?)? {
            Value::Object(map) => Ok(Fields { path: path.to_owned(), prefix: String::new(), map }),
            _ => Err(ModelError::NotJson { path: path.to_owned(), problem: "it holds no object".to_owned() }),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn value(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// Whether the file says anything about `name`, be it `null`.
    pub(super) fn mentions(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.map.iter()
    }

    /// A count of at least one.
    pub(super) fn count(&self, name: &str) -> Result<Option<usize>, ModelError> {
        let accept = |value: &Value| value.as_u64().filter(|n| (1..=LARGEST_COUNT).contains(n));
        let expected = || format!("a whole number from 1 to {LARGEST_COUNT}");
        Ok(self.typed(name, accept, expected)?.map(|n| n as usize))
    }

    /// A number above zero that `f32` can hold.
    pub(super) fn positive(&self, name: &str) -> Result<Option<f32>, ModelError> {
        let accept = |value: &Value| value.as_f64().map(|n| n as f32).filter(|n| n.is_finite() && *n > 0.0);
        self.typed(name, accept, || "a number above 0".to_owned())
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, ModelError> {
        Ok(self.typed(name, Value::as_bool, || "true or false".to_owned())?.unwrap_or(false))
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<String>, ModelError> {
        self.typed(name, |value| value.as_str().map(str::to_owned), || "a text".to_owned())
    }

    pub(super) fn object(&self, name: &str) -> Result<Option<Fields>, ModelError> {
        let map = self.typed(name, |value| value.as_object().cloned(), || "an object".to_owned())?;
        Ok(map.map(|map| Fields { path: self.path.clone(), prefix: format!("{}{name}.", self.prefix), map }))
    }

    /// One token id, or a list of them.
    pub(super) fn token_ids(&self, name: &str) -> Result<Option<Vec<u32>>, ModelError> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let accept = |value: &Value| match value {
            Value::Array(list) => list.iter().map(id).collect(),
            one => id(one).map(|id| vec![id]),
        };
        self.typed(name, accept, || "a token id or a list of token ids".to_owned())
    }

    /// `value`, or the error that `name` is missing.
    pub(super) fn need<T>(&self, name: &str, value: Option<T>) -> Result<T, ModelError> {
        value.ok_or_else(|| ModelError::MissingField { path: self.path.clone(), field: self.full(name) })
    }

    /// The error that `name` makes no sense.
    pub(super) fn bad(&self, name: &str, expected: String) -> ModelError {
        ModelError::BadField {
            path: self.path.clone(),
            field: self.full(name),
            found: self.found(name),
            expected,
        }
    }

    /// The error that `name` asks for something that this engine does not do.
    pub(super) fn unsupported(&self, name: &str, found: String, supported: &str) -> ModelError {
        ModelError::Unsupported {
            path: self.path.clone(),
            field: self.full(name),
            found,
            supported: supported.to_owned(),
        }
    }

    /// The field as the file spells it.
    pub(super) fn found(&self, name: &str) -> String {
        self.value(name).map_or_else(|| "absent".to_owned(), |value| short(&value.to_string()))
    }

    fn typed<T>(
        &self,
        name: &str,
        accept: impl Fn(&Value) -> Option<T>,
        expected: impl Fn() -> String,
    ) -> Result<Option<T>, ModelError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        accept(value).map(Some).ok_or_else(|| self.bad(name, expected()))
    }

    fn full(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}
