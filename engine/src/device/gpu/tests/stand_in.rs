//! The tests that need a GPU, on the stand-in HIP library: no GPU is needed then.

use std::os::unix::fs::symlink;
use std::process::Command;

#[test]
fn every_kernel_and_model_of_the_stand_in_is_near_f64_and_the_cpu() {
    let here = std::env::current_exe().unwrap();
    let library = here.with_file_name("libhip_stand_in.so");
    assert!(library.exists(), "{} is not built; `cargo test -p engine` builds it", library.display());
    let folder = tempfile::tempdir().unwrap();
    symlink(library, folder.path().join("libamdhip64.so")).unwrap();
    let output = Command::new(here)
        .args(["--ignored", "--skip", "speed", "--skip", "speculative_output", "gpu::tests::"])
        .env("LD_LIBRARY_PATH", folder.path())
        .env("PHASEMARK_STAND_IN_REPORT", folder.path())
        .env("PHASEMARK_TEST_DEVICE", "hip:0")
        .output()
        .unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success() && text.contains("test result: ok"), "{text}");
    assert!(!text.contains(" 0 passed"), "{text}");
    // A test process leaves by `exit` with nothing in its hands: what it made was given back.
    let report = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let report = report.into_iter().find(|path| path.extension().is_some_and(|kind| kind == "txt")).unwrap();
    let report = std::fs::read_to_string(report).unwrap();
    let amiss = report.lines().filter(|line| line.starts_with("wrong") || line.starts_with("left"));
    assert_eq!(amiss.collect::<Vec<_>>(), Vec::<&str>::new());
    assert!(report.contains("call hipModuleLaunchKernel"), "{report}");
}
