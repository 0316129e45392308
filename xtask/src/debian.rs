//! Debian packages, unpacked into a folder of their own and never installed.
//!
//! Some tools that the tests need exist only as packages of a Debian release, which may not be this machine's,
//! and whose installation would pull in half a desktop. So they are fetched with a package list of their
//! own, unpacked with `dpkg -x`, and nothing of the machine changes; root is not needed. The mirror and the
//! keys are the machine's own, from its apt configuration.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why packages could not be fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The packages are for another kind of machine.
    #[error("cannot fetch {packages}: what is fetched runs on x86-64 Linux only, which this machine is not")]
    Machine { packages: String },
    /// The machine's apt configuration names no Debian mirror.
    #[error(
        "cannot fetch {packages}: no Debian mirror in /etc/apt/sources.list or /etc/apt/sources.list.d; \
         add one with the component `main`"
    )]
    NoMirror { packages: String },
    /// A program is missing or failed.
    #[error("cannot fetch {packages} of Debian {suite}: `{program}` {why}")]
    Program { packages: String, suite: String, program: String, why: String },
    /// A file or folder.
    #[error("cannot {action} {path}: {source}")]
    File { action: &'static str, path: String, source: io::Error },
}

/// Unpacks `packages` of one release and its components (as apt writes them: `main non-free`) into `prefix`, which then
/// holds `usr/lib/...`. Does nothing when `prefix` holds just these already; dependencies are not followed.
pub(crate) fn fetch(packages: &[&str], suite: &str, components: &str, prefix: &Path) -> Result<(), Error> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err(Error::Machine { packages: packages.join(", ") });
    }
    let wanted = format!("{suite} {components}: {}\n", packages.join(" "));
    let stamp = prefix.join(".packages");
    if fs::read_to_string(&stamp).is_ok_and(|had| had == wanted) {
        return Ok(());
    }
    let mirrors = mirrors(suite);
    if mirrors.is_empty() {
        return Err(Error::NoMirror { packages: packages.join(", ") });
    }
    // Beside the prefix, so that it can be renamed into place whole.
    let work = Work::beside(prefix)?;
    let mut failure = None;
    for mirror in &mirrors {
        match download(packages, suite, &mirror.entry(suite, components), &work.0) {
            Ok(()) => {
                failure = None;
                break;
            }
            Err(error) => failure = Some(failure.unwrap_or(error)),
        }
    }
    if let Some(error) = failure {
        return Err(error);
    }
    let root = work.0.join("root");
    for package in read_dir(&work.0.join("debs"))? {
        run(Command::new("dpkg").arg("-x").arg(package).arg(&root), packages, suite)?;
    }
    write(&root.join(".packages"), &wanted)?;
    if prefix.exists() {
        fs::remove_dir_all(prefix).map_err(at("remove", prefix))?;
    }
    fs::rename(&root, prefix).map_err(at("create", prefix))
}

/// Leaves the packages' files in `work/debs`.
fn download(packages: &[&str], suite: &str, entry: &str, work: &Path) -> Result<(), Error> {
    write(&work.join("debian.sources"), entry)?;
    for folder in ["lists/partial", "cache/archives/partial", "debs"] {
        let folder = work.join(folder);
        fs::create_dir_all(&folder).map_err(at("create", &folder))?;
    }
    let folder = |name: &str| work.join(name).display().to_string();
    let options = [
        format!("Dir::Etc::SourceList={}", folder("debian.sources")),
        "Dir::Etc::SourceParts=/dev/null".into(),
        "Dir::Etc::Preferences=/dev/null".into(),
        "Dir::Etc::PreferencesParts=/dev/null".into(),
        format!("Dir::State::Lists={}", folder("lists")),
        "Dir::State::status=/dev/null".into(),
        format!("Dir::Cache={}", folder("cache")),
        // The unprivileged user that root's apt downloads as cannot write here.
        "APT::Sandbox::User=".into(),
        "APT::Update::Error-Mode=any".into(),
        "Acquire::Languages=none".into(),
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".into(),
        "Acquire::Retries=3".into(),
    ];
    let apt = |action: &[&str]| {
        let mut apt = Command::new("apt-get");
        apt.env("LC_ALL", "C").current_dir(work.join("debs")).arg("-q");
        for option in &options {
            apt.args(["-o", option]);
        }
        apt.args(action);
        apt
    };
    run(&mut apt(&["update"]), packages, suite)?;
    run(apt(&["download"]).args(packages), packages, suite)
}

