//! Reads elements whose layout is known. A layout is the text between an element's values, learned from earlier
//! elements.
//!
//! A program prints its elements in a few formats. So the text between two values, such as `, "tid": `, has usually
//! occurred in an earlier element. If it equals a known text byte for byte, the keys are known without parsing. If no
//! layout fits an element, the scanner reads the element key by key, and adds the element's layout.

use super::scanner::JsonScanner;

/// Index that stands for "no step".
const NONE: u32 = u32::MAX;
/// Index for values that the reader does not use.
pub(in crate::pytorch) const SKIPPED: u8 = 0;
/// Value index that marks a step as the end of the element.
const END: u8 = u8::MAX;
/// Maximum number of stored steps. It bounds the memory if a text's keys never repeat.
const MOST: usize = 1 << 12;
/// Maximum number of alternatives that are tried at one position.
const WIDEST: u32 = 16;

/// Layouts of a text's elements, as a tree: layouts with the same beginning share their first
/// steps.
#[derive(Default)]
pub(in crate::pytorch) struct ElementLayouts {
    steps: Vec<TextBetweenValues>,
    /// Texts of all steps, as eight-byte words. The last word of each text is zero-padded.
    words: Vec<u64>,
    /// Recorded values of the element whose layout is being learned.
    values: Vec<ElementValuePosition>,
}

/// A text between two values, and the index of the value after it.
struct TextBetweenValues {
    /// First eight bytes of the text; `first_mask` selects the bits that are compared.
    first: u64,
    first_mask: u64,
    /// Range of the text's second and later words in [`ElementLayouts::words`].
    words: std::ops::Range<u32>,
    /// Mask of the bits that must match in the last word.
    mask: u64,
    length: u32,
    /// Index of the value that follows, or [`END`].
    value: u8,
    /// Another step at the same position, tried if this one does not match.
    sibling: u32,
    /// First step after the value.
    next: u32,
}

/// Index of an element's value, and its position in the text.
struct ElementValuePosition {
    value: u8,
    start: u32,
    end: u32,
}

impl ElementLayouts {
    /// Reads the element at the start of `text`, if its layout is known. Stores the texts of the element's values in
    /// `values`, by index, and returns the element's length. Only valid JSON values are accepted. Values whose index is
    /// below `plain` must be strings without escapes.
    #[inline]
    pub fn read_element_values_by_known_layout<'a>(
        &self,
        text: &'a str,
        plain: u8,
        values: &mut [Option<&'a str>],
    ) -> Option<usize> {
        let mut scan = JsonScanner::new(text);
        // The first step is the tree's root.
        let mut next = 0;
        loop {
            let step = self.find_matching_layout_step(next, scan.remaining_text())?;
            scan.advance_by(step.length as usize);
            if step.value == END {
                return Some(scan.consumed_bytes());
            }
            let value = match step.value {
                value if value != SKIPPED && value < plain => scan.read_plain_string_here()?,
                _ => scan.read_non_null_value_here()?,
            };
            *values.get_mut(step.value as usize)? = Some(value);
            next = step.next;
        }
    }

    /// Tries `first` and its siblings in order, and returns the first step whose text is a prefix of `text`.
    #[inline]
    fn find_matching_layout_step(&self, first: u32, text: &[u8]) -> Option<&TextBetweenValues> {
        let mut step = self.steps.get(first as usize)?;
        while !self.text_matches_layout_step(step, text) {
            step = self.steps.get(step.sibling as usize)?;
        }
        Some(step)
    }

    #[inline]
    fn text_matches_layout_step(&self, step: &TextBetweenValues, text: &[u8]) -> bool {
        // If less than one word of text is left, the step does not match.
        let Some((first, rest)) = text.split_first_chunk() else {
            return false;
        };
        (u64::from_le_bytes(*first) ^ step.first) & step.first_mask == 0
            && (step.length <= 8 || self.text_matches_step_after_first_word(step, rest))
    }

