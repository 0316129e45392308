//! The one file that names the marker backends: it assembles what features compiled in and the user chose.
//!
//! Choosing ([`choose`]) is apart from assembling ([`Assembly::new`]): the first reads words and decides, the
//! second opens profilers. The result is a value that hands out [`Markers`]; nothing is installed
//! process-wide.

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use marker_core::{Counters, Detail, LANES, Label, Marker, Markers, Phase, Scope, SpanId, Token};

/// A backend that is compiled in. Adding one is an entry in [`BACKENDS`] and its name in [`KNOWN`].
struct Backend {
    name: &'static str,
    /// Whether `auto` takes it: its tool has asked for it. Loads nothing.
    applies: fn() -> bool,
    /// Opens it; `None` when it could not be, which it has then said on standard error.
    open: fn(Detail) -> Option<Box<dyn Lane>>,
    /// Looks for its library and tool, and says what it found.
    report: fn() -> String,
}

/// In the order of [`KNOWN`].
const BACKENDS: &[Backend] = &[
    #[cfg(feature = "roctx")]
    Backend {
        name: "roctx",
        applies: backend_roctx::Roctx::is_in_process,
        open: |_| Some(Box::new(backend_roctx::Roctx::load_or_diagnose()?)),
        report: || match backend_roctx::Roctx::load() {
            Ok(roctx) => roctx.report().to_string(),
            Err(why) => why.to_string(),
        },
    },
    #[cfg(feature = "nvtx")]
    Backend {
        name: "nvtx",
        applies: backend_nvtx::Nvtx::is_requested,
        open: |detail| Some(Box::new(backend_nvtx::Nvtx::load_or_diagnose(detail))),
        report: || {
            // What went wrong is part of the report.
            let _ = backend_nvtx::Nvtx::load(Detail::Phases);
            backend_nvtx::Nvtx::report().to_string()
        },
    },
    #[cfg(feature = "record")]
    Backend {
        name: "record",
        applies: || false,
        open: |_| Some(Box::new(backend_record::Recorder::new())),
        report: || format!("in memory, {} entries at most", backend_record::DEFAULT_ENTRIES),
    },
];

/// Every backend that some build has, in the order in which they hear a range.
const KNOWN: [&str; 3] = ["roctx", "nvtx", "record"];

const _: () = assert!(BACKENDS.len() <= LANES, "a token has no lane for every backend");

/// The variables that choose when no flag does, first one first. The last two mean ROCTX or nothing.
const LIST_VARIABLE: &str = "PHASEMARK";
const ROCTX_VARIABLES: [&str; 2] = ["DFLASH_DS4_ROCTX", "LUCE_DS4_ROCTX"];

/// The names of the backends in this build.
pub fn compiled_in() -> impl Iterator<Item = &'static str> + Clone {
    BACKENDS.iter().map(|backend| backend.name)
}

/// What each backend of this build found when it looked for its library and tool, by name.
pub fn reports() -> impl Iterator<Item = (&'static str, String)> {
    BACKENDS.iter().map(|backend| (backend.name, (backend.report)()))
}

/// A flag that names a backend which this build does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MarkersError {
    /// No build has it.
    #[error("{by}: no marker backend is called '{name}': known are off, auto, {}", list(.known))]
    Unknown {
        /// As it was given.
        name: String,
        /// What gave it.
        by: ChosenBy,
        /// The names that this build knows.
        known: Vec<&'static str>,
    },
    /// Other builds have it.
    #[error("{by}: the marker backend '{name}' is not compiled in: this build has off, auto, {}", list(.known))]
    NotCompiledIn {
        /// As it was given.
        name: String,
        /// What gave it.
        by: ChosenBy,
        /// The names that this build knows.
        known: Vec<&'static str>,
    },
    /// `off` or `auto` among other names.
    #[error("{by}: '{word}' stands alone, not in a list: give '{word}', or a list of {}", list(.known))]
    NotAlone {
        /// As it was given.
        word: String,
        /// What gave it.
        by: ChosenBy,
        /// The names that this build knows.
        known: Vec<&'static str>,
    },
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "and no backend".into() } else { names.join(", ") }
}

