//! How many tokens a round drafts, when that adapts to what was accepted and to what passes cost.
//!
//! With `a` the chance that a drafted token stands, a round of `k` drafted tokens emits `1 + a + ... + a^k` tokens
//! on average, for `k` drafted tokens and one target pass over `k + 1` rows. The `k` that emits most for its cost
//! is taken. Where that is 0 drafting rests, and is tried again with one token after a while, each time after twice
//! as long: a text that cannot be drafted costs next to nothing.
//!
//! A model whose passes are timed is also listened to: how far its first choice is above the second says how likely
//! the token is to stand, better than any average. It drafts on while what that promises is worth another pass of
//! its own and another row of the target's, and what is not worth its row is dropped. What a round gave beyond its
//! cost is added up; when that is less than nothing drafting rests as above.
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
/// The weight of the newest token in the chance of acceptance.
const NEWEST: f64 = 0.125;
/// Work costs what it takes undisturbed: the least that was measured, forgotten by so much a measurement.
const FORGET: f64 = 1.03;
/// The weight of the newest round in what a drafted token costs.
const NEWEST_DRAFT: f64 = 0.25;
/// A pass is not taken to cost more than so many times what other passes promise: a hiccup in the only
/// measurement of a block would rule that block out for good.
const HICCUP: f64 = 2.0;
/// Rounds of rest before drafting is tried again: at first, and at most.
const REST: usize = 2;
const LONGEST_REST: usize = 64;

/// Margins, in logits, between which a model's first choices are counted together, and the chance that such a token
/// stands, until it was seen: as the draft of `SmolLM2` has it over the reference questions.
const MARGINS: [f32; 6] = [0.5, 1.0, 1.5, 2.0, 3.0, 4.0];
const CHANCES: [f64; 7] = [0.25, 0.45, 0.55, 0.7, 0.8, 0.9, 0.97];
/// The weight of the newest token in one of these chances, and how far they go back to where they began in a round:
/// what is never drafted is never seen.
const NEWEST_MARGIN: f64 = 0.05;
const FORGIVE: f64 = 0.01;
/// A token more is worth so much of a one-row pass: what one costs when drafting goes well.
const WORTH: f64 = 0.6;
/// The chance of a token that is not drafted yet.
const NEXT: f64 = 0.7;
/// The least that a further row costs, over one pass of one row, whatever was measured.
const LEAST_ROW: f64 = 0.01;
/// The weight of the newest round in what rounds give beyond their cost, in one-row passes, and where that begins.
const NEWEST_ROUND: f64 = 0.2;
const GAIN: f64 = 0.1;

/// What to do about a token that a model has just drafted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Propose it and draft another.
    GoOn,
    /// Propose it and draft no more.
    Last,
    /// It is not worth its row.
    Drop,
}

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
    /// A model that is listened to.
    model: Option<Listened>,
}

/// What is known of a model that is listened to.
#[derive(Debug)]
struct Listened {
    /// By margin.
    chances: [f64; 7],
    /// Of the tokens of this round, dropped ones included.
    margins: Vec<usize>,
    /// The chance that all of them stand.
    stands: f64,
    /// What rounds give beyond their cost, in one-row passes.
    gain: f64,
    rests: bool,
}

impl Listened {
    const NEW: Self =
        Listened { chances: CHANCES, margins: Vec::new(), stands: 1.0, gain: GAIN, rests: false };
}

impl Pace {
    /// Where passes are `timed`, models are listened to.
    pub(super) fn new(timed: bool) -> Self {
        let record = |chance| Record { chance, rested: 0, rest: REST };
        Pace {
            records: [record(0.7), record(0.5), record(0.8)],
            passes: Vec::new(),
            draft: None,
            model: timed.then_some(Listened::NEW),
        }
    }

