//! Checks the dependencies of one trace. Reports dependencies on missing nodes, nodes that depend on themselves,
//! repeated dependencies, cycles, and nodes that depend on cycles.

use super::NONE;
use super::defects::{DefectLocationInFile, DefectLog};
use super::kind::DefectKind;
use super::node::TraceReducedForValidation;
use chakram_trace::format::{escape_and_shorten_name, scan};
use chakram_trace::graph::cycle::find_short_cycle;
use chakram_trace::graph::raw_trace::PredecessorIdIndexAndKind;
use chakram_trace::graph::{Csr, EnforcedDependencyKinds};

/// Flag: another node depends on this node.
const AWAITED: u8 = 1;
/// Flag: this node depends on an existing node.
const WAITS: u8 = 2;

/// Program order of the nodes.
#[derive(Debug)]
pub(super) enum NodeProgramOrderOrCycle {
    /// Nodes in ascending order of ids.
    Ids,
    /// For each node, its position in program order.
    Places(Vec<u32>),
    /// There is no program order, because the dependencies form a cycle.
    Cyclic,
}

/// Checks the dependencies of a trace, node by node.
#[derive(Debug)]
pub(super) struct DependencyChecker {
    flags: Vec<u8>,
    /// Nodes that can never start because one of their dependencies is invalid.
    seeds: Vec<u32>,
    /// Two flags, for data and for control dependencies: true if every node comes after its predecessors.
    sorted: [bool; 2],
    has_control: bool,
    scratch: Vec<(u64, bool)>,
}

impl DependencyChecker {
    /// Creates a checker for a trace with `nodes` nodes. The nodes in `refused` can never start.
    pub fn new(nodes: usize, refused: &[u32]) -> Self {
        Self {
            flags: vec![0; nodes],
            seeds: refused.to_vec(),
            sorted: [true; 2],
            has_control: false,
            scratch: Vec::new(),
        }
    }

    /// Checks the dependencies of node `i`.
    #[inline]
    pub fn check_node(
        &mut self,
        raw: &TraceReducedForValidation<'_>,
        i: u32,
        findings: &mut DefectLog,
    ) {
        let deps = raw.dependencies_of(i);
        if deps.is_empty() {
            return;
        }
        let item = &raw.nodes[i as usize];
        let own = item.view.id;
        for dep in deps {
            let Some(target) = dep.target().filter(|_| dep.id != own) else {
                self.report_broken_dependency(raw, i, dep, findings);
                continue;
            };
            self.flags[target as usize] |= AWAITED;
            self.flags[i as usize] |= WAITS;
            // In nearly all traces, predecessors have lower ids, so that no topological sort is necessary.
            self.sorted[usize::from(dep.control)] &= target < i;
            self.has_control |= dep.control;
        }
        if deps.len() > 1 {
            self.report_repeated_dependencies(raw, i, findings);
        }
    }

    /// Reports a dependency on a missing node, or of a node on itself.
    #[cold]
    fn report_broken_dependency(
        &mut self,
        raw: &TraceReducedForValidation<'_>,
        i: u32,
        dep: &PredecessorIdIndexAndKind,
        findings: &mut DefectLog,
    ) {
        let item = &raw.nodes[i as usize];
        let to_self = dep.id == item.view.id;
        let (kind, found) = match (to_self, dep.control) {
            (true, true) => (
                DefectKind::SelfControl,
                "the node follows itself".to_owned(),
            ),
            (true, false) => (
                DefectKind::SelfData,
                "the node depends on its own data".to_owned(),
            ),
            (false, true) => (
                DefectKind::DanglingControl,
                format!("the node follows node {}, which does not exist", dep.id),
            ),
            (false, false) => (
                DefectKind::DanglingData,
                format!(
                    "the node depends on the data of node {}, which does not exist",
                    dep.id
                ),
            ),
        };
        // Replays ignore invalid control dependencies, so only a data dependency prevents the node from starting.
        if !dep.control && self.seeds.last() != Some(&i) {
            self.seeds.push(i);
        }
        findings
            .count_defect_and_store_if_room(kind, || (DefectLocationInFile::of_node(item), found));
    }

