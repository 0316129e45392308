//! The first word of a label.

/// What a range is about. The `ds4.*` scopes are the vocabulary; do not invent another inside the engine.
/// Programs of one's own use [`Scope::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scope(&'static str);

impl Scope {
    /// A whole prompt.
    pub const PREFILL: Scope = Scope("ds4.prefill");
    /// A whole speculative generation of one request.
    pub const SPEC_DECODE: Scope = Scope("ds4.spec_decode");
    /// One forward pass of the target over one shard's layers. A leaf: never one inside another.
    pub const LAYER_RANGE: Scope = Scope("ds4.layer_range");
    /// One request, with its budget as `tokens`. Only at [`Detail::Full`](crate::Detail::Full).
    pub const REQUEST: Scope = Scope("ds4.request");
    /// One round of drafting, with the drafted count. Only at full detail.
    pub const DRAFT: Scope = Scope("ds4.draft");
    /// One roll back, with the dropped count. Only at full detail.
    pub const ROLLBACK: Scope = Scope("ds4.rollback");
    /// Choosing tokens from logits, with the row count. Only at full detail.
    pub const SAMPLE: Scope = Scope("ds4.sample");

    /// The vocabulary's scopes, those of detail level `phases` first.
    pub const ALL: [Scope; 7] = [
        Scope::PREFILL,
        Scope::SPEC_DECODE,
        Scope::LAYER_RANGE,
        Scope::REQUEST,
        Scope::DRAFT,
        Scope::ROLLBACK,
        Scope::SAMPLE,
    ];

    /// A scope of one's own. A NUL in it is replaced in the label and a name past 255 bytes is cut.
    pub const fn new(name: &'static str) -> Scope {
        Scope(name)
    }

    /// The scope's text.
    #[inline]
    pub const fn name(self) -> &'static str {
        self.0
    }
}
