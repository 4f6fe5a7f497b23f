//! Detects groups that straddle domains of the machine, and computes how much time straddling costs.
//!
//! A domain, such as a node or a rack, is the set of NPUs with equal coordinates in the outer dimensions. A group
//! *straddles* if its members are in several domains but would fit into one. In addition, other groups with the same
//! role and size are within one domain, or its members are spread unevenly over domains. This excludes groups that a
//! plan deliberately spreads over domains, such as data parallelism over nodes.

use super::collectives::CollectiveRow;
use super::summary::format_thousands;
use chakram_base::setting::SettingKey;
use chakram_base::units::Span;
use chakram_engine::{CommunicationDurationSource, CompiledReplay, PlacedWorkloadGroup};
use std::collections::BTreeMap;

/// A family of collectives, identified by role, kind and group size.
type CollectiveRoleKindAndSizeKey<'r> =
    (Option<&'r str>, chakram_trace::format::CollectiveKind, u32);

/// Collectives of a family, separated by whether their group is within one domain or in several.
#[derive(Default)]
struct CollectiveRowsByDomainCrossing<'r> {
    inside: Vec<&'r CollectiveRow>,
    across: Vec<&'r CollectiveRow>,
}

/// Returns one warning for each role and size of straddling groups. It states how much longer their collectives take.
pub(super) fn warn_of_slower_straddling_groups(
    rows: &[CollectiveRow],
    prepared: &CompiledReplay<'_>,
) -> Vec<String> {
    let topology = prepared.machine().topology();
    let dimensions = topology.dimensions();
    if prepared.comm_duration_source() != CommunicationDurationSource::Model
        || topology.tile_grid().is_some()
    {
        return Vec::new();
    }
    let groups: Vec<PlacedWorkloadGroup<'_>> = prepared.group_views().collect();
    let mut warnings = Vec::new();
    let mut domain = 1;
    for dimension in &dimensions[..dimensions.len() - 1] {
        domain *= dimension.size;
        let is_across = |row: &CollectiveRow| {
            let npus = &groups[row.group_index as usize].extent.npus;
            let first = npus.first().map(|npu| npu.0 / domain);
            npus.iter().any(|npu| Some(npu.0 / domain) != first)
        };
        let mut families: BTreeMap<
            CollectiveRoleKindAndSizeKey<'_>,
            CollectiveRowsByDomainCrossing<'_>,
        > = BTreeMap::new();
        for row in rows
            .iter()
            .filter(|row| (2..=domain).contains(&row.members))
        {
            let family = families
                .entry((row.role.as_deref(), row.kind, row.members))
                .or_default();
            match is_across(row) {
                true => family.across.push(row),
                false => family.inside.push(row),
            }
        }
        for ((role, kind, members), family) in families {
            let CollectiveRowsByDomainCrossing { inside, mut across } = family;
            across.retain(|row| {
                !inside.is_empty() || !groups[row.group_index as usize].extent.regular
            });
            let Some(example) = across.first() else {
                continue;
            };
            let (count, all) = (across.len(), across.len() + inside.len());
            let role = role.map_or(String::new(), |role| format!("`{role}` "));
            let label = &example.group;
            let mut text = format!(
                "{} of {} {role}groups of {members} ranks are in several domains `{}` of {domain} NPUs, such as {label}: ",
                format_thousands(count as u64),
                format_thousands(all as u64),
                dimension.name,
            );
            let mean = mean_transfer_per_call(&across);
            text += &match mean_transfer_per_call(&inside) {
                Some(within) => {
                    let mean = mean.unwrap_or_default();
                    let calls = across.iter().map(|row| row.tally.calls).max().unwrap_or(0);
                    let more = Span(mean.0.saturating_sub(within.0).saturating_mul(calls));
                    format!(
                        "a call of {kind} takes {mean} there and {within} within one, {more} more over the {calls} calls of a \
                         group"
                    )
                }
                None => format!(
                    "a call of {kind} takes {}, over members that are spread unevenly",
                    mean.unwrap_or_default()
                ),
            };
            text += &format!(
                "; {} places ranks, and `ranks` of the machine's dimension leaves NPUs of each domain free",
                SettingKey::Map
            );
            warnings.push(text);
        }
    }
    warnings
}

/// Returns the mean transfer time per call; `None` if there are no calls.
fn mean_transfer_per_call(rows: &[&CollectiveRow]) -> Option<Span> {
    let calls: u64 = rows.iter().map(|row| row.tally.calls).sum();
    let transfer: u128 = rows
        .iter()
        .map(|row| u128::from(row.tally.transfer.0))
        .sum();
    let mean = transfer.checked_div(calls.into())?;
    Some(Span(u64::try_from(mean).unwrap_or(u64::MAX)))
}