    /// How many tokens to draft, at most `most`.
    pub(super) fn decide(&mut self, source: Source, most: usize) -> usize {
        if let Some(model) = &mut self.model {
            model.margins.clear();
            model.stands = 1.0;
        }
        if let (Source::Model, Some(model)) = (source, &mut self.model) {
            let record = &mut self.records[source as usize];
            record.rested += usize::from(model.rests);
            return if model.rests && record.rested <= record.rest { 0 } else { most };
        }
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

    /// Hears by how much a model preferred the token that it has just drafted.
    pub(super) fn hear(&mut self, margin: f32) -> Heard {
        let one = self.pass(1);
        let draft = self.drafted(Source::Model);
        let Some(model) = &mut self.model else { return Heard::GoOn };
        let at = MARGINS.iter().take_while(|edge| margin >= **edge).count();
        model.stands *= model.chances[at];
        model.margins.push(at);
        let (stands, rows) = (model.stands, model.margins.len());
        let row = ((self.pass(rows + 1) - one) / rows as f64).max(LEAST_ROW * one);
        if stands * WORTH * one <= row {
            Heard::Drop
        } else if stands * NEXT * WORTH * one <= row + draft {
            Heard::Last
        } else {
            Heard::GoOn
        }
    }

    /// What a round of a model that is listened to tells: the chances of its tokens, and whether to rest.
    fn learn_of_model(&mut self, drafted: usize, accepted: usize, rejected: bool) {
        let (one, round) = (self.pass(1), self.pass(drafted + 1));
        let draft = self.drafted(Source::Model);
        let record = &mut self.records[Source::Model as usize];
        let Some(model) = &mut self.model else { return };
        if model.margins.is_empty() {
            return;
        }
        for (chance, began) in model.chances.iter_mut().zip(CHANCES) {
            *chance += FORGIVE * (began - *chance);
        }
        let outcomes = std::iter::repeat_n(1.0, accepted).chain(rejected.then_some(0.0));
        for (&at, stood) in model.margins.iter().zip(outcomes) {
            model.chances[at] += NEWEST_MARGIN * (stood - model.chances[at]);
        }
        let cost = (round - one + draft * model.margins.len() as f64) / one;
        let gain = accepted as f64 - cost;
        record.rested = 0;
        if model.rests && gain <= 0.0 {
            record.rest = (2 * record.rest).min(LONGEST_REST);
        } else if model.rests {
            (model.rests, model.gain, record.rest) = (false, GAIN, REST);
        } else {
            model.gain += NEWEST_ROUND * (gain - model.gain);
            model.rests = model.gain < 0.0;
        }
    }

    /// Learns from a round that drafted `drafted` tokens: `accepted` of them stood, and the next one did not if
    /// `rejected`.
    pub(super) fn learn(&mut self, source: Source, drafted: usize, accepted: usize, rejected: bool) {
        if source == Source::Model && self.model.is_some() {
            return self.learn_of_model(drafted, accepted, rejected);
        }
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
        let known = self.passes[drafted];
        self.passes[drafted] = if known > 0.0 { took.verify.min(known * FORGET) } else { took.verify };
        // Dropped tokens were drafted too.
        let drafted = self.model.as_ref().map_or(0, |model| model.margins.len()).max(drafted);
        if let Some(seconds) = took.draft.filter(|_| drafted > 0) {
            // Not the least: its weights are the first to leave the caches between rounds, and how many tokens a round
            // drafts says how often that is paid.
            let one = seconds / drafted as f64;
            let known = self.draft.unwrap_or(one);
            self.draft = Some(known + NEWEST_DRAFT * (one.min(HICCUP * known) - known));
        }
    }

    /// What a pass of `rows` costs: measured, else in proportion to the nearest that was measured.
    fn pass(&self, rows: usize) -> f64 {
        let assumed = |rows: usize| 1.0 + FURTHER_ROW * (rows - 1) as f64;
        let measured = || (1..).zip(&self.passes).filter(|(_, seconds)| **seconds > 0.0);
        let scaled = |(known, seconds): (usize, &f64)| seconds * assumed(rows) / assumed(known);
        let Some(nearest) = measured().min_by_key(|(known, _)| rows.abs_diff(*known)) else {
            return assumed(rows);
        };
        let promised = measured().map(scaled).fold(f64::INFINITY, f64::min);
        scaled(nearest).min(HICCUP * promised)
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
            assert_eq!(drafted(&mut Pace::new(false), source, true, 60).last(), Some(&16), "{source:?}");
        }
    }

