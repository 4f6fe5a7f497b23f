//! One or more collectives of the same kind, among all ranks or among a group of ranks.

use super::{
    MOST_NODES, PatternOptionError, TraceEmitter, TraceGenerator, build_workless_kernel_op,
    check_at_least, check_limit, check_rank_count, check_whole_ns, refused_option_value_error,
};
use chakram_base::units::Span;
use chakram_trace::format::groups::DeclaredGroups;
use chakram_trace::format::{CollectiveKind, GroupName, Op, TraceError};

/// Number of the declared group. Without one, all ranks are members.
const GROUP: u64 = 1;

/// `count` collectives that differ only in their names. Ranks outside the group have one empty kernel, so that every
/// rank has a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectivePattern {
    /// Kind of collective. Kinds with a root use `root`.
    pub kind: CollectiveKind,
    /// Size in bytes, defined like `comm_size` in trace files: the size of the whole buffer, or of one rank's shard for
    /// all-gather and gather. A barrier has no size.
    pub bytes: u64,
    /// Number of ranks.
    pub ranks: u32,
    /// Members in position order, or `None` for all ranks in rank order.
    pub group: Option<Vec<u32>>,
    /// Number of collectives.
    pub count: u32,
    /// True if each collective waits for the previous one; false if all are ready at the same time.
    pub chained: bool,
    /// Root of collectives that have one; by default the group's first member.
    pub root: Option<u32>,
    /// Bit mask of the machine's dimensions that the collective uses; the lowest bit is the innermost dimension. `None`
    /// means all of them.
    pub dimensions: Option<u32>,
    /// Time for which every member computes before its first collective, in whole nanoseconds.
    pub before: Span,
    /// Additional computing time per rank: before its first collective, rank r computes for `before + r * skew`. Whole
    /// nanoseconds. Like `before`, this is a recorded duration.
    pub skew: Span,
}

impl CollectivePattern {
    /// Returns one collective of `kind` among all `ranks`, with all members ready at time 0.
    pub fn new(kind: CollectiveKind, bytes: u64, ranks: u32) -> Self {
        Self {
            kind,
            bytes,
            ranks,
            group: None,
            count: 1,
            chained: false,
            root: None,
            dimensions: None,
            before: Span::ZERO,
            skew: Span::ZERO,
        }
    }

    pub(super) fn prepare_generator(self) -> Result<CollectiveGenerator, PatternOptionError> {
        check_rank_count(self.ranks, 1)?;
        check_at_least("count", self.count, 1)?;
        check_limit(
            "nodes of a rank",
            u128::from(self.count) + 1,
            MOST_NODES,
            "a lower count",
        )?;
        let members = match &self.group {
            Some(group) => {
                SubgroupMembersAndOutsider::from_validated_group_unless_world(group, self.ranks)?
            }
            None => None,
        };
        let size = members
            .as_ref()
            .map_or(self.ranks, |m| m.sorted.len() as u32);
        if self.kind == CollectiveKind::Barrier && self.bytes != 0 {
            return Err(refused_option_value_error(
                "bytes",
                self.bytes,
                "0, as a barrier moves nothing",
            ));
        }
        if self.kind.buffer_bytes(self.bytes, size).is_none() {
            let expected = format!("a buffer below 2^63 bytes over all of {size} members");
            return Err(refused_option_value_error("bytes", self.bytes, expected));
        }
        self.check_root(members.as_ref())?;
        if self.dimensions == Some(0) {
            return Err(refused_option_value_error(
                "dimensions",
                0,
                "a mask of at least one dimension",
            ));
        }
        check_whole_ns("before", self.before)?;
        check_whole_ns("skew", self.skew)?;
        // The last rank's delay must be below Time::END.
        let longest =
            u128::from(self.before.0) + u128::from(self.skew.0) * u128::from(self.ranks - 1);
        check_limit(
            "picoseconds before the last rank",
            longest,
            u64::MAX - 1,
            "a smaller skew",
        )?;
        Ok(CollectiveGenerator {
            options: self,
            members,
        })
    }

    fn check_root(
        &self,
        members: Option<&SubgroupMembersAndOutsider>,
    ) -> Result<(), PatternOptionError> {
        let Some(root) = self.root else {
            return Ok(());
        };
        if !self.kind.has_root() {
            let expected = format!(
                "no `root`, because the members of {} all have the same role",
                self.kind
            );
            return Err(refused_option_value_error("root", root, expected));
        }
        match members {
            Some(members) if !members.contains(root) => Err(refused_option_value_error(
                "root",
                root,
                "a member of the group",
            )),
            None if root >= self.ranks => {
                let expected = format!("a rank, 0 to {}", self.ranks - 1);
                Err(refused_option_value_error("root", root, expected))
            }
            _ => Ok(()),
        }
    }
}

/// A group that is not the world group.
#[derive(Debug)]
struct SubgroupMembersAndOutsider {
    sorted: Vec<u32>,
    /// The lowest rank outside the group, which represents all other ranks outside it; `None` if the group contains
    /// every rank.
    outsider: Option<u32>,
}