    /// Returns true if `text` begins with a step's second and later words.
    #[inline]
    fn text_matches_step_after_first_word(&self, step: &TextBetweenValues, text: &[u8]) -> bool {
        let words = &self.words[step.words.start as usize..step.words.end as usize];
        let (chunks, _) = text.as_chunks();
        let (Some(chunks), Some((last, words))) = (chunks.get(..words.len()), words.split_last())
        else {
            return false;
        };
        let same = |(word, chunk): (&u64, &[u8; 8])| u64::from_le_bytes(*chunk) == *word;
        let tail = chunks.last().map_or(0, |chunk| u64::from_le_bytes(*chunk));
        (tail ^ last) & step.mask == 0 && words.iter().zip(chunks).all(same)
    }

    /// Starts learning an element.
    pub fn begin_learning_element(&mut self) {
        self.values.clear();
    }

    /// Records an element's value that has the index `value`. `text` must be a slice of `of`, the element's text.
    pub fn record_element_value(&mut self, value: u8, text: &str, of: &str) {
        let start = (text.as_ptr() as usize).wrapping_sub(of.as_ptr() as usize);
        self.values.push(ElementValuePosition {
            value,
            start: start as u32,
            end: (start + text.len()) as u32,
        });
    }

    /// Learns the layout of the element `text` from the recorded values.
    pub fn learn_layout(&mut self, text: &str) {
        let values = std::mem::take(&mut self.values);
        let end = ElementValuePosition {
            value: END,
            start: text.len() as u32,
            end: text.len() as u32,
        };
        let (mut before, mut from) = (NONE, 0);
        for value in values.iter().chain([&end]) {
            let Some(between) = text.as_bytes().get(from..value.start as usize) else {
                break;
            };
            let Some(step) = self.find_or_add_step_after(before, between, value.value) else {
                break;
            };
            (before, from) = (step, value.end as usize);
        }
        self.values = values;
    }

    /// Returns the step that has this text and follows the step `before`, and adds it if necessary. Returns `None` if
    /// there are too many steps.
    fn find_or_add_step_after(&mut self, before: u32, text: &[u8], value: u8) -> Option<u32> {
        let first = match self.steps.get(before as usize) {
            Some(step) => step.next,
            None if self.steps.is_empty() => NONE,
            None => 0,
        };
        let (mut at, mut last, mut tried) = (first, NONE, 0);
        while let Some(step) = self.steps.get(at as usize) {
            if step.length as usize == text.len()
                && step.value == value
                && self.text_equals_whole_step_text(step, text)
            {
                return Some(at);
            }
            (last, at, tried) = (at, step.sibling, tried + 1);
        }
        if self.steps.len() == MOST || tried == WIDEST {
            return None;
        }
        let new = self.steps.len() as u32;
        let start = self.words.len() as u32;
        let (head, tail) = text.split_at(text.len().min(8));
        self.words.extend(tail.chunks(8).map(zero_padded_word));
        self.steps.push(TextBetweenValues {
            first: zero_padded_word(head),
            first_mask: build_mask_of_first_bytes(head.len()),
            words: start..self.words.len() as u32,
            mask: build_mask_of_first_bytes((tail.len() + 7) % 8 + 1),
            length: text.len() as u32,
            value,
            sibling: NONE,
            next: NONE,
        });
        match (self.steps.get_mut(last as usize), before) {
            (Some(last), _) => last.sibling = new,
            (None, NONE) => {}
            (None, before) => self.steps[before as usize].next = new,
        }
        Some(new)
    }

    fn text_equals_whole_step_text(&self, step: &TextBetweenValues, text: &[u8]) -> bool {
        let words = &self.words[step.words.start as usize..step.words.end as usize];
        let words = [step.first].into_iter().chain(words.iter().copied());
        let bytes = words.flat_map(u64::to_le_bytes);
        bytes.take(text.len()).eq(text.iter().copied())
    }
}

