//! The text of a range, in a buffer of fixed size.

use core::ffi::c_char;
use core::fmt;

use crate::Fields;

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
    pub fn new(fields: Fields) -> Self {
        let mut text = Text { bytes: [0; TEXT_MAX + 1], len: 0, full: false };
        text.sanitised(fields.scope().name());
        if let Some(mode) = fields.get_mode() {
            text.literal(" mode=");
            text.literal(mode.name());
        }
        if let Some(tokens) = fields.get_tokens() {
            text.literal(" tokens=");
            text.number(tokens);
        }
        if let Some(layers) = fields.get_layers() {
            text.literal(" layer_begin=");
            text.number(layers.start.into());
            text.literal(" layer_end=");
            text.number(layers.end.into());
        }
        if let Some(device) = fields.get_device() {
            text.literal(" device=");
            text.number(device.into());
        }
        Label { bytes: text.bytes, len: text.len as u8, slot: NO_SLOT, fields: Some(fields) }
    }

    /// A label of any text, for programs whose ranges are not the vocabulary's.
    pub fn text(text: &str) -> Self {
        let mut buffer = Text { bytes: [0; TEXT_MAX + 1], len: 0, full: false };
        buffer.sanitised(text);
        Label { bytes: buffer.bytes, len: buffer.len as u8, slot: NO_SLOT, fields: None }
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

/// A text under construction.
struct Text {
    bytes: [u8; TEXT_MAX + 1],
    len: usize,
    /// Something was cut: what follows would read as if it stood where the cut text stood.
    full: bool,
}

impl Text {
    /// Appends text of the vocabulary's own, which holds no NUL.
    #[inline]
    fn literal(&mut self, text: &str) {
        let room = if self.full { 0 } else { TEXT_MAX - self.len };
        if text.len() <= room {
            self.bytes[self.len..self.len + text.len()].copy_from_slice(text.as_bytes());
            self.len += text.len();
        } else {
            self.cut(text, room);
        }
    }

    /// Appends text from elsewhere.
    #[inline]
    fn sanitised(&mut self, text: &str) {
        let from = self.len;
        self.literal(text);
        for byte in &mut self.bytes[from..self.len] {
            if *byte == 0 {
                *byte = b'?';
            }
        }
    }

    #[cold]
    fn cut(&mut self, text: &str, room: usize) {
        self.full = true;
        let fits = text.floor_char_boundary(room);
        self.bytes[self.len..self.len + fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.len += fits;
    }

    #[inline]
    fn number(&mut self, mut value: u64) {
        let mut digits = [0_u8; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                break;
            }
        }
        // Digits are ASCII.
        self.literal(str::from_utf8(&digits[at..]).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Phase, Scope};
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
