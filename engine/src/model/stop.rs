//! Texts that end a text: neither they nor what follows is given out.
//!
//! A stop string may come in pieces, one a token, and its beginning may turn out to be something else. So as much
//! of the end of the text as could still become one is held back, and no more.

/// Looks for stop strings in a text that comes in pieces.
#[derive(Clone, Debug, Default)]
pub struct Stops {
    strings: Vec<String>,
    /// The end of the text so far that could be the beginning of a stop string.
    held: String,
    found: Option<usize>,
}

impl Stops {
    /// Stops at the first of `strings` to be complete. Empty strings stop nothing.
    pub fn new(strings: Vec<String>) -> Self {
        Stops { strings, held: String::new(), found: None }
    }

    /// Which stop string ended the text.
    pub fn found(&self) -> Option<&str> {
        self.found.map(|index| self.strings[index].as_str())
    }

    /// What of the text so far can be given out now that `piece` has come. Nothing, once a stop string was
    /// [found](Self::found).
    pub fn push(&mut self, piece: &str) -> String {
        if self.found.is_some() {
            return String::new();
        }
        self.held.push_str(piece);
        // The one that is complete first; of those that end together, the one that begins first.
        let ends = self.strings.iter().enumerate().filter(|(_, stop)| !stop.is_empty()).filter_map(
            |(index, stop)| {
                let begin = self.held.find(stop.as_str())?;
                Some((begin + stop.len(), begin, index))
            },
        );
        let keep = if let Some((_, begin, index)) = ends.min() {
            self.found = Some(index);
            let given = self.held[..begin].to_owned();
            self.held.clear();
            return given;
        } else {
            let begins = |stop: &String| {
                (1..stop.len())
                    .rev()
                    .find(|len| stop.is_char_boundary(*len) && self.held.ends_with(&stop[..*len]))
            };
            self.strings.iter().filter_map(begins).max().unwrap_or(0)
        };
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// What was held back, when nothing follows.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stops(strings: &[&str]) -> Stops {
        Stops::new(strings.iter().map(|&stop| stop.to_owned()).collect())
    }

    fn given(stops: &mut Stops, pieces: &[&str]) -> Vec<String> {
        pieces.iter().map(|piece| stops.push(piece)).collect()
    }

    #[test]
    fn a_beginning_is_held_back_until_it_is_something_else() {
        let mut stops = stops(&["\n\nQ:"]);
        assert_eq!(given(&mut stops, &["a\n", "\n", "R", " Q:"]), ["a", "", "\n\nR", " Q:"]);
        assert_eq!(stops.found(), None);
        assert_eq!(given(&mut stops, &["b", "\n\nQ", ":c"]), ["b", "", ""]);
        assert_eq!(stops.found(), Some("\n\nQ:"));
        assert_eq!((stops.push("more"), stops.finish()), (String::new(), String::new()));
    }

    #[test]
    fn what_was_held_back_comes_at_the_end() {
        let mut stops = stops(&["END"]);
        assert_eq!(given(&mut stops, &["the EN"]), ["the "]);
        assert_eq!(stops.finish(), "EN");
    }

    #[test]
    fn of_several_the_first_to_be_complete_ends_the_text() {
        let mut stops = stops(&["abcd", "c", ""]);
        assert_eq!(given(&mut stops, &["xab", "c"]), ["x", "ab"]);
        assert_eq!(stops.found(), Some("c"));
    }

    #[test]
    fn characters_stay_whole() {
        let mut stops = stops(&["\u{20ac}\u{20ad}"]);
        assert_eq!(given(&mut stops, &["\u{e9}\u{20ac}", "\u{20ac}\u{20ad}!"]), ["\u{e9}", "\u{20ac}"]);
    }

    proptest! {
        /// Over any pieces: what is given is the text before the first stop, and nothing is given late or twice.
        #[test]
        fn pieces_make_no_difference(
            pieces in prop::collection::vec("[ab\u{e9}]{0,3}", 0..12), strings in prop::collection::vec("[ab\u{e9}]{1,4}", 0..3),
        ) {
            let mut stops = Stops::new(strings.clone());
            let mut given: String = pieces.iter().map(|piece| stops.push(piece)).collect();
            given += &stops.finish();
            let text = pieces.concat();
            let end = (0..=text.len()).filter(|end| text.is_char_boundary(*end)).find_map(|end| {
                strings.iter().filter(|stop| text[..end].ends_with(stop.as_str())).map(|stop| end - stop.len()).min()
            });
            prop_assert_eq!(given, &text[..end.unwrap_or(text.len())]);
        }
    }
}
