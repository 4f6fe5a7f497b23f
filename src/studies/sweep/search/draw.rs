//! Seeded random draws of indices, without replacement.

use crate::sweep::setting::{self, Settings};
use chakram_base::random::split_mix;
use std::collections::BTreeMap;

/// Draws `draws` of `size` indices in random order. None is drawn twice.
pub(super) fn draw_indices(seed: u64, fixed: &Settings, size: u64, draws: u64) -> Vec<u64> {
    // Mix the outer layers' settings into the seed. An inner layer's draws then differ from one outer point to the
    // next, but not between runs.
    let mut state = setting::format_settings(fixed)
        .bytes()
        .fold(seed, |state, byte| {
            (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    let mut drawn = Vec::new();
    // Fisher-Yates shuffle that stores only the entries that have moved.
    let mut moved: BTreeMap<u64, u64> = BTreeMap::new();
    for i in 0..draws.min(size) {
        let rest = size - i;
        let other = i + ((u128::from(split_mix(&mut state)) * u128::from(rest)) >> 64) as u64;
        let taken = moved.get(&other).copied().unwrap_or(other);
        let own = moved.get(&i).copied().unwrap_or(i);
        moved.insert(other, own);
        drawn.push(taken);
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn draws_are_different_and_repeatable() {
        let none = Settings::new();
        let drawn = draw_indices(7, &none, 1000, 200);
        assert_eq!(drawn, draw_indices(7, &none, 1000, 200));
        assert_ne!(drawn, draw_indices(8, &none, 1000, 200));
        let unique: BTreeSet<u64> = drawn.iter().copied().collect();
        assert_eq!(unique.len(), 200);
        assert!(unique.iter().all(|index| *index < 1000));
        // If all indices are drawn, the draw is a permutation.
        let mut all = draw_indices(7, &none, 50, 80);
        assert_ne!(all, (0..50).collect::<Vec<_>>());
        all.sort_unstable();
        assert_eq!(all, (0..50).collect::<Vec<_>>());
    }
}