impl SubgroupMembersAndOutsider {
    /// Returns `None` if `group` is the world in rank order.
    fn from_validated_group_unless_world(
        group: &[u32],
        ranks: u32,
    ) -> Result<Option<Self>, PatternOptionError> {
        if group.is_empty() {
            return Err(refused_option_value_error(
                "group",
                "empty",
                "at least one rank",
            ));
        }
        if let Some(rank) = group.iter().find(|rank| **rank >= ranks) {
            let expected = format!("ranks from 0 to {}", ranks - 1);
            return Err(refused_option_value_error(
                "group",
                format!("with rank {rank}"),
                expected,
            ));
        }
        let mut sorted = group.to_vec();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            let found = format!("with rank {} twice", pair[0]);
            return Err(refused_option_value_error(
                "group",
                found,
                "each rank at most once",
            ));
        }
        // All ranks in rank order are the world group, which needs no declaration.
        if group.len() == ranks as usize && group == sorted {
            return Ok(None);
        }
        let outsider = (0..ranks).find(|rank| sorted.get(*rank as usize) != Some(rank));
        Ok(Some(Self { sorted, outsider }))
    }

    fn contains(&self, rank: u32) -> bool {
        self.sorted.binary_search(&rank).is_ok()
    }
}

/// Generator of collectives, with checked options.
#[derive(Debug)]
pub(super) struct CollectiveGenerator {
    options: CollectivePattern,
    members: Option<SubgroupMembersAndOutsider>,
}

impl CollectiveGenerator {
    fn takes_part(&self, rank: u32) -> bool {
        self.members
            .as_ref()
            .is_none_or(|members| members.contains(rank))
    }

    /// The rank at position 0.
    fn rank_of_first_member(&self) -> u32 {
        self.options.group.as_ref().map_or(0, |group| group[0])
    }

    /// Returns the computing time of a member before its first collective.
    fn delay_before_first_collective(&self, rank: u32) -> Span {
        self.options.before + self.options.skew.times(rank.into())
    }
}

