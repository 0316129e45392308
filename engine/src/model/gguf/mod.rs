//! GGUF: a whole model in one file. A header of metadata and tensor descriptions, then the tensors' bytes.
//!
//! Read as it is: nothing is allocated on the word of an unchecked count, and no byte is looked at that the file
//! does not have. What the metadata means is the business of `config` and `tokenizer`; how this engine's tensor
//! names map to the file's, of `names`.

mod config;
mod names;
mod tokenizer;

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) mod writer;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

pub(super) use names::{interleaved, stored_name};
pub(super) use tokenizer::Words;

use super::error::short;
use super::json::{Fields, file_len};
use super::mapped::Mapped;
use super::weights::{Entry, Stored, WeightsFile};
use super::{Dtype, ModelError};

const MAGIC: &[u8] = b"GGUF";
/// Where tensors may lie when the file does not say.
const ALIGNMENT: u64 = 32;
/// The most dimensions that the format's own reader takes.
const DIMENSIONS: u32 = 4;

/// A file, mapped and checked.
pub(super) struct Gguf {
    pub(super) file: WeightsFile,
    /// Metadata that is no list.
    map: Map<String, Value>,
    lists: BTreeMap<String, List>,
    pub(super) tensors: BTreeMap<String, Entry>,
}

/// A list in the metadata: read to its end once, so that it is known to be whole.
#[derive(Debug)]
struct List {
    kind: Kind,
    count: usize,
    bytes: Range<usize>,
}

/// Types of metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    List,
    U64,
    I64,
    F64,
}

impl Kind {
    const ALL: [Kind; 13] = [
        Kind::U8,
        Kind::I8,
        Kind::U16,
        Kind::I16,
        Kind::U32,
        Kind::I32,
        Kind::F32,
        Kind::Bool,
        Kind::Text,
        Kind::List,
        Kind::U64,
        Kind::I64,
        Kind::F64,
    ];

    /// Bytes of the shortest value.
    fn size(self) -> usize {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool => 1,
            Kind::U16 | Kind::I16 => 2,
            Kind::U32 | Kind::I32 | Kind::F32 => 4,
            Kind::U64 | Kind::I64 | Kind::F64 | Kind::Text => 8,
            Kind::List => 12,
        }
    }
}

impl Gguf {
    /// Opens a file and reads its header.
    pub(super) fn open(path: &Path) -> Result<Self, ModelError> {
        file_len(path)?;
        let bytes =
            Mapped::open(path).map_err(|source| ModelError::Unreadable { path: path.to_owned(), source })?;
        let header = read(path, &bytes)?;
        let Header { map, lists, tensors } = header;
        Ok(Gguf { file: WeightsFile { path: path.to_owned(), bytes }, map, lists, tensors })
    }

    pub(super) fn path(&self) -> &Path {
        &self.file.path
    }

    /// The metadata, lists left out.
    fn fields(&self) -> Fields {
        Fields::of(self.path(), self.map.clone())
    }

    /// A list of texts.
    fn texts(&self, name: &str) -> Result<Option<Vec<&str>>, ModelError> {
        let Some(list) = self.list(name, &[Kind::Text])? else { return Ok(None) };
        let mut cursor = self.cursor(list);
        let texts = (0..list.count).map(|_| cursor.text()).collect::<Result<Vec<_>, _>>();
        texts.map(Some).map_err(|problem| self.broken(&problem))
    }

    /// A list of whole numbers.
    fn numbers(&self, name: &str) -> Result<Option<Vec<i64>>, ModelError> {
        let kinds = [Kind::U8, Kind::I8, Kind::U16, Kind::I16, Kind::U32, Kind::I32, Kind::U64, Kind::I64];
        let Some(list) = self.list(name, &kinds)? else { return Ok(None) };
        let mut cursor = self.cursor(list);
        let number = |_| Ok(cursor.scalar(list.kind)?.as_i64().unwrap_or(i64::MAX));
        let numbers = (0..list.count).map(number).collect::<Result<Vec<_>, String>>();
        numbers.map(Some).map_err(|problem| self.broken(&problem))
    }

    fn list(&self, name: &str, kinds: &[Kind]) -> Result<Option<&List>, ModelError> {
        match self.lists.get(name) {
            Some(list) if kinds.contains(&list.kind) => Ok(Some(list)),
            Some(list) => Err(self.broken(&format!("{name} is a list of {:?}", list.kind))),
            None => Ok(None),
        }
    }

    fn cursor(&self, list: &List) -> Cursor<'_> {
        Cursor { bytes: &self.file.bytes[..list.bytes.end], at: list.bytes.start }
    }

    fn broken(&self, problem: &str) -> ModelError {
        ModelError::BrokenHeader { path: self.path().to_owned(), problem: short(problem) }
    }
}

/// What a header says.
struct Header {
    map: Map<String, Value>,
    lists: BTreeMap<String, List>,
    tensors: BTreeMap<String, Entry>,
}

