//! The workload of a replay: graphs, the instances that bind them to ranks, and the groups of ranks.
//!
//! A workload is immutable and independent of machines. All runs of a sweep share one workload.

use crate::graph::JobSamplesAndModelFlops;
use crate::graph::{DeclaredGroups, Graph, GroupRoles, RankBindingsOfGraphSlots, stable_hash};
use chakram_base::ids::{GraphId, GroupId, MAX_NPUS, Rank};
use chakram_base::setting::{EnumeratedSetting, SettingKey};
use chakram_base::units::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One rank's use of a graph. It consists of the graph, a release time, and the ranks and groups that replace the
/// graph's slots (numbered placeholders).
#[derive(Clone, Debug)]
pub struct GraphBoundToRank {
    /// Id of the graph that the rank executes.
    pub graph: GraphId,
    /// Rank that executes the graph.
    pub rank: Rank,
    /// Earliest time at which the rank's first nodes can start.
    pub release: Time,
    /// Group that is bound to each group slot.
    pub groups: Vec<GroupId>,
    /// Name that the trace uses for each slot's group, or `None` for the group of all ranks.
    pub group_names: Vec<Option<String>>,
    /// Rank that is bound to each peer slot.
    pub peers: Vec<Rank>,
    /// Coordinates of the rank's core on a machine of tiles, if the trace states them.
    pub core: Option<[u32; 2]>,
}

/// The ranks of a communicator, in a fixed order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankGroup {
    /// Declared name, or `None` for the unnamed group of all ranks.
    pub name: Option<String>,
    /// Purpose of the group (such as its parallelism axis), or `None` if the purpose is unknown.
    pub role: Option<String>,
    /// The group's members in the order of the declaration, without duplicates.
    pub members: Vec<Rank>,
}

/// Everything that a replay executes: graphs, instances in ascending order of ranks, and groups.
#[derive(Debug)]
pub struct Workload {
    /// The graphs are shared, because every part of a job keeps all of them.
    graphs: Arc<[Graph]>,
    instances: Vec<GraphBoundToRank>,
    groups: Vec<RankGroup>,
    ranks: u32,
    amounts: Option<JobSamplesAndModelFlops>,
}

/// Reason why traces cannot be combined into a workload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// No traces were added.
    #[error("no traces were given")]
    Empty,
    /// Two traces state the same rank.
    #[error("rank {0} has two traces")]
    Twice(Rank),
    /// A trace names a group that no file declares.
    #[error(
        "rank {rank}, node {node}: group `{name}` is not declared\n  try: pass the groups with {} \
         FILE, a JSON object {{\"{name}\": [0, 1, …]}}",
        SettingKey::Groups
    )]
    Undeclared {
        /// Rank of the trace.
        rank: Rank,
        /// The first node that names the group.
        node: u64,
        /// The group.
        name: String,
    },
    /// A rank uses a group of which it is not a member.
    #[error(
        "rank {rank}, node {node}: the rank is not a member of the node's group `{name}`, which has ranks {members}"
    )]
    Outsider {
        /// Rank of the trace.
        rank: Rank,
        /// The first node that names the group.
        node: u64,
        /// The group.
        name: String,
        /// The group's members, in shortened form.
        members: String,
    },
    /// A group lists a rank twice.
    #[error("group `{name}` names rank {rank} twice")]
    MemberTwice {
        /// The group.
        name: String,
        /// The rank.
        rank: Rank,
    },
    /// Some ranks have no trace, although other ranks wait for them.
    #[error(
        "{}\n  try: add the missing traces, or replay with {} mirror, which makes missing members \
         arrive with the present ones",
        describe_missing_ranks(.missing, *.ranks),
        SettingKey::MissingRanks
    )]
    Missing {
        /// Ranks without a trace.
        missing: Vec<Rank>,
        /// Number of ranks in the job.
        ranks: u32,
    },
    /// The group `0`, which means all ranks, is declared with other members.
    #[error(
        "group `0` is declared as ranks {0}, but traces use `0` for all ranks\n  \
         try: give the group another number, also in the traces"
    )]
    Zero(String),
    /// A rank is outside the job.
    #[error("rank {rank} takes part, but the job has {ranks} ranks, which count from 0")]
    BeyondJob {
        /// The rank.
        rank: Rank,
        /// Number of ranks in the job.
        ranks: u32,
    },
    /// A rank exceeds the maximum number of NPUs that any machine can have.
    #[error(
        "rank {0} takes part, and a job has at most {MAX_NPUS} ranks\n  \
         try: look for a peer or group member that is not a rank"
    )]
    TooMany(Rank),
}

