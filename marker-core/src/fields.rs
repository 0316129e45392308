//! What a label says, before it is text.

use core::fmt;
use core::ops::Range;

use crate::{Phase, Scope};

/// The meaning of one label: a scope and whichever of mode, tokens, layers and device apply.
///
/// Small and `Copy`, so that it can key the table of formatted labels and reach a backend beside the text.
///
/// ```
/// use marker_core::{Fields, Label, Phase, Scope};
///
/// let fields = Fields::new(Scope::LAYER_RANGE).mode(Phase::Verify).tokens(5).layers(0..8).device(0);
/// assert_eq!(
///     Label::new(fields).as_str(),
///     "ds4.layer_range mode=verify tokens=5 layer_begin=0 layer_end=8 device=0"
/// );
/// ```
#[derive(Clone, Copy)]
pub struct Fields {
    scope: Scope,
    tokens: u64,
    /// The first one above, the end below.
    layers: u64,
    /// The device above; below it the mode's wire value and, lowest, which fields are present. One word, so that
    /// comparing two labels is comparing few.
    rest: u64,
}

const MODE: u64 = 1;
const TOKENS: u64 = 2;
const LAYERS: u64 = 4;
const DEVICE: u64 = 8;

const MODE_AT: u32 = 8;
const MODE_BITS: u64 = 0xff << MODE_AT;
const HALF: u32 = 32;

impl Fields {
    /// A scope alone.
    #[inline]
    pub const fn new(scope: Scope) -> Self {
        Fields { scope, tokens: 0, layers: 0, rest: 0 }
    }

    /// Adds `mode=`.
    #[inline]
    #[must_use]
    pub const fn mode(mut self, mode: Phase) -> Self {
        self.rest = self.rest & !MODE_BITS | (mode.wire() as u64) << MODE_AT | MODE;
        self
    }

    /// Adds `tokens=`: rows in the pass, prompt tokens, budget; section 2 of the vocabulary says which.
    #[inline]
    #[must_use]
    pub const fn tokens(mut self, tokens: u64) -> Self {
        self.tokens = tokens;
        self.rest |= TOKENS;
        self
    }

    /// Adds `layer_begin=` and `layer_end=`, the end exclusive.
    #[inline]
    #[must_use]
    pub const fn layers(mut self, layers: Range<u32>) -> Self {
        self.layers = (layers.start as u64) << HALF | layers.end as u64;
        self.rest |= LAYERS;
        self
    }

    /// Adds `device=`: the device's ordinal on its host, 0 for the CPU.
    #[inline]
    #[must_use]
    pub const fn device(mut self, device: u32) -> Self {
        self.rest = (device as u64) << HALF | self.rest & u32::MAX as u64 | DEVICE;
        self
    }

    /// The scope.
    #[inline]
    pub const fn scope(&self) -> Scope {
        self.scope
    }

    /// The mode, if the label has one.
    #[inline]
    pub const fn get_mode(&self) -> Option<Phase> {
        if self.rest & MODE == 0 { None } else { Some(Phase::ALL[(self.rest >> MODE_AT & 0xff) as usize]) }
    }

    /// The token count, if the label has one.
    #[inline]
    pub const fn get_tokens(&self) -> Option<u64> {
        if self.rest & TOKENS == 0 { None } else { Some(self.tokens) }
    }

    /// The layers, end exclusive, if the label has them.
    #[inline]
    pub const fn get_layers(&self) -> Option<Range<u32>> {
        if self.rest & LAYERS == 0 { None } else { Some((self.layers >> HALF) as u32..self.layers as u32) }
    }

    /// The device's ordinal, if the label has one.
    #[inline]
    pub const fn get_device(&self) -> Option<u32> {
        if self.rest & DEVICE == 0 { None } else { Some((self.rest >> HALF) as u32) }
    }