    #[test]
    fn what_is_never_right_is_soon_tried_only_now_and_then() {
        for source in SOURCES {
            let mut pace = Pace::new(false);
            let early: usize = drafted(&mut pace, source, false, 100).iter().sum();
            assert!(early < 60, "{source:?}: {early}");
            let late: usize = drafted(&mut pace, source, false, 640).iter().sum();
            assert!((5..=10).contains(&late), "{source:?}: one token in {LONGEST_REST} rounds: {late}");
        }
    }

    #[test]
    fn after_a_bad_stretch_good_proposals_are_found_again() {
        let mut pace = Pace::new(false);
        drafted(&mut pace, Source::LongMatch, false, 300);
        let rounds = drafted(&mut pace, Source::LongMatch, true, 200);
        assert_eq!(rounds.last(), Some(&16));
    }

    #[test]
    fn a_dear_draft_and_dear_rows_make_blocks_short() {
        let decide = |rows: f64, draft: f64| {
            let mut pace = Pace::new(false);
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
    fn a_hiccup_rules_no_block_out() {
        let mut pace = Pace::new(false);
        let mut time = |drafted, verify| {
            pace.time(drafted, Took { draft: None, verify });
            pace.pass(drafted + 1)
        };
        time(0, 1.0);
        assert!((time(4, 50.0) - HICCUP * (1.0 + 4.0 * FURTHER_ROW)).abs() < 1e-9);
        assert!((time(4, 1.5) - 1.5).abs() < 1e-9, "the next one shows what it costs");
        assert!(time(4, 50.0) < 1.6);
        assert!(pace.decide(Source::LongMatch, 16) > 0);
    }

    #[test]
    fn costs_that_were_not_measured_are_assumed_in_proportion() {
        let mut pace = Pace::new(false);
        pace.time(0, Took { draft: None, verify: 2.0 });
        assert!((pace.pass(1) - 2.0).abs() < 1e-9);
        assert!((pace.pass(3) - 2.0 * (1.0 + 2.0 * FURTHER_ROW)).abs() < 1e-9);
        pace.time(2, Took { draft: None, verify: 2.1 });
        assert!((pace.pass(3) - 2.1).abs() < 1e-9);
    }

    /// What a model that prefers every token by `margin` proposes in each of some rounds.
    fn heard(pace: &mut Pace, margin: f32, stands: bool, rounds: usize) -> Vec<usize> {
        let round = |_| {
            let wanted = pace.decide(Source::Model, 8);
            let mut proposed = 0;
            for _ in 0..wanted {
                let heard = pace.hear(margin);
                proposed += usize::from(heard != Heard::Drop);
                if heard != Heard::GoOn {
                    break;
                }
            }
            pace.learn(Source::Model, proposed, if stands { proposed } else { 0 }, !stands && proposed > 0);
            let draft = (wanted > 0).then_some(0.05 * pace.model.as_ref().unwrap().margins.len() as f64);
            pace.time(proposed, Took { draft, verify: 1.0 + 0.1 * proposed as f64 });
            proposed
        };
        (0..rounds).map(round).collect()
    }

    #[test]
    fn a_model_that_is_sure_drafts_further_than_one_that_is_not() {
        let first = |margin: f32| {
            let mut pace = Pace::new(true);
            for drafted in 0..=8 {
                let verify = 1.0 + 0.05 * drafted as f64;
                pace.time(drafted, Took { draft: Some(0.05 * drafted as f64), verify });
            }
            heard(&mut pace, margin, true, 1)[0]
        };
        assert!(first(9.0) > first(2.5), "sure, and fairly sure");
        assert!(first(2.5) > first(0.6));
        assert!(first(0.1) <= 1, "a toss-up");
    }

    #[test]
    fn a_model_that_is_never_right_is_soon_tried_only_now_and_then_however_sure_it_is() {
        for margin in [0.1, 9.0] {
            let mut pace = Pace::new(true);
            heard(&mut pace, margin, false, 200);
            let mut rounds = 0;
            for _ in 0..640 {
                heard(&mut pace, margin, false, 1);
                rounds += usize::from(!pace.model.as_ref().unwrap().margins.is_empty());
            }
            assert!((5..=10).contains(&rounds), "one round in {LONGEST_REST}: {rounds}");
            let good = heard(&mut pace, 9.0, true, 200);
            assert_eq!(good.last(), Some(&8), "and found again when it is right");
        }
    }
}
