//! What leaves the process: text as it comes, and files whole or not at all.

use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;
#[cfg(unix)]
use std::path::PathBuf;

use whole_file::WholeFile;

use super::error::CliError;
use crate::markers::Assembly;
use crate::model::TextStream;

/// Writes to standard output and flushes, so that a reader sees it now.
pub(super) fn print(text: &str) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => CliError::Closed,
        _ => CliError::Output(error),
    })
}

/// Prints a completion as its tokens come.
pub(super) struct Completion<'a> {
    /// Followed for its end also where it is not printed.
    text: TextStream<'a>,
    /// Whether ids are printed at the end in place of text.
    ids: bool,
    /// All text so far.
    given: String,
    /// What stopped it.
    failed: Option<CliError>,
}

impl<'a> Completion<'a> {
    pub(super) fn new(text: TextStream<'a>, ids: bool) -> Self {
        Completion { text, ids, given: String::new(), failed: None }
    }

    /// Prints what `token` completed, and stops the generation when that cannot be done or a stop string came.
    pub(super) fn emit(&mut self, token: u32) -> ControlFlow<()> {
        let text = match self.text.push(token) {
            // A model may know ids that its tokenizer has no text for; as ids they can be printed.
            Err(_) if self.ids => Ok(String::new()),
            text => text.map_err(CliError::from),
        };
        match text.and_then(|text| self.give(&text)) {
            Ok(()) if self.text.stopped_by().is_none() => ControlFlow::Continue(()),
            Ok(()) => ControlFlow::Break(()),
            Err(error) => {
                self.failed = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    fn give(&mut self, text: &str) -> Result<(), CliError> {
        self.given.push_str(text);
        if self.ids { Ok(()) } else { print(text) }
    }

    /// Prints what is left: the end of the text, or the ids. The whole text.
    pub(super) fn finish(mut self, tokens: &[u32]) -> Result<String, CliError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let rest = self.text.finish()?;
        self.give(&rest)?;
        if self.ids {
            let ids: Vec<_> = tokens.iter().map(u32::to_string).collect();
            print(&format!("[{}]\n", ids.join(",")))?;
        }
        Ok(self.given)
    }
}

/// The files that a run is asked for: seen to be writable before the work, written whole or not at all after it.
pub(super) struct Files {
    record: Option<WholeFile>,
    stats: Option<WholeFile>,
    /// How long a pipe may take nothing.
    #[cfg(unix)]
    patience: Option<std::time::Duration>,
}

/// What a child is told to write, beside its parent's files.
#[cfg(unix)]
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ChildFiles {
    pub(super) record: Option<PathBuf>,
    pub(super) stats: Option<PathBuf>,
}

impl Files {
    /// Sees that each can be written, and that neither would take the other's place.
    pub(super) fn check(record: Option<&Path>, stats: Option<&Path>) -> Result<Self, CliError> {
        let check = |path: &Path| WholeFile::check(path).map_err(|why| unwritable(path, why));
        let (record, stats) = (record.map(check).transpose()?, stats.map(check).transpose()?);
        match (&record, &stats) {
            (Some(record), Some(stats)) if record.replaces(stats) => {
                Err(CliError::SameFile { path: stats.path().to_owned() })
            }
            _ => Ok(Files {
                record,
                stats,
                #[cfg(unix)]
                patience: None,
            }),
        }
    }

    /// The same, but a pipe that takes nothing for so long is a failure.
    #[cfg(unix)]
    pub(super) fn giving_up_after(self, patience: std::time::Duration) -> Self {
        Files { patience: Some(patience), ..self }
    }

    /// The files of the child that is shard `index`, of the names that were asked for: seen to be writable, and to take
    /// no place of this process's own.
    #[cfg(unix)]
    pub(super) fn of_shard(&self, index: usize) -> Result<ChildFiles, CliError> {
        let own = [&self.record, &self.stats];
        let of_shard = |own_file: &Option<WholeFile>| {
            let Some(file) = own_file else { return Ok(None) };
            if file.is_in_place() {
                // A device or a pipe has no others beside it.
                return Ok(Some(file.path().to_owned()));
            }
            let path = of_shard(file.path(), index);
            let childs = WholeFile::check(&path).map_err(|why| unwritable(&path, why))?;
            if own.into_iter().flatten().any(|own| own.replaces(&childs)) {
                return Err(CliError::SameFile { path });
            }
            Ok(Some(path))
        };
        Ok(ChildFiles { record: of_shard(&self.record)?, stats: of_shard(&self.stats)? })
    }

    /// What the recorder heard, where it is asked for.
    pub(super) fn write_record(&self, markers: &Assembly) -> Result<(), CliError> {
        self.write(self.record.as_ref(), |out| markers.save_record(out))
    }

    /// What `json` gives, where statistics are asked for.
    pub(super) fn write_stats(&self, json: impl FnOnce() -> io::Result<String>) -> Result<(), CliError> {
        self.write(self.stats.as_ref(), |out| out.write_all(json()?.as_bytes()))
    }

    fn write(
        &self,
        file: Option<&WholeFile>,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), CliError> {
        let Some(file) = file else { return Ok(()) };
        let write = |mut out: File| {
            #[cfg(unix)]
            if let Some(limit) = self.patience.filter(|_| file.is_in_place()) {
                return write(&mut super::patient::Patient { out, limit });
            }
            write(&mut out)
        };
        file.write(write).map_err(|why| unwritable(file.path(), why))
    }
}

fn unwritable(path: &Path, why: io::Error) -> CliError {
    CliError::Unwritable { path: path.to_owned(), why }
}

/// The name that a child's file has beside its parent's: `.shardN` before the extension.
#[cfg(unix)]
fn of_shard(file: &Path, index: usize) -> PathBuf {
    let mut name = file.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".shard{index}"));
    if let Some(extension) = file.extension() {
        name.push(".");
        name.push(extension);
    }
    file.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_childs_file_has_its_number_before_the_extension() {
        for (file, child) in [
            ("a/b.json", "a/b.shard1.json"),
            ("b", "b.shard1"),
            ("b.tar.gz", "b.tar.shard1.gz"),
            (".b", ".b.shard1"),
        ] {
            assert_eq!(of_shard(Path::new(file), 1), Path::new(child));
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_childs_file_takes_no_place_of_its_parents_and_none_beside_a_device() {
        let folder = tempfile::tempdir().unwrap();
        let (stats, record) = (folder.path().join("k.json"), folder.path().join("k.shard1.json"));
        let files = Files::check(Some(&record), Some(&stats)).unwrap();
        assert!(matches!(files.of_shard(1), Err(CliError::SameFile { path }) if path == record));
        files.of_shard(2).unwrap();

        let null = Path::new("/dev/null");
        let files = Files::check(None, Some(null)).unwrap();
        let expected = ChildFiles { record: None, stats: Some(null.to_owned()) };
        assert_eq!(files.of_shard(1).unwrap(), expected);
    }

    #[test]
    fn a_record_and_statistics_are_two_files() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("a.json"), folder.path().join("./a.json"));
        assert!(matches!(Files::check(Some(&one), Some(&other)), Err(CliError::SameFile { .. })));
        let missing = folder.path().join("missing/a.json");
        assert!(matches!(Files::check(None, Some(&missing)), Err(CliError::Unwritable { .. })));

        let files = Files::check(None, Some(&one)).unwrap();
        files.write_stats(|| Ok("{}".into())).unwrap();
        assert_eq!(std::fs::read_to_string(&one).unwrap(), "{}");
        let failed = files.write_stats(|| Err(io::ErrorKind::StorageFull.into()));
        assert!(matches!(failed, Err(CliError::Unwritable { .. })));
    }
}
