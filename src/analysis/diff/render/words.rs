//! Formats differences as text.

use crate::diff::{AmountChange, DiffAspect};
use chakram_base::ids::ranges;
use chakram_base::units::{Bytes, Span, percent_change};
use chakram_report::summary::thousands;

/// Returns the name of an aspect.
pub(in crate::diff) fn aspect(aspect: DiffAspect) -> &'static str {
    match aspect {
        DiffAspect::Structure => "structure",
        DiffAspect::Time => "time",
        DiffAspect::Bytes => "bytes",
    }
}

/// Formats the increase as `+1.25 %`. Returns `None` if the amount before is zero.
pub(in crate::diff) fn percent(shift: &AmountChange) -> Option<String> {
    shift.percent().map(percent_change)
}

fn narrow(amount: u128) -> u64 {
    u64::try_from(amount).unwrap_or(u64::MAX)
}

/// Formats a duration in picoseconds.
pub(in crate::diff) fn span(ps: u128) -> String {
    Span(narrow(ps)).to_string()
}

/// Formats a size in bytes.
pub(in crate::diff) fn bytes(bytes: u128) -> String {
    Bytes(narrow(bytes)).to_string()
}

/// Formats a count.
pub(in crate::diff) fn count(count: u128) -> String {
    thousands(narrow(count))
}

/// Formats an increase as `+5.000 us`.
pub(in crate::diff) fn signed(more: i128, show: impl Fn(u128) -> String) -> String {
    let size = show(more.unsigned_abs());
    match more {
        0 => "0".to_owned(),
        1.. => format!("+{size}"),
        _ => format!("-{size}"),
    }
}

/// Formats a change as `1.000 ms → 1.250 ms (+25.00 %)`.
pub(in crate::diff) fn from_to(shift: &AmountChange, show: impl Fn(u128) -> String) -> String {
    let (before, after) = (show(shift.before), show(shift.after));
    if shift.more() == 0 {
        return format!("{after}, the same");
    }
    match percent(shift) {
        Some(percent) => format!("{before} → {after} ({percent})"),
        None => format!("{before} → {after}"),
    }
}

/// Formats ranks as `rank 3`, or `8 ranks (0-7)`.
pub(in crate::diff) fn ranks(numbers: &[u32]) -> String {
    match numbers {
        [one] => format!("rank {one}"),
        _ => format!("{} ranks ({})", numbers.len(), ranges(numbers)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_in_few_words() {
        assert_eq!(ranges(&[0, 1, 2, 3, 8]), "0-3, 8");
        assert_eq!(ranks(&[4]), "rank 4");
        assert_eq!(ranks(&[1, 3]), "2 ranks (1, 3)");
        // 5 is 25 % more than 4.
        let shift = AmountChange {
            before: 4_000_000,
            after: 5_000_000,
        };
        assert_eq!(from_to(&shift, span), "4.000 us → 5.000 us (+25.00 %)");
        assert_eq!(signed(-1_000_000, span), "-1.000 us");
    }
}
