//! Derives closed forms again, in integers. No code here calls the code under test.
//!
//! A message of `b` bytes takes `s = b · link_ps_per_byte` to pass a port. Its first byte arrives `links · link` after
//! the message began to leave. A port sends one message at a time, and receives one at a time. On rings, an NPU has a
//! port on each side.

use super::naive;
use super::rig::Dim;
use chakram::extend::CollectiveStagePrimitive;
use chakram::machine::CollectiveAlgorithm;
use chakram::topology::DimensionShape;
use chakram::trace::CollectiveKind;

/// Returns the time of `bytes / parts` at `ps_per_byte`, rounded to the nearest picosecond.
pub fn rounded_transfer_ps(bytes: u64, parts: u64, ps_per_byte: u64) -> u64 {
    let (twice, parts) = (
        2 * u128::from(bytes) * u128::from(ps_per_byte),
        u128::from(parts),
    );
    ((twice + parts) / (2 * parts)) as u64
}

impl Dim {
    /// Returns the latency in picoseconds between two NPUs of this dimension that are `k` positions
    /// apart.
    pub fn latency_ps_at_distance(&self, k: u32) -> u64 {
        let links = match self.shape {
            DimensionShape::FullyConnected => 1,
            // There is one link to the switch and one from it.
            DimensionShape::Switch => 2,
            // Messages take the shorter direction.
            DimensionShape::Ring => u64::from(k.min(self.size - k)),
            DimensionShape::Mesh => {
                unreachable!("where NPUs are decides, not only how far they are apart")
            }
        };
        links * self.link_ns * 1000
    }
}

/// Returns the time when a port has received all messages, whose first bytes arrive at `first_bytes`. Each message
/// takes `s`.
pub fn time_when_port_received_all_messages(mut first_bytes: Vec<u64>, s: u64) -> u64 {
    first_bytes.sort_unstable();
    let serve = |free: u64, first: u64| free.max(first) + s;
    first_bytes.into_iter().fold(0, serve)
}

/// Returns the time when all messages have been received. Messages are given by their sender's distance, on a ring
/// separately for each side.
fn last_receive_end_over_both_sides(
    dim: &Dim,
    first_bytes: impl Iterator<Item = (u32, u64)>,
    s: u64,
) -> u64 {
    let (mut below, mut above) = (Vec::new(), Vec::new());
    for (behind, first) in first_bytes {
        match dim.shape == DimensionShape::Ring && 2 * behind > dim.size {
            true => above.push(first),
            false => below.push(first),
        }
    }
    time_when_port_received_all_messages(below, s)
        .max(time_when_port_received_all_messages(above, s))
}

/// Returns the algorithm that runs `primitive` among `n` members on a dimension with this
/// algorithm: the algorithm itself, or the documented substitute.
pub fn resolve_stage_algorithm(
    algorithm: CollectiveAlgorithm,
    primitive: CollectiveStagePrimitive,
    n: u32,
) -> CollectiveAlgorithm {
    use CollectiveAlgorithm as A;
    use CollectiveStagePrimitive as P;
    let even = n.count_ones() == 1;
    match (algorithm, primitive) {
        (A::Ring | A::Direct, _) => algorithm,
        (A::Pairwise, P::Broadcast | P::Reduce | P::Gather | P::Scatter) => A::Direct,
        (_, P::AllToAll) => A::Pairwise,
        (
            A::MemberMessageTree | A::DoubleBinaryTree,
            P::Gather | P::Scatter | P::ReduceScatter | P::AllGather,
        ) => A::Ring,
        (A::HalvingDoubling | A::RecursiveDoubling, P::ReduceScatter | P::AllGather) if !even => {
            A::Ring
        }
        _ => algorithm,
    }
}

/// Returns `true` if an all-reduce among `n` members is a single stage.
fn all_reduces_in_one_stage(algorithm: CollectiveAlgorithm, n: u32) -> bool {
    match algorithm {
        CollectiveAlgorithm::MemberMessageTree | CollectiveAlgorithm::DoubleBinaryTree => true,
        CollectiveAlgorithm::RecursiveDoubling => n.count_ones() == 1,
        _ => false,
    }
}

