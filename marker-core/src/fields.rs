//! What a label says, before it is text.

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
#[derive(Clone, Copy, Debug)]
pub struct Fields {
    scope: Scope,
    tokens: u64,
    layer_begin: u32,
    layer_end: u32,
    device: u32,
    mode: Phase,
    present: u8,
}

const MODE: u8 = 1;
const TOKENS: u8 = 2;
const LAYERS: u8 = 4;
const DEVICE: u8 = 8;

impl Fields {
    /// A scope alone.
    #[inline]
    pub const fn new(scope: Scope) -> Self {
        Fields {
            scope,
            tokens: 0,
            layer_begin: 0,
            layer_end: 0,
            device: 0,
            mode: Phase::Unspecified,
            present: 0,
        }
    }

    /// Adds `mode=`.
    #[inline]
    #[must_use]
    pub const fn mode(mut self, mode: Phase) -> Self {
        self.mode = mode;
        self.present |= MODE;
        self
    }

    /// Adds `tokens=`: rows in the pass, prompt tokens, budget; section 2 of the vocabulary says which.
    #[inline]
    #[must_use]
    pub const fn tokens(mut self, tokens: u64) -> Self {
        self.tokens = tokens;
        self.present |= TOKENS;
        self
    }

    /// Adds `layer_begin=` and `layer_end=`, the end exclusive.
    #[inline]
    #[must_use]
    pub const fn layers(mut self, layers: Range<u32>) -> Self {
        self.layer_begin = layers.start;
        self.layer_end = layers.end;
        self.present |= LAYERS;
        self
    }

    /// Adds `device=`: the device's ordinal on its host, 0 for the CPU.
    #[inline]
    #[must_use]
    pub const fn device(mut self, device: u32) -> Self {
        self.device = device;
        self.present |= DEVICE;
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
        if self.present & MODE == 0 { None } else { Some(self.mode) }
    }

    /// The token count, if the label has one.
    #[inline]
    pub const fn get_tokens(&self) -> Option<u64> {
        if self.present & TOKENS == 0 { None } else { Some(self.tokens) }
    }

    /// The layers, end exclusive, if the label has them.
    #[inline]
    pub const fn get_layers(&self) -> Option<Range<u32>> {
        if self.present & LAYERS == 0 { None } else { Some(self.layer_begin..self.layer_end) }
    }

    /// The device's ordinal, if the label has one.
    #[inline]
    pub const fn get_device(&self) -> Option<u32> {
        if self.present & DEVICE == 0 { None } else { Some(self.device) }
    }

    /// A hash that is the same in every process: it picks a slot in the table, nothing else.
    #[inline]
    pub(crate) const fn hash(&self) -> u64 {
        const K: u64 = 0x9e37_79b9_7f4a_7c15;
        let name = self.scope.name().as_bytes();
        let tail = if name.is_empty() {
            0
        } else {
            name[name.len() - 1] as u64 | (name[name.len() / 2] as u64) << 8
        };
        let mut h = tail | (name.len() as u64) << 16 | (self.mode as u64) << 32 | (self.present as u64) << 40;
        h = (h ^ self.tokens.rotate_left(17)).wrapping_mul(K);
        h = (h ^ (h >> 29) ^ ((self.layer_begin as u64) << 32 | self.layer_end as u64)).wrapping_mul(K);
        h = (h ^ (h >> 29) ^ self.device as u64).wrapping_mul(K);
        h ^ (h >> 32)
    }
}

impl PartialEq for Fields {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (self.scope.name(), other.scope.name());
        // Nearly every comparison is of one static string with itself.
        let same_scope = (core::ptr::eq(a.as_ptr(), b.as_ptr()) && a.len() == b.len()) || a == b;
        same_scope
            && self.tokens == other.tokens
            && self.layer_begin == other.layer_begin
            && self.layer_end == other.layer_end
            && self.device == other.device
            && self.mode as i32 == other.mode as i32
            && self.present == other.present
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
