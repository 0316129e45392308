//! A file as memory: the one `unsafe` of this room.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;

/// The bytes of a file, read by the system as they are touched.
pub(super) struct Mapped(Mmap);

impl Mapped {
    /// Maps a regular file. Whoever changes the file meanwhile changes the weights, and whoever shortens it
    /// ends the process, as with every program that maps files.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: the map is private to us and read only. That nobody else writes to a model's files while
        // a model runs is the user's part, as the documentation of `Checkpoint` says; every bit pattern that
        // such a write could leave is a valid `u8`.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Mapped(map))
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
