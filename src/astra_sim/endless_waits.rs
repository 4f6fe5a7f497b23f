//! Detection of states in which ASTRA-sim would wait forever while this replay continues, if this
//! is certain.
//!
//! - *Numbers*. ASTRA-sim identifies the chunks of collectives of all NPUs, along any dimensions,
//!   by the number of chunks that an NPU has issued before, including chunks of named groups.
//!   Members that have issued different numbers of chunks wait for different messages. The chunk
//!   with the lowest number never gets a partner, because numbers grow and an NPU has one
//!   collective in flight at a time.
//! - *Alone*. A collective in which no dimension of more than one NPU takes part has no chunks, and therefore no last
//!   chunk whose end would end the collective.
//! - *Asleep*. Nodes made ready by a node that ends at once are checked only when another node of
//!   their rank ends, but no node of the rank is in flight.
//!
//! The behaviour of ASTRA-sim after the first such state is unknown, so only the first is reported.

use chakram_base::ids::Npu;
use std::collections::BTreeMap;
use std::fmt;

/// A state in which ASTRA-sim would wait forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndlessWait {
    /// NPUs that have issued different numbers of chunks join a collective of all NPUs.
    Numbers {
        /// The NPU with the fewest chunks, its node, and its number of chunks.
        own: (Npu, u64, u64),
        /// The NPU with the most chunks, and its number of chunks.
        other: (Npu, u64),
    },
    /// A collective has only one NPU.
    Alone {
        /// The NPU.
        npu: Npu,
        /// Node of the collective.
        node: u64,
    },
    /// A ready node of an NPU is never checked.
    Asleep {
        /// The NPU.
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

/// Counts of chunks that NPUs have issued.
#[derive(Clone, Debug, Default)]
pub(super) struct IssueCounts {
    /// Chunks so far, by NPU.
    issued: Vec<u64>,
    /// Collectives of all NPUs that some members have not issued yet.
    open: BTreeMap<u32, MemberNumbers>,
    /// The collective that [`Self::first`] describes, while it is open.
    found: Option<u32>,
    /// First state in which the original would wait forever.
    pub first: Option<EndlessWait>,
}

/// Numbers of chunks that the members of a collective have issued before. Of NPUs with equal
/// numbers the lowest NPU is kept, so that the order in which members join at an instant does not
/// matter.
#[derive(Clone, Copy, Debug)]
struct MemberNumbers {
    /// The fewest chunks, the NPU, and its node.
    fewest: (u64, Npu, u64),
    /// The most chunks, and the NPU.
    most: (u64, Npu),
    /// Number of members that have joined.
    come: u32,
}

impl IssueCounts {
    pub fn new(npus: u32) -> Self {
        Self {
            issued: vec![0; npus as usize],
            ..Self::default()
        }
    }

    pub fn found(&mut self, beyond: EndlessWait) {
        self.first.get_or_insert(beyond);
    }

    /// Records that an NPU joins a collective of `chunks` chunks among `members`; `of_all` is the
    /// collective's number if all NPUs are its members.
    pub fn joins(&mut self, npu: Npu, node: u64, chunks: u64, members: u32, of_all: Option<u32>) {
        let Some(issued) = self.issued.get_mut(npu.index()) else {
            return;
        };
        let number = *issued;
        *issued += chunks;
        let Some(collective) = of_all else {
            return;
        };
        let all = self.open.entry(collective).or_insert(MemberNumbers {
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
