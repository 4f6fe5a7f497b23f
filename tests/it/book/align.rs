//! Aligns the output lines on a page with the lines that a command prints.

/// One line of an alignment.
#[derive(Debug, PartialEq)]
pub enum DiffLine<'a> {
    /// The line is shown and printed; a cut counts as equal.
    Same(&'a str),
    /// The line is shown, but not printed.
    Gone(&'a str),
    /// The line is printed, but not shown.
    New(&'a str),
}

/// Cost of a shown line that is not printed. Next to a cut, it is higher than the cost of changing some of the line's
/// words.
const GONE: u32 = 6;
/// Cost of a printed line that is not shown.
const NEW: u32 = 4;

fn is_cut_mark(shown: &str) -> bool {
    shown.trim() == "…"
}

fn matches_printed_line(shown: &str, printed: &str) -> bool {
    let rest = shown
        .strip_suffix('…')
        .map(|start| printed.strip_prefix(start));
    shown.trim_end() == printed || rest.flatten().is_some()
}

/// Returns the cost of replacing one line with another: the fraction of words that the two lines do not share.
fn compute_replacement_cost(shown: &str, printed: &str) -> u32 {
    if matches_printed_line(shown, printed) {
        return 0;
    }
    let words: Vec<_> = printed.split_whitespace().collect();
    let all = shown.split_whitespace().count().max(words.len()).max(1);
    let common = shown
        .split_whitespace()
        .filter(|word| words.contains(word))
        .count();
    1 + (GONE + NEW - 3) * all.saturating_sub(common) as u32 / all as u32
}

/// Returns the alignment with the fewest different lines; omits printed lines that a cut covers.
pub fn align_shown_and_printed_lines<'a>(
    shown: &[&'a str],
    printed: &'a [String],
) -> Vec<DiffLine<'a>> {
    let (n, m) = (shown.len(), printed.len());
    // costs[i][j] is the least cost of aligning the shown lines starting at i with the printed lines starting at j.
    let mut costs = vec![vec![0_u32; m + 1]; n + 1];
    for i in (0..=n).rev() {
        for j in (0..=m).rev() {
            let mut least = if i == n && j == m { 0 } else { u32::MAX };
            let cut = i < n && is_cut_mark(shown[i]);
            if i < n {
                least = least.min(costs[i + 1][j] + if cut { 0 } else { GONE });
            }
            if j < m {
                least = least.min(costs[i][j + 1] + if cut { 0 } else { NEW });
            }
            if i < n && j < m && !cut {
                least = least
                    .min(costs[i + 1][j + 1] + compute_replacement_cost(shown[i], &printed[j]));
            }
            costs[i][j] = least;
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < n || j < m {
        let cut = i < n && is_cut_mark(shown[i]);
        let here = costs[i][j];
        if cut && here == costs[i + 1][j] {
            lines.push(DiffLine::Same(shown[i]));
            i += 1;
        } else if cut {
            j += 1;
        } else if i < n
            && j < m
            && here == costs[i + 1][j + 1] + compute_replacement_cost(shown[i], &printed[j])
        {
            if matches_printed_line(shown[i], &printed[j]) {
                lines.push(DiffLine::Same(shown[i]));
            } else {
                lines.extend([DiffLine::Gone(shown[i]), DiffLine::New(&printed[j])]);
            }
            (i, j) = (i + 1, j + 1);
        } else if i < n && here == costs[i + 1][j] + GONE {
            lines.push(DiffLine::Gone(shown[i]));
            i += 1;
        } else {
            lines.push(DiffLine::New(&printed[j]));
            j += 1;
        }
    }
    lines
}

#[test]
fn cuts_stand_for_lines_and_rests_of_lines() {
    let printed = ["a 1", "b 2", "c 3", "d 4"].map(str::to_owned);
    assert_eq!(
        align_shown_and_printed_lines(&["a …", "…", "d 4"], &printed),
        ["a …", "…", "d 4"].map(DiffLine::Same)
    );
    // The second line changes, the third does not change, and the cut stays.
    let lines = align_shown_and_printed_lines(&["a 1", "b 7", "c 3", "…"], &printed);
    let expected = [
        DiffLine::Same("a 1"),
        DiffLine::Gone("b 7"),
        DiffLine::New("b 2"),
        DiffLine::Same("c 3"),
        DiffLine::Same("…"),
    ];
    assert_eq!(lines, expected);
    assert_eq!(
        align_shown_and_printed_lines(&[], &printed[..1]),
        [DiffLine::New("a 1")]
    );
    assert_eq!(
        align_shown_and_printed_lines(&["a 1", "z"], &printed[..1]),
        [DiffLine::Same("a 1"), DiffLine::Gone("z")]
    );
}
