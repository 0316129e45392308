//! Hidden state that is no numbers is told of the shard that gave it, wherever that is, and of no other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::rig::*;
use crate::decode::{Engine, Request};
use crate::device::{Answer, DeviceError, Input, Part, Pass, Path, Shard, Want};
use crate::shard::Chain;
use crate::toy::{CONTEXT, LAYERS, Model, Toy, VOCAB, WIDTH, chain, config};

/// A toy whose numbers run over.
struct Overflowing {
    toy: Toy,
    when: When,
}

/// When they do.
enum When {
    /// In a pass, once: so many passes are left until then.
    Pass(AtomicUsize),
    /// Wherever this token is; how often that was.
    Token(u32, Arc<AtomicUsize>),
}

impl Overflowing {
    fn shard(part: Part, when: When) -> Box<dyn Shard> {
        Box::new(Overflowing { toy: Toy::new(Model::Salted(0), part, None), when })
    }

    /// In the pass of this number.
    fn once(part: Part, pass: usize) -> Box<dyn Shard> {
        Overflowing::shard(part, When::Pass(AtomicUsize::new(pass)))
    }
}

impl Shard for Overflowing {
    fn part(&self) -> &Part {
        self.toy.part()
    }
    fn device(&self) -> u32 {
        self.toy.device()
    }
    fn cached(&self) -> usize {
        self.toy.cached()
    }
    fn forward(&mut self, pass: &Pass<'_>, answer: &mut Answer) -> Result<(), DeviceError> {
        self.toy.forward(pass, answer)?;
        match &self.when {
            When::Pass(left) => {
                if left.fetch_sub(1, SeqCst) == 1
                    && let Some(value) = answer.hidden.last_mut()
                {
                    *value = f32::INFINITY;
                }
            }
            When::Token(token, count) => {
                for row in answer.hidden.chunks_mut(WIDTH).filter(|row| row[0] as u32 == *token) {
                    count.fetch_add(1, SeqCst);
                    row.fill(f32::NAN);
                }
            }
        }
        Ok(())
    }
    fn roll_back(&mut self, len: usize) -> Result<(), DeviceError> {
        self.toy.roll_back(len)
    }
    fn snapshot(&mut self) -> Result<(), DeviceError> {
        self.toy.snapshot()
    }
    fn restore(&mut self, accepted: usize) -> Result<(), DeviceError> {
        self.toy.restore(accepted)
    }
    fn cache_rows(&mut self, layer: usize) -> Result<(Vec<f32>, Vec<f32>), DeviceError> {
        self.toy.cache_rows(layer)
    }
}

fn part(layers: std::ops::Range<usize>, embedding: bool, head: bool) -> Part {
    Part { layers, embedding, head, context: CONTEXT }
}

/// The second pass of a request is no numbers: it fails with `says`, the shard elsewhere was not asked, and the next
/// request is as ever.
fn fails_once(target: Chain, elsewhere: &Served, says: &str) {
    let mut engine = Engine::new(target, None, vec![]).unwrap();
    let request = Request { max_tokens: 8, ..Request::new(vec![1, 2, 3]) };
    let error = run(&mut engine, &request).unwrap_err().to_string();
    assert!(error.starts_with(says), "{error}");
    assert_eq!(run(&mut engine, &request).unwrap().tokens, expected(&request));
    assert!(elsewhere.told.lock().unwrap().is_empty(), "nothing to complain of came there");
}

#[test]
fn a_shard_here_whose_numbers_run_over_is_named_and_not_the_one_elsewhere_behind_it() {
    let served = serve(3..LAYERS, Socket::Unix, LIMITS);
    let shards = vec![
        Overflowing::once(part(0..3, false, false), 2),
        Box::new(served.connect(LIMITS).unwrap()) as Box<dyn Shard>,
    ];
    let target = Chain::with_ends(&config(VOCAB as usize), ends(), shards).unwrap();
    fails_once(
        target,
        &served,
        "shard 0..3 in this process: row 0 of the hidden state that it gave is NaN or infinite",
    );
}

