//! The tests that need a GPU, on the stand-in HIP library: no GPU is needed then.
//!
//! Once with the plain functions that it has for kernels; and once with the kernels' own source, compiled for this
//! processor with the branches that it has for AMD (`engine/hip-stand-in/host/wave.h` does what the instructions of
//! gfx1151 do).

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs the ignored tests of these names, except `skipped`, on the stand-in; its every call must be right.
#[track_caller]
fn run(tests: &str, skipped: &[&str], kernels: Option<&Path>) {
    let here = std::env::current_exe().unwrap();
    let library = here.with_file_name("libhip_stand_in.so");
    assert!(library.exists(), "{} is not built; `cargo test -p engine` builds it", library.display());
    let folder = tempfile::tempdir().unwrap();
    symlink(library, folder.path().join("libamdhip64.so")).unwrap();
    let mut command = Command::new(here);
    command.args(["--ignored", tests]).args(skipped.iter().flat_map(|name| ["--skip", name]));
    command
        .env("LD_LIBRARY_PATH", folder.path())
        .env("PHASEMARK_STAND_IN_REPORT", folder.path())
        .env("PHASEMARK_TEST_DEVICE", "hip:0")
        .envs(kernels.map(|path| ("PHASEMARK_STAND_IN_KERNELS", path)));
    let output = command.output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success() && text.contains("test result: ok"), "{text}");
    assert!(!text.contains(" 0 passed"), "{text}");
    let mut files = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let report = files.find(|path| path.extension().is_some_and(|kind| kind == "txt")).unwrap();
    let report = fs::read_to_string(report).unwrap();
    let amiss = report.lines().filter(|line| line.starts_with("wrong") || line.starts_with("left"));
    assert_eq!(amiss.collect::<Vec<_>>(), Vec::<&str>::new());
    assert!(report.contains("call hipModuleLaunchKernel"), "{report}");
}

#[test]
fn every_kernel_and_model_of_the_stand_in_is_near_f64_and_the_cpu() {
    // Whole texts are compared by engine/tests/hip, which also sees to devices that are too small: here one would take
    // this machine's memory.
    run("gpu::tests::", &["speed", "speculative_output", "without_room"], None);
}

/// The kernels' source as a library for this processor, in `folder`.
fn compiled(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/kernels");
    let read = |name: &str| fs::read_to_string(source.join(name)).unwrap();
    let replaced = |text: String, from: &str, to: &str| {
        assert_eq!(text.matches(from).count(), 1, "{from}");
        text.replace(from, to)
    };
    // Shared memory is what all fibers of a block see.
    let prelude =
        replaced(read("prelude.h"), "#define SHARED __attribute__((shared))", "#define SHARED static");
    let kernels = replaced(
        read("phasemark.cpp"),
        "extern SHARED __attribute__((aligned(16))) u16 stages[];",
        "u16 *stages = (u16 *)host::dynamic_shared;",
    );
    let mut text = format!("#include \"wave.h\"\n{kernels}");
    text.push_str("static void (*kernel_of(const char *name))(const void *) {\n");
    for line in kernels.lines().filter(|line| line.starts_with("KERNEL ")) {
        let (name, rest) = line.split_once(" void ").unwrap().1.split_once('(').unwrap();
        let argument = rest.split_once(' ').unwrap().0;
        writeln!(
            text,
            "if (!strcmp(name, \"{name}\")) return [](const void *a) {{ {name}(*(const {argument} *)a); }};"
        )
        .unwrap();
    }
    text.push_str("return nullptr;\n}\n");
    fs::write(folder.join("prelude.h"), prelude).unwrap();
    fs::write(folder.join("kernels.cpp"), text).unwrap();
    let library = folder.join("libkernels.so");
    let wave = Path::new(env!("CARGO_MANIFEST_DIR")).join("hip-stand-in/host");
    let done = Command::new("clang++-19")
        .args([
            "-std=c++17",
            "-O2",
            "-shared",
            "-fPIC",
            "-Wl,-Bsymbolic",
            "-Wno-ignored-attributes",
            "-Wno-unknown-attributes",
        ])
        .arg("-I")
        .args([&wave, &folder.join("kernels.cpp")])
        .arg("-o")
        .arg(&library)
        .output()
        .expect("this test needs clang-19");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    library
}

#[test]
fn every_kernel_of_the_source_for_amd_is_near_f64() {
    let folder = tempfile::tempdir().unwrap();
    run("gpu::tests::kernels::", &[], Some(&compiled(folder.path())));
}
