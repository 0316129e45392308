//! What the engine says that it emitted, against what the trace holds: a profiler that drops ranges is caught.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use serde::Deserialize;

use super::Check;
use crate::model::Severity;
use crate::vocabulary::{Meaning, group};
use crate::{Error, Result};

/// Ranges by scope and mode, as `--stats` writes them: `ds4.layer_range verify`, or the scope alone.
pub type Counts = BTreeMap<String, u64>;

#[derive(Deserialize)]
struct Stats {
    phases: Counts,
}

/// Reads the engine's statistics, one file a process, and sums them.
///
/// # Errors
/// [`Error`] for a file that cannot be read or holds no counts of phases.
pub fn counts<P: AsRef<Path>>(files: &[P]) -> Result<Counts> {
    let mut sum = Counts::new();
    for file in files {
        let file = file.as_ref();
        let opened = File::open(file).map_err(|source| Error::Read { file: file.to_owned(), source })?;
        let stats: Stats = serde_json::from_reader(BufReader::new(opened)).map_err(|error| {
            let place = format!("line {} column {}", error.line(), error.column());
            Error::Malformed {
                file: file.to_owned(),
                place,
                what: format!("no statistics of the engine: {error}"),
            }
        })?;
        for (phase, count) in stats.phases {
            let known = sum.entry(phase).or_default();
            *known = known.saturating_add(count);
        }
    }
    Ok(sum)
}

impl Check<'_> {
    pub(super) fn stats(&mut self, stats: &Counts) {
        // Emitted, seen.
        let mut both: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for (phase, &count) in stats.iter().filter(|(phase, _)| phase.starts_with("ds4.")) {
            both.entry(phase.clone()).or_default().0 = count;
        }
        for (meaning, (count, _)) in self.meanings.iter().zip(&self.seen) {
            if let Meaning::Phase(phase) = meaning
                && *count > 0
            {
                both.entry(group(phase)).or_default().1 += count;
            }
        }
        for (phase, (emitted, seen)) in both {
            if emitted != seen {
                self.add(Severity::Finding, None, || {
                    format!(
                        "{seen} ranges of {phase}; expected {emitted}, which the engine says that it emitted"
                    )
                });
            }
        }
    }
}
