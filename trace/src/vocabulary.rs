//! The vocabulary, read back from a label's text.
//!
//! `<scope> mode=<mode> tokens=<n> layer_begin=<n> layer_end=<n> device=<n>`, byte for byte: the fields in this
//! order, each at most once, one space before each, numbers without sign or leading zero. Which fields a scope
//! carries, and where it may stand, is written here once.

/// A scope of the vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// A whole prompt.
    Prefill,
    /// A whole speculative generation.
    SpecDecode,
    /// One target pass over one shard's layers: the leaf.
    LayerRange,
    /// A request.
    Request,
    /// A round of drafting.
    Draft,
    /// Dropping what was rejected.
    Rollback,
    /// Choosing tokens.
    Sample,
}

impl Scope {
    const ALL: [(Scope, &'static str); 7] = [
        (Scope::Prefill, "ds4.prefill"),
        (Scope::SpecDecode, "ds4.spec_decode"),
        (Scope::LayerRange, "ds4.layer_range"),
        (Scope::Request, "ds4.request"),
        (Scope::Draft, "ds4.draft"),
        (Scope::Rollback, "ds4.rollback"),
        (Scope::Sample, "ds4.sample"),
    ];

    /// The scope's text.
    pub fn name(self) -> &'static str {
        Scope::ALL.iter().find(|(scope, _)| *scope == self).map_or("", |(_, name)| name)
    }

    /// Whether the scope belongs to detail level `phases` and so carries a mode, layers and a device.
    pub const fn is_phase(self) -> bool {
        matches!(self, Scope::Prefill | Scope::SpecDecode | Scope::LayerRange)
    }

    /// Whether this scope may stand directly inside `parent`; `None` is the top of a thread.
    pub const fn fits_in(self, parent: Option<Scope>) -> bool {
        match self {
            Scope::Request => parent.is_none(),
            Scope::Prefill | Scope::SpecDecode => matches!(parent, None | Some(Scope::Request)),
            Scope::LayerRange => {
                matches!(parent, None | Some(Scope::Request | Scope::Prefill | Scope::SpecDecode))
            }
            // A remote shard rolls back its own cache, and has no parent.
            Scope::Draft | Scope::Rollback => {
                matches!(parent, None | Some(Scope::Request | Scope::SpecDecode))
            }
            // The last shard's leaf encloses the choice of tokens.
            Scope::Sample => !matches!(parent, Some(Scope::Sample | Scope::Rollback)),
        }
    }

    /// Where [`fits_in`](Self::fits_in) says that the scope may stand, for people.
    pub const fn expected_parents(self) -> &'static str {
        match self {
            Scope::Request => "the top of a thread",
            Scope::Prefill | Scope::SpecDecode => "the top of a thread or inside ds4.request",
            Scope::LayerRange => "the top of a thread or inside ds4.prefill, ds4.spec_decode or ds4.request",
            Scope::Draft | Scope::Rollback => "the top of a thread or inside ds4.spec_decode or ds4.request",
            Scope::Sample => "anywhere but inside ds4.sample or ds4.rollback",
        }
    }
}

/// A mode of the vocabulary; the number is its value on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Not told.
    Unspecified = 0,
    /// Prefill by the kernels that decode uses.
    Exact = 1,
    /// Prefill through the large-matrix path.
    Dense = 2,
    /// Reserved.
    Sparse = 3,
    /// One ordinary token.
    Decode = 4,
    /// A target pass inside a speculative decode.
    Verify = 5,
    /// Speculative decode, one row a pass, from a full snapshot.
    ReferenceExact = 6,
    /// Speculative decode, one row a pass.
    Sequential = 7,
    /// Speculative decode, a block a pass.
    Batched = 8,
}

impl Mode {
    const ALL: [(Mode, &'static str); 9] = [
        (Mode::Unspecified, "unspecified"),
        (Mode::Exact, "exact"),
        (Mode::Dense, "dense"),
        (Mode::Sparse, "sparse"),
        (Mode::Decode, "decode"),
        (Mode::Verify, "verify"),
        (Mode::ReferenceExact, "reference_exact"),
        (Mode::Sequential, "sequential"),
        (Mode::Batched, "batched"),
    ];

    /// The mode's text.
    pub fn name(self) -> &'static str {
        Mode::ALL.iter().find(|(mode, _)| *mode == self).map_or("", |(_, name)| name)
    }
}

