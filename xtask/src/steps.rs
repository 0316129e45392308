//! The steps of `cargo xtask test`, and taking them. The tests come last, so that their result lines end the output.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::features::Package;

/// Programs that are no members of the workspace, and where cargo builds them.
const PROOFS: &str = "marker-core/proof";

/// One command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// What it is about, as a failure names it.
    title: String,
    /// What follows `cargo`.
    arguments: Vec<String>,
    /// Set for this step.
    variables: Vec<(&'static str, &'static str)>,
}

impl Step {
    fn cargo(title: impl Into<String>, arguments: &str) -> Self {
        Step {
            title: title.into(),
            arguments: arguments.split_whitespace().map(str::to_owned).collect(),
            variables: Vec::new(),
        }
    }

    fn with(mut self, variable: &'static str, value: &'static str) -> Self {
        self.variables.push((variable, value));
        self
    }

    /// The command as one would type it.
    fn typed(&self) -> String {
        let variables = self.variables.iter().map(|(name, value)| format!("{name}={value} "));
        format!("{}cargo {}", variables.collect::<String>(), self.arguments.join(" "))
    }
}

/// Every step, in order: the quick ones first.
pub(crate) fn all(packages: &[Package]) -> Vec<Step> {
    let proof = |name: &str| format!("{PROOFS}/{name}/Cargo.toml");
    let (no_std, null_cost) = (proof("no-std"), proof("null-cost"));
    let mut steps = vec![
        Step::cargo("format", "fmt --all --check"),
        Step::cargo("format of a proof", &format!("fmt --manifest-path {no_std} --check")),
        Step::cargo("format of a proof", &format!("fmt --manifest-path {null_cost} --check")),
        Step::cargo("clippy", "clippy --workspace --all-targets --all-features -- -D warnings"),
        Step::cargo("clippy, default features", "clippy --workspace --all-targets -- -D warnings"),
    ];
    steps.extend(packages.iter().flat_map(feature_steps));
    steps.push(Step::cargo("docs", "doc --workspace --no-deps").with("RUSTDOCFLAGS", "-Dwarnings"));
    let no_std_run =
        format!("run --quiet --locked --release --manifest-path {no_std} --target-dir target/proof/no-std");
    steps.push(Step::cargo("proof that marker-core needs no std", &no_std_run));
    steps.push(Step::cargo(
        "instruction counts of markers",
        "run --quiet --locked --release --package benches --bin counts -- --check",
    ));
    steps.push(address_sanitizer());
    steps.push(Step::cargo(
        "tests with the real ROCTX",
        "test -p backend-roctx --test roctx -- --ignored debian",
    ));
    steps.push(Step::cargo(
        "tests of engine without features",
        "test -p engine --no-default-features --lib --test cli",
    ));
    let without_a_gpu = "test -p engine --features cuda,hip --lib --test gpu --test hip";
    steps.push(
        Step::cargo("tests of the GPU devices, without a GPU", without_a_gpu)
            .with("PHASEMARK_REQUIRE_KERNELS", "1"),
    );
    // With it runs the proof that the null backend leaves no instruction: backend-null/tests/leaves_nothing.rs.
    steps.push(Step::cargo("tests", "test --workspace"));
    steps
}

/// What runs models that are downloaded.
pub(crate) fn with_models() -> Vec<Step> {
    vec![
        Step::cargo("tests of SmolLM2", "test --package engine --test smollm2 -- --include-ignored"),
        Step::cargo("memory of SmolLM2", "test --package benches --test memory -- --include-ignored"),
    ]
}

/// The tests of the two rooms that call into foreign libraries, under the address sanitizer. It needs a target that
/// is named, so that build scripts go without it, and a folder of its own, so that nothing else is built anew. The
/// programs that run under nsys stay out: its own code is not built for it.
///
/// What belongs to several threads is tried otherwise: `backend-roctx/tests/gate.rs` runs the pause gate under loom,
/// which sees every order that there is. The thread sanitizer needs a standard library of its own, and valgrind's drd
/// takes that library's atomics for races (dozens in a right program of four threads and one `OnceLock`): with those
/// suppressed it would be blind to ours, which are the same instructions.
fn address_sanitizer() -> Step {
    Step::cargo(
        "memory safety of the backends",
        "test --target x86_64-unknown-linux-gnu --target-dir target/address-sanitizer -p backend-nvtx -p backend-roctx \
         --lib --test protocol --test conformance --test allocation --test roctx --test gate",
    )
    .with("RUSTFLAGS", "-Zsanitizer=address")
    .with("RUSTC_BOOTSTRAP", "1")
    // A library that stays loaded for the life of the process is meant to.
    .with("ASAN_OPTIONS", "detect_leaks=0")
}

