//! Lists the names of operators that request communication, and of intervals in which libraries communicate. They are
//! used to match operators with intervals.

use chakram_trace::format::CollectiveKind;

/// Kind of communication that a library's name states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CollectiveOrMessageKind {
    /// All-reduce.
    AllReduce,
    /// Reduce-scatter; gloo implements it as an all-reduce.
    ReduceScatter,
    /// All-gather.
    AllGather,
    /// All-to-all.
    AllToAll,
    /// Broadcast.
    Broadcast,
    /// Reduction to a root.
    Reduce,
    /// Gather to a root.
    Gather,
    /// Scatter from a root.
    Scatter,
    /// Barrier.
    Barrier,
    /// Send of a message.
    Send,
    /// Receipt of a message.
    Receive,
}

impl CollectiveOrMessageKind {
    /// Returns true if this kind is a send or a receive.
    pub fn is_message(self) -> bool {
        matches!(self, Self::Send | Self::Receive)
    }

    /// Returns true if an interval of kind `carrier` may execute a request of this kind.
    pub fn can_be_executed_by_interval(self, carrier: Self) -> bool {
        self == carrier || self == Self::ReduceScatter && carrier == Self::AllReduce
    }

    /// Returns the kind of collective, or `None` for messages.
    pub fn collective_kind(self) -> Option<CollectiveKind> {
        Some(match self {
            Self::AllReduce => CollectiveKind::AllReduce,
            Self::ReduceScatter => CollectiveKind::ReduceScatter,
            Self::AllGather => CollectiveKind::AllGather,
            Self::AllToAll => CollectiveKind::AllToAll,
            Self::Broadcast => CollectiveKind::Broadcast,
            Self::Reduce => CollectiveKind::Reduce,
            Self::Gather => CollectiveKind::Gather,
            Self::Scatter => CollectiveKind::Scatter,
            Self::Barrier => CollectiveKind::Barrier,
            Self::Send | Self::Receive => return None,
        })
    }

    fn from_name(plain: &str) -> Option<Self> {
        const BEGINNINGS: [(&str, CollectiveOrMessageKind); 13] = [
            ("allreduce", CollectiveOrMessageKind::AllReduce),
            ("all_reduce", CollectiveOrMessageKind::AllReduce),
            ("reduce_scatter", CollectiveOrMessageKind::ReduceScatter),
            ("allgather", CollectiveOrMessageKind::AllGather),
            ("all_gather", CollectiveOrMessageKind::AllGather),
            ("alltoall", CollectiveOrMessageKind::AllToAll),
            ("all_to_all", CollectiveOrMessageKind::AllToAll),
            ("broadcast", CollectiveOrMessageKind::Broadcast),
            ("reduce", CollectiveOrMessageKind::Reduce),
            ("gather", CollectiveOrMessageKind::Gather),
            ("scatter", CollectiveOrMessageKind::Scatter),
            ("barrier", CollectiveOrMessageKind::Barrier),
            ("send", CollectiveOrMessageKind::Send),
        ];
        let plain = plain.trim_start_matches('_');
        if plain.starts_with("recv") {
            return Some(Self::Receive);
        }
        let found = BEGINNINGS
            .iter()
            .find(|(begin, _)| plain.starts_with(begin));
        found.map(|(_, kind)| *kind)
    }
}

/// Returns the kind of communication that the `c10d` operator `name` requests, or `None` for other
/// operators.
pub(super) fn comm_kind_of_operator(name: &str) -> Option<CollectiveOrMessageKind> {
    CollectiveOrMessageKind::from_name(name.strip_prefix("c10d::")?)
}

/// Returns the kind of communication that an interval executes, such as `gloo:all_reduce` or
/// `nccl:all_to_all`.
pub(super) fn comm_kind_of_interval(name: &str) -> Option<CollectiveOrMessageKind> {
    let (library, plain) = name.split_once(':')?;
    let known = ["gloo", "nccl", "mpi", "ucc", "xccl", "hccl"].contains(&library);
    CollectiveOrMessageKind::from_name(plain).filter(|_| known && !plain.starts_with(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_and_their_carriers_are_of_one_kind() {
        for (operator, carrier) in [
            ("c10d::allreduce_", "gloo:all_reduce"),
            ("c10d::_reduce_scatter_base_", "gloo:all_reduce"),
            ("c10d::_allgather_base_", "nccl:_all_gather_base"),
            ("c10d::alltoall_base_", "nccl:all_to_all"),
            ("c10d::recv_", "gloo:recv"),
        ] {
            let (asked, made) = (
                comm_kind_of_operator(operator),
                comm_kind_of_interval(carrier),
            );
            let fits = asked
                .zip(made)
                .is_some_and(|(asked, made)| asked.can_be_executed_by_interval(made));
            assert!(fits, "{operator} {asked:?}, {carrier} {made:?}");
        }
        assert_eq!(comm_kind_of_interval("nccl:coalesced"), None);
        assert_eq!(comm_kind_of_interval("c10d::send"), None);
        assert_eq!(comm_kind_of_operator("aten::reduce"), None);
    }
}
