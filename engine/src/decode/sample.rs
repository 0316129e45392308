//! From logits to a token by chance: the settings, the distribution that they make, and the draws.
//!
//! Nothing here knows of rounds, caches or devices. A distribution depends on one row of logits and on the
//! text before that row; a draw depends on the seed, on the position that the token will take and on what the
//! draw is for. So a run with a seed is the same on any number of threads and shards, and what one position draws
//! does not depend on how many draws came before it.

use std::cmp::Ordering;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};

use crate::device::DeviceError;

use super::RequestError;

/// How tokens are chosen by chance. The filters apply in the order of the fields, each to what the one before
/// left, and what is left is renormalised.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Every token that the text holds already, the prompt included, has its logit divided by this where it is
    /// above zero and multiplied where it is below. Above 0; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Logits are divided by this. 0: the token with the largest logit, the lowest id on a tie.
    pub temperature: f32,
    /// Only this many tokens with the largest logits, lower ids first on a tie; 0 keeps all.
    pub top_k: usize,
    /// Only the most likely tokens that together reach this probability; above 0, and 1 keeps all.
    pub top_p: f32,
    /// Only tokens at least this share as likely as the most likely one; below 1, and 0 keeps all.
    pub min_p: f32,
    /// What makes a run repeatable.
    pub seed: u64,
}

impl Default for Sampling {
    /// The model's own distribution, with the seed 0.
    fn default() -> Self {
        Sampling { repetition_penalty: 1.0, temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 }
    }
}

impl Sampling {
    /// Whether every choice is the largest logit as the model gives it, so that no logits are needed.
    pub(crate) fn is_greedy(&self) -> bool {
        self.temperature <= 0.0 && (self.repetition_penalty - 1.0).abs() == 0.0
    }

    pub(super) fn check(&self) -> Result<(), RequestError> {
        let settings = [
            (
                "the temperature",
                self.temperature,
                self.temperature >= 0.0 && self.temperature.is_finite(),
                "0 or more",
            ),
            ("top-p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1"),
            ("min-p", self.min_p, (0.0..1.0).contains(&self.min_p), "at least 0 and below 1"),
            (
                "the repetition penalty",
                self.repetition_penalty,
                self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite(),
                "above 0",
            ),
        ];
        match settings.into_iter().find(|(_, _, fine, _)| !fine) {
            None => Ok(()),
            Some((setting, found, _, expected)) => {
                Err(RequestError::Sampling { setting, found: found.to_string(), expected })
            }
        }
    }
}

/// What a draw is for. One position may need several.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// The target's own token where nothing was drafted.
    Own,
    /// The draft's token.
    Draft,
    /// Whether a drafted token stands.
    Accept,
    /// The token in place of one that does not.
    Instead,
}

/// Probabilities of some tokens, which sum to one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Distribution {
    /// Ids ascending.
    shares: Vec<(u32, f64)>,
}

impl Distribution {
    /// All on `token`.
    pub(super) fn point(token: u32) -> Self {
        Distribution { shares: vec![(token, 1.0)] }
    }

    /// The probability of `token`.
    pub(super) fn share(&self, token: u32) -> f64 {
        let at = self.shares.binary_search_by_key(&token, |(id, _)| *id);
        at.map_or(0.0, |at| self.shares[at].1)
    }

    /// The token that `uniform`, from 0 to below 1, falls on. A distribution of nothing gives none.
    pub(super) fn pick(&self, uniform: f64) -> Option<u32> {
        pick(self.shares.iter().copied(), uniform)
    }

    /// As [`pick`](Self::pick), from what this distribution has beyond `other`, renormalised.
    pub(super) fn pick_beyond(&self, other: &Distribution, uniform: f64) -> Option<u32> {
        let mut theirs = other.shares.iter().peekable();
        let beyond = self.shares.iter().map(|&(id, share)| {
            while theirs.next_if(|(other, _)| *other < id).is_some() {}
            let excess = theirs.peek().filter(|(other, _)| *other == id).map_or(share, |(_, q)| share - q);
            (id, excess.max(0.0))
        });
        let beyond: Vec<_> = beyond.collect();
        let total: f64 = beyond.iter().map(|(_, share)| share).sum();
        // Two that differ by rounding alone: there is nothing beyond to pick from.
        if total > 0.0 { pick(beyond.into_iter(), uniform * total) } else { self.pick(uniform) }
    }
}

