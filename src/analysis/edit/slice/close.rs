//! Replaces dependencies on cut nodes by dependencies on kept nodes.

use super::checked_trace::ReplayableTrace;

/// Maximum number of kept nodes that may replace a cut node in a dependency. A cut node that needs more replacements
/// becomes a joint.
pub const MOST_BEHIND: usize = 8;

/// Index of a kept node on which another node depends, and a flag that is true for a control dependency.
type DependencyOnKeptNode = (u32, bool);

/// The dependencies that each node has after other nodes were cut.
#[derive(Debug)]
pub(super) struct TraceDependenciesAfterCut {
    joints: Vec<bool>,
    /// For a kept node or a joint, the range of its new dependencies in `list`; `None` if they did not change. For a
    /// cut node, the range of the nodes that replace it.
    rows: Vec<Option<(u32, u32)>>,
    list: Vec<DependencyOnKeptNode>,
}

impl TraceDependenciesAfterCut {
    /// Computes the new dependencies, in time linear in the number of dependencies.
    pub fn new(trace: &ReplayableTrace<'_>, kept: &[bool]) -> Self {
        // One pass over the known order, from its end to its start, finds all cut nodes on which a kept node depends,
        // directly or through other cut nodes. A depth-first search with petgraph takes twice as long.
        let mut needed = vec![false; kept.len()];
        for &i in trace.order.iter().rev() {
            if kept[i as usize] || needed[i as usize] {
                for dep in trace.enforced_dependencies(i) {
                    needed[dep.node as usize] |= !kept[dep.node as usize];
                }
            }
        }
        let mut this = Self {
            joints: vec![false; kept.len()],
            rows: vec![None; kept.len()],
            list: Vec::new(),
        };
        let mut found: Vec<DependencyOnKeptNode> = Vec::new();
        for &i in &trace.order {
            let at = i as usize;
            if !kept[at] && !needed[at] {
                continue;
            }
            // Replays enforce no dependency that is on a cycle or points to a missing node, so drop such dependencies.
            // Dropping them also changes the list.
            let mut changed =
                trace.enforced_dependencies(i).count() != trace.raw.dependencies_of(i).len();
            found.clear();
            for dep in trace.enforced_dependencies(i) {
                if kept[dep.node as usize] {
                    found.push((dep.node, dep.control));
                    continue;
                }
                changed = true;
                // A joint remains in the trace, so depend on it instead of on its replacements.
                if this.joints[dep.node as usize] {
                    found.push((dep.node, dep.control));
                } else {
                    let behind = this.forwarded_dependencies(dep.node).unwrap_or(&[]);
                    found.extend(behind.iter().map(|&(on, order)| (on, order || dep.control)));
                }
            }
            if kept[at] && !changed {
                continue;
            }
            // If both kinds have the same target, the data dependency sorts before the control dependency, so the data
            // dependency remains.
            found.sort_unstable();
            found.dedup_by_key(|behind| behind.0);
            this.joints[at] = !kept[at] && found.len() > MOST_BEHIND;
            let from = this.list.len() as u32;
            this.list.extend_from_slice(&found);
            this.rows[at] = Some((from, this.list.len() as u32));
        }
        this
    }

    fn forwarded_dependencies(&self, i: u32) -> Option<&[DependencyOnKeptNode]> {
        let (from, to) = self.rows[i as usize]?;
        Some(&self.list[from as usize..to as usize])
    }

    /// Returns true if the cut node `i` remains as a joint.
    pub fn is_kept_as_joint(&self, i: u32) -> bool {
        self.joints[i as usize]
    }

    /// Returns the new dependencies of node `i`, a kept node or a joint; `None` if they did not change.
    pub fn new_dependencies_if_changed(&self, i: u32) -> Option<&[DependencyOnKeptNode]> {
        self.forwarded_dependencies(i)
    }
}