/// Converts up to eight bytes to a zero-padded word.
fn zero_padded_word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Returns the mask of a word's first `bytes` bytes; `bytes` is 1 to 8.
fn build_mask_of_first_bytes(bytes: usize) -> u64 {
    u64::MAX >> (64 - 8 * bytes.clamp(1, 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Learns a layout from `marked`, where `<` and `>` enclose the values. Values are numbered
    /// from 1.
    fn learn_marked_layout(layouts: &mut ElementLayouts, marked: &str) {
        let mut text = String::new();
        let mut places = Vec::new();
        for part in marked.split_inclusive(['<', '>']) {
            let start = text.len();
            text.push_str(part.trim_end_matches(['<', '>']));
            if part.ends_with('>') {
                places.push(start..text.len());
            }
        }
        layouts.begin_learning_element();
        for (number, place) in (1..).zip(places) {
            layouts.record_element_value(number, &text[place], &text);
        }
        layouts.learn_layout(&text);
    }

    fn read_layout_values<'a>(
        layouts: &ElementLayouts,
        text: &'a str,
    ) -> Option<(usize, [Option<&'a str>; 4])> {
        let mut values = [None; 4];
        let used = layouts.read_element_values_by_known_layout(text, 2, &mut values)?;
        Some((used, values))
    }

    #[test]
    fn elements_like_one_before_are_read_by_its_layout() {
        let mut layouts = ElementLayouts::default();
        learn_marked_layout(
            &mut layouts,
            r#"{"ph": <"X">, "long key of many bytes": <12>, "ts": <[1]>}"#,
        );
        learn_marked_layout(&mut layouts, r#"{"ph": <"s">, "id": <7>}"#);
        // The result contains the element's length, and the first value without quotes.
        let text = r#"{"ph": "abc", "long key of many bytes": 3.5e7, "ts": {"a": "}"}}, {"ph": 1}"#;
        let expected = (
            text.len() - 11,
            [None, Some("abc"), Some("3.5e7"), Some(r#"{"a": "}"}"#)],
        );
        assert_eq!(read_layout_values(&layouts, text), Some(expected));
        let text = r#"{"ph": "", "id": -1}        "#;
        assert_eq!(
            read_layout_values(&layouts, text),
            Some((20, [None, Some(""), Some("-1"), None]))
        );
    }

    #[test]
    fn text_unlike_learnt_layout_is_not_read() {
        let mut layouts = ElementLayouts::default();
        assert_eq!(read_layout_values(&layouts, "{}                "), None);
        learn_marked_layout(
            &mut layouts,
            r#"{"ph": <"X">, "long key of many bytes": <12>, "ts": <1>}"#,
        );
        for other in [
            // The scanner must reject these texts. They have a different key (in each word of the comparison),
            // additional blanks, an invalid value, or a value that ends too early.
            r#"{"ph": "X", "long key of many bytez": 12, "ts": 1}       "#,
            r#"{"ph": "X", "long kei of many bytes": 12, "ts": 1}       "#,
            r#"{"ph": "X", "Long key of many bytes": 12, "ts": 1}       "#,
            r#"{"ph": "X", "long key of many bytes":  12, "ts": 1}      "#,
            r#"{"ph": "X", "long key of many bytes": 012, "ts": 1}      "#,
            r#"{"ph": "X", "long key of many bytes": 12, "ts": null}    "#,
            r#"{"ph": "X", "long key of many bytes": 12, "ts": 1, }     "#,
            r#"{"ph": "\n", "long key of many bytes": 12, "ts": 1}      "#,
            r#"{"ph": "X", "long key of many bytes": 12, "ts": 1"#,
            r#"{"ph": "X", "long key"#,
            "",
        ] {
            assert_eq!(read_layout_values(&layouts, other), None, "{other}");
        }
    }

    #[test]
    fn learnt_layout_steps_stay_within_limit() {
        let mut layouts = ElementLayouts::default();
        for number in 0..10 * MOST {
            learn_marked_layout(&mut layouts, &format!("{{\"key {number}\": <1>}}"));
        }
        assert!(layouts.steps.len() <= MOST, "{}", layouts.steps.len());
        assert_eq!(layouts.steps.len(), 2 * WIDEST as usize);
    }
}
