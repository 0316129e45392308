//! The text of a range, in a buffer of fixed size.

use core::ffi::c_char;
use core::fmt;

use crate::{Fields, Phase};

/// Bytes of a label's text at most; one more holds its NUL.
const TEXT_MAX: usize = 255;

/// A label: its text with a NUL behind it, and what the text means.
///
/// The text is `<scope> mode=<mode> tokens=<n> layer_begin=<n> layer_end=<n> device=<n>`, a field that does
/// not apply left out with its space. A text that would pass 255 bytes is cut at a character boundary,
/// and a NUL inside it becomes `?`. Making one never allocates and never panics.
#[derive(Clone)]
pub struct Label {
    /// NUL behind the text and to the end.
    bytes: [u8; TEXT_MAX + 1],
    len: u8,
    slot: u16,
    fields: Option<Fields>,
}

/// The slot of a label that is in no table.
const NO_SLOT: u16 = u16::MAX;

impl Label {
    /// Formats `fields`.
    #[inline]
    pub fn new(fields: Fields) -> Self {
        let mut label = Label::empty(fields);
        label.written();
        label
    }

    /// What `fields` will be written into.
    #[inline]
    pub(crate) const fn empty(fields: Fields) -> Self {
        Label { bytes: [0; TEXT_MAX + 1], len: 0, slot: NO_SLOT, fields: Some(fields) }
    }

    /// Writes the text of the fields, where the label is: once it is written, to move it takes as long again.
    #[inline(never)]
    pub(crate) fn written(&mut self) -> &Self {
        let Some(fields) = self.fields else { return self };
        let mut text = Text { bytes: &mut self.bytes, len: 0, full: false };
        text.sanitised(fields.scope().name());
        if let Some(mode) = fields.get_mode() {
            text.mode(mode);
        }
        if let Some(tokens) = fields.get_tokens() {
            text.literal(b" tokens=");
            text.number(tokens);
        }
        if let Some(layers) = fields.get_layers() {
            text.literal(b" layer_begin=");
            text.number(layers.start.into());
            text.literal(b" layer_end=");
            text.number(layers.end.into());
        }
        if let Some(device) = fields.get_device() {
            text.literal(b" device=");
            text.number(device.into());
        }
        self.len = text.len as u8;
        self
    }

    /// A label of any text, for programs whose ranges are not the vocabulary's.
    pub fn text(text: &str) -> Self {
        let mut label = Label { bytes: [0; TEXT_MAX + 1], len: 0, slot: NO_SLOT, fields: None };
        let mut buffer = Text { bytes: &mut label.bytes, len: 0, full: false };
        buffer.sanitised(text);
        label.len = buffer.len as u8;
        label
    }

