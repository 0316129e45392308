//! Compiles the kernels for both GPU makers, from one source, with clang alone: no CUDA toolkit, no ROCm.
//!
//! Only where a GPU is compiled in. A missing compiler turns the GPU devices off by name at run time;
//! `PHASEMARK_REQUIRE_KERNELS=1` makes it an error.

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = "src/kernels/phasemark.cpp";

/// The image's name in Rust, its file and what makes it.
const IMAGES: [(&str, &str, &[&str]); 3] = [
    (
        "HSACO_GFX1151",
        "phasemark.gfx1151.hsaco",
        &[
            "-xhip",
            "--offload-arch=gfx1151",
            "--offload-device-only",
            "--no-gpu-bundle-output",
            "-nogpulib",
            "-nogpuinc",
            "-fuse-cuid=none",
        ],
    ),
    (
        "PTX_SM_86",
        "phasemark.sm_86.ptx",
        &[
            "-xcuda",
            "--cuda-gpu-arch=sm_86",
            "--cuda-device-only",
            "-nocudainc",
            "-nocudalib",
            "--cuda-feature=+ptx75",
            "-S",
        ],
    ),
    // The same for chips whose kernels may begin before the one before them has ended.
    (
        "PTX_SM_90",
        "phasemark.sm_90.ptx",
        &[
            "-xcuda",
            "--cuda-gpu-arch=sm_90",
            "--cuda-device-only",
            "-nocudainc",
            "-nocudalib",
            "--cuda-feature=+ptx78",
            "-S",
        ],
    ),
];

fn main() -> Result<(), Box<dyn Error>> {
    for name in ["src/kernels/phasemark.cpp", "src/kernels/prelude.h", "build.rs"] {
        println!("cargo:rerun-if-changed={name}");
    }
    for name in ["PHASEMARK_CLANG", "PHASEMARK_REQUIRE_KERNELS"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    if env::var_os("CARGO_FEATURE_CUDA").is_none() && env::var_os("CARGO_FEATURE_HIP").is_none() {
        return Ok(());
    }
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut constants = String::new();
    for (constant, file, arguments) in IMAGES {
        let path = out.join(file);
        let value = match compile(&path, arguments) {
            Ok(()) => format!("Some(include_bytes!({:?}))", path.to_string_lossy()),
            Err(why) if env::var("PHASEMARK_REQUIRE_KERNELS").is_ok_and(|value| value == "1") => {
                return Err(format!("{file}: {why}").into());
            }
            Err(why) => {
                println!("cargo:warning={file} was not made, so its GPUs are turned off: {why}");
                "None".to_owned()
            }
        };
        writeln!(
            constants,
            "/// `{file}`, if the build had a compiler for it.\n\
             #[allow(dead_code)]\npub(crate) const {constant}: Option<&[u8]> = {value};"
        )?;
    }
    fs::write(out.join("images.rs"), constants)?;
    Ok(())
}

fn compile(image: &Path, arguments: &[&str]) -> Result<(), String> {
    let compiler = env::var("PHASEMARK_CLANG").unwrap_or_else(|_| "clang++-19".to_owned());
    let output = Command::new(&compiler)
        .args(arguments)
        .args(["-O3", "-std=c++17", "-Wall", "-o"])
        .arg(image)
        .arg(SOURCE)
        .output()
        .map_err(|error| format!("{compiler} could not be run ({error}); install clang-19 and lld-19"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let reason = text.lines().find(|line| line.contains("error")).unwrap_or("no reason given");
    Err(format!("{compiler} failed: {reason}"))
}
