//! Which drafted tokens stand: the one place where agreement is decided.
//!
//! Greedy: a drafted token stands when the target would have said it. Sampled: the draft drew a token `x` from
//! its distribution `q`, and the target's is `p`. `x` stands with probability `min(1, p(x) / q(x))`; else the token
//! is drawn from what `p` has beyond `q`. Whatever `q` is, the token is then distributed as `p`, provided that `x`
//! was drawn from this very `q` (Leviathan et al. 2023, Chen et al. 2023). A token that is drawn in place of `x` is
//! never `x`, so in both cases a drafted token stands exactly when it is what the target said.

use super::sample::{Distribution, Purpose, Sampler, Sampling, no_numbers};
use crate::device::{Answer, DeviceError, NO_TOKEN, Want};

/// A drafted token and, when sampling, what it was drawn from.
pub(super) struct Proposal {
    pub(super) token: u32,
    /// `None` for a token that was not drawn: all of `q` is on it.
    pub(super) from: Option<Distribution>,
}

/// How one request chooses tokens.
pub(super) struct Chooser {
    /// `None`: greedy, by the device.
    sampler: Option<Sampler>,
    vocab: usize,
    target: Distribution,
}

impl Chooser {
    pub(super) fn new(sampling: Option<&Sampling>, vocab: usize) -> Self {
        let sampler = sampling.filter(|sampling| !sampling.is_greedy()).cloned().map(Sampler::new);
        Chooser { sampler, vocab, target: Distribution::default() }
    }

    pub(super) fn is_greedy(&self) -> bool {
        self.sampler.is_none()
    }

    /// What a pass must answer for `rows`: logits leave a device only when they are needed.
    pub(super) fn want(&self, rows: std::ops::Range<usize>) -> Want {
        if self.is_greedy() { Want::Tokens(rows) } else { Want::Logits(rows) }
    }

    /// What the target says behind `text`, where `drafted` was proposed. `row` counts the answer's rows.
    pub(super) fn say(
        &mut self,
        answer: &Answer,
        row: usize,
        text: &[u32],
        drafted: Option<&Proposal>,
    ) -> Result<u32, DeviceError> {
        let Some(sampler) = &mut self.sampler else {
            return match greedy(answer, row)? {
                NO_TOKEN => Err(no_numbers()),
                token => Ok(token),
            };
        };
        sampler.shape(logits(answer, row, self.vocab)?, text, &mut self.target)?;
        let draw = |purpose| sampler.uniform(text.len(), purpose);
        settle(&self.target, drafted, draw).ok_or_else(nothing)
    }

    /// What a draft model says behind `text`; greedily it may be [`NO_TOKEN`].
    pub(super) fn draft(
        &mut self,
        answer: &Answer,
        row: usize,
        text: &[u32],
    ) -> Result<Proposal, DeviceError> {
        let Some(sampler) = &mut self.sampler else {
            return Ok(Proposal { token: greedy(answer, row)?, from: None });
        };
        let mut from = Distribution::default();
        sampler.shape(logits(answer, row, self.vocab)?, text, &mut from)?;
        let token = from.pick(sampler.uniform(text.len(), Purpose::Draft)).ok_or_else(nothing)?;
        Ok(Proposal { token, from: Some(from) })
    }
}

/// The target's token, given what was drafted in its place.
fn settle(
    target: &Distribution,
    drafted: Option<&Proposal>,
    mut draw: impl FnMut(Purpose) -> f64,
) -> Option<u32> {
    let Some(Proposal { token, from }) = drafted else { return target.pick(draw(Purpose::Own)) };
    let point;
    let from = if let Some(from) = from {
        from
    } else {
        point = Distribution::point(*token);
        &point
    };
    if draw(Purpose::Accept) * from.share(*token) < target.share(*token) {
        return Some(*token);
    }
    target.pick_beyond(from, draw(Purpose::Instead))
}

fn greedy(answer: &Answer, row: usize) -> Result<u32, DeviceError> {
    let rows = answer.tokens.len();
    answer.tokens.get(row).copied().ok_or_else(|| missing(row, rows))
}

