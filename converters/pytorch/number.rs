//! Parses numbers in JSON exactly, without floating-point rounding.

use std::borrow::Cow;

/// Returns a value as text: a string's content, and any other value as JSON.
pub(super) fn unquote_json_value(json: &str) -> Cow<'_, str> {
    match json.strip_prefix('"').and_then(|t| t.strip_suffix('"')) {
        Some(plain) if !plain.contains('\\') => Cow::Borrowed(plain),
        // JSON allows unpaired surrogates, which are invalid Unicode, so keep such a text unchanged.
        Some(plain) => Cow::Owned(serde_json::from_str(json).unwrap_or_else(|_| plain.to_owned())),
        None => Cow::Borrowed(json),
    }
}

/// Parses an integer, possibly in a string. It may be decimal, or hexadecimal after `0x`. A trailing `.0` is accepted,
/// because scripts write it if a column has missing values.
#[inline]
pub(super) fn parse_json_integer(json: &str) -> Option<i128> {
    // The common case: plain decimal digits.
    match parse_at_most_18_digits(json.as_bytes()) {
        Some(number) => Some(i128::from(number)),
        None => parse_unusual_json_integer(json),
    }
}

#[cold]
fn parse_unusual_json_integer(json: &str) -> Option<i128> {
    let text = unquote_json_value(json);
    let text = text.trim();
    match text.strip_prefix("0x") {
        // Reject a sign here, because `from_str_radix` would accept a second sign.
        Some(hex) if !hex.starts_with('+') => i128::from_str_radix(hex, 16).ok(),
        _ => {
            let whole = match text.split_once('.') {
                Some((whole, zeros)) if !zeros.is_empty() && zeros.bytes().all(|b| b == b'0') => {
                    whole
                }
                _ => text,
            };
            whole.parse().ok()
        }
    }
}

/// Parses up to 18 decimal digits. Returns `None` for any other text.
#[inline]
fn parse_at_most_18_digits(text: &[u8]) -> Option<i64> {
    if text.is_empty() || text.len() > 18 {
        return None;
    }
    let (eights, rest) = text.as_chunks();
    let mut number = 0;
    for eight in eights {
        number = number * 100_000_000 + parse_eight_digits(*eight)?;
    }
    rest.iter().try_fold(number, |number, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit < 10).then(|| number * 10 + i64::from(digit))
    })
}

/// Parses eight decimal digits at once. Combines neighbouring digits into two-digit numbers, and these into four-digit
/// numbers.
#[inline]
fn parse_eight_digits(text: [u8; 8]) -> Option<i64> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let digits = u64::from_le_bytes(text) ^ (ONES * u64::from(b'0'));
    // A digit neither sets a top bit nor carries into another byte. A byte that is not a digit sets
    // its own top bit, and possibly the top bits of other bytes.
    if (digits.wrapping_add(ONES * (0x80 - 10)) | digits) & (ONES << 7) != 0 {
        return None;
    }
    // The first digit is the lowest byte.
    let pairs = (digits * 10 + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    Some(((fours * 10_000 + (fours >> 32)) & 0xffff_ffff) as i64)
}

/// Converts microseconds with no decimals or exactly three, as profilers write them. Returns `None` for other forms.
#[inline]
fn parse_plain_microseconds(json: &str) -> Option<i64> {
    let (whole, fraction) = match json.as_bytes() {
        [whole @ .., b'.', a, b, c] => (whole, parse_at_most_18_digits(&[*a, *b, *c])?),
        whole => (whole, 0),
    };
    parse_at_most_18_digits(whole)?
        .checked_mul(1000)?
        .checked_add(fraction)
}

/// Converts decimal microseconds to nanoseconds, rounded to the nearest nanosecond.
#[inline]
pub(super) fn parse_microseconds_as_nanoseconds(json: &str) -> Option<i64> {
    parse_plain_microseconds(json).or_else(|| parse_decimal_microseconds(json))
}