/// What decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChosenBy {
    /// A flag on the command line.
    Flag(&'static str),
    /// An environment variable.
    Variable(&'static str),
    /// Nothing is set.
    Nothing,
}

impl std::fmt::Display for ChosenBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ChosenBy::Flag(name) | ChosenBy::Variable(name) => f.write_str(name),
            ChosenBy::Nothing => f.write_str("nothing set"),
        }
    }
}

/// Which backends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// None.
    Off,
    /// Each one whose tool has asked for it.
    Auto,
    /// These.
    Named(Vec<&'static str>),
}

/// Which backends, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Which.
    pub wanted: Wanted,
    /// What decided.
    pub by: ChosenBy,
    /// What is wrong with the variable that decided; markers are then off, and a person is to be told once.
    pub complaint: Option<MarkersError>,
}

/// Decides by `flag` (the value of `--markers`), then by the environment, which `lookup` reads. The first that
/// is set and not empty decides.
///
/// # Errors
/// [`MarkersError`] when the flag names what this build does not have. A variable that does so is a
/// [`Choice::complaint`] and means off.
pub fn choose(flag: Option<&str>, lookup: impl Fn(&str) -> Option<String>) -> Result<Choice, MarkersError> {
    let compiled_in: Vec<_> = compiled_in().collect();
    choose_among(&compiled_in, flag, lookup)
}

fn choose_among(
    compiled_in: &[&'static str],
    flag: Option<&str>,
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<Choice, MarkersError> {
    let decided = |wanted, by| Choice { wanted, by, complaint: None };
    if let Some(names) = flag.filter(|names| !names.is_empty()) {
        let by = ChosenBy::Flag("--markers");
        return Ok(decided(wanted(compiled_in, names, by)?, by));
    }
    let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
    let (by, asked) = if let Some(names) = set(LIST_VARIABLE) {
        let by = ChosenBy::Variable(LIST_VARIABLE);
        (by, wanted(compiled_in, &names, by))
    } else if let Some((name, value)) = ROCTX_VARIABLES.iter().find_map(|name| Some((name, set(name)?))) {
        let by = ChosenBy::Variable(name);
        let on = ["1", "true", "yes", "on"].iter().any(|word| value.eq_ignore_ascii_case(word));
        (by, if on { wanted(compiled_in, "roctx", by) } else { Ok(Wanted::Off) })
    } else {
        return Ok(decided(Wanted::Off, ChosenBy::Nothing));
    };
    Ok(match asked {
        Ok(wanted) => decided(wanted, by),
        Err(complaint) => Choice { wanted: Wanted::Off, by, complaint: Some(complaint) },
    })
}

/// Words in any case, as people set variables.
fn wanted(compiled_in: &[&'static str], names: &str, by: ChosenBy) -> Result<Wanted, MarkersError> {
    let is = |name: &str, word: &str| name.eq_ignore_ascii_case(word);
    match names.trim() {
        word if is(word, "off") => return Ok(Wanted::Off),
        word if is(word, "auto") => return Ok(Wanted::Auto),
        _ => {}
    }
    let mut chosen = Vec::new();
    for name in names.split(',').map(str::trim) {
        let known = || compiled_in.to_vec();
        match compiled_in.iter().find(|known| is(name, known)) {
            Some(name) if chosen.contains(name) => {}
            Some(name) => chosen.push(*name),
            None if KNOWN.iter().any(|known| is(name, known)) => {
                return Err(MarkersError::NotCompiledIn { name: name.into(), by, known: known() });
            }
            None if is(name, "off") || is(name, "auto") => {
                return Err(MarkersError::NotAlone { word: name.into(), by, known: known() });
            }
            None => return Err(MarkersError::Unknown { name: name.into(), by, known: known() }),
        }
    }
    Ok(Wanted::Named(chosen))
}

/// A backend behind the fan-out, which can be asked for as what it is.
trait Lane: Marker + Any {}

impl<T: Marker + Any> Lane for T {}

/// The chosen backends, opened, and a count of the phases that they were told of.
pub struct Assembly {
    fan: FanOut,
    detail: Detail,
}

impl Assembly {
    /// Opens what was chosen, and the recorder too if `record`, which is what `--record` means.
    ///
    /// # Errors
    /// [`MarkersError::NotCompiledIn`] when `record` is asked of a build without the recorder.
    pub fn new(choice: &Choice, detail: Detail, record: bool) -> Result<Self, MarkersError> {
        if record && !compiled_in().any(|name| name == "record") {
            return Err(MarkersError::NotCompiledIn {
                name: "record".into(),
                by: ChosenBy::Flag("--record"),
                known: compiled_in().collect(),
            });
        }
        let lanes = BACKENDS
            .iter()
            .filter(|backend| {
                (record && backend.name == "record")
                    || match &choice.wanted {
                        Wanted::Off => false,
                        Wanted::Auto => (backend.applies)(),
                        Wanted::Named(names) => names.contains(&backend.name),
                    }
            })
            .filter_map(|backend| (backend.open)(detail))
            .collect();
        Ok(Assembly { fan: FanOut { lanes, phases: PhaseCounts::new() }, detail })
    }

    /// The handle for the work to be marked; off when no backend is open.
    pub fn markers(&self) -> Markers<'_> {
        if self.fan.lanes.is_empty() { Markers::OFF } else { Markers::new(&self.fan, self.detail) }
    }

    /// The names of the open backends.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.fan.lanes.iter().map(|lane| lane.name())
    }

    /// What each open backend emitted.
    pub fn counters(&self) -> BTreeMap<&'static str, Counters> {
        self.fan.lanes.iter().map(|lane| (lane.name(), lane.counters())).collect()
    }

    /// How often each phase was emitted, by `<scope> <mode>`, or the scope alone where there is no mode.
    pub fn phases(&self) -> BTreeMap<String, u64> {
        self.fan.phases.named()
    }
}