/// How far a header is read.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

fn read(path: &Path, file: &[u8]) -> Result<Header, ModelError> {
    let path = || path.to_owned();
    let broken = |problem: String| ModelError::BrokenHeader { path: path(), problem: short(&problem) };
    if !file.starts_with(MAGIC) {
        return Err(broken("it does not begin with GGUF".to_owned()));
    }
    let mut cursor = Cursor { bytes: file, at: MAGIC.len() };
    let version = cursor.u32().map_err(broken)?;
    if !matches!(version, 2 | 3) {
        let swapped = if version.swap_bytes() < 16 { ", its bytes in the other order" } else { "" };
        let found = format!("{}{swapped}", version.min(version.swap_bytes()));
        let (field, supported) = ("the version of its format".to_owned(), "version 2 or 3".to_owned());
        return Err(ModelError::Unsupported { path: path(), field, found, supported });
    }
    let (map, lists, descriptions) = cursor.header().map_err(broken)?;
    let alignment = match map.get("general.alignment") {
        None => ALIGNMENT,
        Some(given) => given
            .as_u64()
            .filter(|given| given.is_power_of_two())
            .ok_or_else(|| broken(format!("general.alignment is {given}, but it must be a power of two")))?,
    };
    let Some(start) = (cursor.at as u64).checked_next_multiple_of(alignment) else {
        return Err(broken(format!("general.alignment is {alignment}, more than the file is long")));
    };
    let mut tensors = BTreeMap::new();
    for Description { name, shape, kind, offset } in descriptions {
        if offset % alignment != 0 {
            return Err(broken(format!(
                "tensor {name} begins at byte {offset} of the data, not a multiple of {alignment}"
            )));
        }
        let dtype = stored(kind);
        let whole = entry_bytes(&dtype, &shape).and_then(|len| {
            let begin = start.checked_add(offset)?;
            Some((begin, begin.checked_add(len)?))
        });
        let Some((begin, end)) = whole else {
            return Err(broken(format!("tensor {name} of {dtype} {shape:?} is no whole number of blocks")));
        };
        if end > file.len() as u64 {
            return Err(ModelError::Truncated { path: path(), len: file.len() as u64, promised: end });
        }
        let entry = Entry { dtype, shape, bytes: begin as usize..end as usize };
        if let Some((twice, _)) = tensors.insert(name.clone(), entry).map(|entry| (name, entry)) {
            return Err(broken(format!("tensor {twice} is there twice")));
        }
    }
    Ok(Header { map, lists, tensors })
}

/// Bytes that a tensor takes; none of a type that is not read here. `None` when its rows are not whole blocks or
/// there are too many.
fn entry_bytes(dtype: &Stored, shape: &[usize]) -> Option<u64> {
    let Stored::Known(dtype) = dtype else { return Some(0) };
    let (length, size) = dtype.block();
    let width = *shape.last()?;
    let blocks = if width.is_multiple_of(length) { width / length } else { return None };
    let rows = shape[..shape.len() - 1].iter().try_fold(1u64, |rows, &n| rows.checked_mul(n as u64))?;
    rows.checked_mul(blocks as u64)?.checked_mul(size as u64)
}

/// A tensor as the header describes it.
struct Description {
    name: String,
    shape: Vec<usize>,
    kind: u32,
    offset: u64,
}

type Parts = (Map<String, Value>, BTreeMap<String, List>, Vec<Description>);

impl<'a> Cursor<'a> {
    fn header(&mut self) -> Result<Parts, String> {
        let (tensors, entries) = (self.u64()?, self.u64()?);
        // The shortest entry has an empty name, a type and a byte; the shortest tensor an empty name, no
        // dimension, a type and an offset.
        for (what, count, least) in [("metadata", entries, 13), ("tensors", tensors, 24)] {
            if count > self.left() as u64 / least {
                return Err(format!("it promises {count} {what}, more than it has room for"));
            }
        }
        let (mut map, mut lists) = (Map::new(), BTreeMap::new());
        for _ in 0..entries {
            let name = self.text()?.to_owned();
            let twice = map.contains_key(&name) || lists.contains_key(&name);
            match self.kind()? {
                Kind::List => lists.insert(name.clone(), self.list(&name)?).is_some(),
                kind => map.insert(name.clone(), self.scalar(kind)?).is_some(),
            };
            if twice {
                return Err(format!("{name} is there twice"));
            }
        }
        let mut descriptions = Vec::new();
        for _ in 0..tensors {
            let name = self.text()?.to_owned();
            let dimensions = self.u32()?;
            if !(1..=DIMENSIONS).contains(&dimensions) {
                return Err(format!("tensor {name} has {dimensions} dimensions"));
            }
            // The file lists the innermost first.
            let mut shape = (0..dimensions).map(|_| self.length(&name)).collect::<Result<Vec<_>, _>>()?;
            shape.reverse();
            descriptions.push(Description { name, shape, kind: self.u32()?, offset: self.u64()? });
        }
        Ok((map, lists, descriptions))
    }

