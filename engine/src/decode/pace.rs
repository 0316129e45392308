//! How many tokens a round drafts, when that adapts to what was accepted and to what passes cost.
//!
//! With `a` the chance that a drafted token stands, a round of `k` drafted tokens emits `1 + a + ... + a^k` tokens
//! on average, for `k` drafted tokens and one target pass over `k + 1` rows. The `k` that emits most for its cost
//! is taken. Where that is 0 drafting rests, and is tried again with one token after a while, each time after twice
//! as long: a text that cannot be drafted costs next to nothing.
//!
//! The clock decides nothing about the tokens of a greedy request, which are the target's own for any block. A
//! sampled request draws from other distributions in other blocks; there costs are assumed and not measured, so
//! that a seed gives the same text on any machine and under any load.

/// Where proposals come from. Acceptance is counted for each apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A draft model.
    Model,
    /// A few tokens that stood earlier in the text.
    ShortMatch,
    /// Many tokens that did.
    LongMatch,
}

/// Over one pass of one row: what each further row adds, and what drafting a token with a model takes. Until they
/// are measured.
const FURTHER_ROW: f64 = 0.15;
const DRAFTED_TOKEN: f64 = 0.12;
/// The weight of the newest token in the chance of acceptance, and of the newest pass in its costs.
const NEWEST: f64 = 0.125;
const NEWEST_COST: f64 = 0.25;
/// Rounds of rest before drafting is tried again: at first, and at most.
const REST: usize = 2;
const LONGEST_REST: usize = 64;

/// Seconds that a round took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Took {
    /// Drafting; `None` when it was not drafting alone.
    pub(super) draft: Option<f64>,
    /// The target's passes.
    pub(super) verify: f64,
}

/// What is known of one source.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// The chance that the next drafted token stands if those before it do.
    chance: f64,
    rested: usize,
    rest: usize,
}

/// Decides and learns.
#[derive(Debug)]
pub(super) struct Pace {
    records: [Record; 3],
    /// Seconds of a target pass by rows less one; 0 where there was none yet.
    passes: Vec<f64>,
    /// Seconds to draft a token.
    draft: Option<f64>,
}

impl Pace {
    pub(super) fn new() -> Self {
        let record = |chance| Record { chance, rested: 0, rest: REST };
        Pace { records: [record(0.7), record(0.5), record(0.8)], passes: Vec::new(), draft: None }
    }

    /// How many tokens to draft, at most `most`.
    pub(super) fn decide(&mut self, source: Source, most: usize) -> usize {
        let chance = self.records[source as usize].chance;
        let (mut best, mut best_rate) = (0, 0.0);
        let (mut emitted, mut stands) = (1.0, 1.0);
        for count in 0..=most {
            let rate = emitted / (self.pass(count + 1) + count as f64 * self.drafted(source));
            if rate > best_rate {
                (best, best_rate) = (count, rate);
            }
            stands *= chance;
            emitted += stands;
            // What comes behind a token that hardly ever stands is not worth a look.
            if stands < 0.001 {
                break;
            }
        }
        let record = &mut self.records[source as usize];
        if best > 0 || most == 0 {
            return best;
        }
        record.rested += 1;
        usize::from(record.rested > record.rest)
    }

    /// Learns from a round that drafted `drafted` tokens: `accepted` of them stood, and the next one did not if
    /// `rejected`.
    pub(super) fn learn(&mut self, source: Source, drafted: usize, accepted: usize, rejected: bool) {
        if drafted == 0 {
            return;
        }
        let record = &mut self.records[source as usize];
        let outcomes = std::iter::repeat_n(1.0, accepted).chain(rejected.then_some(0.0));
        for stood in outcomes {
            record.chance += NEWEST * (stood - record.chance);
        }
        record.rested = 0;
        record.rest = if accepted > 0 { REST } else { (2 * record.rest).min(LONGEST_REST) };
    }