/// Runs one program; its last words become the error.
fn run(command: &mut Command, packages: &[&str], suite: &str) -> Result<(), Error> {
    let fail = |program: String, why: String| Error::Program {
        packages: packages.join(", "),
        suite: suite.into(),
        program,
        why,
    };
    let program = command.get_program().to_string_lossy().into_owned();
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let last: Vec<_> = said.lines().rev().take(3).collect();
            let last: Vec<_> = last.into_iter().rev().collect();
            let action = command.get_args().map(|arg| arg.to_string_lossy());
            let action = action.into_iter().find(|arg| ["update", "download", "-x"].contains(&&**arg));
            Err(fail(
                format!("{program} {}", action.unwrap_or_default()),
                format!("failed ({}): {}", output.status, last.join(" / ")),
            ))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(fail(program, "is not on this machine; this needs Debian or a system made from it".into()))
        }
        Err(error) => Err(fail(program, format!("could not be started: {error}"))),
    }
}

/// A mirror that the machine uses: where it is, and what its entry says of trust.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mirror {
    uri: String,
    suites: Vec<String>,
    components: Vec<String>,
    /// Lines of the entry to repeat, in the deb822 form: `Signed-By: ...`.
    trust: Vec<String>,
}

impl Mirror {
    /// An entry for another release on the same mirror.
    fn entry(&self, suite: &str, components: &str) -> String {
        let mut entry =
            format!("Types: deb\nURIs: {}\nSuites: {suite}\nComponents: {components}\n", self.uri);
        for line in &self.trust {
            let _ = writeln!(entry, "{line}");
        }
        entry
    }
}

/// The names that Debian's own archive gives to its releases.
const RELEASES: [&str; 9] =
    ["bookworm", "trixie", "forky", "sid", "bullseye", "oldstable", "stable", "testing", "unstable"];

/// The machine's Debian mirrors, those that serve this very release first.
fn mirrors(suite: &str) -> Vec<Mirror> {
    let mut entries = Vec::new();
    let parts = read_dir(Path::new("/etc/apt/sources.list.d")).unwrap_or_default();
    for file in std::iter::once(PathBuf::from("/etc/apt/sources.list")).chain(parts) {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        match file.extension().and_then(|e| e.to_str()) {
            Some("list") => entries.extend(one_line(&text)),
            Some("sources") => entries.extend(deb822(&text)),
            _ => {}
        }
    }
    usable(entries, suite)
}

/// Of all entries, those of Debian's own archive.
fn usable(entries: Vec<Mirror>, suite: &str) -> Vec<Mirror> {
    let mut usable: Vec<Mirror> = Vec::new();
    for entry in entries {
        let debian = entry.suites.iter().any(|s| s == suite || RELEASES.contains(&&**s))
            && entry.components.iter().any(|c| c == "main");
        if debian && !usable.iter().any(|known| known.uri == entry.uri) {
            usable.push(entry);
        }
    }
    usable.sort_by_key(|entry| !entry.suites.iter().any(|s| s == suite));
    usable
}

/// Entries of the form `deb [signed-by=KEY] URI SUITE COMPONENT...`.
fn one_line(text: &str) -> Vec<Mirror> {
    let parse = |line: &str| {
        let rest = line.trim().strip_prefix("deb")?.strip_prefix([' ', '\t'])?.trim_start();
        let (options, rest) = match rest.strip_prefix('[') {
            Some(rest) => rest.split_once(']')?,
            None => ("", rest),
        };
        let rest = rest.split('#').next()?;
        let mut words = rest.split_whitespace().map(String::from);
        let (uri, suite) = (words.next()?, words.next()?);
        let trust = options.split_whitespace().filter_map(|option| option.split_once('='));
        let trust = trust.filter_map(|(name, value)| match name {
            "signed-by" => Some(format!("Signed-By: {value}")),
            "trusted" => Some(format!("Trusted: {value}")),
            _ => None,
        });
        Some(Mirror { uri, suites: vec![suite], components: words.collect(), trust: trust.collect() })
    };
    text.lines().filter_map(parse).collect()
}

