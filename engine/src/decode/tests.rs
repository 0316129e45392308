//! The decode loop against a toy model whose every answer depends on all that its cache holds, so that a
//! cache that is one row too long or too short gives other tokens.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use proptest::prelude::*;

use super::*;
use crate::device::{Answer, Part, Pass, Shard};
use crate::toy::{CONTEXT, LAYERS, Model, Toy, VOCAB, chain, config, silent, toy};

fn engine(draft: Option<Model>, shards: usize, eos: Vec<u32>) -> Engine {
    Engine::new(chain(Model::Salted(0), shards, None), draft.map(|draft| chain(draft, 1, None)), eos).unwrap()
}

/// The same as one shard each that share a memory, and how many tokens were proposed unseen by the host.
fn silent_engine(draft: Model, eos: Vec<u32>, fuse: Option<&Arc<AtomicUsize>>) -> (Engine, Arc<AtomicUsize>) {
    let unseen = Arc::default();
    let (target, draft) = (silent(Model::Salted(0), &unseen, fuse), silent(draft, &unseen, fuse));
    (Engine::new(target, Some(draft), eos).unwrap(), unseen)
}

fn run(engine: &mut Engine, request: &Request) -> Generation {
    let mut streamed = Vec::new();
    let generation = engine
        .generate(request, Markers::OFF, &mut |token| {
            streamed.push(token);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(streamed, generation.tokens, "what is streamed is what is returned");
    generation
}

fn caches(engine: &mut Engine) -> Vec<Vec<f32>> {
    engine.target_mut().shards_mut().iter_mut().map(|shard| shard.cache_rows(0).unwrap().0).collect()
}

fn any_request() -> impl Strategy<Value = Request> {
    (
        prop::collection::vec(0..VOCAB, 1..9),
        1..40_usize,
        1..9_usize,
        prop::sample::select(&Verify::ALL[..]),
        prop::sample::select(&[Prefill::Exact, Prefill::Dense][..]),
        prop::option::of(1..5_usize),
        (any::<bool>(), any::<bool>()),
    )
        .prop_map(
            |(prompt, max_tokens, draft_tokens, verify, prefill, prefill_chunk, (adapt, look_up))| Request {
                drafting: if look_up { Drafting::Lookup } else { Drafting::Model },
                adapt,
                max_tokens,
                draft_tokens,
                verify,
                prefill,
                prefill_chunk,
                ..Request::new(prompt)
            },
        )
}

fn any_draft() -> impl Strategy<Value = Model> {
    prop_oneof![(0..9_u32).prop_map(Model::Lying), (1..99_u32).prop_map(Model::Salted)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Cases 11, 13, 14 and 15: any draft, block, split, chunking, end of text and budget.
    #[test]
    fn speculative_output_and_caches_equal_target_only(
        request in any_request(), draft in any_draft(), shards in 1..=LAYERS, eos in prop::collection::vec(0..VOCAB, 0..3),
    ) {
        let mut plain = engine(None, 1, eos.clone());
        let mut speculative = engine(Some(draft), shards, eos.clone());
        let expected = run(&mut plain, &Request { drafting: Drafting::Nothing, ..request.clone() });
        let got = run(&mut speculative, &request);
        prop_assert_eq!(&got.tokens, &expected.tokens);
        prop_assert_eq!(got.finish, expected.finish);
        prop_assert!(got.tokens.len() <= request.max_tokens);
        let body = &got.tokens[..got.tokens.len() - 1];
        prop_assert!(!body.iter().any(|token| eos.contains(token)), "nothing follows an end of text");

        let plain_cache = caches(&mut plain).remove(0);
        prop_assert_eq!(plain_cache.len(), request.prompt.len() + body.len());
        for cache in caches(&mut speculative) {
            prop_assert_eq!(&cache, &plain_cache, "every shard's cache is that of a run that never drafted");
        }
        let draft_cache = speculative.draft_mut().unwrap().shards_mut()[0].cache_rows(0).unwrap().0;
        prop_assert!(plain_cache.starts_with(&draft_cache));

        // What the counts mean: every emitted token but the first is a target pass's own or an accepted draft.
        let one_row = request.verify != Verify::Batched;
        let completion = got.tokens.len();
        prop_assert_eq!(expected.target_passes, completion - 1);
        if one_row {
            prop_assert_eq!(got.target_passes, completion - 1, "one row a pass");
        } else {
            prop_assert_eq!(got.target_passes, got.rounds.len());
            let cut = usize::from(completion > 1 && completion - 1 < got.target_passes + got.accepted());
            prop_assert_eq!(completion - 1, got.target_passes + got.accepted() - cut);
        }
        for round in &got.rounds {
            prop_assert!(round.accepted <= round.drafted && round.drafted <= request.draft_tokens);
        }
    }

    /// Whether the host sees what is drafted, or the device decides what stands: the same rounds.
    #[test]
    fn rounds_that_the_host_does_not_see_are_the_same_rounds(
        request in any_request(), draft in any_draft(), eos in prop::collection::vec(0..VOCAB, 0..3),
    ) {
        // What adapts to the clock has other rounds each time.
        let request = Request { adapt: false, ..request };
        let mut seen = engine(Some(draft), 1, eos.clone());
        let (mut unseen, proposed) = silent_engine(draft, eos, None);
        let (expected, got) = (run(&mut seen, &request), run(&mut unseen, &request));
        prop_assert_eq!(&got.tokens, &expected.tokens);
        prop_assert_eq!(&got.rounds, &expected.rounds);
        prop_assert_eq!((got.target_passes, got.finish), (expected.target_passes, expected.finish));
        prop_assert_eq!(caches(&mut unseen), caches(&mut seen));
        let draft_cache =
            |engine: &mut Engine| engine.draft_mut().unwrap().shards_mut()[0].cache_rows(0).unwrap().0;
        prop_assert_eq!(draft_cache(&mut unseen), draft_cache(&mut seen));
        let all = request.drafting == Drafting::Model && request.verify == Verify::Batched;
        prop_assert_eq!(proposed.load(Relaxed), if all { got.drafted() } else { 0 });
    }

    /// Case 13: whichever greedy token is made the end of text, the output is the greedy prefix.
    #[test]
    fn every_greedy_token_in_turn_as_the_end_of_text(request in any_request(), draft in any_draft()) {
        let greedy = run(&mut engine(None, 1, vec![]), &request).tokens;
        for token in &greedy {
            let end = 1 + greedy.iter().position(|other| other == token).unwrap();
            let got = run(&mut engine(Some(draft), 2, vec![*token]), &request);
            prop_assert_eq!(&got.tokens, &greedy[..end]);
            prop_assert_eq!(got.finish, Finish::EndOfText);
            prop_assert!(got.accepted() < got.tokens.len());
            let ignored = run(&mut engine(Some(draft), 2, vec![*token]), &Request { ignore_eos: true, ..request.clone() });
            prop_assert_eq!(&ignored.tokens, &greedy);
        }
    }

    /// A conversation: each request begins like the one before, which may have been cancelled, and goes on otherwise.
    #[test]
    fn a_kept_prefix_changes_no_token_and_is_not_read_again(
        requests in prop::collection::vec((any_request(), 0..20_usize, 1..40_usize), 1..5), draft in any_draft(),
    ) {
        let mut talking = engine(Some(draft), 3, vec![]);
        let mut text: Vec<u32> = Vec::new();
        for (request, shared, after) in requests {
            let prompt: Vec<u32> = text.iter().take(shared).chain(&request.prompt).copied().collect();
            let alike = text.iter().zip(&prompt).take_while(|(one, other)| one == other).count();
            let request = Request { prompt, ..request };
            let fresh = run(&mut engine(Some(draft), 1, vec![]), &request).tokens;
            let request = Request { keep_prefix: true, ..request };
            let mut seen = 0;
            let got = talking.generate(&request, Markers::OFF, &mut |_| {
                seen += 1;
                if seen == after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            }).unwrap();
            prop_assert_eq!(&got.tokens[..], &fresh[..after.min(fresh.len())]);
            // The last emitted token is in no cache, and the prompt's last one is always read.
            let most = text.len().saturating_sub(1).min(request.prompt.len() - 1);
            prop_assert_eq!(got.kept, alike.min(most));
            text = [request.prompt, got.tokens].concat();
        }
    }

    /// Case 18: a request that is cancelled anywhere leaves nothing behind.
    #[test]
    fn after_a_cancelled_request_the_next_is_as_on_a_fresh_engine(
        cancelled in any_request(), next in any_request(), draft in any_draft(), after in 1..40_usize, unseen: bool,
    ) {
        let mut used =
            if unseen { silent_engine(draft, vec![], None).0 } else { engine(Some(draft), 3, vec![]) };
        let mut seen = 0;
        let generation = used.generate(&cancelled, Markers::OFF, &mut |_| {
            seen += 1;
            if seen == after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }).unwrap();
        prop_assert_eq!(generation.tokens.len(), after.min(cancelled.max_tokens));
        prop_assert_eq!(run(&mut used, &next).tokens, run(&mut engine(Some(draft), 3, vec![]), &next).tokens);
    }

    /// Case 18: so does one that fails in any pass of any shard, and no shard is left ahead of the others.
    #[test]
    fn after_a_failed_request_the_next_is_as_on_a_fresh_engine(
        failing in any_request(), next in any_request(), draft in any_draft(), passes in 1..120_usize, unseen: bool,
    ) {
        let fuse = Arc::new(AtomicUsize::new(passes));
        let mut used = if unseen {
            silent_engine(draft, vec![], Some(&fuse)).0
        } else {
            let target = chain(Model::Salted(0), 3, Some(&fuse));
            Engine::new(target, Some(chain(draft, 1, Some(&fuse))), vec![]).unwrap()
        };
        let failed = used.generate(&failing, Markers::OFF, &mut |_| ControlFlow::Continue(()));
        if failed.is_err() {
            let caches = caches(&mut used);
            prop_assert!(caches.iter().all(|cache| cache == &caches[0]));
        }
        fuse.store(usize::MAX, Relaxed);
        let fresh = run(&mut engine(Some(draft), 3, vec![]), &next);
        prop_assert_eq!(run(&mut used, &next).tokens, fresh.tokens);
    }
}

#[test]
fn a_draft_that_is_the_target_is_always_right() {
    for verify in Verify::ALL {
        let request = Request { verify, max_tokens: 30, ..Request::new(vec![1, 2, 3]) };
        let got = run(&mut engine(Some(Model::Salted(0)), 2, vec![]), &request);
        assert_eq!(got.acceptance_rate(), Some(1.0));
        // 29 tokens after the first: five rounds of 4 + 1, then one of 3 + 1.
        assert_eq!(got.rounds.len(), 6);
    }
}

#[test]
fn a_round_drafts_no_more_than_the_budget_can_use() {
    let drafts = |max_tokens| {
        let request = Request { max_tokens, ..Request::new(vec![1]) };
        let got = run(&mut engine(Some(Model::Salted(0)), 1, vec![]), &request);
        (got.rounds.iter().map(|round| round.drafted).collect::<Vec<_>>(), got.target_passes)
    };
    assert_eq!(drafts(1), (vec![], 0), "the first token comes from the prefill");
    assert_eq!(drafts(2), (vec![0], 1), "nothing is drafted, and yet the target has a pass");
    assert_eq!(drafts(4), (vec![2], 1));
    assert_eq!(drafts(8), (vec![4, 1], 2));
}

/// A shard that writes down when it is copied aside and put back.
struct Watched(Box<dyn Shard>, Arc<std::sync::Mutex<Vec<String>>>);

impl Shard for Watched {
    fn part(&self) -> &Part {
        self.0.part()
    }

    fn device(&self) -> u32 {
        self.0.device()
    }

    fn cached(&self) -> usize {
        self.0.cached()
    }

    fn forward(&mut self, pass: &Pass<'_>, answer: &mut Answer) -> Result<(), DeviceError> {
        self.0.forward(pass, answer)
    }

    fn roll_back(&mut self, len: usize) -> Result<(), DeviceError> {
        self.0.roll_back(len)
    }

    fn snapshot(&mut self) -> Result<(), DeviceError> {
        self.1.lock().unwrap().push("snapshot".into());
        self.0.snapshot()
    }

    fn restore(&mut self, accepted: usize) -> Result<(), DeviceError> {
        self.1.lock().unwrap().push(format!("restore {accepted}"));
        self.0.restore(accepted)
    }

    fn cache_rows(&mut self, layer: usize) -> Result<(Vec<f32>, Vec<f32>), DeviceError> {
        self.0.cache_rows(layer)
    }
}

#[test]
fn reference_exact_alone_copies_aside_each_round_and_puts_back_after_a_rejection() {
    for verify in Verify::ALL {
        let seen = Arc::default();
        let shard = Watched(toy(Model::Salted(0), 0..LAYERS, None), Arc::clone(&seen));
        let target = Chain::new(&config(VOCAB as usize), vec![Box::new(shard)]).unwrap();
        let mut engine = Engine::new(target, Some(chain(Model::Lying(3), 1, None)), vec![]).unwrap();
        let request = Request { verify, max_tokens: 30, ..Request::new(vec![1, 2]) };
        let rounds = run(&mut engine, &request).rounds;
        let rejected = |round: &&Round| round.accepted < round.drafted;
        assert!(rounds.iter().any(|round| rejected(&round)) && !rounds.iter().all(|round| rejected(&round)));
        let mut expected = Vec::new();
        for round in rounds.iter().filter(|_| verify == Verify::ReferenceExact) {
            expected.push("snapshot".to_owned());
            // The row of the last emitted token stays with the accepted ones.
            expected
                .extend(Some(round).filter(rejected).map(|round| format!("restore {}", round.accepted + 1)));
        }
        assert_eq!(*seen.lock().unwrap(), expected, "{verify:?}");
    }
}

#[test]
fn a_cut_block_counts_only_what_was_emitted() {
    let request = Request { max_tokens: 40, draft_tokens: 8, ..Request::new(vec![1, 2]) };
    let greedy = run(&mut engine(None, 1, vec![]), &request).tokens;
    // An end of text inside the first block: the prefill gives one token, so position p of the block is 1 + p.
    let end = greedy[4];
    let at = greedy.iter().position(|token| *token == end).unwrap();
    let got = run(&mut engine(Some(Model::Salted(0)), 1, vec![end]), &request);
    assert_eq!(got.tokens.len(), at + 1);
    assert_eq!(got.accepted(), at, "all drafted, none of them after the end");
    assert_eq!(got.target_passes, usize::from(at > 0));
}

#[test]
fn a_text_with_a_period_is_looked_up_and_never_drafted_beyond_what_was_asked() {
    // Of eleven tokens a greedy text soon repeats itself, but the toy's choices depend on the whole cache; so the
    // period is in the prompt, and what the target says of it is refused.
    let request = Request {
        drafting: Drafting::Lookup,
        max_tokens: 40,
        draft_tokens: 6,
        ..Request::new([1, 2, 3].repeat(6))
    };
    let mut plain = engine(None, 1, vec![]);
    let got = run(&mut plain, &request);
    assert!(got.drafted() > 0 && got.rounds.iter().all(|round| round.drafted <= 6));
    assert_eq!(got.tokens, run(&mut plain, &Request { drafting: Drafting::Nothing, ..request }).tokens);
}

#[test]
fn a_draft_with_a_short_context_does_not_bound_a_request_that_has_no_use_for_it() {
    let shard = |context| -> Vec<Box<dyn Shard>> {
        let part = Part { layers: 0..LAYERS, embedding: true, head: true, context };
        vec![Box::new(Toy::new(Model::Salted(0), part, None))]
    };
    let chain = |context| Chain::new(&config(VOCAB as usize), shard(context)).unwrap();
    let mut engine = Engine::new(chain(CONTEXT), Some(chain(8)), vec![]).unwrap();
    let request = Request { max_tokens: 20, ..Request::new(vec![1, 2]) };
    let refused = engine.generate(&request, Markers::OFF, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(refused.to_string().contains("the draft model has 8"), "{refused}");
    run(&mut engine, &Request { drafting: Drafting::Lookup, ..request });
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_computed() {
    let fuse = Arc::new(AtomicUsize::new(1));
    let target = chain(Model::Salted(0), 1, Some(&fuse));
    let mut engine = Engine::new(target, Some(chain(Model::Salted(1), 1, None)), vec![]).unwrap();
    let good = Request::new(vec![1, 2]);
    let cases = [
        (Request { prompt: vec![], ..good.clone() }, "the prompt is empty: give at least one token"),
        (Request { max_tokens: 0, ..good.clone() }, "the token budget is 0: ask for at least 1"),
        (
            Request { draft_tokens: 0, ..good.clone() },
            "the number of drafted tokens is 0: ask for at least 1",
        ),
        (Request { prefill_chunk: Some(0), ..good.clone() }, "the prefill chunk is 0: ask for at least 1"),
        (
            Request { prompt: vec![1, 11], ..good.clone() },
            "token id 11 at position 1 of the prompt is out of range: the model knows ids 0 to 10",
        ),
        (
            Request { max_tokens: 95, ..good.clone() },
            "a prompt of 2 tokens and a budget of 95 need 97 positions, but the target model has 96: \
             shorten the prompt or lower the budget",
        ),
        (
            Request { max_tokens: usize::MAX, ..good.clone() },
            "a prompt of 2 tokens and a budget of 18446744073709551615 need 18446744073709551615 positions, \
             but the target model has 96: shorten the prompt or lower the budget",
        ),
    ];
    for (request, says) in cases {
        let error = engine.generate(&request, Markers::OFF, &mut |_| ControlFlow::Continue(())).unwrap_err();
        assert_eq!(error.to_string(), says);
    }
    assert_eq!(fuse.load(Relaxed), 1, "no pass was made");
}

#[test]
fn proposals_stay_unseen_only_between_two_whole_models_in_one_memory() {
    let unseen = Arc::default();
    let silent = || silent(Model::Salted(0), &unseen, None);
    let seen = |shards| chain(Model::Salted(0), shards, None);
    assert!(silent().shares_memory(&silent()));
    for (target, draft) in [(silent(), seen(1)), (seen(1), silent()), (seen(2), silent()), (seen(1), seen(1))]
    {
        assert!(!target.shares_memory(&draft));
    }
    // More than a device keeps at once are seen.
    let (mut engine, proposed) = silent_engine(Model::Salted(0), vec![], None);
    let request = Request { max_tokens: 40, draft_tokens: 16, ..Request::new(vec![1]) };
    assert_eq!(run(&mut engine, &request).rounds[0].drafted, 16);
    assert_eq!(proposed.load(Relaxed), 4, "the last round's");
}

#[test]
fn a_draft_with_another_vocabulary_is_refused() {
    let shard = toy(Model::Salted(0), 0..LAYERS, None);
    let draft = Chain::new(&config(12), vec![shard]).unwrap();
    let error = Engine::new(chain(Model::Salted(0), 1, None), Some(draft), vec![]).err().unwrap();
    assert_eq!(
        error.to_string(),
        "the draft model knows 12 token ids and the target 11: a draft must share its target's vocabulary"
    );
}

#[test]
fn shards_that_do_not_make_a_model_are_refused() {
    let refused = |ranges: &[Range<usize>]| {
        let shards = ranges.iter().map(|range| toy(Model::Salted(0), range.clone(), None)).collect();
        Chain::new(&config(11), shards).err().map(|error| error.to_string())
    };
    assert_eq!(refused(&[0..2, 2..6]), None);
    for wrong in [&[][..], &[0..2, 3..6], &[0..2, 1..6], &[0..5, 5..5], &[1..3, 3..6], &[2..6, 0..2]] {
        assert!(refused(wrong).is_some(), "{wrong:?}");
    }
}

#[cfg(feature = "record")]
mod ranges {
    use super::*;
    use backend_record::Recorder;
    use marker_core::{Detail, Marker};

    /// Every range's text in the order of opening, indented by depth.
    fn recorded(engine: &mut Engine, request: &Request, detail: Detail) -> (Generation, Vec<String>) {
        let recorder = Recorder::with_capacity(1 << 14);
        let markers = Markers::new(&recorder, detail);
        let got = engine.generate(request, markers, &mut |_| ControlFlow::Continue(())).unwrap();
        let counters = recorder.counters();
        assert_eq!((counters.pushed, counters.failed, counters.dropped), (counters.popped, 0, 0));
        let lines =
            recorder.ranges().into_iter().map(|range| format!("{:1$}{2}", "", range.depth * 2, range.label));
        (got, lines.collect())
    }

    #[test]
    fn a_speculative_request_shows_its_phases() {
        let request = Request { max_tokens: 8, prefill: Prefill::Exact, ..Request::new(vec![1, 2, 3]) };
        let mut engine = engine(Some(Model::Salted(0)), 2, vec![]);
        let (_, lines) = recorded(&mut engine, &request, Detail::Phases);
        let leaf = |mode, tokens| {
            [
                format!("  ds4.layer_range mode={mode} tokens={tokens} layer_begin=0 layer_end=3 device=0"),
                format!("  ds4.layer_range mode={mode} tokens={tokens} layer_begin=3 layer_end=6 device=1"),
            ]
        };
        let mut expected =
            vec!["ds4.prefill mode=exact tokens=3 layer_begin=0 layer_end=6 device=0".to_owned()];
        (0..3).for_each(|_| expected.extend(leaf("exact", 1)));
        expected.push("ds4.spec_decode mode=batched tokens=8 layer_begin=0 layer_end=6 device=0".into());
        expected.extend(leaf("verify", 5));
        expected.extend(leaf("verify", 2));
        assert_eq!(lines, expected);
    }

    #[test]
    fn full_detail_adds_request_draft_rollback_and_sample() {
        let request = Request { max_tokens: 4, prefill_chunk: Some(2), ..Request::new(vec![1, 2, 3]) };
        let mut engine = engine(Some(Model::Lying(8)), 1, vec![]);
        let (_, lines) = recorded(&mut engine, &request, Detail::Full);
        let trimmed: Vec<_> = lines.iter().map(|line| line.split(" layer_begin").next().unwrap()).collect();
        assert_eq!(
            trimmed,
            [
                "ds4.request tokens=4",
                "  ds4.prefill mode=dense tokens=3",
                "    ds4.layer_range mode=dense tokens=2",
                "    ds4.layer_range mode=dense tokens=1",
                "    ds4.sample tokens=1",
                "  ds4.spec_decode mode=batched tokens=4",
                "    ds4.draft tokens=2",
                "    ds4.layer_range mode=verify tokens=3",
                "    ds4.sample tokens=3",
                "    ds4.rollback tokens=2",
                "    ds4.draft tokens=1",
                "    ds4.layer_range mode=verify tokens=2",
                "    ds4.sample tokens=2",
                "    ds4.rollback tokens=1",
                "    ds4.layer_range mode=verify tokens=1",
                "    ds4.sample tokens=1",
            ]
        );
    }

    proptest! {
        /// The phases are around the same work where the host does not see it.
        #[test]
        fn the_ranges_are_the_same_where_the_host_sees_nothing(request in any_request(), draft in any_draft()) {
            let request = Request { adapt: false, ..request };
            let (_, expected) = recorded(&mut engine(Some(draft), 1, vec![]), &request, Detail::Full);
            let (_, lines) = recorded(&mut silent_engine(draft, vec![], None).0, &request, Detail::Full);
            prop_assert_eq!(lines, expected);
        }

        /// Section 2's table of counts, and markers change nothing.
        #[test]
        fn the_counts_of_the_vocabulary_hold(
            request in any_request(), draft in prop::option::of(any_draft()), shards in 1..=LAYERS, full: bool,
        ) {
            let silent = run(&mut engine(draft, shards, vec![]), &request);
            let detail = if full { Detail::Full } else { Detail::Phases };
            let (got, lines) = recorded(&mut engine(draft, shards, vec![]), &request, detail);
            prop_assert_eq!(&got.tokens, &silent.tokens);
            // Where the clock has no say, the rounds are the same too.
            if !request.adapt {
                prop_assert_eq!((&got.rounds, got.target_passes), (&silent.rounds, silent.target_passes));
            }

            let count = |what: &str| lines.iter().filter(|line| line.trim_start().starts_with(what)).count();
            let chunk = request.prefill_chunk.unwrap_or(request.prefill.default_chunk());
            let prefill = request.prompt.len().div_ceil(chunk) * shards;
            let mode = request.prefill.phase();
            let leaf_mode = format!("ds4.layer_range mode={mode} ");
            prop_assert_eq!(count(&leaf_mode), prefill);
            prop_assert_eq!(count("ds4.prefill "), 1);
            let speculates = draft.is_some() || request.drafting == Drafting::Lookup;
            let spec = usize::from(speculates && request.max_tokens > 1);
            prop_assert_eq!(count("ds4.spec_decode "), spec);
            let leaf = if speculates { "ds4.layer_range mode=verify " } else { "ds4.layer_range mode=decode " };
            prop_assert_eq!(count(leaf), got.target_passes * shards);
            prop_assert_eq!(count("ds4.layer_range "), prefill + got.target_passes * shards);
            let extra = count("ds4.") - count("ds4.layer_range ") - 1 - spec;
            prop_assert_eq!(extra == 0, !full);
            let drafting = got.rounds.iter().filter(|round| round.drafted > 0).count();
            prop_assert_eq!(count("ds4.draft "), if full { drafting } else { 0 });
        }
    }
}