fn pick(shares: impl Iterator<Item = (u32, f64)>, mut left: f64) -> Option<u32> {
    let mut last = None;
    for (id, share) in shares.filter(|(_, share)| *share > 0.0) {
        last = Some(id);
        left -= share;
        if left < 0.0 {
            break;
        }
    }
    // Rounding may leave a rest behind the last one.
    last
}

/// Makes distributions and draws for one request.
#[derive(Debug)]
pub(super) struct Sampler {
    settings: Sampling,
    chance: ChaCha8Rng,
    /// The row at hand with the penalty applied.
    row: Vec<f32>,
    seen: Vec<bool>,
    kept: Vec<(u32, f32)>,
}

impl Sampler {
    pub(super) fn new(settings: Sampling) -> Self {
        let chance = ChaCha8Rng::seed_from_u64(settings.seed);
        Sampler { settings, chance, row: Vec::new(), seen: Vec::new(), kept: Vec::new() }
    }

    /// A number from 0 to below 1 for the token at `position` of the text.
    pub(super) fn uniform(&mut self, position: usize, purpose: Purpose) -> f64 {
        self.chance.set_stream(purpose as u64);
        self.chance.set_word_pos(2 * position as u128);
        (self.chance.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The distribution of the token behind `text`, of which the model says `logits`.
    ///
    /// # Errors
    /// [`DeviceError::BadPass`] when no logit is a number or one is infinite.
    pub(super) fn shape(
        &mut self,
        logits: &[f32],
        text: &[u32],
        into: &mut Distribution,
    ) -> Result<(), DeviceError> {
        let Sampler { settings, row, seen, kept, .. } = self;
        row.clear();
        row.extend_from_slice(logits);
        if (settings.repetition_penalty - 1.0).abs() > 0.0 {
            penalise(row, text, settings.repetition_penalty, seen);
        }
        kept.clear();
        kept.extend((0..).zip(row.iter().copied()).filter(|(_, logit)| *logit > f32::NEG_INFINITY));
        let best = kept.iter().copied().min_by(likelier);
        let Some((best, most)) = best.filter(|(_, logit)| *logit < f32::INFINITY) else {
            return Err(no_numbers());
        };
        into.shares.clear();
        if settings.temperature <= 0.0 {
            into.shares.push((best, 1.0));
            return Ok(());
        }
        let weight = |logit: f32| f64::from((logit - most) / settings.temperature).exp();
        if settings.top_k > 0 && settings.top_k < kept.len() {
            kept.select_nth_unstable_by(settings.top_k - 1, likelier);
            kept.truncate(settings.top_k);
        }
        if settings.top_p < 1.0 {
            let total: f64 = kept.iter().map(|(_, logit)| weight(*logit)).sum();
            let most = nucleus(kept, f64::from(settings.top_p) * total, weight);
            kept.truncate(most);
        }
        // Relative to the most likely one, whose weight is 1.
        let least = f64::from(settings.min_p);
        let shares = kept.iter().map(|(id, logit)| (*id, weight(*logit)));
        into.shares.extend(shares.filter(|(_, weight)| *weight >= least && *weight > 0.0));
        into.shares.sort_unstable_by_key(|(id, _)| *id);
        let total: f64 = into.shares.iter().map(|(_, weight)| weight).sum();
        into.shares.iter_mut().for_each(|(_, weight)| *weight /= total);
        Ok(())
    }
}

/// Once for each token that `text` holds, however often.
fn penalise(row: &mut [f32], text: &[u32], penalty: f32, seen: &mut Vec<bool>) {
    seen.clear();
    seen.resize(row.len(), false);
    for &token in text {
        let (Some(logit), Some(seen)) = (row.get_mut(token as usize), seen.get_mut(token as usize)) else {
            continue;
        };
        if !std::mem::replace(seen, true) {
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
    }
}

/// The larger logit first, the lower id on a tie.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "as sorting passes them")]
fn likelier(one: &(u32, f32), other: &(u32, f32)) -> Ordering {
    other.1.total_cmp(&one.1).then(one.0.cmp(&other.0))
}

/// How many of the likeliest reach `enough` weight together; they are then in front, in order. A vocabulary is
/// long and a nucleus short, so no more is sorted than it takes.
fn nucleus(kept: &mut [(u32, f32)], enough: f64, weight: impl Fn(f32) -> f64) -> usize {
    let (mut sorted, mut reached) = (0, 0.0);
    let mut step = 64;
    while sorted < kept.len() {
        let rest = &mut kept[sorted..];
        let next = step.min(rest.len());
        if next < rest.len() {
            rest.select_nth_unstable_by(next - 1, likelier);
        }
        rest[..next].sort_unstable_by(likelier);
        for (_, logit) in &rest[..next] {
            sorted += 1;
            reached += weight(*logit);
            if reached >= enough {
                return sorted;
            }
        }
        step *= 4;
    }
    sorted
}

/// A row of logits without one that is a number below infinity.
pub(super) fn no_numbers() -> DeviceError {
    DeviceError::BadPass("the model's logits are no numbers to choose from".into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shaped(settings: &Sampling, logits: &[f32], text: &[u32]) -> Vec<(u32, f64)> {
        let mut into = Distribution::default();
        Sampler::new(settings.clone()).shape(logits, text, &mut into).unwrap();
        into.shares
    }

    fn ids(settings: &Sampling, logits: &[f32]) -> Vec<u32> {
        shaped(settings, logits, &[]).into_iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn each_filter_keeps_what_it_says() {
        // Probabilities 1/2, 1/4, 1/8, 1/8.
        let logits = [4.0_f32.ln(), 2.0_f32.ln(), 0.0, 0.0];
        let plain = Sampling::default();
        for ((id, share), expected) in shaped(&plain, &logits, &[]).into_iter().zip([0.5, 0.25, 0.125, 0.125])
        {
            assert!((share - expected).abs() < 1e-6, "{id}: {share}");
        }
        assert_eq!(ids(&Sampling { top_k: 3, ..plain.clone() }, &logits), [0, 1, 2], "the lower id on a tie");
        assert_eq!(ids(&Sampling { top_p: 0.5, ..plain.clone() }, &logits), [0]);
        assert_eq!(ids(&Sampling { top_p: 0.51, ..plain.clone() }, &logits), [0, 1]);
        assert_eq!(ids(&Sampling { top_p: 0.8, ..plain.clone() }, &logits), [0, 1, 2]);
        assert_eq!(ids(&Sampling { min_p: 0.3, ..plain.clone() }, &logits), [0, 1]);
        assert_eq!(ids(&Sampling { min_p: 0.6, ..plain.clone() }, &logits), [0]);
        // Of the two that are left, the first is 2/3.
        assert_eq!(ids(&Sampling { top_k: 2, top_p: 0.6, ..plain.clone() }, &logits), [0]);
        assert_eq!(ids(&Sampling { temperature: 0.0, ..plain.clone() }, &[1.0, 3.0, 3.0]), [1]);
        let hot = shaped(&Sampling { temperature: 2.0, ..plain }, &logits, &[]);
        assert!((hot[0].1 / hot[1].1 - 2.0_f64.sqrt()).abs() < 1e-6);
    }

    #[test]
    fn a_penalty_counts_a_token_once_and_always_against_it() {
        let settings = Sampling { repetition_penalty: 2.0, temperature: 0.0, ..Sampling::default() };
        assert!(!settings.is_greedy());
        let mut sampler = Sampler::new(settings);
        let mut into = Distribution::default();
        sampler.shape(&[3.0, 2.0, -1.0], &[0, 0, 2, 99], &mut into).unwrap();
        assert_eq!(sampler.row, [1.5, 2.0, -2.0]);
        assert_eq!(into, Distribution::point(1));
    }

    #[test]
    fn logits_that_are_no_numbers_are_an_error() {
        for bad in [&[][..], &[f32::NAN, f32::NAN], &[f32::NEG_INFINITY], &[0.0, f32::INFINITY]] {
            let shape = Sampler::new(Sampling::default()).shape(bad, &[], &mut Distribution::default());
            assert!(shape.is_err(), "{bad:?}");
        }
        assert_eq!(ids(&Sampling::default(), &[f32::NAN, 1.0, f32::NEG_INFINITY]), [1]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let fine = Sampling::default();
        assert!(fine.check().is_ok());
        for bad in [
            Sampling { temperature: -1.0, ..fine.clone() },
            Sampling { temperature: f32::NAN, ..fine.clone() },
            Sampling { top_p: 0.0, ..fine.clone() },
            Sampling { top_p: 1.1, ..fine.clone() },
            Sampling { min_p: 1.0, ..fine.clone() },
            Sampling { min_p: -0.1, ..fine.clone() },
            Sampling { repetition_penalty: 0.0, ..fine.clone() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn draws_depend_on_seed_position_and_purpose_alone() {
        let mut sampler = Sampler::new(Sampling::default());
        let first = sampler.uniform(7, Purpose::Draft);
        let others = [
            sampler.uniform(8, Purpose::Draft),
            sampler.uniform(7, Purpose::Accept),
            Sampler::new(Sampling { seed: 1, ..Sampling::default() }).uniform(7, Purpose::Draft),
        ];
        assert!(others.iter().all(|other| (other - first).abs() > 0.0));
        assert_eq!(sampler.uniform(7, Purpose::Draft).to_bits(), first.to_bits());
        let mean = (0..4000).map(|position| sampler.uniform(position, Purpose::Own)).sum::<f64>() / 4000.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }

    #[test]
    fn what_is_beyond_another_distribution_is_picked_in_proportion() {
        let p = Distribution { shares: vec![(1, 0.5), (2, 0.3), (4, 0.2)] };
        let q = Distribution { shares: vec![(0, 0.1), (1, 0.6), (4, 0.1), (9, 0.2)] };
        // Beyond: 0.3 of token 2, 0.1 of token 4.
        assert_eq!(p.pick_beyond(&q, 0.0), Some(2));
        assert_eq!(p.pick_beyond(&q, 0.74), Some(2));
        assert_eq!(p.pick_beyond(&q, 0.76), Some(4));
        assert_eq!(p.pick_beyond(&q, 0.999_999), Some(4));
        assert_eq!(p.pick_beyond(&p, 0.1), Some(1), "nothing is beyond itself");
        assert_eq!((p.pick(0.0), p.pick(0.6), p.pick(1.0)), (Some(1), Some(2), Some(4)));
    }

    proptest! {
        /// The nucleus found by parts is the one found by sorting everything.
        #[test]
        fn a_nucleus_is_the_shortest_prefix_that_is_enough(
            logits in prop::collection::vec(-8.0..8.0_f32, 1..400), top_p in 0.01..1.0_f32,
        ) {
            let settings = Sampling { top_p, ..Sampling::default() };
            let got = shaped(&settings, &logits, &[]);
            let all = shaped(&Sampling::default(), &logits, &[]);
            let mut sorted = all.clone();
            sorted.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
            let mut reached = 0.0;
            let mut expected: Vec<_> = sorted.into_iter().take_while(|(_, share)| {
                let wanted = reached < f64::from(top_p) - 1e-9;
                reached += share;
                wanted
            }).map(|(id, _)| id).collect();
            expected.sort_unstable();
            let got: Vec<_> = got.into_iter().map(|(id, _)| id).collect();
            prop_assert!(got == expected || got.len().abs_diff(expected.len()) == 1 && (reached - f64::from(top_p)).abs() < 1e-6);
        }
    }
}
