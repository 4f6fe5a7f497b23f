//! Determines the ranks of the groups that traces name.

use super::ValidateOptions;
use super::defects::{Defect, DefectLocationInFile, DefectLog};
use super::kind::DefectKind;
use super::ranks;
use super::trace::TraceDefectsAndDigest;
use chakram_base::setting::SettingKey;
use chakram_trace::format::escape_and_shorten_name;
use std::collections::BTreeMap;

/// Ranks that take part in the same collectives.
#[derive(Debug)]
pub(super) struct ResolvedGroupAndCallers {
    /// Name of the group in traces; `None` for the group of all ranks, which has no name.
    pub name: Option<String>,
    /// Member ranks, in the order of the group.
    pub members: Vec<u32>,
    /// Mask of the participating dimensions, if the machine is unknown; in this case, the actual members are unknown
    /// too.
    pub partial: Option<u32>,
    /// Members that use the group and have complete traces. Each entry has the index of the member's trace, and those
    /// of the trace's slots that refer to the group.
    pub callers: Vec<(usize, Vec<u32>)>,
    sorted: bool,
}

impl ResolvedGroupAndCallers {
    /// Formats the group, as in `group of ranks 0-7` or ``group `tp` of ranks 0, 1``.
    pub fn describe_group(&self) -> String {
        let members = ranks::format_ranks(&self.members);
        match &self.name {
            None => format!("group of ranks {members}"),
            Some(name) => format!(
                "group `{}` of ranks {members}",
                escape_and_shorten_name(name)
            ),
        }
    }

    /// Returns true if `rank` is a member.
    pub fn has_rank(&self, rank: u32) -> bool {
        if self.sorted {
            self.members.binary_search(&rank).is_ok()
        } else {
            self.members.contains(&rank)
        }
    }
}

/// Index of the group that contains all ranks.
const WORLD: usize = 0;

/// Groups resolved so far. As in a replay, a group is identified by its name and members, so groups with the same name
/// but different members are different.
struct NameAndMembersGroupInterner<'a> {
    names: Vec<Option<&'a str>>,
    members: Vec<Vec<u32>>,
    by_name: BTreeMap<&'a str, Vec<usize>>,
}

impl<'a> NameAndMembersGroupInterner<'a> {
    fn new(ranks: u32) -> Self {
        Self {
            names: vec![None],
            members: vec![(0..ranks).collect()],
            by_name: BTreeMap::new(),
        }
    }

    /// Returns the ranks of a declared group; an empty list means all ranks.
    fn members_or_all_ranks<'m>(&'m self, members: &'m [u32]) -> &'m [u32] {
        if members.is_empty() {
            &self.members[WORLD]
        } else {
            members
        }
    }

    fn intern_group(
        &mut self,
        name: &'a str,
        members: &'a [u32],
        findings: &mut DefectLog,
    ) -> usize {
        let members = self.members_or_all_ranks(members);
        let mut alike = self.by_name.get(name).into_iter().flatten();
        if let Some(&known) = alike.find(|&&known| self.members[known] == members) {
            return known;
        }
        let mut sorted = members.to_vec();
        sorted.sort_unstable();
        for pair in sorted.chunk_by(|a, b| a == b).filter(|run| run.len() > 1) {
            let found = format!(
                "group `{}` names rank {} {} times",
                escape_and_shorten_name(name),
                pair[0],
                pair.len()
            );
            findings.push_and_count_for_rank(Defect::new(
                DefectKind::MemberTwice,
                DefectLocationInFile::default(),
                found,
            ));
        }
        let members = members.to_vec();
        let new = self.members.len();
        self.members.push(members);
        self.names.push(Some(name));
        self.by_name.entry(name).or_default().push(new);
        new
    }
}

/// A rank's coordinates in the dimensions that a mask leaves out. Ranks with different coordinates are in different
/// groups.
type CoordinatesOutsideMask = Vec<(usize, u32)>;

/// Stands in for the dimension if the machine is unknown.
const UNKNOWN: usize = usize::MAX;

