//! Whatever is where, a request gives the same tokens and leaves the same caches, and leaves of parent and
//! shards together tile the layers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use proptest::prelude::*;

use super::rig::*;
use crate::decode::{Engine, Prefill, Request, Verify};
use crate::device::{Part, Shard};
use crate::shard::Chain;
use crate::toy::{CONTEXT, LAYERS, Model, Toy, VOCAB, chain, config};

fn any_request() -> impl Strategy<Value = Request> {
    (
        prop::collection::vec(0..VOCAB, 1..9),
        1..30_usize,
        1..6_usize,
        prop::sample::select(&Verify::ALL[..]),
        prop::sample::select(&[Prefill::Exact, Prefill::Dense][..]),
        prop::option::of(1..5_usize),
    )
        .prop_map(|(prompt, max_tokens, draft_tokens, verify, prefill, prefill_chunk)| Request {
            max_tokens,
            draft_tokens,
            verify,
            prefill,
            prefill_chunk,
            ..Request::new(prompt)
        })
}

/// The toy target over shards that are here (`None`) or at a socket; those that are served.
fn spread(places: &[Option<Socket>]) -> (Chain, Vec<Served>) {
    let count = places.len();
    let cut = |shard: usize| shard * LAYERS / count;
    let ends_needed = places[0].is_some() || places[count - 1].is_some();
    let (mut shards, mut served): (Vec<Box<dyn Shard>>, Vec<_>) = (Vec::new(), Vec::new());
    for (index, place) in places.iter().enumerate() {
        let layers = cut(index)..cut(index + 1);
        match place {
            None => {
                let (embedding, head) = (index == 0 && !ends_needed, index + 1 == count && !ends_needed);
                let part = Part { layers, embedding, head, context: CONTEXT };
                shards.push(Box::new(Toy::new(Model::Salted(0), part, None)));
            }
            Some(socket) => {
                let there = serve(layers, *socket, LIMITS);
                shards.push(Box::new(there.connect(LIMITS).unwrap()));
                served.push(there);
            }
        }
    }
    let config = config(VOCAB as usize);
    let chain =
        if ends_needed { Chain::with_ends(&config, ends(), shards) } else { Chain::new(&config, shards) };
    (chain.unwrap(), served)
}

