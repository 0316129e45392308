//! The GPU devices where there is no GPU: they say what is missing, in a line or two, and the exit code is 2.
#![cfg(any(feature = "cuda", feature = "hip"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Command, Output};

/// Runs `phasemark` with nothing but the system's own libraries.
fn phasemark(args: &[&str]) -> Output {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    Command::new(env!("CARGO_BIN_EXE_phasemark"))
        .args(args)
        .current_dir(workspace)
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .unwrap()
}

/// Asks for a device and gives the error. `None` where the device is really there.
fn refused(device: &str) -> Option<String> {
    let output = phasemark(&["generate", "--device", device, "--max-tokens", "2"]);
    let error = String::from_utf8(output.stderr).unwrap();
    if output.status.success() {
        return None;
    }
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(output.stdout.is_empty(), "nothing half written");
    assert!(error.lines().count() <= 4 && error.contains(device), "{error}");
    let report = String::from_utf8(phasemark(&["doctor"]).stdout).unwrap();
    let (kind, _) = device.split_once(':').unwrap();
    let line = report.lines().find(|line| line.starts_with(kind)).unwrap();
    let why = line[kind.len()..].trim();
    assert!(error.contains(why), "doctor says '{why}', but the error is '{error}'");
    Some(error)
}

#[cfg(feature = "cuda")]
#[test]
fn without_a_driver_cuda_is_refused_politely() {
    if let Some(error) = refused("cuda:0") {
        assert!(error.contains("driver"), "{error}");
    }
}

#[cfg(feature = "hip")]
#[test]
fn without_a_runtime_hip_is_refused_and_every_name_was_tried() {
    if let Some(error) = refused("hip:0")
        && error.contains("not on this machine")
    {
        for name in ["libamdhip64.so:", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"] {
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}

#[test]
fn a_device_that_makes_no_sense_is_refused() {
    for device in ["cuda:one", "hip:-1", "gpu:0", "cpu:1"] {
        let output = phasemark(&["generate", "--device", device]);
        assert_eq!(output.status.code(), Some(2), "{device}");
    }
}