fn parse_decimal_microseconds(json: &str) -> Option<i64> {
    let text = unquote_json_value(json);
    let text = text.trim();
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i64>().ok()?),
        None => (text, 0),
    };
    let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = || integer.bytes().chain(fraction.bytes());
    if integer.is_empty() || !digits().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // Number of digits before the decimal point once the value is in nanoseconds.
    let before = (integer.len() as i64)
        .checked_add(exponent)?
        .checked_add(3)?;
    let mut value = 0_i64;
    let mut digits = digits().skip_while(|b| *b == b'0').peekable();
    let zeros = (integer.len() + fraction.len()) as i64 - digits.clone().count() as i64;
    if digits.peek().is_some() {
        for _ in 0..before.saturating_sub(zeros) {
            let digit = digits.next().unwrap_or(b'0') - b'0';
            value = value.checked_mul(10)?.checked_add(i64::from(digit))?;
        }
        if before >= zeros && digits.next().is_some_and(|b| b >= b'5') {
            value = value.checked_add(1)?;
        }
    }
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_become_nanoseconds_exactly() {
        for (json, expected) in [
            ("4313672559973.129", Some(4_313_672_559_973_129)),
            ("1795171969074690", Some(1_795_171_969_074_690_000)),
            ("0", Some(0)),
            ("0.000", Some(0)),
            ("-0.0015", Some(-2)),
            ("0.0014", Some(1)),
            ("0.0004", Some(0)),
            ("0.0005", Some(1)),
            ("1.000", Some(1000)),
            ("007.250", Some(7250)),
            ("999999999999999.999", Some(999_999_999_999_999_999)),
            ("1000000000000000.999", Some(1_000_000_000_000_000_999)),
            ("1.+23", None),
            (".123", None),
            ("1é.123", None),
            ("1.5e3", Some(1_500_000)),
            ("15E-1", Some(1_500)),
            ("\"12.5\"", Some(12_500)),
            // The largest value is 2⁶³ − 1 ns.
            ("9223372036854775.807", Some(i64::MAX)),
            ("9223372036854775.808", None),
            ("1e400", None),
            ("1e99999999999999999999", None),
            ("0e9223372036854775807", None),
            ("1e-400", Some(0)),
            ("0e12", Some(0)),
            ("null", None),
            ("", None),
            (".5", None),
            ("\"nan\"", None),
        ] {
            assert_eq!(parse_microseconds_as_nanoseconds(json), expected, "{json}");
            assert_eq!(parse_decimal_microseconds(json), expected, "{json}");
        }
    }

    /// Tests the text of each number, and all texts that differ from it in one byte.
    #[test]
    fn digits_are_those_of_the_standard_parser() {
        for number in [
            7,
            10,
            99_999_999,
            100_000_000,
            12_345_678_901_234_567,
            999_999_999_999_999_999_i64,
        ] {
            let text = number.to_string();
            assert_eq!(parse_at_most_18_digits(text.as_bytes()), Some(number));
            for place in 0..text.len() {
                for byte in 0..=u8::MAX {
                    let mut bytes = text.clone().into_bytes();
                    bytes[place] = byte;
                    // Texts with a sign are excluded, because only the standard parser accepts a
                    // sign.
                    let plain = bytes.iter().all(u8::is_ascii_digit);
                    let expected = std::str::from_utf8(&bytes).ok().filter(|_| plain);
                    let expected = expected.and_then(|text| text.parse().ok());
                    assert_eq!(
                        parse_at_most_18_digits(&bytes),
                        expected,
                        "{byte} at {place} of {text}"
                    );
                }
            }
        }
        assert_eq!(parse_at_most_18_digits(b""), None);
        assert_eq!(parse_at_most_18_digits(b"1000000000000000000"), None);
    }

    #[test]
    fn whole_numbers_may_be_hexadecimal_or_quoted() {
        for (json, expected) in [
            ("7", Some(7)),
            ("\"0x1f\"", Some(31)),
            ("-1", Some(-1)),
            ("\"12\"", Some(12)),
            ("12.0", Some(12)),
            ("-1.00", Some(-1)),
            ("1.", None),
            (".0", None),
            ("1.0.0", None),
            ("1.5", None),
            ("\"0x+1\"", None),
            ("[]", None),
        ] {
            assert_eq!(parse_json_integer(json), expected, "{json}");
        }
    }
}
