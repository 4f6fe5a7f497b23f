//! For all-to-alls with unequal parts, finds in the members' traces the bytes that each pair exchanges.
//!
//! The sender's trace takes precedence over the receiver's. Both may lack the size, for example because neither rank
//! has a trace. The pair then exchanges an equal part of the collective's bytes. The part that a member keeps for
//! itself is not transferred.

use super::error::ReplayRefusal;
use super::plan::{PlacedCommunicationGroup, ReplayPlan, group_text};
use chakram_base::setting::SettingKey;
use chakram_hardware::collective::PairBytesByPhase;
use chakram_trace::graph::{Graph, OneMemberAlltoallPeerBytes};
use chakram_trace::matching::MemberCalls;
use chakram_trace::workload::Workload;

/// Maximum number of members. The limit bounds the table, which has an entry for every pair.
const MOST_MEMBERS: usize = 1 << 13;

/// Finds the bytes that each pair of members exchanges when `group` runs all-to-alls with unequal parts.
pub(super) fn gather_split_sizes(
    plan: &mut ReplayPlan,
    workload: &Workload,
    group: usize,
    callers: &[MemberCalls<'_>],
) -> Result<(), ReplayRefusal> {
    let graph_of = |caller: &MemberCalls<'_>| -> &Graph {
        workload.graph_of(&workload.instances()[caller.rank as usize])
    };
    // Fast path: skip groups without unequal parts.
    if callers
        .iter()
        .all(|caller| graph_of(caller).has_only_equal_splits())
    {
        return Ok(());
    }
    for k in 0..plan.groups[group].calls.len() {
        let of = &plan.groups[group];
        let stated = callers.iter().filter_map(|caller| {
            let (_, call) = caller.call_at(k)?;
            let graph = graph_of(caller);
            let splits = graph.splits_of_call(call)?;
            let rank = workload.instances()[caller.rank as usize].rank;
            let place = of.members.iter().position(|&member| member == rank)?;
            Some((
                place,
                splits,
                graph.id(graph.collective_calls()[call as usize].node),
            ))
        });
        let stated: Vec<OneMemberStatedSplitSizes<'_>> = stated.collect();
        if stated.is_empty() {
            continue;
        }
        let equal = of.calls[k].buffer / of.members.len() as u64;
        let table = build_split_byte_table(of, equal, &stated)?;
        let sizes = PairBytesByPhase::new(&of.extent, &table, equal);
        let Some(sizes) = sizes else { continue };
        let known = plan.splits.iter().position(|known| *known == sizes);
        let number = known.unwrap_or_else(|| {
            plan.splits.push(sizes);
            plan.splits.len() - 1
        });
        plan.groups[group].splits.insert(k as u32, number as u32);
    }
    Ok(())
}

/// A member's position, the sizes that its trace gives, and the id of its node.
type OneMemberStatedSplitSizes<'a> = (usize, &'a OneMemberAlltoallPeerBytes, u64);

/// Returns the bytes between each pair of positions, row by row. `equal` is the size of a part for which neither member
/// states one.
fn build_split_byte_table(
    group: &PlacedCommunicationGroup,
    equal: u64,
    stated: &[OneMemberStatedSplitSizes<'_>],
) -> Result<Vec<u64>, ReplayRefusal> {
    let n = group.members.len();
    if n > MOST_MEMBERS {
        return Err(ReplayRefusal::new(
            format!(
                "an all-to-all has unequal parts in the {}, which has more than {MOST_MEMBERS} members",
                group_text(group)
            ),
            "remove `send_bytes` and `receive_bytes`, so that parts are equal",
        ));
    }
    let at = |from: usize, to: usize| {
        let position = |member: usize| group.extent.position_of[member].index();
        position(from) * n + position(to)
    };
    let mut bytes = vec![None; n * n];
    for &(place, splits, node) in stated {
        for (name, list) in [
            ("send_bytes", &splits.send),
            ("receive_bytes", &splits.receive),
        ] {
            if !list.is_empty() && list.len() != n {
                return Err(ReplayRefusal::new(
                    format!(
                        "node {node} of rank {} states `{name}` of {} members, but the {} has {n}",
                        group.members[place].0,
                        list.len(),
                        group_text(group)
                    ),
                    format!(
                        "replay as many ranks as were captured ({}), write the bytes for each member, \
                         or remove the attribute, so that parts are equal",
                        SettingKey::Ranks
                    ),
                ));
            }
        }
        for (other, &sent) in splits.send.iter().enumerate() {
            bytes[at(place, other)] = Some(sent);
        }
    }
    for &(place, splits, _) in stated {
        for (other, &received) in splits.receive.iter().enumerate() {
            // Do not replace a size that the sender states.
            bytes[at(other, place)].get_or_insert(received);
        }
    }
    Ok(bytes
        .into_iter()
        .map(|known| known.unwrap_or(equal))
        .collect())
}
