//! Detects states in which ASTRA-sim would certainly wait forever although this replay continues.
//!
//! - *Numbers*. In a collective of all NPUs, ASTRA-sim identifies a chunk by the number of chunks that the NPU issued
//!   before it. This number includes the chunks of all dimensions and of named groups. Members that have issued
//!   different numbers of chunks therefore wait for different messages. The chunk with the lowest number never finds a
//!   partner, because an NPU's numbers only increase and an NPU has only one collective in flight at a time.
//! - *Alone*. If no dimension with more than one NPU takes part in a collective, it has no chunks. Without a last
//!   chunk, the collective never ends.
//! - *Asleep*. If a node ends immediately, ASTRA-sim checks its dependents only when another node of the same rank
//!   ends. If no other node is in flight, it never checks them.
//!
//! The replay reports only the first such state, because ASTRA-sim's behaviour after it is unknown.

use chakram_base::ids::Npu;
use std::collections::BTreeMap;
use std::fmt;

/// A state in which ASTRA-sim would wait forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndlessWait {
    /// NPUs join a collective of all NPUs after they have issued unequal numbers of chunks.
    Numbers {
        /// The NPU that has issued the fewest chunks, its node, and its number of chunks.
        own: (Npu, u64, u64),
        /// The NPU that has issued the most chunks, and its number of chunks.
        other: (Npu, u64),
    },
    /// Only one NPU takes part in a collective.
    Alone {
        /// The NPU that takes part.
        npu: Npu,
        /// Id of the collective's node.
        node: u64,
    },
    /// A node of an NPU is ready, but ASTRA-sim never checks it.
    Asleep {
        /// NPU with a node that ASTRA-sim never checks.
        npu: Npu,
    },
}

impl fmt::Display for EndlessWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the original would never finish this job: ")?;
        match self {
            Self::Numbers {
                own: (npu, node, number),
                other: (other, before),
            } => write!(
                f,
                "rank {npu} reaches the collective of all ranks at node {node} after {number} chunks of \
                 collectives, including named groups, but rank {other} after {before}; the original matches \
                 collectives by this number"
            ),
            Self::Alone { npu, node } => write!(
                f,
                "the collective of rank {npu} node {node} has no other member, so no chunk of it ends"
            ),
            Self::Asleep { npu } => write!(
                f,
                "rank {npu} has nothing in progress, so it does not notice nodes that became ready \
                 when a node without work ended"
            ),
        }
    }
}

/// How many chunks the NPUs have issued.
#[derive(Clone, Debug, Default)]
pub(super) struct EndlessWaitDetectorByIssuedChunks {
    /// Number of chunks that each NPU has issued so far.
    issued: Vec<u64>,
    /// Collectives of all NPUs that some members have not joined yet, by index.
    open: BTreeMap<u32, FewestAndMostChunksIssuedAtJoin>,
    /// The collective in [`Self::first`], as long as members may still join it.
    found: Option<u32>,
    /// First state in which ASTRA-sim would wait forever.
    pub first: Option<EndlessWait>,
}

/// Lowest and highest number of chunks that a member had issued when it joined a collective. With equal numbers, the
/// lowest NPU is kept, so that the order in which members join at an instant does not matter.
#[derive(Clone, Copy, Debug)]
struct FewestAndMostChunksIssuedAtJoin {
    /// Lowest number of chunks, the NPU that issued them, and that NPU's node.
    fewest: (u64, Npu, u64),
    /// Highest number of chunks, and the NPU that issued them.
    most: (u64, Npu),
    /// Number of members that have joined.
    come: u32,
}

impl EndlessWaitDetectorByIssuedChunks {
    pub fn new(npus: u32) -> Self {
        Self {
            issued: vec![0; npus as usize],
            ..Self::default()
        }
    }

    pub fn record_first_endless_wait(&mut self, beyond: EndlessWait) {
        self.first.get_or_insert(beyond);
    }

    /// Records that an NPU joins a collective of `chunks` chunks among `members`. `of_all` is the collective's index if
    /// all NPUs are members, otherwise `None`.
    pub fn record_collective_join(
        &mut self,
        npu: Npu,
        node: u64,
        chunks: u64,
        members: u32,
        of_all: Option<u32>,
    ) {
        let Some(issued) = self.issued.get_mut(npu.index()) else {
            return;
        };
        let number = *issued;
        *issued += chunks;
        let Some(collective) = of_all else {
            return;
        };
        let all = self
            .open
            .entry(collective)
            .or_insert(FewestAndMostChunksIssuedAtJoin {
                fewest: (number, npu, node),
                most: (number, npu),
                come: 0,
            });
        all.come += 1;
        all.fewest = all.fewest.min((number, npu, node));
        if number > all.most.0 || (number == all.most.0 && npu < all.most.1) {
            all.most = (number, npu);
        }
        let all = *all;
        let ((fewest, npu, node), (most, other)) = (all.fewest, all.most);
        if fewest < most && (self.first.is_none() || self.found == Some(collective)) {
            self.found = Some(collective);
            self.first = Some(EndlessWait::Numbers {
                own: (npu, node, fewest),
                other: (other, most),
            });
        }
        if all.come == members {
            self.open.remove(&collective);
            self.found = self.found.filter(|&found| found != collective);
        }
    }
}
