//! Counts as people read them.

/// `1 rank`, `2 ranks`, `2 passes`, `2 dependencies`, `1,234 micro-batches`.
pub fn counted(count: u64, one: &str) -> String {
    let is_consonant = |letter: char| !"aeiou".contains(letter);
    let (stem, ending) = match one.strip_suffix('y') {
        _ if count == 1 => (one, ""),
        Some(stem) if stem.ends_with(is_consonant) => (stem, "ies"),
        _ if one.ends_with("ch") || one.ends_with("ss") => (one, "es"),
        _ => (one, "s"),
    };
    format!("{} {stem}{ending}", thousands(count))
}

/// `1,234,567`.
pub fn thousands(number: u64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_three() {
        assert_eq!(thousands(7), "7");
        assert_eq!(thousands(1234), "1,234");
        assert_eq!(thousands(123_456_789), "123,456,789");
    }

    #[test]
    fn one_thing_has_no_plural() {
        assert_eq!(counted(1, "rank"), "1 rank");
        assert_eq!(counted(0, "message"), "0 messages");
        assert_eq!(counted(2, "pass"), "2 passes");
        assert_eq!(counted(2, "dependency"), "2 dependencies");
        assert_eq!(counted(2, "delay"), "2 delays");
        assert_eq!(counted(1234, "micro-batch"), "1,234 micro-batches");
    }
}
