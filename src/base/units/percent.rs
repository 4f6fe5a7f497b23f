//! Formats and parses percentages in human-readable form.

/// Formats a fraction as `12.3 %`.
pub fn format_percent(fraction: f64) -> String {
    format!("{:.1} %", 100.0 * fraction)
}

/// Formats a fraction as `+12.3 %`, with its sign.
pub fn format_signed_percent(fraction: f64) -> String {
    format!("{:+.1} %", 100.0 * fraction)
}

/// Formats the ratio of `part` to `whole`, which must not be zero, as `12.3 %`.
pub fn format_percent_of(part: f64, whole: f64) -> String {
    format!("{:.1} %", 100.0 * part / whole)
}

/// Formats a change in percent as `+1.25 %`.
pub fn format_given_percent_change(percent: f64) -> String {
    format!("{percent:+.2} %")
}

/// Parses a percentage, for example `1.5%` as 1.5. Returns `None` unless the number is finite and
/// not negative.
pub fn parse_unscaled_percent_number(text: &str) -> Option<f64> {
    let number = text.strip_suffix('%')?.trim().parse::<f64>().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_have_one_digit_and_changes_two() {
        assert_eq!(format_percent(0.1234), "12.3 %");
        assert_eq!(format_percent_of(1.0, 8.0), "12.5 %");
        assert_eq!(format_given_percent_change(1.25), "+1.25 %");
        assert_eq!(format_given_percent_change(-75.0), "-75.00 %");
        assert_eq!(parse_unscaled_percent_number("0.5 %"), Some(0.5));
        for wrong in ["0.5", "%", "-1%", "inf%", "x%"] {
            assert_eq!(parse_unscaled_percent_number(wrong), None);
        }
    }
}