fn describe_missing_ranks(missing: &[Rank], ranks: u32) -> String {
    let (are, these) = if missing.len() == 1 {
        ("rank", "has")
    } else {
        ("ranks", "have")
    };
    format!(
        "{are} {} of {ranks} {these} no trace",
        format_shortened_list(missing.iter().map(|r| r.0))
    )
}

/// Formats the first few numbers of a list, and the list's length.
pub fn format_shortened_list(numbers: impl ExactSizeIterator<Item = u32>) -> String {
    const SHOWN: usize = 8;
    let total = numbers.len();
    let mut text = String::new();
    for (i, number) in numbers.take(SHOWN).enumerate() {
        if i > 0 {
            text.push_str(", ");
        }
        text += &number.to_string();
    }
    if total > SHOWN {
        text += &format!(", … ({total} in all)");
    }
    text
}

/// How to treat ranks without a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingRankPolicy {
    /// Reject the job.
    #[default]
    Refuse,
    /// Assume that a member without a trace arrives together with the members that have one.
    Mirror,
}

impl EnumeratedSetting for MissingRankPolicy {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Refuse, "refuse", "Reject the job"),
        (
            Self::Mirror,
            "mirror",
            "Missing members of a collective arrive with the present ones",
        ),
    ];
}

/// Builds a workload from traces, rank by rank.
#[derive(Debug, Default)]
pub struct WorkloadBuilder {
    graphs: Vec<Graph>,
    by_fingerprint: BTreeMap<u64, Vec<GraphId>>,
    ranks: BTreeMap<Rank, (GraphId, RankBindingsOfGraphSlots, Time)>,
    declared: DeclaredGroups,
    roles: GroupRoles,
    amounts: Option<JobSamplesAndModelFlops>,
    /// Group tables that traces declare, keyed by fingerprint. Ranks usually declare identical tables, so each table is
    /// stored once.
    tables: BTreeMap<u64, Vec<Arc<DeclaredGroups>>>,
}

impl WorkloadBuilder {
    /// Declares groups, which take precedence over groups that traces declare.
    pub fn declare_groups(&mut self, groups: DeclaredGroups) {
        self.declared.extend(groups);
    }

    /// Declares the roles of groups. If a group is declared twice, the first declaration counts. A trace's role counts
    /// only if this function has declared none for the group.
    pub fn declare_group_roles(&mut self, roles: &GroupRoles) {
        self.roles.add_missing_roles_from(roles);
    }

    /// Declares the work of the whole job, which takes precedence over the traces' own statements.
    pub fn override_trace_work_with_job_total(&mut self, amounts: Option<JobSamplesAndModelFlops>) {
        self.amounts = amounts;
    }

    /// Adds a graph that several ranks may share.
    pub fn add_or_reuse_equal_graph(&mut self, graph: Graph) -> GraphId {
        // Fingerprints may collide, so compare graphs with equal fingerprints in full.
        let alike = self.by_fingerprint.entry(graph.fingerprint()).or_default();
        if let Some(&found) = alike.iter().find(|id| self.graphs[id.index()] == graph) {
            return found;
        }
        let id = GraphId(self.graphs.len() as u32);
        alike.push(id);
        self.graphs.push(graph);
        id
    }

