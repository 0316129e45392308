//! NVTX v3: ranges for Nsight Systems and every other tool that attaches the way it does.
//!
//! NVTX is a protocol, not a library: the tool's own library is named by the environment, opened, and handed a
//! function through which it fills our tables with its functions. That is all that the C headers do, so
//! this crate does it itself and needs neither a C compiler nor libclang nor a library to link.
//!
//! ```text
//! load     which library, which entry, and why not        -> Entry
//! sys      export table, function tables, attributes, calls
//! here     Nvtx: Marker                                   labels -> events, tokens -> pops
//! ```
//!
//! Everything is in the domain `ds4`. A label that has a place in the process-wide table is registered with
//! the tool at its first use, whatever its scope; so the table's size bounds what the tool keeps, and a
//! capture range (`nsys profile -c nvtx -p '<label>@ds4' --capture-range-end=stop`) works for each of them from
//! its first range; without the last option nsys ends the program together with the capture. Labels that have
//! no place in the table are sent as text. Colours follow the mode, categories the vocabulary's scope, and at
//! full detail the token count is the event's payload.
//!
//! Without a tool a range costs a load and a branch.

#![deny(unsafe_code)]

mod load;
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "no tool attaches elsewhere"))]
mod sys;

use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::sync::{Once, OnceLock};

use marker_core::{
    Counters, Detail, Label, Marker, Nesting, Phase, Scope, Shard, SpanId, TABLE_SLOTS, Tally, Token,
};

pub use load::{LoadError, Loader, Source, VARIABLE};

/// The domain of all ranges, as it follows the `@` in a capture range.
pub const DOMAIN: &str = "ds4";

/// The attached tool.
#[derive(Debug)]
struct Tool {
    domain: sys::Domain,
    source: Source,
}

/// The tables that a tool fills are the process's, so everything about the tool is: who attached, what
/// was registered, what is open on each thread, what was counted.
static TOOL: OnceLock<Result<Option<Tool>, LoadError>> = OnceLock::new();
static KNOWN: [OnceLock<Known>; TABLE_SLOTS] = [const { OnceLock::new() }; TABLE_SLOTS];
static TALLY: Tally = Tally::new();

/// What is open on a thread, and where it counts.
struct Local {
    open: Nesting,
    shard: Shard,
}

thread_local! {
    // No destructor: it works while the thread and the process are torn down.
    static LOCAL: Local = const { Local { open: Nesting::new(), shard: Shard::new() } };
}

/// What the tool is told of a label that has a place in the table, made once: a push then only passes it on. Its name is
/// the registered string, or still to be given if the tool registers none.
#[derive(Debug)]
struct Known {
    plain: sys::Event<'static>,
    with_payload: sys::Event<'static>,
}

impl Known {
    #[cold]
    fn introduce(domain: sys::Domain, label: &Label) -> Known {
        let event = sys::Event::of(sys::register(domain, label));
        let (plain, with_payload) = (described(event, label, false), described(event, label, true));
        Known { plain, with_payload }
    }

    #[inline]
    fn event(&self, payloads: bool) -> &sys::Event<'static> {
        if payloads { &self.with_payload } else { &self.plain }
    }
}

/// An event that says of a label all but its name.
fn described<'l>(event: sys::Event<'l>, label: &Label, payloads: bool) -> sys::Event<'l> {
    let Some(fields) = label.fields() else { return event };
    event.category(category(fields.scope())).color(fields.get_mode().map(color)).payload(if payloads {
        fields.get_tokens()
    } else {
        None
    })
}

/// The colour of a mode, 0xAARRGGBB: eight that stay apart for colour-blind readers too, and grey.
const fn color(mode: Phase) -> u32 {
    match mode {
        Phase::Unspecified => 0xff99_9999,
        Phase::Exact => 0xff00_72b2,
        Phase::Dense => 0xff56_b4e9,
        Phase::Sparse => 0xff33_2288,
        Phase::Decode => 0xff00_9e73,
        Phase::Verify => 0xffe6_9f00,
        Phase::ReferenceExact => 0xffcc_79a7,
        Phase::Sequential => 0xffd5_5e00,
        Phase::Batched => 0xfff0_e442,
    }
}

/// The category of a scope: its place in the vocabulary, from 1; 0, which is none, for any other.
fn category(scope: Scope) -> u32 {
    Scope::ALL.iter().position(|known| *known == scope).map_or(0, |at| at as u32 + 1)
}

/// The NVTX backend. All values in a process speak to the same tool, the one that attached first.
#[derive(Clone, Copy, Debug)]
pub struct Nvtx {
    domain: Option<sys::Domain>,
    payloads: bool,
}

impl Nvtx {
    /// Attaches the tool that the environment names, the first time; later calls answer as the first did.
    /// No tool was asked for: a backend that nobody hears.
    ///
    /// # Errors
    /// A tool was asked for and cannot be had, or, off Linux, could never be.
    pub fn load(detail: Detail) -> Result<Nvtx, LoadError> {
        Nvtx::load_from(&Loader::from_environment(), detail)
    }