/// Returns the time of `primitive` with `algorithm` on a line of all NPUs of `dim`, which start together. The line's
/// buffer is `bytes / parts`.
pub fn compute_phase_time(
    dim: &Dim,
    stage: (CollectiveAlgorithm, CollectiveStagePrimitive, u64, u64),
    root: u32,
) -> u64 {
    let (algorithm, primitive, bytes, parts) = stage;
    use CollectiveStagePrimitive as P;
    let n = u64::from(dim.size);
    // Rings send half in each direction, each over its own link, so this takes as long as sending all bytes at both
    // links' combined rate.
    let rate = match (algorithm, dim.shape) {
        (CollectiveAlgorithm::Ring, DimensionShape::Ring) => dim.ps_per_byte,
        _ => dim.link_ps_per_byte(),
    };
    let share = rounded_transfer_ps(bytes, parts * n, rate);
    let whole = rounded_transfer_ps(bytes, parts, rate);
    let next = dim.latency_ps_at_distance(1);
    // The distances to the other members.
    let others = || 1..dim.size;
    let nth = |k: u32| u64::from(k);
    let levels = n.trailing_zeros();
    // Size of the part that a member exchanges with the member at distance 2^j.
    let half = |j: u32| rounded_transfer_ps(bytes, parts * (2 << j), rate);
    match (algorithm, primitive) {
        // The distances 1, 2, 4, … are equal for every member.
        (
            CollectiveAlgorithm::HalvingDoubling | CollectiveAlgorithm::RecursiveDoubling,
            P::ReduceScatter | P::AllGather,
        ) => (0..levels)
            .map(|j| dim.latency_ps_at_distance(1 << j) + half(j))
            .sum(),
        (CollectiveAlgorithm::RecursiveDoubling, P::AllReduce) => (0..levels)
            .map(|j| dim.latency_ps_at_distance(1 << j) + whole)
            .sum(),
        // Round k goes k positions ahead. If the number of members is a power of two, members exchange in pairs, and
        // the pairs' distances differ on a ring.
        (CollectiveAlgorithm::Pairwise, _)
            if dim.shape != DimensionShape::Ring || n.count_ones() > 1 =>
        {
            others()
                .map(|k| dim.latency_ps_at_distance(k) + share)
                .sum()
        }
        (
            CollectiveAlgorithm::HalvingDoubling
            | CollectiveAlgorithm::RecursiveDoubling
            | CollectiveAlgorithm::MemberMessageTree
            | CollectiveAlgorithm::DoubleBinaryTree
            | CollectiveAlgorithm::Pairwise,
            _,
        ) => naive::simulate_line_time(dim, stage, root),
        // There are n - 1 steps to the neighbour, with one share each.
        (CollectiveAlgorithm::Ring, P::ReduceScatter | P::AllGather) => (n - 1) * (next + share),
        // A share for distance k takes k steps, so the sum is 1 + 2 + … + (n - 1).
        (CollectiveAlgorithm::Ring, P::AllToAll) => (1..n).sum::<u64>() * (next + share),
        // The last of n shares leaves after n·share, and crosses n - 1 links. The n - 2 members
        // between forward it.
        (CollectiveAlgorithm::Ring, P::Broadcast | P::Reduce) => {
            n * share + (n - 1) * next + (n - 2) * share
        }
        // The farthest share crosses n - 1 links.
        (CollectiveAlgorithm::Ring, P::Gather | P::Scatter) => (n - 1) * (next + share),
        // The member that is k positions before this one sends its k-th message here.
        (CollectiveAlgorithm::Direct, P::ReduceScatter | P::AllGather | P::AllToAll) => {
            let first = others().map(|k| (k, (nth(k) - 1) * share + dim.latency_ps_at_distance(k)));
            last_receive_end_over_both_sides(dim, first, share)
        }
        // The k-th message goes to the member k positions ahead, whose port is free.
        (CollectiveAlgorithm::Direct, P::Broadcast) => {
            let last = others().map(|k| nth(k) * whole + dim.latency_ps_at_distance(k));
            last.max().unwrap_or(0)
        }
        (CollectiveAlgorithm::Direct, P::Scatter) => {
            let last = others().map(|k| nth(k) * share + dim.latency_ps_at_distance(k));
            last.max().unwrap_or(0)
        }
        // All messages leave at the same time; at the root they queue on the side on which they arrive.
        (CollectiveAlgorithm::Direct, P::Reduce) => last_receive_end_over_both_sides(
            dim,
            others().map(|k| (k, dim.latency_ps_at_distance(k))),
            whole,
        ),
        (CollectiveAlgorithm::Direct, P::Gather) => last_receive_end_over_both_sides(
            dim,
            others().map(|k| (k, dim.latency_ps_at_distance(k))),
            share,
        ),
        (CollectiveAlgorithm::Ring | CollectiveAlgorithm::Direct, P::AllReduce) => {
            unreachable!("it is two stages")
        }
        (CollectiveAlgorithm::Own(_), _) => unreachable!("there is none here"),
    }
}

