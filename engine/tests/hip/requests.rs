//! What runs well: the reference's ids, in every way to run a request, with every call right and nothing left.

use std::fs;

use serde_json::Value;

use crate::stand_in::{StandIn, workspace};

/// The ids of a prompt of the shipped pair's reference, and what the target says to it.
fn reference(name: &str) -> (String, Vec<u64>) {
    let text = fs::read_to_string(workspace().join("models/pair/reference.json")).unwrap();
    let reference: Value = serde_json::from_str(&text).unwrap();
    let prompts = reference["prompts"].as_array().unwrap();
    let prompt = prompts.iter().find(|prompt| prompt["name"] == name).unwrap();
    let ids = |key: &str| -> Vec<u64> {
        prompt[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
    };
    let prompt: Vec<String> = ids("prompt_ids").iter().map(u64::to_string).collect();
    (prompt.join(","), ids("target_greedy_ids"))
}

/// Runs a request for `bible-1` and 48 tokens on hip; the ids are the reference's and each process was clean.
#[track_caller]
fn answers(more: &[&str], processes: usize) {
    let stand_in = StandIn::new();
    let (prompt, expected) = reference("bible-1");
    let args = ["generate", "--device", "hip", "--prompt-ids", &prompt, "--max-tokens", "48", "--ignore-eos"];
    let args = [&args[..], &["--print-ids", "--threads", "1"], more].concat();
    let (output, reports) = stand_in.run(&args, &[]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{more:?}: {error}");
    let text = String::from_utf8(output.stdout).unwrap();
    let ids: Vec<u64> = serde_json::from_str(&text).unwrap();
    assert_eq!(ids, expected[..48], "{more:?}: {text}");
    assert_eq!(reports.len(), processes, "{more:?}: {reports:?}");
    for report in &reports {
        report.is_clean(&format!("{more:?}"));
        assert!(report.calls["hipModuleLaunchKernel"] > 20, "{more:?}: {report:?}");
        assert!(report.calls["hipGraphLaunch"] > 10, "{more:?}: passes come again: {report:?}");
    }
}

#[test]
fn a_speculative_request_in_every_way_to_verify() {
    for verify in ["batched", "sequential", "reference-exact"] {
        answers(&["--verify", verify], 1);
    }
}

#[test]
fn a_target_alone_and_every_prefill() {
    answers(&["--draft", "none"], 1);
    answers(&["--draft", "ngram"], 1);
    answers(&["--prefill", "exact"], 1);
    answers(&["--prefill", "exact", "--prefill-chunk", "4"], 1);
    answers(&["--prefill", "dense"], 1);
}

#[test]
fn shards_in_this_process_and_in_others() {
    answers(&["--shards", "0..4@hip:0,4..8@hip:0"], 1);
    answers(&["--shards", "0..2@cpu,2..5@hip:0,5..8@cpu"], 1);
    // The draft and the ends of the target are on hip too.
    answers(&["--shards", "0..8@spawn:hip"], 2);
    answers(&["--shards", "0..4@spawn:hip,4..8@hip:0"], 2);
    answers(&["--shards", "0..3@spawn:hip,3..8@spawn:hip"], 3);
}

#[test]
fn models_of_every_shape_are_their_references() {
    for model in [
        "pair/target",
        "pair/draft",
        "tiny/llama3-gqa-untied-sharded",
        "tiny/qwen2-bias-tied",
        "tiny/qwen3-qknorm",
    ] {
        let stand_in = StandIn::new();
        let folder = workspace().join("models").join(model);
        let (output, reports) =
            stand_in.run(&["verify-model", folder.to_str().unwrap(), "--device", "hip"], &[]);
        let text = [output.stdout, output.stderr].concat();
        assert_eq!(output.status.code(), Some(0), "{model}: {}", String::from_utf8_lossy(&text));
        reports[0].is_clean(model);
    }
}

#[test]
fn doctor_names_the_device() {
    let (output, reports) = StandIn::new().run(&["doctor"], &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().any(|line| line.starts_with("hip ") && line.contains("hip:0 gfx1151")), "{text}");
    reports[0].is_clean("doctor");
}