#[test]
fn an_embedding_here_that_is_no_numbers_is_named_and_not_the_shard_elsewhere() {
    let served = serve(WHOLE, Socket::Unix, LIMITS);
    let shards = vec![Box::new(served.connect(LIMITS).unwrap()) as Box<dyn Shard>];
    // Embedding and head are a pass each; the third is the second embedding.
    let ends = Overflowing::once(part(0..0, true, true), 3);
    let target = Chain::with_ends(&config(VOCAB as usize), ends, shards).unwrap();
    fails_once(target, &served, "shard of the embedding in this process: row 0 of the hidden state");
}

#[test]
fn the_last_shard_here_is_named_and_not_the_head_behind_it() {
    let served = serve(0..3, Socket::Unix, LIMITS);
    let shards = vec![
        Box::new(served.connect(LIMITS).unwrap()) as Box<dyn Shard>,
        Overflowing::once(part(3..LAYERS, false, false), 2),
    ];
    let target = Chain::with_ends(&config(VOCAB as usize), ends(), shards).unwrap();
    fails_once(target, &served, "shard 3..6 in this process: row 0 of the hidden state");
}

/// Who drives a shard without a chain is told so by the shard.
#[test]
fn hidden_state_that_is_no_numbers_is_not_taken_for_a_pass() {
    let served = serve(WHOLE, Socket::Unix, LIMITS);
    let mut remote = served.connect(LIMITS).unwrap();
    let mut hidden = vec![1.0; 3 * WIDTH];
    let mut answer = Answer::default();
    let mut pass = |hidden: &[f32]| {
        let pass = Pass {
            input: Input::Hidden(hidden),
            start: 0,
            phase: marker_core::Phase::Decode,
            path: Path::Decode,
            want: Want::Hidden,
        };
        remote.forward(&pass, &mut answer)
    };
    hidden[2 * WIDTH] = f32::NAN;
    let error = pass(&hidden).unwrap_err().to_string();
    let says = "it refused the request: row 2 of the hidden state that the parent sent is NaN or infinite";
    assert!(error.ends_with(says), "{error}");
    assert!(served.cache.lock().unwrap().is_empty(), "nothing of it was cached");
    hidden[2 * WIDTH] = 1.0;
    pass(&hidden).unwrap();
}

/// Speculative output is target-only output also for a target that has no numbers for a token which it would not say:
/// its draft alone asks about that one.
#[test]
fn a_drafted_token_without_numbers_fails_nobody_who_does_not_say_it() {
    let engine = |token| {
        let count = Arc::new(AtomicUsize::new(0));
        let served = serve(3..LAYERS, Socket::Unix, LIMITS);
        let shards = vec![
            Overflowing::shard(part(0..3, false, false), When::Token(token, Arc::clone(&count))),
            Box::new(served.connect(LIMITS).unwrap()) as Box<dyn Shard>,
        ];
        let target = Chain::with_ends(&config(VOCAB as usize), ends(), shards).unwrap();
        (Engine::new(target, Some(chain(Model::Lying(5), 1, None)), vec![]).unwrap(), count, served)
    };
    let (mut met, mut failed) = (0, 0);
    for prompt in [vec![1, 2, 3], vec![4], vec![7, 7, 0, 5]] {
        let request = Request { max_tokens: 8, ..Request::new(prompt) };
        let said = expected(&request);
        // What follows the last one is not asked.
        let asked = [&request.prompt[..], &said[..said.len() - 1]].concat();
        for token in 0..VOCAB {
            let (mut engine, count, _served) = engine(token);
            match run(&mut engine, &request) {
                Ok(generation) => {
                    assert!(!asked.contains(&token), "{token}");
                    assert_eq!(generation.tokens, said, "{token}");
                    met += count.load(SeqCst);
                }
                Err(error) => {
                    assert!(asked.contains(&token), "{token}: {error}");
                    assert!(error.to_string().starts_with("shard 0..3 in this process: row "), "{error}");
                    failed += 1;
                }
            }
        }
    }
    assert!(met > 0 && failed > 0, "it was drafted {met} times, and asked about {failed} times");
}
