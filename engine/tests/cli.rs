//! The binary as its users meet it: exit codes, what goes where, and what is left behind.

#![allow(clippy::unwrap_used, reason = "what the tests share fails by panic")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use sha2::{Digest, Sha256};

const RECORD: bool = cfg!(feature = "record");
const TINY: &str = "models/tiny/qwen2-bias-tied";
const BIBLE_1: &str = "1 And it came to pass in those days, that";

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The binary, in the workspace's folder, with none of the variables that choose markers.
fn phasemark(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phasemark"));
    command.args(args).current_dir(workspace()).stdin(Stdio::null());
    for name in ["PHASEMARK", "DFLASH_DS4_ROCTX", "LUCE_DS4_ROCTX"] {
        command.env_remove(name);
    }
    command
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

fn run(args: &[&str]) -> Output {
    phasemark(args).output().unwrap()
}

fn succeeds(args: &[&str]) -> Output {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    output
}

/// What every refused command line owes: exit code 2, nothing on standard output, one error of four lines at most.
fn assert_refused(what: &str, output: &Output, expected: &str) {
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{what}: {error}");
    assert!(output.stdout.is_empty(), "{what}: {}", text(&output.stdout));
    assert!(error.starts_with("phasemark: ") && error.ends_with('\n'), "{what}: {error}");
    assert!(error.lines().count() <= 4, "{what}: {error}");
    assert!(error.contains(expected), "{what}: no {expected:?} in: {error}");
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

fn stats_of(args: &[&str]) -> (Value, Output) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stats.json");
    let output = succeeds(&[args, &["--threads", "1", "--stats", path.to_str().unwrap()]].concat());
    (serde_json::from_slice(&fs::read(&path).unwrap()).unwrap(), output)
}

fn counts(map: &Value) -> BTreeMap<String, u64> {
    map.as_object().unwrap().iter().map(|(name, count)| (name.clone(), count.as_u64().unwrap())).collect()
}

#[test]
fn bad_numbers_names_and_prompts_are_refused_before_anything_is_written() {
    let inputs = tempfile::tempdir().unwrap();
    let not_text = inputs.path().join("not-text");
    fs::write(&not_text, b"ok \xff").unwrap();
    let empty = inputs.path().join("empty");
    fs::write(&empty, b"").unwrap();
    let (not_text, empty) = (not_text.to_str().unwrap(), empty.to_str().unwrap());
    let folder = inputs.path().to_str().unwrap();
    let many = vec!["1"; 600].join(",");

    let table: &[(&[&str], &str)] = &[
        (&["--model", "models/no-such"], "models/no-such"),
        (&["--model", folder], "config.json"),
        (&["--draft", "models/no-such"], "models/no-such"),
        (&["--draft", ""], "--draft"),
        (&["--max-tokens", "0"], "0"),
        (&["--draft-tokens", "0"], "0"),
        (&["--draft-tokens", "many"], "nor is it auto"),
        (&["--draft-tokens", "-1"], "--draft-tokens"),
        (&["--temperature", "-1"], "the temperature is -1"),
        (&["--temperature", "hot"], "--temperature"),
        (&["--temperature", "NaN"], "the temperature is NaN"),
        (&["--top-k", "-1"], "--top-k"),
        (&["--top-p", "0"], "top-p is 0"),
        (&["--min-p", "1"], "min-p is 1"),
        (&["--repetition-penalty", "0"], "the repetition penalty is 0"),
        (&["--seed", "-1"], "--seed"),
        (&["--stop", ""], "--stop"),
        (&["--context-shift"], "--context-shift: this engine forgets no part"),
        (&["--chat", "Who?"], "no chat template"),
        (&["--chat", "Who?", "--prompt", "a"], "--chat"),
        (&["--system", "Short."], "--chat"),
        (&["--prefill-chunk", "0"], "0"),
        (&["--threads", "0"], "--threads"),
        (&["--threads", "1000000"], "--threads"),
        (&["--max-tokens", "-1"], "--max-tokens"),
        (&["--max-tokens", "99999999999999999999999"], "--max-tokens"),
        (&["--max-tokens", "18446744073709551615"], "512"),
        (&["--max-tokens", "600"], "512"),
        (&["--prompt-ids", &many], "600"),
        (&["--prompt-ids", "4096"], "4095"),
        (&["--prompt-ids", "1,-2"], "--prompt-ids"),
        (&["--prompt-ids", "4294967296"], "--prompt-ids"),
        (&["--prompt-ids", "1,,2"], "--prompt-ids"),
        (&["--prompt-ids", ""], "--prompt-ids"),
        (&["--prompt", ""], "empty"),
        (&["--prompt-file", empty], "empty"),
        (&["--prompt-file", not_text], "UTF-8"),
        (&["--prompt-file", folder], "cannot be read"),
        (&["--prompt-file", "no-such-file"], "no-such-file"),
        (&["--prompt", "a", "--prompt-ids", "1"], "--prompt-ids"),
        (&["--prompt", "a", "--prompt-file", "-"], "--prompt-file"),
        (&["--verify", "guess"], "guess"),
        (&["--prefill", "guess"], "guess"),
        (&["--detail", "guess"], "guess"),
        (&["--device", "abacus"], "cpu"),
        (&["--markers", "vtune"], "known are off, auto"),
        (&["--markers", ","], "''"),
        (&["--markers", "off,auto"], "'off' stands alone"),
        (&["--no-such-flag"], "--no-such-flag"),
        (&["a word too much"], "a word too much"),
    ];
    for (args, expected) in table {
        let outputs = tempfile::tempdir().unwrap();
        let stats = outputs.path().join("stats.json");
        let record = outputs.path().join("record.json");
        let mut args = [&["generate", "--stats", stats.to_str().unwrap()], *args].concat();
        if RECORD {
            args.extend(["--record", record.to_str().unwrap()]);
        }
        assert_refused(&format!("{args:?}"), &run(&args), expected);
        assert!(is_empty(outputs.path()), "{args:?}");
    }
}

#[test]
fn a_prompt_that_is_not_text_is_refused_from_standard_input_too() {
    let mut child = phasemark(&["generate", "--prompt-file", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"\xc3").unwrap();
    assert_refused("standard input", &child.wait_with_output().unwrap(), "standard input: it is not UTF-8");
}

#[test]
fn outputs_that_cannot_be_written_are_refused_and_the_others_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing/file.json");
    let (missing, a_folder) = (missing.to_str().unwrap(), folder.path().to_str().unwrap());
    let fine = folder.path().join("fine.json");
    fs::write(&fine, "as it was").unwrap();
    let fine = fine.to_str().unwrap();

    for bad in [missing, a_folder] {
        assert_refused(bad, &run(&["generate", "--stats", bad]), "cannot be written");
        if RECORD {
            assert_refused(bad, &run(&["generate", "--record", bad, "--stats", fine]), "cannot be written");
            assert_refused(bad, &run(&["generate", "--stats", bad, "--record", fine]), "cannot be written");
        }
    }
    if RECORD {
        assert_refused(
            "one for both",
            &run(&["generate", "--stats", fine, "--record", fine]),
            "would be written twice",
        );
    } else {
        assert_refused("no recorder", &run(&["generate", "--record", fine]), "not compiled in");
    }
    assert_eq!(fs::read_to_string(fine).unwrap(), "as it was");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// A copy of a small model to be damaged.
struct Damaged {
    folder: tempfile::TempDir,
}

impl Damaged {
    fn copy(model: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(workspace().join(model)).unwrap() {
            let entry = entry.unwrap();
            fs::write(folder.path().join(entry.file_name()), fs::read(entry.path()).unwrap()).unwrap();
        }
        Damaged { folder }
    }

    fn path(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn edit(&self, name: &str, edit: impl FnOnce(Vec<u8>) -> Vec<u8>) {
        let path = self.file(name);
        fs::write(&path, edit(fs::read(&path).unwrap())).unwrap();
    }

    fn edit_json(&self, name: &str, edit: impl FnOnce(&mut Value)) {
        self.edit(name, |bytes| {
            let mut value = serde_json::from_slice(&bytes).unwrap();
            edit(&mut value);
            serde_json::to_vec(&value).unwrap()
        });
    }

    /// Edits the JSON header of the weights and leaves the data as it is.
    fn edit_header(&self, edit: impl FnOnce(&mut Value)) {
        self.edit("model.safetensors", |bytes| {
            let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let mut header = serde_json::from_slice(&bytes[8..end]).unwrap();
            edit(&mut header);
            let header = serde_json::to_vec(&header).unwrap();
            [&(header.len() as u64).to_le_bytes()[..], &header, &bytes[end..]].concat()
        });
    }
}

#[test]
fn damaged_models_are_refused_before_anything_is_written() {
    const NORM: &str = "model.layers.1.input_layernorm.weight";
    const UP: &str = "model.layers.1.mlp.up_proj.weight";
    type Damage = fn(&Damaged);
    let table: &[(&str, Damage, &str)] = &[
        ("no weights", |model| fs::remove_file(model.file("model.safetensors")).unwrap(), "safetensors"),
        ("empty weights", |model| model.edit("model.safetensors", |_| Vec::new()), "model.safetensors"),
        (
            "truncated header",
            |model| model.edit("model.safetensors", |bytes| bytes[..100].to_vec()),
            "model.safetensors",
        ),
        (
            "truncated data",
            |model| model.edit("model.safetensors", |bytes| bytes[..bytes.len() / 2].to_vec()),
            "model.safetensors",
        ),
        (
            "oversized header",
            |model| {
                model.edit("model.safetensors", |mut bytes| {
                    bytes[..8].copy_from_slice(&(u64::MAX / 2).to_le_bytes());
                    bytes
                });
            },
            "model.safetensors",
        ),
        (
            "lying header",
            |model| model.edit_header(|header| header[NORM]["data_offsets"][1] = (1_u64 << 40).into()),
            "model.safetensors",
        ),
        (
            "header that is no JSON",
            |model| {
                model.edit("model.safetensors", |mut bytes| {
                    bytes[8] = b'!';
                    bytes
                });
            },
            "model.safetensors",
        ),
        (
            "missing tensor",
            |model| {
                model.edit_header(|header| {
                    let header = header.as_object_mut().unwrap();
                    let tensor = header.remove(NORM).unwrap();
                    header.insert("somewhere.else".into(), tensor);
                });
            },
            NORM,
        ),
        (
            "wrong shape",
            |model| {
                model.edit_header(|header| {
                    let shape = header[UP]["shape"].as_array_mut().unwrap();
                    shape.reverse();
                });
            },
            UP,
        ),
        ("wrong type", |model| model.edit_header(|header| header[UP]["dtype"] = "I16".into()), UP),
        (
            "unknown architecture",
            |model| {
                model.edit_json("config.json", |config| {
                    config["architectures"] = serde_json::json!(["AbacusForCausalLM"]);
                    config["model_type"] = "abacus".into();
                });
            },
            "AbacusForCausalLM",
        ),
        ("no configuration", |model| fs::remove_file(model.file("config.json")).unwrap(), "config.json"),
        (
            "configuration that is no JSON",
            |model| model.edit("config.json", |_| b"{".to_vec()),
            "config.json",
        ),
        ("no tokenizer", |model| fs::remove_file(model.file("tokenizer.json")).unwrap(), "tokenizer.json"),
        (
            "tokenizer that is none",
            |model| model.edit("tokenizer.json", |_| b"{}".to_vec()),
            "tokenizer.json",
        ),
    ];
    for (what, damage, expected) in table {
        let model = Damaged::copy(TINY);
        damage(&model);
        let outputs = tempfile::tempdir().unwrap();
        let stats = outputs.path().join("stats.json");
        let output = run(&["generate", "--model", model.path(), "--stats", stats.to_str().unwrap()]);
        assert_refused(what, &output, expected);
        assert!(is_empty(outputs.path()), "{what}");
        let output = run(&["verify-model", model.path()]);
        assert_refused(what, &output, expected);
    }
}

#[test]
fn a_draft_that_speaks_of_other_tokens_is_refused() {
    let words = Damaged::copy("models/pair/draft");
    words.edit_json("tokenizer.json", |tokenizer| {
        let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
        let swapped: Vec<_> =
            vocab.iter().map(|(word, id)| (word.clone(), id.clone())).rev().take(2).collect();
        vocab[&swapped[0].0] = swapped[1].1.clone();
        vocab[&swapped[1].0] = swapped[0].1.clone();
    });
    assert_refused("words", &run(&["generate", "--draft", words.path()]), "tokenizer");

    let smaller = Damaged::copy("models/pair/draft");
    smaller.edit_json("config.json", |config| config["vocab_size"] = 4000.into());
    smaller.edit_header(|header| {
        let tensor = &mut header["model.embed_tokens.weight"];
        tensor["shape"][0] = 4000.into();
    });
    assert_refused("vocabulary", &run(&["generate", "--draft", smaller.path()]), "");
}

#[test]
fn a_question_goes_through_the_models_own_template() {
    let talking = Damaged::copy("models/pair/target");
    let template = |text: &str| {
        talking.edit_json("tokenizer_config.json", |config| config["chat_template"] = text.into());
    };
    template(
        "{% for m in messages %}<{{ m.role }}> {{ m.content }}<|pad|>\n{% endfor %}{% if add_generation_prompt %}<answer>{% endif %}",
    );
    let ids = |args: &[&str]| {
        let args =
            [&["generate", "--model", talking.path(), "--max-tokens", "8", "--print-ids"], args].concat();
        succeeds(&args).stdout
    };
    assert_eq!(ids(&["--chat", "Who?"]), ids(&["--prompt", "<user> Who?<|pad|>\n<answer>"]));
    assert_eq!(
        ids(&["--chat", "Who?", "--system", "Short."]),
        ids(&["--prompt", "<system> Short.<|pad|>\n<user> Who?<|pad|>\n<answer>"])
    );

    // A file of its own goes before the configuration.
    fs::write(talking.file("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    assert_eq!(ids(&["--chat", BIBLE_1]), ids(&["--prompt", BIBLE_1]));

    for (template, expected) in [
        ("{% for %}", "the model's chat template fails (syntax error"),
        ("{{ nothing() }}", "nothing"),
        ("{{ raise_exception('No questions!') }}", "refuses these messages: No questions!"),
        ("", "the prompt is empty"),
    ] {
        fs::write(talking.file("chat_template.jinja"), template).unwrap();
        let output = run(&["generate", "--model", talking.path(), "--chat", "Who?"]);
        assert_refused(template, &output, expected);
    }
}

#[test]
fn a_stop_string_ends_the_text_and_is_not_printed() {
    let args = ["generate", "--prompt", BIBLE_1, "--max-tokens", "48"];
    let whole = succeeds(&args).stdout;
    let whole = text(&whole);
    // From the middle of a word to the middle of another, over several tokens.
    let (begin, end) = (whole.len() / 2 - 3, whole.len() / 2 + 3);
    let stop = &whole[begin..end];
    let (stats, output) = stats_of(&[&args[..], &["--stop", "never comes", "--stop", stop]].concat());
    assert_eq!(text(&output.stdout), &whole[..whole.find(stop).unwrap()]);
    assert!(stats["completion_tokens"].as_u64().unwrap() < 48);
    assert_eq!(succeeds(&[&args[..], &["--stop", "never comes"]].concat()).stdout, whole.as_bytes());
}

#[test]
fn a_seed_repeats_a_run_and_drafting_by_look_up_or_auto_changes_no_greedy_token() {
    let out = |more: &[&str]| {
        let args = ["generate", "--prompt", BIBLE_1, "--max-tokens", "24", "--print-ids", "--threads", "1"];
        succeeds(&[&args[..], more].concat())
    };
    let greedy = out(&[]).stdout;
    for same in [
        &["--draft", "ngram"][..],
        &["--draft", "ngram", "--draft-tokens", "3"],
        &["--draft-tokens", "auto"],
        &["--temperature", "0"],
        &["--temperature", "0.8", "--top-k", "1"],
        &["--seed", "7", "--temperature", "0"],
    ] {
        assert_eq!(out(same).stdout, greedy, "{same:?}");
    }
    let seeded = out(&["--seed", "7"]);
    assert!(text(&seeded.stderr).contains("seed 7"));
    assert_ne!(seeded.stdout, greedy);
    assert_eq!(out(&["--seed", "7", "--temperature", "1"]).stdout, seeded.stdout);
    assert_ne!(out(&["--seed", "8"]).stdout, seeded.stdout);
    // Without a seed one is chosen and told, and it repeats the run.
    let chosen = out(&["--temperature", "1"]);
    let seed = text(&chosen.stderr).lines().find_map(|line| line.strip_prefix("seed ")).unwrap();
    assert_eq!(out(&["--seed", seed]).stdout, chosen.stdout);
}

#[test]
fn no_arguments_print_text_and_then_a_table_of_phases() {
    // From another folder too, where the models are found beside the workspace.
    let elsewhere = tempfile::tempdir().unwrap();
    let output = phasemark(&[]).current_dir(elsewhere.path()).output().unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    assert!(stdout.split_whitespace().count() > 5, "{stdout}");
    assert!(stderr.contains("tokens/s") && stderr.contains("tokens per target pass"), "{stderr}");
    for phase in ["ds4.prefill dense", "ds4.spec_decode batched", "ds4.layer_range verify"] {
        assert_eq!(stderr.contains(phase), RECORD, "{phase}: {stderr}");
    }
    assert!(is_empty(elsewhere.path()), "a table needs no file");
}

#[test]
fn stats_have_these_keys_and_say_what_happened() {
    let (stats, output) = stats_of(&["generate", "--max-tokens", "20"]);
    let keys: Vec<_> = stats.as_object().unwrap().keys().map(String::as_str).collect();
    let mut expected = [
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "drafted",
        "accepted",
        "acceptance_rate",
        "target_passes",
        "adapts",
        "tokens_per_target_pass",
        "text_sha256",
        "phases",
        "markers",
        "seconds",
        "tokens_per_second",
    ];
    expected.sort_unstable();
    assert_eq!(keys, expected);
    let count = |key: &str| stats[key].as_u64().unwrap();
    assert_eq!(count("completion_tokens"), 20);
    assert_eq!(count("total_tokens"), count("prompt_tokens") + 20);
    assert!(count("accepted") <= count("drafted") && count("drafted") > 0);
    assert_eq!(count("accepted") + count("target_passes"), 19, "a pass emits what it accepted and one more");
    assert_eq!(stats["acceptance_rate"], count("accepted") as f64 / count("drafted") as f64);
    assert_eq!(stats["adapts"], false);
    assert_eq!(stats["tokens_per_target_pass"], 19.0 / count("target_passes") as f64);
    for phase in ["load", "prefill", "decode"] {
        assert!(stats["seconds"][phase].as_f64().unwrap() > 0.0);
    }
    assert!(stats["tokens_per_second"].as_f64().unwrap() > 0.0);
    let mut sha256 = String::new();
    for byte in Sha256::digest(&output.stdout) {
        write!(sha256, "{byte:02x}").unwrap();
    }
    assert_eq!(stats["text_sha256"], sha256, "standard output holds the text and nothing else");
    assert_eq!(stats["phases"], serde_json::json!({}), "markers are off");
    assert_eq!(stats["markers"], serde_json::json!({}));

    let (stats, _) = stats_of(&["generate", "--max-tokens", "1"]);
    for key in ["acceptance_rate", "tokens_per_target_pass", "tokens_per_second"] {
        assert!(stats[key].is_null(), "{key}: nothing was drafted and no pass followed the prefill");
    }
}

#[test]
fn ids_are_printed_as_one_json_array_that_is_the_text() {
    let args = ["generate", "--prompt", BIBLE_1, "--max-tokens", "12"];
    let ids = succeeds(&[&args[..], &["--print-ids"]].concat());
    let ids: Vec<u32> = serde_json::from_slice(&ids.stdout).unwrap();
    assert_eq!(ids.len(), 12);

    // The prompt's own ids give the same, and so does the prompt from a pipe.
    let reference: Value =
        serde_json::from_slice(&fs::read(workspace().join("models/pair/reference.json")).unwrap()).unwrap();
    let prompt = reference["prompts"].as_array().unwrap().iter().find(|p| p["text"] == BIBLE_1).unwrap();
    let prompt: Vec<_> = prompt["prompt_ids"].as_array().unwrap().iter().map(Value::to_string).collect();
    let by_ids =
        succeeds(&["generate", "--prompt-ids", &prompt.join(","), "--max-tokens", "12", "--print-ids"]);
    assert_eq!(serde_json::from_slice::<Vec<u32>>(&by_ids.stdout).unwrap(), ids);

    let mut piped = phasemark(&["generate", "--prompt-file", "-", "--max-tokens", "12", "--print-ids"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    piped.stdin.take().unwrap().write_all(BIBLE_1.as_bytes()).unwrap();
    let piped = piped.wait_with_output().unwrap();
    assert_eq!(serde_json::from_slice::<Vec<u32>>(&piped.stdout).unwrap(), ids);
}

#[test]
fn markers_change_no_token_and_their_counts_are_those_of_the_vocabulary() {
    let request = ["generate", "--prompt", BIBLE_1, "--prefill", "exact"];
    let (speculative_off, _) = stats_of(&request);
    let (target_off, _) = stats_of(&[&request[..], &["--draft", "none"]].concat());
    assert_eq!(speculative_off["text_sha256"], target_off["text_sha256"]);
    if !RECORD {
        return;
    }
    let on = |more: &[&str]| stats_of(&[&request[..], &["--markers", "record"], more].concat()).0;

    let speculative = on(&[]);
    let passes = speculative["target_passes"].as_u64().unwrap();
    let expected = [
        ("ds4.prefill exact", 1),
        ("ds4.layer_range exact", 11),
        ("ds4.spec_decode batched", 1),
        ("ds4.layer_range verify", passes),
    ];
    assert_eq!(counts(&speculative["phases"]), expected.map(|(name, count)| (name.to_owned(), count)).into());
    assert_eq!(counts(&speculative["markers"]["record"]), emitted(1 + 11 + 1 + passes));

    let target = on(&["--draft", "none"]);
    let completion = target["completion_tokens"].as_u64().unwrap();
    let expected =
        [("ds4.prefill exact", 1), ("ds4.layer_range exact", 11), ("ds4.layer_range decode", completion - 1)];
    assert_eq!(counts(&target["phases"]), expected.map(|(name, count)| (name.to_owned(), count)).into());
    assert_eq!(counts(&target["markers"]["record"]), emitted(1 + 11 + completion - 1));

    for verify in ["sequential", "reference_exact"] {
        let one_row = on(&["--verify", verify]);
        let phases = counts(&one_row["phases"]);
        assert_eq!(phases["ds4.layer_range verify"], completion - 1);
        assert_eq!(phases[&format!("ds4.spec_decode {verify}")], 1);
        assert_eq!(one_row["text_sha256"], target_off["text_sha256"]);
    }

    let chunked = on(&["--prefill-chunk", "4"]);
    assert_eq!(counts(&chunked["phases"])["ds4.layer_range exact"], 3, "11 tokens in chunks of 4");

    for stats in [&speculative, &target, &chunked, &on(&["--detail", "full"])] {
        for key in ["text_sha256", "completion_tokens"] {
            assert_eq!(stats[key], speculative_off[key]);
        }
    }
    for key in ["drafted", "accepted", "target_passes"] {
        assert_eq!(speculative[key], speculative_off[key]);
    }
}

fn emitted(ranges: u64) -> BTreeMap<String, u64> {
    let counts = [("pushed", ranges), ("popped", ranges), ("failed", 0), ("dropped", 0)];
    counts.map(|(name, count)| (name.to_owned(), count)).into()
}

#[test]
fn the_environment_chooses_when_no_flag_does_and_a_wrong_name_in_it_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stats.json");
    let markers = |environment: &[(&str, &str)], flags: &[&str]| {
        let args = [&["generate", "--max-tokens", "2", "--stats", path.to_str().unwrap()], flags].concat();
        let output = phasemark(&args).envs(environment.iter().copied()).output().unwrap();
        let stderr = text(&output.stderr).to_owned();
        assert!(output.status.success(), "{stderr}");
        let stats: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let names: Vec<_> = stats["markers"].as_object().unwrap().keys().cloned().collect();
        (names, stderr)
    };
    let (names, stderr) = markers(&[("PHASEMARK", "vtune")], &[]);
    assert!(names.is_empty());
    assert_eq!(stderr.matches("vtune").count(), 1, "{stderr}");
    if RECORD {
        assert_eq!(markers(&[("PHASEMARK", "record")], &[]).0, ["record"]);
        assert_eq!(markers(&[("PHASEMARK", "Record")], &[]).0, ["record"]);
        assert_eq!(markers(&[("PHASEMARK", "off")], &["--markers", "record"]).0, ["record"]);
        assert!(markers(&[("PHASEMARK", "record")], &["--markers", "off"]).0.is_empty());
        let record = folder.path().join("record.json");
        assert_eq!(markers(&[], &["--record", record.to_str().unwrap()]).0, ["record"]);
        let trace: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
        let rows = trace["traceEvents"].as_array().unwrap();
        let named = |name: &str| {
            rows.iter().filter(|row| row["name"].as_str().unwrap_or("").starts_with(name)).count()
        };
        assert_eq!((named("ds4.prefill"), named("ds4.spec_decode")), (1, 1));
    }
}

#[test]
fn a_closed_standard_output_ends_quietly() {
    for flags in [&[][..], &["--print-ids"]] {
        let args = [&["generate", "--max-tokens", "100", "--ignore-eos"], flags].concat();
        let mut child = phasemark(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{stderr}");
        assert!(!stderr.contains("phasemark:") && !stderr.contains("panicked"), "{stderr}");
    }
}

#[cfg(target_os = "linux")]
#[test]
#[cfg(unix)]
fn a_named_pipe_is_opened_once_so_that_its_reader_gets_all() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("stats");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = {
        let pipe = pipe.clone();
        std::thread::spawn(move || fs::read(pipe).unwrap())
    };
    succeeds(&["generate", "--max-tokens", "2", "--stats", pipe.to_str().unwrap()]);
    let stats: Value = serde_json::from_slice(&reader.join().unwrap()).unwrap();
    assert_eq!(stats["completion_tokens"], 2);
}

#[test]
fn a_full_disk_under_standard_output_is_an_error() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = phasemark(&["generate", "--max-tokens", "4"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("standard output cannot be written"), "{}", text(&output.stderr));
}

#[test]
fn verify_model_passes_on_the_shipped_models_and_fails_on_a_changed_one() {
    for model in [
        "models/pair/target",
        "models/pair/draft",
        "models/tiny/llama3-gqa-untied-sharded",
        "models/tiny/qwen2-bias-tied",
        "models/tiny/qwen3-qknorm",
    ] {
        let output = succeeds(&["verify-model", model, "--threads", "1"]);
        assert!(output.stdout.is_empty());
        assert!(text(&output.stderr).ends_with("ok\n"), "{model}: {}", text(&output.stderr));
    }

    // A norm that is a little off moves logits, not necessarily ids.
    let changed = Damaged::copy(TINY);
    changed.edit_json("config.json", |config| config["rms_norm_eps"] = 0.01.into());
    let output = run(&["verify-model", changed.path()]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("differs: "));

    let other = run(&["verify-model", TINY, "--reference", "models/tiny/qwen3-qknorm/reference.json"]);
    assert_eq!(other.status.code(), Some(1));

    let output = run(&["verify-model", TINY, "--reference", "no-such-file"]);
    assert_refused("reference", &output, "no-such-file");
    let output = run(&["verify-model", TINY, "--reference", "models/pair/target/config.json"]);
    assert_refused("reference", &output, "reference");
}

#[test]
fn doctor_says_what_would_run() {
    let output = succeeds(&["doctor"]);
    let report = text(&output.stdout);
    assert!(report.contains(if RECORD { "record" } else { "null" }), "{report}");
    assert!(report.contains("nothing is set") && report.contains("cpu"), "{report}");
    assert!(report.contains("Llama, 8 layers") && report.contains("Llama, 2 layers"), "{report}");

    let output = phasemark(&["doctor"]).env("PHASEMARK", "vtune").output().unwrap();
    assert!(output.status.success());
    assert!(text(&output.stdout).contains("off (by PHASEMARK=vtune"), "{}", text(&output.stdout));
}
