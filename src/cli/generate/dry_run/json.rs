//! Renders the plan of a dry run as JSON.

use super::group_locations::SameExtentGroups;
use super::{DryRunReport, phase_name};
use chakram_report::document::VersionedDocument;
use chakram_report::stack::SoftwareStackDecisionReport;
use chakram_trace::format::TensorClass;
use chakram_trace::format::work_amounts::CountedAttentionPairs;
use chakram_workloads::generate::training::{PerRankStageTotals, PlanSummary};
use serde::Serialize;
use serde_json::{Map, Value};

/// Renders the plan as JSON.
pub fn render_json(dry: &DryRunReport<'_>) -> String {
    VersionedDocument::new("chakram.plan.1", DryRunPlanDocument::from_report(dry)).to_json_text()
}

#[derive(Serialize)]
struct DryRunPlanDocument<'a> {
    name: &'a str,
    ranks: u32,
    parameters: u64,
    trained_parameters: u64,
    micro_batches: u32,
    flops: f64,
    model_flops: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    attention: Option<CountedAttentionPairs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stack: Option<&'a SoftwareStackDecisionReport>,
    recompute: String,
    bubble: Option<f64>,
    fits: Option<bool>,
    groups: Vec<GroupFamilyDocument<'a>>,
    placement: Option<GroupFamiliesOnMachineDocument<'a>>,
    stages: Vec<StageDocument<'a>>,
}

#[derive(Serialize)]
struct GroupFamilyDocument<'a> {
    family: &'static str,
    count: usize,
    members_of_first: &'a [u32],
}

#[derive(Serialize)]
struct GroupFamiliesOnMachineDocument<'a> {
    machine: &'a str,
    families: Vec<PlacedGroupFamilyDocument<'a>>,
}

#[derive(Serialize)]
struct PlacedGroupFamilyDocument<'a> {
    family: &'static str,
    count: u32,
    regular: bool,
    along: Vec<GroupMemberCountInDimension<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    neighbours: Option<NextMemberLinkCountsDocument>,
}

/// Numbers of links from each member of a group to the next, on a machine of tiles.
#[derive(Serialize)]
struct NextMemberLinkCountsDocument {
    mean_links: f64,
    most_links: u32,
    ways: u32,
    ways_between_dies: u32,
}

#[derive(Serialize)]
struct GroupMemberCountInDimension<'a> {
    dimension: usize,
    name: &'a str,
    size: u32,
    members: u32,
    stride: Option<u32>,
}

#[derive(Serialize)]
struct StageDocument<'a> {
    layers: &'a [[String; 2]],
    parameters: u64,
    trained_parameters: u64,
    nodes: u64,
    flops: f64,
    peak_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    offloaded_bytes: Option<u64>,
    capacity_bytes: Option<u64>,
    fits: Option<bool>,
    bytes_at_peak: Map<String, Value>,
    saved_passes: u64,
    bytes_per_pass: u64,
    communication: Vec<GroupCommunicationRow<'a>>,
}

#[derive(Serialize)]
struct GroupCommunicationRow<'a> {
    kind: &'a str,
    group: &'a str,
    phase: Option<&'static str>,
    calls: u64,
    bytes: f64,
}

impl<'a> DryRunPlanDocument<'a> {
    fn from_report(dry: &'a DryRunReport<'_>) -> Self {
        let DryRunReport { summary, room, .. } = dry;
        let PlanSummary { groups, stages, .. } = summary;
        let placement = dry
            .on
            .as_ref()
            .map(|(machine, all)| GroupFamiliesOnMachineDocument {
                machine,
                families: all
                    .iter()
                    .map(PlacedGroupFamilyDocument::from_location)
                    .collect(),
            });
        let groups = groups.iter().map(|groups| GroupFamilyDocument {
            family: groups.family,
            count: groups.all.len(),
            members_of_first: &groups.all[0],
        });
        let stages = stages.iter().zip(&room.capacities);
        Self {
            name: dry.name,
            ranks: summary.ranks,
            parameters: summary.parameters,
            trained_parameters: summary.trained_parameters,
            micro_batches: summary.micro_batches,
            flops: summary.flops as f64,
            model_flops: summary.model_flops as f64,
            attention: summary.attention,
            stack: dry.stack,
            recompute: match summary.recompute_modules.is_empty() {
                true => summary.recompute.to_string(),
                false => format!("{},{}", summary.recompute, summary.recompute_modules),
            },
            bubble: summary.bubble,
            fits: room
                .is_any_capacity_known()
                .then_some(room.too_large.is_empty()),
            groups: groups.collect(),
            placement,
            stages: stages
                .map(|(one, capacity)| StageDocument::from_summary(one, *capacity))
                .collect(),
        }
    }
}

impl<'a> PlacedGroupFamilyDocument<'a> {
    fn from_location(lies: &'a SameExtentGroups) -> Self {
        let along = lies
            .extent
            .along
            .iter()
            .map(|along| GroupMemberCountInDimension {
                dimension: along.dimension,
                name: &along.name,
                size: along.size,
                members: along.members,
                stride: along.apart,
            });
        Self {
            family: lies.family,
            count: lies.groups,
            regular: lies.extent.regular,
            neighbours: lies.neighbours.map(|hops| NextMemberLinkCountsDocument {
                mean_links: hops.mean_hops(),
                most_links: hops.most,
                ways: hops.ways,
                ways_between_dies: hops.between_dies,
            }),
            along: along.collect(),
        }
    }
}

impl<'a> StageDocument<'a> {
    fn from_summary(stage: &'a PerRankStageTotals, capacity: Option<u64>) -> Self {
        let memory = TensorClass::ALL.iter().zip(stage.memory);
        let communication = stage.communication.iter().map(|sum| GroupCommunicationRow {
            kind: &sum.kind,
            group: sum.family,
            phase: sum.phase.map(|_| phase_name(sum.phase)),
            calls: sum.calls,
            bytes: sum.bytes as f64,
        });
        Self {
            layers: &stage.layers,
            parameters: stage.parameters,
            trained_parameters: stage.trained_parameters,
            nodes: stage.nodes,
            flops: stage.flops as f64,
            peak_bytes: stage.peak,
            offloaded_bytes: (stage.remote > 0).then_some(stage.remote),
            capacity_bytes: capacity,
            fits: capacity.map(|capacity| stage.peak <= capacity),
            bytes_at_peak: memory
                .map(|((_, class), bytes)| ((*class).to_owned(), bytes.into()))
                .collect(),
            saved_passes: stage.stored.0,
            bytes_per_pass: stage.stored.1,
            communication: communication.collect(),
        }
    }
}
