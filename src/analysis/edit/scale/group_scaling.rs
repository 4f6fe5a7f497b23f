//! Scales groups, and names the copies of groups.

use super::grid::ScaledDimension;
use super::refuse_scaling;
use chakram_base::setting::SettingKey;
use chakram_trace::format::{TraceError, escape_and_shorten_name};
use std::collections::BTreeSet;

/// Effect of the scaling on a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScalingEffectOnGroup {
    /// The group gets more (or fewer) members along the dimension.
    Grows,
    /// Every block gets a copy of the group.
    Copied,
}

impl ScalingEffectOnGroup {
    /// Returns how the group `name` scales. Its members must form a sub-grid.
    pub fn for_members(
        along: &ScaledDimension,
        name: &str,
        ranks: &[u32],
    ) -> Result<Self, TraceError> {
        let fail = |why: String| {
            let found = format!(
                "group `{}`, ranks {}: {why}",
                escape_and_shorten_name(name),
                format_rank_list(ranks)
            );
            let grid = SettingKey::Grid;
            let hint = format!("give a {grid} in which every group is a sub-grid");
            Err(refuse_scaling(found, &hint))
        };
        if let Some(rank) = ranks
            .iter()
            .find(|&&rank| rank >= along.original_rank_count())
        {
            return fail(format!("the grid has no rank {rank}"));
        }
        let all: BTreeSet<u32> = ranks.iter().copied().collect();
        if all.len() != ranks.len() {
            return fail("a rank is named twice".to_owned());
        }
        let mut found: Vec<BTreeSet<u32>> = Vec::new();
        for &rank in ranks {
            let (coordinates, _) = along.coordinates_and_scaled_dimension_index(rank);
            found.resize(coordinates.len(), BTreeSet::new());
            for (set, coordinate) in found.iter_mut().zip(coordinates) {
                set.insert(coordinate);
            }
        }
        let combinations: u128 = found.iter().map(|set| set.len() as u128).product();
        // Distinct members form a sub-grid if and only if all combinations of their coordinates occur.
        if combinations != ranks.len() as u128 {
            return fail("the ranks are not a sub-grid of the grid".to_owned());
        }
        let (_, dimension) = along.coordinates_and_scaled_dimension_index(0);
        let across = found[dimension].len();
        // Along a dimension of size 1, only a group with one member counts as lying along it.
        let single = along.original_size() == 1 && ranks.len() == 1;
        if across == 1 && !single {
            return Ok(Self::Copied);
        }
        if across as u32 != along.original_size() {
            return fail(format!(
                "the group has {across} of {} ranks along `{}`, so its members among {} ranks are unknown",
                along.original_size(),
                along.dimension_name(),
                along.scaled_dimension_size()
            ));
        }
        if ranks.is_sorted() {
            Ok(Self::Grows)
        } else {
            fail(format!(
                "the group grows along `{}`, but its ranks are not in ascending order",
                along.dimension_name()
            ))
        }
    }
}

fn format_rank_list(ranks: &[u32]) -> String {
    const SHOWN: usize = 8;
    let list: Vec<String> = ranks.iter().take(SHOWN).map(u32::to_string).collect();
    let more = if ranks.len() > SHOWN { ", …" } else { "" };
    list.join(", ") + more
}

/// The names of all groups. Copies of groups get unused names.
#[derive(Clone, Debug, Default)]
pub(super) struct TakenGroupNames {
    taken: BTreeSet<String>,
    /// One more than the largest numeric name.
    beyond: u64,
}

impl TakenGroupNames {
    pub fn record_taken_name(&mut self, name: &str) {
        if let Ok(number) = name.parse::<u64>() {
            self.beyond = self.beyond.max(number.saturating_add(1));
        }
        self.taken.insert(name.to_owned());
    }

    /// Returns the name of group `name`'s copy in `block`. A numeric name's copies also get numeric names, because
    /// ASTRA-sim requires numbers.
    pub fn name_of_group_copy(&self, name: &str, block: u32) -> String {
        if block == 0 {
            return name.to_owned();
        }
        let number = name.parse::<u64>().ok().and_then(|number| {
            let far = self.beyond.checked_mul(u64::from(block))?;
            far.checked_add(number)
        });
        if let Some(number) = number {
            return number.to_string();
        }
        let mut copy = format!("{name}.{block}");
        while self.taken.contains(&copy) {
            copy.push('\'');
        }
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::super::grid::RankGridDimensions;
    use super::*;

    fn group_scaling_effect_in_grid_text(
        grid: &str,
        name: &str,
        to: u32,
        ranks: &[u32],
    ) -> Result<ScalingEffectOnGroup, String> {
        let along =
            ScaledDimension::new(RankGridDimensions::parse(grid).unwrap(), name, to).unwrap();
        ScalingEffectOnGroup::for_members(&along, "g", ranks).map_err(|e| e.to_string())
    }

    #[test]
    fn groups_are_parts_of_the_grid_or_named_in_an_error() {
        let of = |ranks: &[u32]| group_scaling_effect_in_grid_text("dp=4,tp=2", "dp", 8, ranks);
        assert_eq!(of(&[0, 2, 4, 6]), Ok(ScalingEffectOnGroup::Grows));
        assert_eq!(
            of(&[0, 1, 2, 3, 4, 5, 6, 7]),
            Ok(ScalingEffectOnGroup::Grows)
        );
        assert_eq!(of(&[3, 2]), Ok(ScalingEffectOnGroup::Copied));
        assert_eq!(of(&[5]), Ok(ScalingEffectOnGroup::Copied));
        for (ranks, why) in [
            (&[0, 3][..], "not a sub-grid"),
            (&[0, 2], "2 of 4 ranks along `dp`"),
            (&[6, 4, 2, 0], "not in ascending order"),
            (&[0, 8], "no rank 8"),
            (&[1, 1], "named twice"),
        ] {
            let error = of(ranks).unwrap_err();
            assert!(
                error.contains("group `g`") && error.contains(why),
                "{error}"
            );
        }
        assert_eq!(
            group_scaling_effect_in_grid_text("dp=1,tp=2", "dp", 8, &[1]),
            Ok(ScalingEffectOnGroup::Grows)
        );
        assert_eq!(
            group_scaling_effect_in_grid_text("dp=1,tp=2", "dp", 8, &[0, 1]),
            Ok(ScalingEffectOnGroup::Copied)
        );
    }

    #[test]
    fn copies_have_names_of_their_own() {
        let mut names = TakenGroupNames::default();
        for name in ["1", "7", "tp", "tp.1"] {
            names.record_taken_name(name);
        }
        assert_eq!(names.name_of_group_copy("7", 0), "7");
        // The largest numeric name is 7, so a group's copies have numbers that increase by 8 from block to block.
        assert_eq!(names.name_of_group_copy("7", 2), "23");
        assert_eq!(names.name_of_group_copy("tp", 2), "tp.2");
        assert_eq!(names.name_of_group_copy("tp", 1), "tp.1'");
    }
}
