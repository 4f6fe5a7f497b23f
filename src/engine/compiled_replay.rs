//! A replay that is settled and has not begun: to run, and to report from.

use super::coverage::PricingCoverage;
use super::discipline::{CollectiveModel, Discipline};
use super::extensions::Extensions;
use super::feed::{Feed, SingleLaunch};
use super::host_launches::{self, ResolvedPrices};
use super::options::{CommTiming, ReplayOptions};
use super::plan::{InstancePlan, NONE, ReplayPlan, SharedGraphPlan};
use super::processor::ProcessorModel;
use super::{Engine, ReplayError, ReplayOutcome, ReplayRefusal};
use crate::collective::{
    AlgorithmDescriber, CustomCollective, NativeBackend, PeerSizes, ScriptExecutor,
    measured_collective,
};
use crate::compute::HostTiming;
use crate::group::GroupExtent;
use crate::ids::{GroupId, NodeIndex, Npu, Rank};
use crate::machine::Machine;
use crate::network::{
    ContentionFreeNetwork, ExclusiveNetwork, FairSharingNetwork, LinkNetwork, NetworkBackend,
    NetworkKind, PortNetwork,
};
use crate::report::Observer;
use crate::topology::link_graph::MOST_NPUS;
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
pub(super) fn native<'a>(
    machine: &'a Machine,
    custom: &'a [CustomCollective],
    splits: impl Iterator<Item = &'a PeerSizes>,
    prices: &ResolvedPrices,
) -> NativeBackend<'a> {
    NativeBackend {
        algorithms: machine.algorithms(),
        topology: machine.topology(),
        pipeline: machine.pipeline(),
        custom,
        correction: prices.correction,
        curves: if prices.measured_collectives {
            machine.collective_curves()
        } else {
            &[]
        },
        protocols: if prices.measured_collectives {
            machine.collective_protocols()
        } else {
            &[]
        },
        splits: splits.collect(),
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
    pub(super) links: bool,
    pub(super) aggregate: bool,
    pub(super) extensions: Extensions,
    pub(super) comm: CommTiming,
    pub(super) host: HostTiming,
    network: NetworkKind,
    custom: Vec<CustomCollective>,
    prices: ResolvedPrices,
    /// [`Discipline::MATCHES_AS_ISSUED`] of the backend that it was compiled for.
    as_issued: bool,
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
        let prices = host_launches::by_default(workload, machine, options);
        let backend = native(machine, &options.custom, std::iter::empty(), &prices);
        Self::with_prices(workload, machine, options, &backend, prices)
    }

    /// As [`Self::new`], for collectives of another backend, with which it has to be run.
    pub fn with_backend<M: CollectiveModel>(
        workload: &'a Workload,
        machine: &'a Machine,
        options: &ReplayOptions,
        backend: &M,
    ) -> Result<Self, ReplayRefusal> {
        let prices = host_launches::by_default(workload, machine, options);
        Self::with_prices(workload, machine, options, backend, prices)
    }

    /// As [`Self::with_backend`], where it is known how prices are found, which looks at all graphs.
    fn with_prices<M: CollectiveModel>(
        workload: &'a Workload,
        machine: &'a Machine,
        options: &ReplayOptions,
        backend: &M,
        prices: ResolvedPrices,
    ) -> Result<Self, ReplayRefusal> {
        let launched = host_launches::launched(workload, machine, prices);
        let options = &ReplayOptions {
            correction: prices.correction,
            ..options.clone()
        };
        let planned = launched.as_ref().unwrap_or(workload);
        let network = options.network.unwrap_or(machine.network());
        check_links(machine, network, options)?;
        Ok(Self {
            plan: ReplayPlan::new(planned, machine, options, backend)?,
            given: workload,
            launched,
            machine,
            stepwise: options.stepwise || options.links,
            links: options.links && options.comm == CommTiming::Model,
            aggregate: options.aggregate && options.comm == CommTiming::Model,
            extensions: options.extensions.clone(),
            comm: options.comm,
            host: options.host,
            network,
            custom: options.custom.clone(),
            prices,
            as_issued: M::Order::MATCHES_AS_ISSUED,
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

    /// Whether one of several ranks that do the same runs for all.
    pub fn aggregates(&self) -> bool {
        self.aggregate
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

    /// Whether the machine's host launches nodes, which no trace says how long the host took for.
    pub fn is_launched(&self) -> bool {
        self.launched.is_some()
    }

    /// Relative error that the machine's correction leaves, if one holds.
    pub fn corrected_to(&self) -> Option<f64> {
        self.prices.corrected_to
    }

    /// Whether collectives of `kind` in `group` last as measured on such a machine, where nothing disturbs them.
    pub fn is_measured(&self, kind: CollectiveKind, group: &GroupView<'_>) -> bool {
        let custom = |custom: &CustomCollective| custom.applies_to(kind, group.extent.size());
        let curves = self.machine.collective_curves();
        self.prices.measured_collectives
            && !self.custom.iter().any(custom)
            && measured_collective(curves, (kind, 1), group.extent).is_some()
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

    /// The machine's named memory that a load or store reaches, if it names one.
    pub fn named_memory(&self, instance: u32, node: NodeIndex) -> Option<u32> {
        let of = &self.workload().instances()[instance as usize];
        let slot = self.workload().graph(of).remote_memory(node)?;
        let planned = &self.plan.instances[instance as usize];
        Some(self.plan.shared[planned.shared as usize].memories[slot as usize])
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

    /// Refuses a launch at an NPU that the program cannot run on; `None` is where it was compiled for.
    pub(super) fn may_launch_at(&self, npu: Option<Npu>) -> Result<(), ReplayRefusal> {
        let Some(npu) = npu else { return Ok(()) };
        let (name, npus) = (self.machine.name(), self.machine.topology().npus());
        if self.plan.shared_of_class.is_empty() {
            return Err(ReplayRefusal::new(
                format!("a feed launches a program of several ranks at NPU {npu}"),
                "programs of one rank go to any NPU; compile others for each placement",
            ));
        }
        if npu.0 >= npus {
            return Err(ReplayRefusal::new(
                format!(
                    "a feed launches at NPU {npu}, but machine `{name}` has {npus} (0 to {})",
                    npus - 1
                ),
                "an NPU of the machine",
            ));
        }
        let class = self.machine.class(npu);
        if self.plan.shared_of_class[class] == NONE {
            return Err(ReplayRefusal::new(
                format!(
                    "a feed launches at NPU {npu} a program with kernels that have no price on class `{}`",
                    self.machine.classes()[class].name
                ),
                "an NPU of another class, or peaks for the formats of its kernels",
            ));
        }
        Ok(())
    }

    /// Returns the plan of an instance at an NPU; `None` is where it was compiled for.
    pub(super) fn shared_at(&self, planned: &InstancePlan, npu: Option<Npu>) -> &SharedGraphPlan {
        let own = planned.shared;
        let shared = npu.map_or(own, |npu| {
            self.plan.shared_of_class[self.machine.class(npu)]
        });
        &self.plan.shared[shared as usize]
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
        let mut feed = SingleLaunch::of(0);
        run_over_network(LaunchSource::one(self, &mut feed), observer)
    }

    /// Runs to the end over a network of the caller's own, with the machine's algorithms of collectives.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub fn run_over<O: Observer + ?Sized, N: NetworkBackend>(
        &self,
        observer: &mut O,
        network: N,
    ) -> Result<ReplayOutcome, ReplayError> {
        let backend = &mut native(
            self.machine,
            &self.custom,
            self.plan.splits.iter(),
            &self.prices,
        );
        self.run_with_backend(observer, network, backend)
    }

    /// Runs to the end over `network`, with collectives by the `backend` that this was compiled for.
    pub fn run_with_backend<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel>(
        &self,
        observer: &mut O,
        network: N,
        backend: &mut M,
    ) -> Result<ReplayOutcome, ReplayError> {
        assert_eq!(
            self.as_issued,
            M::Order::MATCHES_AS_ISSUED,
            "another backend than it was prepared for"
        );
        let mut feed = SingleLaunch::of(0);
        let source = LaunchSource::one(self, &mut feed);
        Engine::new(source, observer, network, backend).run()
    }
}

/// The programs of a run, what launches them, and what runs their kernels.
pub(super) struct LaunchSource<'a> {
    pub programs: &'a [CompiledReplay<'a>],
    pub feeds: Vec<&'a mut dyn Feed>,
    pub processors: Option<&'a mut dyn ProcessorModel>,
    /// Whether there may be more than one launch.
    pub many: bool,
}

impl<'a> LaunchSource<'a> {
    fn one(program: &'a CompiledReplay<'a>, feed: &'a mut SingleLaunch) -> Self {
        Self {
            programs: std::slice::from_ref(program),
            feeds: vec![feed],
            processors: None,
            many: false,
        }
    }

    /// Returns the same for a shorter time, which the compiler cannot see by itself behind `&mut`.
    fn shortened<'s>(self) -> LaunchSource<'s>
    where
        'a: 's,
    {
        LaunchSource {
            programs: self.programs,
            feeds: self.feeds.into_iter().map(|feed| feed as _).collect(),
            processors: self.processors.map(|processors| processors as _),
            many: self.many,
        }
    }
}

/// Runs `programs` as `feeds` launch them, to the end: until no feed wants to be woken and nothing is in flight. Kernels
/// of NPUs that `processors` serves take no lanes.
///
/// A *program* is a job that is priced, placed and matched; the first is number 0. All are for one machine, and replayed
/// with the same models. Observers know instances and groups by their numbers among those of all programs.
///
/// ```
/// use chakram::engine::{CompiledReplay, Feed, ReplayOptions, TimedLaunches, run_launches};
/// use chakram::units::{Span, Time};
/// use chakram::{Job, Machine};
///
/// let (job, machine) = (Job::open(["traces/data-parallel-8"])?, Machine::load("dgx-h100")?);
/// let program = CompiledReplay::new(job.workload(), &machine, &ReplayOptions::default())?;
/// let once = program.run(())?.0.makespan;
/// // Again when it has ended.
/// let again = Time::ZERO + once;
/// let mut feed = TimedLaunches::new(0, vec![Time::ZERO, again]);
/// let outcome = run_launches(&[program], &mut [&mut feed], None, &mut ())?;
/// assert_eq!(outcome.makespan, once + once);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Fails if the programs are for different machines or models, if a launch names what does not exist, if launches get
/// stuck, and when simulated time ends.
pub fn run_launches<'a, O: Observer + ?Sized>(
    programs: &'a [CompiledReplay<'a>],
    feeds: &mut [&mut dyn Feed],
    processors: Option<&mut dyn ProcessorModel>,
    observer: &mut O,
) -> Result<ReplayOutcome, ReplayError> {
    let Some(first) = programs.first() else {
        return Err(ReplayRefusal::new("there is no program to launch", "at least one").into());
    };
    let alike = |program: &CompiledReplay<'_>| {
        std::ptr::eq(program.machine, first.machine)
            && (program.network, program.comm, program.host)
                == (first.network, first.comm, first.host)
            && (program.stepwise, program.as_issued) == (first.stepwise, false)
    };
    if !programs.iter().all(alike) {
        return Err(ReplayRefusal::new(
            "programs of one run are for different machines, networks or models of host and communication",
            "compile them for one machine with the same options",
        )
        .into());
    }
    let source = LaunchSource {
        programs,
        feeds: feeds.iter_mut().map(|feed| &mut **feed as _).collect(),
        processors: processors.map(|processors| processors as _),
        many: true,
    };
    run_over_network(source, observer)
}

