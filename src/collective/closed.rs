//! Closed forms: what a stage takes when all members start together on paths that are all alike.
//!
//! Proved only for primitives without a root, where the members' programs are the same up to
//! rotation, so that all finish together. The tables in the modules of the algorithms derive them;
//! tests hold them against the event loop.

use super::{Algorithm, Primitive, Stage};
use crate::topology::Path;
use crate::units::Span;

/// How long `stage` takes among `n` members that start together, if that is proved.
pub fn closed_form(algorithm: Algorithm, stage: &Stage, n: u32, path: &Path) -> Option<Span> {
    let s = path.bandwidth.serialization(stage.buffer.part(n));
    let alpha = path.latency;
    let n = u64::from(n);
    match (algorithm, stage.primitive) {
        (_, primitive) if primitive.has_root() => None,
        (Algorithm::Ring, Primitive::AllToAll) => Some((alpha + s).times(n * (n - 1) / 2)),
        (Algorithm::Ring, _) => Some((alpha + s).times(n - 1)),
        (Algorithm::Direct, _) => Some(alpha + s.times(n - 1)),
    }
}