/// Entries in paragraphs of `Field: value`, where a value goes on in lines that begin with a blank.
fn deb822(text: &str) -> Vec<Mirror> {
    let text: String =
        text.lines().filter(|line| !line.starts_with('#')).flat_map(|line| [line.trim_end(), "\n"]).collect();
    let parse = |paragraph: &str| {
        let mut fields: Vec<(String, String)> = Vec::new();
        for line in paragraph.lines() {
            if line.starts_with([' ', '\t']) {
                let (_, value) = fields.last_mut()?;
                value.push('\n');
                value.push_str(line);
            } else if let Some((name, value)) = line.split_once(':') {
                fields.push((name.to_ascii_lowercase(), value.trim().into()));
            }
        }
        let field = |name: &str| fields.iter().find(|(field, _)| field == name).map(|(_, value)| &**value);
        let words = |name| field(name).unwrap_or_default().split_whitespace().map(String::from);
        let off = field("enabled").is_some_and(|value| value.eq_ignore_ascii_case("no"));
        if off || !words("types").any(|kind| kind == "deb") {
            return None;
        }
        let trust = [("signed-by", "Signed-By"), ("trusted", "Trusted")];
        let trust = trust.iter().filter_map(|(name, spelled)| Some(format!("{spelled}: {}", field(name)?)));
        Some(Mirror {
            uri: words("uris").next()?,
            suites: words("suites").collect(),
            components: words("components").collect(),
            trust: trust.collect(),
        })
    };
    text.split("\n\n").filter_map(parse).collect()
}

/// A folder for the work in hand, gone when it is done.
struct Work(PathBuf);

impl Work {
    fn beside(prefix: &Path) -> Result<Work, Error> {
        let mut name = prefix.as_os_str().to_owned();
        name.push(format!(".part-{}", std::process::id()));
        let folder = std::path::absolute(PathBuf::from(name)).map_err(at("find", prefix))?;
        fs::create_dir_all(&folder).map_err(at("create", &folder))?;
        Ok(Work(folder))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn at<'p>(action: &'static str, path: &'p Path) -> impl FnOnce(io::Error) -> Error + 'p {
    move |source| Error::File { action, path: path.display().to_string(), source }
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(at("write", path))
}

/// What is in a folder, sorted.
fn read_dir(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = fs::read_dir(folder).map_err(at("read", folder))?;
    let mut paths: Vec<_> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_an_apt_source_are_read() {
        let paragraphs = "# a comment\nTypes: deb deb-src\n# another\nURIs: http://mirror.example/debian\n\
            Suites: bookworm bookworm-updates\nComponents: main\nSigned-By:\n -----BEGIN\n .\n key\n\n\
            Types: deb\nURIs: http://off.example\nSuites: bookworm\nComponents: main\nEnabled: no\n\n\
            Types: deb-src\nURIs: http://src.example\nSuites: bookworm\nComponents: main\n";
        let mirror = &deb822(paragraphs)[..];
        let [mirror] = mirror else { panic!("{mirror:?}") };
        assert_eq!(
            mirror.entry("trixie", "main non-free"),
            "Types: deb\nURIs: http://mirror.example/debian\nSuites: trixie\nComponents: main non-free\n\
             Signed-By: \n -----BEGIN\n .\n key\n"
        );

        let lines = "# deb http://off.example bookworm main\n\
            deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian bookworm main contrib # why\n\
            deb-src http://src.example bookworm main\n";
        let mirror = &one_line(lines)[..];
        let [mirror] = mirror else { panic!("{mirror:?}") };
        assert_eq!(
            mirror.entry("bookworm", "main"),
            "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\nComponents: main\n\
             Signed-By: /k.gpg\n"
        );
    }

    #[test]
    fn only_debians_own_archive_is_asked_and_the_release_itself_first() {
        let entries = one_line(
            "deb http://security.example bookworm-security main\n\
             deb http://old.example bookworm main\n\
             deb http://new.example trixie main\n\
             deb http://old.example bookworm-updates main\n\
             deb http://other.example nodistro main\n\
             deb http://other.example bookworm extras\n",
        );
        let uris = |suite| usable(entries.clone(), suite).into_iter().map(|m| m.uri).collect::<Vec<_>>();
        assert_eq!(uris("trixie"), ["http://new.example", "http://old.example"]);
        assert_eq!(uris("bookworm"), ["http://old.example", "http://new.example"]);
    }
}