/// Returns the phases of `kind` over all of `dims`, as (dimension, algorithm, primitive, bytes,
/// parts).
pub fn list_collective_phases(
    dims: &[Dim],
    kind: CollectiveKind,
    comm_size: u64,
) -> Vec<(
    usize,
    CollectiveAlgorithm,
    CollectiveStagePrimitive,
    u64,
    u64,
)> {
    use CollectiveKind as K;
    let size = |range: std::ops::Range<usize>| -> u64 {
        dims[range].iter().map(|dim| u64::from(dim.size)).product()
    };
    let d = dims.len();
    let bytes = match kind {
        K::AllGather | K::Gather => comm_size * size(0..d),
        K::Barrier => 0,
        _ => comm_size,
    };
    // The share of the buffer that remains once the inner dimensions have scattered it.
    let inside = |i: usize| size(0..i);
    // Share that a line has while the outer dimensions have not been gathered yet.
    let outside = |i: usize| size(i + 1..d);
    let out = |what, parts: &dyn Fn(usize) -> u64| -> Vec<_> {
        (0..d).map(|i| (i, what, bytes, parts(i))).collect()
    };
    let back = |mut outward: Vec<_>| {
        outward.reverse();
        outward
    };
    let mut all = match kind {
        K::AllReduce => {
            let mut both = out(CollectiveStagePrimitive::ReduceScatter, &inside);
            both.extend(back(out(CollectiveStagePrimitive::AllGather, &inside)));
            both.retain(|(i, ..)| dims[*i].size > 1);
            // The last phase on the way out and the first phase on the way back use the same dimension, one right after
            // the other.
            let last = dims.iter().rposition(|dim| dim.size > 1);
            if let Some(last) =
                last.filter(|&d| all_reduces_in_one_stage(dims[d].algorithm, dims[d].size))
            {
                let out = both.iter().position(|stage| stage.0 == last).unwrap();
                both.remove(out + 1);
                both[out].1 = CollectiveStagePrimitive::AllReduce;
            }
            both
        }
        K::ReduceScatter => out(CollectiveStagePrimitive::ReduceScatter, &inside),
        K::AllGather | K::Barrier => back(out(CollectiveStagePrimitive::AllGather, &inside)),
        K::AllToAll => out(CollectiveStagePrimitive::AllToAll, &|_| 1),
        K::Broadcast => back(out(CollectiveStagePrimitive::Broadcast, &|_| 1)),
        K::Reduce => out(CollectiveStagePrimitive::Reduce, &|_| 1),
        K::Gather => out(CollectiveStagePrimitive::Gather, &outside),
        K::Scatter => back(out(CollectiveStagePrimitive::Scatter, &outside)),
    };
    all.retain(|(i, ..)| dims[*i].size > 1);
    let how = |(i, what, bytes, parts): (usize, CollectiveStagePrimitive, u64, u64)| {
        let algorithm = resolve_stage_algorithm(dims[i].algorithm, what, dims[i].size);
        (i, algorithm, what, bytes, parts)
    };
    all.into_iter().map(how).collect()
}

/// Returns the time of `kind` over all of `dims` if all members start together: the phases run one after another, and
/// all members of a line begin each phase together.
pub fn compute_collective_time(
    dims: &[Dim],
    kind: CollectiveKind,
    comm_size: u64,
    root: u32,
) -> u64 {
    let phases = list_collective_phases(dims, kind, comm_size);
    // On a ring, the partner at index XOR k is not equally far from every member.
    let apart = |(d, how, ..): &(
        usize,
        CollectiveAlgorithm,
        CollectiveStagePrimitive,
        u64,
        u64,
    )| {
        let Dim { shape, size, .. } = dims[*d];
        *how == CollectiveAlgorithm::Pairwise
            && shape == DimensionShape::Ring
            && size >= 8
            && size.count_ones() == 1
    };
    if phases.iter().any(apart) {
        let starts = vec![0; dims.iter().map(|dim| dim.size as usize).product()];
        let ends =
            naive::simulate_collective_end_per_npu(dims, kind, comm_size, root as usize, &starts);
        return ends.into_iter().max().unwrap_or(0);
    }
    let stride = |i: usize| dims[..i].iter().map(|dim| dim.size).product::<u32>();
    phases
        .into_iter()
        .map(|(i, how, what, bytes, parts)| {
            let root = root / stride(i) % dims[i].size;
            compute_phase_time(&dims[i], (how, what, bytes, parts), root)
        })
        .sum()
}