    /// Adds `rank`, which starts to execute `graph` at time `release`.
    pub fn add_rank(
        &mut self,
        rank: Rank,
        graph: GraphId,
        mut binding: RankBindingsOfGraphSlots,
        release: Time,
    ) -> Result<(), WorkloadError> {
        let alike = self
            .tables
            .entry(stable_hash(&*binding.declared))
            .or_default();
        // Ranks usually declare the same table. They share one copy of it, so the memory does not depend on the number
        // of ranks.
        match alike.iter().find(|table| **table == binding.declared) {
            Some(known) => binding.declared = known.clone(),
            None => alike.push(binding.declared.clone()),
        }
        match self.ranks.insert(rank, (graph, binding, release)) {
            None => Ok(()),
            Some(_) => Err(WorkloadError::Twice(rank)),
        }
    }

    /// Returns the minimum number of ranks in the job: one more than the highest rank among traces, peers and group
    /// members.
    pub fn min_rank_count(&self) -> u32 {
        let own = self.ranks.keys().map(|rank| rank.0);
        let peers = self
            .ranks
            .values()
            .flat_map(|(_, b, _)| b.peers.iter().copied());
        // A rank without a trace also counts if it is a peer or a member of a group.
        let traces = self
            .tables
            .values()
            .flatten()
            .flat_map(|table| table.values());
        let groups = self.declared.values().chain(traces).flatten().copied();
        own.chain(peers)
            .chain(groups)
            .max()
            .map_or(0, |max| max.saturating_add(1))
    }

    /// Returns the job's number of ranks as a trace states it, or [`Self::min_rank_count`] if that is higher. Returns
    /// `None` if no trace states the number.
    pub fn stated_rank_count(&self) -> Option<u32> {
        let stated = self.graphs.iter().filter_map(Graph::world_size).max()?;
        Some(stated.max(self.min_rank_count()))
    }

    /// Binds groups to their ranks, and checks that all ranks have traces. `ranks` is the number of ranks in the job;
    /// `None` means [`Self::min_rank_count`].
    pub fn finish_workload(
        self,
        ranks: Option<u32>,
        absent: MissingRankPolicy,
    ) -> Result<Workload, WorkloadError> {
        let seen = self.min_rank_count();
        let ranks = ranks.unwrap_or(seen);
        if self.ranks.is_empty() {
            return Err(WorkloadError::Empty);
        }
        if seen > ranks {
            return Err(WorkloadError::BeyondJob {
                rank: Rank(seen - 1),
                ranks,
            });
        }
        if ranks > MAX_NPUS {
            return Err(WorkloadError::TooMany(Rank(ranks - 1)));
        }
        if absent == MissingRankPolicy::Refuse && self.ranks.len() < ranks as usize {
            let missing = (0..ranks).map(Rank).filter(|r| !self.ranks.contains_key(r));
            return Err(WorkloadError::Missing {
                missing: missing.collect(),
                ranks,
            });
        }
        let mut groups = GroupsFoundSoFar::new(ranks);
        groups.roles = self.roles;
        // Adjacent graphs usually have the same roles, so `dedup` leaves few entries to merge.
        let mut said: Vec<&GroupRoles> = self.graphs.iter().map(Graph::group_roles).collect();
        said.dedup();
        said.into_iter()
            .for_each(|more| groups.roles.add_missing_roles_from(more));
        // Traces use `0` for the group of all ranks, so a declared group `0` must contain all ranks.
        if let Some(zero) = self.declared.get("0")
            && !groups.is_world(zero)
        {
            return Err(WorkloadError::Zero(format_shortened_list(
                zero.iter().copied(),
            )));
        }
        let mut instances = Vec::with_capacity(self.ranks.len());
        for (rank, (graph, binding, release)) in self.ranks {
            let of = &self.graphs[graph.index()];
            let slots = binding.groups.iter().enumerate();
            let bound = slots.map(|(slot, name)| {
                let node = || {
                    // Only the error message needs the call, so search for it here.
                    let call = of
                        .collective_calls()
                        .iter()
                        .find(|call| call.group == slot as u32);
                    call.map_or(0, |call| of.id(call.node))
                };
                let Some(name) = name else {
                    return Ok(GroupsFoundSoFar::WORLD);
                };
                let members = self
                    .declared
                    .get(name)
                    .or_else(|| binding.declared.get(name))
                    .ok_or_else(|| WorkloadError::Undeclared {
                        rank,
                        node: node(),
                        name: name.clone(),
                    })?;
                let id = groups.intern_group(name, members)?;
                let group = &groups.list[id.index()];
                if !group.members.contains(&rank) {
                    return Err(WorkloadError::Outsider {
                        rank,
                        node: node(),
                        name: name.clone(),
                        members: format_shortened_list(group.members.iter().map(|r| r.0)),
                    });
                }
                Ok(id)
            });
            instances.push(GraphBoundToRank {
                graph,
                rank,
                release,
                groups: bound.collect::<Result<_, _>>()?,
                group_names: binding.groups,
                peers: binding.peers.into_iter().map(Rank).collect(),
                core: binding.core,
            });
        }
        let mut said = self.graphs.iter().map(Graph::job_samples_and_flops);
        // Traces that state different amounts of work come from different jobs, so the work of this job is unknown.
        let first = said
            .next()
            .flatten()
            .filter(|first| said.all(|one| one == Some(*first)));
        Ok(Workload {
            amounts: self.amounts.or(first),
            graphs: self.graphs.into(),
            instances,
            groups: groups.list,
            ranks,
        })
    }
}

