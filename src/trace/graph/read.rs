//! Reads a trace file's contents into a graph, in one pass.

use super::builder::{EnforcedDependencyKinds, GraphBuilder, RankBindingsOfGraphSlots};
use super::{Graph, Lane};
use crate::format::TraceError;
use crate::format::profiler_cost::ProfilerOverheadFacts;
use crate::format::scan::{self, NodeView};
use crate::format::wire::FrameCursor;
use chakram_base::setting::EnumeratedSetting;
use chakram_base::units::Span;

/// How to treat the estimated cost of the profiler, which is part of a captured job's times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProfilerOverheadRemovalPolicy {
    /// Keep the profiler's cost in the times.
    Keep,
    /// Subtract the profiler's estimated cost from the times.
    Remove,
    /// Subtract the cost only if the capture also has steps without a profiler, which can confirm the estimate.
    #[default]
    RemoveIfMeasured,
}

impl EnumeratedSetting for ProfilerOverheadRemovalPolicy {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (
            Self::Remove,
            "profiler",
            "Estimated host time that the profiler added",
        ),
        (Self::Keep, "nothing", "Nothing"),
    ];
}

/// Facts that a trace states about the profiler that captured it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProfilerCostFactsOfTrace {
    /// True if the profiler's estimated cost was subtracted from the times.
    pub removed: bool,
    /// True if any node states which part of its times is the profiler's cost.
    pub charged: bool,
    /// Facts about the profiler from the metadata record.
    pub said: ProfilerOverheadFacts,
}

impl Graph {
    /// Reads the trace file of rank `rank` from its decompressed contents.
    ///
    /// Fails on truncated or malformed records, duplicate ids, invalid nodes, and cycles. Also fails if a data
    /// dependency is on a missing node or on the node itself.
    pub fn read_graph(
        contents: &[u8],
        rank: u32,
        policy: EnforcedDependencyKinds,
    ) -> Result<(Self, RankBindingsOfGraphSlots), TraceError> {
        Self::read_edited(contents, rank, policy, |_| Ok(()))
    }

    /// Reads a trace like [`Self::read_graph`], with or without the profiler's estimated cost.
    pub fn read_with_or_without_profiler_cost(
        contents: &[u8],
        rank: u32,
        policy: EnforcedDependencyKinds,
        profiler: ProfilerOverheadRemovalPolicy,
    ) -> Result<(Self, RankBindingsOfGraphSlots), TraceError> {
        let mut profiled = false;
        let measured = FrameCursor::new(contents)
            .next_record()?
            .map(scan::read_metadata)
            .transpose()?
            .is_some_and(|metadata| metadata.profiler.unprofiled.is_some());
        let removed = match profiler {
            ProfilerOverheadRemovalPolicy::Keep => false,
            ProfilerOverheadRemovalPolicy::Remove => true,
            ProfilerOverheadRemovalPolicy::RemoveIfMeasured => measured,
        };
        let (mut graph, binding) = Self::read_edited(contents, rank, policy, |node| {
            profiled |= node.profiler > Span::ZERO;
            Ok(())
        })?;
        graph.profiler.charged = profiled;
        if removed {
            graph.subtract_profiler_cost();
        }
        Ok((graph, binding))
    }

    /// Returns a copy without the profiler's cost in its times if this graph's times include it, and with it otherwise.
    pub fn with_profiler_toggled(&self) -> Self {
        let mut other = self.clone();
        match self.profiler.removed {
            true => other.add_profiler_cost_to_all_nodes(),
            false => other.subtract_profiler_cost(),
        }
        other
    }

    /// Reads a trace like [`Self::read_graph`], and applies `edit` to each node.
    pub fn read_edited(
        contents: &[u8],
        rank: u32,
        policy: EnforcedDependencyKinds,
        mut edit: impl FnMut(&mut NodeView<'_>) -> Result<(), TraceError>,
    ) -> Result<(Self, RankBindingsOfGraphSlots), TraceError> {
        let mut frames = FrameCursor::new(contents);
        let Some(first) = frames.next_record()? else {
            return Err(TraceError::empty_file());
        };
        let metadata = scan::read_metadata(first)?;
        // A node with an id takes at least 3 bytes, so ids are below this limit if they are dense.
        let mut builder = GraphBuilder::new(rank, policy, contents.len() as u64 / 3);
        if let Some(at) = metadata.captured {
            builder.set_captured_end_of_last_event(at);
        }
        builder.set_whether_kernels_ran_on_cpu(metadata.kernels_on_cpu);
        builder.set_capture_profiler_facts(metadata.profiler);
        builder.set_dropped_kernel_count(metadata.dropped_kernels);
        builder.set_world_size_and_capture_environment(metadata.world_size, metadata.captured_on);
        builder.set_group_roles(metadata.roles);
        builder.set_job_work_amounts(metadata.amounts);
        builder.set_call_stacks(metadata.stacks);
        for (host, number, name) in metadata.lanes {
            let lane = if host {
                Lane::Host(Some(number))
            } else {
                Lane::Stream(number)
            };
            builder.set_lane_name(lane, name);
        }
        while let Some(record) = frames.next_record()? {
            let mut node = scan::scan_node(record, &mut builder)?;
            edit(&mut node)
                .and_then(|()| builder.add_node_with_visited_dependencies(&node))
                .map_err(|e| e.in_record(record.number, record.offset))?;
        }
        let (graph, binding) = builder.finish_graph()?;
        let core = metadata.core;
        Ok((graph, RankBindingsOfGraphSlots { core, ..binding }))
    }
}