    /// [`load`](Nvtx::load), looking where `loader` says.
    ///
    /// # Errors
    /// As [`load`](Nvtx::load).
    pub fn load_from(loader: &Loader, detail: Detail) -> Result<Nvtx, LoadError> {
        let tool =
            TOOL.get_or_init(|| loader.resolve()?.map(|entry| entry.attach().map(introduce)).transpose());
        let tool = tool.as_ref().map_err(Clone::clone)?;
        Ok(Nvtx { domain: tool.as_ref().map(|tool| tool.domain), payloads: detail == Detail::Full })
    }

    /// [`load`](Nvtx::load); where that fails, says why on standard error, once a process, and answers with a
    /// backend that nobody hears.
    pub fn load_or_diagnose(detail: Detail) -> Nvtx {
        static DIAGNOSED: Once = Once::new();
        Nvtx::load(detail).unwrap_or_else(|error| {
            // A closed standard error is no reason to stop the work.
            DIAGNOSED.call_once(|| drop(writeln!(std::io::stderr(), "{error}")));
            Nvtx { domain: None, payloads: false }
        })
    }

    /// Whether a tool asked for NVTX: what `auto` wants to know. Opens no library.
    pub fn is_requested() -> bool {
        Loader::from_environment().is_requested()
    }

    /// Whether a tool hears the ranges.
    pub const fn is_attached(&self) -> bool {
        self.domain.is_some()
    }

    /// What is known of the tool, for people. Loads nothing: call [`load`](Nvtx::load) first to know more.
    pub fn report() -> Report {
        let state = match TOOL.get() {
            None => State::NotLoaded,
            Some(Err(error)) => State::Failed(error.clone()),
            Some(Ok(None)) => State::NoTool,
            Some(Ok(Some(tool))) => {
                State::Attached { source: tool.source.clone(), filled: sys::filled(), of: sys::FILLABLE }
            }
        };
        Report { variable: std::env::var_os(VARIABLE), state }
    }

    /// What a push is worth when somebody hears: apart, so that one which nobody hears saves no register.
    #[inline(never)]
    fn open(&self, domain: sys::Domain, local: &Local, label: &Label) -> Token {
        if local.shard.is_own() {
            self.open_counted(domain, local, label)
        } else {
            self.open_elsewhere(domain, local, label)
        }
    }

    #[cold]
    #[inline(never)]
    fn open_elsewhere(&self, domain: sys::Domain, local: &Local, label: &Label) -> Token {
        self.open_counted(domain, local, label)
    }

    #[inline]
    fn open_counted(&self, domain: sys::Domain, local: &Local, label: &Label) -> Token {
        let Some(nested) = sys::nested() else {
            TALLY.failed(&local.shard);
            return Token::NOT_TAKEN;
        };
        // The tool's answer means nothing, so all this comes first and is not kept for after the call.
        TALLY.pushed(&local.shard);
        let token = local.open.push();
        self.tell(domain, label, |event| nested.push(domain, event));
        token
    }

    /// What a start is worth when somebody hears, 0 if it did not take. A number and not a [`SpanId`], which is returned
    /// through memory.
    #[inline(never)]
    fn start_on(&self, domain: sys::Domain, local: &Local, label: &Label) -> u64 {
        if local.shard.is_own() {
            self.start_counted(domain, local, label)
        } else {
            self.start_elsewhere(domain, local, label)
        }
    }

    #[cold]
    #[inline(never)]
    fn start_elsewhere(&self, domain: sys::Domain, local: &Local, label: &Label) -> u64 {
        self.start_counted(domain, local, label)
    }

    #[inline]
    fn start_counted(&self, domain: sys::Domain, local: &Local, label: &Label) -> u64 {
        let Some(spans) = sys::spans() else {
            TALLY.failed(&local.shard);
            return 0;
        };
        TALLY.pushed(&local.shard);
        match self.tell(domain, label, |event| spans.start(domain, event)) {
            0 => ID_ZERO,
            id => id,
        }
    }

