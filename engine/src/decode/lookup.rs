//! Drafting without a model: what followed the same words earlier in the text is proposed again.
//!
//! A text that quotes, summarises or edits repeats itself. The longest run of tokens that ends the text and also
//! stands earlier in it is looked up, and what came behind it there is proposed. There is no pass and no weight:
//! a wrong proposal costs only its rows in the target's pass.

use std::collections::HashMap;

use super::pace::Source;

/// Tokens that must agree before anything is proposed.
const SHORTEST: usize = 2;
/// Agreement beyond this many tokens says nothing more.
const LONGEST: usize = 32;
/// From this many on a match is a long one, which [`pace`](super::pace) trusts apart from short ones.
const LONG: usize = 5;
/// Earlier places that are tried, the latest first: a bound on the work for a text that repeats one pair.
const PLACES: usize = 64;

/// An index of one request's text.
#[derive(Default)]
pub(super) struct Lookup {
    /// Where each pair of tokens was followed by something: the follower's position, ascending.
    followers: HashMap<[u32; SHORTEST], Vec<usize>>,
    /// Positions up to this one are followers that the index knows.
    read: usize,
    /// Where the latest match goes on.
    next: usize,
}

impl Lookup {
    /// Finds the longest match that ends `text`, the latest one of several. `text` begins with what was looked
    /// at before.
    pub(super) fn look(&mut self, text: &[u32]) -> Option<Source> {
        for position in self.read.max(SHORTEST)..text.len() {
            let pair = [text[position - 2], text[position - 1]];
            self.followers.entry(pair).or_default().push(position);
        }
        self.read = text.len();
        let end = [*text.get(text.len().checked_sub(2)?)?, *text.last()?];
        let mut longest = 0;
        for &follower in self.followers.get(&end)?.iter().rev().take(PLACES) {
            let earlier = text[..follower].iter().rev();
            let agree = earlier.zip(text.iter().rev()).take(LONGEST).take_while(|(one, other)| one == other);
            let length = agree.count();
            if length > longest {
                (longest, self.next) = (length, follower);
            }
        }
        match longest {
            0..SHORTEST => None,
            SHORTEST..LONG => Some(Source::ShortMatch),
            _ => Some(Source::LongMatch),
        }
    }

    /// `count` tokens that went on from the match. Where the text ends they go on with themselves, so that a text
    /// with a period keeps it.
    pub(super) fn follow(&self, text: &[u32], count: usize) -> impl Iterator<Item = u32> {
        let period = text.len() - self.next;
        (0..count).map(move |step| text[self.next + step % period])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposed(text: &[u32], count: usize) -> Option<Vec<u32>> {
        let mut lookup = Lookup::default();
        lookup.look(text).map(|_| lookup.follow(text, count).collect())
    }

    #[test]
    fn the_longest_match_wins_and_the_latest_of_equals() {
        assert_eq!(proposed(&[1, 2, 3, 4, 9, 2, 3, 5, 9, 1, 2, 3], 2), Some(vec![4, 9]), "1 2 3, not 9 2 3");
        assert_eq!(proposed(&[2, 3, 4, 7, 2, 3, 5, 8, 2, 3], 1), Some(vec![5]));
    }

    #[test]
    fn one_token_is_no_match_and_neither_is_a_text_without_repetition() {
        assert_eq!(proposed(&[3, 4, 3], 2), None);
        assert_eq!(proposed(&[1, 2, 3, 4], 2), None);
        assert_eq!(proposed(&[1, 2], 2), None);
        assert_eq!(proposed(&[1], 2), None);
        assert_eq!(proposed(&[], 2), None);
    }

    #[test]
    fn a_period_goes_on_for_ever() {
        assert_eq!(proposed(&[7, 1, 2, 1, 2, 1], 5), Some(vec![2, 1, 2, 1, 2]));
        assert_eq!(proposed(&[4, 4, 4], 3), Some(vec![4, 4, 4]));
    }

    #[test]
    fn a_text_that_grows_gives_what_a_whole_one_gives() {
        let text: Vec<u32> = (0..200_u32).map(|at| at * at % 7 + at / 50 % 2).collect();
        let mut lookup = Lookup::default();
        for end in 1..text.len() {
            if end % 3 == 0 {
                continue;
            }
            let got = lookup.look(&text[..end]).map(|_| lookup.follow(&text[..end], 4).collect::<Vec<_>>());
            assert_eq!(got, proposed(&text[..end], 4));
        }
    }

    #[test]
    fn a_match_of_five_tokens_is_a_long_one() {
        let source = |text: &[u32]| Lookup::default().look(text);
        assert_eq!(source(&[1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]), Some(Source::LongMatch));
        assert_eq!(source(&[1, 2, 3, 4, 0, 1, 2, 3, 4]), Some(Source::ShortMatch));
    }
}
