//! Nsight Systems for the tests, on a machine that needs no GPU: Debian 12 packages it.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use crate::debian;

/// The profiler, its collector, and what the importer links to beyond a minimal Debian.
const PACKAGES: [&str; 11] = [
    "nsight-systems",
    "nsight-systems-target",
    "libcom-err2",
    "libgssapi-krb5-2",
    "libk5crypto3",
    "libkeyutils1",
    "libkrb5-3",
    "libkrb5support0",
    "libpfm4",
    "libssh-4",
    "libssl3",
];
const SUITE: &str = "bookworm";
const COMPONENTS: &str = "main non-free";

/// Where the packages look for the importer, and where they put it.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const COLLECTOR: &str = "usr/lib/x86_64-linux-gnu/nsight-systems/target-linux-x64/nsys";
const IMPORTER: &str = "usr/lib/nsight-systems/host-linux-x64";
const IMPORTER_LINK: &str = "usr/lib/x86_64-linux-gnu/nsight-systems/host-linux-x64";

/// Why there is no nsys.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Packages(#[from] debian::Error),
    #[error("cannot complete nsys in {path}: {source}; remove that folder and try again")]
    Link { path: String, source: io::Error },
    #[error("{path} was unpacked and does not run: {why}; remove its `nsys` folder and try again")]
    Broken { path: String, why: String },
}

/// Puts nsys into `tools/nsys` unless it is there already, and answers with the program's path.
pub(crate) fn nsys(tools: &Path) -> Result<PathBuf, Error> {
    let prefix = tools.join("nsys");
    debian::fetch(&PACKAGES, SUITE, COMPONENTS, &prefix)?;
    complete(&prefix).map_err(|source| Error::Link { path: prefix.display().to_string(), source })?;
    let program = prefix.join(COLLECTOR);
    let broken = |why| Error::Broken { path: program.display().to_string(), why };
    let output = Command::new(&program).arg("--version").output().map_err(|e| broken(e.to_string()))?;
    let version = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || !version.contains("Nsight Systems") {
        return Err(broken(format!("`nsys --version` answered {:?} ({})", version.trim(), output.status)));
    }
    Ok(program)
}

/// The packages leave the importer where the collector does not find it, and count on libraries that are installed:
/// both are linked to where they are looked for.
fn complete(prefix: &Path) -> io::Result<()> {
    link(Path::new("../../nsight-systems/host-linux-x64"), &prefix.join(IMPORTER_LINK))?;
    for folder in [LIBRARIES, "lib/x86_64-linux-gnu"] {
        let Ok(entries) = fs::read_dir(prefix.join(folder)) else { continue };
        for entry in entries {
            let name = entry?.file_name();
            if name.to_string_lossy().contains(".so.") {
                let library = Path::new("../../../..").join(folder).join(&name);
                link(&library, &prefix.join(IMPORTER).join(&name))?;
            }
        }
    }
    Ok(())
}

fn link(to: &Path, at: &Path) -> io::Result<()> {
    match symlink(to, at) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}
