//! A replay that is settled and has not begun: to run, and to report from.

use super::host_launches;
use super::plan::{CommTiming, NONE, PricingCoverage, ReplayOptions, ReplayPlan};
use super::{Engine, ReplayError, ReplayOutcome, ReplayRefusal};
use crate::collective::{
    AlgorithmDescriber, CollectiveBackend, CustomCollective, NativeBackend, ScriptExecutor,
};
use crate::compute::HostTiming;
use crate::group::GroupExtent;
use crate::ids::{GroupId, NodeIndex, Npu, Rank};
use crate::machine::Machine;
use crate::network::{
    ContentionFreeNetwork, LinkNetwork, NetworkBackend, NetworkKind, PortNetwork,
};
use crate::report::Observer;
use crate::trace::CollectiveKind;
use crate::workload::Workload;

/// A group as the replay used it.
#[derive(Clone, Debug)]
pub struct GroupView<'a> {
    /// The workload's group.
    pub id: GroupId,
    /// The machine's dimensions that take part, as a mask, if not all.
    pub dimensions: Option<u32>,
    /// The members.
    pub members: &'a [Rank],
    /// Number of members that have a trace.
    pub present: u32,
    /// Their placement on the machine.
    pub extent: &'a GroupExtent,
}

/// The backend of `machine` for collectives without a `custom` algorithm.
fn native<'a>(
    machine: &'a Machine,
    custom: &'a [CustomCollective],
    measured: bool,
) -> NativeBackend<'a> {
    NativeBackend {
        algorithms: machine.algorithms(),
        topology: machine.topology(),
        pipeline: machine.pipeline(),
        custom,
        curves: if measured {
            machine.collective_curves()
        } else {
            &[]
        },
        protocols: if measured {
            machine.collective_protocols()
        } else {
            &[]
        },
        players: ScriptExecutor::default(),
    }
}

/// Everything that was settled before the run, to run from and to report from.
#[derive(Debug)]
pub struct CompiledReplay<'a> {
    /// The workload as it was given.
    given: &'a Workload,
    /// The workload with a host that launches its nodes, if there is one.
    launched: Option<Workload>,
    pub(super) machine: &'a Machine,
    pub(super) plan: ReplayPlan,
    pub(super) stepwise: bool,
    pub(super) comm: CommTiming,
    pub(super) host: HostTiming,
    network: NetworkKind,
    custom: Vec<CustomCollective>,
    measured_collectives: bool,
    /// [`CollectiveBackend::IN_ORDER`] of the backend that it was compiled for.
    in_order: bool,
    describer: AlgorithmDescriber,
}

impl<'a> CompiledReplay<'a> {
    /// Places ranks, prices nodes and matches collectives and messages.
    ///
    /// Refuses what cannot run: more ranks than NPUs, ranks that disagree on the collectives of a
    /// group, messages without a partner, memory that does not exist or hold, and communication that is
    /// to last as recorded where nothing was.
    pub fn new(
        workload: &'a Workload,
        machine: &'a Machine,
        options: &ReplayOptions,
    ) -> Result<Self, ReplayRefusal> {
        Self::with_backend(
            workload,
            machine,
            options,
            &native(machine, &options.custom, options.measured_collectives),
        )
    }

    /// As [`Self::new`], for collectives of another backend, with which it has to be run.
    pub fn with_backend<M: CollectiveBackend>(
        workload: &'a Workload,
        machine: &'a Machine,
        options: &ReplayOptions,
        backend: &M,
    ) -> Result<Self, ReplayRefusal> {
        let launched = host_launches::launched(workload, machine, options.launch);
        let planned = launched.as_ref().unwrap_or(workload);
        Ok(Self {
            plan: ReplayPlan::new(planned, machine, options, backend)?,
            given: workload,
            launched,
            machine,
            stepwise: options.stepwise,
            comm: options.comm,
            host: options.host,
            network: options.network.unwrap_or(machine.network()),
            custom: options.custom.clone(),
            measured_collectives: options.measured_collectives,
            in_order: M::IN_ORDER,
            describer: backend.describer(),
        })
    }

    /// Refuses a replay in which most kernels would take no time, because nothing is known of them.
    pub fn check_prices(&self) -> Result<(), ReplayRefusal> {
        self.plan.mostly_free.clone().map_or(Ok(()), Err)
    }

    /// The share of communication and kernels that has a price, and its sources.
    pub fn basis(&self) -> PricingCoverage {
        self.plan.basis
    }

    /// The source of durations of collectives and messages.
    pub fn comm(&self) -> CommTiming {
        self.comm
    }

