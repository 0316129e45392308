//! `phasemark verify-model`: a model against what another implementation computed from the same weights.
//!
//! Ids are checked along the reference: the model is fed the reference's ids, and at each step its own choice
//! must be the reference's next. So one difference does not hide the steps behind it.

use std::cmp::Ordering;
use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use marker_core::Phase;

use super::args::VerifyModelArgs;
use super::error::CliError;
use super::{choose, stats};
use crate::device::{Answer, Input, Pass, Path as Kernels, Shard, Want};
use crate::load;
use crate::model::{Checkpoint, Tokenizer};

/// How far a logit may be from its value, and how close two must be to trade places, under another order of the
/// same additions.
const TOLERANCE: f32 = 0.001;
/// The same behind a dense prefill whose matrix units take bf16: twice the largest difference seen on an H200, which
/// is 0.052 over the shipped models (docs/measurements.md).
const TOLERANCE_DENSE: f32 = 0.1;
/// The same for GGUF, whose reference may come from other arithmetic on quantised weights.
const TOLERANCE_GGUF: f32 = 0.05;
/// Differences that are shown.
const SHOWN: usize = 8;

/// A reference file: of a pair, of one model, or of one chat model. The three differ in names only.
#[derive(Deserialize)]
struct Reference {
    #[serde(default)]
    meta: Meta,
    prompts: Vec<Prompt>,
    #[serde(default)]
    tokenizer_cases: Vec<TokenizerCase>,
}

#[derive(Deserialize, Default)]
struct Meta {
    draft_sha256: Option<String>,
}

#[derive(Deserialize)]
#[allow(clippy::struct_field_names, reason = "the file's own names")]
struct Prompt {
    name: Option<String>,
    /// A chat question; `prompt_ids` is then the whole chat and `text` the answer.
    question: Option<String>,
    text: Option<String>,
    prompt_ids: Vec<u32>,
    #[serde(alias = "target_greedy_ids")]
    greedy_ids: Vec<u32>,
    target_text: Option<String>,
    /// Top-1 to top-2 logit at each new token.
    #[serde(alias = "target_margins")]
    margins: Option<Vec<f32>>,
    /// The smallest of them.
    min_margin: Option<f32>,
    #[serde(alias = "target_top5")]
    top5: Vec<Top>,
    /// The draft's own continuation, and its top logits along the target's.
    draft_greedy_ids: Option<Vec<u32>>,
    #[serde(default)]
    draft_top5: Vec<Top>,
}

/// The top logits of one step.
#[derive(Deserialize, Clone)]
struct Top {
    /// The position whose logits these are, in the prompt with the greedy ids behind it. Without it the first
    /// entry is of the first step, and so on.
    pos: Option<usize>,
    ids: Vec<u32>,
    logits: Vec<f32>,
}

#[derive(Deserialize)]
struct TokenizerCase {
    text: String,
    ids: Vec<u32>,
}

/// What was compared, and where it differed.
#[derive(Default)]
struct Verdict {
    ids: usize,
    near_ties: usize,
    logits: usize,
    worst: f32,
    /// Of a dense prefill that is not exact; `None` where it is.
    worst_dense: Option<f32>,
    texts: usize,
    differences: Vec<String>,
}

