//! Formats lists of ranks for users.

/// Formats ranks as `0-3, 8`: joins consecutive ranks, and shortens a long list.
pub(super) fn format_ranks(ranks: &[u32]) -> String {
    /// Maximum number of ranges in the text.
    const SHOWN: usize = 6;
    if ranks.is_empty() {
        return "of the whole job".to_owned();
    }
    let mut text = String::new();
    let mut rest = ranks;
    for shown in 0.. {
        let Some(&first) = rest.first() else { break };
        if shown == SHOWN {
            text += &format!(", … ({} in all)", ranks.len());
            break;
        }
        let follow = rest
            .iter()
            .zip(first..=u32::MAX)
            .take_while(|(a, b)| *a == b);
        let count = follow.count().max(1);
        let separator = if shown > 0 { ", " } else { "" };
        text += &match count {
            1 => format!("{separator}{first}"),
            _ => format!("{separator}{first}-{}", rest[count - 1]),
        };
        rest = &rest[count..];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_follow_one_another_are_drawn_together() {
        assert_eq!(format_ranks(&[0, 1, 2, 3, 8]), "0-3, 8");
        assert_eq!(format_ranks(&[5]), "5");
        assert_eq!(format_ranks(&[3, 2, 1]), "3, 2, 1");
        assert_eq!(format_ranks(&[u32::MAX]), "4294967295");
        let odd: Vec<u32> = (0..20).map(|i| 2 * i).collect();
        assert_eq!(format_ranks(&odd), "0, 2, 4, 6, 8, 10, … (20 in all)");
    }
}
