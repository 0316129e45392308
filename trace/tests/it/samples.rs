//! Every sample gives its right answer, whoever wrote it.

use trace::check::Counts;
use trace::diff::{Difference, diff};
use trace::gpu::{Owner, attribute};
use trace::model::{Kind, Work};
use trace::tree::trees;

use crate::{checked, findings, notes, read, sample, samples_of};

/// Counted and folded: depth, count and label of every line of a file's only tree.
fn lines(file: &std::path::Path) -> Vec<(usize, u64, String)> {
    let trace = read(file);
    let all = trees(&trace, &attribute(&trace));
    assert_eq!(all.len(), 1, "{}", file.display());
    let tree = &all[0];
    let mut lines = Vec::new();
    let mut todo: Vec<(usize, usize)> = tree.nodes[0].children.iter().rev().map(|&node| (node, 1)).collect();
    while let Some((at, depth)) = todo.pop() {
        let node = &tree.nodes[at];
        lines.push((depth, node.count, trace.labels.get(node.label).to_owned()));
        todo.extend(node.children.iter().rev().map(|&node| (node, depth + 1)));
    }
    lines
}

const PREFILL: &str = "ds4.prefill mode=exact tokens=11 layer_begin=0 layer_end=8 device=0";
const SPEC: &str = "ds4.spec_decode mode=batched tokens=28 layer_begin=0 layer_end=8 device=0";

fn leaf(mode: &str, tokens: u32, begin: u32, end: u32, device: u32) -> String {
    format!("ds4.layer_range mode={mode} tokens={tokens} layer_begin={begin} layer_end={end} device={device}")
}

#[test]
fn spec_is_a_prefill_of_eleven_and_a_decode_of_eight_passes() {
    let expected = [
        (1, 1, PREFILL.to_owned()),
        (2, 11, leaf("exact", 1, 0, 8, 0)),
        (1, 1, SPEC.to_owned()),
        (2, 8, leaf("verify", 4, 0, 8, 0)),
    ];
    let files = samples_of("spec");
    assert_eq!(files.len(), 7);
    for file in files {
        assert_eq!(lines(&file), expected, "{}", file.display());
    }
}

#[test]
fn target_is_a_prefill_and_fifteen_decode_leaves_at_the_top() {
    let expected =
        [(1, 1, PREFILL.to_owned()), (2, 11, leaf("exact", 1, 0, 8, 0)), (1, 15, leaf("decode", 1, 0, 8, 0))];
    for file in samples_of("target") {
        assert_eq!(lines(&file), expected, "{}", file.display());
    }
}

#[test]
fn shards_has_two_leaves_a_pass() {
    let expected = [
        (1, 1, PREFILL.to_owned()),
        (2, 11, leaf("exact", 1, 0, 4, 0)),
        (2, 11, leaf("exact", 1, 4, 8, 1)),
        (1, 1, SPEC.to_owned()),
        (2, 8, leaf("verify", 4, 0, 4, 0)),
        (2, 8, leaf("verify", 4, 4, 8, 1)),
    ];
    for file in samples_of("shards") {
        assert_eq!(lines(&file), expected, "{}", file.display());
    }
}

#[test]
fn the_good_ones_are_fine_and_say_how_much_was_looked_at() {
    for (case, ranges) in [("spec", 21), ("target", 27), ("shards", 40), ("kernels", 3)] {
        for file in samples_of(case) {
            let report = checked(&[&file], None);
            assert!(report.is_fine(), "{}: {:?}", file.display(), findings(&report));
            assert_eq!((report.ranges, report.marks), (ranges, 0), "{}", file.display());
            assert_eq!(notes(&report).len(), 0, "{}", file.display());
        }
    }
}