/// Compares and says what it saw; the exit code is 1 when something differs.
pub(super) fn run(args: &VerifyModelArgs) -> Result<ExitCode, CliError> {
    let device = choose::device(&args.device, choose::threads(args.threads)?)?;
    let dir = choose::present(args.dir.clone())?;
    let path = reference_path(&dir, args.reference.as_deref());
    let reference = read(&path)?;
    let checkpoint = Checkpoint::open(&dir)?;
    let tokenizer = Tokenizer::open(&dir)?;
    let as_draft = is_draft(&dir, &reference.meta)?;
    let tolerance = if checkpoint.is_gguf() { TOLERANCE_GGUF } else { TOLERANCE };

    let vocab = checkpoint.config().vocab;
    let prompts =
        reference.prompts.iter().map(|prompt| prompt.steps(as_draft)).collect::<Result<Vec<_>, _>>();
    let prompts = prompts
        .and_then(|prompts| check_ids(prompts.concat(), vocab))
        .map_err(|why| CliError::BadReference { path: path.clone(), why })?;
    let longest =
        prompts.iter().map(|steps| steps.prompt.len() + steps.continuation.len()).max().unwrap_or(0);
    let mut shard = load::whole(&checkpoint, &*device, longest.max(1))?;

    let mut verdict = Verdict::default();
    for steps in &prompts {
        for prefill in [Kernels::Dense, Kernels::Decode] {
            let logits = logits(&mut *shard, steps, prefill)?;
            if prefill == Kernels::Dense && !device.dense_is_exact() {
                let worst = std::mem::take(&mut verdict.worst);
                verdict.compare(steps, &logits, vocab, TOLERANCE_DENSE, 2.0 * TOLERANCE_DENSE);
                let dense = std::mem::replace(&mut verdict.worst, worst);
                verdict.worst_dense = Some(verdict.worst_dense.unwrap_or(0.0).max(dense));
            } else {
                verdict.compare(steps, &logits, vocab, tolerance, tolerance);
            }
        }
    }
    for prompt in &reference.prompts {
        verdict.compare_texts(prompt, &tokenizer, as_draft)?;
    }
    for TokenizerCase { text, ids } in &reference.tokenizer_cases {
        verdict.compare_ids(text, &tokenizer.encode(text)?, ids);
    }

    let _ = std::io::stderr().lock().write_all(
        verdict.report(&dir, &path, if as_draft { " (as the draft)" } else { "" }, prompts.len()).as_bytes(),
    );
    Ok(if verdict.differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The file that was named, else the one in the folder, else the one beside the folder.
fn reference_path(dir: &Path, named: Option<&Path>) -> PathBuf {
    let name = "reference.json";
    match named {
        Some(named) => named.to_owned(),
        // Of a relative folder without a name of its own, such as `.`, the parent is not in its path.
        None => [
            dir.join(name),
            dir.parent()
                .filter(|up| !up.as_os_str().is_empty())
                .map_or_else(|| dir.join("..").join(name), |up| up.join(name)),
        ]
        .into_iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| dir.join(name)),
    }
}

fn read(path: &Path) -> Result<Reference, CliError> {
    let bytes = std::fs::read(path).map_err(|why| CliError::Unreadable { path: path.to_owned(), why })?;
    let bad = |why: String| CliError::BadReference { path: path.to_owned(), why };
    let reference: Reference = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
    if reference.prompts.is_empty() {
        return Err(bad("it has no prompts".into()));
    }
    Ok(reference)
}

/// Whether the folder holds the very draft that the reference was made with.
fn is_draft(dir: &Path, meta: &Meta) -> Result<bool, CliError> {
    let Some(sha256) = &meta.draft_sha256 else { return Ok(false) };
    let path = dir.join("model.safetensors");
    match std::fs::read(&path) {
        Ok(bytes) => Ok(stats::hex(&Sha256::digest(bytes)) == *sha256),
        // A GGUF file is no folder.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(why) => Err(CliError::Unreadable { path, why }),
    }
}

/// One prompt with a continuation, and what is known of the steps along it.
#[derive(Clone)]
struct Steps {
    name: String,
    prompt: Vec<u32>,
    continuation: Vec<u32>,
    /// Whether each id of the continuation is the model's own choice.
    own: bool,
    margins: Option<Vec<f32>>,
    min_margin: Option<f32>,
    /// By step.
    top: Vec<(usize, Top)>,
}

impl Prompt {
    fn name(&self) -> String {
        let text = self.name.as_ref().or(self.question.as_ref()).or(self.text.as_ref());
        text.map_or_else(|| "a prompt".into(), |text| text.chars().take(40).collect())
    }

    /// What to check. The draft's own ids and the draft's logits lie along two different continuations.
    fn steps(&self, as_draft: bool) -> Result<Vec<Steps>, String> {
        let name = self.name();
        let last = self.prompt_ids.len().checked_sub(1).ok_or_else(|| format!("{name} has no prompt ids"))?;
        let by_step = |top: &[Top]| {
            let step = |(at, top): (usize, &Top)| match top.pos {
                None => Some((at, top.clone())),
                Some(pos) => Some((pos.checked_sub(last)?, top.clone())),
            };
            top.iter().enumerate().map(step).collect::<Option<Vec<_>>>()
        };
        let steps = |continuation: &Vec<u32>, own, top: &[Top]| {
            let top = by_step(top).ok_or_else(|| format!("{name} lists logits inside the prompt"))?;
            let length = continuation.len();
            let short = top.iter().any(|(step, top)| *step >= length || top.ids.len() != top.logits.len())
                || self.margins.as_ref().is_some_and(|margins| !as_draft && margins.len() != length);
            if length == 0 || short {
                return Err(format!("the lists of {name} do not match in length"));
            }
            Ok(Steps {
                name: name.clone(),
                prompt: self.prompt_ids.clone(),
                continuation: continuation.clone(),
                own,
                margins: self.margins.clone().filter(|_| !as_draft),
                min_margin: self.min_margin.filter(|_| !as_draft),
                top,
            })
        };
        if as_draft {
            let own =
                self.draft_greedy_ids.as_ref().ok_or_else(|| format!("{name} has no ids of the draft"))?;
            Ok(vec![steps(own, true, &[])?, steps(&self.greedy_ids, false, &self.draft_top5)?])
        } else {
            Ok(vec![steps(&self.greedy_ids, true, &self.top5)?])
        }
    }
}

fn check_ids(prompts: Vec<Steps>, vocab: usize) -> Result<Vec<Steps>, String> {
    for steps in &prompts {
        let listed = steps.top.iter().flat_map(|(_, top)| &top.ids);
        if let Some(id) =
            steps.prompt.iter().chain(&steps.continuation).chain(listed).find(|id| **id as usize >= vocab)
        {
            return Err(format!("{} has the id {id}, and the model {vocab} tokens", steps.name));
        }
    }
    Ok(prompts)
}

/// Logits `[continuation, vocab]`: of the step that chose each id of the continuation. The prompt goes through
/// the kernels `prefill`, the rest through those of decode.
fn logits(shard: &mut dyn Shard, steps: &Steps, prefill: Kernels) -> Result<Vec<f32>, CliError> {
    shard.roll_back(0)?;
    let rows = steps.prompt.len();
    let mut answer = Answer::default();
    let pass = |input, start, path, want| Pass {
        input: Input::Tokens(input),
        start,
        phase: Phase::Unspecified,
        path,
        want,
    };
    shard.forward(&pass(&steps.prompt, 0, prefill, Want::Logits(rows - 1..rows)), &mut answer)?;
    let mut logits = std::mem::take(&mut answer.logits);
    let fed = &steps.continuation[..steps.continuation.len() - 1];
    if !fed.is_empty() {
        shard.forward(&pass(fed, rows, Kernels::Decode, Want::Logits(0..fed.len())), &mut answer)?;
        logits.append(&mut answer.logits);
    }
    Ok(logits)
}

impl Verdict {
    fn compare(&mut self, steps: &Steps, logits: &[f32], vocab: usize, tolerance: f32, near: f32) {
        let name = &steps.name;
        for (step, (row, &id)) in logits.chunks_exact(vocab).zip(&steps.continuation).enumerate() {
            if steps.own {
                self.ids += 1;
                let margin = steps.margins.as_ref().map(|margins| margins[step]).or(steps.min_margin);
                match own_choice(row, id, margin, near) {
                    Choice::Same => {}
                    Choice::NearTie => self.near_ties += 1,
                    // Logits that may be off may also be further apart.
                    Choice::NotTied(_) if near > tolerance => self.near_ties += 1,
                    Choice::Other(other) => {
                        self.differs(format!("{name}, step {step}: id {other} instead of {id}"));
                    }
                    Choice::NotTied(gap) => self.differs(format!(
                        "{name}, step {step}: the two top logits are {gap} apart where the reference is within {tolerance}"
                    )),
                }
            }
        }
        for (step, top) in &steps.top {
            let row = &logits[step * vocab..][..vocab];
            for (&id, &expected) in top.ids.iter().zip(&top.logits) {
                let got = row[id as usize];
                let off = (got - expected).abs();
                self.logits += 1;
                self.worst = self.worst.max(off);
                // A logit that is not a number is not within anything.
                if off.partial_cmp(&tolerance).is_none_or(Ordering::is_gt) {
                    self.differs(format!(
                        "{name}, step {step}: the logit of id {id} is {got} instead of {expected}"
                    ));
                }
            }
        }
    }

    fn compare_texts(
        &mut self,
        prompt: &Prompt,
        tokenizer: &Tokenizer,
        as_draft: bool,
    ) -> Result<(), CliError> {
        let answer =
            if prompt.question.is_some() { prompt.text.as_ref() } else { prompt.target_text.as_ref() };
        if let (None, Some(text)) = (&prompt.question, &prompt.text) {
            self.compare_ids(text, &tokenizer.encode(text)?, &prompt.prompt_ids);
        }
        if let (Some(text), false) = (answer, as_draft) {
            let got = tokenizer.decode(&prompt.greedy_ids)?;
            self.texts += 1;
            if got != *text {
                self.differs(format!("{}: its ids read {got:?} instead of {text:?}", prompt.name()));
            }
        }
        Ok(())
    }

    fn compare_ids(&mut self, text: &str, got: &[u32], expected: &[u32]) {
        self.texts += 1;
        if got != expected {
            self.differs(format!("the text {text:?} has the ids {got:?} instead of {expected:?}"));
        }
    }

    fn differs(&mut self, how: String) {
        self.differences.push(how);
    }

    fn report(&self, dir: &Path, reference: &Path, role: &str, prompts: usize) -> String {
        let mut report = format!("{}{role} against {}\n", dir.display(), reference.display());
        let _ = writeln!(report, "  {:<18}{prompts}, each by dense and by exact prefill", "continuations");
        let _ = writeln!(report, "  {:<18}{} ({} at near ties)", "greedy ids", self.ids, self.near_ties);
        let _ =
            writeln!(report, "  {:<18}{} (worst difference {:.6})", "top logits", self.logits, self.worst);
        if let Some(worst) = self.worst_dense {
            let _ = writeln!(report, "  {:<18}worst difference {worst:.6}, in bf16", "by dense prefill");
        }
        let _ = writeln!(report, "  {:<18}{}", "texts and ids", self.texts);
        for difference in self.differences.iter().take(SHOWN) {
            let _ = writeln!(report, "differs: {difference}");
        }
        match self.differences.len() {
            0 => report.push_str("ok\n"),
            all => {
                let _ = writeln!(report, "{all} differences");
            }
        }
        report
    }
}

/// What the model chose at a step where the reference chose an id.
#[derive(Debug, PartialEq)]
enum Choice {
    Same,
    /// The reference hardly had a choice, nor has the model.
    NearTie,
    /// Another id.
    Other(u32),
    /// The reference hardly had a choice, and the model has one: by this much.
    NotTied(f32),
}

/// Judges the logits `[vocab]` of a step. Without a `margin` of the reference's the model's own tells.
fn own_choice(row: &[f32], id: u32, margin: Option<f32>, near: f32) -> Choice {
    // The lowest id wins a tie, so a later one must be larger.
    let top_of = |skip: Option<usize>| {
        let others = row.iter().copied().enumerate().filter(|(at, _)| Some(*at) != skip);
        others.fold((0, f32::NEG_INFINITY), |top, one| if one.1 > top.1 { one } else { top })
    };
    let (first, highest) = top_of(None);
    let (second, next) = top_of(Some(first));
    let gap = highest - next;
    let tied = gap <= near;
    let among_two = id as usize == first || id as usize == second;
    match margin {
        Some(margin) if margin < near && among_two && tied => Choice::NearTie,
        None if tied && id as usize == second => Choice::NearTie,
        _ if id as usize != first || !highest.is_finite() => Choice::Other(first as u32),
        Some(margin) if margin < near => Choice::NotTied(gap),
        _ => Choice::Same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_must_be_the_references_unless_it_hardly_had_one() {
        let apart = [0.0, 2.0, 1.0];
        let tied = [0.0, 2.0, 1.9995];
        assert_eq!(own_choice(&apart, 1, Some(1.0), TOLERANCE), Choice::Same);
        assert_eq!(own_choice(&apart, 2, Some(1.0), TOLERANCE), Choice::Other(1));
        assert_eq!(own_choice(&apart, 2, None, TOLERANCE), Choice::Other(1));
        assert_eq!(
            own_choice(&tied, 2, Some(0.0015), TOLERANCE),
            Choice::Other(1),
            "the reference had a choice"
        );
        assert_eq!(own_choice(&tied, 2, Some(0.0005), TOLERANCE), Choice::NearTie);
        assert_eq!(own_choice(&tied, 1, Some(0.0005), TOLERANCE), Choice::NearTie);
        assert_eq!(
            own_choice(&tied, 0, Some(0.0005), TOLERANCE),
            Choice::Other(1),
            "the third is not among the two"
        );
        assert_eq!(own_choice(&apart, 1, Some(0.0005), TOLERANCE), Choice::NotTied(1.0));
        assert_eq!(own_choice(&tied, 2, None, TOLERANCE), Choice::NearTie);
        assert_eq!(own_choice(&[f32::NAN; 3], 0, Some(1.0), TOLERANCE), Choice::Other(0));
    }

    #[test]
    fn the_three_forms_of_a_reference_are_read() {
        let pair = r#"{"meta": {"draft_sha256": "00"}, "prompts": [{"name": "p", "text": "x", "prompt_ids": [5, 6],
            "target_greedy_ids": [7, 8], "target_text": "y", "target_margins": [0.5, 0.25], "nocache_equal": true,
            "target_top5": [{"pos": 2, "ids": [8], "logits": [1.5]}], "draft_greedy_ids": [9, 9],
            "draft_top5": [{"pos": 1, "ids": [9], "logits": [2.5]}]}],
            "tokenizer_cases": [{"text": "x", "ids": [5, 6]}]}"#;
        let tiny = r#"{"prompts": [{"text": "x", "prompt_ids": [5], "greedy_ids": [7], "min_margin": 0.5,
            "top5": [{"ids": [7], "logits": [1.5]}]}]}"#;
        let chat = r#"{"prompts": [{"question": "q", "prompt_ids": [5], "greedy_ids": [7], "text": "y",
            "margins": [0.5], "top5": [{"ids": [7], "logits": [1.5]}]}]}"#;
        let read = |text| serde_json::from_str::<Reference>(text).unwrap();

        let pair = read(pair);
        assert_eq!(pair.tokenizer_cases.len(), 1);
        let [target] = &pair.prompts[0].steps(false).unwrap()[..] else { panic!() };
        assert_eq!((target.top[0].0, target.top[0].1.ids[0]), (1, 8), "position 2 is the second step");
        let [own, along] = &pair.prompts[0].steps(true).unwrap()[..] else { panic!() };
        assert_eq!((&own.continuation[..], own.own, own.top.len()), (&[9, 9][..], true, 0));
        assert_eq!((&along.continuation[..], along.own, along.top[0].0), (&[7, 8][..], false, 0));

        for text in [tiny, chat] {
            let [steps] = &read(text).prompts[0].steps(false).unwrap()[..] else { panic!() };
            assert_eq!((&steps.continuation[..], steps.top[0].0), (&[7][..], 0));
        }
    }

    #[test]
    fn a_logit_too_far_off_or_no_number_at_all_differs() {
        let differences = |logit| {
            let top = Top { pos: None, ids: vec![1], logits: vec![2.0] };
            // Along ids that are not the model's own choice, nothing but the logits is compared.
            let steps = Steps {
                name: "p".into(),
                prompt: vec![0],
                continuation: vec![0],
                own: false,
                margins: None,
                min_margin: None,
                top: vec![(0, top)],
            };
            let mut verdict = Verdict::default();
            verdict.compare(&steps, &[0.0, logit], 2, TOLERANCE, TOLERANCE);
            verdict.differences.len()
        };
        assert_eq!([2.0, 2.0009, 1.9991].map(differences), [0; 3]);
        assert_eq!([2.0011, 1.9989, f32::NAN, f32::INFINITY].map(differences), [1; 4]);
    }

    #[test]
    fn lists_that_do_not_match_are_refused_and_not_indexed() {
        for (margins, pos, logits) in [
            ("[0.5]", 2, "[1.5]"),
            ("[0.5, 0.5]", 9, "[1.5]"),
            ("[0.5, 0.5]", 0, "[1.5]"),
            ("[0.5, 0.5]", 2, "[]"),
        ] {
            let text = format!(
                r#"{{"prompts": [{{"prompt_ids": [5, 6], "greedy_ids": [7, 8], "margins": {margins},
                "top5": [{{"pos": {pos}, "ids": [8], "logits": {logits}}}]}}]}}"#
            );
            let reference: Reference = serde_json::from_str(&text).unwrap();
            assert!(reference.prompts[0].steps(false).is_err(), "{text}");
        }
    }
}