    /// The model of the network that [`Self::run`] takes.
    pub fn network(&self) -> NetworkKind {
        self.network
    }

    /// The groups, as [`CollectiveRecord::group`](crate::report::CollectiveRecord::group) numbers them.
    pub fn groups(&self) -> impl Iterator<Item = GroupView<'_>> {
        self.plan.groups.iter().map(|group| GroupView {
            id: group.id,
            dimensions: group.dimensions,
            members: &group.members,
            present: group.present,
            extent: &group.extent,
        })
    }

    /// Names, for people, the algorithms of a collective of a group with a buffer of `bytes`.
    pub fn algorithms(&self, kind: CollectiveKind, group: &GroupView<'_>, bytes: u64) -> String {
        let topology = self.machine.topology();
        self.describer.say(kind, group.extent, topology, bytes)
    }

    /// The NPU on which `rank` sits.
    pub fn npu(&self, rank: Rank) -> Npu {
        self.plan.npu_of[rank.index()]
    }

    /// The group behind a collective node of the instance numbered `instance`.
    pub fn group_of(&self, instance: u32, node: NodeIndex) -> u32 {
        let of = &self.workload().instances()[instance as usize];
        let call = self.workload().graph(of).call(node);
        self.plan.instances[instance as usize].slots[call.group as usize].group
    }

    /// The group behind a collective node, and the index of its call among those of the group, from 0.
    pub fn call_of(&self, instance: u32, node: NodeIndex) -> (u32, u32) {
        let of = &self.workload().instances()[instance as usize];
        let graph = self.workload().graph(of);
        let (call, planned) = (graph.call(node), &self.plan.instances[instance as usize]);
        let sequence = planned.sequences.as_ref();
        let sequence = sequence.map_or(call.sequence, |all| all[graph.call_index(node)]);
        (planned.slots[call.group as usize].group, sequence)
    }

    /// The lane of its NPU that a node holds while it runs, if it holds one.
    pub fn lane_of(&self, instance: u32, node: NodeIndex) -> Option<u32> {
        let of = &self.workload().instances()[instance as usize];
        let planned = &self.plan.instances[instance as usize];
        let lanes = &self.plan.shared[planned.shared as usize].lanes;
        let lane = lanes[self.workload().graph(of).lane(node) as usize];
        (lane != NONE).then_some(lane)
    }

    /// The number that a send and its receive share; `None` when the other end has no trace.
    pub fn pair_of(&self, instance: u32, node: NodeIndex) -> Option<u32> {
        let of = &self.workload().instances()[instance as usize];
        let message = self.workload().graph(of).message_index(node);
        let pair = self.plan.instances[instance as usize].pairs[message];
        (pair != NONE).then_some(pair)
    }

    /// The machine.
    pub fn machine(&self) -> &'a Machine {
        self.machine
    }

    /// The workload, with a host that launches its nodes where [`ReplayOptions::launch`] asks for one.
    pub fn workload(&self) -> &Workload {
        self.launched.as_ref().unwrap_or(self.given)
    }

    /// Runs to the end, watched by `observer`.
    pub fn run<O: Observer>(&self, mut observer: O) -> Result<(ReplayOutcome, O), ReplayError> {
        // The loop is compiled once for all that come this way: a virtual call for what an observer is told.
        let outcome = self.run_inline::<dyn Observer>(&mut observer)?;
        Ok((outcome, observer))
    }

    /// As [`Self::run`], with the loop compiled for this observer: for those of every report.
    pub(crate) fn run_inline<O: Observer + ?Sized>(
        &self,
        observer: &mut O,
    ) -> Result<ReplayOutcome, ReplayError> {
        let topology = self.machine.topology();
        let backend = &mut native(self.machine, &self.custom, self.measured_collectives);
        match self.network {
            NetworkKind::ContentionFree => {
                self.run_with_backend(observer, ContentionFreeNetwork::new(topology), backend)
            }
            NetworkKind::Ports => {
                self.run_with_backend(observer, PortNetwork::new(topology), backend)
            }
            NetworkKind::Links => {
                self.run_with_backend(observer, LinkNetwork::new(topology), backend)
            }
        }
    }

    /// Runs to the end over `network`, with collectives by the `backend` that this was compiled for.
    pub fn run_with_backend<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveBackend>(
        &self,
        observer: &mut O,
        network: N,
        backend: &mut M,
    ) -> Result<ReplayOutcome, ReplayError> {
        assert_eq!(
            self.in_order,
            M::IN_ORDER,
            "another backend than it was prepared for"
        );
        Engine::new(self, observer, network, backend).run()
    }
}
