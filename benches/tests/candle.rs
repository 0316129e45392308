//! candle's greedy ids are the reference's, so that what it is compared in is the same work.

#![cfg(feature = "peers")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

use benches::candle::{Candle, CandleError};
use serde_json::Value;

fn start(model: &Path) -> Candle {
    Candle::start(Path::new(env!("CARGO_BIN_EXE_speed")), model, 2).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn candle_generates_what_the_reference_does() {
    let pair = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/pair");
    let reference: Value =
        serde_json::from_slice(&std::fs::read(pair.join("reference.json")).unwrap()).unwrap();
    let mut candle = start(&pair.join("target"));
    let prompts = reference["prompts"].as_array().unwrap();
    for entry in prompts {
        let (prompt, expected) = (ids(&entry["prompt_ids"]), ids(&entry["target_greedy_ids"]));
        let generated = candle.generate(&prompt, expected.len()).unwrap();
        let parts = candle.compare(&prompt, &expected, &generated.tokens).unwrap();
        assert_eq!(parts, None, "{}", entry["name"]);
    }

    // A token that candle did not choose is no other arithmetic.
    let prompt = ids(&prompts[0]["prompt_ids"]);
    let right = candle.generate(&prompt, 4).unwrap().tokens;
    let mut wrong = right.clone();
    wrong[2] ^= 1;
    let differs = candle.compare(&prompt, &wrong, &right).unwrap_err();
    assert!(matches!(differs, CandleError::Differs { at: 2, .. }), "{differs}");
}

#[test]
fn a_folder_without_a_model_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let told = start(folder.path()).generate(&[1], 1).unwrap_err().to_string();
    assert!(told.contains("config.json cannot be read"), "{told}");
}