    /// A hash that is the same in every process: it picks a place in the table, nothing else. Its high bits are
    /// the good ones. One product, since every range waits for it.
    #[inline]
    pub(crate) const fn hash(&self) -> u64 {
        let name = self.scope.name().as_bytes();
        // Enough to tell the vocabulary's scopes apart.
        let middle = if name.is_empty() { 0 } else { name[name.len() / 2] as u64 };
        let scope = middle << 8 | name.len() as u64;
        // What is known where the fields are made stands together, and the counts, which are small, stay apart.
        let known = scope.rotate_left(40) ^ self.rest.rotate_left(18);
        (known ^ self.layers.rotate_left(25) ^ self.tokens).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Whether this is equal and its scope the very same string, which it nearly always is where it is equal.
    #[inline]
    pub(crate) fn is_the_same_as(&self, other: &Self) -> bool {
        let (a, b) = (self.scope.name(), other.scope.name());
        core::ptr::eq(a.as_ptr(), b.as_ptr())
            && a.len() == b.len()
            && self.tokens == other.tokens
            && self.layers == other.layers
            && self.rest == other.rest
    }
}

impl PartialEq for Fields {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.is_the_same_as(other)
            || (self.tokens == other.tokens
                && self.layers == other.layers
                && self.rest == other.rest
                && self.scope == other.scope)
    }
}

#[allow(clippy::missing_fields_in_debug, reason = "they are all there, unpacked")]
impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fields")
            .field("scope", &self.scope)
            .field("mode", &self.get_mode())
            .field("tokens", &self.get_tokens())
            .field("layers", &self.get_layers())
            .field("device", &self.get_device())
            .finish()
    }
}

impl Eq for Fields {}

impl From<Scope> for Fields {
    #[inline]
    fn from(scope: Scope) -> Self {
        Fields::new(scope)
    }
}

impl From<&'static str> for Fields {
    #[inline]
    fn from(name: &'static str) -> Self {
        Fields::new(Scope::new(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_is_given_twice_is_what_it_was_given_last() {
        let once = Fields::new(Scope::PREFILL).mode(Phase::Dense).tokens(2).layers(3..4).device(5);
        let twice = Fields::new(Scope::PREFILL).mode(Phase::Batched).tokens(u64::MAX).layers(9..u32::MAX);
        let twice = twice.device(u32::MAX).mode(Phase::Dense).tokens(2).layers(3..4).device(5);
        assert_eq!(once, twice);
        assert_eq!(once.get_mode(), Some(Phase::Dense));
        assert_eq!((once.get_tokens(), once.get_layers(), once.get_device()), (Some(2), Some(3..4), Some(5)));
    }

    #[test]
    fn labels_that_differ_in_one_field_or_in_what_is_there_are_not_equal() {
        let base = Fields::new(Scope::DRAFT);
        let others = [
            Fields::new(Scope::SAMPLE),
            base.mode(Phase::Unspecified),
            base.tokens(0),
            base.layers(0..0),
            base.device(0),
            base.layers(0..1),
            base.layers(1..1),
            base.device(1),
        ];
        for (at, one) in others.iter().enumerate() {
            assert_ne!(*one, base);
            assert!(others[at + 1..].iter().all(|other| other != one), "{one:?}");
        }
    }

    #[test]
    fn the_labels_of_an_engine_spread_over_the_table() {
        let mut buckets = [0; 64];
        let mut homes = [0; 512];
        for (scope, mode) in [(Scope::LAYER_RANGE, Phase::Verify), (Scope::LAYER_RANGE, Phase::Decode)] {
            for shard in 0..4 {
                for rows in 1..=16 {
                    let layers = shard * 8..shard * 8 + 8;
                    let fields = Fields::new(scope).mode(mode).tokens(rows).layers(layers).device(shard);
                    buckets[(fields.hash() >> 58) as usize] += 1;
                    homes[(fields.hash() >> 55) as usize] += 1;
                }
            }
        }
        assert!(buckets.iter().all(|labels| *labels <= 8), "{buckets:?}");
        // Chance alone would give 113 of these 128 labels a home.
        assert!(homes.iter().filter(|labels| **labels > 0).count() > 100, "{homes:?}");
    }
}
