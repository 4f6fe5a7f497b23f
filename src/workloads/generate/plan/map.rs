//! Explicit mapping of axes to a machine's dimensions, such as `tp@nvlink` or `dp:2@1`.
//!
//! Rank r is on NPU r, and NPUs are numbered along the innermost dimension first. A mapping therefore determines a
//! numbering of ranks. Dimensions are numbered from the innermost outward. Within one dimension, the first
//! [`AxisPartMapping`] of the list is the innermost. If an axis has several mappings, neighbours on the axis are
//! neighbours along the first of these mappings.

use super::{
    AxisPartMapping, MachineDimensionRef, ParallelAxis, ParallelismPlan, TensorDataStageCoordinates,
};
use crate::generate::{PatternOptionError, refused_option_value_error};
use std::collections::BTreeMap;

/// A mapping whose dimension index and number of members are known.
struct ResolvedAxisPartMapping {
    axis: ParallelAxis,
    members: u32,
    dimension: u32,
}

fn invalid_mapping_error(place: &[AxisPartMapping], expected: String) -> PatternOptionError {
    let said: Vec<_> = place.iter().map(AxisPartMapping::to_string).collect();
    refused_option_value_error("place", said.join(","), expected)
}

impl ParallelismPlan {
    /// Checks `place` against a machine's dimensions (innermost first; name and number of NPUs), and replaces dimension
    /// names with indices.
    ///
    /// # Errors
    ///
    /// Fails if a name matches no dimension or more than one, or if the members do not fill the
    /// dimensions from the innermost outward.
    pub fn resolve_place_dimensions(
        &mut self,
        dimensions: &[(&str, u32)],
    ) -> Result<(), PatternOptionError> {
        let mut place = self.place.clone();
        let list = || {
            let all = dimensions
                .iter()
                .enumerate()
                .map(|(index, (name, size))| format!("{index} ({name}, {size} NPUs)"));
            all.collect::<Vec<_>>().join(", ")
        };
        for stretch in &mut place {
            let index = match &stretch.along {
                MachineDimensionRef::Index(index) => Some(*index as usize),
                MachineDimensionRef::Name(name) => {
                    let mut named = (0..dimensions.len()).filter(|&i| dimensions[i].0 == name);
                    named.next().filter(|_| named.next().is_none())
                }
            };
            let Some(index) = index.filter(|&index| index < dimensions.len()) else {
                let expected = format!("dimensions of the machine, which are {}", list());
                return Err(invalid_mapping_error(&self.place, expected));
            };
            stretch.along = MachineDimensionRef::Index(index as u32);
        }
        let mut along: BTreeMap<usize, u64> = BTreeMap::new();
        for known in self.resolve_axis_mappings(&place)? {
            let members = along.entry(known.dimension as usize).or_insert(1);
            *members = members.saturating_mul(known.members.into());
        }
        let last = along
            .iter()
            .rev()
            .find(|(_, members)| **members > 1)
            .map_or(0, |(dimension, _)| *dimension);
        for (index, (name, size)) in dimensions.iter().enumerate().take(last + 1) {
            let found = along.get(&index).copied().unwrap_or(1);
            let (size, outermost) = (u64::from(*size), index == last);
            if found == size || outermost && found < size {
                continue;
            }
            let which = if outermost { "at most the" } else { "all" };
            let expected = format!(
                "members along dimension {index} ({name}) whose product is {which} {size} NPUs of it, not \
                 {found}; ranks fill a machine from the inside"
            );
            return Err(invalid_mapping_error(&self.place, expected));
        }
        self.place = place;
        Ok(())
    }

    /// Returns the mappings of `place`, each with its number of members.
    fn resolve_axis_mappings(
        &self,
        place: &[AxisPartMapping],
    ) -> Result<Vec<ResolvedAxisPartMapping>, PatternOptionError> {
        let degree = |axis| match axis {
            ParallelAxis::Tensor => self.tensor,
            ParallelAxis::Data => self.weight_replicas_per_stage(),
            ParallelAxis::Pipeline => self.pipeline,
        };
        let mut left = BTreeMap::new();
        for (axis, word) in ParallelAxis::ALL {
            let own = place.iter().filter(|stretch| stretch.axis == *axis);
            let said: u64 = own
                .clone()
                .filter_map(|stretch| stretch.members)
                .fold(1, |product, members| product.saturating_mul(members.into()));
            let degree = u64::from(degree(*axis));
            let open = own.filter(|stretch| stretch.members.is_none()).count();
            let whole = said > 0 && degree.is_multiple_of(said) && (open > 0 || degree == said);
            if !whole || open > 1 {
                let expected = format!(
                    "numbers of members of {word} whose product is its degree, {degree}; one entry \
                     may omit its number"
                );
                return Err(invalid_mapping_error(place, expected));
            }
            left.insert(*axis, (degree / said) as u32);
        }
        let known = place.iter().map(|stretch| match stretch.along {
            MachineDimensionRef::Index(dimension) => Ok(ResolvedAxisPartMapping {
                axis: stretch.axis,
                members: stretch.members.unwrap_or(left[&stretch.axis]),
                dimension,
            }),
            MachineDimensionRef::Name(_) => {
                let expected =
                    "indices of dimensions, innermost 0; names of dimensions need a machine";
                Err(invalid_mapping_error(place, expected.to_owned()))
            }
        });
        known.collect()
    }

    /// Returns the rank at each position of `order`, after `place` has placed the axes. The list is empty if rank r is
    /// at position r.
    pub fn ranks_by_order_position(&self) -> Result<Vec<u32>, PatternOptionError> {
        if !self.ranks.is_empty() {
            let expected = "no `place` together with `ranks`, because both set the order of ranks";
            return Err(invalid_mapping_error(&self.place, expected.to_owned()));
        }
        let stretches = self.resolve_axis_mappings(&self.place)?;
        // Distance in ranks between neighbours along each mapping: the product of the numbers of
        // members of all inner mappings.
        let apart: Vec<u32> = stretches
            .iter()
            .enumerate()
            .map(|(i, own)| {
                let inside = stretches
                    .iter()
                    .enumerate()
                    .filter(|(j, other)| (other.dimension, *j) < (own.dimension, i));
                inside.map(|(_, other)| other.members).product()
            })
            .collect();
        let ranks = self.tensor * self.weight_replicas_per_stage() * self.pipeline;
        let identity = ParallelismPlan {
            ranks: Vec::new(),
            ..self.clone()
        };
        let positions = super::AllRankCoordinatesAndGroups::new(&identity);
        let rank = |place: TensorDataStageCoordinates| {
            let mut rest = [place.tensor, place.data, place.stage];
            let along = stretches.iter().zip(&apart).map(|(stretch, apart)| {
                let index = &mut rest[stretch.axis as usize];
                let own = *index % stretch.members;
                *index /= stretch.members;
                own * apart
            });
            along.sum::<u32>()
        };
        let at: Vec<u32> = (0..ranks)
            .map(|at| rank(positions.coordinates_of_rank(at)))
            .collect();
        let moved = at.iter().zip(0..).any(|(rank, position)| *rank != position);
        Ok(if moved { at } else { Vec::new() })
    }
}

#[cfg(test)]
mod tests;
