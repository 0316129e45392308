//! One `safetensors` file: eight bytes of header length, a JSON header, then the tensors' bytes.
//!
//! The `safetensors` crate judges the header; what it refuses is looked at once more here, to say which
//! tensor is wrong. Nothing is allocated on the word of an unchecked length.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use serde_json::Value;

use super::ModelError;
use super::error::short;
use super::json::file_len;
use super::mapped::Mapped;

/// The limit of the format's own reader.
const LONGEST_HEADER: u64 = 100_000_000;

/// Bytes of the header's length.
const PREFIX: u64 = 8;

/// A weights file, mapped and checked.
pub(super) struct WeightsFile {
    pub(super) path: PathBuf,
    pub(super) bytes: Mapped,
}

/// Where one tensor lies.
pub(super) struct Entry {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// In the whole file; within it.
    pub(super) bytes: Range<usize>,
}

impl WeightsFile {
    /// Opens a file and gives its tensors, by name.
    pub(super) fn open(path: &Path) -> Result<(Self, BTreeMap<String, Entry>), ModelError> {
        file_len(path)?;
        let bytes =
            Mapped::open(path).map_err(|source| ModelError::Unreadable { path: path.to_owned(), source })?;
        let entries = entries(path, &bytes)?;
        Ok((WeightsFile { path: path.to_owned(), bytes }, entries))
    }
}

fn entries(path: &Path, file: &[u8]) -> Result<BTreeMap<String, Entry>, ModelError> {
    let path = path.to_owned();
    let len = file.len() as u64;
    let Some((prefix, rest)) = file.split_first_chunk() else {
        return Err(ModelError::Truncated { path, len, promised: PREFIX });
    };
    let header_len = u64::from_le_bytes(*prefix);
    if header_len > LONGEST_HEADER {
        return Err(ModelError::HeaderTooLong { path, len: header_len, limit: LONGEST_HEADER });
    }
    let data_start = PREFIX + header_len;
    let Some(header) = rest.get(..header_len as usize) else {
        return Err(ModelError::Truncated { path, len, promised: data_start });
    };
    let metadata: Metadata =
        serde_json::from_slice(header).map_err(|refusal| diagnose(&path, header, &refusal))?;
    let promised = data_start.saturating_add(metadata.data_len() as u64);
    if len < promised {
        return Err(ModelError::Truncated { path, len, promised });
    }
    if len > promised {
        return Err(ModelError::TrailingBytes { path, len, described: promised });
    }
    let start = data_start as usize;
    let entry = |info: &TensorInfo| Entry {
        dtype: info.dtype,
        shape: info.shape.clone(),
        bytes: start + info.data_offsets.0..start + info.data_offsets.1,
    };
    Ok(metadata.tensors().into_iter().map(|(name, info)| (name, entry(info))).collect())
}

/// The first thing wrong with a header that was refused.
fn diagnose(path: &Path, header: &[u8], refusal: &serde_json::Error) -> ModelError {
    let broken =
        |problem: String| ModelError::BrokenHeader { path: path.to_owned(), problem: short(&problem) };
    let raw: BTreeMap<String, Value> = match serde_json::from_slice(header) {
        Ok(raw) => raw,
        Err(error) => return broken(error.to_string()),
    };
    let mut tensors = Vec::new();
    for (name, value) in raw.into_iter().filter(|(name, _)| name != "__metadata__") {
        if let Some(dtype) = value.get("dtype").and_then(Value::as_str)
            && Dtype::deserialize(&value["dtype"]).is_err()
        {
            return ModelError::WrongDtype {
                path: path.to_owned(),
                tensor: short(&name),
                found: short(dtype),
            };
        }
        let info: TensorInfo = match serde_json::from_value(value) {
            Ok(info) => info,
            Err(error) => return broken(format!("tensor {name}: {error}")),
        };
        let size = info.shape.iter().try_fold(info.dtype.bitsize(), |size, &n| size.checked_mul(n));
        let (begin, end) = info.data_offsets;
        if size.is_none() || end.checked_sub(begin).and_then(|len| len.checked_mul(8)) != size {
            let TensorInfo { dtype, shape, .. } = info;
            return broken(format!(
                "tensor {name} of {dtype} {shape:?} cannot lie in bytes {begin} to {end}"
            ));
        }
        tensors.push((info.data_offsets, name));
    }
    tensors.sort();
    let mut next = 0;
    for ((begin, end), name) in tensors {
        if begin != next {
            return broken(format!("tensor {name} begins at byte {begin}, but byte {next} is next"));
        }
        next = end;
    }
    broken(refusal.to_string())
}
