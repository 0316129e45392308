//! Every input that the fuzzer of frames is seeded with, or once found something with, once more.

#![cfg(unix)]

use std::path::Path;

#[path = "../fuzz/frames.rs"]
#[allow(
    clippy::expect_used,
    clippy::cast_possible_truncation,
    unreachable_pub,
    reason = "a fuzz target fails by panic"
)]
mod frames;

#[test]
fn the_corpus_of_the_fuzzer_of_frames() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/frames");
    let mut inputs = 0;
    for input in std::fs::read_dir(corpus)? {
        let path = input?.path();
        println!("{}", path.display());
        frames::try_on_a_shard(&std::fs::read(path)?);
        inputs += 1;
    }
    assert!(inputs >= 20, "the corpus is there: {inputs} inputs");
    Ok(())
}