/// A package and its tests built by themselves, since in the workspace cargo unites the features that others ask for.
/// Once also without its tests, since cargo unites what they ask for too: marker-core's ask for `enabled`.
fn feature_steps(package: &Package) -> Vec<Step> {
    let name = &package.name;
    let check = |title, arguments: &str| {
        let check = format!("clippy --package {name} --no-default-features {arguments}-- -D warnings");
        Step::cargo(title, &check)
    };
    let of_set = |set: Vec<&str>| {
        let (title, features) = match set.len() {
            0 => (format!("{name} without features"), String::new()),
            _ => (format!("{name} with {}", set.join(" and ")), format!("--features {} ", set.join(","))),
        };
        check(title, &format!("{features}--all-targets "))
    };
    let mut steps = vec![check(format!("{name} without features and tests"), "")];
    steps.extend(package.feature_sets().into_iter().map(of_set));
    steps
}

/// Takes the steps, up to the first that fails.
pub(crate) fn run(root: &Path, steps: &[Step]) -> Result<(), String> {
    let began = Instant::now();
    for (at, step) in steps.iter().enumerate() {
        let place = format!("[{}/{}]", at + 1, steps.len());
        let typed = step.typed();
        eprintln!("xtask: {place} {}: {typed}", step.title);
        let step_began = Instant::now();
        let status = Command::new(cargo())
            .args(&step.arguments)
            .envs(step.variables.iter().copied())
            .current_dir(root)
            .status()
            .map_err(|cause| format!("{place} cannot run `{typed}`: {cause}"))?;
        if !status.success() {
            return Err(format!("{place} {} FAILED ({status}): {typed}", step.title));
        }
        eprintln!("xtask: {place} passed in {:.1} s", step_began.elapsed().as_secs_f64());
    }
    eprintln!("xtask: all {} steps passed in {:.0} s", steps.len(), began.elapsed().as_secs_f64());
    Ok(())
}

/// The cargo that runs this program, or else the one in the path.
pub(crate) fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(packages: &[Package]) -> Vec<String> {
        all(packages).iter().map(Step::typed).collect()
    }

    #[test]
    fn a_new_feature_is_covered_alone_and_with_the_others() {
        let features = vec!["nvtx".into(), "record".into()];
        let steps = typed(&[Package { name: "engine".into(), features }]);
        for features in ["", "--features nvtx ", "--features record ", "--features nvtx,record "] {
            let step = format!(
                "cargo clippy --package engine --no-default-features {features}--all-targets -- -D warnings"
            );
            assert!(steps.contains(&step), "{step} is not in {steps:#?}");
        }
        let bare = "cargo clippy --package engine --no-default-features -- -D warnings".to_owned();
        assert!(steps.contains(&bare), "without what its tests ask for: {steps:#?}");
    }

    #[test]
    fn the_tests_come_last_and_the_documents_deny_warnings() {
        let steps = typed(&[]);
        assert_eq!(steps.last().unwrap(), "cargo test --workspace");
        assert!(steps.contains(&"RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps".to_owned()));
        assert!(steps.iter().any(|step| step.contains("fmt --all --check")));
    }

    #[test]
    fn the_first_failure_stops_and_is_named() {
        let step = |title, arguments| Step::cargo(title, arguments);
        let steps = [step("good", "--version"), step("bad", "no-such-command"), step("worse", "neither")];
        let told = run(&crate::root(), &steps).unwrap_err();
        assert!(told.starts_with("[2/3] bad FAILED") && told.ends_with("cargo no-such-command"), "{told}");
        assert_eq!(run(&crate::root(), &steps[..1]), Ok(()));
    }

    #[test]
    fn every_proof_is_where_the_steps_look() {
        for step in all(&[]) {
            let manifest = step.arguments.iter().skip_while(|argument| *argument != "--manifest-path").nth(1);
            if let Some(manifest) = manifest {
                assert!(crate::root().join(manifest).is_file(), "{manifest}");
            }
        }
    }
}
