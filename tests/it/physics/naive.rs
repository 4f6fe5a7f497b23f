//! Simulates collectives message by message, without an event loop. Corrects guessed times until they are consistent.
//!
//! If a ring algorithm uses both directions, each direction is a separate strand with half of the data.
//!
//! Every message has three times: when it begins to leave, when its first byte arrives, and when its last byte arrives.
//! All three follow from the times of earlier messages, so applying the rules repeatedly converges from any guess;
//! earlier times settle first.

use super::oracle::{list_collective_phases, rounded_transfer_ps};
use super::programs;
use super::rig::Dim;
use chakram::extend::CollectiveStagePrimitive;
use chakram::machine::CollectiveAlgorithm;
use chakram::topology::DimensionShape;
use chakram::trace::CollectiveKind;

/// What must happen before a message is sent.
#[derive(Clone, Debug, PartialEq)]
pub enum MessageSendPrecondition {
    /// The member has received this many messages.
    Count(usize),
    /// The member has received messages from these members.
    From(Vec<u32>),
}

/// A message in a member's program for one line: the receiver's index, the condition, and the size
/// as a fraction of the line's buffer.
pub type MemberProgramMessage = (u32, MessageSendPrecondition, (u64, u64));

/// Returns the messages that the member `index` of a line of `n` sends, in order.
fn list_messages_of_member(
    algorithm: CollectiveAlgorithm,
    what: CollectiveStagePrimitive,
    n: u32,
    index: u32,
    root: u32,
) -> Vec<MemberProgramMessage> {
    use CollectiveStagePrimitive as P;
    if !matches!(
        algorithm,
        CollectiveAlgorithm::Ring | CollectiveAlgorithm::Direct
    ) {
        return programs::list_messages_member_sends_in_algorithm(algorithm, what, n, index, root);
    }
    let split = match (algorithm, what) {
        (CollectiveAlgorithm::Direct, P::Broadcast | P::Reduce) => 1,
        _ => u64::from(n),
    };
    let posts = list_ring_and_direct_sends(algorithm, what, n, index, root).into_iter();
    posts
        .map(|(to, count)| (to, MessageSendPrecondition::Count(count), (1, split)))
        .collect()
}

/// Returns the messages of rings and direct exchanges: the receiver's index, and how many messages must be received
/// before each is sent.
fn list_ring_and_direct_sends(
    algorithm: CollectiveAlgorithm,
    what: CollectiveStagePrimitive,
    n: u32,
    index: u32,
    root: u32,
) -> Vec<(u32, usize)> {
    use CollectiveStagePrimitive as P;
    let next = (index + 1) % n;
    // Number of members from the root to this member, and from this member to the root.
    let from_root = ((index + n - root) % n) as usize;
    let to_root = ((root + n - index) % n) as usize;
    let (is_root, all) = (from_root == 0, n as usize);
    let relay = |count: usize, first: usize| (0..count).map(|i| (next, first + i)).collect();
    let free = |count: usize| (0..count).map(|_| (next, 0)).collect();
    let others = || (1..n).map(|k| ((index + k) % n, 0)).collect();
    match (algorithm, what) {
        (CollectiveAlgorithm::Ring, P::ReduceScatter | P::AllGather) => relay(all - 1, 0),
        (CollectiveAlgorithm::Ring, P::AllToAll) => relay(all * (all - 1) / 2, 0),
        (CollectiveAlgorithm::Ring, P::Broadcast) if is_root => free(all),
        (CollectiveAlgorithm::Ring, P::Broadcast) if from_root == all - 1 => Vec::new(),
        (CollectiveAlgorithm::Ring, P::Broadcast) => relay(all, 1),
        (CollectiveAlgorithm::Ring, P::Reduce) if is_root => Vec::new(),
        (CollectiveAlgorithm::Ring, P::Reduce) if to_root == all - 1 => free(all),
        (CollectiveAlgorithm::Ring, P::Reduce) => relay(all, 1),
        (CollectiveAlgorithm::Ring, P::Gather) if is_root => Vec::new(),
        (CollectiveAlgorithm::Ring, P::Gather) => relay(all - to_root, 0),
        (CollectiveAlgorithm::Ring, P::Scatter) if is_root => free(all - 1),
        (CollectiveAlgorithm::Ring, P::Scatter) => relay(all - 1 - from_root, 1),
        (_, P::ReduceScatter | P::AllGather | P::AllToAll) => others(),
        (_, P::Broadcast | P::Scatter) if is_root => others(),
        (_, P::Reduce | P::Gather) if !is_root => vec![(root, 0)],
        _ => Vec::new(),
    }
}

