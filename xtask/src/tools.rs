//! What the steps need on the machine, and getting it.
//!
//! A room whose tests need another tool adds a line to [`ALL`].

use std::path::Path;
use std::process::{Command, Stdio};

/// A tool that some step runs.
#[derive(Debug)]
pub(crate) struct Tool {
    name: &'static str,
    what_for: &'static str,
    /// Ends well when the tool is there.
    probe: &'static [&'static str],
    from: From,
}

#[derive(Debug)]
enum From {
    /// Debian's packages of these names.
    Debian(&'static [&'static str]),
    /// A component of the Rust toolchain, which no package of Debian's adds to one of rustup's.
    Rust(&'static str),
}

/// Everything that is needed.
pub(crate) const ALL: &[Tool] = &[
    Tool {
        name: "cc",
        what_for: "linking, and the C library that programs without std link by themselves",
        probe: &["cc", "--version"],
        from: From::Debian(&["gcc", "libc6-dev"]),
    },
    Tool {
        name: "clang-19",
        what_for: "the GPU kernels, compiled for both makers",
        probe: &["clang++-19", "--version"],
        from: From::Debian(&["clang-19", "lld-19"]),
    },
    Tool {
        name: "lld-19",
        what_for: "linking the kernels for AMD GPUs",
        probe: &["ld.lld-19", "--version"],
        from: From::Debian(&["lld-19"]),
    },
    Tool {
        name: "llvm-readelf-19",
        what_for: "the tests that look into the kernels' images",
        probe: &["llvm-readelf-19", "--version"],
        from: From::Debian(&["llvm-19"]),
    },
    Tool {
        name: "valgrind",
        what_for: "the instruction counts of markers",
        probe: &["valgrind", "--version"],
        from: From::Debian(&["valgrind"]),
    },
    Tool {
        name: "libclang",
        what_for: "the peers that markers are measured beside, one of which reads a C header",
        probe: &[
            "sh",
            "-c",
            "for at in /usr/lib/llvm-*/lib/libclang.so* /usr/lib/llvm-*/lib/libclang-[0-9]*.so*; do [ -e $at ] && exit 0; done; exit 1",
        ],
        from: From::Debian(&["libclang1-19", "libclang-common-19-dev"]),
    },
    Tool {
        name: "chromium",
        what_for: "the tests of phasetrace's page, in a real browser",
        probe: &["chromium", "--version"],
        from: From::Debian(&["chromium", "fonts-dejavu-core"]),
    },
    Tool {
        name: "rustfmt",
        what_for: "the format step",
        probe: &["cargo", "fmt", "--version"],
        from: From::Rust("rustfmt"),
    },
    Tool {
        name: "clippy",
        what_for: "the lint steps",
        probe: &["cargo", "clippy", "--version"],
        from: From::Rust("clippy"),
    },
];

/// What downloading models needs.
pub(crate) const PIP: &[Tool] = &[Tool {
    name: "pip",
    what_for: "downloading models",
    probe: &["python3", "-m", "pip", "--version"],
    from: From::Debian(&["python3", "python3-pip"]),
}];

/// What to do about missing tools.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    Nothing,
    /// Debian's packages to install.
    Install(Vec<&'static str>),
    /// What to tell the person, since it is theirs to do.
    Tell(String),
}

/// Sees to it that every tool is there, or says what to install.
pub(crate) fn provide(tools: &[Tool]) -> Result<(), String> {
    let missing: Vec<&Tool> = tools.iter().filter(|tool| !is_there(tool)).collect();
    match plan(&missing, may_install()) {
        Plan::Nothing => Ok(()),
        Plan::Tell(what) => Err(what),
        Plan::Install(packages) => {
            eprintln!("xtask: installing {}", packages.join(" "));
            apt_get(&["update"])?;
            apt_get(&[&["install", "--yes", "--no-install-recommends"], &packages[..]].concat())?;
            // What is not there now, the packages did not bring: no second try.
            let missing: Vec<&Tool> = tools.iter().filter(|tool| !is_there(tool)).collect();
            if missing.is_empty() { Ok(()) } else { Err(tell(&missing)) }
        }
    }
}