/// A label of the vocabulary, understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// What the range is about.
    pub scope: Scope,
    /// How.
    pub mode: Option<Mode>,
    /// How many tokens; what is counted depends on the scope.
    pub tokens: Option<u64>,
    /// The layers, end exclusive.
    pub layers: Option<(u32, u32)>,
    /// The device's ordinal on its host.
    pub device: Option<u32>,
}

/// What a label's text is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// A label of the vocabulary.
    Phase(Phase),
    /// It begins with `ds4.` and breaks the vocabulary; the text says how.
    Broken(String),
    /// Somebody else's range.
    Foreign,
}

/// Bytes of a label at most.
const LABEL_MAX: usize = 255;

/// Reads a label.
pub fn read(label: &str) -> Meaning {
    if !label.starts_with("ds4.") {
        return Meaning::Foreign;
    }
    match phase(label) {
        Ok(phase) => Meaning::Phase(phase),
        Err(why) => Meaning::Broken(why),
    }
}

fn phase(label: &str) -> Result<Phase, String> {
    if !label.is_ascii() || label.len() > LABEL_MAX {
        return Err(format!("expected ASCII of at most {LABEL_MAX} bytes"));
    }
    let mut words = label.split(' ');
    let name = words.next().unwrap_or_default();
    let Some(&(scope, _)) = Scope::ALL.iter().find(|(_, known)| *known == name) else {
        let known: Vec<&str> = Scope::ALL.iter().map(|(_, name)| *name).collect();
        return Err(format!("unknown scope {name:?}, expected one of {}", known.join(", ")));
    };
    let mut phase = Phase { scope, mode: None, tokens: None, layers: None, device: None };
    let mut begin = None;
    let mut seen = 0;
    for word in words {
        let Some((field, value)) = word.split_once('=') else {
            return Err(format!("expected field=value separated by one space, found {word:?}"));
        };
        let order = match field {
            "mode" => 1,
            "tokens" => 2,
            "layer_begin" => 3,
            "layer_end" => 4,
            "device" => 5,
            _ => {
                return Err(format!(
                    "unknown field {field:?}, expected mode, tokens, layer_begin, layer_end or device"
                ));
            }
        };
        if order <= seen {
            return Err(format!(
                "field {field} is repeated or out of order, expected mode tokens layer_begin layer_end device"
            ));
        }
        seen = order;
        match field {
            "mode" => {
                let Some(&(mode, _)) = Mode::ALL.iter().find(|(_, known)| *known == value) else {
                    let known: Vec<&str> = Mode::ALL.iter().map(|(_, name)| *name).collect();
                    return Err(format!("unknown mode {value:?}, expected one of {}", known.join(", ")));
                };
                phase.mode = Some(mode);
            }
            "tokens" => phase.tokens = Some(number(field, value)?),
            "layer_begin" => begin = Some(number(field, value)?),
            "layer_end" => {
                let begin = begin.take().ok_or("layer_end without layer_begin")?;
                let end = number(field, value)?;
                if begin >= end {
                    return Err(format!("layers {begin}..{end} are empty, expected layer_begin < layer_end"));
                }
                phase.layers = Some((begin, end));
            }
            _ => phase.device = Some(number(field, value)?),
        }
    }
    if begin.is_some() {
        return Err("layer_begin without layer_end".to_owned());
    }
    fields_of(&phase)?;
    Ok(phase)
}

/// A number as the vocabulary writes it: decimal digits, no sign, no leading zero.
fn number<N: std::str::FromStr>(field: &str, value: &str) -> Result<N, String> {
    let digits = value.bytes().all(|byte| byte.is_ascii_digit()) && (value == "0" || !value.starts_with('0'));
    value
        .parse()
        .ok()
        .filter(|_| digits)
        .ok_or_else(|| format!("{field}={value:?} is not a number that the vocabulary writes"))
}