/// The groups found so far, with their members. Each group name is a separate communicator. Two names with the same
/// members are two groups, and the unnamed group of all ranks is another. One name with different members also means
/// different groups, for example if each trace declares its own groups.
struct GroupsFoundSoFar {
    list: Vec<RankGroup>,
    roles: GroupRoles,
    by_name: BTreeMap<String, Vec<GroupId>>,
}

impl GroupsFoundSoFar {
    const WORLD: GroupId = GroupId(0);

    fn new(ranks: u32) -> Self {
        let world = RankGroup {
            name: None,
            role: None,
            members: (0..ranks).map(Rank).collect(),
        };
        Self {
            list: vec![world],
            roles: GroupRoles::default(),
            by_name: BTreeMap::new(),
        }
    }

    /// Returns true if a group declared with `members` is the group of all ranks.
    fn is_world(&self, members: &[u32]) -> bool {
        members.is_empty() || self.has_exact_members(Self::WORLD, members)
    }

    fn has_exact_members(&self, group: GroupId, members: &[u32]) -> bool {
        let known = &self.list[group.index()].members;
        known.len() == members.len() && known.iter().zip(members).all(|(m, o)| m.0 == *o)
    }

    fn intern_group(&mut self, name: &str, members: &[u32]) -> Result<GroupId, WorkloadError> {
        // An empty declaration means all ranks.
        let whole = members.is_empty();
        let mut alike = self.by_name.get(name).into_iter().flatten();
        if let Some(&found) = alike.find(|&&id| {
            if whole {
                self.list[id.index()].members == self.list[Self::WORLD.index()].members
            } else {
                self.has_exact_members(id, members)
            }
        }) {
            return Ok(found);
        }
        let mut seen = BTreeSet::new();
        if let Some(&twice) = members.iter().find(|&&member| !seen.insert(member)) {
            return Err(WorkloadError::MemberTwice {
                name: name.to_owned(),
                rank: Rank(twice),
            });
        }
        let id = GroupId(self.list.len() as u32);
        self.list.push(RankGroup {
            name: Some(name.to_owned()),
            role: self.roles.role_of_group(name).map(str::to_owned),
            members: if whole {
                self.list[Self::WORLD.index()].members.clone()
            } else {
                members.iter().copied().map(Rank).collect()
            },
        });
        self.by_name.entry(name.to_owned()).or_default().push(id);
        Ok(id)
    }
}

impl Workload {
    /// Returns a copy of the workload in which the graphs' times include the profiler's cost if they excluded it
    /// before, and exclude it otherwise.
    pub fn with_profiler_cost_toggled(&self) -> Self {
        Self {
            graphs: self
                .graphs
                .iter()
                .map(Graph::with_profiler_toggled)
                .collect(),
            instances: self.instances.clone(),
            groups: self.groups.clone(),
            ranks: self.ranks,
            amounts: self.amounts,
        }
    }

