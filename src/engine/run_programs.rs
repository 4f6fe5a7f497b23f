//! Runs programs with their feeds, network and collective backend.

use super::compiled_replay::CompiledReplay;
use super::failures;
use super::feed::{LaunchFeed, SingleLaunchFeed};
use super::host_launches::ResolvedReplayDurationSources;
use super::processor::SelfSchedulingProcessorModel;
use super::{CompletedReplayTotals, Engine, ReplayError, ReplayRefusal};
use crate::Observer;
use chakram_hardware::collective::{
    ChunkCountChoiceCache, NamedScriptedAlgorithm, NativeBackend, PairBytesByPhase, ScriptExecutor,
};
use chakram_hardware::machine::Machine;
use chakram_hardware::network::{
    ContentionFreePortBusyTimes, FairSharingNetwork, LinkContentionNetwork, NetworkModelKind,
    OneTransferPerLinkNetwork, PortContentionNetwork,
};

/// The programs of a run, with their feeds and their processor model.
pub(super) struct RunProgramsAndFeeds<'a> {
    pub programs: &'a [CompiledReplay<'a>],
    pub feeds: Vec<&'a mut dyn LaunchFeed>,
    pub processors: Option<&'a mut dyn SelfSchedulingProcessorModel>,
    /// True if there may be more than one launch.
    pub many: bool,
}

impl<'a> RunProgramsAndFeeds<'a> {
    pub fn of_program(program: &'a CompiledReplay<'a>, feed: &'a mut SingleLaunchFeed) -> Self {
        Self {
            programs: std::slice::from_ref(program),
            feeds: vec![feed],
            processors: None,
            many: false,
        }
    }

    /// Returns the same source with a shorter lifetime; the compiler does not shorten lifetimes behind `&mut`.
    fn shorten_borrow<'s>(self) -> RunProgramsAndFeeds<'s>
    where
        'a: 's,
    {
        RunProgramsAndFeeds {
            programs: self.programs,
            feeds: self.feeds.into_iter().map(|feed| feed as _).collect(),
            processors: self.processors.map(|processors| processors as _),
            many: self.many,
        }
    }
}

/// Runs the launches of `programs` that `feeds` request, until no feed wants to be woken and nothing is in flight. On
/// NPUs that `processors` serves, kernels use no lanes.
///
/// A *program* is a compiled job, with durations, placement and matches; the first program has index 0. All programs in
/// a call must be compiled for one machine and use the same models. Observers receive instance and group ids that are
/// numbered over all programs.
///
/// # Errors
///
/// Fails if the programs are for different machines or models, a launch names a missing program or NPU, launches
/// deadlock, or simulated time overflows.
pub fn run_launches<'a>(
    programs: &'a [CompiledReplay<'a>],
    feeds: &mut [&mut dyn LaunchFeed],
    processors: Option<&mut dyn SelfSchedulingProcessorModel>,
    observer: &mut dyn Observer,
) -> Result<CompletedReplayTotals, ReplayError> {
    let Some(first) = programs.first() else {
        return Err(ReplayRefusal::new("the run has no programs", "at least one program").into());
    };
    let alike = |program: &CompiledReplay<'_>| {
        std::ptr::eq(program.machine, first.machine)
            && (program.network_kind(), program.comm, program.host)
                == (first.network_kind(), first.comm, first.host)
            && (program.stepwise, program.as_issued) == (first.stepwise, false)
    };
    if !programs.iter().all(alike) {
        return Err(ReplayRefusal::new(
            "the programs of a run were compiled for different machines, networks or models of host and communication",
            "compile all programs for one machine with the same options",
        )
        .into());
    }
    let source = RunProgramsAndFeeds {
        programs,
        feeds: feeds.iter_mut().map(|feed| &mut **feed as _).collect(),
        processors: processors.map(|processors| processors as _),
        many: true,
    };
    // Serving runs without observers, so a second loop without notifications is worth the time that it takes to
    // compile.
    if observer.is_nobody() {
        return run_over_network(source, &mut ());
    }
    run_over_network(source, observer)
}

/// Returns the collective backend of `machine` with the `custom` algorithms. The backend reuses the chunk counts in
/// `chosen`, and adds the counts that it chooses itself.
pub(super) fn create_native_backend<'a>(
    machine: &'a Machine,
    custom: &'a [NamedScriptedAlgorithm],
    splits: impl Iterator<Item = &'a PairBytesByPhase>,
    prices: &ResolvedReplayDurationSources,
    chosen: &ChunkCountChoiceCache,
) -> NativeBackend<'a> {
    NativeBackend {
        algorithms: machine.collective_algorithms(),
        topology: machine.topology(),
        pipeline: machine.chunking_settings(),
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
        across_nodes: if prices.measured_collectives {
            machine.across_nodes()
        } else {
            &[]
        },
        splits: splits.collect(),
        players: ScriptExecutor::default(),
        chosen: chosen.clone(),
    }
}

/// Runs the programs over the network model that the first program uses.
pub(super) fn run_over_network<O: Observer + ?Sized>(
    source: RunProgramsAndFeeds<'_>,
    observer: &mut O,
) -> Result<CompletedReplayTotals, ReplayError> {
    let source = source.shorten_borrow();
    let of = &source.programs[0];
    let topology = of.machine.topology();
    let splits = source
        .programs
        .iter()
        .flat_map(|program| &program.plan.splits);
    let backend =
        &mut create_native_backend(of.machine, &of.custom, splits, &of.prices, &of.chosen);
    match of.network_kind() {
        NetworkModelKind::ContentionFree => {
            let network = ContentionFreePortBusyTimes::new(topology);
            Engine::new(source, observer, network, backend).run()
        }
        NetworkModelKind::Ports => Engine::new(
            source,
            observer,
            PortContentionNetwork::new(topology),
            backend,
        )
        .run(),
        NetworkModelKind::Links => Engine::new(
            source,
            observer,
            LinkContentionNetwork::new(topology),
            backend,
        )
        .run(),
        NetworkModelKind::FairSharing => {
            let Some(mut network) = FairSharingNetwork::new(topology) else {
                // The machine has too many NPUs for the requested network. This run does not use that network, or an
                // earlier check would have failed.
                let network = ContentionFreePortBusyTimes::new(topology);
                return Engine::new(source, observer, network, backend).run();
            };
            if failures::has_link_failures(&of.failures) {
                network.enable_link_failures();
            }
            Engine::new(source, observer, network, backend).run()
        }
        NetworkModelKind::Exclusive => {
            let network = OneTransferPerLinkNetwork::new(topology);
            Engine::new(source, observer, network, backend).run()
        }
    }
}
