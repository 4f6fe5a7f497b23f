//! Simulates a job, and writes the job's true times and its captures in the formats of PyTorch's
//! profiler.
//!
//! A capture has two files per rank: the host's operators from `ExecutionTraceObserver`, and the timeline from Kineto.
//! With generated captures, tests and benchmarks of converters need no PyTorch, and captures can have any size. Tests
//! can compare converted captures with the true times ([`JobTrueTimes`]).
//!
//! # The job
//!
//! Every rank trains layers; a layer is a normalization and a perceptron with two matrices. A rank's thread runs its
//! program in order. Durations are computed from tensor sizes and round-number constants (`cost.rs`). A per-rank factor
//! and a pseudo-random part lengthen them. Collectives synchronize the ranks. A collective begins to transfer when its
//! last member has started, and ends on all members within a few nanoseconds.
//!
//! - On a CPU with Gloo, each group has two workers, which run collectives in order. Meanwhile, the
//!   program's thread continues. At the end, it waits until the gradients are reduced. In a
//!   pipeline, messages appear as annotations on the program's own thread.
//! - On GPUs with NCCL, operators launch kernels, and kernels queue on the compute stream.
//!   Collectives run on their group's stream, and streams wait for one another through events. The
//!   host waits for the device only at the end of a step.
//!
//! # Differences from PyTorch
//!
//! In the host's file, Gloo's workers record no operators, and their annotations are never parents of other events.
//! Within a block, correlation and external ids have no gaps, and the allocator never gives freed storage to another
//! tensor. Unlike real captures, generated captures lack the set-up of communicators, the rebuilding of buckets, clock
//! drift, and records of GPU memory allocations. On GPUs, a capture records only the calls that the job needs:
//! launches, copies, events, and one synchronization per step.

use cost::hash_to_random_number;
use layout::JobGroupsAndCommunications;
use meet::{
    SimulatedHistoriesAndTallies, create_rank_clock_before_first_step, pace_of_rank, simulate_job,
};
use program::StepProgram;
use simulate::SimulatedRankState;
use std::fs::File;
use std::io::{BufWriter, Result, Write};
use std::path::Path;

mod build;
mod comm;
mod cost;
mod gpu;
pub mod handwritten;
mod host;
mod kineto;
mod layout;
mod meet;
mod model;
mod ops;
mod options;
mod out;
mod program;
mod records;
mod reducer;
mod schema;
mod simulate;
mod step;
mod tensor;
#[cfg(test)]
mod tests;
mod truth;

pub use options::{Device, JobParallelism, LaunchOrKernelBound, OptionError, Options};
pub use simulate::CommunicationWaiterKind;
pub use truth::{
    CommunicationMemberTrueTimes, CommunicationTrueTimes, JobTrueTimes, RankTrueTimesAndCounts,
    ThreadOrStreamWaitTruth,
};

/// Value of Kineto's `baseTimeNanoseconds`.
const BASE: u64 = 1_790_857_026_000_000_000;
/// Start of the job, in ns after the base time.
const EPOCH: u64 = 4_313_706_734_900_000;
/// Process id of rank 0; the other ranks have the following ids.
const PID: u64 = 19_340;

/// A simulated job that can write its captures.
#[derive(Debug)]
pub struct SimulatedJobCaptureWriter {
    options: Options,
    layout: JobGroupsAndCommunications,
    /// One program for all ranks, or one program per stage.
    programs: Vec<StepProgram>,
    outcome: SimulatedHistoriesAndTallies,
}

/// Simulates the job that `options` describe.
pub fn generate_capture(
    options: &Options,
) -> std::result::Result<SimulatedJobCaptureWriter, OptionError> {
    options.validate_options()?;
    let mut layout = JobGroupsAndCommunications::new(options);
    let different = match options.style {
        JobParallelism::Pipeline => options.ranks,
        _ => 1,
    };
    let mut programs = Vec::new();
    for rank in 0..different {
        let (mut program, asked) = step::build_program(options, &layout, rank);
        if rank == 0 {
            layout.list_communications_of_step(options, &mut program, &asked);
        }
        programs.push(program);
    }
    let outcome = simulate_job(options, &layout, &programs);
    Ok(SimulatedJobCaptureWriter {
        options: options.clone(),
        layout,
        programs,
        outcome,
    })
}

impl SimulatedJobCaptureWriter {
    /// Returns the number of ranks.
    pub fn rank_count(&self) -> u32 {
        self.options.ranks
    }

    /// Writes the host's file of `rank` to `sink`.
    ///
    /// # Errors
    /// Fails if `sink` fails.
    ///
    /// # Panics
    /// Panics if there is no such rank.
    pub fn write_host_trace(&self, rank: u32, sink: impl Write) -> Result<()> {
        assert!(rank < self.rank_count(), "rank {rank} does not exist");
        host::write_host_file(self, rank, sink)
    }

    /// Writes Kineto's file of `rank` to `sink`.
    ///
    /// # Errors
    /// Fails if `sink` fails.
    ///
    /// # Panics
    /// Panics if there is no such rank.
    pub fn write_kineto_trace(&self, rank: u32, sink: impl Write) -> Result<()> {
        assert!(rank < self.rank_count(), "rank {rank} does not exist");
        kineto::write_kineto_file(self, rank, sink)
    }

    /// Writes `host.RANK.json` and `kineto.RANK.json` of every rank into the existing folder
    /// `folder`.
    ///
    /// # Errors
    /// Fails if the file system fails.
    pub fn write_files(&self, folder: &Path) -> Result<()> {
        for rank in 0..self.rank_count() {
            let file = |what| File::create(folder.join(format!("{what}.{rank}.json")));
            let (mut host, mut kineto) = (
                BufWriter::new(file("host")?),
                BufWriter::new(file("kineto")?),
            );
            self.write_host_trace(rank, &mut host)?;
            self.write_kineto_trace(rank, &mut kineto)?;
            host.flush().and(kineto.flush())?;
        }
        Ok(())
    }

    /// Returns the program of `rank`, with the names of the rank's groups and devices.
    fn program_with_group_and_device_names(&self, rank: u32) -> StepProgram {
        step::build_program(&self.options, &self.layout, rank).0
    }

    /// Returns the program of `rank` without the names of groups and devices.
    fn shared_program(&self, rank: u32) -> &StepProgram {
        &self.programs[(rank as usize).min(self.programs.len() - 1)]
    }

    fn create_simulated_rank_clock(&self, rank: u32) -> SimulatedRankState {
        create_rank_clock_before_first_step(&self.options, rank)
    }

    /// Returns how far `rank`'s clock is ahead of the shared clock, in ns.
    fn clock_offset_ns(&self, rank: u32) -> i64 {
        let skew = self.options.clock_skew;
        if rank == 0 || skew == 0 {
            return 0;
        }
        let drawn =
            hash_to_random_number([self.options.seed, 0x0c10c, rank.into()]) % (2 * skew + 1);
        drawn as i64 - skew as i64
    }
}
