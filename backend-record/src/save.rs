//! A file that is written whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// What can go wrong with a record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The trace could not be written.
    #[error("cannot write the record {}: name a file in a folder that exists, may be written to and has room", path.display())]
    Save {
        /// The file that was asked for.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
}

pub(crate) fn whole_or_not(path: &Path, write: impl FnOnce(File) -> io::Result<()>) -> io::Result<()> {
    // What a link points to is replaced, not the link.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
        // A device or a pipe must not be replaced by a file; a folder is refused here.
        return write(OpenOptions::new().write(true).open(&path)?);
    }
    let beside = beside(&path)?;
    let file = OpenOptions::new().write(true).create_new(true).open(&beside)?;
    let done = write(file).and_then(|()| fs::rename(&beside, &path));
    if done.is_err() {
        // The first failure is the one to tell.
        let _ = fs::remove_file(&beside);
    }
    done
}

/// A name in the same folder that nobody else uses: only within one file system is a rename whole or not.
fn beside(path: &Path) -> io::Result<PathBuf> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let file_name = path.file_name().ok_or_else(|| io::Error::other("it names no file"))?;
    let mut name = OsString::from(".");
    name.push(file_name);
    name.push(format!(".{}-{}.partial", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    Ok(path.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_failure_leaves_what_was_there_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        fs::write(&path, "before").unwrap();
        let failed = whole_or_not(&path, |mut out| {
            out.write_all(b"half")?;
            Err(io::Error::other("the disk is full"))
        });
        assert!(failed.is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        assert_eq!(names(folder.path()), ["trace.json"]);
        whole_or_not(&path, |mut out| out.write_all(b"after")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "after");
        assert_eq!(names(folder.path()), ["trace.json"]);
    }

    #[test]
    fn where_nothing_can_be_written_nothing_is() {
        let folder = tempfile::tempdir().unwrap();
        let write = |mut out: File| out.write_all(b"text");
        assert!(whole_or_not(&folder.path().join("missing/trace.json"), write).is_err());
        assert!(whole_or_not(folder.path(), write).is_err(), "a folder");
        assert!(whole_or_not(Path::new(".."), write).is_err());
        assert!(whole_or_not(Path::new(""), write).is_err());
        assert!(names(folder.path()).is_empty());
    }

    #[cfg(unix)]
    #[test]
    fn a_device_stays_a_device_and_a_link_a_link() {
        let folder = tempfile::tempdir().unwrap();
        whole_or_not(Path::new("/dev/null"), |mut out| out.write_all(b"text")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        let (real, link) = (folder.path().join("real.json"), folder.path().join("link.json"));
        fs::write(&real, "before").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        whole_or_not(&link, |mut out| out.write_all(b"after")).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&real).unwrap(), "after");
    }
}
