//! Formats and parses counts in human-readable form.

/// Formats a count with its noun, such as `1 rank`, `2 ranks`, `2 passes`, `2 dependencies` or `1,234 micro-batches`.
pub fn format_count_with_noun(count: u64, one: &str) -> String {
    let is_consonant = |letter: char| !"aeiou".contains(letter);
    let (stem, ending) = match one.strip_suffix('y') {
        _ if count == 1 => (one, ""),
        Some(stem) if stem.ends_with(is_consonant) => (stem, "ies"),
        _ if one.ends_with("ch") || one.ends_with("ss") => (one, "es"),
        _ => (one, "s"),
    };
    format!("{} {stem}{ending}", format_thousands(count))
}

/// Formats a number with separators, such as `1,234,567`.
pub fn format_thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Suffixes of token counts, largest first.
const SUFFIXES: [(char, u64); 4] = [
    ('T', 1_000_000_000_000),
    ('B', 1_000_000_000),
    ('M', 1_000_000),
    ('k', 1000),
];

/// Formats a count as `15T`, `1.5B` or `300M`; uses the form `1,234,567` if every suffix would need more than two
/// decimals.
pub fn format_token_count(count: u64) -> String {
    let exact = SUFFIXES.iter().find(|(_, unit)| {
        let smallest = unit / 100;
        count >= *unit && count.is_multiple_of(smallest)
    });
    match exact {
        Some((suffix, unit)) => format!("{}{suffix}", count as f64 / *unit as f64),
        None => format_thousands(count),
    }
}

/// Parses a count of tokens, such as `15T`, `1.5B`, `300e9` or `2_000_000`.
///
/// # Errors
///
/// Fails if the text is not a count; the error says what text is expected.
pub fn parse_token_count(text: &str) -> Result<u64, String> {
    let expected = || "expected a whole number of tokens such as 15T, 300B or 2_000_000".to_owned();
    let trimmed = text.trim();
    let suffix = SUFFIXES.iter().find_map(|(suffix, unit)| {
        let digits = trimmed.strip_suffix([*suffix, suffix.to_ascii_lowercase()]);
        Some((digits?, *unit))
    });
    let (digits, unit) = suffix.unwrap_or((trimmed, 1));
    let number: f64 = digits
        .trim()
        .replace('_', "")
        .parse()
        .map_err(|_| expected())?;
    let count = number * unit as f64;
    // Only counts up to 1e15 are accepted, because an `f64` cannot represent every whole number above 2^53.
    let fits = (1.0..=1e15).contains(&count) && (count - count.round()).abs() <= 1e-3;
    match fits {
        true => Ok(count.round() as u64),
        false => Err(expected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_three() {
        assert_eq!(format_thousands(7), "7");
        assert_eq!(format_thousands(1234), "1,234");
        assert_eq!(format_thousands(123_456_789), "123,456,789");
    }

    #[test]
    fn counts_of_tokens_have_suffixes() {
        for (text, count, shown) in [
            ("15T", 15_000_000_000_000, "15T"),
            ("1.4 t", 1_400_000_000_000, "1.4T"),
            ("300e9", 300_000_000_000, "300B"),
            ("1_234_567", 1_234_567, "1,234,567"),
            ("2k", 2000, "2k"),
            ("7", 7, "7"),
        ] {
            assert_eq!(parse_token_count(text), Ok(count), "{text}");
            assert_eq!(format_token_count(count), shown);
        }
        for text in [
            "", "T", "0", "-1B", "1.5", "15TT", "nan", "1e40", "15Q", "1e16",
        ] {
            assert!(parse_token_count(text).is_err(), "{text}");
        }
    }

    #[test]
    fn counts_other_than_one_get_plural_nouns() {
        assert_eq!(format_count_with_noun(1, "rank"), "1 rank");
        assert_eq!(format_count_with_noun(0, "message"), "0 messages");
        assert_eq!(format_count_with_noun(2, "pass"), "2 passes");
        assert_eq!(format_count_with_noun(2, "dependency"), "2 dependencies");
        assert_eq!(format_count_with_noun(2, "delay"), "2 delays");
        assert_eq!(
            format_count_with_noun(1234, "micro-batch"),
            "1,234 micro-batches"
        );
    }
}