fn any_places() -> impl Strategy<Value = Vec<Option<Socket>>> {
    let place = prop::sample::select(&[None, Some(Socket::Unix), Some(Socket::Tcp)][..]);
    prop::collection::vec(place, 1..=LAYERS)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_split_over_any_places_says_what_one_shard_says(
        places in any_places(), requests in prop::collection::vec(any_request(), 1..4), lies in 0..9_u32, after in 1..40_usize,
    ) {
        let (target, served) = spread(&places);
        let mut engine = Engine::new(target, Some(chain(Model::Lying(lies), 1, None)), vec![]).unwrap();
        for request in &requests {
            // A cancelled one in between leaves nothing behind.
            let mut seen = 0;
            engine.generate(request, marker_core::Markers::OFF, &mut |_| {
                seen += 1;
                if seen == after { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
            }).unwrap();
            let got = run(&mut engine, request).unwrap();
            prop_assert_eq!(&got.tokens, &expected(request));

            // Accepted wholly, partly or not at all: the caches are those of a run that never drafted.
            let text = [&request.prompt[..], &got.tokens[..got.tokens.len() - 1]].concat();
            for there in &served {
                let cache = there.cache.lock().unwrap().clone();
                prop_assert_eq!(cache.len(), text.len());
                // Behind the first shard's layers the toy's state is the token; the last one's is what it hashes.
                let text: Vec<f32> = text.iter().map(|token| *token as f32).collect();
                prop_assert_eq!(cache, text);
            }
        }
        let generations = 2 * requests.len();
        prop_assert!(served.iter().all(|there| there.ended.load(SeqCst) == generations), "each one is told of its end");
        prop_assert!(served.iter().all(|there| there.told.lock().unwrap().is_empty()), "and nothing is complained of");
    }
}

#[test]
fn a_round_costs_one_request_a_shard_whatever_is_accepted() {
    let fuse = Arc::new(AtomicUsize::new(usize::MAX));
    for verify in Verify::ALL {
        let served =
            serve_with(WHOLE, Socket::Unix, LIMITS, marker_core::Markers::OFF, Some(Arc::clone(&fuse)));
        let before = fuse.load(SeqCst);
        let request = Request { verify, max_tokens: 30, ..Request::new(vec![1, 2, 3]) };
        let mut engine = remote_engine(&served, LIMITS);
        let generation = run(&mut engine, &request).unwrap();
        assert!(generation.accepted() > 0 && generation.accepted() < generation.drafted());
        assert_eq!(before - fuse.load(SeqCst), 1 + generation.target_passes, "{verify:?}");
    }
}

#[test]
fn a_device_that_fails_elsewhere_fails_the_request_and_not_the_next_one() {
    for passes in 1..8 {
        let fuse = Arc::new(AtomicUsize::new(passes));
        let served = serve_with(WHOLE, Socket::Unix, LIMITS, marker_core::Markers::OFF, Some(fuse));
        let mut engine = remote_engine(&served, LIMITS);
        let request = Request { max_tokens: 30, ..Request::new(vec![1, 2, 3]) };
        let error = run(&mut engine, &request).unwrap_err().to_string();
        assert!(error.starts_with("shard 0..6 at unix:") && error.ends_with("the fuse blew"), "{error}");
        assert_eq!(run(&mut engine, &request).unwrap().tokens, expected(&request));
    }
}

#[cfg(feature = "record")]
mod ranges {
    use super::*;
    use backend_record::Recorder;
    use marker_core::{Detail, Markers};

    fn labels(recorder: &Recorder) -> Vec<String> {
        recorder.ranges().iter().map(|range| range.label.clone()).collect()
    }

    /// Section 2's counts, and each process counts its own.
    #[test]
    fn parent_and_shards_together_tile_the_layers_of_every_pass() {
        let theirs: &'static Recorder = Box::leak(Box::new(Recorder::with_capacity(1 << 12)));
        let markers = Markers::new(theirs, Detail::Phases);
        for remote in [0, 1, 2] {
            let cut = [0..2, 2..4, 4..6];
            let served = serve_with(cut[remote].clone(), Socket::Unix, LIMITS, markers, None);
            let mut shards: Vec<Box<dyn Shard>> = Vec::new();
            for (index, layers) in cut.iter().enumerate() {
                if index == remote {
                    shards.push(Box::new(served.connect(LIMITS).unwrap()));
                } else {
                    let middle = remote == 1;
                    let part = Part {
                        layers: layers.clone(),
                        embedding: middle && index == 0,
                        head: middle && index == 2,
                        context: CONTEXT,
                    };
                    shards.push(Box::new(Toy::new(Model::Salted(0), part, None)));
                }
            }
            let config = config(VOCAB as usize);
            let target = match remote {
                1 => Chain::new(&config, shards),
                _ => Chain::with_ends(&config, ends(), shards),
            };
            let mut engine =
                Engine::new(target.unwrap(), Some(chain(Model::Lying(4), 1, None)), vec![]).unwrap();
            let ours = Recorder::with_capacity(1 << 12);
            let request =
                Request { prefill: Prefill::Exact, max_tokens: 20, ..Request::new(vec![1, 2, 3, 4, 5]) };
            let before = labels(theirs).len();
            let got = engine
                .generate(&request, Markers::new(&ours, Detail::Phases), &mut |_| {
                    std::ops::ControlFlow::Continue(())
                })
                .unwrap();
            let (ours, theirs) = (labels(&ours), labels(theirs)[before..].to_vec());

            let (prompt, passes) = (5, got.target_passes);
            assert_eq!(ours.len() + theirs.len(), 1 + prompt * 3 + 1 + passes * 3);
            assert_eq!(theirs.len(), prompt + passes, "one leaf a pass, and nothing around it");
            // Leaf by leaf: what the parent leaves out is what the shard has, with the same mode and rows.
            let of = |index: usize| {
                let Some(layers) = cut.get(index) else { panic!("there is no shard {index}") };
                let tail = format!(" layer_begin={} layer_end={} ", layers.start, layers.end);
                let mine: Vec<_> = ours.iter().chain(&theirs).filter(|label| label.contains(&tail)).collect();
                mine.iter()
                    .map(|label| label.split(" layer_begin").next().unwrap().to_owned())
                    .collect::<Vec<_>>()
            };
            assert_eq!(of(0), of(1));
            assert_eq!(of(1), of(2));
            assert_eq!(
                of(0).iter().filter(|label| label.starts_with("ds4.layer_range mode=exact")).count(),
                prompt
            );
        }
    }
}