fn plan(missing: &[&Tool], may_install: bool) -> Plan {
    if missing.is_empty() {
        return Plan::Nothing;
    }
    let mut packages = Vec::new();
    for tool in missing {
        match tool.from {
            From::Debian(names) if may_install => packages.extend(names),
            From::Debian(_) | From::Rust(_) => return Plan::Tell(tell(missing)),
        }
    }
    packages.sort_unstable();
    packages.dedup();
    Plan::Install(packages)
}

fn tell(missing: &[&Tool]) -> String {
    let mut lines = vec!["these are missing; install them and run this again:".to_owned()];
    lines.extend(missing.iter().map(|tool| {
        let how = match tool.from {
            From::Debian(packages) => format!("on Debian: apt-get install {}", packages.join(" ")),
            From::Rust(component) => {
                format!(
                    "rustup component add {component}; or on Debian's own Rust: apt-get install {}",
                    tool.name
                )
            }
        };
        format!("  {} (for {}): {how}", tool.name, tool.what_for)
    }));
    lines.join("\n")
}

fn is_there(tool: &Tool) -> bool {
    let [program, arguments @ ..] = tool.probe else { return false };
    let program = if *program == "cargo" { crate::steps::cargo() } else { program.into() };
    let mut probe = Command::new(program);
    probe.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

fn apt_get(arguments: &[&str]) -> Result<(), String> {
    let typed = format!("apt-get {}", arguments.join(" "));
    let status = Command::new("apt-get")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status()
        .map_err(|cause| format!("cannot run `{typed}`: {cause}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{typed}` failed ({status})")) }
}

/// Only root on Debian or its kin.
fn may_install() -> bool {
    Path::new("/etc/debian_version").exists() && is_root()
}

#[cfg(unix)]
fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    // The owner of one's own entry is whom one acts as.
    std::fs::metadata("/proc/self").is_ok_and(|entry| entry.uid() == 0)
}

#[cfg(not(unix))]
fn is_root() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOLS: [Tool; 3] = [
        Tool { name: "cc", what_for: "linking", probe: &["cc"], from: From::Debian(&["gcc", "libc6-dev"]) },
        Tool { name: "hip", what_for: "kernels", probe: &["hip"], from: From::Debian(&["hipcc", "gcc"]) },
        Tool { name: "clippy", what_for: "lints", probe: &["cargo"], from: From::Rust("clippy") },
    ];

    #[test]
    fn root_on_debian_installs_each_package_once() {
        let [cc, hip, _] = &TOOLS;
        assert_eq!(plan(&[], true), Plan::Nothing);
        assert_eq!(plan(&[cc, hip], true), Plan::Install(vec!["gcc", "hipcc", "libc6-dev"]));
    }

    #[test]
    fn elsewhere_and_for_the_toolchain_it_says_what_to_install() {
        let [cc, _, clippy] = &TOOLS;
        let Plan::Tell(told) = plan(&[cc], false) else { panic!("it must not install") };
        assert!(told.contains("cc (for linking): on Debian: apt-get install gcc libc6-dev"), "{told}");
        let Plan::Tell(told) = plan(&[cc, clippy], true) else {
            panic!("apt-get cannot add to rustup's toolchain")
        };
        assert!(told.contains("rustup component add clippy") && told.contains("gcc"), "{told}");
    }

    #[test]
    fn a_tool_that_is_not_there_is_seen_to_be_missing() {
        let tool = |probe| Tool { name: "x", what_for: "x", probe, from: From::Rust("x") };
        assert!(is_there(&tool(&["cargo", "--version"])));
        assert!(!is_there(&tool(&["no-such-program-anywhere"])));
        assert!(!is_there(&tool(&["cargo", "no-such-command"])));
        assert!(!is_there(&tool(&[])));
    }
}