/// Refuses models that do not know the links of a machine, and links of too many NPUs.
fn check_links(
    machine: &Machine,
    network: NetworkKind,
    options: &ReplayOptions,
) -> Result<(), ReplayRefusal> {
    if options.comm != CommTiming::Model {
        return Ok(());
    }
    let (name, topology) = (machine.name(), machine.topology());
    let shares = network == NetworkKind::FairSharing;
    if topology.graph().is_some() && !shares {
        return Err(ReplayRefusal::new(
            format!(
                "network model {network} knows dimensions, and machine `{name}` has links of its own"
            ),
            "--network fair-sharing, which is that machine's model",
        ));
    }
    if (shares || options.links) && topology.npus() > MOST_NPUS {
        let npus = topology.npus();
        return Err(ReplayRefusal::new(
            format!("machine `{name}` has {npus} NPUs, and links are told apart up to {MOST_NPUS}"),
            "--network ports or links, without --links",
        ));
    }
    Ok(())
}

/// Runs over the network that the first program names.
fn run_over_network<O: Observer + ?Sized>(
    source: LaunchSource<'_>,
    observer: &mut O,
) -> Result<ReplayOutcome, ReplayError> {
    let source = source.shortened();
    let of = &source.programs[0];
    let topology = of.machine.topology();
    let splits = source
        .programs
        .iter()
        .flat_map(|program| &program.plan.splits);
    let backend = &mut native(of.machine, &of.custom, splits, &of.prices);
    match of.network {
        NetworkKind::ContentionFree => {
            let network = ContentionFreeNetwork::new(topology);
            Engine::new(source, observer, network, backend).run()
        }
        NetworkKind::Ports => {
            Engine::new(source, observer, PortNetwork::new(topology), backend).run()
        }
        NetworkKind::Links => {
            Engine::new(source, observer, LinkNetwork::new(topology), backend).run()
        }
        NetworkKind::FairSharing => {
            let Some(network) = FairSharingNetwork::new(topology) else {
                // Too many NPUs, which is refused where the network carries communication.
                let network = ContentionFreeNetwork::new(topology);
                return Engine::new(source, observer, network, backend).run();
            };
            Engine::new(source, observer, network, backend).run()
        }
        NetworkKind::Exclusive => {
            let network = ExclusiveNetwork::new(topology);
            Engine::new(source, observer, network, backend).run()
        }
    }
}
