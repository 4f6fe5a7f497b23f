//! Suggestions for misspelled names.

/// The name of `all` that is most like `name`, if one is.
pub(crate) fn nearest<'n>(name: &str, all: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let all = all.into_iter().map(|other| (edits(name, other), other));
    let (edits, closest) = all.min_by_key(|(edits, _)| *edits)?;
    // More edits than that would suggest unrelated names.
    (edits <= 3.min(closest.len() / 2)).then_some(closest)
}

/// `; did you mean …?`, or an empty text: the end of an error about an unknown name.
pub(crate) fn did_you_mean(closest: Option<&str>) -> String {
    closest.map_or(String::new(), |name| format!("; did you mean `{name}`?"))
}

/// Edit distance between the first 80 letters of `a` and `b` (Levenshtein).
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    // One row of the Levenshtein matrix at a time.
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().take(80).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let change = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        // kitten -> sitting: two changed, one put in.
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!(nearest("sittin", ["kitten", "sitting"]), Some("sitting"));
        assert_eq!(nearest("hello", ["kitten", "sitting"]), None);
    }
}