impl TraceGenerator for CollectiveGenerator {
    fn suggest_smaller(&self) -> &'static str {
        "a lower count"
    }

    fn rank_count(&self) -> u32 {
        self.options.ranks
    }

    fn declared_groups(&self) -> DeclaredGroups {
        match (&self.members, &self.options.group) {
            (Some(_), Some(group)) => DeclaredGroups::from([(GROUP.to_string(), group.clone())]),
            _ => DeclaredGroups::new(),
        }
    }

    fn shape_class_of_rank(&self, rank: u32) -> u32 {
        match &self.members {
            Some(members) if !members.contains(rank) => members.outsider.unwrap_or(rank),
            // With a skew, members have different delays, so each member represents only itself.
            _ if self.options.skew != Span::ZERO => rank,
            Some(members) => members.sorted[0],
            None => 0,
        }
    }

    fn node_count_of_rank(&self, rank: u32) -> u64 {
        if self.takes_part(rank) {
            u64::from(self.options.count)
                + u64::from(self.delay_before_first_collective(rank) != Span::ZERO)
        } else {
            1
        }
    }

    fn emit_nodes(&self, rank: u32, out: &mut TraceEmitter<'_>) -> Result<(), TraceError> {
        if !self.takes_part(rank) {
            return out.emit_placeholder_for_idle_rank();
        }
        let CollectivePattern { kind, root, .. } = self.options;
        let op = Op::Collective {
            kind,
            bytes: self.options.bytes,
            group: match self.members {
                Some(_) => GroupName::Number(GROUP),
                None => GroupName::World,
            },
            root: kind
                .has_root()
                .then(|| root.unwrap_or_else(|| self.rank_of_first_member())),
            dimensions: self.options.dimensions,
            host: false,
        };
        let mut before = None;
        let lateness = self.delay_before_first_collective(rank);
        if lateness != Span::ZERO {
            out.set_name(format_args!("before"));
            before = Some(out.emit_node(build_workless_kernel_op(), None, lateness, &[])?);
        }
        for i in 0..self.options.count {
            out.set_name(format_args!("{kind}/{i}"));
            let id = out.emit_node(op, None, Span::ZERO, before.as_slice())?;
            if self.options.chained {
                before = Some(id);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_and_record_every_rank, rejection_message};
    use super::super::{CheckedWorkloadPattern, WorkloadPattern};
    use super::*;

    #[test]
    fn collectives_of_the_whole_world_are_alike_on_all_ranks() {
        let mut options = CollectivePattern::new(CollectiveKind::AllReduce, 1 << 20, 4);
        options.count = 3;
        let ranks = check_and_record_every_rank(WorkloadPattern::Collective(options.clone()));
        assert!(ranks[0].iter().all(|node| node.data.is_empty()));
        options.chained = true;
        let ranks = check_and_record_every_rank(WorkloadPattern::Collective(options.clone()));
        let data: Vec<_> = ranks[3].iter().map(|node| &node.data[..]).collect();
        assert_eq!(data, [&[][..], &[1], &[2]]);
        assert_eq!(ranks[3][2].name, "all-reduce/2");
        let job = CheckedWorkloadPattern::new(WorkloadPattern::Collective(options)).unwrap();
        assert_eq!(
            (
                job.declared_groups().len(),
                job.representative_of_identical_ranks(3)
            ),
            (0, 0)
        );
    }

    #[test]
    fn ranks_outside_the_group_do_nothing() {
        let mut options = CollectivePattern::new(CollectiveKind::Broadcast, 64, 6);
        options.group = Some(vec![4, 1, 3]);
        let pattern = WorkloadPattern::Collective(options);
        let job = CheckedWorkloadPattern::new(pattern.clone()).unwrap();
        assert_eq!(
            job.declared_groups(),
            DeclaredGroups::from([("1".to_owned(), vec![4, 1, 3])])
        );
        // Rank 1 represents members 1, 3 and 4. Rank 0 represents ranks 0, 2 and 5, which are
        // outside the group.
        let classes: Vec<_> = (0..6)
            .map(|rank| job.representative_of_identical_ranks(rank))
            .collect();
        assert_eq!(classes, [0, 1, 0, 1, 1, 0]);
        let ranks = check_and_record_every_rank(pattern);
        assert_eq!(ranks[5][0].name, "idle");
        // Position 0 in the group is rank 4, so the broadcast starts there.
        assert!(ranks[3][0].op.contains("group: Number(1), root: Some(4)"));
    }

    #[test]
    fn a_reordered_world_is_a_group_and_the_world_itself_is_none() {
        let mut options = CollectivePattern::new(CollectiveKind::AllGather, 8, 3);
        for (group, declared) in [([2, 1, 0], 1), ([0, 1, 2], 0)] {
            options.group = Some(group.to_vec());
            let pattern = WorkloadPattern::Collective(options.clone());
            assert_eq!(
                CheckedWorkloadPattern::new(pattern.clone())
                    .unwrap()
                    .declared_groups()
                    .len(),
                declared
            );
            check_and_record_every_rank(pattern);
        }
    }

    #[test]
    fn skew_makes_stragglers() {
        let mut options = CollectivePattern::new(CollectiveKind::Barrier, 0, 3);
        options.skew = Span::from_ns(500);
        let ranks = check_and_record_every_rank(WorkloadPattern::Collective(options.clone()));
        // Rank 0 computes for 0 x 500 ns and therefore has no node for it; rank 2 first computes for 2 x 500 ns.
        assert_eq!((ranks[0].len(), ranks[2].len()), (1, 2));
        assert_eq!(ranks[2][0].recorded, Span::from_us(1));
        assert_eq!(ranks[2][1].data, [1]);
        options.before = Span::from_ns(7);
        let ranks = check_and_record_every_rank(WorkloadPattern::Collective(options));
        assert_eq!(ranks[2][0].recorded, Span::from_ns(1007));
    }

    #[test]
    fn options_that_make_no_sense_say_why() {
        let good = CollectivePattern::new(CollectiveKind::Reduce, 1, 4);
        let why = |change: &dyn Fn(&mut CollectivePattern)| {
            let mut options = good.clone();
            change(&mut options);
            rejection_message(WorkloadPattern::Collective(options))
        };
        let text = why(&|o| o.root = Some(4));
        assert_eq!(text, "`root` is 4; expected a rank, 0 to 3");
        let text = why(&|o| (o.root, o.group) = (Some(0), Some(vec![1, 2])));
        assert_eq!(text, "`root` is 0; expected a member of the group");
        let text = why(&|o| (o.root, o.kind) = (Some(0), CollectiveKind::AllReduce));
        assert!(
            text.contains("the members of all-reduce all have the same role"),
            "{text}"
        );
        let text = why(&|o| o.group = Some(vec![1, 3, 1]));
        assert!(text.contains("with rank 1 twice"), "{text}");
        assert!(why(&|o| o.group = Some(vec![9])).contains("with rank 9"));
        assert!(why(&|o| o.group = Some(vec![])).contains("empty"));
        assert!(why(&|o| o.dimensions = Some(0)).contains("`dimensions` is 0"));
        assert!(why(&|o| o.kind = CollectiveKind::Barrier).contains("moves nothing"));
        assert!(why(&|o| o.ranks = 0).contains("`ranks` is 0"));
        assert!(why(&|o| o.count = u32::MAX).contains("4294967296"));
        // Four ranks with 2^62 bytes each have 2^64 bytes in total, one more than fits in 64 bits.
        let text = why(&|o| (o.kind, o.bytes) = (CollectiveKind::AllGather, 1 << 62));
        assert!(text.contains("below 2^63"), "{text}");
        // The last rank's delay, 3 x (2^63 - 808) ps, exceeds 2^64 ps.
        let text = why(&|o| o.skew = Span((1 << 63) - 808));
        assert!(text.contains("a smaller skew"), "{text}");
    }
}
