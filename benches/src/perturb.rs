//! The off/on harness: runs, their parity, and what may be said of their times.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::statistics::{self, Difference};
use crate::{child, counts, machine};

/// Why nothing is reported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Too few runs to compare.
    #[error("--pairs 0: there is nothing to compare; ask for 1 or more")]
    NoPairs,
    /// A run did not start.
    #[error("`{command}` cannot be run: {why}")]
    NotRun {
        /// Its words.
        command: String,
        /// What the system said.
        why: std::io::Error,
    },
    /// A run failed.
    #[error("`{command}` failed ({status}): {said}")]
    Failed {
        /// Its words.
        command: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// What it wrote to standard error.
        said: String,
    },
    /// A run under callgrind did not end in time.
    #[error(
        "`{command}` was stopped after {} s: the instructions of so long a run are not counted; ask for fewer tokens",
        COUNT_SECONDS
    )]
    TooLong {
        /// Its words.
        command: String,
    },
    /// A file that a run should have written, or that was asked for.
    #[error("{}: {why}", .file.display())]
    File {
        /// Which.
        file: PathBuf,
        /// What is wrong with it.
        why: std::io::Error,
    },
    /// An argument that would take what a run needs for itself.
    #[error(
        "{word} behind `--`: perturb sets --markers, --stats and what a run records by itself; leave it out (`perturb --markers LIST` says what is on)"
    )]
    Set {
        /// As it was typed.
        word: String,
    },
    /// A run ended well and answered nothing.
    #[error(
        "`{command}` ended well and wrote no statistics: was it asked for its help, or --under something that starts nothing?"
    )]
    NoStatistics {
        /// Its words.
        command: String,
    },
    /// A run with markers on emitted none.
    #[error(
        "markers were to be on in {run} and no range was taken by {markers}: there is nothing to measure"
    )]
    NotOn {
        /// Which run.
        run: String,
        /// What was asked for.
        markers: String,
    },
    /// Two runs answered differently. Nothing else counts then.
    #[error(
        "PARITY BROKEN: {what} is {other} in {run}, and {first} in the first run: markers must change nothing"
    )]
    Parity {
        /// What differs.
        what: &'static str,
        /// Where.
        run: String,
        /// The first run's.
        first: String,
        /// This one's.
        other: String,
    },
}

impl Error {
    /// Whether runs answered differently.
    pub fn is_parity(&self) -> bool {
        matches!(self, Error::Parity { .. })
    }
}

/// What is to be measured.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Pairs of runs that count.
    pub pairs: usize,
    /// Runs of each kind before them.
    pub warmups: usize,
    /// What `--markers` is in the runs that are on.
    pub markers: String,
    /// The words before the command in the runs that are on: a profiler's.
    pub under: Vec<OsString>,
    /// What follows `phasemark generate`.
    pub generate: Vec<OsString>,
}

/// Whether markers are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// `--markers off`.
    Off,
    /// As the plan says.
    On,
}

/// What a run answered: the part of `--stats` that must not depend on markers, and its times.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Answer {
    /// Of the completion's text.
    pub text_sha256: String,
    /// Of the prompt.
    pub prompt_tokens: u64,
    /// Generated.
    pub completion_tokens: u64,
    /// Drafted.
    pub drafted: u64,
    /// Drafted and emitted.
    pub accepted: u64,
    /// After the prefill.
    pub target_passes: u64,
    /// Whether the clock had a say in the three before.
    pub adapts: bool,
    seconds: Seconds,
    #[serde(default)]
    markers: std::collections::BTreeMap<String, Emitted>,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
struct Seconds {
    prefill: f64,
    decode: f64,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
struct Emitted {
    pushed: u64,
}

impl Answer {
    /// The request's time in milliseconds.
    pub fn milliseconds(&self) -> f64 {
        1e3 * (self.seconds.prefill + self.seconds.decode)
    }