    /// Reports dependencies of the same kind that name the same node again.
    #[inline]
    fn report_repeated_dependencies(
        &mut self,
        raw: &TraceReducedForValidation<'_>,
        i: u32,
        findings: &mut DefectLog,
    ) {
        /// Up to this number of dependencies, comparing all pairs is faster than sorting.
        const FEW: usize = 8;
        let deps = raw.dependencies_of(i);
        let mut again = |id: u64| {
            findings.count_defect_and_store_if_room(DefectKind::DuplicateDependency, || {
                let found = format!("the node names node {id} more than once");
                (DefectLocationInFile::of_node(&raw.nodes[i as usize]), found)
            });
        };
        if deps.len() <= FEW {
            for (k, dep) in deps.iter().enumerate() {
                let same = |other: &PredecessorIdIndexAndKind| {
                    other.id == dep.id && other.control == dep.control
                };
                if deps[..k].iter().any(same) {
                    again(dep.id);
                }
            }
            return;
        }
        self.scratch.clear();
        self.scratch
            .extend(deps.iter().map(|dep| (dep.id, dep.control)));
        self.scratch.sort_unstable();
        for pair in self.scratch.windows(2) {
            if pair[0] == pair[1] {
                again(pair[0].0);
            }
        }
    }

    /// Reports cycles and the nodes that they block. The caller must have checked all nodes. Returns the program order,
    /// given the dependencies that `policy` enforces.
    pub fn report_cycles_and_order_nodes(
        &self,
        raw: &TraceReducedForValidation<'_>,
        policy: EnforcedDependencyKinds,
        findings: &mut DefectLog,
    ) -> NodeProgramOrderOrCycle {
        self.report_isolated_nodes(raw, findings);
        let with_control = policy != EnforcedDependencyKinds::Data;
        let whole = self.attempt_topological_order(raw, with_control);
        let (attempt, held) = match whole {
            // If data dependencies alone form no cycle, warn and ignore control dependencies, as the graph builder
            // does.
            NodeOrderingResult::Cyclic(rows, stuck)
                if policy == EnforcedDependencyKinds::Auto && self.has_control =>
            {
                let data = self.attempt_topological_order(raw, false);
                if !matches!(data, NodeOrderingResult::Cyclic(..)) {
                    let cycle = find_cycle_among(&rows, &stuck);
                    let first = cycle.first().copied().unwrap_or(0);
                    findings.count_defect_and_store_if_room(DefectKind::ControlCycle, || {
                        let site = DefectLocationInFile::of_node(&raw.nodes[first as usize]);
                        (site, cycle_text(raw, &cycle))
                    });
                }
                (data, false)
            }
            other => (other, with_control),
        };
        match attempt {
            NodeOrderingResult::Sorted => {
                self.report_unreachable_nodes(raw, &[], &[], held, findings);
                NodeProgramOrderOrCycle::Ids
            }
            NodeOrderingResult::Ordered(order) => {
                self.report_unreachable_nodes(raw, &[], &[], held, findings);
                let mut places = vec![0_u32; order.len()];
                for (place, node) in order.into_iter().enumerate() {
                    places[node as usize] = place as u32;
                }
                NodeProgramOrderOrCycle::Places(places)
            }
            NodeOrderingResult::Cyclic(rows, stuck) => {
                let cycle = find_cycle_among(&rows, &stuck);
                let first = cycle.first().copied().unwrap_or(0);
                findings.count_defect_and_store_if_room(DefectKind::Cycle, || {
                    let site = DefectLocationInFile::of_node(&raw.nodes[first as usize]);
                    (site, cycle_text(raw, &cycle))
                });
                let stuck: Vec<u32> = raw
                    .range_of_all_node_indices()
                    .filter(|&n| stuck[n as usize])
                    .collect();
                self.report_unreachable_nodes(raw, &cycle, &stuck, held, findings);
                NodeProgramOrderOrCycle::Cyclic
            }
        }
    }

