//! Typed indices, so that an index of one kind cannot be mistaken for another.

/// Maximum number of NPUs in a machine, and of ranks in a job.
pub const MAX_NPUS: u32 = 1 << 22;

/// Declares an index type, which stores 32 bits unless the caller names another integer type.
#[macro_export]
macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $crate::index!($(#[$doc])* $name: u32);
    };
    ($(#[$doc:meta])* $name:ident: $number:ty) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
            ::serde::Serialize, ::serde::Deserialize,
        )]
        #[cfg_attr(any(test, feature = "schema"), derive(::schemars::JsonSchema))]
        pub struct $name(pub $number);

        impl $name {
            /// Returns the index as `usize`, for use in arrays.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(&self.0, f)
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
    /// A participant of the job. Ranks are numbered from 0.
    Rank
);
index!(
    /// A simulated accelerator. NPUs are numbered from 0. The coordinate in the innermost dimension varies fastest.
    Npu
);
index!(
    /// An endpoint of routes in the network: an NPU or a memory. NPU n is endpoint n, and memories on the network are
    /// numbered after the NPUs.
    EndpointId
);
index!(
    /// A node's index in its graph. Nodes are in ascending order of their ids in the file.
    NodeIndex
);
index!(
    /// An operation in flight in the network: a message, load or store. After an operation completes, its index is
    /// reused.
    OpIndex
);
index!(
    /// Index of a graph in a workload. Ranks with equal work share a graph.
    GraphId
);
index!(
    /// Index of a group in a workload.
    GroupId
);
index!(
    /// A member of a group: its index in the group's order.
    MemberIndex
);
index!(
    /// A member's index in the order in which members are placed on the machine. The index in the innermost phase
    /// varies fastest.
    Position
);
index!(
    /// Index of a stage that a chunk of a collective passes through. Chunks pass through their stages in ascending
    /// order.
    StageIndex: u16
);

/// Formats ascending numbers as ranges such as `0-3, 5`.
pub fn format_numbers_as_ranges(numbers: &[u32]) -> String {
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
    use super::format_numbers_as_ranges;

    #[test]
    fn consecutive_numbers_form_one_range() {
        assert_eq!(format_numbers_as_ranges(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
        assert_eq!(format_numbers_as_ranges(&[u32::MAX]), "4294967295");
        assert_eq!(format_numbers_as_ranges(&[]), "");
    }
}
