//! The real library: Debian's `libroctx64-4`, unpacked beside the build and found by its name.
//!
//! Debian packages it from trixie on. It asks for no newer libc than 2.4, so it loads on older systems too,
//! though their own archive does not have it. The test is ignored unless asked for, as it goes to the
//! network the first time: `cargo test -p backend-roctx --test roctx -- --ignored debian`.

use std::ffi::{CStr, c_char, c_int};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

use backend_roctx::{Place, Roctx};
use marker_core::conformance::{self, Call, Expect, Seen, Witness};
use marker_core::{Detail, Marker, Markers};

use crate::child::{self, Child};

const NAME: &str = "libroctx64.so.4";

/// The first release that has the package.
const SUITE: &str = "trixie";

/// The folder that holds the library. Fetched once and then kept under the build's own folder.
///
/// The mirror is the machine's own, and apt's lists, cache and sources are private, so that nothing of the
/// system is changed.
fn fetch() -> PathBuf {
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libroctx64-4");
    if !kept.exists() {
        let work = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let at = |name: &str| work.path().join(name);
        for folder in ["lists/partial", "cache/archives/partial", "unpacked"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        let source = format!(
            "Types: deb\nURIs: {}\nSuites: {SUITE}\nComponents: main\n\
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n",
            mirror()
        );
        fs::write(at("private.sources"), source).unwrap();
        fs::write(at("status"), "").unwrap();
        let place = |name: &str| at(name).display().to_string();
        let settings = [
            ("Dir::Etc::sourcelist", place("private.sources")),
            ("Dir::Etc::sourceparts", "-".into()),
            ("Dir::State::lists", place("lists")),
            ("Dir::State::status", place("status")),
            ("Dir::Cache", place("cache")),
            ("APT::Sandbox::User", "root".into()),
            ("Acquire::Languages", "none".into()),
            ("Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false".into()),
        ];
        let settings: String =
            settings.iter().map(|(name, value)| name.to_string() + " \"" + value + "\";\n").collect();
        fs::write(at("apt.conf"), settings).unwrap();
        let apt = |arguments: &[&str]| {
            let mut apt = Command::new("apt-get");
            run(apt.arg("-q").args(arguments).env("APT_CONFIG", at("apt.conf")).current_dir(work.path()));
        };
        apt(&["update"]);
        apt(&["download", "libroctx64-4"]);
        let package = fs::read_dir(work.path()).unwrap().map(|entry| entry.unwrap().path());
        let package = package.into_iter().find(|path| path.extension().is_some_and(|e| e == "deb")).unwrap();
        run(Command::new("dpkg").arg("-x").args([&package, &at("unpacked")]));
        // Another test run may have been quicker.
        let _ = fs::rename(at("unpacked"), &kept);
    }
    let folders = fs::read_dir(kept.join("usr/lib")).unwrap().map(|entry| entry.unwrap().path());
    folders.into_iter().find(|folder| folder.join(NAME).exists()).unwrap()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Where this machine gets its own release from, whether or not it has fetched its lists.
fn mirror() -> String {
    let system = fs::read_to_string("/etc/os-release").unwrap();
    let release = system.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).unwrap();
    let wanted = run(Command::new("apt-get").args(["--print-uris", "update"]));
    let index = format!("/dists/{release}/InRelease'");
    let archive = wanted.lines().find_map(|line| Some(line.strip_prefix('\'')?.split_once(&index)?.0));
    archive.expect("apt on this machine names no archive for its own release").into()
}

/// What roctracer's own callback tells of a call: the text, and the id of a range by id.
#[repr(C)]
struct Told {
    text: *const c_char,
    id: u64,
}

type Callback = unsafe extern "C" fn(u32, u32, *const Told) -> c_int;

static HEARD: Mutex<Vec<Seen>> = Mutex::new(Vec::new());

thread_local! {
    static THREAD: u64 = {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        NEXT.fetch_add(1, Relaxed)
    };
}

/// # Safety
/// To be called by the library, with what it promises to give.
unsafe extern "C" fn hear(_domain: u32, operation: u32, told: *const Told) -> c_int {
    // SAFETY: the library's promise.
    let told = unsafe { &*told };
    let call = match operation {
        0 => Call::Mark,
        1 => Call::Push,
        2 => Call::Pop,
        3 => Call::Start(told.id),
        _ => Call::Stop(told.id),
    };
    let has_text = matches!(call, Call::Mark | Call::Push | Call::Start(_));
    // SAFETY: the library's promise: these calls come with their text.
    let text = has_text.then(|| unsafe { CStr::from_ptr(told.text) }.to_string_lossy().into_owned());
    if let Ok(thread) = THREAD.try_with(|thread| *thread)
        && let Ok(mut heard) = HEARD.lock()
    {
        heard.push(Seen { thread, call, text });
    }
    0
}

/// The callback that roctracer itself would use.
struct Roctracer;

impl Witness for Roctracer {
    fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut *HEARD.lock().unwrap())
    }
}

const CHILD: &str = "debian::runs_with_the_real_library";

#[test]
#[ignore = "a scene that the test beside it starts: `cargo test -p backend-roctx --test roctx -- --ignored debian`"]
fn runs_with_the_real_library() {
    static ROCTX: OnceLock<Roctx> = OnceLock::new();
    if !child::is(CHILD) {
        return;
    }
    assert!(!Roctx::is_in_process());
    let roctx = ROCTX.get_or_init(|| Roctx::load().unwrap());
    let report = roctx.report();
    assert_eq!(report.place, Place::Library(NAME.into()));
    let there: Vec<_> = report.symbols.iter().filter(|symbol| symbol.1).map(|symbol| symbol.0).collect();
    let five = ["roctxRangePushA", "roctxRangePop", "roctxMarkA", "roctxRangeStartA", "roctxRangeStop"];
    assert_eq!(there, five);
    assert_eq!(report.tried.len(), 4, "the process and three names come before: {report}");
    // SAFETY: the library is there already; its header gives this function this signature.
    unsafe {
        let library = libloading::os::unix::Library::new(NAME).unwrap();
        let register = library.get::<unsafe extern "C" fn(Callback)>(c"roctxRegisterTracerCallback").unwrap();
        register(hear);
    }
    child::work(Markers::new(roctx, Detail::Phases));
    let heard = Roctracer.take();
    let pushed: Vec<_> =
        heard.iter().filter(|s| s.call == Call::Push).map(|s| s.text.clone().unwrap()).collect();
    assert_eq!((pushed.len(), heard.len()), (9, 18));
    assert_eq!(pushed[..2], ["ds4.spec_decode", "ds4.layer_range tokens=0"]);
    conformance::check(roctx, Expect::TAKEN, Some(&Roctracer));
    println!("child: {}", report.file.as_ref().unwrap().display());
    println!("child: {}", roctx.counters().pushed);
}

#[test]
#[ignore = "goes to the network once: `cargo test -p backend-roctx --test roctx -- --ignored debian`"]
fn debians_own_library_is_found_by_its_name_and_hears_every_call() {
    let folder = fetch();
    let child = Child::new(CHILD).env("LD_LIBRARY_PATH", &folder);
    let outcome = child.run().ok();
    assert_eq!(outcome.said[0], folder.join(NAME).to_str().unwrap());
    assert!(outcome.said[1].parse::<u64>().unwrap() > 100_000);
}
