//! The mode of a range as a checked value: what a label spells and what the wire carries.

use core::fmt;

/// What kind of work a range encloses. The nine values and their wire numbers are the vocabulary's own
/// and shared with other implementations: never renumber them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(i32)]
pub enum Phase {
    /// No mode was given.
    #[default]
    Unspecified = 0,
    /// Prefill by the very kernels that decode uses, token by token.
    Exact = 1,
    /// Prefill through the large-matrix path, in chunks.
    Dense = 2,
    /// Reserved.
    Sparse = 3,
    /// One ordinary target-only token.
    Decode = 4,
    /// Any target pass inside a speculative decode, also one that had nothing drafted.
    Verify = 5,
    /// Speculative decode, one row a pass, from a KV snapshot that is restored after a rejection.
    ReferenceExact = 6,
    /// Speculative decode that verifies one row a pass and stops at the first disagreement.
    Sequential = 7,
    /// Speculative decode that verifies a block in one pass.
    Batched = 8,
}

/// A number that names no phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAPhase(
    /// The number that was read.
    pub i32,
);

impl fmt::Display for NotAPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is no phase: the wire values are 0 (unspecified) to 8 (batched)", self.0)
    }
}

impl core::error::Error for NotAPhase {}

impl Phase {
    /// Every phase, in wire order.
    pub const ALL: [Phase; 9] = [
        Phase::Unspecified,
        Phase::Exact,
        Phase::Dense,
        Phase::Sparse,
        Phase::Decode,
        Phase::Verify,
        Phase::ReferenceExact,
        Phase::Sequential,
        Phase::Batched,
    ];

    /// The number that stands for this phase on the wire.
    #[inline]
    pub const fn wire(self) -> i32 {
        self as i32
    }

    /// The phase that a number on the wire stands for.
    ///
    /// # Errors
    /// [`NotAPhase`] for anything outside `0..=8`.
    pub const fn from_wire(value: i32) -> Result<Self, NotAPhase> {
        if value >= 0 && (value as usize) < Self::ALL.len() {
            Ok(Self::ALL[value as usize])
        } else {
            Err(NotAPhase(value))
        }
    }

    /// The four bytes of this phase on the wire: an `i32`, little endian.
    pub const fn to_le_bytes(self) -> [u8; 4] {
        self.wire().to_le_bytes()
    }

    /// Reads what [`to_le_bytes`](Self::to_le_bytes) wrote.
    ///
    /// # Errors
    /// [`NotAPhase`] when the four bytes hold another number.
    pub const fn from_le_bytes(bytes: [u8; 4]) -> Result<Self, NotAPhase> {
        Self::from_wire(i32::from_le_bytes(bytes))
    }

    /// The word that follows `mode=` in a label.
    #[inline]
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Unspecified => "unspecified",
            Phase::Exact => "exact",
            Phase::Dense => "dense",
            Phase::Sparse => "sparse",
            Phase::Decode => "decode",
            Phase::Verify => "verify",
            Phase::ReferenceExact => "reference_exact",
            Phase::Sequential => "sequential",
            Phase::Batched => "batched",
        }
    }

    /// The phase with this name, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.name() == name)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nine_wire_values_are_checked_both_ways() {
        let spelled = [
            (0, "unspecified"),
            (1, "exact"),
            (2, "dense"),
            (3, "sparse"),
            (4, "decode"),
            (5, "verify"),
            (6, "reference_exact"),
            (7, "sequential"),
            (8, "batched"),
        ];
        assert_eq!(spelled.len(), Phase::ALL.len());
        for (wire, name) in spelled {
            let phase = Phase::from_wire(wire).unwrap();
            assert_eq!((phase.wire(), phase.name()), (wire, name));
            assert_eq!(Phase::from_name(name), Some(phase));
            assert_eq!(Phase::from_le_bytes(phase.to_le_bytes()), Ok(phase));
        }
        for wrong in [-1, 9, i32::MIN, i32::MAX] {
            assert_eq!(Phase::from_wire(wrong), Err(NotAPhase(wrong)));
        }
        assert_eq!(Phase::from_le_bytes([5, 0, 0, 1]), Err(NotAPhase(0x0100_0005)));
        assert_eq!(Phase::from_name("Verify"), None);
    }
}
