//! The chunk schedule of a collective: the path of its chunks from stage to stage.
//!
//! A collective is split into chunks. Each chunk takes a *route*: a list of stages, with the number of bytes in each
//! stage. All routes have the same number of stages. They differ in the order of phases and in the size of the chunks.
//! Chunks of the same size that visit the phases in the same order share one route.
//!
//! A chunk may have to wait before a stage. An [`ChunkAdmissionOrderPerPhase`] fixes the order of chunks in each phase
//! for the whole collective, identically at every member. If each member chose its own order, a member could occupy a
//! phase that another member's partners need, and the collective could deadlock. ASTRA-sim deadlocks in this way if not
//! all chunks are active at once.

use chakram_base::ids::StageIndex;
use chakram_base::units::Span;

/// A chunk's entry into a stage of its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChunkAndEnteredStage {
    /// Index of the chunk.
    pub chunk: u32,
    /// Index of the stage in the chunk's route.
    pub stage: StageIndex,
}

/// The order in which chunks enter the stages of each phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkAdmissionOrderPerPhase {
    /// For each phase of the group, the chunks that pass through it, in the order in which they enter.
    pub order: Vec<Vec<ChunkAndEnteredStage>>,
    /// For each phase, the maximum number of chunks that a member has in it at once, at least 1.
    pub capacity: Vec<u32>,
}

/// Routes of a collective's chunks through their stages.
#[derive(Clone, Debug)]
pub struct ChunkStageSequences<S> {
    stages: Vec<S>,
    length: usize,
    route_of: Vec<u32>,
    chunks: u32,
    strands: u32,
    admission: Option<ChunkAdmissionOrderPerPhase>,
    measured: Option<Span>,
}

impl<S: Copy> ChunkStageSequences<S> {
    /// Creates `chunks` chunks that all pass through `stages`.
    pub fn with_uniform_chunks(stages: Vec<S>, chunks: u32) -> Self {
        Self {
            length: stages.len(),
            stages,
            route_of: Vec::new(),
            chunks,
            strands: 1,
            admission: None,
            measured: None,
        }
    }

    /// Creates a chunk for each entry of `route_of`. An entry is the index of the chunk's route. `stages` contains the
    /// routes one after another, with `length` stages each.
    pub fn from_stages_and_chunk_route_indices(
        stages: Vec<S>,
        length: usize,
        route_of: Vec<u32>,
    ) -> Self {
        // Routes are stored one after another, each with `length` stages.
        debug_assert!(length == 0 || stages.len().is_multiple_of(length));
        Self {
            stages,
            length,
            chunks: route_of.len() as u32,
            route_of,
            strands: 1,
            admission: None,
            measured: None,
        }
    }

    /// Returns the schedule with `other` applied to each stage.
    pub fn map_stages(mut self, other: impl Fn(S) -> S) -> Self {
        for stage in &mut self.stages {
            *stage = other(*stage);
        }
        self
    }

    /// Returns the schedule with a measured duration `span`, counted from the arrival of the last member. The duration
    /// applies if no other traffic disturbs the collective.
    pub fn with_measured_time(self, span: Span) -> Self {
        Self {
            measured: Some(span),
            ..self
        }
    }

    /// Returns the measured duration from the arrival of the last member, or `None` if the collective was not measured.
    #[inline]
    pub fn measured_time(&self) -> Option<Span> {
        self.measured
    }

    /// Returns the schedule with `admission` as the order in which chunks enter each phase.
    pub fn with_chunk_admission_order(self, admission: ChunkAdmissionOrderPerPhase) -> Self {
        Self {
            admission: Some(admission),
            ..self
        }
    }

    /// Returns the schedule with up to `strands` concurrent parts per chunk and stage (2 if a ring is used in both
    /// directions).
    pub fn with_strands(self, strands: u32) -> Self {
        Self { strands, ..self }
    }

    /// Returns the maximum number of strands (concurrent parts of a chunk's stage): 2 if a ring is used in both
    /// directions.
    #[inline]
    pub fn strand_count(&self) -> u32 {
        self.strands
    }

    /// Returns the number of chunks into which the collective is split.
    #[inline]
    pub fn chunk_count(&self) -> u32 {
        self.chunks
    }

    /// Returns the number of stages that each chunk passes through.
    #[inline]
    pub fn stages_per_chunk(&self) -> usize {
        self.length
    }

    /// Returns the stages of all routes, one after another.
    #[inline]
    pub fn stages_of_all_routes(&self) -> &[S] {
        &self.stages
    }

    /// Returns the index of the route that `chunk` takes.
    #[inline]
    pub fn route_index_of_chunk(&self, chunk: u32) -> usize {
        if self.route_of.is_empty() {
            0
        } else {
            self.route_of[chunk as usize] as usize
        }
    }

    /// Returns true if all chunks pass through the same stages.
    #[inline]
    pub fn is_uniform(&self) -> bool {
        self.route_of.is_empty()
    }

    /// Returns stage `number` of `chunk`, or `None` after the last.
    #[inline]
    pub fn stage_of_chunk(&self, chunk: u32, number: StageIndex) -> Option<&S> {
        let index = self.stage_index(chunk, number)?;
        Some(&self.stages[index])
    }

    /// Returns the index in [`Self::stages_of_all_routes`] of stage `number` of `chunk`, or `None` after the last
    /// stage.
    #[inline]
    pub fn stage_index(&self, chunk: u32, number: StageIndex) -> Option<usize> {
        let number = number.index();
        (number < self.length).then(|| self.route_index_of_chunk(chunk) * self.length + number)
    }

    /// Returns the order in which each phase admits chunks, or `None` if the order is not fixed.
    #[inline]
    pub fn admission_order(&self) -> Option<&ChunkAdmissionOrderPerPhase> {
        self.admission.as_ref()
    }
}
