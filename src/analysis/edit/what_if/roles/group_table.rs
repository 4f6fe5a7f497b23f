//! Group names of captured and added ranks.

use super::CapturedRank;
use super::grid::StridedRankGrid;
use chakram_trace::format::groups::DeclaredGroups;
use chakram_trace::format::{TraceError, escape_and_shorten_name};
use chakram_trace::workload::format_shortened_list;
use std::collections::{BTreeMap, BTreeSet};

/// Groups of captured ranks, and names for the groups of added ranks.
pub(super) struct CapturedAndAddedGroupNames<'g> {
    captured: &'g [CapturedRank],
    pub(super) declared: DeclaredGroups,
    /// For each list of members, the names of the groups with these members.
    names: BTreeMap<Vec<u32>, BTreeSet<String>>,
    /// Names that denote different groups in different traces.
    ambiguous: BTreeSet<String>,
    added: BTreeMap<(Vec<u32>, usize), String>,
    next: u64,
}

impl<'g> CapturedAndAddedGroupNames<'g> {
    pub(super) fn new(captured: &'g [CapturedRank], declared: &DeclaredGroups) -> Self {
        let mut this = Self {
            captured,
            declared: declared.clone(),
            names: BTreeMap::new(),
            ambiguous: BTreeSet::new(),
            added: BTreeMap::new(),
            next: 1,
        };
        let mut seen: BTreeMap<&String, &Vec<u32>> = BTreeMap::new();
        for (name, members) in declared
            .iter()
            .chain(captured.iter().flat_map(|one| &one.own))
        {
            if seen
                .insert(name, members)
                .is_some_and(|before| before != members)
            {
                this.ambiguous.insert(name.clone());
            }
            this.names
                .entry(members.clone())
                .or_default()
                .insert(name.clone());
            this.next = this.next.max(
                name.parse::<u64>()
                    .map_or(1, |number| number.saturating_add(1)),
            );
        }
        this
    }

    /// In the first grid, the captured rank `from` uses the group `name`. Returns the name and members of the
    /// corresponding group of rank `to` in the second grid.
    pub(super) fn find_group_of_corresponding_rank(
        &mut self,
        [grid, target]: [&StridedRankGrid; 2],
        name: &str,
        members: &[u32],
        from: u32,
        to: u32,
    ) -> Result<(String, Vec<u32>), TraceError> {
        if members.is_empty() {
            return Ok((name.to_owned(), Vec::new()));
        }
        let Some(moved) = grid.corresponding_members(members, from, to, target) else {
            return Err(crate::edit::what_if::refuse_edit(
                format!(
                    "group `{}` of rank {from} cannot be inferred for rank {to}: ranks {} are not a sub-grid",
                    escape_and_shorten_name(name),
                    format_shortened_list(members.iter().copied())
                ),
                "capture all ranks of such groups",
            ));
        };
        if moved == members {
            return Ok((name.to_owned(), moved));
        }
        let same = self.names.get(members).into_iter().flatten();
        let index = same.take_while(|known| *known != name).count();
        if let Some(known) = self
            .names
            .get(&moved)
            .and_then(|names| names.iter().nth(index))
        {
            return Ok((known.clone(), moved));
        }
        if self.ambiguous.contains(name) && !self.declared.contains_key(name) {
            return Ok((name.to_owned(), moved));
        }
        let key = (moved.clone(), index);
        let next = &mut self.next;
        let new = self.added.entry(key).or_insert_with(|| {
            let number = *next;
            *next += 1;
            match name.parse::<u64>() {
                Ok(_) => number.to_string(),
                Err(_) => format!("{name}.{number}"),
            }
        });
        Ok((new.clone(), moved))
    }

    /// Returns the members of the group `name`, which a captured rank uses. Also returns a flag that is true if the
    /// group is declared outside the traces.
    pub(super) fn group_members_with_declared_flag(
        &self,
        captured: usize,
        name: &str,
    ) -> Option<(Vec<u32>, bool)> {
        if let Some(members) = self.declared.get(name) {
            return Some((members.clone(), true));
        }
        Some((self.captured[captured].own.get(name)?.clone(), false))
    }
}