/// Returns the groups that `members` (ranks in ascending order, with their traces) use in a job of `ranks` ranks.
pub(super) fn resolve_groups_and_callers(
    members: &[(u32, &TraceDefectsAndDigest)],
    ranks: u32,
    options: &ValidateOptions,
    findings: &mut DefectLog,
) -> Vec<ResolvedGroupAndCallers> {
    report_redeclared_groups(members, options, findings);
    let mut groups = NameAndMembersGroupInterner::new(ranks);
    // In traces, the name 0 means all ranks, so a declared group with this name must contain all ranks.
    let zero = options.declared.get("0");
    if let Some(zero) =
        zero.filter(|zero| groups.members_or_all_ranks(zero) != groups.members[WORLD])
    {
        let found = format!(
            "group `0` is declared as ranks {}",
            ranks::format_ranks(zero)
        );
        findings.push_and_count_for_rank(Defect::new(
            DefectKind::GroupZero,
            DefectLocationInFile::default(),
            found,
        ));
    }
    let mut parties = GroupResolver::default();
    for (index, &(rank, trace)) in members.iter().enumerate() {
        let facts = &trace.facts;
        for (slot, named) in (0..).zip(&facts.slots) {
            let mut wrong = |kind, found: String| {
                let first = facts.calls_of.calls_of_member(rank, [slot]).call_at(0);
                let site =
                    first.map(|(_, call)| facts.location_of_node(&facts.calls[call as usize].node));
                findings.push_and_count_for_rank(
                    Defect::new(kind, site.unwrap_or_default(), found).set_defect_rank(rank),
                );
            };
            let group = match &named.name {
                None => WORLD,
                Some(name) => {
                    let own = || facts.declared.get(name);
                    let Some(declared) = options.declared.get(name).or_else(own) else {
                        wrong(
                            DefectKind::Undeclared,
                            format!(
                                "the node's group `{}` is not declared",
                                escape_and_shorten_name(name)
                            ),
                        );
                        continue;
                    };
                    if !declared.is_empty() && !declared.contains(&rank) {
                        let found = format!(
                            "the rank is not a member of the node's group `{}`, which has ranks {}",
                            escape_and_shorten_name(name),
                            ranks::format_ranks(declared)
                        );
                        wrong(DefectKind::NotMember, found);
                        continue;
                    }
                    groups.intern_group(name, declared, findings)
                }
            };
            // Skip a rank beyond the job's size; it was reported when the size was determined.
            if group == WORLD && rank >= ranks {
                continue;
            }
            // An incomplete trace may lack calls, so do not compare it with other traces.
            if facts.whole {
                let place = (index, rank, slot);
                let of = (group, groups.names[group], &groups.members[group][..]);
                parties.add_rank_slot_to_group(place, of, named.dimensions, options);
            }
        }
    }
    parties.list
}

#[derive(Default)]
struct GroupResolver {
    list: Vec<ResolvedGroupAndCallers>,
    known: BTreeMap<(usize, CoordinatesOutsideMask), usize>,
}