/// Whether the fields are those that the scope carries.
fn fields_of(phase: &Phase) -> Result<(), String> {
    let name = phase.scope.name();
    if phase.tokens.is_none() {
        return Err(format!("{name} carries tokens=, which is missing"));
    }
    if !phase.scope.is_phase() {
        let bare = phase.mode.is_none() && phase.layers.is_none() && phase.device.is_none();
        return if bare { Ok(()) } else { Err(format!("{name} carries tokens= and nothing else")) };
    }
    let Some(mode) = phase.mode else { return Err(format!("{name} carries mode=, which is missing")) };
    if phase.layers.is_none() {
        return Err(format!("{name} carries layer_begin= and layer_end=, which are missing"));
    }
    if phase.device.is_none() {
        return Err(format!("{name} carries device=, which is missing"));
    }
    let (fits, expected) = match phase.scope {
        Scope::Prefill => (mode <= Mode::Sparse, "exact or dense"),
        Scope::SpecDecode => (
            mode >= Mode::ReferenceExact || mode == Mode::Unspecified,
            "reference_exact, sequential or batched",
        ),
        // A remote shard's leaf has no parent to fit: any mode.
        _ => (true, ""),
    };
    if fits { Ok(()) } else { Err(format!("mode={} on {name}, expected {expected}", mode.name())) }
}

/// A label's scope and mode, as statistics group them: `ds4.prefill exact`, or the scope alone.
pub fn group(phase: &Phase) -> String {
    match phase.mode {
        Some(mode) => format!("{} {}", phase.scope.name(), mode.name()),
        None => phase.scope.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_read_as_it_is_written() {
        let label = "ds4.layer_range mode=verify tokens=4 layer_begin=0 layer_end=8 device=1";
        assert_eq!(
            read(label),
            Meaning::Phase(Phase {
                scope: Scope::LayerRange,
                mode: Some(Mode::Verify),
                tokens: Some(4),
                layers: Some((0, 8)),
                device: Some(1)
            })
        );
        assert!(matches!(read("ds4.draft tokens=4"), Meaning::Phase(_)));
        assert_eq!(read("aten::mm"), Meaning::Foreign);
        assert_eq!(read(""), Meaning::Foreign);
    }

    #[test]
    fn every_departure_from_the_bytes_is_named() {
        for (label, why) in [
            ("ds4.mark, with a comma", "unknown scope"),
            ("ds4.request id=7", "unknown field"),
            ("ds4.request", "carries tokens="),
            ("ds4.draft mode=exact tokens=1", "nothing else"),
            ("ds4.draft  tokens=1", "one space"),
            ("ds4.draft tokens=1 ", "one space"),
            ("ds4.draft tokens=01", "not a number"),
            ("ds4.draft tokens=+1", "not a number"),
            ("ds4.draft tokens=", "not a number"),
            ("ds4.draft tokens=99999999999999999999", "not a number"),
            ("ds4.prefill mode=exakt tokens=1 layer_begin=0 layer_end=8 device=0", "unknown mode"),
            (
                "ds4.prefill mode=verify tokens=1 layer_begin=0 layer_end=8 device=0",
                "expected exact or dense",
            ),
            ("ds4.spec_decode mode=exact tokens=1 layer_begin=0 layer_end=8 device=0", "expected reference"),
            ("ds4.prefill tokens=1 mode=exact layer_begin=0 layer_end=8 device=0", "out of order"),
            ("ds4.prefill mode=exact mode=exact", "repeated"),
            ("ds4.prefill mode=exact tokens=1 layer_begin=8 layer_end=8 device=0", "empty"),
            ("ds4.prefill mode=exact tokens=1 layer_begin=8 device=0", "layer_begin without"),
            ("ds4.prefill mode=exact tokens=1 layer_end=8 device=0", "layer_end without"),
            ("ds4.prefill mode=exact tokens=1 layer_begin=0 layer_end=8", "carries device="),
            ("ds4.préfill", "ASCII"),
        ] {
            match read(label) {
                Meaning::Broken(text) => assert!(text.contains(why), "{label}: {text}"),
                other => panic!("{label}: {other:?}"),
            }
        }
    }
}
