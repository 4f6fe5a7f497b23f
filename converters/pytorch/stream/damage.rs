//! Damages JSON texts to test scanners against the general parser.

use super::JsonElementReceiver;
use std::fmt::Debug;

/// Returns a function that takes a number `n` and returns a pseudorandom number below `n`. The seed determines the
/// sequence.
pub(in crate::pytorch) fn build_pseudo_random_generator(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |n| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % n
    }
}

/// Compares what a reader's scanner returns with what the general parser (the oracle) returns. The inputs are `texts`
/// with some positions replaced by one of `parts`. The scanner must return the parser's values, and must be able to
/// read nearly all valid texts. Layouts learned from one text are used for the following texts.
pub(in crate::pytorch) fn assert_scan_equals_parser_on_damaged_texts<
    F: JsonElementReceiver + Default,
>(
    texts: &[&str],
    parts: &[&str],
) where
    for<'de> F::Element<'de>: Debug + PartialEq,
{
    let (mut scanned, mut parsed) = (0, 0);
    let mut reader = F::default();
    for_each_randomly_damaged_text(texts, parts, |text| {
        let mut element = F::Element::default();
        let found = reader
            .scan_element_and_return_length(text, &mut element)
            .map(|used| (element, used));
        let mut values = serde_json::Deserializer::from_str(text).into_iter();
        let expected = values.next().and_then(Result::ok);
        let expected = expected.map(|element: F::Element<'_>| (element, values.byte_offset()));
        parsed += usize::from(expected.is_some());
        scanned += usize::from(found.is_some());
        assert!(found.is_none() || found == expected, "{text}");
    });
    assert!(scanned * 20 > parsed * 19, "{scanned} of {parsed}");
}

/// Calls `check` 100,000 times. Each call gets the next of `texts`, with up to two positions replaced by parts from
/// `parts`.
fn for_each_randomly_damaged_text(texts: &[&str], parts: &[&str], mut check: impl FnMut(&str)) {
    let mut below = build_pseudo_random_generator(5);
    for round in 0..100_000 {
        let mut text = texts[round % texts.len()].to_owned();
        for _ in 0..round % 3 {
            let at = below(text.len());
            let end = (at + below(3)).min(text.len());
            if text.is_char_boundary(at) && text.is_char_boundary(end) {
                text.replace_range(at..end, parts[below(parts.len())]);
            }
        }
        check(&text);
    }
}