cfg_if::cfg_if! {
    if #[cfg(feature = "record")] {
        impl Assembly {
            fn recorder(&self) -> Option<&backend_record::Recorder> {
                self.fan.lanes.iter().find_map(|lane| (&**lane as &dyn Any).downcast_ref())
            }

            /// The ranges that ended, in the order in which they began; `None` when the recorder is not open.
            pub fn recorded(&self) -> Option<Vec<Recorded>> {
                let recorded = |range: backend_record::Recorded| {
                    let phase = match range.fields {
                        Some(fields) => phase_name(fields.scope().name(), fields.get_mode().map(Phase::name)),
                        None => range.label,
                    };
                    Some(Recorded { phase, seconds: 1e-9 * (range.end_ns? - range.begin_ns) as f64 })
                };
                Some(self.recorder()?.ranges().into_iter().filter_map(recorded).collect())
            }

            /// Writes what was recorded as Chrome trace JSON. Nothing when the recorder is not open.
            ///
            /// # Errors
            /// Those of `out`.
            pub fn save_record(&self, out: impl io::Write) -> io::Result<()> {
                self.recorder().map_or(Ok(()), |recorder| recorder.write_json(out))
            }
        }
    } else {
        impl Assembly {
            /// None: this build has no recorder.
            pub fn recorded(&self) -> Option<Vec<Recorded>> {
                None
            }

            /// Nothing: this build has no recorder.
            ///
            /// # Errors
            /// None.
            pub fn save_record(&self, _out: impl io::Write) -> io::Result<()> {
                Ok(())
            }
        }
    }
}

/// A range that the recorder saw end.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// `<scope> <mode>`, or the scope alone.
    pub phase: String,
    /// Host time in seconds.
    pub seconds: f64,
}

/// Several backends as one. Each has a lane in every token.
struct FanOut {
    lanes: Vec<Box<dyn Lane>>,
    phases: PhaseCounts,
}

