//! Sampling against exact probabilities: a tiny model whose every distribution is known, each combination of
//! drafting, verifying and filtering, and a chi-square test over all texts of three tokens.
//!
//! Seeds are fixed, so that a test that passes passes always.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::*;
use crate::device::{Answer, Input, Part, Pass, Shard, Want};
use crate::model::{Architecture, Config, Rope, Scaling};

const VOCAB: usize = 4;
const CONTEXT: usize = 64;
const LAYERS: usize = 4;
/// Texts that are sampled a combination.
const SAMPLES: u64 = 4000;
/// Standard deviations of a chi-square statistic that pass: by chance one in a million combinations fails.
const FAR: f64 = 5.0;

/// Logits are a hash of everything cached: a cache that is a row too long or too short, or a penalty over another
/// history, gives other distributions.
struct Dice {
    part: Part,
    cache: Vec<u32>,
    aside: Vec<u32>,
    salt: u32,
}

fn logits(salt: u32, text: &[u32]) -> [f32; VOCAB] {
    let mix = |state: u32, value: u32| {
        (state ^ value.wrapping_add(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b).rotate_left(11)
    };
    let hash = text.iter().fold(mix(7, salt), |state, token| mix(state, *token));
    std::array::from_fn(|token| (mix(mix(hash, token as u32), 3) % 1000) as f32 / 250.0 - 1.5)
}

impl Shard for Dice {
    fn part(&self) -> &Part {
        &self.part
    }
    fn device(&self) -> u32 {
        0
    }
    fn cached(&self) -> usize {
        self.cache.len()
    }
    fn forward(&mut self, pass: &Pass<'_>, answer: &mut Answer) -> Result<(), DeviceError> {
        let from = self.cache.len();
        match pass.input {
            Input::Tokens(tokens) => self.cache.extend_from_slice(tokens),
            Input::Hidden(rows) => self.cache.extend(rows.iter().map(|row| *row as u32)),
        }
        *answer = Answer::default();
        let (wanted, whole) = match &pass.want {
            Want::Hidden => {
                answer.hidden.extend(self.cache[from..].iter().map(|row| *row as f32));
                return Ok(());
            }
            Want::Tokens(wanted) => (wanted, false),
            Want::Logits(wanted) => (wanted, true),
        };
        for row in wanted.clone() {
            let logits = logits(self.salt, &self.cache[..=from + row]);
            let best = (0..VOCAB).rev().max_by(|one, other| logits[*one].total_cmp(&logits[*other])).unwrap();
            answer.tokens.push(best as u32);
            if whole {
                answer.logits.extend(logits);
            }
        }
        Ok(())
    }
    fn roll_back(&mut self, len: usize) -> Result<(), DeviceError> {
        self.cache.truncate(len);
        Ok(())
    }
    fn snapshot(&mut self) -> Result<(), DeviceError> {
        self.aside.clone_from(&self.cache);
        Ok(())
    }
    fn restore(&mut self, accepted: usize) -> Result<(), DeviceError> {
        let since = self.cache.split_off(self.aside.len());
        self.cache.clone_from(&self.aside);
        self.cache.extend_from_slice(&since[..accepted]);
        Ok(())
    }
    fn cache_rows(&mut self, _: usize) -> Result<(Vec<f32>, Vec<f32>), DeviceError> {
        Ok((self.cache.iter().map(|row| *row as f32).collect(), Vec::new()))
    }
}

fn chain(salt: u32, shards: usize) -> Chain {
    let config = Config {
        architecture: Architecture::Llama,
        layers: LAYERS,
        hidden: 1,
        heads: 1,
        kv_heads: 1,
        head_dim: 2,
        intermediate: 1,
        vocab: VOCAB,
        context: CONTEXT,
        norm_epsilon: 1e-5,
        rope: Rope { theta: 1e4, scaling: Scaling::Default },
        qk_norm: false,
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        tied: true,
        eos: Vec::new(),
    };
    let cut = |shard| shard * LAYERS / shards;
    let dice = |shard| -> Box<dyn Shard> {
        let layers = cut(shard)..cut(shard + 1);
        let part = Part { embedding: shard == 0, head: layers.end == LAYERS, layers, context: CONTEXT };
        Box::new(Dice { part, cache: Vec::new(), aside: Vec::new(), salt })
    };
    Chain::new(&config, (0..shards).map(dice).collect()).unwrap()
}

fn engine(shards: usize) -> Engine {
    Engine::new(chain(1, shards), Some(chain(2, 1)), Vec::new()).unwrap()
}

/// The prompt repeats itself, so that look-ups find something, and holds half of the tokens, so that what a penalty
/// counts changes with every token behind it.
fn request(drafting: Drafting, verify: Verify, sampling: Sampling) -> Request {
    Request {
        drafting,
        verify,
        sampling: Some(sampling),
        max_tokens: 4,
        draft_tokens: 2,
        ..Request::new(vec![0, 1, 1, 0, 0, 1, 1])
    }
}

fn generate(engine: &mut Engine, request: &Request) -> Vec<u32> {
    engine.generate(request, Markers::OFF, &mut |_| ControlFlow::Continue(())).unwrap().tokens
}

/// The settings' distribution, written down again as plainly as can be.
fn plainly(sampling: &Sampling, text: &[u32]) -> Vec<f64> {
    let penalty = f64::from(sampling.repetition_penalty);
    let mut logits: Vec<f64> = logits(1, text).map(f64::from).to_vec();
    for (token, logit) in (0..).zip(&mut logits) {
        if text.contains(&token) {
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
    }
    let mut order: Vec<usize> = (0..VOCAB).collect();
    order.sort_by(|one, other| logits[*other].total_cmp(&logits[*one]));
    if sampling.temperature <= 0.0 {
        return (0..VOCAB).map(|token| f64::from(u8::from(token == order[0]))).collect();
    }
    let mut shares: Vec<f64> =
        logits.iter().map(|logit| (logit / f64::from(sampling.temperature)).exp()).collect();
    let normalise = |shares: &mut Vec<f64>| {
        let total: f64 = shares.iter().sum();
        for share in shares {
            *share /= total;
        }
    };
    if sampling.top_k > 0 {
        order.iter().skip(sampling.top_k).for_each(|token| shares[*token] = 0.0);
    }
    normalise(&mut shares);
    let mut before = 0.0;
    for token in &order {
        let share = shares[*token];
        if before >= f64::from(sampling.top_p) {
            shares[*token] = 0.0;
        }
        before += share;
    }
    let least = f64::from(sampling.min_p) * shares[order[0]];
    shares.iter_mut().filter(|share| **share < least).for_each(|share| *share = 0.0);
    normalise(&mut shares);
    shares
}

/// The exact probability of each text of `len` tokens behind `prompt`.
fn exact(sampling: &Sampling, prompt: &[u32], len: usize) -> BTreeMap<Vec<u32>, f64> {
    let mut texts = BTreeMap::from([(Vec::new(), 1.0)]);
    for _ in 0..len {
        let mut longer = BTreeMap::new();
        for (text, probability) in texts {
            let shares = plainly(sampling, &[prompt, &text].concat());
            for (token, share) in (0..).zip(shares).filter(|(_, share)| *share > 0.0) {
                longer.insert([&text[..], &[token]].concat(), probability * share);
            }
        }
        texts = longer;
    }
    texts
}

/// How many standard deviations the chi-square statistic is above its mean; cells with few expected are joined.
fn chi_square(expected: &BTreeMap<Vec<u32>, f64>, seen: &BTreeMap<Vec<u32>, u64>, samples: u64) -> f64 {
    let mut cells = Vec::new();
    let mut rare = (0.0, 0.0);
    for (text, probability) in expected {
        let cell = (probability * samples as f64, seen.get(text).copied().unwrap_or(0) as f64);
        if cell.0 < 8.0 {
            rare = (rare.0 + cell.0, rare.1 + cell.1);
        } else {
            cells.push(cell);
        }
    }
    if rare.0 >= 8.0 {
        cells.push(rare);
    }
    let statistic: f64 = cells.iter().map(|(expected, seen)| (seen - expected).powi(2) / expected).sum();
    let freedom = (cells.len() - 1).max(1) as f64;
    (statistic - freedom) / (2.0 * freedom).sqrt()
}

fn settings() -> Vec<Sampling> {
    let plain = Sampling::default();
    let cold = Sampling { temperature: 0.7, ..plain.clone() };
    let mut all = Vec::new();
    // Every filter on and off.
    for bits in 0..16_u32 {
        let on = |bit: u32| bits >> bit & 1 == 1;
        all.push(Sampling {
            top_k: if on(0) { 3 } else { 0 },
            top_p: if on(1) { 0.8 } else { 1.0 },
            min_p: if on(2) { 0.15 } else { 0.0 },
            repetition_penalty: if on(3) { 1.6 } else { 1.0 },
            ..if bits % 3 == 0 { plain.clone() } else { cold.clone() }
        });
    }
    all.push(Sampling { temperature: 0.0, repetition_penalty: 1.6, ..plain });
    all
}

/// Case 16, over every combination.
#[test]
fn whatever_drafts_and_verifies_the_texts_are_distributed_as_the_targets() {
    let mut engine = engine(1);
    let mut combinations = vec![(Drafting::Nothing, Verify::Batched)];
    for drafting in [Drafting::Model, Drafting::Lookup] {
        combinations.extend(Verify::ALL.map(|verify| (drafting, verify)));
    }
    for sampling in settings() {
        for &(drafting, verify) in &combinations {
            let mut request = request(drafting, verify, sampling.clone());
            let expected = exact(&sampling, &request.prompt, request.max_tokens);
            assert!((expected.values().sum::<f64>() - 1.0).abs() < 1e-9);
            let mut seen: BTreeMap<Vec<u32>, u64> = BTreeMap::new();
            let (mut drafted, mut accepted) = (0, 0);
            for seed in 0..SAMPLES {
                request.sampling = Some(Sampling { seed, ..sampling.clone() });
                let generation =
                    engine.generate(&request, Markers::OFF, &mut |_| ControlFlow::Continue(())).unwrap();
                drafted += generation.drafted();
                accepted += generation.accepted();
                *seen.entry(generation.tokens).or_default() += 1;
            }
            if drafting != Drafting::Nothing && sampling.temperature > 0.0 {
                assert!(
                    0 < accepted && accepted < drafted,
                    "{accepted} of {drafted}: {drafting:?} {sampling:?}"
                );
            }
            for text in seen.keys() {
                assert!(
                    expected.contains_key(text),
                    "{text:?} cannot be: {drafting:?} {verify:?} {sampling:?}"
                );
            }
            let far = chi_square(&expected, &seen, SAMPLES);
            assert!(far < FAR, "{far} standard deviations off: {drafting:?} {verify:?} {sampling:?}");
        }
    }
}

/// The test above can tell: texts of another model, or of the same with another temperature, are far off.
#[test]
fn the_chi_square_test_sees_a_distribution_that_is_a_little_off() {
    let sampling = Sampling::default();
    let mut request = request(Drafting::Nothing, Verify::Batched, sampling.clone());
    let mut engine = engine(1);
    let expected = exact(&sampling, &request.prompt, request.max_tokens);
    let mut seen: BTreeMap<Vec<u32>, u64> = BTreeMap::new();
    for seed in 0..SAMPLES {
        request.sampling = Some(Sampling { seed, temperature: 0.9, ..sampling.clone() });
        *seen.entry(generate(&mut engine, &request)).or_default() += 1;
    }
    assert!(chi_square(&expected, &seen, SAMPLES) > FAR);
}

#[test]
fn a_seed_gives_the_same_text_over_any_split_and_after_any_other_request() {
    for drafting in [Drafting::Nothing, Drafting::Model, Drafting::Lookup] {
        for adapt in [false, true] {
            let long = |seed| Request {
                max_tokens: 40,
                adapt,
                ..request(drafting, Verify::Batched, Sampling { seed, ..Sampling::default() })
            };
            let expected = generate(&mut engine(1), &long(5));
            let mut other = engine(3);
            assert_ne!(generate(&mut other, &long(6)), expected);
            assert_eq!(generate(&mut other, &long(5)), expected, "{drafting:?} {adapt}");
        }
    }
}

/// Case 18, sampled.
#[test]
fn a_cancelled_request_leaves_nothing_behind() {
    for drafting in [Drafting::Nothing, Drafting::Model, Drafting::Lookup] {
        for verify in Verify::ALL {
            let request = Request {
                max_tokens: 24,
                ..request(drafting, verify, Sampling { seed: 3, ..Sampling::default() })
            };
            let fresh = generate(&mut engine(2), &request);
            let mut used = engine(2);
            for after in 1..fresh.len() {
                let mut seen = 0;
                let cancelled = used.generate(&request, Markers::OFF, &mut |_| {
                    seen += 1;
                    if seen == after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                assert_eq!(cancelled.unwrap().tokens, fresh[..after]);
            }
            assert_eq!(generate(&mut used, &request), fresh);
        }
    }
}

/// Verify modes differ in passes, not in what they say.
#[test]
fn every_verify_mode_samples_the_same_text() {
    for drafting in [Drafting::Model, Drafting::Lookup] {
        for seed in 0..50 {
            let texts = Verify::ALL.map(|verify| {
                let sampling = Sampling { seed, ..Sampling::default() };
                // Look-ups adapt to acceptance only where a block is one pass.
                let request =
                    Request { max_tokens: 5, draft_tokens: 1, ..request(drafting, verify, sampling) };
                generate(&mut engine(1), &request)
            });
            assert!(drafting == Drafting::Lookup || texts.iter().all(|text| text == &texts[0]), "{texts:?}");
            assert_eq!(texts[1], texts[2]);
        }
    }
}
