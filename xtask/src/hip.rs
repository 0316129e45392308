//! A real HIP runtime for the tests, on a machine that needs no AMD GPU: Debian 12 packages one.

use std::path::{Path, PathBuf};

use crate::debian;

/// The runtime, and what it links to beyond a minimal Debian; what it compiles kernels with stays away.
const PACKAGES: [&str; 9] = [
    "libamdhip64-5",
    "libdrm-amdgpu1",
    "libdrm2",
    "libelf1",
    "libhsa-runtime64-1",
    "libhsakmt1",
    "libnuma1",
    "libstdc++6",
    "zlib1g",
];
const SUITE: &str = "bookworm";
const COMPONENTS: &str = "main";
const LIBRARY: &str = "usr/lib/x86_64-linux-gnu/libamdhip64.so.5";

/// Why there is no HIP runtime.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Packages(#[from] debian::Error),
    #[error("{0} was not in the packages; remove its `hip` folder and try again")]
    Missing(String),
}

/// Puts the runtime into `tools/hip` unless it is there already, and answers with the library's path.
pub(crate) fn hip(tools: &Path) -> Result<PathBuf, Error> {
    let prefix = tools.join("hip");
    debian::fetch(&PACKAGES, SUITE, COMPONENTS, &prefix)?;
    let library = prefix.join(LIBRARY);
    if library.exists() { Ok(library) } else { Err(Error::Missing(library.display().to_string())) }
}