fn logits(answer: &Answer, row: usize, vocab: usize) -> Result<&[f32], DeviceError> {
    let rows = answer.logits.len() / vocab.max(1);
    answer.logits.get(row * vocab..(row + 1) * vocab).ok_or_else(|| missing(row, rows))
}

fn missing(row: usize, rows: usize) -> DeviceError {
    DeviceError::BadPass(format!("row {row} was asked for and {rows} were answered"))
}

fn nothing() -> DeviceError {
    DeviceError::BadPass("a distribution without a token to choose".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shaped(logits: &[f32]) -> Distribution {
        let mut into = Distribution::default();
        Sampler::new(Sampling::default()).shape(logits, &[], &mut into).unwrap();
        into
    }

    /// The chi-square statistic, over its three degrees of freedom, of tokens that were drafted from `q` and
    /// settled as if they had been drafted from `told`.
    fn off(p: &Distribution, q: Option<&Distribution>, told: Option<&Distribution>) -> f64 {
        const SAMPLES: u32 = 20_000;
        let mut seen = [0_u32; 4];
        let mut sampler = Sampler::new(Sampling::default());
        for position in 0..SAMPLES as usize {
            let token = q.map_or(Some(2), |q| q.pick(sampler.uniform(position, Purpose::Draft))).unwrap();
            let proposal = Proposal { token, from: told.cloned() };
            let said = settle(p, Some(&proposal), |purpose| sampler.uniform(position, purpose)).unwrap();
            seen[said as usize] += 1;
        }
        let expected = |token| p.share(token) * f64::from(SAMPLES);
        (0..4)
            .map(|token| (f64::from(seen[token as usize]) - expected(token)).powi(2) / expected(token))
            .sum()
    }

    #[test]
    fn logits_that_are_no_numbers_are_an_error_greedy_or_not() {
        let answer = Answer { tokens: vec![NO_TOKEN], logits: vec![f32::NAN; 4], ..Answer::default() };
        for sampling in [None, Some(Sampling::default())] {
            let said = Chooser::new(sampling.as_ref(), 4).say(&answer, 0, &[], None);
            assert!(said.unwrap_err().to_string().contains("no numbers to choose from"));
        }
    }

    /// Case 16: one chance in ten thousand lies beyond 21.
    #[test]
    fn what_is_settled_is_the_targets_if_and_only_if_q_is_what_was_drawn_from() {
        let p = shaped(&[1.0, 0.2, -0.5, 0.0]);
        for logits in
            [[1.0, 0.2, -0.5, 0.0], [0.0, 0.0, 0.0, 0.0], [-2.0, 3.0, 0.0, 1.0], [0.9, 0.3, -0.5, 0.0]]
        {
            let q = shaped(&logits);
            let right = off(&p, Some(&q), Some(&q));
            assert!(right < 21.0, "{right}: {q:?}");
        }
        assert!(off(&p, None, None) < 21.0, "a token that was not drawn");
        // Given any one token the target's is distributed as `p`: taking it for a point is right, only fewer stand.
        assert!(off(&p, Some(&shaped(&[0.0, 0.8, 0.0, 0.0])), None) < 21.0);

        let (q, other) = (shaped(&[0.0, 0.8, 0.0, 0.0]), shaped(&[0.0, 0.5, 0.2, 0.0]));
        assert!(off(&p, Some(&q), Some(&other)) > 21.0, "another temperature, say");
        assert!(off(&p, None, Some(&q)) > 21.0, "a point, taken for a distribution");
    }

    #[test]
    fn a_token_drawn_in_place_of_a_drafted_one_is_another() {
        let (p, q) = (shaped(&[0.0, 0.0, 0.0, 0.0]), shaped(&[3.0, 0.0, 0.0, 0.0]));
        let drafted = Proposal { token: 0, from: Some(q) };
        for step in 0..100 {
            let instead = f64::from(step) / 100.0;
            let draw = |purpose| if matches!(purpose, Purpose::Accept) { 0.999 } else { instead };
            assert_ne!(settle(&p, Some(&drafted), draw), Some(0));
        }
    }
}
