//! A file that is there whole or not at all.
//!
//! It is written beside its place and put there by a rename when all of it was written: whoever looks finds what was
//! there before, or all of the new, and a failure leaves nothing behind. Traces, statistics and reports are written
//! this way, since half of one reads like a whole one of less.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A file to be written, of which it was seen that it can be.
#[derive(Debug)]
pub struct WholeFile {
    path: PathBuf,
    /// Written in place, and open since it was checked: a pipe or a device has no other file to take its place, and
    /// who reads a pipe would take a second opening for the end.
    in_place: Option<File>,
}

impl WholeFile {
    /// Sees that `path` can be written, and leaves it as it is.
    ///
    /// # Errors
    /// Why it cannot: it is a folder, its folder is missing or read-only, or what the system says.
    pub fn check(path: &Path) -> io::Result<Self> {
        let file = match fs::metadata(path) {
            Ok(there) if there.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(there) => {
                let open = OpenOptions::new().write(true).open(path)?;
                // A link keeps pointing where it points: what it names is replaced.
                let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
                WholeFile { path, in_place: (!there.is_file()).then_some(open) }
            }
            Err(_) if path.file_name().is_none() || path.as_os_str().as_encoded_bytes().ends_with(b"/") => {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            Err(_) => WholeFile { path: path.to_owned(), in_place: None },
        };
        if file.in_place.is_none() {
            let beside = file.beside();
            create(&beside)?;
            let _ = fs::remove_file(&beside);
        }
        Ok(file)
    }

    /// Checks `path` and writes it at once.
    ///
    /// # Errors
    /// Those of [`check`](Self::check) and [`write`](Self::write).
    pub fn write_to(path: &Path, write: impl FnOnce(File) -> io::Result<()>) -> io::Result<()> {
        WholeFile::check(path)?.write(write)
    }

    /// Where it will be.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is a device or a pipe, which is written in place.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.in_place.is_some()
    }

    /// Whether one of the two would take the other's place, by whatever path each was named.
    #[must_use]
    pub fn replaces(&self, other: &Self) -> bool {
        let folder = |path: &Path| {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()
        };
        self.in_place.is_none()
            && other.in_place.is_none()
            && self.path.file_name() == other.path.file_name()
            && folder(&self.path) == folder(&other.path)
    }

    /// Lets `write` write the file, and puts it in its place when that succeeded.
    ///
    /// # Errors
    /// What `write` or the system said; the file is then as it was before.
    pub fn write(&self, write: impl FnOnce(File) -> io::Result<()>) -> io::Result<()> {
        if let Some(open) = &self.in_place {
            return open.try_clone().and_then(write);
        }
        let beside = self.beside();
        let done = create(&beside).and_then(write).and_then(|()| fs::rename(&beside, &self.path));
        if done.is_err() {
            // The first failure is the one to tell.
            let _ = fs::remove_file(&beside);
        }
        done
    }

    /// A name in the same folder that nobody else uses: only within one file system is a rename whole or not.
    fn beside(&self) -> PathBuf {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut name = OsString::from(".");
        name.push(self.path.file_name().unwrap_or_default());
        name.push(format!(".{}-{}.partial", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        self.path.with_file_name(name)
    }
}

/// A file that nobody else has: what somebody put there is not written through.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

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
        let file = WholeFile::check(&path).unwrap();
        assert!(files(folder.path()).is_empty(), "a check leaves nothing");
        let half = |mut out: File| {
            out.write_all(b"half")?;
            Err(io::ErrorKind::StorageFull.into())
        };
        assert_eq!(file.write(half).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(files(folder.path()).is_empty());

        file.write(|mut out| out.write_all(b"whole")).unwrap();
        assert_eq!(files(folder.path()), ["stats.json"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole");

        file.write(half).unwrap_err();
        assert_eq!(files(folder.path()), ["stats.json"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole", "what was there stays");
    }

    #[test]
    fn what_cannot_be_written_is_told_before_the_work() {
        let folder = tempfile::tempdir().unwrap();
        let (missing, new) = (folder.path().join("missing/stats.json"), folder.path().join("new/"));
        for path in [folder.path(), &missing, &new, Path::new(""), Path::new("..")] {
            WholeFile::check(path).expect_err(&path.display().to_string());
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
        WholeFile::write_to(&link, |mut out| out.write_all(b"new")).unwrap();
        assert_eq!(fs::read_to_string(&real).unwrap(), "new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());

        WholeFile::write_to(Path::new("/dev/null"), |mut out| out.write_all(b"gone")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn two_names_of_one_file_are_told_and_two_files_are_not() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("in")).unwrap();
        let check = |name: &str| WholeFile::check(&folder.path().join(name)).unwrap();
        let (plain, roundabout) = (check("a.json"), check("in/../a.json"));
        assert!(plain.replaces(&roundabout) && plain.replaces(&check("./a.json")));
        assert!(!plain.replaces(&check("b.json")) && !plain.replaces(&check("in/a.json")));
        #[cfg(unix)]
        {
            let null = || WholeFile::check(Path::new("/dev/null")).unwrap();
            assert!(!null().replaces(&null()), "nothing takes the place of a device");
        }
    }
}
