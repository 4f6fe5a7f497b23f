//! Splits strings at decimal numbers, such as the layer, micro-batch and group numbers in names.

use crate::wire::put_varint;

/// Number of digits in the largest power of ten below 2^64.
const MOST_DIGITS: usize = 19;

/// Appends to `key` the count of numbers in `text` and the parts between these numbers, each with its length before it.
/// Appends the numbers to `slots`. A number must have no leading zero, so that its digits follow from its value. A
/// sequence of more than 19 digits is not a number.
pub fn split_text_into_key_and_numbers(text: &[u8], key: &mut Vec<u8>, slots: &mut Vec<u64>) {
    let first = slots.len();
    let at_count = key.len();
    // Reserve one byte for the count of numbers. In the rare case that the count is longer, it is inserted here at the
    // end.
    key.push(0);
    let (mut piece, mut at) = (0, 0);
    while at < text.len() {
        if !text[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let run = text[at..].iter().take_while(|byte| byte.is_ascii_digit());
        let end = at + run.count();
        let zeros = text[at..end].iter().take_while(|&&digit| digit == b'0');
        let start = (at + zeros.count()).min(end - 1);
        if end - start <= MOST_DIGITS {
            append_length_prefixed_piece(&text[piece..start], key);
            let digits = text[start..end].iter();
            slots.push(digits.fold(0, |value, digit| value * 10 + u64::from(digit - b'0')));
            piece = end;
        }
        at = end;
    }
    append_length_prefixed_piece(&text[piece..], key);
    let numbers = slots.len() - first;
    match u8::try_from(numbers) {
        Ok(count @ ..0x80) => key[at_count] = count,
        _ => {
            let mut count = Vec::new();
            put_varint(&mut count, numbers as u64);
            key.splice(at_count..=at_count, count);
        }
    }
}

fn append_length_prefixed_piece(piece: &[u8], key: &mut Vec<u8>) {
    put_varint(key, piece.len() as u64);
    key.extend_from_slice(piece);
}

/// Returns the number of digits in `value`.
pub fn digit_count(value: u64) -> usize {
    value.checked_ilog10().unwrap_or(0) as usize + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the parts and numbers of `text`.
    fn split_text_numbers(text: &str) -> (Vec<u8>, Vec<u64>) {
        let (mut key, mut slots) = (Vec::new(), Vec::new());
        split_text_into_key_and_numbers(text.as_bytes(), &mut key, &mut slots);
        (key, slots)
    }

    #[test]
    fn only_digits_that_follow_from_their_value_become_numbers() {
        assert_eq!(
            split_text_numbers("mb0/layer12"),
            (b"\x02\x02mb\x06/layer\0".to_vec(), vec![0, 12])
        );
        // Leading zeros remain text, as do numbers that may not fit into 64 bits.
        assert_eq!(
            split_text_numbers("007"),
            (b"\x01\x0200\0".to_vec(), vec![7])
        );
        assert_eq!(split_text_numbers("00"), (b"\x01\x010\0".to_vec(), vec![0]));
        assert_eq!(
            split_text_numbers(&"9".repeat(19)).1,
            [9_999_999_999_999_999_999]
        );
        assert!(split_text_numbers(&"9".repeat(20)).1.is_empty());
        assert_eq!(split_text_numbers("").0, [0, 0]);
        let many = split_text_numbers(&"1,".repeat(200));
        assert_eq!((many.1.len(), &many.0[..2]), (200, &[0xc8, 1][..]));
    }
}
