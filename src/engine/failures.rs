//! Models failures of NPUs and links during a run.
//!
//! A failure takes effect before all other events at the same instant. After the failure, no node on the failed NPU
//! ends. Nor do messages and collectives in which its ranks take part. If the remaining work needs failed parts, the
//! replay is stuck; the error names the failures and the affected work. The network continues without failed links.

use super::collectives::GroupsOfAllLaunchesInFlight;
use super::dataflow::Dataflow;
use super::discipline::RequiredCollectiveBackendTraits;
use super::effects::Effects;
use super::event::{EventClass, PackedEvent};
use super::fabric::Fabric;
use super::ids::InstanceNode;
use super::options::{CommunicationDurationSource, ReplayOptions};
use super::{Engine, Observer, ReplayRefusal};
use chakram_base::ids::{EndpointId, Npu, Rank};
use chakram_base::setting::{EnumeratedSetting, SettingKey};
use chakram_base::units::{Time, format_count_with_noun};
use chakram_hardware::machine::{FailedNpuOrNamedLinks, FailedPartAndTime, Machine};
use chakram_hardware::network::{NetworkBackend, NetworkModelKind};
use chakram_hardware::topology::SwitchingMode;
use chakram_hardware::topology::link_graph::MOST_NPUS;
use chakram_trace::graph::NodeKind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Flag of an instance: the machine has a failed NPU, so the loop must check the end of each of its nodes.
pub(super) const WATCHED: u8 = 64;

/// Effects of one failure on the replay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct EffectsOfOneFailure {
    /// Sentence that names the failed part and the failure time.
    pub failure: String,
    /// Number of directed links taken out of service.
    pub links: u64,
    /// Number of messages in flight that had to take a different route.
    pub rerouted_messages: u64,
    /// Bytes that were in flight on the failed links and were sent again, rounded to the nearest byte.
    pub resent_bytes: u64,
}

/// A planned failure, with the NPU or the links that it takes out of service.
#[derive(Clone, Debug)]
pub(super) struct PlannedFailure {
    given: FailedPartAndTime,
    part: FailedNpuOrLinks,
}

#[derive(Clone, Debug)]
enum FailedNpuOrLinks {
    Npu(Npu),
    Links(Vec<u32>),
}

/// Resolves failing parts to NPUs and links: first the parts that the file of `machine` lists, then those in `options`.
/// `as_issued` is true if the run uses ASTRA-sim's event order. `measured` is true if collectives take measured times.
///
/// # Errors
///
/// Fails if a part does not exist, or if the communication model does not support failures.
pub(super) fn resolve_failures_to_npus_and_links(
    machine: &Machine,
    (options, network): (&ReplayOptions, NetworkModelKind),
    (as_issued, measured): (bool, bool),
) -> Result<Vec<PlannedFailure>, ReplayRefusal> {
    let given = machine.parts_that_fail().iter().chain(&options.failures);
    let planned = given.map(|given| {
        let part = if as_issued {
            Err((
                "replays in ASTRA-sim's order do not support failures".to_owned(),
                "a replay in chakram's own order, or no failures".to_owned(),
            ))
        } else if options.aggregate {
            Err((
                format!(
                    "failures change single ranks, but with {} one rank runs for several",
                    SettingKey::Aggregate
                ),
                "leave one of the two out".to_owned(),
            ))
        } else {
            match &given.part {
                FailedNpuOrNamedLinks::Npu(npu) => check_failing_npu_exists(machine, *npu),
                FailedNpuOrNamedLinks::Link(ends) => {
                    check_model_supports_link_failures(machine, (options, network), measured)
                        .and_then(|()| find_links_between_ends(machine, ends))
                }
            }
        };
        let refuse =
            |(found, hint)| ReplayRefusal::new(format!("failure of {given}: {found}"), hint);
        Ok(PlannedFailure {
            given: given.clone(),
            part: part.map_err(refuse)?,
        })
    });
    planned.collect()
}

/// A sentence that states the problem, and a hint.
type FindingAndHint = (String, String);

fn check_failing_npu_exists(
    machine: &Machine,
    npu: Npu,
) -> Result<FailedNpuOrLinks, FindingAndHint> {
    let npus = machine.topology().npu_count();
    if npu.0 < npus {
        return Ok(FailedNpuOrLinks::Npu(npu));
    }
    Err((
        format!(
            "the machine has {}",
            format_count_with_noun(npus.into(), "NPU")
        ),
        format!("an NPU from 0 to {}", npus - 1),
    ))
}

