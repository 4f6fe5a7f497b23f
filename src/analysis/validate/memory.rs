//! Checks that in-switch accesses are the same on all ranks. These are loads whose data switches gather, and stores
//! whose data switches reduce.

use super::communication::InSwitchMemoryAccess;
use super::defects::{Defect, DefectLocationInFile, DefectLog};
use super::kind::DefectKind;
use super::ranks;
use super::trace::TraceDefectsAndDigest;
use chakram_trace::matching::find_first_differing_entries;

/// Compares each rank's in-switch accesses with those of the first rank that has any. `missing` contains the ranks
/// without a trace.
pub(super) fn compare_switch_accesses_with_first_rank(
    members: &[(u32, &TraceDefectsAndDigest)],
    missing: &[u32],
    findings: &mut DefectLog,
) {
    let mut whole = members.iter().filter(|(_, trace)| trace.facts.whole);
    let Some(&(first, trace)) = whole.find(|(_, trace)| !trace.facts.accesses.is_empty()) else {
        return;
    };
    let of = |trace: &TraceDefectsAndDigest, access: Option<&InSwitchMemoryAccess>| match access {
        Some(access) => (
            trace.facts.location_of_node(&access.node),
            format!(
                "{} of {} bytes at {}",
                if access.store { "store" } else { "load" },
                access.node.bytes,
                trace.facts.location_of_node(&access.node)
            ),
        ),
        None => (DefectLocationInFile::default(), "no further one".to_owned()),
    };
    let own = &trace.facts.accesses;
    if !missing.is_empty() {
        let (site, _) = of(trace, own.first());
        let found = format!(
            "switches gather and reduce for all ranks, and ranks {} have no trace",
            ranks::format_ranks(missing)
        );
        findings.push_and_count_for_rank(
            Defect::new(DefectKind::InSwitch, site, found).set_defect_rank(first),
        );
    }
    let what = |access: &InSwitchMemoryAccess| (access.store, access.node.bytes);
    for &(rank, other) in members {
        // Skip the first rank itself, and ranks that share its trace.
        if std::ptr::eq(trace, other) || !other.facts.whole {
            continue;
        }
        let theirs = &other.facts.accesses;
        let difference =
            find_first_differing_entries(own.iter().map(what), theirs.iter().map(what));
        let Some((k, ..)) = difference else {
            continue;
        };
        let (against, there) = of(trace, own.get(k));
        let (site, here) = of(other, theirs.get(k));
        let found = format!(
            "in-switch access {k} (counted from 0): rank {first} has {there}, but rank {rank} has {here}"
        );
        findings.push_and_count_for_rank(Defect {
            against: Some((first, against)),
            ..Defect::new(DefectKind::InSwitch, site, found).set_defect_rank(rank)
        });
    }
}