#[test]
fn the_engine_s_own_counts_match() {
    let counts = |list: &[(&str, u64)]| -> Counts { list.iter().map(|&(k, v)| (k.to_owned(), v)).collect() };
    let shards = counts(&[
        ("ds4.prefill exact", 1),
        ("ds4.layer_range exact", 22),
        ("ds4.spec_decode batched", 1),
        ("ds4.layer_range verify", 16),
    ]);
    for file in samples_of("shards") {
        assert!(checked(&[&file], Some(&shards)).is_fine(), "{}", file.display());
    }
}

#[test]
fn the_same_case_is_the_same_from_every_profiler() {
    for case in ["spec", "target", "shards"] {
        let files = samples_of(case);
        let first = read(&files[0]);
        for file in &files[1..] {
            let other = read(file);
            let found = diff(("first", &first), ("other", &other));
            assert!(matches!(found, Difference::Same { threads: 1, .. }), "{}: {found:?}", file.display());
        }
    }
    let (spec, shards) = (read(&samples_of("spec")[0]), read(&samples_of("shards")[0]));
    let Difference::Different(words) = diff(("spec", &spec), ("shards", &shards)) else {
        panic!("spec and shards are not the same")
    };
    assert!(words.contains("part at range 2: spec has"), "{words}");
    assert!(words.contains("layer_end=4") && words.contains("row 2"), "{words}");
}

#[test]
fn edges_has_what_each_profiler_kept_of_it() {
    for file in samples_of("edges") {
        let trace = read(&file);
        let labels: Vec<&str> = trace.ranges.iter().map(|range| trace.label(range)).collect();
        let nsys = file.extension().unwrap() == "sqlite";
        for label in
            ["quote \" and\nnewline", "naïve café 日本", "", "outer", "inner", "child of never closed"]
        {
            assert!(labels.contains(&label), "{}: {label:?} of {labels:?}", file.display());
        }
        assert_eq!(labels.contains(&"never closed"), nsys, "{}", file.display());
        let marks: Vec<&str> = trace.of_kind(Kind::Mark).iter().map(|range| trace.label(range)).collect();
        assert_eq!(marks, ["ds4.mark, with a comma"], "{}", file.display());
        // CSV does not tell a started range from a pushed one; the other two do.
        let csv = file.extension().unwrap() == "csv";
        let free: Vec<&str> = trace.of_kind(Kind::Free).iter().map(|range| trace.label(range)).collect();
        assert_eq!(
            free.as_slice(),
            if csv { &[][..] } else { &["ds4.request id=7"][..] },
            "{}",
            file.display()
        );

        let all = trees(&trace, &attribute(&trace));
        let nodes = &all[0].nodes;
        let parent_of = |label: &str| {
            let at = nodes.iter().position(|n| n.count > 0 && trace.labels.get(n.label) == label).unwrap();
            let parent = nodes.iter().position(|node| node.children.contains(&at)).unwrap();
            if parent == 0 { None } else { Some(trace.labels.get(nodes[parent].label)) }
        };
        assert_eq!(parent_of("inner"), Some("outer"));
        assert_eq!(parent_of("child of never closed"), nsys.then_some("never closed"), "{}", file.display());

        let report = checked(&[&file], None);
        let text: Vec<&str> = findings(&report).iter().map(|finding| finding.text.as_str()).collect();
        assert!(text.iter().any(|text| text.starts_with("unknown field \"id\"")), "{text:?}");
        assert!(text.iter().any(|text| text.starts_with("unknown scope \"ds4.mark,\"")), "{text:?}");
        assert_eq!(text.iter().any(|text| text.contains("ends after it")), csv, "{text:?}");
        assert_eq!(text.len(), if csv { 3 } else { 2 }, "{text:?}");
    }
}

