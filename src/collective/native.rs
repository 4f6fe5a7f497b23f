//! Our own manner: one chunk, the machine's algorithm for each dimension, endpoints that take no time.

use super::manner::{
    Act, Clock, Cost, Cue, Describer, Endpoint, Load, Manner, Party, Passing, Queue, Request,
    Source, Ticket,
};
use super::{Algorithm, Seat, Stage, Step, closed, stages};
use crate::group::{Extent, Phase};
use crate::ids::Npu;
use crate::topology::{Path, Topology};
use crate::units::{Span, Time};

/// Collectives as the machine's algorithms carry them out.
#[derive(Clone, Copy, Debug)]
pub struct Native<'a> {
    /// The algorithm of each dimension.
    pub algorithms: &'a [Algorithm],
}

/// A stage and the algorithm that carries it out.
#[derive(Clone, Copy, Debug)]
pub struct Carried {
    stage: Stage,
    algorithm: Algorithm,
}

impl Manner for Native<'_> {
    const IN_ORDER: bool = false;
    type Stage = Carried;

    fn extent(&self, party: Party<'_>, topology: &Topology) -> Extent {
        Extent::new(party.npus, topology)
    }

    fn common_path(&self, extent: &Extent, phase: &Phase, topology: &Topology) -> Option<Path> {
        self.algorithms[phase.dimension].common_path(extent, phase, topology)
    }

    fn stages(&self, request: &Request, extent: &Extent, out: &mut Vec<Carried>) -> u32 {
        out.clear();
        stages(request.kind, extent, request.buffer, |stage| {
            let algorithm = self.algorithms[extent.phases[stage.phase].dimension];
            out.push(Carried { stage, algorithm });
        });
        1
    }

    #[inline]
    fn phase(&self, carried: &Carried) -> usize {
        carried.stage.phase
    }

    #[inline]
    fn seat(&self, extent: &Extent, carried: &Carried, position: u32, root: u32) -> Option<Seat> {
        Seat::new(extent, &carried.stage, position, root)
    }

    #[inline]
    fn turn(&mut self, _: Npu, _: &Carried) -> u16 {
        0
    }

    #[inline]
    fn queue(&self, _: &Carried, _: u16) -> Option<Queue> {
        None
    }

    #[inline]
    fn credits(&self, _: &Carried, _: u16, _: Seat) -> u32 {
        0
    }

    #[inline]
    fn receives(&self, carried: &Carried, _: u16, seat: Seat) -> u32 {
        carried.algorithm.receives(&carried.stage, seat)
    }

    #[inline]
    fn step(&self, carried: &Carried, _: u16, seat: Seat, i: u32) -> Option<Step> {
        carried.algorithm.step(&carried.stage, seat, i)
    }

    fn source(&self, _: &Carried, _: u16, _: Seat, _: u32, _: u32) -> Option<Source> {
        None
    }

    #[inline]
    fn is_scripted(&self, _: &Carried) -> bool {
        false
    }

    fn play(&mut self, _: &Carried, _: &Extent, _: (u32, u32), _: Cue, _: &mut Vec<Act>) {
        unreachable!("members go by steps")
    }

    #[inline]
    fn endpoint(&self, _: &Carried) -> Endpoint {
        Endpoint::Instant
    }

    fn load(&self, _: &Carried, _: u16, _: Seat, _: Passing, _: Ticket) -> Load {
        unreachable!("endpoints take no time")
    }

    fn carry(&mut self, _: Time, _: Npu, _: Load, _: &mut impl Clock) {
        unreachable!("endpoints take no time")
    }

    fn bus(&mut self, _: Time, _: Npu, _: u32, _: &mut impl Clock) -> Option<Ticket> {
        unreachable!("endpoints take no time")
    }

    fn bus_resumes(&mut self, _: Time, _: Npu, _: u32, _: &mut impl Clock) {
        unreachable!("endpoints take no time")
    }

    #[inline]
    fn reduction(&self, _: &Carried, _: u16, _: Seat, _: u32) -> Option<Span> {
        None
    }

    #[inline]
    fn is_paced(&self, carried: &Carried) -> bool {
        !carried.algorithm.has_sole_senders()
    }

    fn asking(&self) -> Option<u64> {
        None
    }

    fn describer(&self) -> Describer {
        let algorithms = self.algorithms.to_vec();
        Describer::new(move |_, extent, topology| {
            let phases = extent.phases.iter().map(|phase| {
                let dimension = &topology.dimensions()[phase.dimension];
                let algorithm = algorithms[phase.dimension];
                match extent.regular {
                    true => format!("{algorithm} {} ({})", phase.size, dimension.name),
                    false => format!("{algorithm} {} (no sub-grid)", phase.size),
                }
            });
            Describer::list(phases)
        })
    }

    fn closed_form(
        &self,
        stages: &[Carried],
        _: u32,
        extent: &Extent,
        paths: &[Option<Path>],
        _: &Cost<'_>,
    ) -> Option<Span> {
        stages.iter().try_fold(Span::ZERO, |sum, carried| {
            let stage = &carried.stage;
            let n = extent.phases[stage.phase].size;
            let path = paths[stage.phase]?;
            let span = closed::closed_form(carried.algorithm, stage, n, &path)?;
            Some(sum + span)
        })
    }
}
