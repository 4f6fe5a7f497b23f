//! The routes of a collective's chunks: in which order each visits the phases, and by which algorithms.

use super::schedule::orders;
use super::{Algorithm, Carried, Choice, Chunk, Course, Pipeline, carried};
use crate::group::Extent;
use crate::topology::Topology;
use crate::trace::CollectiveKind;
use crate::units::Amount;

/// The course of a collective of `kind` with a buffer of `bytes`, without gates. It has as many chunks as
/// the pipeline says, but no more than bytes. Where two trees share the work, every other chunk takes the
/// second.
pub(super) fn routes(
    (kind, bytes): (CollectiveKind, u64),
    (extent, topology): (&Extent, &Topology),
    choices: &[Choice],
    pipeline: Pipeline,
) -> Course<Carried> {
    let most = u32::try_from(bytes).unwrap_or(u32::MAX).max(1);
    let chunks = pipeline.chunks.get().min(most);
    let (orders, mut route_of) = orders(pipeline.inter, kind, (extent, topology), chunks);
    let mut all = Vec::new();
    let add = |order: &[usize], mirrored, all: &mut Vec<Carried>| {
        let chunk = Chunk {
            whole: Amount::whole(bytes).part(chunks),
            order,
            // Routes are equally long, so an all-reduce is in one stage in all of them or in none.
            fuses: orders.len() == 1,
            mirrored,
        };
        carried(kind, extent, topology, choices, &chunk, all);
    };
    for order in &orders {
        add(order, false, &mut all);
    }
    let length = all.len() / orders.len();
    let trees = |c: &Carried| c.algorithm == Algorithm::DoubleBinaryTree;
    if chunks > 1 && all.iter().any(trees) {
        for order in &orders {
            add(order, true, &mut all);
        }
        for route in route_of.iter_mut().skip(1).step_by(2) {
            *route += orders.len() as u16;
        }
        return Course::routed(all, length, route_of);
    }
    match &orders[..] {
        [_] => Course::alike(all, chunks),
        _ => Course::routed(all, length, route_of),
    }
}
