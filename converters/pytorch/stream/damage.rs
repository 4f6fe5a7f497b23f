//! Damage to JSON, for tests that hold a scan against the general parser.

/// Returns a source of numbers below what it is asked for, the same for one seed.
pub(in crate::converters::pytorch) fn numbers_below(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |n| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % n
    }
}

/// Calls `check` 100,000 times with one of `texts` in turn, of which none, one or two places hold one of `parts` instead.
pub(in crate::converters::pytorch) fn for_each_damaged(
    texts: &[&str],
    parts: &[&str],
    mut check: impl FnMut(&str),
) {
    let mut below = numbers_below(5);
    for round in 0..100_000 {
        let mut text = texts[round % texts.len()].to_owned();
        for _ in 0..round % 3 {
            let at = below(text.len());
            let end = (at + below(3)).min(text.len());
            if text.is_char_boundary(at) && text.is_char_boundary(end) {
                text.replace_range(at..end, parts[below(parts.len())]);
            }
        }
        check(&text);
    }
}
