//! Closed forms: the time of a stage when all members start together on identical paths.
//!
//! Proved only for primitives without a root, where the members' programs are the same up to
//! rotation or exchange of indices, so that all finish together. The tables in the modules of the
//! algorithms derive them; tests hold them against the event loop. In trees members end one after
//! another, so they have none.

use super::{CollectiveAlgorithm, CollectivePrimitive, CollectiveStage};
use crate::topology::NetworkPath;
use crate::units::Span;

/// Duration of `stage` among `n` members that start together; `None` if no closed form is proved.
pub fn closed_form(
    algorithm: CollectiveAlgorithm,
    stage: &CollectiveStage,
    n: u32,
    path: &NetworkPath,
) -> Option<Span> {
    use CollectivePrimitive as P;
    if stage.primitive.has_root() || !algorithm.supports(stage.primitive, n) {
        return None;
    }
    let message = stage.part(n);
    let s = path.bandwidth.serialization(message);
    let alpha = path.first_byte(message);
    let others = u64::from(n - 1);
    if let CollectiveAlgorithm::Own(own) = algorithm {
        return own.0.closed_form(stage, n, path);
    }
    match (algorithm, stage.primitive) {
        (CollectiveAlgorithm::Ring, P::AllToAll) => {
            Some((alpha + s).times(u64::from(n) * others / 2))
        }
        (CollectiveAlgorithm::Ring | CollectiveAlgorithm::Pairwise, _) => {
            Some((alpha + s).times(others))
        }
        (CollectiveAlgorithm::Direct, _) => Some(alpha + s.times(others)),
        (CollectiveAlgorithm::RecursiveDoubling, P::AllReduce) => {
            Some(path.time(stage.buffer).times(u64::from(n.ilog2())))
        }
        (CollectiveAlgorithm::HalvingDoubling | CollectiveAlgorithm::RecursiveDoubling, _) => {
            // Each exchange has half the size of the one before; every one is rounded by itself, as messages are.
            let halves = (0..n.ilog2()).map(|i| stage.buffer.part(2 << i));
            let spans = halves.map(|half| path.time(half));
            Some(spans.fold(Span::ZERO, |sum, span| sum + span))
        }
        (CollectiveAlgorithm::DoubleBinaryTree | CollectiveAlgorithm::Tree, _) => None,
        (CollectiveAlgorithm::Own(_), _) => None,
    }
}