    fn attempt_topological_order(
        &self,
        raw: &TraceReducedForValidation<'_>,
        with_control: bool,
    ) -> NodeOrderingResult {
        if self.sorted[0] && (!with_control || self.sorted[1]) {
            return NodeOrderingResult::Sorted;
        }
        let rows = build_successors(raw, with_control);
        let order = rows.topological_order();
        if order.len() == rows.row_count() {
            NodeOrderingResult::Ordered(order)
        } else {
            let stuck = rows.flag_nodes_on_or_behind_cycles(&order);
            NodeOrderingResult::Cyclic(rows, stuck)
        }
    }

    /// Reports nodes that can never start because they depend on nodes that never end. Nodes in `cycle` and `seeds` are
    /// omitted, because they are reported separately. `stuck` contains all nodes that are on a cycle or depend on one.
    fn report_unreachable_nodes(
        &self,
        raw: &TraceReducedForValidation<'_>,
        cycle: &[u32],
        stuck: &[u32],
        with_control: bool,
        findings: &mut DefectLog,
    ) {
        if self.seeds.is_empty() && cycle.is_empty() {
            return;
        }
        let rows = build_successors(raw, with_control);
        // For each node that can never start, the nearest node that blocks it. The search must start at all blocking
        // nodes at once, which petgraph's searches cannot do.
        let mut origin = vec![NONE; rows.row_count()];
        let mut queue = Vec::new();
        for &node in cycle.iter().chain(&self.seeds) {
            if origin[node as usize] == NONE {
                origin[node as usize] = node;
                queue.push(node);
            }
        }
        let listed = queue.len();
        let mut done = 0;
        while let Some(&node) = queue.get(done) {
            done += 1;
            for &next in rows.row(node) {
                if origin[next as usize] == NONE {
                    origin[next as usize] = origin[node as usize];
                    queue.push(next);
                }
            }
        }
        let mut blocked = queue.split_off(listed);
        blocked.extend(stuck.iter().filter(|&&node| origin[node as usize] == NONE));
        blocked.sort_unstable();
        for node in blocked {
            findings.count_defect_and_store_if_room(DefectKind::Unreachable, || {
                let found = match origin[node as usize] {
                    NONE => "the node depends, through others, on a cycle".to_owned(),
                    origin => format!(
                        "the node depends, directly or through others, on node {}, which never ends",
                        raw.nodes[origin as usize].view.id
                    ),
                };
                (DefectLocationInFile::of_node(&raw.nodes[node as usize]), found)
            });
        }
    }

    fn report_isolated_nodes(&self, raw: &TraceReducedForValidation<'_>, findings: &mut DefectLog) {
        if self.flags.len() < 2 {
            return;
        }
        for (node, _) in self.flags.iter().enumerate().filter(|(_, f)| **f == 0) {
            let item = &raw.nodes[node];
            if item.view.role.is_doing_work() {
                findings.count_defect_and_store_if_room(DefectKind::Isolated, || {
                    let found = "the node depends on no node, and no node depends on it";
                    (DefectLocationInFile::of_node(item), found.to_owned())
                });
            }
        }
    }
}

/// Result of trying to order the nodes.
enum NodeOrderingResult {
    /// The ascending order is a program order.
    Sorted,
    /// The program order is this other order.
    Ordered(Vec<u32>),
    /// A cycle prevents any order. Contains each node's successors and, for each node, a flag that is true if it cannot
    /// be ordered.
    Cyclic(Csr, Vec<bool>),
}

fn build_successors(raw: &TraceReducedForValidation<'_>, with_control: bool) -> Csr {
    raw.build_successors(|node, dep| {
        (with_control || !dep.control) && dep.id != raw.nodes[node as usize].view.id
    })
}

/// Returns a short cycle among the `stuck` nodes of the graph `rows`.
fn find_cycle_among(rows: &Csr, stuck: &[bool]) -> Vec<u32> {
    find_short_cycle(rows, |node| stuck[node as usize])
}

/// Formats a cycle as `2 (mm) → 3 (add) → 2`. A long cycle is shortened.
fn cycle_text(raw: &TraceReducedForValidation<'_>, cycle: &[u32]) -> String {
    const SHOWN: usize = 8;
    let id = |node: u32| raw.nodes[node as usize].view.id;
    let mut text = String::new();
    for &node in cycle.iter().take(SHOWN) {
        let name = escape_and_shorten_name(scan::read_node_name(raw.nodes[node as usize].record));
        text += &format!("{} ({name}) → ", id(node));
    }
    if cycle.len() > SHOWN {
        text += &format!("… {} more … → ", cycle.len() - SHOWN);
    }
    text + &cycle.first().map_or(0, |&node| id(node)).to_string()
}