    /// One dimension.
    fn length(&mut self, tensor: &str) -> Result<usize, String> {
        let length = self.u64()?;
        let fits = usize::try_from(length).ok().filter(|length| i32::try_from(*length).is_ok());
        fits.ok_or_else(|| format!("tensor {tensor} has a dimension of {length}"))
    }

    fn kind(&mut self) -> Result<Kind, String> {
        let number = self.u32()?;
        let kind = Kind::ALL.get(number as usize).copied();
        kind.ok_or_else(|| format!("metadata of the unknown type {number} at byte {}", self.at))
    }

    /// Goes over a list.
    fn list(&mut self, name: &str) -> Result<List, String> {
        let (kind, count) = (self.kind()?, self.u64()?);
        if kind == Kind::List {
            return Err(format!("{name} is a list of lists"));
        }
        if count > (self.left() / kind.size()) as u64 {
            return Err(format!("{name} promises {count} items, more than the file has room for"));
        }
        let (count, start) = (count as usize, self.at);
        if kind == Kind::Text {
            for _ in 0..count {
                let length = self.u64()?;
                self.take(length)?;
            }
        } else {
            self.take((count * kind.size()) as u64)?;
        }
        Ok(List { kind, count, bytes: start..self.at })
    }

    /// A value that is no list. Numbers that JSON does not have count as absent.
    fn scalar(&mut self, kind: Kind) -> Result<Value, String> {
        Ok(match kind {
            Kind::U8 => self.array::<1>()?[0].into(),
            Kind::I8 => self.array::<1>()?[0].cast_signed().into(),
            Kind::U16 => u16::from_le_bytes(self.array()?).into(),
            Kind::I16 => i16::from_le_bytes(self.array()?).into(),
            Kind::U32 => self.u32()?.into(),
            Kind::I32 => i32::from_le_bytes(self.array()?).into(),
            Kind::F32 => f32::from_le_bytes(self.array()?).into(),
            Kind::Bool => (self.array::<1>()?[0] != 0).into(),
            Kind::Text => self.text()?.into(),
            Kind::U64 => self.u64()?.into(),
            Kind::I64 => i64::from_le_bytes(self.array()?).into(),
            Kind::F64 => f64::from_le_bytes(self.array()?).into(),
            Kind::List => return Err(format!("a list where a value should be, at byte {}", self.at)),
        })
    }

    fn text(&mut self) -> Result<&'a str, String> {
        let length = self.u64()?;
        let at = self.at;
        let bytes = self.take(length)?;
        std::str::from_utf8(bytes).map_err(|_| format!("a text that is not UTF-8 at byte {at}"))
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let at = self.at;
        let bytes = self.take(N as u64)?;
        bytes.try_into().map_err(|_| format!("it ends at byte {at}"))
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], String> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let bytes = usize::try_from(length).ok().and_then(|length| rest.get(..length));
        let bytes = bytes.ok_or_else(|| {
            format!(
                "it ends after {} bytes, where {length} more should follow byte {}",
                self.bytes.len(),
                self.at
            )
        })?;
        self.at += bytes.len();
        Ok(bytes)
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }
}

/// The type that a number stands for.
fn stored(kind: u32) -> Stored {
    let name = match kind {
        0 => return Stored::Known(Dtype::F32),
        1 => return Stored::Known(Dtype::F16),
        2 => return Stored::Known(Dtype::Q4_0),
        3 => return Stored::Known(Dtype::Q4_1),
        8 => return Stored::Known(Dtype::Q8_0),
        12 => return Stored::Known(Dtype::Q4K),
        13 => return Stored::Known(Dtype::Q5K),
        14 => return Stored::Known(Dtype::Q6K),
        30 => return Stored::Known(Dtype::Bf16),
        6 => "Q5_0",
        7 => "Q5_1",
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        other => return Stored::Other(format!("type number {other}")),
    };
    Stored::Other(name.to_owned())
}

/// The GGUF file that `path` means: itself, or the only one in a folder without other weights.
pub(super) fn find(path: &Path) -> Result<Option<PathBuf>, ModelError> {
    let is_gguf =
        |path: &Path| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    if is_gguf(path) && !path.is_dir() {
        return Ok(Some(path.to_owned()));
    }
    let weights = ["model.safetensors", "model.safetensors.index.json"];
    if !path.is_dir() || weights.iter().any(|name| path.join(name).exists()) {
        return Ok(None);
    }
    let unreadable = |source| ModelError::Unreadable { path: path.to_owned(), source };
    let mut found = Vec::new();
    for file in std::fs::read_dir(path).map_err(unreadable)? {
        let file = file.map_err(unreadable)?.path();
        if is_gguf(&file) {
            found.push(file);
        }
    }
    match found.len() {
        0 | 1 => Ok(found.pop()),
        count => Err(ModelError::SeveralFiles { dir: path.to_owned(), count }),
    }
}