impl Marker for FanOut {
    fn name(&self) -> &'static str {
        "fan-out"
    }

    fn push(&self, label: &Label) -> Token {
        let mut all = Token::NOT_TAKEN;
        for (at, lane) in self.lanes.iter().enumerate() {
            all = all.with_lane(at, lane.push(label));
        }
        if all.is_taken() {
            self.phases.count(label);
        }
        all
    }

    fn pop(&self, token: Token) {
        // The last that opened closes first, as nesting has it.
        for (at, lane) in self.lanes.iter().enumerate().rev() {
            let token = token.lane(at);
            if token.is_taken() {
                lane.pop(token);
            }
        }
    }

    fn mark(&self, label: &Label) {
        for lane in &self.lanes {
            lane.mark(label);
        }
    }

    fn start(&self, label: &Label) -> SpanId {
        let mut all = SpanId::NOT_TAKEN;
        for (at, lane) in self.lanes.iter().enumerate() {
            all = all.with_lane(at, lane.start(label));
        }
        if all.is_taken() {
            self.phases.count(label);
        }
        all
    }

    fn stop(&self, span: SpanId) {
        for (at, lane) in self.lanes.iter().enumerate().rev() {
            let span = span.lane(at);
            if span.is_taken() {
                lane.stop(span);
            }
        }
    }

    fn name_thread(&self, name: &Label) {
        for lane in &self.lanes {
            lane.name_thread(name);
        }
    }

    fn counters(&self) -> Counters {
        self.lanes.iter().map(|lane| lane.counters()).fold(Counters::default(), |sum, one| Counters {
            pushed: sum.pushed + one.pushed,
            popped: sum.popped + one.popped,
            failed: sum.failed + one.failed,
            dropped: sum.dropped + one.dropped,
        })
    }
}

/// One count a scope of the vocabulary and mode, the last column being "no mode". A table of fixed size:
/// counting never allocates. Ranges outside the vocabulary, which the engine does not emit, are not counted.
struct PhaseCounts([[AtomicU64; Phase::ALL.len() + 1]; Scope::ALL.len()]);

impl PhaseCounts {
    const fn new() -> Self {
        PhaseCounts([const { [const { AtomicU64::new(0) }; Phase::ALL.len() + 1] }; Scope::ALL.len()])
    }

    fn count(&self, label: &Label) {
        let Some(fields) = label.fields() else { return };
        let Some(scope) = Scope::ALL.iter().position(|scope| *scope == fields.scope()) else { return };
        let mode = fields.get_mode().map_or(Phase::ALL.len(), |mode| mode as usize);
        if let Some(count) = self.0[scope].get(mode) {
            count.fetch_add(1, Relaxed);
        }
    }

    fn named(&self) -> BTreeMap<String, u64> {
        let mut named = BTreeMap::new();
        for (scope, row) in Scope::ALL.iter().zip(&self.0) {
            for (mode, count) in row.iter().enumerate() {
                let count = count.load(Relaxed);
                if count > 0 {
                    named.insert(
                        phase_name(scope.name(), Phase::ALL.get(mode).map(|mode| mode.name())),
                        count,
                    );
                }
            }
        }
        named
    }
}