#[cfg(test)]
mod tests {
    use super::super::{DefectKind, TraceDefectsAndDigest};
    use chakram_trace::format::Op;
    use chakram_trace::format::scan::NodeView;
    use chakram_trace::format::write::{Sink, TraceWriter};
    use chakram_trace::graph::EnforcedDependencyKinds;

    /// Builds a trace of the kernels 0 to `count` - 1; `deps` returns the dependencies of a kernel.
    fn build_and_validate_kernel_trace(
        count: u64,
        deps: impl Fn(u64) -> Vec<u64>,
    ) -> TraceDefectsAndDigest {
        let mut file = TraceWriter::new(Vec::new()).unwrap();
        for id in 0..count {
            let op = Op::Compute {
                flops: 1,
                bytes: 0,
                dtype: None,
            };
            file.receive_node(&NodeView::new(id, "k", op), &deps(id))
                .unwrap();
        }
        let contents = file.into_unflushed_sink();
        TraceDefectsAndDigest::check_trace(&contents, EnforcedDependencyKinds::Auto, 2)
    }

    #[test]
    fn a_long_chain_or_circle_does_not_exhaust_the_stack() {
        const COUNT: u64 = 100_000;
        let before = |id: u64| id.checked_sub(1);
        let chain = build_and_validate_kernel_trace(COUNT, |id| before(id).into_iter().collect());
        assert_eq!(chain.defect_log().count_by_severity().errors, 0);
        // Each node depends on the next one, so the last node runs first.
        let back = build_and_validate_kernel_trace(COUNT, |id| {
            Some(id + 1)
                .filter(|&next| next < COUNT)
                .into_iter()
                .collect()
        });
        assert_eq!(back.defect_log().count_by_severity().errors, 0);
        let cycle =
            build_and_validate_kernel_trace(COUNT, |id| vec![before(id).unwrap_or(COUNT - 1)]);
        let findings = cycle.defect_log();
        assert_eq!(findings.count_of_kind(DefectKind::Cycle), 1);
        assert_eq!(findings.count_of_kind(DefectKind::Unreachable), 0);
        let found = &findings.first_defects_of_kind(DefectKind::Cycle)[0].found;
        assert!(found.starts_with("0 (k) → 1 (k) → "), "{found}");
        assert!(found.ends_with("… 99992 more … → 0"), "{found}");
    }

    #[test]
    fn what_is_behind_a_cycle_or_a_missing_node_never_starts() {
        // Nodes 1 and 2 depend on each other, and node 3 depends on them. Node 4 depends on a missing node, and node 5
        // on node 4. Nodes 6 and 7 depend on each other, and node 8 depends on no node.
        let deps = |id: u64| match id {
            1 | 3 => vec![2],
            2 => vec![1],
            4 => vec![99],
            5 => vec![4],
            6 => vec![7],
            7 => vec![6],
            _ => vec![],
        };
        let trace = build_and_validate_kernel_trace(9, deps);
        let findings = trace.defect_log();
        let count = |kind| findings.count_of_kind(kind);
        assert_eq!(
            (count(DefectKind::Cycle), count(DefectKind::DanglingData)),
            (1, 1)
        );
        // Nodes 3 and 5, and the two nodes of the other cycle, can never start.
        assert_eq!(count(DefectKind::Unreachable), 4);
        let told = findings
            .first_defects_of_kind(DefectKind::Unreachable)
            .iter();
        let told: Vec<_> = told.map(|d| (d.site.node, d.found.clone())).collect();
        let behind = |id: u64| {
            format!("the node depends, directly or through others, on node {id}, which never ends")
        };
        assert_eq!(told, [(Some(3), behind(2)), (Some(5), behind(4))]);
        // Nodes 0 and 8 depend on no node, and no node depends on them.
        assert_eq!(count(DefectKind::Isolated), 2);
    }
}
