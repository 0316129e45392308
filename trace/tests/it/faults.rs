//! Each fault put into a good trace is found and named.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use trace::check::Counts;
use trace::model::Finding;

use crate::{checked, findings, notes, sample};

const CSV: &str = "rocprofv3-1.0.0";

/// A copy of a good CSV with its rows changed; the first row is at index 0 and on line 2.
fn broken(case: &str, change: impl FnOnce(&mut Vec<String>)) -> (TempDir, PathBuf) {
    let text = std::fs::read_to_string(sample(&format!("{CSV}/{case}/trace_marker_api_trace.csv"))).unwrap();
    let mut rows: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
    let header = rows.remove(0);
    change(&mut rows);
    rows.insert(0, header);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broken_marker_api_trace.csv");
    std::fs::write(&file, rows.join("\n") + "\n").unwrap();
    (folder, file)
}

fn with_label(row: &str, from: &str, to: &str) -> String {
    assert!(row.contains(from), "{from} is not in {row}");
    row.replacen(from, to, 1)
}

/// The row with other times.
fn with_times(row: &str, start: u64, end: u64) -> String {
    let fields: Vec<&str> = row.rsplitn(3, ',').collect();
    format!("{},{start},{end}", fields[2])
}

fn times(row: &str) -> (u64, u64) {
    let mut fields = row.rsplit(',');
    let end = fields.next().unwrap().parse().unwrap();
    (fields.next().unwrap().parse().unwrap(), end)
}

/// The only finding, which must stand in the file, on this line, and name the thread.
#[track_caller]
fn only(file: &Path, line: usize, text: &str) {
    let report = checked(&[file], None);
    let found = findings(&report);
    assert_eq!(found.len(), 1, "{found:#?}");
    named(found[0], file, line, text);
}

#[track_caller]
fn named(finding: &Finding, file: &Path, line: usize, text: &str) {
    assert!(finding.place.starts_with(&format!("{}: line {line}, thread 3", file.display())), "{finding:?}");
    assert!(finding.text.contains(text), "{finding:?}");
    assert!(finding.label.as_ref().is_some_and(|label| label.starts_with("ds4.")), "{finding:?}");
}

#[test]
fn a_dropped_prefill_pass() {
    let (_folder, file) = broken("spec", |rows| drop(rows.remove(3)));
    only(&file, 12, "its 10 passes over layers 0..8 hold 10 tokens; expected the prompt's 11");
}

#[test]
fn a_dropped_prefill() {
    let (_folder, file) = broken("spec", |rows| drop(rows.remove(11)));
    only(&file, 21, "no ds4.prefill goes before it, though prefill passes stand at the top");
}

#[test]
fn a_dropped_prefill_whole_with_its_passes() {
    let (_folder, file) = broken("spec", |rows| {
        // A second speculative decode, later, as if its prefill had been lost.
        let again = |row: &String| {
            let (start, end) = times(row);
            with_times(row, start + 1_000_000_000, end + 1_000_000_000)
        };
        let second: Vec<String> = rows[12..].iter().map(again).collect();
        rows.extend(second);
    });
    only(&file, 31, "no ds4.prefill goes before it; expected one");
}

#[test]
fn a_dropped_shard_of_a_pass() {
    let (_folder, file) = broken("shards", |rows| drop(rows.remove(5)));
    let report = checked(&[&file], None);
    let found = findings(&report);
    assert_eq!(found.len(), 3, "{found:#?}");
    named(found[0], &file, 7, "layers 0..4 come after");
    assert!(found[0].text.contains("expected layers 4..8 next"));
    named(found[1], &file, 23, "its 10 passes over layers 4..8 hold 10 tokens");
    assert!(found[2].text.contains("layers 4..8 saw 10 and others 11"), "{:?}", found[2]);
}

#[test]
fn a_pass_that_stops_in_the_middle() {
    // The last verify pass loses its second shard.
    let (_folder, file) = broken("shards", |rows| drop(rows.remove(38)));
    let report = checked(&[&file], None);
    named(findings(&report)[0], &file, 39, "its pass ends with it; expected layers 4..8 next");
}