/// `<scope> <mode>`, or the scope alone.
fn phase_name(scope: &str, mode: Option<&str>) -> String {
    mode.map_or_else(|| scope.into(), |mode| format!("{scope} {mode}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use marker_core::Fields;

    const ALL: [&str; 3] = KNOWN;

    fn chosen(
        compiled_in: &[&'static str],
        flag: Option<&str>,
        env: &[(&str, &str)],
    ) -> Result<Choice, MarkersError> {
        choose_among(compiled_in, flag, |name| {
            env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into())
        })
    }

    #[test]
    fn the_first_that_is_set_and_not_empty_decides() {
        use ChosenBy::{Flag, Nothing, Variable};
        type Row<'a> = (Option<&'a str>, &'a [(&'a str, &'a str)], Wanted, ChosenBy);
        let named = |names: &[&'static str]| Wanted::Named(names.to_vec());
        let (phasemark, dflash, luce) = ("PHASEMARK", "DFLASH_DS4_ROCTX", "LUCE_DS4_ROCTX");
        let all_set = [(phasemark, "nvtx"), (dflash, "1"), (luce, "1")];
        let table: &[Row<'_>] = &[
            (None, &[], Wanted::Off, Nothing),
            (Some(""), &[], Wanted::Off, Nothing),
            (Some("record"), &all_set, named(&["record"]), Flag("--markers")),
            (Some("off"), &all_set, Wanted::Off, Flag("--markers")),
            (Some("auto"), &all_set, Wanted::Auto, Flag("--markers")),
            (Some("roctx, nvtx,roctx"), &[], named(&["roctx", "nvtx"]), Flag("--markers")),
            (Some("NVTX,Roctx,nvtx"), &[], named(&["nvtx", "roctx"]), Flag("--markers")),
            (Some(" OFF "), &all_set, Wanted::Off, Flag("--markers")),
            (None, &[(phasemark, "Auto")], Wanted::Auto, Variable(phasemark)),
            (None, &[(phasemark, "ROCTX")], named(&["roctx"]), Variable(phasemark)),
            (Some(""), &all_set, named(&["nvtx"]), Variable(phasemark)),
            (None, &all_set, named(&["nvtx"]), Variable(phasemark)),
            (None, &[(phasemark, "off"), (dflash, "1")], Wanted::Off, Variable(phasemark)),
            (None, &[(phasemark, ""), (dflash, "1")], named(&["roctx"]), Variable(dflash)),
            (None, &[(dflash, "TRUE")], named(&["roctx"]), Variable(dflash)),
            (None, &[(dflash, "no"), (luce, "1")], Wanted::Off, Variable(dflash)),
            (None, &[(dflash, ""), (luce, "Yes")], named(&["roctx"]), Variable(luce)),
            (None, &[(luce, "on")], named(&["roctx"]), Variable(luce)),
            (None, &[(luce, "2")], Wanted::Off, Variable(luce)),
        ];
        for (flag, env, wanted, by) in table {
            let expected = Choice { wanted: wanted.clone(), by: *by, complaint: None };
            assert_eq!(chosen(&ALL, *flag, env), Ok(expected), "{flag:?} {env:?}");
        }
    }

    #[test]
    fn a_flag_that_names_what_is_not_there_is_an_error_that_lists_what_is() {
        let says = |compiled_in: &[&'static str], flag| {
            chosen(compiled_in, Some(flag), &[]).unwrap_err().to_string()
        };
        assert_eq!(
            says(&["record"], "record,vtune"),
            "--markers: no marker backend is called 'vtune': known are off, auto, record"
        );
        assert_eq!(
            says(&["record"], "nvtx"),
            "--markers: the marker backend 'nvtx' is not compiled in: this build has off, auto, record"
        );
        assert!(says(&[], "record").ends_with("this build has off, auto, and no backend"));
        assert!(says(&ALL, "record,").contains("''"));
        assert_eq!(
            says(&ALL, "record, off"),
            "--markers: 'off' stands alone, not in a list: give 'off', or a list of roctx, nvtx, record"
        );
        assert!(says(&ALL, "auto,auto").starts_with("--markers: 'auto' stands alone"));
    }

    #[test]
    fn a_variable_that_names_what_is_not_there_is_told_and_means_off() {
        for (name, value) in [("PHASEMARK", "vtune"), ("PHASEMARK", "roctx"), ("DFLASH_DS4_ROCTX", "1")] {
            let choice = chosen(&["record"], None, &[(name, value)]).unwrap();
            assert_eq!((choice.wanted, choice.by), (Wanted::Off, ChosenBy::Variable(name)));
            assert!(choice.complaint.unwrap().to_string().starts_with(name));
        }
    }

    /// Takes every range, or none, and keeps what it was told.
    struct Fake {
        takes: bool,
        bits: u16,
        heard: std::sync::Mutex<Vec<String>>,
    }

    impl Fake {
        fn hear(&self, what: String) {
            self.heard.lock().unwrap().push(what);
        }
    }

    impl Marker for Fake {
        fn name(&self) -> &'static str {
            "fake"
        }
        fn push(&self, label: &Label) -> Token {
            self.hear(format!("push {label}"));
            Token::new(if self.takes { self.bits } else { 0 })
        }
        fn pop(&self, token: Token) {
            self.hear(format!("pop {}", token.bits()));
        }
        fn mark(&self, label: &Label) {
            self.hear(format!("mark {label}"));
        }
        fn start(&self, label: &Label) -> SpanId {
            self.hear(format!("start {label}"));
            SpanId::new(if self.takes { u64::from(self.bits) << 40 } else { 0 })
        }
        fn stop(&self, span: SpanId) {
            self.hear(format!("stop {}", span.id() >> 40));
        }
        fn counters(&self) -> Counters {
            Counters { pushed: 1, ..Counters::default() }
        }
    }

    fn fake(bits: u16, takes: bool) -> Box<dyn Lane> {
        Box::new(Fake { takes, bits, heard: std::sync::Mutex::default() })
    }

    fn fan_of(lanes: Vec<Box<dyn Lane>>) -> FanOut {
        FanOut { lanes, phases: PhaseCounts::new() }
    }

    fn heard(fan: &FanOut, lane: usize) -> Vec<String> {
        let fake: &Fake = (&*fan.lanes[lane] as &dyn Any).downcast_ref().unwrap();
        fake.heard.lock().unwrap().clone()
    }

    #[test]
    fn every_backend_gets_back_what_it_answered_and_nothing_for_what_it_did_not_take() {
        let fan = fan_of(vec![fake(7, true), fake(8, false), fake(u16::MAX, true), fake(9, true)]);
        let label = Label::new(Fields::new(Scope::DRAFT));
        let token = fan.push(&label);
        fan.pop(token);
        let span = fan.start(&label);
        fan.stop(span);
        for (lane, bits) in [(0, 7), (2, u16::MAX), (3, 9)] {
            let expected = [
                "push ds4.draft".into(),
                format!("pop {bits}"),
                "start ds4.draft".into(),
                format!("stop {bits}"),
            ];
            assert_eq!(heard(&fan, lane), expected);
        }
        assert_eq!(heard(&fan, 1), ["push ds4.draft", "start ds4.draft"]);
        assert_eq!(fan.counters().pushed, 4);
    }

    /// Takes everything and writes what ends into a list that several share.
    struct Ends(u16, std::sync::Arc<std::sync::Mutex<Vec<u16>>>);

    impl Marker for Ends {
        fn name(&self) -> &'static str {
            "ends"
        }
        fn push(&self, _: &Label) -> Token {
            Token::new(self.0)
        }
        fn pop(&self, token: Token) {
            self.1.lock().unwrap().push(token.bits());
        }
        fn mark(&self, _: &Label) {}
        fn start(&self, _: &Label) -> SpanId {
            SpanId::new(self.0.into())
        }
        fn stop(&self, span: SpanId) {
            self.1.lock().unwrap().push(span.id() as u16);
        }
        fn counters(&self) -> Counters {
            Counters::default()
        }
    }

    #[test]
    fn what_opened_last_closes_first() {
        let ended = std::sync::Arc::default();
        let lane = |bits| -> Box<dyn Lane> { Box::new(Ends(bits, std::sync::Arc::clone(&ended))) };
        let fan = fan_of(vec![lane(1), lane(2), lane(3)]);
        let label = Label::text("anything");
        fan.pop(fan.push(&label));
        fan.stop(fan.start(&label));
        assert_eq!(*ended.lock().unwrap(), [3, 2, 1, 3, 2, 1], "the backends nest in one another");
    }

    #[test]
    fn phases_are_counted_by_scope_and_mode_when_somebody_took_them() {
        let leaf = |mode| Label::new(Fields::new(Scope::LAYER_RANGE).mode(mode).tokens(1));
        let fan = fan_of(vec![fake(1, false), fake(1, true)]);
        for label in [leaf(Phase::Verify), leaf(Phase::Verify), leaf(Phase::Decode), Label::text("mine")] {
            fan.push(&label);
        }
        fan.start(&Label::new(Fields::new(Scope::REQUEST).tokens(64)));
        fan.mark(&leaf(Phase::Verify));
        let expected = [("ds4.layer_range decode", 1), ("ds4.layer_range verify", 2), ("ds4.request", 1)];
        assert_eq!(fan.phases.named(), expected.map(|(name, count)| (name.to_owned(), count)).into());

        let deaf = fan_of(vec![fake(1, false)]);
        deaf.push(&leaf(Phase::Verify));
        assert!(deaf.phases.named().is_empty());
    }
}
