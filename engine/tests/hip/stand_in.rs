//! The stand-in HIP library (`engine/hip-stand-in`) in HIP's place, for a child of a test or for the test itself, and
//! what it reports.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Where cargo built it for these tests.
///
/// # Panics
/// It is not there: a test that could not run is no test that passed.
#[track_caller]
pub(crate) fn library() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let library = tests.with_file_name("libhip_stand_in.so");
    assert!(library.exists(), "{} is not built; `cargo test -p engine` builds it", library.display());
    library
}

pub(crate) fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// What one process did with the library.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// How often each call was made.
    pub(crate) calls: BTreeMap<String, u64>,
    pub(crate) failed: Vec<String>,
    pub(crate) wrong: Vec<String>,
    pub(crate) left: Vec<String>,
}

impl Report {
    pub(crate) fn of(text: &str) -> Self {
        let mut report = Report::default();
        for line in text.lines() {
            let (kind, rest) = line.split_once(' ').unwrap();
            match kind {
                "call" => {
                    let (name, count) = rest.split_once(' ').unwrap();
                    report.calls.insert(name.into(), count.parse().unwrap());
                }
                "failed" => report.failed.push(rest.into()),
                "wrong" => report.wrong.push(rest.into()),
                "left" => report.left.push(rest.into()),
                _ => assert_eq!(kind, "calls", "{line}"),
            }
        }
        report
    }

    pub(crate) fn total(&self) -> u64 {
        self.calls.values().sum()
    }

    /// Nothing was done wrong, and all was given back.
    #[track_caller]
    pub(crate) fn is_clean(&self, what: &str) {
        assert!(self.wrong.is_empty() && self.left.is_empty(), "{what}: {self:?}");
    }
}

/// A folder where programs find the library as HIP's, and where it reports.
pub(crate) struct StandIn {
    folder: tempfile::TempDir,
}

impl StandIn {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("lib")).unwrap();
        fs::create_dir(folder.path().join("reports")).unwrap();
        symlink(library(), folder.path().join("lib/libamdhip64.so")).unwrap();
        StandIn { folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The variables that a program needs.
    pub(crate) fn environment(&self) -> [(&'static str, PathBuf); 2] {
        let at = |name| self.folder.path().join(name);
        [("LD_LIBRARY_PATH", at("lib")), ("PHASEMARK_STAND_IN_REPORT", at("reports"))]
    }

    /// `phasemark`, which finds the library.
    pub(crate) fn phasemark(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phasemark"));
        command.args(args).current_dir(workspace()).stdin(Stdio::null());
        for name in ["PHASEMARK", "DFLASH_DS4_ROCTX", "LUCE_DS4_ROCTX", "LD_PRELOAD"] {
            command.env_remove(name);
        }
        command.envs(self.environment());
        command
    }

    /// Runs it, and what each of its processes reported.
    pub(crate) fn run(&self, args: &[&str], more: &[(&str, &str)]) -> (Output, Vec<Report>) {
        let output = self.phasemark(args).envs(more.iter().copied()).output().unwrap();
        (output, self.reports())
    }

    /// What was reported since this was last asked, a process each.
    pub(crate) fn reports(&self) -> Vec<Report> {
        let mut reports = Vec::new();
        for entry in fs::read_dir(self.folder.path().join("reports")).unwrap() {
            let path = entry.unwrap().path();
            reports.push(Report::of(&fs::read_to_string(&path).unwrap()));
            fs::remove_file(path).unwrap();
        }
        reports
    }
}

/// The library in this process: loaded by its path, it has HIP's name, under which the engine then finds it.
pub(crate) struct Here {
    begin: extern "C" fn(u64, u32),
    report: unsafe extern "C" fn(*mut u8, usize) -> usize,
}

#[allow(unsafe_code, reason = "a library's functions")]
impl Here {
    pub(crate) fn new() -> Self {
        let path = std::ffi::CString::new(library().into_os_string().into_encoded_bytes()).unwrap();
        // SAFETY: a library of this workspace, which stays loaded for the life of the process.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null());
        let symbol = |name: &std::ffi::CStr| {
            // SAFETY: the library is loaded, the name ends with a zero.
            let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
            assert!(!symbol.is_null(), "{name:?}");
            symbol
        };
        // SAFETY: their declarations in `engine/hip-stand-in/src/calls.rs`.
        unsafe {
            Here {
                begin: std::mem::transmute::<*mut libc::c_void, extern "C" fn(u64, u32)>(symbol(
                    c"stand_in_begin",
                )),
                report: std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn(*mut u8, usize) -> usize>(
                    symbol(c"stand_in_report"),
                ),
            }
        }
    }

    /// Forgets all that was; the call of this number from now on fails, none if 0.
    pub(crate) fn begin(&self, turn: u64, code: u32) {
        (self.begin)(turn, code);
    }

    pub(crate) fn report(&self) -> Report {
        let mut text = vec![0_u8; 1 << 16];
        // SAFETY: that much room.
        let length = unsafe { (self.report)(text.as_mut_ptr(), text.len()) };
        assert!(length <= text.len());
        Report::of(std::str::from_utf8(&text[..length]).unwrap())
    }
}
