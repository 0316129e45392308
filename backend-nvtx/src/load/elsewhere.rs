//! Systems on which no tool attaches.

use super::{LoadError, Loader, Source};

/// There is never one.
#[derive(Debug)]
pub(crate) enum Entry {}

impl Entry {
    pub(crate) fn attach(self) -> Result<Source, LoadError> {
        match self {}
    }
}

impl Loader {
    /// Never: no tool can attach here.
    pub fn is_requested(&self) -> bool {
        false
    }

    #[allow(clippy::unused_self, reason = "on Linux it is used")]
    pub(crate) fn resolve(&self) -> Result<Option<Entry>, LoadError> {
        Err(LoadError::NotOnThisSystem)
    }
}