    /// Passes on what the tool is to be told of a label.
    #[inline]
    fn tell<T>(&self, domain: sys::Domain, label: &Label, pass_on: impl FnOnce(&sys::Event<'_>) -> T) -> T {
        match label.slot().and_then(|slot| KNOWN.get(slot)?.get()).map(|known| known.event(self.payloads)) {
            Some(event) if event.has_name() => pass_on(event),
            _ => self.tell_anew(domain, label, pass_on),
        }
    }

    /// Of a label that the tool does not know, or knows by no string. Apart, so that the others set no room for it aside.
    #[inline(never)]
    fn tell_anew<T>(
        &self,
        domain: sys::Domain,
        label: &Label,
        pass_on: impl FnOnce(&sys::Event<'_>) -> T,
    ) -> T {
        match label.slot().and_then(|slot| KNOWN.get(slot)) {
            Some(known) => {
                let known = known.get_or_init(|| Known::introduce(domain, label));
                pass_on(&known.event(self.payloads).named_by(label))
            }
            None => pass_on(&described(sys::Event::of(None).named_by(label), label, self.payloads)),
        }
    }
}

#[inline(never)]
fn close(domain: sys::Domain, local: &Local, token: Token) {
    match local.open.pop(token) {
        1 if local.shard.is_own() => {
            TALLY.popped(&local.shard, 1);
            // Last, so that nothing has to be kept for after it.
            sys::pop(domain);
        }
        pops => close_others(domain, local, pops),
    }
}

#[cold]
#[inline(never)]
fn close_others(domain: sys::Domain, local: &Local, pops: u32) {
    TALLY.popped(&local.shard, pops);
    for _ in 0..pops {
        sys::pop(domain);
    }
}

#[inline(never)]
fn stop_on(domain: sys::Domain, local: &Local, id: u64) {
    if local.shard.is_own() {
        TALLY.popped(&local.shard, 1);
        // Last, so that nothing has to be kept for after it.
        sys::end(domain, of_the_tool(id));
    } else {
        stop_elsewhere(domain, local, id);
    }
}

#[cold]
#[inline(never)]
fn stop_elsewhere(domain: sys::Domain, local: &Local, id: u64) {
    TALLY.popped(&local.shard, 1);
    sys::end(domain, of_the_tool(id));
}

/// Tells a tool that has just attached who we are.
fn introduce(source: Source) -> Tool {
    let domain = sys::create_domain(c"ds4");
    for scope in Scope::ALL {
        sys::name_category(domain, category(scope), &Label::text(scope.name()));
    }
    Tool { domain, source }
}

/// No tool answers with this id, which in C reads as -1. It stands for the id 0, which is one like any
/// other to a tool and "not taken" to us.
const ID_ZERO: u64 = u64::MAX;

/// The tool's own id of one that we gave out.
#[inline]
const fn of_the_tool(id: u64) -> u64 {
    if id == ID_ZERO { 0 } else { id }
}

impl Marker for Nvtx {
    fn name(&self) -> &'static str {
        "nvtx"
    }

    #[inline]
    fn push(&self, label: &Label) -> Token {
        self.domain.map_or(Token::NOT_TAKEN, |domain| LOCAL.with(|local| self.open(domain, local, label)))
    }

    #[inline]
    fn pop(&self, token: Token) {
        if let Some(domain) = self.domain {
            LOCAL.with(|local| close(domain, local, token));
        }
    }

    fn mark(&self, label: &Label) {
        if let Some(domain) = self.domain {
            self.tell(domain, label, |event| sys::mark(domain, event));
        }
    }

    #[inline]
    fn start(&self, label: &Label) -> SpanId {
        self.domain.map_or(SpanId::NOT_TAKEN, |domain| {
            SpanId::new(LOCAL.with(|local| self.start_on(domain, local, label)))
        })
    }

    #[inline]
    fn stop(&self, span: SpanId) {
        if let Some(domain) = self.domain
            && span.id() != 0
        {
            LOCAL.with(|local| stop_on(domain, local, span.id()));
        }
    }

    fn name_thread(&self, name: &Label) {
        // An empty name makes nsys 2022.4 lose thousands of events around it.
        if self.is_attached() && !name.as_bytes().is_empty() {
            sys::name_thread(name);
        }
    }

    fn counters(&self) -> Counters {
        TALLY.counters()
    }
}

/// Where this process stands with its NVTX tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What [`VARIABLE`] holds.
    pub variable: Option<OsString>,
    /// What came of it.
    pub state: State,
}

/// What came of looking for a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Nobody looked.
    NotLoaded,
    /// No tool was asked for.
    NoTool,
    /// A tool attached.
    Attached {
        /// Where it was found.
        source: Source,
        /// How many functions it gave.
        filled: usize,
        /// How many it could give.
        of: usize,
    },
    /// A tool was asked for and is not there.
    Failed(LoadError),
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.variable {
            Some(library) => write!(f, "{VARIABLE}={}; ", library.display())?,
            None => write!(f, "{VARIABLE} is not set; ")?,
        }
        match &self.state {
            State::NotLoaded => f.write_str("not loaded"),
            State::NoTool => f.write_str("no tool attached"),
            State::Attached { source, filled, of } => {
                write!(f, "tool attached through {source}, {filled} of {of} functions filled")
            }
            State::Failed(error) => write!(f, "no tool attached: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scope_has_a_category_and_each_mode_a_colour_of_its_own() {
        let categories: Vec<_> = Scope::ALL.into_iter().map(category).collect();
        assert_eq!(categories, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(category(Scope::new("load weights")), 0);
        let mut colors = Phase::ALL.map(color);
        assert!(colors.iter().all(|argb| argb >> 24 == 0xff), "none is transparent");
        colors.sort_unstable();
        assert!(colors.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn the_domain_has_one_name() {
        assert_eq!(c"ds4".to_str(), Ok(DOMAIN));
    }
}