    pub(crate) fn in_slot(fields: Fields, slot: usize) -> Self {
        Label { slot: slot as u16, ..Label::new(fields) }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        // Only whole characters are ever put in, so this cannot be an error.
        str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// The text's bytes, without the NUL.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The text as C reads it: NUL-terminated, no NUL inside, valid for as long as the label does not move.
    #[inline]
    pub fn as_ptr(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }

    /// What the text means; `None` for free text.
    #[inline]
    pub fn fields(&self) -> Option<&Fields> {
        self.fields.as_ref()
    }

    /// This label's place in the process-wide table, below [`TABLE_SLOTS`](crate::TABLE_SLOTS), the same for
    /// the life of the process. A backend keys what it registers once by it. `None` for a label that lives
    /// on somebody's stack.
    #[inline]
    pub fn slot(&self) -> Option<usize> {
        if self.slot == NO_SLOT { None } else { Some(self.slot.into()) }
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text under construction. What is behind it is NUL, and nothing is written past [`TEXT_MAX`] but NUL.
struct Text<'b> {
    bytes: &'b mut [u8; TEXT_MAX + 1],
    len: usize,
    /// Something was cut: what follows would read as if it stood where the cut text stood.
    full: bool,
}

/// Bytes of the longest ` mode=<mode>`, with NUL behind the shorter ones.
const MODE_MAX: usize = 24;

static MODES: [([u8; MODE_MAX], u8); Phase::ALL.len()] = {
    let mut modes = [([0; MODE_MAX], 0); Phase::ALL.len()];
    let mut at = 0;
    while at < modes.len() {
        let (before, name) = (b" mode=", Phase::ALL[at].name().as_bytes());
        let mut len = 0;
        while len < before.len() + name.len() {
            modes[at].0[len] = if len < before.len() { before[len] } else { name[len - before.len()] };
            len += 1;
        }
        modes[at].1 = len as u8;
        at += 1;
    }
    modes
};

impl Text<'_> {
    #[inline]
    fn room(&self) -> usize {
        if self.full { 0 } else { TEXT_MAX - self.len }
    }

    /// Appends text of the vocabulary's own: ASCII without a NUL, of a length that the compiler knows.
    #[inline]
    fn literal<const N: usize>(&mut self, text: &[u8; N]) {
        let fits = N <= self.room();
        match self.bytes.get_mut(self.len..self.len + N) {
            Some(place) if fits => {
                place.copy_from_slice(text);
                self.len += N;
            }
            _ => self.cut(text),
        }
    }

    #[inline]
    fn mode(&mut self, mode: Phase) {
        let (text, len) = &MODES[mode as usize];
        let fits = MODE_MAX <= self.room();
        match self.bytes.get_mut(self.len..self.len + MODE_MAX) {
            // All of it at once: what is behind the mode is NUL, as it must be.
            Some(place) if fits => {
                place.copy_from_slice(text);
                self.len += usize::from(*len);
            }
            _ => self.append(&text[..usize::from(*len)]),
        }
    }

    /// Appends text from elsewhere.
    #[inline]
    fn sanitised(&mut self, text: &str) {
        let from = self.len;
        if text.len() <= self.room() {
            self.append(text.as_bytes());
        } else {
            self.cut(&text.as_bytes()[..text.floor_char_boundary(self.room())]);
        }
        if has_nul(text.as_bytes()) {
            self.replace_nuls(from);
        }
    }

    #[inline]
    fn append(&mut self, text: &[u8]) {
        if text.len() <= self.room() {
            self.bytes[self.len..self.len + text.len()].copy_from_slice(text);
            self.len += text.len();
        } else {
            self.cut(text);
        }
    }

    /// Appends as much as fits of whole characters, and nothing after it.
    #[cold]
    #[inline(never)]
    fn cut(&mut self, text: &[u8]) {
        let fits = text.len().min(self.room());
        self.full = true;
        self.bytes[self.len..self.len + fits].copy_from_slice(&text[..fits]);
        self.len += fits;
    }

    #[cold]
    #[inline(never)]
    fn replace_nuls(&mut self, from: usize) {
        for byte in &mut self.bytes[from..self.len] {
            if *byte == 0 {
                *byte = b'?';
            }
        }
    }

    #[inline]
    fn number(&mut self, value: u64) {
        if value < 10 {
            // Most numbers.
            self.literal(&[b'0' + value as u8]);
        } else {
            self.long_number(value);
        }
    }

    #[inline(never)]
    fn long_number(&mut self, value: u64) {
        let mut digits = [0; MOST_DIGITS];
        let len = match u32::try_from(value) {
            Ok(value) if value < 100 => {
                digits[..2].copy_from_slice(pair(value));
                2
            }
            Ok(value) if value < 1_000_000 => {
                // Two divisions at the same time, where digit by digit would be six, one after the other.
                let (high, middle, low) = (value / 10_000, value / 100 % 100, value % 100);
                let skip =
                    usize::from(value < 100_000) + usize::from(value < 10_000) + usize::from(value < 1000);
                let ([a, b], [c, d], [e, f]) = (*pair(high), *pair(middle), *pair(low));
                // As one number, so that leading zeros go by one shift.
                let text = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]) >> (8 * skip);
                digits[..8].copy_from_slice(&text.to_le_bytes());
                6 - skip
            }
            _ => very_long_number(&mut digits, value),
        };
        let fits = MOST_DIGITS <= self.room();
        match self.bytes.get_mut(self.len..self.len + MOST_DIGITS) {
            // All of it at once: what is behind the number is NUL, as it must be.
            Some(place) if fits => {
                place.copy_from_slice(&digits);
                self.len += len;
            }
            _ => self.append(&digits[..len]),
        }
    }
}

/// Digits of the largest number.
const MOST_DIGITS: usize = 20;

/// The two digits of a number below 100.
#[inline]
fn pair(value: u32) -> &'static [u8; 2] {
    static PAIRS: [[u8; 2]; 100] = {
        let mut pairs = [[0; 2]; 100];
        let mut at = 0;
        while at < pairs.len() {
            pairs[at] = [b'0' + (at / 10) as u8, b'0' + (at % 10) as u8];
            at += 1;
        }
        pairs
    };
    &PAIRS[value as usize % PAIRS.len()]
}