#[test]
fn the_h200_s_kernels_land_on_their_ranges() {
    let trace = read(&sample("nsys-2025.3.1-h200/kernels/trace.sqlite"));
    let attribution = attribute(&trace);
    let ranges = trace.of_kind(Kind::Nested);
    assert_eq!(ranges.len(), 3);
    for range in 0..3 {
        let on_it: Vec<_> = (0..trace.activities.len())
            .filter(|&at| attribution.owners[at] == Owner::Launched(range))
            .map(|at| &trace.activities[at])
            .collect();
        assert_eq!(on_it.len(), 2, "range {range}");
        assert!(trace.labels.get(on_it[0].label).contains("sgemm"));
        assert!((339_000..=343_100).contains(&on_it[0].duration()), "{}", on_it[0].duration());
        assert!(trace.labels.get(on_it[1].label).contains("launch_clamp_scalar"));
        assert!((6_400..=6_950).contains(&on_it[1].duration()), "{}", on_it[1].duration());
    }
    let outside = |work: Work| {
        let pieces = attribution.owners.iter().zip(&trace.activities);
        pieces.filter(|(owner, piece)| **owner == Owner::Outside && piece.work == work).count()
    };
    assert_eq!((outside(Work::Kernel), outside(Work::Copy), outside(Work::Memset)), (2, 1, 1));
    let phase = &attribution.phases[0];
    assert_eq!((phase.name.as_str(), phase.count, phase.launches), ("ds4.layer_range verify", 3, 6));
    assert_eq!(phase.device, phase.own);
    assert_eq!(phase.device, 341_984 + 343_072 + 339_263 + 6_912 + 6_816 + 6_432);
    assert_eq!(phase.busy, phase.device, "none of them ran beside another");
}

/// The engine's own requests on the H200, kernels in CUDA graphs: a pass of the pair's target is 68 kernels, one fewer
/// for each of embedding, head and argmax that it does without.
#[test]
fn the_engine_s_kernels_land_on_its_passes() {
    for (case, mode, passes, ranges) in [("spec", "verify", 8, 21), ("target", "decode", 15, 27)] {
        let trace = read(&sample(&format!("nsys-2025.3.1-h200/engine-{case}/trace.sqlite")));
        let attribution = attribute(&trace);
        let nested = trace.of_kind(Kind::Nested);
        assert_eq!(nested.len(), ranges, "{case}");
        let kernels = |range: usize| {
            let pieces = attribution.owners.iter().zip(&trace.activities);
            pieces
                .filter(|(owner, piece)| **owner == Owner::Launched(range) && piece.work == Work::Kernel)
                .count()
        };
        let of_mode = |wanted: &str| -> Vec<usize> {
            let label = |range: usize| trace.labels.get(nested[range].label);
            let wanted = format!("ds4.layer_range mode={wanted} ");
            (0..ranges).filter(|&range| label(range).starts_with(&wanted)).map(kernels).collect()
        };
        assert_eq!(of_mode(mode), vec![68; passes], "{case}");
        // Nobody asks what follows a token inside the prompt: only the last pass has norm, head and argmax.
        let exact = of_mode("exact");
        assert_eq!((exact.len(), &exact[..10], exact[10]), (11, &[65; 10][..], 68), "{case}");
    }
}

/// Our own recorder, at full detail: a request around all, drafts, roll backs and samples beside the leaves.
#[test]
fn our_own_recording_is_fine_and_counts_what_the_engine_counted() {
    let file = sample("../recordings/full.json");
    let counts: Counts = [
        ("ds4.request", 1),
        ("ds4.prefill exact", 1),
        ("ds4.layer_range exact", 4),
        ("ds4.spec_decode batched", 1),
        ("ds4.draft", 11),
        ("ds4.layer_range verify", 11),
        ("ds4.sample", 12),
        ("ds4.rollback", 10),
    ]
    .map(|(phase, count)| (phase.to_owned(), count))
    .into();
    let report = checked(&[&file], Some(&counts));
    assert!(report.is_fine() && notes(&report).is_empty(), "{:?}", report.findings.list);
    assert_eq!(report.ranges, 51);
    let trace = read(&file);
    assert_eq!((trace.processes[0].host.name(), trace.processes[0].name.as_str()), ("host", "phasemark"));
    assert_eq!(trees(&trace, &attribute(&trace))[0].depth, 3);
}
