//! A target whose numbers run over in one of its layers, spread over shards: the error names the shard that has the layer,
//! whichever process that is.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

#[path = "shards/process.rs"]
#[allow(dead_code, reason = "each test takes what it needs")]
mod process;
use process::{phasemark, workspace};

/// The shipped target with the largest numbers that there are where this layer leaves the MLP.
fn running_over_in(layer: usize, folder: &Path) -> PathBuf {
    let model = folder.join(format!("over-{layer}"));
    fs::create_dir(&model).unwrap();
    for file in fs::read_dir(workspace().join("models/pair/target")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), model.join(file.file_name())).unwrap();
    }
    let weights = model.join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let header = 8 + usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    let tensors: Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let tensor = &tensors[format!("model.layers.{layer}.mlp.down_proj.weight")];
    assert_eq!(tensor["dtype"], "BF16");
    let [begin, end] =
        [0, 1].map(|at| header + usize::try_from(tensor["data_offsets"][at].as_u64().unwrap()).unwrap());
    bytes[begin..end].chunks_exact_mut(2).for_each(|value| value.copy_from_slice(&0x7f7f_u16.to_le_bytes()));
    fs::write(weights, bytes).unwrap();
    model
}

#[test]
fn the_shard_whose_layer_runs_over_is_named_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let [early, late] = [1, 6].map(|layer| running_over_in(layer, folder.path()));
    for (model, shards, named) in [
        (&early, "0..4@cpu,4..8@spawn:cpu", "shard 0..4 in this process: row "),
        (&late, "0..4@cpu,4..8@spawn:cpu", "shard 4..8 at spawn:cpu (process "),
        (&early, "0..4@spawn:cpu,4..8@cpu", "shard 0..4 at spawn:cpu (process "),
        (&late, "0..4@spawn:cpu,4..8@cpu", "shard 4..8 in this process: row "),
        (&early, "0..4@spawn:cpu,4..8@spawn:cpu", "shard 0..4 at spawn:cpu (process "),
    ] {
        let args = ["generate", "--draft", "none", "--shards", shards, "--model", model.to_str().unwrap()];
        let output = phasemark(&args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        let told: Vec<_> = said.lines().filter(|line| line.starts_with("phasemark")).collect();
        let [told] = told[..] else { panic!("one line, not {}: {said}", told.len()) };
        assert!(told.starts_with(&format!("phasemark: {named}")), "{told}");
        assert!(told.contains("of the hidden state that it gave is NaN or infinite"), "{told}");
        assert!(output.stdout.is_empty());
    }
}