#[test]
fn a_dropped_range_that_only_the_engine_knows_of() {
    let stats: Counts = [
        ("ds4.prefill exact", 1),
        ("ds4.layer_range exact", 11),
        ("ds4.spec_decode batched", 1),
        ("ds4.layer_range verify", 8),
    ]
    .map(|(phase, count)| (phase.to_owned(), count))
    .into();
    let (_folder, file) = broken("spec", |rows| drop(rows.remove(14)));
    assert!(checked(&[&file], None).is_fine(), "nothing in the trace itself shows it");
    let report = checked(&[&file], Some(&stats));
    let found = findings(&report);
    assert_eq!(found.len(), 1);
    assert!(found[0].text.starts_with("7 ranges of ds4.layer_range verify; expected 8"), "{found:?}");

    let mut wrong = stats;
    wrong.insert("ds4.draft".to_owned(), 8);
    wrong.remove("ds4.prefill exact");
    let report = checked(&[&sample(&format!("{CSV}/spec/trace_marker_api_trace.csv"))], Some(&wrong));
    let texts: Vec<&str> = findings(&report).iter().map(|finding| finding.text.as_str()).collect();
    assert_eq!(texts.len(), 2);
    assert!(texts[0].starts_with("0 ranges of ds4.draft; expected 8"), "{texts:?}");
    assert!(texts[1].starts_with("1 ranges of ds4.prefill exact; expected 0"), "{texts:?}");
}

#[test]
fn a_swapped_label() {
    let (_folder, file) =
        broken("spec", |rows| rows[14] = with_label(&rows[14], "mode=verify", "mode=exact"));
    let report = checked(&[&file], None);
    named(
        findings(&report)[0],
        &file,
        16,
        "mode=exact inside ds4.spec_decode batched (row 22); expected mode=verify",
    );

    let (_folder, file) = broken("spec", |rows| rows[3] = with_label(&rows[3], "mode=exact", "mode=dense"));
    let report = checked(&[&file], None);
    named(findings(&report)[0], &file, 5, "mode=dense inside ds4.prefill exact");

    // A parent and a child that changed places.
    let (_folder, file) = broken("spec", |rows| {
        let label = |row: &str| row.split('"').nth(3).unwrap().to_owned();
        let (leaf, parent) = (label(&rows[0]), label(&rows[11]));
        rows[0] = with_label(&rows[0], &leaf, &parent);
        rows[11] = with_label(&rows[11], &parent, &leaf);
    });
    let report = checked(&[&file], None);
    let found = findings(&report);
    assert!(found.iter().any(|f| f.text.contains("inside ds4.layer_range (row 13)")), "{found:#?}");
    assert!(found.iter().any(|f| f.text.contains("a leaf inside the leaf")), "{found:#?}");
}

#[test]
fn overlapping_siblings() {
    let (_folder, file) = broken("spec", |rows| {
        let (start, _) = times(&rows[3]);
        let (_, end) = times(&rows[4]);
        rows[3] = with_times(&rows[3], start, end - 10);
    });
    only(&file, 6, "(row 5) and ends after it; expected it to lie within or to begin later");
}

#[test]
fn a_child_that_outlives_its_parent() {
    let (_folder, file) = broken("spec", |rows| {
        let (start, end) = times(&rows[11]);
        rows[11] = with_times(&rows[11], start, end - 1_000);
    });
    let report = checked(&[&file], None);
    let found = findings(&report);
    let overlap = found.iter().find(|finding| finding.text.contains("(row 13) and ends after it"));
    named(overlap.unwrap(), &file, 12, "expected it to lie within");
}

#[test]
fn a_leaf_in_a_leaf() {
    let (_folder, file) = broken("spec", |rows| {
        let (start, end) = times(&rows[3]);
        let inner = with_times(&rows[3], start + 10, end - 10);
        rows.insert(3, inner);
    });
    let report = checked(&[&file], None);
    let found = findings(&report);
    named(found[0], &file, 5, "a leaf inside the leaf");
    assert!(found[0].text.contains("(row 6)"), "{found:?}");
}