impl GroupResolver {
    /// Adds a slot of a rank. The first tuple contains the trace's index, the rank and the slot; the second tuple
    /// contains the index, name and members of the slot's group.
    fn add_rank_slot_to_group(
        &mut self,
        (index, rank, slot): (usize, u32, u32),
        (group, name, all): (usize, Option<&str>, &[u32]),
        mask: Option<u32>,
        options: &ValidateOptions,
    ) {
        let (coordinates, partial) = match (mask, &options.dimensions) {
            (None, _) => (Vec::new(), None),
            // If the machine is unknown, assume that equal masks mean the same ranks.
            (Some(mask), None) => (vec![(UNKNOWN, mask)], Some(mask)),
            (Some(mask), Some(sizes)) => (coordinates_outside_mask(rank, mask, sizes), None),
        };
        let list = &mut self.list;
        let mut party = |members: Vec<u32>| {
            list.push(ResolvedGroupAndCallers {
                name: name.map(str::to_owned),
                sorted: members.is_sorted(),
                members,
                partial,
                callers: Vec::new(),
            });
            list.len() - 1
        };
        let key = (group, coordinates);
        let found = match self.known.get(&key) {
            Some(&found) => found,
            None => {
                let same = |other: &&u32| match (mask, &options.dimensions) {
                    (Some(mask), Some(sizes)) => {
                        has_same_coordinates_outside_mask(&key.1, **other, mask, sizes)
                    }
                    _ => true,
                };
                let members: Vec<u32> = all.iter().filter(same).copied().collect();
                // A mask that excludes no rank means the whole group.
                let whole = members.len() == all.len() && partial.is_none();
                let new = if whole {
                    *self
                        .known
                        .entry((group, Vec::new()))
                        .or_insert_with(|| party(members))
                } else {
                    party(members)
                };
                self.known.insert(key, new);
                new
            }
        };
        let callers = &mut self.list[found].callers;
        match callers.last_mut() {
            Some((last, slots)) if *last == index => slots.push(slot),
            _ => callers.push((index, vec![slot])),
        }
    }
}

/// Returns the coordinates of `rank` in all dimensions that `mask` leaves out.
fn coordinates_outside_mask(rank: u32, mask: u32, sizes: &[u32]) -> CoordinatesOutsideMask {
    let mut rest = rank;
    let mut coordinates = Vec::new();
    for (dimension, &size) in sizes.iter().enumerate() {
        let size = size.max(1);
        // A dimension of size 1 separates no ranks, so ignore it; otherwise, different masks could stand for the same
        // ranks.
        if size > 1 && (dimension >= 32 || mask >> dimension & 1 == 0) {
            coordinates.push((dimension, rest % size));
        }
        rest /= size;
    }
    coordinates
}

fn has_same_coordinates_outside_mask(
    known: &CoordinatesOutsideMask,
    rank: u32,
    mask: u32,
    sizes: &[u32],
) -> bool {
    coordinates_outside_mask(rank, mask, sizes) == *known
}

/// A declared group's members, and the rank that declares it; `None` if the user declared it.
type GroupMembersAndDeclarer<'a> = (&'a [u32], Option<u32>);

/// Reports groups that several ranks declare with different members, if these lists of members share a rank.
fn report_redeclared_groups(
    members: &[(u32, &TraceDefectsAndDigest)],
    options: &ValidateOptions,
    findings: &mut DefectLog,
) {
    let mut known: BTreeMap<&str, Vec<GroupMembersAndDeclarer<'_>>> = BTreeMap::new();
    for (name, ranks) in &options.declared {
        known.insert(name, vec![(ranks, None)]);
    }
    for &(rank, trace) in members {
        for (name, ranks) in &trace.facts.declared {
            let variants = known.entry(name).or_default();
            if variants.iter().any(|(other, _)| *other == &ranks[..]) {
                continue;
            }
            let shared = variants
                .iter()
                .find(|(other, _)| have_common_rank(other, ranks));
            if let Some((other, by)) = shared {
                let by = by.map_or_else(
                    || SettingKey::Groups.to_string(),
                    |rank| format!("rank {rank}"),
                );
                let found = format!(
                    "group `{}` is ranks {}, but {by} states ranks {}",
                    escape_and_shorten_name(name),
                    ranks::format_ranks(ranks),
                    ranks::format_ranks(other)
                );
                findings.push_and_count_for_rank(
                    Defect::new(
                        DefectKind::Redeclared,
                        DefectLocationInFile::default(),
                        found,
                    )
                    .set_defect_rank(rank),
                );
            }
            variants.push((ranks, Some(rank)));
        }
    }
}

/// Returns true if two groups have a rank in common; an empty list means all ranks.
fn have_common_rank(a: &[u32], b: &[u32]) -> bool {
    let mut sorted = a.to_vec();
    sorted.sort_unstable();
    a.is_empty() || b.is_empty() || b.iter().any(|rank| sorted.binary_search(rank).is_ok())
}
