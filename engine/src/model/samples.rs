//! The shipped models, and copies of them for tests to break.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use super::{Checkpoint, ModelError};

/// The directory of a shipped model.
pub(super) fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models").join(name)
}

/// A file of JSON.
pub(super) fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A copy of a shipped model.
pub(super) struct Copy(TempDir);

impl Copy {
    pub(super) fn of(name: &str) -> Self {
        let copy = Copy(TempDir::new().unwrap());
        for file in fs::read_dir(shipped(name)).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), copy.dir().join(file.file_name())).unwrap();
        }
        copy
    }

    pub(super) fn dir(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn read(&self, file: &str) -> Vec<u8> {
        fs::read(self.dir().join(file)).unwrap()
    }

    pub(super) fn write(&self, file: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.dir().join(file), bytes).unwrap();
    }

    pub(super) fn remove(&self, file: &str) {
        fs::remove_file(self.dir().join(file)).unwrap();
    }

    /// Changes a JSON file.
    pub(super) fn edit(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let mut value = json(&self.dir().join(file));
        change(&mut value);
        self.write(file, value.to_string());
    }

    /// Sets one field of `config.json`.
    pub(super) fn config(&self, field: &str, value: Value) {
        self.edit("config.json", |config| config[field] = value);
    }

    /// Changes the header of a weights file and leaves its data alone.
    pub(super) fn header(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let bytes = self.read(file);
        let (prefix, rest) = bytes.split_first_chunk::<8>().unwrap();
        let (header, data) = rest.split_at(u64::from_le_bytes(*prefix) as usize);
        let mut value = serde_json::from_slice(header).unwrap();
        change(&mut value);
        let header = value.to_string();
        let prefix = (header.len() as u64).to_le_bytes();
        self.write(file, [&prefix, header.as_bytes(), data].concat());
    }

    pub(super) fn open(&self) -> Result<Checkpoint, ModelError> {
        Checkpoint::open(self.dir())
    }

    /// What is wrong with it, after the words that every such sentence begins with.
    pub(super) fn complaint(&self) -> String {
        let error = self.open().err().expect("a broken model was opened").to_string();
        assert!(error.lines().count() <= 4, "{error}");
        let begin = format!("cannot use the model in {}: ", self.dir().display());
        error.strip_prefix(&begin).unwrap_or_else(|| panic!("{error}")).to_owned()
    }
}