    /// Returns the sizes of the two matrix multiplications that occur most often, each as (rows, columns, summed-over
    /// size). Together, the two sizes identify a model's width, tensor degree and micro-batch. If several
    /// multiplications are equally frequent, the largest comes first. If there is no second multiplication, returns the
    /// sizes of the first one twice.
    ///
    /// The most frequent multiplication alone does not identify the model, because it belongs to the feed-forward
    /// network (MLP). A model with twice the width and four times as many shards has the same multiplication in its
    /// MLP. The second most frequent multiplication belongs to attention, and it differs between such models.
    pub fn two_most_frequent_matmul_sizes(&self) -> Option<[[u64; 3]; 2]> {
        let mut counts: BTreeMap<[u64; 3], u64> = BTreeMap::new();
        for (gemm, count) in self
            .distinct_graphs()
            .iter()
            .flat_map(Graph::count_distinct_gemms)
        {
            *counts.entry(gemm).or_default() += count;
        }
        let most = counts.values().copied().max()?;
        let work = |[m, n, k]: [u64; 3]| u128::from(m) * u128::from(n) * u128::from(k);
        let sorted = |mut sizes: [u64; 3]| {
            sizes.sort_unstable();
            sizes
        };
        let largest = |of: &dyn Fn([u64; 3], u64) -> bool| {
            let picked = counts.iter().filter(|&(&gemm, &count)| of(gemm, count));
            let largest = picked.max_by_key(|&(&gemm, count)| (*count, work(gemm), gemm))?;
            Some(*largest.0)
        };
        let first = largest(&|_, count| count == most)?;
        // A weight gradient is computed with the same three sizes in another order, so it does not count as a second
        // multiplication.
        let next = largest(&|gemm, count| count < most && sorted(gemm) != sorted(first));
        Some([first, next.unwrap_or(first)])
    }

    /// Returns a workload with the same ranks and groups, in which the result of `change` replaces each graph. `change`
    /// must keep the slots.
    pub fn map_graphs(&self, change: impl Fn(&Graph) -> Graph) -> Self {
        Self {
            graphs: self.graphs.iter().map(change).collect(),
            instances: self.instances.clone(),
            groups: self.groups.clone(),
            ranks: self.ranks,
            amounts: self.amounts,
        }
    }

    /// Returns the same job, but keeps only the traces of ranks for which `kept` returns true. All other ranks count as
    /// missing under [`MissingRankPolicy::Mirror`].
    pub fn keep_traces_of_ranks(&self, kept: impl Fn(Rank) -> bool) -> Self {
        let kept = |instance: &&GraphBoundToRank| kept(instance.rank);
        Self {
            graphs: Arc::clone(&self.graphs),
            instances: self.instances.iter().filter(kept).cloned().collect(),
            groups: self.groups.clone(),
            ranks: self.ranks,
            amounts: self.amounts,
        }
    }

    /// Returns the distinct graphs.
    pub fn distinct_graphs(&self) -> &[Graph] {
        &self.graphs
    }

    /// Returns the graph of an instance.
    pub fn graph_of(&self, instance: &GraphBoundToRank) -> &Graph {
        &self.graphs[instance.graph.index()]
    }

    /// Returns the instances, in ascending order of their ranks.
    pub fn instances(&self) -> &[GraphBoundToRank] {
        &self.instances
    }

    /// Returns the groups; the first is the unnamed group of all ranks.
    pub fn groups(&self) -> &[RankGroup] {
        &self.groups
    }

    /// Returns the work of the whole job, if its traces state it.
    pub fn work_amounts(&self) -> Option<JobSamplesAndModelFlops> {
        self.amounts
    }

    /// Returns the number of ranks of the job, including ranks without a trace.
    pub fn rank_count_including_untraced(&self) -> u32 {
        self.ranks
    }

    /// Returns the total number of nodes in all instances.
    pub fn node_count(&self) -> u64 {
        let of = |i: &GraphBoundToRank| self.graph_of(i).len() as u64;
        self.instances.iter().map(of).sum()
    }
}
