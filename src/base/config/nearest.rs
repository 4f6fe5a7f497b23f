//! Suggestions for misspelled names.

use strsim::damerau_levenshtein;

/// Returns the name in `all` that is most similar to `name`, or `None` if no name is similar. A name is similar if it
/// contains `name` or differs from it by only a few edits.
pub fn find_most_similar_name<'n>(
    name: &str,
    all: impl IntoIterator<Item = &'n str>,
) -> Option<&'n str> {
    let lower: String = name.to_lowercase().chars().take(80).collect();
    let all: Vec<_> = all.into_iter().collect();
    let by_spelling = all
        .iter()
        .map(|other| (damerau_levenshtein(&lower, &other.to_lowercase()), *other));
    // If more edits were allowed, unrelated names would be suggested.
    let close = |(edits, other): &(usize, &str)| *edits <= 3.min(other.len() / 2);
    let closest = by_spelling.min_by_key(|(edits, _)| *edits).filter(close);
    let part = || {
        let mut names = all.iter().copied();
        (lower.len() >= 3)
            .then(|| names.find(|other| other.to_lowercase().contains(&lower)))
            .flatten()
    };
    match closest {
        // A name that contains the text takes precedence over one with a similar spelling: `h100` should suggest
        // `dgx-h100`, not a name that shares only three letters.
        Some((edits, other)) if edits <= 1 => Some(other),
        other => part().or(other.map(|(_, name)| name)),
    }
}

/// Returns the end of an error message about an unknown name, either `; did you mean …?` or an empty string.
pub fn did_you_mean(closest: Option<&str>) -> String {
    closest.map_or(String::new(), |name| format!("; did you mean `{name}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_found_by_spelling_or_as_a_part() {
        assert_eq!(
            find_most_similar_name("sittin", ["kitten", "sitting"]),
            Some("sitting")
        );
        assert_eq!(find_most_similar_name("hello", ["kitten", "sitting"]), None);
        // Two swapped letters count as one edit, and a difference in case does not count.
        assert_eq!(
            find_most_similar_name("dgx-h010", ["selene", "dgx-h100"]),
            Some("dgx-h100")
        );
        assert_eq!(
            find_most_similar_name("GPT2-XL", ["gpt2-small", "gpt2-xl"]),
            Some("gpt2-xl")
        );
        assert_eq!(
            find_most_similar_name("h100", ["dgx-a100", "dgx-h100"]),
            Some("dgx-h100")
        );
        assert_eq!(find_most_similar_name("x", ["dgx-a100", "dgx-h100"]), None);
    }
}
