//! Formats differences as words for users.

use crate::diff::{AmountChange, StructureTimeOrBytesAspect};
use chakram_base::ids::format_numbers_as_ranges;
use chakram_base::units::{Bytes, Span, format_given_percent_change};
use chakram_report::summary::format_thousands;

/// Returns the name of an aspect, as shown to users.
pub(in crate::diff) fn name_of_aspect(aspect: StructureTimeOrBytesAspect) -> &'static str {
    match aspect {
        StructureTimeOrBytesAspect::Structure => "structure",
        StructureTimeOrBytesAspect::Time => "time",
        StructureTimeOrBytesAspect::Bytes => "bytes",
    }
}

/// Formats the increase in percent, as in `+1.25 %`. Returns `None` if the first amount is zero.
pub(in crate::diff) fn format_percent_increase(shift: &AmountChange) -> Option<String> {
    shift.percent_increase().map(format_given_percent_change)
}

fn saturate_to_u64(amount: u128) -> u64 {
    u64::try_from(amount).unwrap_or(u64::MAX)
}

/// Formats a duration in picoseconds for users.
pub(in crate::diff) fn format_span(ps: u128) -> String {
    Span(saturate_to_u64(ps)).to_string()
}

pub(in crate::diff) fn format_bytes(bytes: u128) -> String {
    Bytes(saturate_to_u64(bytes)).to_string()
}

/// Formats a count, with thousands separators.
pub(in crate::diff) fn format_count_with_thousands_separators(count: u128) -> String {
    format_thousands(saturate_to_u64(count))
}

/// Formats an increase with its sign, as in `+5.000 us`.
pub(in crate::diff) fn format_signed(more: i128, show: impl Fn(u128) -> String) -> String {
    let size = show(more.unsigned_abs());
    match more {
        0 => "0".to_owned(),
        1.. => format!("+{size}"),
        _ => format!("-{size}"),
    }
}

/// Formats the two amounts and the increase, as in `1.000 ms → 1.250 ms (+25.00 %)`.
pub(in crate::diff) fn format_before_and_after(
    shift: &AmountChange,
    show: impl Fn(u128) -> String,
) -> String {
    let (before, after) = (show(shift.before), show(shift.after));
    if shift.signed_increase() == 0 {
        return format!("{after}, the same");
    }
    match format_percent_increase(shift) {
        Some(percent) => format!("{before} → {after} ({percent})"),
        None => format!("{before} → {after}"),
    }
}

/// Formats ranks, as in `rank 3` or `8 ranks (0-7)`.
pub(in crate::diff) fn format_ranks(numbers: &[u32]) -> String {
    match numbers {
        [one] => format!("rank {one}"),
        _ => format!(
            "{} ranks ({})",
            numbers.len(),
            format_numbers_as_ranges(numbers)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_and_amount_changes_format_in_few_words() {
        assert_eq!(format_numbers_as_ranges(&[0, 1, 2, 3, 8]), "0-3, 8");
        assert_eq!(format_ranks(&[4]), "rank 4");
        assert_eq!(format_ranks(&[1, 3]), "2 ranks (1, 3)");
        // From 4 to 5 is an increase of 25 %.
        let shift = AmountChange {
            before: 4_000_000,
            after: 5_000_000,
        };
        assert_eq!(
            format_before_and_after(&shift, format_span),
            "4.000 us → 5.000 us (+25.00 %)"
        );
        assert_eq!(format_signed(-1_000_000, format_span), "-1.000 us");
    }
}