/// A message and its guessed times.
struct MessageWithGuessedTimes {
    from: usize,
    to: usize,
    stage: usize,
    strand: u32,
    dimension: usize,
    needs: MessageSendPrecondition,
    /// The indices of the sender and the receiver in their line.
    index: u32,
    to_index: u32,
    /// Size of the message, as a fraction of the buffer.
    bytes: (u64, u64),
    latency: u64,
    s: u64,
    first_byte: u64,
    delivered: u64,
}

/// Returns the time when each NPU's part ends on a machine of `dims`, for the start times `starts`.
pub fn simulate_collective_end_per_npu(
    dims: &[Dim],
    kind: CollectiveKind,
    comm_size: u64,
    root: usize,
    starts: &[u64],
) -> Vec<u64> {
    let stages = list_collective_phases(dims, kind, comm_size);
    simulate_end_of_stages_on_each_npu(dims, &stages, root, starts)
}

/// Returns the time of a stage on a line of all NPUs of `dim`, if these NPUs start together.
pub fn simulate_line_time(
    dim: &Dim,
    stage: (CollectiveAlgorithm, CollectiveStagePrimitive, u64, u64),
    root: u32,
) -> u64 {
    let (algorithm, what, bytes, parts) = stage;
    let stages = [(0, algorithm, what, bytes, parts)];
    let starts = vec![0; dim.size as usize];
    let ends = simulate_end_of_stages_on_each_npu(&[*dim], &stages, root as usize, &starts);
    ends.into_iter().max().unwrap_or(0)
}

/// Returns the messages of a collective over all NPUs of `dims`, each with its sender, its receiver, and its bytes as a
/// fraction.
pub fn list_collective_messages(
    dims: &[Dim],
    kind: CollectiveKind,
    comm_size: u64,
    root: usize,
) -> Vec<SenderReceiverAndFraction> {
    let npus = dims.iter().map(|dim| dim.size as usize).product();
    let messages = build_untimed_messages_of_stages(
        dims,
        &list_collective_phases(dims, kind, comm_size),
        root,
        npus,
    );
    let sent = |m: MessageWithGuessedTimes| (m.from as u32, m.to as u32, m.bytes);
    messages.into_iter().map(sent).collect()
}

pub type SenderReceiverAndFraction = (u32, u32, (u64, u64));

/// Returns all messages of `stages`, without their times.
fn build_untimed_messages_of_stages(
    dims: &[Dim],
    stages: &[(
        usize,
        CollectiveAlgorithm,
        CollectiveStagePrimitive,
        u64,
        u64,
    )],
    root: usize,
    npus: usize,
) -> Vec<MessageWithGuessedTimes> {
    let stride = |d: usize| {
        dims[..d]
            .iter()
            .map(|dim| dim.size as usize)
            .product::<usize>()
    };
    let mut messages: Vec<MessageWithGuessedTimes> = Vec::new();
    for npu in 0..npus {
        for (stage, &(d, algorithm, what, bytes, parts)) in stages.iter().enumerate() {
            let (dim, step) = (&dims[d], stride(d));
            let n = dim.size;
            let along = |npu: usize| (npu / step) as u32 % n;
            // With a root, only lines that have data take part. In inner dimensions, these are the
            // lines that contain the root.
            if what.has_root() && npu % step != root % step {
                continue;
            }
            let index = along(npu);
            let root = if what.has_root() { along(root) } else { 0 };
            let round = algorithm == CollectiveAlgorithm::Ring
                && dim.shape == DimensionShape::Ring
                && n > 2;
            let strands = if round { 2 } else { 1 };
            for strand in 0..strands {
                // The reverse direction equals the forward direction of a line that is counted from
                // its end.
                let seen = |x: u32| if strand == 0 { x } else { n - 1 - x };
                for (to, needs, (numerator, denominator)) in
                    list_messages_of_member(algorithm, what, n, seen(index), seen(root))
                {
                    let to = seen(to);
                    messages.push(MessageWithGuessedTimes {
                        from: npu,
                        to: npu - index as usize * step + to as usize * step,
                        stage,
                        strand,
                        dimension: d,
                        needs,
                        index,
                        to_index: to,
                        bytes: (bytes * numerator, parts * denominator * u64::from(strands)),
                        latency: 0,
                        s: 0,
                        first_byte: 0,
                        delivered: 0,
                    });
                }
            }
        }
    }
    messages
}