#[cold]
fn very_long_number(digits: &mut [u8; MOST_DIGITS], mut value: u64) -> usize {
    let len = value.ilog10() as usize + 1;
    for digit in digits[..len].iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
    len
}

/// Whether there is a NUL, eight bytes at a time.
#[inline]
fn has_nul(text: &[u8]) -> bool {
    let zero = |word: &[u8; 8]| {
        let word = u64::from_le_bytes(*word);
        word.wrapping_sub(0x0101_0101_0101_0101) & !word & 0x8080_8080_8080_8080 != 0
    };
    match text.last_chunk() {
        Some(last) => zero(last) || text.as_chunks::<8>().0.iter().any(zero),
        None => text.contains(&0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scope;
    use proptest::prelude::*;
    use std::fmt::Write as _;
    use std::format;
    use std::string::String;
    extern crate std;

    #[test]
    fn fields_that_do_not_apply_are_left_out_with_their_space() {
        let text = |fields| String::from(Label::new(fields).as_str());
        assert_eq!(text(Fields::new(Scope::DRAFT).tokens(4)), "ds4.draft tokens=4");
        assert_eq!(
            text(Fields::new(Scope::PREFILL).mode(Phase::Exact).device(1)),
            "ds4.prefill mode=exact device=1"
        );
        assert_eq!(text(Fields::new(Scope::PREFILL).layers(3..4)), "ds4.prefill layer_begin=3 layer_end=4");
        assert_eq!(text(Fields::from("step")), "step");
        assert_eq!(text(Fields::from("")), "");
        assert_eq!(text(Fields::from("a\0b").tokens(u64::MAX)), "a?b tokens=18446744073709551615");
    }

    #[test]
    fn numbers_of_every_length_are_their_digits() {
        let powers = (0..20).map(|digits| 10_u64.pow(digits));
        for number in
            powers.flat_map(|power| [power - 1, power, power + 1, 9 * (power / 10), u64::MAX / power])
        {
            let label = Label::new(Fields::from("n").tokens(number));
            assert_eq!(label.as_str(), format!("n tokens={number}"));
        }
    }

    #[test]
    fn a_long_value_is_cut_and_nothing_follows_the_cut() {
        static LONG: &str = match str::from_utf8(&[b'x'; 300]) {
            Ok(text) => text,
            Err(_) => "",
        };
        let label = Label::new(Fields::from(LONG).tokens(5));
        assert_eq!(label.as_str(), &LONG[..255]);
        let nearly = Label::text(&format!("{}é…", &LONG[..254]));
        assert_eq!(nearly.as_str(), &LONG[..254], "é needs two bytes and is left out whole");
    }

    proptest! {
        #[test]
        fn any_text_gives_a_valid_c_string(text in any::<String>()) {
            let label = Label::text(&text);
            let expected = text.replace('\0', "?");
            prop_assert!(label.as_bytes().len() <= 255);
            prop_assert!(expected.starts_with(label.as_str()));
            prop_assert!(!label.as_bytes().contains(&0));
            prop_assert_eq!(label.bytes[usize::from(label.len)], 0);
            if expected.len() <= 255 {
                prop_assert_eq!(label.as_str(), &expected);
            } else {
                prop_assert!(label.as_bytes().len() > 255 - 4);
            }
        }

        #[test]
        fn any_fields_read_as_the_vocabulary_writes_them(
            wire in 0..9_i32, tokens: u64, begin: u32, end: u32, device: u32, present in 0..16_u8,
        ) {
            let mode = Phase::from_wire(wire).unwrap();
            let mut fields = Fields::new(Scope::LAYER_RANGE);
            let mut text = String::from("ds4.layer_range");
            if present & 1 != 0 { fields = fields.mode(mode); write!(text, " mode={mode}").unwrap(); }
            if present & 2 != 0 { fields = fields.tokens(tokens); write!(text, " tokens={tokens}").unwrap(); }
            if present & 4 != 0 {
                fields = fields.layers(begin..end);
                write!(text, " layer_begin={begin} layer_end={end}").unwrap();
            }
            if present & 8 != 0 { fields = fields.device(device); write!(text, " device={device}").unwrap(); }
            let label = Label::new(fields);
            prop_assert_eq!(label.as_str(), &text);
            prop_assert_eq!(label.fields(), Some(&fields));
        }
    }
}
