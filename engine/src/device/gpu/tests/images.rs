//! The two images against each other and against the host's structs.

use std::collections::BTreeMap;
use std::process::Command;

use super::super::kernels::{
    Accept, Add, Argmax, Attend, Dense, Embed, Few, Flash, Kernel, Norm, Qkv, Rotate,
};
use super::super::{HSACO_GFX1151, PTX_SM_86, PTX_SM_90};

fn ptx() -> &'static str {
    std::str::from_utf8(PTX_SM_86.expect("clang++-19 made the PTX image")).unwrap()
}

/// Each kernel of the PTX image with the bytes of its one argument.
fn ptx_arguments(ptx: &str) -> BTreeMap<String, usize> {
    let entries = ptx.split(".visible .entry ").skip(1);
    let argument = |entry: &str| {
        let (name, rest) = entry.split_once('(').unwrap();
        let parameters = rest.split_once(')').unwrap().0;
        assert_eq!(parameters.matches(".param").count(), 1, "{name} takes one argument: {parameters}");
        let size = parameters.rsplit_once('[').unwrap().1.split_once(']').unwrap().0;
        (name.to_owned(), size.parse().unwrap())
    };
    entries.map(argument).collect()
}

/// The same of the code object for gfx1151, from its own metadata.
fn hsaco_arguments() -> BTreeMap<String, usize> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.hsaco");
    std::fs::write(&path, HSACO_GFX1151.expect("clang++-19 made the code object")).unwrap();
    let output = Command::new("llvm-readelf-19").args(["--notes", "-h"]).arg(&path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("gfx1151"), "the ELF flags name the processor: {text}");
    let mut kernels = BTreeMap::new();
    for kernel in text.split("  - .args:").skip(1) {
        // Arguments that the host passes come before those that the runtime adds.
        let arguments: Vec<_> = kernel.split(".name:").next().unwrap().split("- .").collect();
        let by_value: Vec<_> = arguments.iter().filter(|argument| argument.contains("by_value")).collect();
        let name = kernel.lines().find_map(|line| line.strip_prefix("    .name:")).unwrap().trim();
        let [argument] = by_value[..] else { panic!("{name} takes one argument: {kernel}") };
        let size = argument.lines().find_map(|line| line.trim().strip_prefix(".size:")).unwrap().trim();
        kernels.insert(name.to_owned(), size.parse().unwrap());
    }
    kernels
}

#[test]
fn both_images_hold_the_same_kernels_with_the_hosts_arguments() {
    let host: BTreeMap<String, usize> =
        Kernel::ALL.iter().map(|kernel| (kernel.name().to_owned(), kernel.argument_size())).collect();
    assert_eq!(ptx_arguments(ptx()), host);
    let newer = std::str::from_utf8(PTX_SM_90.expect("clang++-19 made the newer PTX image")).unwrap();
    assert_eq!(ptx_arguments(newer), host);
    assert!(newer.contains(".target sm_90") && newer.contains("griddepcontrol.wait"));
    assert_eq!(hsaco_arguments(), host);
    assert!(ptx().contains(".target sm_86") && !ptx().contains("griddepcontrol"));
}

/// The offsets and sizes that the compiler gave to the fields of a kernel's struct: `layout_<struct>` in the image.
fn layout(name: &str) -> Vec<usize> {
    let start = format!("layout_{name}[");
    let line =
        ptx().lines().find(|line| line.contains(&start)).unwrap_or_else(|| panic!("no layout of {name}"));
    let (head, values) = line.split_once('{').unwrap();
    let size = head.split_once(&start).unwrap().1.split_once(']').unwrap().0.parse().unwrap();
    let values = values.split_once('}').unwrap().0;
    let mut bytes: Vec<u8> = values.split(',').map(|value| value.trim().parse().unwrap()).collect();
    // Zeros at the end are left out.
    bytes.resize(size, 0);
    bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word) as usize).collect()
}

#[test]
fn the_hosts_structs_have_the_kernels_fields() {
    for (name, host) in [
        ("Embed", Embed::layout()),
        ("Norm", Norm::layout()),
        ("Few", Few::layout()),
        ("Add", Add::layout()),
        ("Qkv", Qkv::layout()),
        ("Rotate", Rotate::layout()),
        ("Attend", Attend::layout()),
        ("Dense", Dense::layout()),
        ("Flash", Flash::layout()),
        ("Argmax", Argmax::layout()),
        ("Accept", Accept::layout()),
    ] {
        let host: Vec<usize> = host.iter().flat_map(|&(_, offset, size)| [offset, size]).collect();
        assert_eq!(layout(name), host, "{name}");
    }
}

/// What a kernel takes of a compute unit of gfx1151, as the code object says.
struct Taken {
    name: String,
    threads: usize,
    vgprs: usize,
    sgprs: usize,
    lds: usize,
    spilled_vgprs: usize,
    spilled_sgprs: usize,
    scratch: usize,
}

/// Of every kernel, by name.
fn taken() -> Vec<Taken> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.hsaco");
    std::fs::write(&path, HSACO_GFX1151.expect("clang++-19 made the code object")).unwrap();
    let output = Command::new("llvm-readelf-19").arg("--notes").arg(&path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut kernels = Vec::new();
    for kernel in text.split("  - .args:").skip(1) {
        let value = |key: &str| {
            let line = kernel.lines().find_map(|line| line.trim().strip_prefix(key)).unwrap();
            line.trim().parse().unwrap()
        };
        let name = kernel.lines().find_map(|line| line.strip_prefix("    .name:")).unwrap().trim();
        kernels.push(Taken {
            name: name.to_owned(),
            threads: value(".max_flat_workgroup_size:"),
            vgprs: value(".vgpr_count:"),
            sgprs: value(".sgpr_count:"),
            lds: value(".group_segment_fixed_size:"),
            spilled_vgprs: value(".vgpr_spill_count:"),
            spilled_sgprs: value(".sgpr_spill_count:"),
            scratch: value(".private_segment_fixed_size:"),
        });
    }
    kernels.sort_by(|one, other| one.name.cmp(&other.name));
    kernels
}

#[test]
fn the_occupancy_table_is_the_code_objects() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/hardware-status.md");
    let document = std::fs::read_to_string(path).unwrap();
    let row = |kernel: &Taken| {
        let Taken { name, threads, vgprs, sgprs, lds, spilled_vgprs, spilled_sgprs, scratch } = kernel;
        // 1536 registers a lane, given out 24 at a time, for 16 waves at most.
        let waves = (1536 / vgprs.next_multiple_of(24)).min(16);
        format!(
            "| `{name}` | {threads} | {vgprs} | {sgprs} | {lds} | {spilled_vgprs} | {spilled_sgprs} | {scratch} | {waves} |"
        )
    };
    let table = taken().iter().map(row).collect::<Vec<_>>().join("\n");
    assert!(document.contains(&table), "docs/hardware-status.md should have these lines:\n{table}");
}

/// Scratch is memory: a kernel that spills waits for it, and most do in their innermost loop.
#[test]
fn no_kernel_for_gfx1151_spills_or_takes_more_shared_memory_than_there_is() {
    let kernels = taken();
    assert_eq!(kernels.len(), Kernel::ALL.len());
    for Taken { name, lds, spilled_vgprs, spilled_sgprs, scratch, .. } in &kernels {
        assert_eq!((*spilled_vgprs, *spilled_sgprs, *scratch), (0, 0, 0), "{name}");
        let at_launch = if name.starts_with("dense_") { 32 << 10 } else { 0 };
        assert!(lds + at_launch <= 64 << 10, "{name}");
    }
}
