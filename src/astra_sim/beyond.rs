//! Where a replay goes on and the original would wait for ever, as far as it can be known for certain.
//!
//! - *Numbers*. The original tells the chunks of collectives of all NPUs, whatever dimensions take part, by how
//!   many chunks an NPU has issued before, of named groups too. So members that have issued different numbers
//!   of them wait for different messages: the chunk with the lowest number of all has no partner, and none
//!   comes later, because numbers grow and one collective of an NPU is under way at a time.
//! - *Alone*. A collective in which no dimension of more than one NPU takes part has no chunks, and so no last
//!   one whose end would end it.
//! - *Asleep*. What a node that ends at once sets free is looked at when another node of its rank ends, and
//!   none is under way.
//!
//! What the original does after the first of these is not known, so the first alone is told.

use crate::ids::Npu;
use std::collections::BTreeMap;
use std::fmt;

/// Where the original would wait for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beyond {
    /// NPUs come to a collective of all with different numbers of chunks before.
    Numbers {
        /// The later one, its node, and its number.
        own: (Npu, u64, u64),
        /// The first one, and its number.
        other: (Npu, u64),
    },
    /// A collective has nobody but one NPU.
    Alone {
        /// The NPU.
        npu: Npu,
        /// Its node.
        node: u64,
    },
    /// A ready node of an NPU is never looked at.
    Asleep {
        /// The NPU.
        npu: Npu,
    },
}

impl fmt::Display for Beyond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the original would never finish this job: ")?;
        match self {
            Self::Numbers {
                own: (npu, node, number),
                other: (other, before),
            } => write!(
                f,
                "rank {npu} comes to the collective of all ranks at its node {node} with {number} chunks of \
                 collectives before, of named groups too, and rank {other} with {before}; it tells them apart \
                 by that number"
            ),
            Self::Alone { npu, node } => write!(
                f,
                "the collective of rank {npu} node {node} has no other member, and so no chunk that ends"
            ),
            Self::Asleep { npu } => write!(
                f,
                "at rank {npu}, nothing is under way whose end would have it look at nodes that one without \
                 work set free"
            ),
        }
    }
}

/// Counts what NPUs have issued.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    /// Chunks so far, by NPU.
    issued: Vec<u64>,
    /// Of each collective of all NPUs that not all members have issued: who came first, with which number, and
    /// how many have come.
    open: BTreeMap<u32, (Npu, u64, u32)>,
    /// The first place where the original would wait.
    pub first: Option<Beyond>,
}

impl Counts {
    pub fn new(npus: u32) -> Self {
        Self {
            issued: vec![0; npus as usize],
            ..Self::default()
        }
    }

    pub fn found(&mut self, beyond: Beyond) {
        self.first.get_or_insert(beyond);
    }

    /// An NPU comes to a collective of as many `chunks`, with `members` all told; `of_all` gives its number if
    /// it is one of all NPUs.
    pub fn joins(&mut self, npu: Npu, node: u64, chunks: u64, members: u32, of_all: Option<u32>) {
        let Some(issued) = self.issued.get_mut(npu.index()) else {
            return;
        };
        let number = *issued;
        *issued += chunks;
        let Some(collective) = of_all else {
            return;
        };
        let (other, before, come) = self.open.entry(collective).or_insert((npu, number, 0));
        *come += 1;
        let (other, before) = (*other, *before);
        if *come == members {
            self.open.remove(&collective);
        }
        if before != number {
            self.found(Beyond::Numbers {
                own: (npu, node, number),
                other: (other, before),
            });
        }
    }
}