fn find_links_between_ends(
    machine: &Machine,
    ends: &str,
) -> Result<FailedNpuOrLinks, FindingAndHint> {
    let topology = machine.topology();
    let Some(graph) = topology.explicit_or_built_link_graph() else {
        return Err((
            format!(
                "links cannot fail on a machine of {} NPUs",
                topology.npu_count()
            ),
            format!("a machine of at most {MOST_NPUS} NPUs"),
        ));
    };
    let links = graph
        .links_between_named_ends(ends)
        .map(FailedNpuOrLinks::Links);
    links.map_err(|found| {
        (
            found,
            "two vertices that a link joins, such as `0-nvlink switch at 0`".to_owned(),
        )
    })
}

/// Checks that all communication uses links, and that the network model supports link failures.
fn check_model_supports_link_failures(
    machine: &Machine,
    (options, network): (&ReplayOptions, NetworkModelKind),
    measured: bool,
) -> Result<(), FindingAndHint> {
    let switching = machine.topology().switching_mode();
    if options.comm == CommunicationDurationSource::Model
        && network != NetworkModelKind::FairSharing
    {
        // The words of options have hyphens in all messages.
        let word = |network: NetworkModelKind| network.choice_name().replace('_', "-");
        return Err((
            format!(
                "network model {} sends no message around failed links",
                word(network)
            ),
            SettingKey::Network.format_with_value(word(NetworkModelKind::FairSharing)),
        ));
    }
    let (with, hint) = if options.comm != CommunicationDurationSource::Model {
        (
            SettingKey::Comm.format_with_value(options.comm),
            SettingKey::Comm.format_with_value(CommunicationDurationSource::Model),
        )
    } else if measured {
        (
            SettingKey::Collectives.format_with_value("curves"),
            SettingKey::Collectives.format_with_value("algorithms"),
        )
    } else if !options.changes.collectives.is_empty() {
        let key = SettingKey::Collective.to_string();
        (key.clone(), format!("without {key}"))
    } else if switching != SwitchingMode::IDEAL {
        return Err((
            format!("failures of links are not supported with {switching} switching"),
            "a machine without `switching` in its [network]".to_owned(),
        ));
    } else {
        return Ok(());
    };
    Err((
        format!("with {with} no message crosses links, so no link can fail"),
        hint,
    ))
}

/// Returns true if a planned failure takes links out of service.
pub(super) fn has_link_failures(planned: &[PlannedFailure]) -> bool {
    planned
        .iter()
        .any(|failure| matches!(failure.part, FailedNpuOrLinks::Links(_)))
}

/// Planned failures of a run, and the failures that have occurred.
#[derive(Debug)]
pub(super) struct PlannedAndOccurredFailures<'a> {
    planned: &'a [PlannedFailure],
    /// Each failed NPU, with its first failure.
    npus: BTreeMap<Npu, &'a FailedPartAndTime>,
    outcomes: Vec<EffectsOfOneFailure>,
}

impl<'a> PlannedAndOccurredFailures<'a> {
    /// Creates the state of a run in which no failure has occurred yet.
    pub fn new(planned: &'a [PlannedFailure]) -> Self {
        let outcome = |failure: &PlannedFailure| EffectsOfOneFailure {
            failure: failure.given.to_string(),
            links: match &failure.part {
                FailedNpuOrLinks::Npu(_) => 0,
                FailedNpuOrLinks::Links(links) => links.len() as u64,
            },
            rerouted_messages: 0,
            resent_bytes: 0,
        };
        Self {
            planned,
            npus: BTreeMap::new(),
            outcomes: planned.iter().map(outcome).collect(),
        }
    }

    /// Schedules an event at the time of each failure.
    pub fn schedule_failures(&self, effects: &mut Effects) {
        for (number, failure) in (0..).zip(self.planned) {
            let event = PackedEvent::new(EventClass::Failure, 0, number);
            effects.agenda.push(failure.given.at, event);
        }
    }

    /// Returns true if an NPU has failed.
    pub fn have_stopped_npus(&self) -> bool {
        !self.npus.is_empty()
    }