    /// What must be the same in all runs. Where blocks adapt to the clock, what was drafted differs with no marker near.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![
            ("whether blocks adapt to the clock", self.adapts.to_string()),
            ("the text's SHA-256", self.text_sha256.clone()),
            ("the number of prompt tokens", self.prompt_tokens.to_string()),
            ("the number of generated tokens", self.completion_tokens.to_string()),
        ];
        if !self.adapts {
            facts.extend([
                ("the number of drafted tokens", self.drafted.to_string()),
                ("the number of accepted tokens", self.accepted.to_string()),
                ("the number of target passes", self.target_passes.to_string()),
            ]);
        }
        facts
    }
}

/// One run: which one it was, for people, and what it answered.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// For people.
    pub name: String,
    /// Off or on.
    pub mode: Mode,
    /// What it answered.
    pub answer: Answer,
}

/// Fails on the first run that answered another thing than the first one.
///
/// # Errors
/// [`Error::Parity`].
pub fn parity(runs: &[Run]) -> Result<(), Error> {
    let Some((first, others)) = runs.split_first() else { return Ok(()) };
    for run in others {
        for ((what, first), (_, other)) in first.answer.facts().into_iter().zip(run.answer.facts()) {
            if first != other {
                return Err(Error::Parity { what, run: run.name.clone(), first, other });
            }
        }
    }
    Ok(())
}

/// The order of the pairs: off first, then on first, and so on.
pub fn order(pair: usize) -> [Mode; 2] {
    if pair.is_multiple_of(2) { [Mode::Off, Mode::On] } else { [Mode::On, Mode::Off] }
}

/// Runs everything, and checks that every run answered the same. `tell` hears of each run.
///
/// # Errors
/// [`Error`] when a run fails, when markers were not on where they should be, and when the runs differ.
pub fn measure(plan: &Plan, tell: &mut dyn FnMut(&str)) -> Result<Report, Error> {
    if plan.pairs == 0 {
        return Err(Error::NoPairs);
    }
    if let Some(word) = plan.generate.iter().map(|word| word.to_string_lossy()).find(|word| is_set(word)) {
        return Err(Error::Set { word: word.into_owned() });
    }
    let machine = machine::describe();
    let mut runs: Vec<Run> = Vec::new();
    let mut one = |name: String, mode| {
        let answer = run(plan, mode, &name)?;
        tell(&format!("{name}: {:.3} ms", answer.milliseconds()));
        runs.push(Run { name, mode, answer });
        parity(&runs)
    };
    for warmup in 1..=plan.warmups {
        one(format!("warm-up {warmup}, off"), Mode::Off)?;
        one(format!("warm-up {warmup}, on"), Mode::On)?;
    }
    for pair in 0..plan.pairs {
        for mode in order(pair) {
            one(format!("pair {}, {}", pair + 1, if mode == Mode::Off { "off" } else { "on" }), mode)?;
        }
    }
    let warmups = runs.drain(..2 * plan.warmups).collect();
    Ok(Report { machine, warmups, runs })
}

/// Whether a run's argument is one that its own run sets.
fn is_set(word: &str) -> bool {
    let flag = word.split_once('=').map_or(word, |(flag, _)| flag);
    ["--markers", "--stats", "--record"].contains(&flag)
}

fn run(plan: &Plan, mode: Mode, name: &str) -> Result<Answer, Error> {
    let (words, stats, _folder) = words(plan, mode, None)?;
    execute(&words)?;
    let text = std::fs::read(&stats).map_err(|why| match why.kind() {
        std::io::ErrorKind::NotFound => Error::NoStatistics { command: typed(&words) },
        _ => Error::File { file: stats.clone(), why },
    })?;
    let answer: Answer =
        serde_json::from_slice(&text).map_err(|why| Error::File { file: stats, why: why.into() })?;
    if mode == Mode::On && answer.markers.values().all(|emitted| emitted.pushed == 0) {
        return Err(Error::NotOn { run: name.into(), markers: plan.markers.clone() });
    }
    Ok(answer)
}

