//! Where the kernels' source differs between targets: all of it is listed in `docs/hardware-status.md`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Macros that tell targets apart.
const TARGETS: [&str; 7] = ["__AMDGCN__", "__AMDGPU__", "__gfx", "__HIP", "__CUDA", "__NVPTX__", "__nvptx__"];
/// Lines of a branch at most: what is longer is no prelude.
const MOST_LINES: usize = 90;

/// A conditional that is open.
struct Open {
    by_target: bool,
    /// Lines since its last branch began.
    lines: usize,
}

/// The name that a line defines.
fn defined(line: &str) -> Option<&str> {
    let word = |text: &str| {
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        (end > 0).then_some(end)
    };
    if let Some(rest) = line.strip_prefix("#define ").or_else(|| line.strip_prefix("struct ")) {
        return word(rest).map(|end| &rest[..end]);
    }
    let before = if let Some(rest) = line.strip_prefix("DEVICE ") {
        rest.split_once('(')?.0
    } else {
        let rest = line.strip_prefix("typedef ")?;
        rest.split_once(" __attribute__").map_or_else(|| rest.trim_end_matches(';'), |(before, _)| before)
    };
    before.rsplit([' ', '&', '*']).next()
}

/// Names that branches by target define, and how many such conditionals there are.
fn branches(text: &str) -> (BTreeSet<&str>, usize) {
    let (mut open, mut names, mut count) = (Vec::<Open>::new(), BTreeSet::new(), 0);
    for line in text.lines().map(str::trim) {
        let by_target = TARGETS.iter().any(|target| line.contains(target));
        if line.starts_with("#if") {
            count += usize::from(by_target);
            open.push(Open { by_target, lines: 0 });
        } else if line.starts_with("#el") {
            let last = open.last_mut().unwrap();
            assert!(!by_target || last.by_target, "{line}");
            last.lines = 0;
        } else if line.starts_with("#endif") {
            open.pop();
        } else {
            let inside = open.iter().any(|open| open.by_target);
            let outside = by_target && !inside && !line.starts_with("//");
            assert!(!outside, "a target's macro outside of a conditional: {line}");
            if inside {
                names.extend(defined(line));
            }
            for open in &mut open {
                open.lines += 1;
                assert!(!open.by_target || open.lines <= MOST_LINES, "a branch is long: {line}");
            }
        }
    }
    assert!(open.is_empty());
    (names, count)
}

#[test]
fn every_branch_by_target_is_listed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = fs::read_dir(root.join("src/kernels")).unwrap().map(|entry| entry.unwrap().path());
    let texts: Vec<String> = files.map(|path| fs::read_to_string(path).unwrap()).collect();
    let (mut names, mut conditionals) = (BTreeSet::new(), 0);
    for text in &texts {
        let (some, count) = branches(text);
        names.extend(some);
        conditionals += count;
    }
    let document = fs::read_to_string(root.join("../docs/hardware-status.md")).unwrap();
    let section = document.split("## Where the two makers' device code differs").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let listed: BTreeSet<&str> =
        rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2)).collect();
    assert_eq!(names, listed, "docs/hardware-status.md lists what differs between targets");
    assert!(
        section.contains("Four\nsuch `#if`s") && conditionals == 4,
        "{conditionals} conditionals by target"
    );
}

#[test]
fn a_new_branch_is_seen() {
    let text = "#if defined(__AMDGCN__)\nDEVICE float twice(float x) { return x + x; }\ntypedef int many __attribute__((\
                vector));\n#else\n#define ONE 1\n#ifdef OTHER\nstruct Inner {\n};\n#endif\n#endif\nDEVICE u32 same(u32 x);\n";
    let (names, count) = branches(text);
    assert_eq!((names, count), (BTreeSet::from(["Inner", "ONE", "many", "twice"]), 1));
}
