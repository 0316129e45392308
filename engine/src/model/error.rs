//! What can be wrong with a model on disk.

use std::fmt;
use std::path::{Path, PathBuf};

/// A model that cannot be used, where, and what to do. One sentence on one line, whatever the files hold.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Nothing has this name.
    #[error("cannot use the model in {}: there is no such directory; check the path", dir.display())]
    NoSuchDirectory {
        /// As it was asked for.
        dir: PathBuf,
    },
    /// Whoever asked for the weights wants them no more.
    #[error("the model in {} was not read to its end: this process was asked to leave", dir.display())]
    GivenUp {
        /// The model's directory.
        dir: PathBuf,
    },
    /// Something else than a directory has this name.
    #[error(
        "cannot use the model in {}: it is neither a directory nor a GGUF file; name the directory that holds config.json",
        dir.display()
    )]
    NotADirectory {
        /// As it was asked for.
        dir: PathBuf,
    },
    /// A file that every model has is not there.
    #[error("{} is missing; download it again", Place(path))]
    MissingFile {
        /// Where it should be.
        path: PathBuf,
    },
    /// There are no weights in a form that is read here.
    #[error(
        "cannot use the model in {}: there is neither model.safetensors nor model.safetensors.index.json; \
         download its weights as safetensors",
        dir.display()
    )]
    NoWeights {
        /// The model's directory.
        dir: PathBuf,
    },
    /// Several models where there should be one.
    #[error("cannot use the model in {}: it holds {count} GGUF files; name the one that is meant", dir.display())]
    SeveralFiles {
        /// The directory.
        dir: PathBuf,
        /// GGUF files in it.
        count: usize,
    },
    /// The operating system does not let us read a file.
    #[error("{} cannot be read ({source}); check the file and its permissions", Place(path))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A directory, a pipe or the like where a file should be.
    #[error("{} is not a regular file; download it again", Place(path))]
    NotAFile {
        /// What is there.
        path: PathBuf,
    },
    /// A JSON file longer than any real one.
    #[error("{} is {len} bytes long, more than the {limit} that are read; download it again", Place(path))]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        len: u64,
        /// The most that is read, in bytes.
        limit: u64,
    },
    /// A file that should be JSON is not, or holds no object.
    #[error("{} is not valid JSON ({problem}); download it again", Place(path))]
    NotJson {
        /// The file.
        path: PathBuf,
        /// What the parser met, and where.
        problem: String,
    },
    /// A setting that every model has is not there.
    #[error("{} does not say {field}; download it again", Place(path))]
    MissingField {
        /// The file.
        path: PathBuf,
        /// The setting, with dots between levels.
        field: String,
    },
    /// A setting makes no sense.
    #[error(
        "{} says {field} is {found}, but it must be {expected}; correct it or download it again",
        Place(path)
    )]
    BadField {
        /// The file.
        path: PathBuf,
        /// The setting, with dots between levels.
        field: String,
        /// Its value.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// A setting makes sense, but not to this engine.
    #[error(
        "{} says {field} is {found}, which this engine cannot run; use a model with {supported}",
        Place(path)
    )]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The setting, with dots between levels.
        field: String,
        /// Its value.
        found: String,
        /// What would do.
        supported: String,
    },
    /// Attention that sees fewer positions than the model's context.
    #[error(
        "{} asks for a sliding window of {window} positions, narrower than the context of {context}, which this \
         engine cannot run; use a model with full attention",
        Place(path)
    )]
    SlidingWindow {
        /// `config.json`
        path: PathBuf,
        /// Positions that a layer sees.
        window: usize,
        /// Positions of the context.
        context: usize,
    },
    /// The index names a file that is not in the model's directory.
    #[error("{} names the file {file}, which is not in that directory; download it again", Place(path))]
    OutsideDirectory {
        /// The index.
        path: PathBuf,
        /// The name it gives.
        file: String,
    },
    /// A weights file is shorter than its header says.
    #[error("{} ends after {len} bytes but its header promises {promised}; download it again", Place(path))]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        len: u64,
        /// The length that its header asks for; for a file too short to have a header, the shortest there is.
        promised: u64,
    },
    /// A weights file is longer than its header says.
    #[error(
        "{} is {len} bytes long but its header describes only {described}; download it again",
        Place(path)
    )]
    TrailingBytes {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        len: u64,
        /// The length that its header asks for.
        described: u64,
    },
    /// A weights file says that its header is longer than any real one.
    #[error(
        "{} says that its header is {len} bytes long, more than the {limit} that are read; download it again",
        Place(path)
    )]
    HeaderTooLong {
        /// The file.
        path: PathBuf,
        /// The length that it says.
        len: u64,
        /// The most that is read, in bytes.
        limit: u64,
    },
    /// A weights file's header makes no sense.
    #[error("{} has a broken header ({problem}); download it again", Place(path))]
    BrokenHeader {
        /// The file.
        path: PathBuf,
        /// The first thing that is wrong with it.
        problem: String,
    },
    /// The configuration asks for a tensor that is not there.
    #[error("{} has no tensor {tensor}, of shape {expected:?}; download it again", Place(path))]
    MissingTensor {
        /// The weights file or the index.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The shape it should have.
        expected: Vec<usize>,
    },
    /// A tensor has another shape than the configuration asks for.
    #[error(
        "{} has tensor {tensor} of shape {found:?}, but the configuration asks for {expected:?}; download both again",
        Place(path)
    )]
    WrongShape {
        /// The weights file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The shape it should have.
        expected: Vec<usize>,
        /// The shape it has.
        found: Vec<usize>,
    },
    /// A tensor's values are stored in a way that is not read here.
    #[error(
        "{} stores tensor {tensor} as {found}, which this engine cannot read; convert it to BF16, F16 or F32",
        Place(path)
    )]
    WrongDtype {
        /// The weights file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The type's name in the file.
        found: String,
    },
    /// A layer that the model does not have was asked for.
    #[error("the model in {} has {layers} layers, so none is number {layer}; ask for one below {layers}", dir.display())]
    NoSuchLayer {
        /// The model's directory.
        dir: PathBuf,
        /// The layer that was asked for, from 0.
        layer: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// `tokenizer.json` is JSON, but not a tokenizer.
    #[error("{} is not a tokenizer ({problem}); download it again", Place(path))]
    NotATokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A text that the tokenizer cannot spell.
    #[error("{} cannot spell the text ({problem}); use another text", Place(path))]
    Unspellable {
        /// The tokenizer's file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Token ids that the tokenizer cannot turn into text.
    #[error("{} cannot turn token ids into text ({problem}); download it again", Place(path))]
    Undecodable {
        /// The tokenizer's file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A token id that is not the tokenizer's.
    #[error("{} has no token with the id {token}; use ids of this model's tokenizer", Place(path))]
    UnknownToken {
        /// The tokenizer's file.
        path: PathBuf,
        /// The id.
        token: u32,
    },
    /// Two models that spell texts differently cannot draft for each other.
    #[error("{} and {} do not spell alike: {difference}; use a draft made for its target", this.display(), other.display())]
    TokenizersDiffer {
        /// The first tokenizer's file.
        this: PathBuf,
        /// The second tokenizer's file.
        other: PathBuf,
        /// Where they first differ.
        difference: String,
    },
}

/// How every sentence about a model's file begins.
struct Place<'a>(&'a Path);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dir = self.0.parent().unwrap_or(Path::new(""));
        let file = self.0.file_name().unwrap_or_default();
        write!(f, "cannot use the model in {}: {}", dir.display(), file.display())
    }
}

/// Text from a file or from a parser that may quote one, made fit for a sentence: one line, not too long.
pub(crate) fn short(text: &str) -> String {
    const LONGEST: usize = 200;
    let mut line: String = text
        .chars()
        .take(LONGEST)
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect();
    if text.chars().nth(LONGEST).is_some() {
        line.push_str("...");
    }
    line
}