/// The command of one run, where it writes what it answers, and the folder that holds that.
fn words(
    plan: &Plan,
    mode: Mode,
    threads: Option<&str>,
) -> Result<(Vec<OsString>, PathBuf, tempfile::TempDir), Error> {
    let system = |why| Error::NotRun { command: "perturb".into(), why };
    let folder = tempfile::tempdir().map_err(system)?;
    let stats = folder.path().join("stats.json");
    let markers = if mode == Mode::On { plan.markers.as_str() } else { "off" };
    let mut arguments: Vec<OsString> = vec!["generate".into()];
    arguments.extend(plan.generate.iter().cloned());
    arguments.extend(["--markers".into(), markers.into(), "--stats".into(), stats.clone().into()]);
    if let Some(threads) = threads {
        arguments.extend(["--threads".into(), threads.into()]);
    }
    let under = if mode == Mode::On { plan.under.as_slice() } else { &[] };
    let command = child::command(&arguments).map_err(system)?;
    Ok((under.iter().cloned().chain(command).collect(), stats, folder))
}

/// A command as it is told to people.
fn typed(words: &[OsString]) -> String {
    words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn execute(words: &[OsString]) -> Result<(), Error> {
    Started::new(words)?.ended()
}

/// A run under way. Dropped before its end it is killed, so that none is left behind.
struct Started {
    child: Child,
    command: String,
}

impl Started {
    fn new(words: &[OsString]) -> Result<Self, Error> {
        let typed = typed(words);
        let mut command = Command::new(words.first().map_or(std::ffi::OsStr::new(""), OsString::as_os_str));
        command.args(words.iter().skip(1)).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // The flag decides in each run; what a shell exports must not.
        for variable in ["PHASEMARK", "DFLASH_DS4_ROCTX", "LUCE_DS4_ROCTX"] {
            command.env_remove(variable);
        }
        match command.spawn() {
            Ok(child) => Ok(Started { child, command: typed }),
            Err(why) => Err(Error::NotRun { command: typed, why }),
        }
    }

    /// Waits for its end, at most until then.
    fn ended_by(&mut self, time: Instant) -> Result<bool, Error> {
        loop {
            let not_run = |why| Error::NotRun { command: self.command.clone(), why };
            if self.child.try_wait().map_err(not_run)?.is_some() {
                return Ok(true);
            }
            if Instant::now() >= time {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits for its end.
    fn ended(mut self) -> Result<(), Error> {
        let mut said = String::new();
        let read = self.child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut said));
        let waited = read.unwrap_or(Ok(0)).and_then(|_| self.child.wait());
        match waited {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => {
                Err(Error::Failed { command: self.command.clone(), status, said: said.trim().to_owned() })
            }
            Err(why) => Err(Error::NotRun { command: self.command.clone(), why }),
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // One that has ended cannot be killed, and that is well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Seconds that a run under callgrind may take: it is some thousand times as slow as one without.
const COUNT_SECONDS: u64 = 900;
/// Seconds between two words of how long it has taken.
const TELL_SECONDS: u64 = 15;

/// The instructions of one whole run of each mode, off and on, with one thread: threads that wait count otherwise. Both
/// at the same time, since they take long and cannot disturb each other's counts. `tell` hears how long it takes.
///
/// # Errors
/// [`Error`] when a run fails or takes too long, or there is no valgrind.
pub fn count_instructions(plan: &Plan, tell: &mut dyn FnMut(&str)) -> Result<(u64, u64), Error> {
    let plan = Plan { under: Vec::new(), generate: without_threads(&plan.generate), ..plan.clone() };
    let start = |mode| {
        let (command, _, folder) = words(&plan, mode, Some("1"))?;
        let out = folder.path().join("callgrind");
        let file = format!("--callgrind-out-file={}", out.display());
        let valgrind = ["valgrind", "--quiet", "--tool=callgrind", &file].map(OsString::from);
        let run = Started::new(&valgrind.into_iter().chain(command).collect::<Vec<_>>())?;
        Ok((run, out, folder))
    };
    let (began, mut runs) = (Instant::now(), [start(Mode::Off)?, start(Mode::On)?]);
    for (run, ..) in &mut runs {
        loop {
            let so_far = began.elapsed().as_secs();
            tell(&format!("counting the instructions of a whole run, off and on: {so_far} s so far"));
            if run.ended_by(Instant::now() + Duration::from_secs(TELL_SECONDS))? {
                break;
            }
            if so_far > COUNT_SECONDS {
                return Err(Error::TooLong { command: run.command.clone() });
            }
        }
    }
    let [off, on] = runs.map(|(run, out, _folder)| {
        run.ended()?;
        counts::instructions(&out).map_err(|why| Error::File { file: out, why })
    });
    Ok((off?, on?))
}

/// The arguments less the number of threads, which may be given once.
fn without_threads(arguments: &[OsString]) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == "--threads" {
            arguments.next();
        } else if !argument.to_string_lossy().starts_with("--threads=") {
            kept.push(argument.clone());
        }
    }
    kept
}

/// All that was measured.
#[derive(Debug)]
pub struct Report {
    /// Where and when.
    pub machine: String,
    /// What does not count.
    pub warmups: Vec<Run>,
    /// In the order in which they ran, pair by pair.
    pub runs: Vec<Run>,
}

/// One mode's times in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Summary {
    /// The middle one.
    pub median: f64,
    /// The median distance from it.
    pub mad: f64,
    /// The least and the most.
    pub range: (f64, f64),
}

impl Report {
    /// One mode's times.
    pub fn summary(&self, mode: Mode) -> Summary {
        let times: Vec<f64> =
            self.runs.iter().filter(|run| run.mode == mode).map(|run| run.answer.milliseconds()).collect();
        Summary {
            median: statistics::median(&times),
            mad: statistics::mad(&times),
            range: statistics::range(&times),
        }
    }

    /// How many pairs count.
    fn pairs(&self) -> usize {
        self.runs.len() / 2
    }

    /// On minus off, pair by pair, in milliseconds.
    pub fn difference(&self) -> Difference {
        let pairs: Vec<(f64, f64)> = self
            .runs
            .chunks_exact(2)
            .map(|pair| {
                let of = |mode| {
                    pair.iter().find(|run| run.mode == mode).map_or(f64::NAN, |run| run.answer.milliseconds())
                };
                (of(Mode::Off), of(Mode::On))
            })
            .collect();
        Difference::of(&pairs)
    }

    /// What may be said, in a sentence or two.
    pub fn verdict(&self) -> String {
        let difference = self.difference();
        let percent = |ms: f64| 100.0 * ms / self.summary(Mode::Off).median;
        let Some(((low, high), half)) = difference.interval.zip(difference.half_width()) else {
            let ((low, high), pairs) = (difference.range, self.pairs());
            return format!(
                "Too few pairs for a 95 % interval ({pairs}; at least {}). On minus off: between {low:+.3} and {high:+.3} ms \
                 ({:+.2} and {:+.2} %), the least and the most, which hold the median between them with {} % confidence.",
                statistics::LEAST_PAIRS,
                percent(low),
                percent(high),
                100.0 * statistics::range_confidence(pairs)
            );
        };
        let interval = format!(
            "95 % interval {low:+.3} to {high:+.3} ms ({:+.2} to {:+.2} %), half-width {:.3} ms ({:.2} %)",
            percent(low),
            percent(high),
            half,
            percent(half)
        );
        if difference.is_noise() {
            let zero = if low <= 0.0 && 0.0 <= high { "contains" } else { "does not contain" };
            format!(
                "This machine is too noisy for a number: the interval is wider than the effect. On minus off: {interval}; \
                 it {zero} 0. Claim nothing smaller than the half-width; more pairs or a quieter machine narrow it."
            )
        } else {
            format!(
                "On minus off: {:+.3} ms ({:+.2} %), {interval}.",
                difference.median,
                percent(difference.median)
            )
        }
    }

    /// What was the same in all runs.
    pub fn parity(&self) -> String {
        let runs = self.runs.len() + self.warmups.len();
        self.runs.first().map_or_else(String::new, |run| {
            let answer = &run.answer;
            let mut text = format!(
                "Parity: text SHA-256 {}, {} + {} tokens",
                answer.text_sha256.get(..12).unwrap_or(&answer.text_sha256),
                answer.prompt_tokens,
                answer.completion_tokens
            );
            if !answer.adapts {
                let (accepted, drafted) = (answer.accepted, answer.drafted);
                let passes = answer.target_passes;
                let _ = write!(text, ", {accepted} of {drafted} drafted tokens accepted, {passes} target passes");
            }
            let _ = write!(text, ", the same in all {runs} runs.");
            if answer.adapts {
                text += " Blocks adapt to the clock: drafted tokens, accepted ones and target passes may differ from \
                         run to run and were not compared, and times and instructions differ with them.";
            }
            text
        })
    }

    /// Everything, for programs.
    pub fn json(&self, plan: &Plan, instructions: Option<(u64, u64)>) -> serde_json::Value {
        let words = |words: &[OsString]| {
            words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        let difference = self.difference();
        serde_json::json!({
            "machine": self.machine,
            "markers": plan.markers,
            "under": words(&plan.under),
            "generate": words(&plan.generate),
            "warmups": self.warmups,
            "runs": self.runs,
            "off_ms": self.summary(Mode::Off),
            "on_ms": self.summary(Mode::On),
            "difference_ms": {
                "median": difference.median,
                "interval": difference.interval,
                "too_few_pairs": difference.interval.is_none(),
                "range": difference.range,
                "range_confidence": statistics::range_confidence(self.pairs()),
                "half_width": difference.half_width(),
                "noise": difference.is_noise(),
            },
            "instructions": instructions.map(|(off, on)| serde_json::json!({"off": off, "on": on})),
            "verdict": self.verdict(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, mode: Mode, ms: f64) -> Run {
        let text = format!(
            r#"{{"text_sha256": "ab", "prompt_tokens": 5, "completion_tokens": 8, "drafted": 6, "accepted": 4,
                "target_passes": 3, "adapts": false, "seconds": {{"load": 9.0, "prefill": 0.0, "decode": {}}},
                "markers": {{"record": {{"pushed": 7, "popped": 7}}}}}}"#,
            ms / 1e3
        );
        Run { name: name.into(), mode, answer: serde_json::from_str(&text).unwrap() }
    }

    fn report(pairs: &[(f64, f64)]) -> Report {
        let runs = pairs.iter().enumerate().flat_map(|(at, &(off, on))| {
            order(at).map(|mode| run("r", mode, if mode == Mode::Off { off } else { on }))
        });
        Report { machine: "here".into(), warmups: Vec::new(), runs: runs.collect() }
    }

    #[test]
    fn the_order_flips_every_other_pair_and_times_stay_with_their_mode() {
        assert_eq!(order(0), [Mode::Off, Mode::On]);
        assert_eq!(order(1), [Mode::On, Mode::Off]);
        let report = report(&[(100.0, 103.0), (101.0, 104.0), (99.0, 102.0)].repeat(2));
        assert!((report.summary(Mode::Off).median - 100.0).abs() < 1e-9);
        assert!((report.summary(Mode::On).range.1 - 104.0).abs() < 1e-9);
        assert!((report.difference().median - 3.0).abs() < 1e-9);
        let verdict = report.verdict();
        assert!(verdict.starts_with("On minus off: +3.000 ms (+3.00 %)"), "{verdict}");
    }

    #[test]
    fn the_number_of_threads_is_left_out_in_both_its_spellings() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let given = words(&["--threads", "2", "--max-tokens", "9", "--threads=4", "--ignore-eos"]);
        assert_eq!(without_threads(&given), words(&["--max-tokens", "9", "--ignore-eos"]));
    }

    #[test]
    fn noise_is_told_in_place_of_a_number() {
        let pairs =
            [(100.0, 103.0), (101.0, 97.0), (99.0, 100.0), (100.0, 99.0), (100.0, 101.0), (99.0, 99.0)];
        let report = report(&pairs);
        let verdict = report.verdict();
        assert!(verdict.contains("too noisy") && verdict.contains("contains 0"), "{verdict}");
        assert!(!verdict.contains("On minus off: +1"), "{verdict}");
    }

    #[test]
    fn few_pairs_are_told_with_how_sure_their_range_is() {
        let five = report(&[(100.0, 103.0), (101.0, 103.0), (99.0, 102.5), (100.0, 103.0), (100.0, 104.0)]);
        let one = report(&[(100.0, 103.0)]);
        for (report, pairs, confidence) in [(five, 5, "93.75 %"), (one, 1, "0 %")] {
            let verdict = report.verdict();
            let few = format!("Too few pairs for a 95 % interval ({pairs}; at least 6)");
            assert!(
                verdict.starts_with(&few) && verdict.contains(&format!(" {confidence} conf")),
                "{verdict}"
            );
            assert!(!verdict.contains("half-width"), "{verdict}");
            let json = report.json(&Plan::default(), None);
            let difference = &json["difference_ms"];
            assert!(difference["interval"].is_null() && difference["half_width"].is_null(), "{json}");
            assert!(difference["too_few_pairs"] == true && difference["noise"] == true, "{json}");
        }
    }

    #[test]
    fn what_a_run_sets_by_itself_is_refused_before_any_run() {
        for word in ["--stats", "--stats=x.json", "--record", "--markers=nvtx"] {
            let plan = Plan { pairs: 1, generate: vec![word.into(), "x".into()], ..Plan::default() };
            let told = measure(&plan, &mut |_| panic!("nothing runs")).unwrap_err().to_string();
            assert!(told.contains(word) && told.contains("perturb sets"), "{told}");
        }
    }

    #[test]
    fn blocks_that_adapt_to_the_clock_are_not_compared_and_the_report_says_so() {
        let mut report = report(&[(100.0, 103.0)]);
        assert!(report.parity().contains("4 of 6 drafted"), "{}", report.parity());
        for (at, run) in report.runs.iter_mut().enumerate() {
            run.answer.adapts = true;
            run.answer.drafted += at as u64;
            run.answer.accepted += at as u64;
            run.answer.target_passes += at as u64;
        }
        parity(&report.runs).unwrap();
        let told = report.parity();
        assert!(told.contains("adapt to the clock") && !told.contains("4 of 6"), "{told}");
        let changes: [fn(&mut Answer); 4] = [
            |answer| answer.text_sha256 = "cd".into(),
            |answer| answer.prompt_tokens += 1,
            |answer| answer.completion_tokens += 1,
            |answer| answer.adapts = false,
        ];
        for change in changes {
            let mut runs = report.runs.clone();
            change(&mut runs[1].answer);
            assert!(parity(&runs).unwrap_err().is_parity());
        }
    }

    #[test]
    fn whatever_an_answer_says_must_be_the_same_in_all_runs() {
        let same = || vec![run("one", Mode::Off, 1.0), run("two", Mode::On, 2.0)];
        assert!(parity(&same()).is_ok() && parity(&[]).is_ok());
        let changes: [fn(&mut Answer); 6] = [
            |answer| answer.text_sha256 = "cd".into(),
            |answer| answer.prompt_tokens += 1,
            |answer| answer.completion_tokens += 1,
            |answer| answer.drafted += 1,
            |answer| answer.accepted += 1,
            |answer| answer.target_passes += 1,
        ];
        for change in changes {
            let mut runs = same();
            change(&mut runs[1].answer);
            let told = parity(&runs).unwrap_err();
            assert!(told.is_parity() && told.to_string().contains("PARITY BROKEN"), "{told}");
            assert!(told.to_string().contains("in two"), "{told}");
        }
    }
}
