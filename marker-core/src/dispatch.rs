//! Who hears the ranges: a backend passed as a value, or the one that the process installed.

use core::fmt;

use crate::{Fields, Label, Marker, Span, range, table};

/// How much is marked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// The phases: prefill, speculative decode and the leaves.
    #[default]
    Phases,
    /// Also requests, drafts, roll backs and sampling, and numbers as payloads where a tool has them.
    Full,
}

/// A backend is installed already: the choice is made once a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlreadyInstalled;

impl fmt::Display for AlreadyInstalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a marker backend is installed already, and the choice is made once a process")
    }
}

impl core::error::Error for AlreadyInstalled {}

cfg_if::cfg_if! {
    if #[cfg(feature = "enabled")] {
        use core::sync::atomic::{AtomicU8, Ordering};
        use spin::Once;

        static INSTALLED: Once<&'static dyn Marker> = Once::new();
        /// 0: off; 1: phases; 2: full. Read on every range, so it stands apart from what it guards.
        static GATE: AtomicU8 = AtomicU8::new(0);

        /// A handle to whoever hears the ranges, or to nobody. Cheap to copy.
        #[derive(Clone, Copy)]
        pub struct Markers<'m> {
            to: Option<&'m dyn Marker>,
            detail: Detail,
        }

        impl<'m> Markers<'m> {
            /// Nobody hears.
            pub const OFF: Markers<'static> = Markers { to: None, detail: Detail::Phases };

            /// `marker` hears, at this level of detail.
            #[inline]
            pub const fn new(marker: &'m dyn Marker, detail: Detail) -> Self {
                Markers { to: Some(marker), detail }
            }

            /// Whoever [`install`] named hears; nobody before that.
            #[inline]
            pub fn global() -> Markers<'static> {
                // Relaxed is enough: `Once` orders the read of what the gate guards.
                match GATE.load(Ordering::Relaxed) {
                    0 => Markers::OFF,
                    level => Markers {
                        to: INSTALLED.get().copied(),
                        detail: if level == 1 { Detail::Phases } else { Detail::Full },
                    },
                }
            }

            /// The backend behind this handle.
            #[inline]
            pub const fn backend(self) -> Option<&'m dyn Marker> {
                self.to
            }

            /// How much is to be marked.
            #[inline]
            pub const fn detail(self) -> Detail {
                self.detail
            }
        }
    } else {
        /// A handle to nobody: no backend but the null one is compiled in.
        #[derive(Clone, Copy)]
        pub struct Markers<'m>(core::marker::PhantomData<&'m ()>);

        impl<'m> Markers<'m> {
            /// Nobody hears.
            pub const OFF: Markers<'static> = Markers(core::marker::PhantomData);

            /// Nobody hears: no backend but the null one is compiled in.
            #[inline]
            pub const fn new(_marker: &'m dyn Marker, _detail: Detail) -> Self {
                Markers(core::marker::PhantomData)
            }

            /// Nobody hears.
            #[inline]
            pub fn global() -> Markers<'static> {
                Markers::OFF
            }

            /// None.
            #[inline]
            pub const fn backend(self) -> Option<&'m dyn Marker> {
                None
            }

            /// The least.
            #[inline]
            pub const fn detail(self) -> Detail {
                Detail::Phases
            }
        }
    }
}

/// Makes `marker` the process's backend, which [`Markers::global`] reaches from then on, at any time and
/// from any thread. Without the feature `enabled` it is accepted and never called.
///
/// # Errors
/// [`AlreadyInstalled`] from the second call on; the first choice stays.
pub fn install(marker: &'static dyn Marker, detail: Detail) -> Result<(), AlreadyInstalled> {
    cfg_if::cfg_if! {
        if #[cfg(feature = "enabled")] {
            let mut first = false;
            INSTALLED.call_once(|| {
                first = true;
                marker
            });
            if !first {
                return Err(AlreadyInstalled);
            }
            GATE.store(if detail == Detail::Phases { 1 } else { 2 }, Ordering::Release);
        } else {
            let _ = (marker, detail);
        }
    }
    Ok(())
}

impl<'m> Markers<'m> {
    /// Whether anybody hears.
    #[inline]
    pub const fn is_on(self) -> bool {
        self.backend().is_some()
    }

    /// This handle if [`Detail::Full`] was asked for, else one that nobody hears.
    #[inline]
    #[must_use]
    pub const fn at_full_detail(self) -> Markers<'m> {
        match self.detail() {
            Detail::Full => self,
            Detail::Phases => Markers::OFF,
        }
    }

    /// Runs `work` inside a range.
    #[inline]
    pub fn within<T>(self, fields: impl Into<Fields>, work: impl FnOnce() -> T) -> T {
        range!(self, fields);
        work()
    }

    /// Marks a moment.
    #[inline]
    pub fn mark(self, fields: impl Into<Fields>) {
        if let Some(marker) = self.backend() {
            let fields = fields.into();
            match table::at_home(&fields) {
                Ok(label) => marker.mark(label),
                Err(hash) => mark_away(marker, fields, hash),
            }
        }
    }

    /// Opens a range that may be closed on any thread, in any order with others.
    #[inline]
    pub fn start(self, fields: impl Into<Fields>) -> Span<'m> {
        let Some(marker) = self.backend() else { return Span::off() };
        let fields = fields.into();
        match table::at_home(&fields) {
            Ok(label) => Span::start(marker, label),
            Err(hash) => start_away(marker, fields, hash),
        }
    }

    /// Names the calling thread in the trace.
    pub fn name_thread(self, name: &str) {
        if let Some(marker) = self.backend() {
            marker.name_thread(&Label::text(name));
        }
    }
}

/// Apart, so that a mark whose label is at home sets up nothing for this.
#[inline(never)]
fn mark_away(marker: &dyn Marker, fields: Fields, hash: u64) {
    with_label_away(fields, hash, |label| marker.mark(label));
}

/// Apart, as above.
#[inline(never)]
fn start_away(marker: &dyn Marker, fields: Fields, hash: u64) -> Span<'_> {
    with_label_away(fields, hash, |label| Span::start(marker, label))
}

#[inline]
fn with_label_away<T>(fields: Fields, hash: u64, use_it: impl FnOnce(&Label) -> T) -> T {
    match table::away(&fields, hash) {
        Some(label) => use_it(label),
        None => use_it(&Label::new(fields)),
    }
}

impl fmt::Debug for Markers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Markers({}, {:?})", self.backend().map_or("off", Marker::name), self.detail())
    }
}
