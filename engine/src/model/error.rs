//! What can be wrong with a model on disk.

/// A model that cannot be used, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {}
