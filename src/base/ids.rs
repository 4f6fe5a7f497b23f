//! Small integer names for things, so that an index of one kind cannot be used for another.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The most NPUs a machine may have, and the most ranks a job.
pub const MAX_NPUS: u32 = 1 << 22;

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
        pub struct $name(pub u32);

        impl $name {
            /// The position in an array.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

impl From<Npu> for EndpointId {
    fn from(npu: Npu) -> Self {
        Self(npu.0)
    }
}

index!(
    /// A participant of the job, from 0.
    Rank
);
index!(
    /// A simulated accelerator, from 0; its coordinates count the innermost dimension fastest.
    Npu
);
index!(
    /// An end of the network's routes: NPU n is endpoint n, and the memories that lie at the network follow.
    EndpointId
);
index!(
    /// A node inside one graph: its position in ascending order of the file's ids.
    NodeIndex
);
index!(
    /// A graph of a workload; ranks that do the same share one.
    GraphId
);
index!(
    /// A group of a workload.
    GroupId
);

/// Formats ascending numbers as ranges: `0-3, 5`.
pub fn ranges(numbers: &[u32]) -> String {
    let runs = numbers.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    let texts = runs.map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        [only] => only.to_string(),
        [] => String::new(),
    });
    texts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::ranges;

    #[test]
    fn neighbours_are_one_range() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
        assert_eq!(ranges(&[u32::MAX]), "4294967295");
        assert_eq!(ranges(&[]), "");
    }
}
