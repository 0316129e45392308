//! The text of a range, in a buffer of fixed size.

use core::ffi::c_char;
use core::fmt;

use crate::{Fields, Phase};

/// Bytes of a label's text at most; one more holds its NUL.
const TEXT_MAX: usize = 255;

type Bytes = [u8; TEXT_MAX + 1];

/// A label: its text with a NUL behind it, and what the text means.
///
/// The text is `<scope> mode=<mode> tokens=<n> layer_begin=<n> layer_end=<n> device=<n>`, a field that does
/// not apply left out with its space. A text that would pass 255 bytes is cut at a character boundary,
/// and a NUL inside it becomes `?`. Making one never allocates and never panics.
#[derive(Clone)]
pub struct Label {
    /// NUL behind the text and to the end.
    pub(crate) bytes: Bytes,
    pub(crate) len: u8,
    pub(crate) slot: u16,
    pub(crate) fields: Option<Fields>,
}

/// The slot of a label that is in no table.
pub(crate) const NO_SLOT: u16 = u16::MAX;

impl Label {
    /// Formats `fields`.
    #[inline]
    pub fn new(fields: Fields) -> Self {
        let mut label = Label { bytes: [0; TEXT_MAX + 1], len: 0, slot: NO_SLOT, fields: Some(fields) };
        label.len = written(&mut label.bytes, &fields);
        label
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

    /// Whether this is the label of `fields`, and their scope the very same string.
    #[inline]
    pub(crate) fn is_of(&self, fields: &Fields) -> bool {
        self.fields.as_ref().is_some_and(|own| own.is_the_same_as(fields))
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

/// Writes the text of `fields` into bytes that are all NUL, and answers its length.
#[inline(never)]
pub(crate) fn written(bytes: &mut Bytes, fields: &Fields) -> u8 {
    at_once(bytes, fields).unwrap_or_else(|| piece_by_piece(bytes, fields)) as u8
}

/// Writes a text of which all surely fits and whose numbers are short, nearly every one, and answers its length. `None`:
/// this one is to be written piece by piece.
///
/// What follows a field waits only for the field's length, which stays in a register; and a field is written with
/// all the bytes that it can have, since those behind its end are NUL or the next field's.
#[inline]
fn at_once(bytes: &mut Bytes, fields: &Fields) -> Option<usize> {
    let mut at = short_scope(bytes, fields.scope().name().as_bytes())?;
    if let Some(mode) = fields.get_mode() {
        let (text, len) = &MODES[mode as usize];
        *widest(bytes, at)? = *text;
        at += usize::from(*len);
    }
    if let Some(tokens) = fields.get_tokens() {
        at = field(bytes, at, b" tokens=", tokens)?;
    }
    if let Some(layers) = fields.get_layers() {
        at = field(bytes, at, b" layer_begin=", layers.start.into())?;
        at = field(bytes, at, b" layer_end=", layers.end.into())?;
    }
    if let Some(device) = fields.get_device() {
        at = field(bytes, at, b" device=", device.into())?;
    }
    Some(at)
}

/// Bytes of the longest field with a short number; that of the mode is the longest.
const FIELD_MAX: usize = MODE_MAX;

/// The place for a field at `at`, if it fits whatever its length.
#[inline]
fn widest(bytes: &mut Bytes, at: usize) -> Option<&mut [u8; FIELD_MAX]> {
    if at > TEXT_MAX - FIELD_MAX {
        return None;
    }
    bytes.get_mut(at..)?.first_chunk_mut()
}

/// A scope of 8 to 32 bytes, as those of the vocabulary are, and none of them NUL: by its two halves, which overlap.
#[inline]
fn short_scope(bytes: &mut Bytes, name: &[u8]) -> Option<usize> {
    #[inline]
    fn halves<const N: usize>(bytes: &mut Bytes, name: &[u8]) -> Option<()> {
        let (first, last) = (name.first_chunk::<N>()?, name.last_chunk::<N>()?);
        if has_nul(first) || has_nul(last) {
            return None;
        }
        *bytes.first_chunk_mut()? = *first;
        *bytes.get_mut(name.len() - N..)?.first_chunk_mut()? = *last;
        Some(())
    }
    match name.len() {
        8..=16 => halves::<8>(bytes, name)?,
        17..=32 => halves::<16>(bytes, name)?,
        _ => return None,
    }
    Some(name.len())
}

/// A name and a number of at most six digits: where they end.
#[inline]
fn field<const N: usize>(bytes: &mut Bytes, at: usize, name: &[u8; N], value: u64) -> Option<usize> {
    const { assert!(N + size_of::<u64>() <= FIELD_MAX) };
    let place = widest(bytes, at)?;
    let (digits, len) = if value < 10 { (u64::from(b'0') + value, 1) } else { short_number(value)? };
    *place.first_chunk_mut()? = *name;
    *place[N..].first_chunk_mut()? = digits.to_le_bytes();
    Some(at + N + len)
}

/// The digits of a number below a million, the first one lowest and NUL behind them, and how many there are.
#[inline]
fn short_number(value: u64) -> Option<(u64, usize)> {
    let value = u32::try_from(value).ok().filter(|value| *value < 1_000_000)?;
    // Two divisions at the same time, where digit by digit would be six, one after the other.
    let (high, middle, low) = (value / 10_000, value / 100 % 100, value % 100);
    let skip = usize::from(value < 100_000)
        + usize::from(value < 10_000)
        + usize::from(value < 1000)
        + usize::from(value < 100)
        + usize::from(value < 10);
    let ([a, b], [c, d], [e, f]) = (*pair(high), *pair(middle), *pair(low));
    // As one number, so that leading zeros go by one shift.
    Some((u64::from_le_bytes([a, b, c, d, e, f, 0, 0]) >> (8 * skip), 6 - skip))
}

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

/// Writes any text, as much of it as fits, and answers its length. What was begun at once may be there: it is how the
/// same text begins, and NUL behind.
#[cold]
#[inline(never)]
fn piece_by_piece(bytes: &mut Bytes, fields: &Fields) -> usize {
    let mut text = Text { bytes, len: 0, full: false };
    text.sanitised(fields.scope().name());
    if let Some(mode) = fields.get_mode() {
        text.append(" mode=");
        text.append(mode.name());
    }
    if let Some(tokens) = fields.get_tokens() {
        text.number(" tokens=", tokens);
    }
    if let Some(layers) = fields.get_layers() {
        text.number(" layer_begin=", layers.start.into());
        text.number(" layer_end=", layers.end.into());
    }
    if let Some(device) = fields.get_device() {
        text.number(" device=", device.into());
    }
    text.len
}

/// A text under construction, of any length.
struct Text<'b> {
    bytes: &'b mut Bytes,
    len: usize,
    /// Something was cut: what follows would read as if it stood where the cut text stood.
    full: bool,
}

impl Text<'_> {
    /// Appends text from elsewhere.
    fn sanitised(&mut self, text: &str) {
        let from = self.len;
        self.append(text);
        for byte in &mut self.bytes[from..self.len] {
            if *byte == 0 {
                *byte = b'?';
            }
        }
    }

    /// Appends as much as fits of whole characters, and nothing after it if that is not all.
    fn append(&mut self, text: &str) {
        let room = if self.full { 0 } else { TEXT_MAX - self.len };
        let fits = text.floor_char_boundary(room);
        self.full |= fits < text.len();
        self.bytes[self.len..self.len + fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.len += fits;
    }

    fn number(&mut self, name: &str, mut value: u64) {
        self.append(name);
        let mut digits = [0; MOST_DIGITS];
        let mut first = MOST_DIGITS;
        loop {
            first -= 1;
            digits[first] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                break;
            }
        }
        self.append(str::from_utf8(&digits[first..]).unwrap_or_default());
    }
}

/// Digits of the largest number.
const MOST_DIGITS: usize = u64::MAX.ilog10() as usize + 1;

/// Whether there is a NUL among bytes that are some whole words.
#[inline]
fn has_nul<const N: usize>(text: &[u8; N]) -> bool {
    const { assert!(N.is_multiple_of(8)) };
    let zero = |word: &[u8; 8]| {
        let word = u64::from_le_bytes(*word);
        word.wrapping_sub(0x0101_0101_0101_0101) & !word & 0x8080_8080_8080_8080 != 0
    };
    text.as_chunks::<8>().0.iter().any(zero)
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
            for scope in ["n", "numbers of every length"] {
                let label = Label::new(Fields::from(scope).tokens(number));
                assert_eq!(label.as_str(), format!("{scope} tokens={number}"));
            }
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
        fn what_is_written_at_once_is_what_is_written_piece_by_piece(
            from in 0..40_usize, len in 0..40_usize, wire in 0..9_i32, tokens in 0..1_100_000_u64,
            begin in 0..200_u32, end in 0..1_100_000_u32, device in 0..12_u32, present in 0..16_u8,
        ) {
            // With a NUL in some of them, and characters of two bytes.
            const TEXT: &str = "ds4.some_scope of any length \u{e9}\u{e9} up to 32 bytes\0, and longer ones than that";
            let from = TEXT.floor_char_boundary(from);
            let mut fields = Fields::from(&TEXT[from..TEXT.floor_char_boundary(from + len)]);
            if present & 1 != 0 { fields = fields.mode(Phase::from_wire(wire).unwrap()); }
            if present & 2 != 0 { fields = fields.tokens(tokens); }
            if present & 4 != 0 { fields = fields.layers(begin..end); }
            if present & 8 != 0 { fields = fields.device(device); }
            let (mut once, mut pieces) = ([0; TEXT_MAX + 1], [0; TEXT_MAX + 1]);
            let pieces_len = piece_by_piece(&mut pieces, &fields);
            if let Some(len) = at_once(&mut once, &fields) {
                prop_assert_eq!(len, pieces_len);
            } else {
                let name = fields.scope().name();
                let long = [tokens, end.into()].iter().any(|number| *number > 999_999);
                prop_assert!(long || !(8..=32).contains(&name.len()) || name.contains('\0'), "{fields:?}");
                // What it left there must not be seen.
                prop_assert_eq!(piece_by_piece(&mut once, &fields), pieces_len);
            }
            prop_assert_eq!(&once[..], &pieces[..]);
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