/// Returns the times when all NPUs' parts of a list of stages end.
fn simulate_end_of_stages_on_each_npu(
    dims: &[Dim],
    stages: &[(
        usize,
        CollectiveAlgorithm,
        CollectiveStagePrimitive,
        u64,
        u64,
    )],
    root: usize,
    starts: &[u64],
) -> Vec<u64> {
    let mut messages = build_untimed_messages_of_stages(dims, stages, root, starts.len());
    for m in &mut messages {
        let dim = &dims[m.dimension];
        m.latency = dim.latency_ps_at_distance(m.to_index.abs_diff(m.index));
        m.s = rounded_transfer_ps(m.bytes.0, m.bytes.1, dim.link_ps_per_byte());
    }
    for _ in 0..100_000 {
        let before: Vec<_> = messages
            .iter()
            .map(|m| (m.first_byte, m.delivered))
            .collect();
        let ends = (0..starts.len())
            .map(|npu| compute_npu_sends_and_end(&mut messages, npu, starts[npu], stages.len()));
        let ends: Vec<_> = ends.collect();
        for npu in 0..starts.len() {
            for (d, dim) in dims.iter().enumerate() {
                for from_above in [false, true] {
                    compute_port_receives(&mut messages, npu, dim, (d, from_above));
                }
            }
        }
        let unchanged =
            |(m, b): (&MessageWithGuessedTimes, &(u64, u64))| (m.first_byte, m.delivered) == *b;
        if messages.iter().zip(&before).all(unchanged) {
            return ends;
        }
    }
    panic!("no times fit");
}

/// Computes the sends of `npu`. Each leaves as early as the guessed receives allow. Returns the time when the NPU's
/// part ends.
fn compute_npu_sends_and_end(
    messages: &mut [MessageWithGuessedTimes],
    npu: usize,
    start: u64,
    stages: usize,
) -> u64 {
    let mut now = start;
    for stage in 0..stages {
        let strands =
            [0, 1].map(|strand| compute_strand_sends_and_end(messages, npu, now, (stage, strand)));
        now = strands[0].max(strands[1]);
    }
    now
}

/// Computes the sends of one strand in a stage that begins at `now`, and returns the time when the strand ends.
fn compute_strand_sends_and_end(
    messages: &mut [MessageWithGuessedTimes],
    npu: usize,
    mut now: u64,
    (stage, strand): (usize, u32),
) -> u64 {
    let of_strand = |m: &&MessageWithGuessedTimes| m.stage == stage && m.strand == strand;
    let to_here = messages.iter().filter(|m| m.to == npu).filter(of_strand);
    let mut receptions: Vec<_> = to_here.map(|m| (m.delivered, m.index)).collect();
    receptions.sort_unstable();
    let needed = |needs: &MessageSendPrecondition| match needs {
        MessageSendPrecondition::Count(0) => 0,
        MessageSendPrecondition::Count(count) => receptions[count - 1].0,
        MessageSendPrecondition::From(senders) => {
            let theirs = receptions.iter().filter(|(_, from)| senders.contains(from));
            theirs.map(|(at, _)| *at).max().unwrap_or(0)
        }
    };
    let own = messages.iter_mut();
    let own = own.filter(|m| m.from == npu && m.stage == stage && m.strand == strand);
    for m in own {
        now = now.max(needed(&m.needs));
        m.first_byte = now + m.latency;
        now += m.s;
    }
    now.max(receptions.last().map_or(0, |last| last.0))
}

/// Computes the receives at the port of `npu` in a dimension (on a ring, from one side), in the order of first bytes.
/// Of messages that arrive at the same time, the one of the earlier stage goes first; within a stage, the one from the
/// lower sender does.
fn compute_port_receives(
    messages: &mut [MessageWithGuessedTimes],
    npu: usize,
    dim: &Dim,
    (d, from_above): (usize, bool),
) {
    let n = dim.size;
    let above = |m: &MessageWithGuessedTimes| match dim.shape {
        DimensionShape::Ring => 2 * ((m.to_index + n - m.index) % n) > n,
        DimensionShape::Mesh => m.to_index < m.index,
        DimensionShape::FullyConnected | DimensionShape::Switch => false,
    };
    let mut here: Vec<_> = messages
        .iter_mut()
        .filter(|m| m.to == npu && m.dimension == d && above(m) == from_above)
        .collect();
    here.sort_by_key(|m| (m.first_byte, m.stage, m.from));
    let mut free = 0;
    for m in here {
        free = free.max(m.first_byte) + m.s;
        m.delivered = free;
    }
}
