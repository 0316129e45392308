//! What leaves the process: text as it comes, and files whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::error::CliError;
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

/// A file to be written at the end, after it was seen that it can be.
pub(super) struct OutputFile {
    path: PathBuf,
    /// Written in place, and open since it was checked: a pipe or a device has no other file to take its place, and
    /// who reads a pipe would take a second opening for the end.
    in_place: Option<File>,
}

impl OutputFile {
    /// Sees that `path` can be written, and leaves it as it is.
    pub(super) fn check(path: &Path) -> Result<Self, CliError> {
        let unwritable = |why| CliError::Unwritable { path: path.to_owned(), why };
        let file = match fs::metadata(path) {
            Ok(there) if there.is_dir() => return Err(unwritable(io::ErrorKind::IsADirectory.into())),
            Ok(there) => {
                let open = OpenOptions::new().write(true).open(path).map_err(unwritable)?;
                // A link keeps pointing where it points: what it names is replaced.
                let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
                OutputFile { path, in_place: (!there.is_file()).then_some(open) }
            }
            Err(_) if path.file_name().is_none() || path.as_os_str().as_encoded_bytes().ends_with(b"/") => {
                return Err(unwritable(io::ErrorKind::IsADirectory.into()));
            }
            Err(_) => OutputFile { path: path.to_owned(), in_place: None },
        };
        if file.in_place.is_none() {
            let aside = file.aside();
            OpenOptions::new().write(true).create_new(true).open(&aside).map_err(unwritable)?;
            let _ = fs::remove_file(&aside);
        }
        Ok(file)
    }

    /// Where it will be.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether one of the two would take the other's place, by whatever path each was named.
    pub(super) fn replaces(&self, other: &Self) -> bool {
        let folder = |path: &Path| {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()
        };
        self.in_place.is_none()
            && other.in_place.is_none()
            && self.path.file_name() == other.path.file_name()
            && folder(&self.path) == folder(&other.path)
    }

    /// Lets `write` write the file and puts it in its place when that succeeded.
    pub(super) fn write(&self, write: impl FnOnce(File) -> io::Result<()>) -> Result<(), CliError> {
        let written = if let Some(open) = &self.in_place {
            open.try_clone().and_then(write)
        } else {
            let aside = self.aside();
            let written = File::create(&aside).and_then(write);
            written.and_then(|()| fs::rename(&aside, &self.path)).inspect_err(|_| {
                let _ = fs::remove_file(&aside);
            })
        };
        written.map_err(|why| CliError::Unwritable { path: self.path.clone(), why })
    }

    /// A file beside it that a rename can put in its place.
    fn aside(&self) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!(".{name}.{}.part", std::process::id()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_there_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stats.json");
        let file = OutputFile::check(&path).unwrap();
        assert!(files(folder.path()).is_empty(), "a check leaves nothing");

        let failed = file.write(|mut out| {
            out.write_all(b"half")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert!(matches!(failed, Err(CliError::Unwritable { .. })));
        assert!(files(folder.path()).is_empty());

        file.write(|mut out| out.write_all(b"whole")).unwrap();
        assert_eq!(files(folder.path()), ["stats.json"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole");
    }

    #[test]
    fn what_cannot_be_written_is_told_before_the_work() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing/stats.json");
        let new_folder = folder.path().join("new/");
        for path in [folder.path(), &missing, &new_folder, Path::new("")] {
            assert!(
                matches!(OutputFile::check(path), Err(CliError::Unwritable { .. })),
                "{}",
                path.display()
            );
        }
        assert!(files(folder.path()).is_empty());
    }

    #[cfg(unix)]
    #[test]
    fn a_link_keeps_pointing_where_it_points_and_a_device_is_written_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        OutputFile::check(&link).unwrap().write(|mut out| out.write_all(b"new")).unwrap();
        assert_eq!(fs::read_to_string(&real).unwrap(), "new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());

        OutputFile::check(Path::new("/dev/null")).unwrap().write(|mut out| out.write_all(b"gone")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn two_names_of_one_file_are_told_and_two_files_are_not() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("in")).unwrap();
        let check = |name: &str| OutputFile::check(&folder.path().join(name)).unwrap();
        let (plain, roundabout) = (check("a.json"), check("in/../a.json"));
        assert!(plain.replaces(&roundabout) && plain.replaces(&check("./a.json")));
        assert!(!plain.replaces(&check("b.json")) && !plain.replaces(&check("in/a.json")));
        #[cfg(unix)]
        {
            let null = || OutputFile::check(Path::new("/dev/null")).unwrap();
            assert!(!null().replaces(&null()), "nothing takes the place of a device");
        }
    }
}