    /// Learns what a round of `drafted` tokens took.
    pub(super) fn time(&mut self, drafted: usize, took: Took) {
        if self.passes.len() <= drafted {
            self.passes.resize(drafted + 1, 0.0);
        }
        let newest = |known: f64, seconds: f64| match known {
            0.0.. if known > 0.0 => known + NEWEST_COST * (seconds - known),
            _ => seconds,
        };
        self.passes[drafted] = newest(self.passes[drafted], took.verify);
        if let Some(seconds) = took.draft.filter(|_| drafted > 0) {
            self.draft = Some(newest(self.draft.unwrap_or(0.0), seconds / drafted as f64));
        }
    }

    /// What a pass of `rows` costs: measured, else in proportion to the nearest that was measured.
    fn pass(&self, rows: usize) -> f64 {
        let assumed = |rows: usize| 1.0 + FURTHER_ROW * (rows - 1) as f64;
        let measured = (1..).zip(&self.passes).filter(|(_, seconds)| **seconds > 0.0);
        match measured.min_by_key(|(known, _)| rows.abs_diff(*known)) {
            Some((known, seconds)) => seconds * assumed(rows) / assumed(known),
            None => assumed(rows),
        }
    }

    fn drafted(&self, source: Source) -> f64 {
        match (source, self.draft) {
            (Source::Model, Some(seconds)) => seconds,
            (Source::Model, None) => DRAFTED_TOKEN * self.pass(1),
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCES: [Source; 3] = [Source::Model, Source::ShortMatch, Source::LongMatch];

    /// Rounds against a text in which every token stands, or none.
    fn drafted(pace: &mut Pace, source: Source, stands: bool, rounds: usize) -> Vec<usize> {
        (0..rounds)
            .map(|_| {
                let count = pace.decide(source, 16);
                pace.learn(source, count, if stands { count } else { 0 }, !stands && count > 0);
                count
            })
            .collect()
    }

    #[test]
    fn what_is_always_right_is_drafted_as_far_as_allowed() {
        for source in SOURCES {
            assert_eq!(drafted(&mut Pace::new(), source, true, 60).last(), Some(&16), "{source:?}");
        }
    }

    #[test]
    fn what_is_never_right_is_soon_tried_only_now_and_then() {
        for source in SOURCES {
            let mut pace = Pace::new();
            let early: usize = drafted(&mut pace, source, false, 100).iter().sum();
            assert!(early < 60, "{source:?}: {early}");
            let late: usize = drafted(&mut pace, source, false, 640).iter().sum();
            assert!((5..=10).contains(&late), "{source:?}: one token in {LONGEST_REST} rounds: {late}");
        }
    }

    #[test]
    fn after_a_bad_stretch_good_proposals_are_found_again() {
        let mut pace = Pace::new();
        drafted(&mut pace, Source::LongMatch, false, 300);
        let rounds = drafted(&mut pace, Source::LongMatch, true, 200);
        assert_eq!(rounds.last(), Some(&16));
    }

    #[test]
    fn a_dear_draft_and_dear_rows_make_blocks_short() {
        let decide = |rows: f64, draft: f64| {
            let mut pace = Pace::new();
            for drafted in 0..=16 {
                let verify = 1.0 + rows * drafted as f64;
                pace.time(drafted, Took { draft: Some(draft * drafted as f64), verify });
            }
            pace.decide(Source::Model, 16)
        };
        let blocks = [decide(0.0, 0.01), decide(0.1, 0.1), decide(0.3, 0.2), decide(1.0, 0.5)];
        assert!(blocks.is_sorted_by(|one, other| one > other), "{blocks:?}");
        assert_eq!(blocks[3], 0);
    }

    #[test]
    fn costs_that_were_not_measured_are_assumed_in_proportion() {
        let mut pace = Pace::new();
        pace.time(0, Took { draft: None, verify: 2.0 });
        assert!((pace.pass(1) - 2.0).abs() < 1e-9);
        assert!((pace.pass(3) - 2.0 * (1.0 + 2.0 * FURTHER_ROW)).abs() < 1e-9);
        pace.time(2, Took { draft: None, verify: 2.1 });
        assert!((pace.pass(3) - 2.1).abs() < 1e-9);
    }
}