#[test]
fn a_wrong_count_of_tokens() {
    let (_folder, file) = broken("spec", |rows| rows[11] = with_label(&rows[11], "tokens=11", "tokens=12"));
    only(&file, 13, "hold 11 tokens; expected the prompt's 12");
    let (_folder, file) = broken("spec", |rows| rows[20] = with_label(&rows[20], "tokens=28", "tokens=7"));
    only(&file, 22, "8 passes over layers 0..8; expected at most one for each of its 7 tokens");
    let (_folder, file) = broken("spec", |rows| {
        rows[20] = with_label(&rows[20], "mode=batched", "mode=sequential");
        for row in &mut rows[12..19] {
            *row = with_label(row, "tokens=4", "tokens=1");
        }
    });
    let report = checked(&[&file], None);
    named(findings(&report)[0], &file, 21, "verifies one row a pass; expected tokens=1");
}

#[test]
fn shards_of_one_pass_that_disagree() {
    let (_folder, file) = broken("shards", |rows| rows[24] = with_label(&rows[24], "tokens=4", "tokens=3"));
    let report = checked(&[&file], None);
    named(findings(&report)[0], &file, 26, "expected the same mode and tokens on every shard");
}

#[test]
fn layers_and_devices_that_are_not_the_parent_s() {
    let (_folder, file) = broken("spec", |rows| rows[3] = with_label(&rows[3], "layer_end=8", "layer_end=9"));
    let report = checked(&[&file], None);
    named(findings(&report)[0], &file, 5, "layers 0..9 inside ds4.prefill exact (row 13) with layers 0..8");
    let (_folder, file) = broken("spec", |rows| rows[3] = with_label(&rows[3], "device=0", "device=1"));
    only(&file, 5, "device=1 on the first shard, while ds4.prefill exact (row 13) has device=0");
}

#[test]
fn a_range_that_ends_before_it_begins() {
    let (_folder, file) = broken("spec", |rows| {
        let (start, end) = times(&rows[3]);
        rows[3] = with_times(&rows[3], end, start);
    });
    let report = checked(&[&file], None);
    let found = findings(&report);
    assert!(found.iter().any(|f| f.text.contains("ns before it begins")), "{found:#?}");
}

#[test]
fn one_half_of_a_leaf_layer_range_is_a_note_where_its_shard_s_file_is_missing() {
    let (_folder, file) = broken("shards", |rows| rows.retain(|row| !row.contains("layer_begin=4")));
    let report = checked(&[&file], None);
    assert!(report.is_fine(), "{:?}", findings(&report));
    assert!(notes(&report)[0].text.contains("no file passes layers 4..8 of 8"), "{:?}", notes(&report));
}

#[test]
fn a_broken_label_is_named_where_it_stands() {
    let (_folder, file) = broken("spec", |rows| rows[3] = with_label(&rows[3], "tokens=1 ", "tokens=1  "));
    let report = checked(&[&file], None);
    named(findings(&report)[0], &file, 5, "separated by one space");
}

#[test]
fn rows_out_of_order_are_no_fault() {
    let (_folder, file) = broken("shards", |rows| rows.reverse());
    assert!(checked(&[&file], None).is_fine());
}

#[test]
fn no_range_at_all() {
    let (_folder, file) = broken("spec", Vec::clear);
    let report = checked(&[&file], None);
    assert!(findings(&report)[0].text.contains("there is no range in it"));
}

#[test]
fn of_two_equal_spans_the_one_popped_last_is_the_outer() {
    let (_folder, file) = broken("spec", |rows| {
        rows.drain(12..);
        rows.drain(1..11);
        let (start, end) = times(&rows[0]);
        rows[1] = with_label(&with_times(&rows[1], start, end), "tokens=11", "tokens=1");
    });
    assert!(checked(&[&file], None).is_fine(), "a prefill of one token as long as its only pass");
}