    /// Returns the effects of each failure, in the order of the plan.
    pub fn failure_outcomes(&self) -> Vec<EffectsOfOneFailure> {
        self.outcomes.clone()
    }

    /// Returns the rank whose failed NPU keeps a node from ending. This is the node's own rank, its message partner, or
    /// a member of its collective. Returns `None` if no failed NPU keeps the node from ending.
    pub fn find_blocking_failed_rank(
        &self,
        flow: &Dataflow<'_>,
        groups: &GroupsOfAllLaunchesInFlight<'_>,
        InstanceNode { instance, node }: InstanceNode,
    ) -> Option<(Rank, &'a FailedPartAndTime)> {
        let running = flow.instance(instance);
        let own = flow.rank_binding_of_instance(instance);
        if let Some(failure) = self.npus.get(&running.npu) {
            return Some((own.rank, failure));
        }
        let plan = flow.launch_plan_of_run_state(running.frame).plan;
        let on_failed = |rank: Rank| {
            let npu = plan.npu_of.get(rank.index())?;
            Some((rank, *self.npus.get(npu)?))
        };
        match running.graph.kind(node) {
            NodeKind::Send | NodeKind::Receive => {
                let index = running.graph.message_index(node);
                let message = &running.graph.messages()[index];
                on_failed(own.peers[message.peer as usize])
            }
            NodeKind::Collective => {
                let (slot, _) = flow.communicator_and_sequence_of_collective(instance, node);
                let members = &groups[slot.group].plan.members;
                members.iter().find_map(|rank| on_failed(*rank))
            }
            _ => None,
        }
    }
}

impl<O: Observer + ?Sized, N: NetworkBackend, M: RequiredCollectiveBackendTraits>
    Engine<'_, O, N, M>
{
    /// Takes the failing part out of service.
    pub(super) fn fail_machine_part(&mut self, now: Time, number: u32) {
        let failure = &self.failures.planned[number as usize];
        match &failure.part {
            FailedNpuOrLinks::Npu(npu) => {
                // If an NPU fails several times, keep its first failure. The flag makes the loop check for failed NPUs
                // whenever a later node ends.
                self.failures.npus.entry(*npu).or_insert(&failure.given);
                self.flow.set_flag_of_all_instances(WATCHED);
            }
            FailedNpuOrLinks::Links(links) => {
                let effect = self.fabric.fail_links(now, links, &mut self.effects);
                let outcome = &mut self.failures.outcomes[number as usize];
                outcome.rerouted_messages = effect.moved.len() as u64;
                outcome.resent_bytes = effect.resent.round() as u64;
            }
        }
    }
}

/// Describes the failures for the error that reports a stuck run.
pub(super) fn describe_failures<N: NetworkBackend>(
    failures: &PlannedAndOccurredFailures<'_>,
    flow: &Dataflow<'_>,
    fabric: &mut Fabric<'_, N>,
) -> Vec<String> {
    let mut lines = Vec::new();
    for (npu, failure) in &failures.npus {
        let ranks = flow
            .running_rank_instances()
            .iter()
            .filter(|running| running.npu == *npu);
        let left: u64 = ranks.map(|running| u64::from(running.left)).sum();
        lines.push(format!(
            "{}: {} on the NPU had not ended, nor the communication with it",
            failure.to_sentence(),
            format_count_with_noun(left, "node")
        ));
    }
    let cut_off = fabric.unreachable_pairs();
    let name = |endpoint: EndpointId| fabric.name_endpoint(endpoint);
    if !cut_off.is_empty() {
        const SHOWN: usize = 4;
        let pairs = cut_off.iter().take(SHOWN);
        let mut pairs: Vec<String> = pairs
            .map(|(from, to)| format!("from {} to {}", name(*from), name(*to)))
            .collect();
        if cut_off.len() > SHOWN {
            pairs.push(format!("{} more", cut_off.len() - SHOWN));
        }
        let failed = failures.planned.iter();
        let failed = failed.filter(|failure| matches!(failure.part, FailedNpuOrLinks::Links(_)));
        let failed: Vec<String> = failed.map(|failure| failure.given.to_sentence()).collect();
        lines.push(format!(
            "{}: no route is left {}",
            failed.join(", "),
            pairs.join(", ")
        ));
    }
    lines
}
