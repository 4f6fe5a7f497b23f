//! Faults of a file: how often each kind occurs, and its first occurrence.

use chakram_trace::format::escape_and_shorten_name;
use chakram_trace::graph::cycle::find_short_cycle;
use chakram_trace::graph::raw_trace::PredecessorIdIndexAndKind;
use chakram_trace::graph::{Csr, NodeStartEndTimesAndCauses, RawTrace};
use serde::Serialize;

/// A kind of fault: how often it occurs, and a description of its first occurrence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CountedFault {
    /// Number of faults.
    pub count: u64,
    /// Description of the first fault.
    #[serde(rename = "first")]
    pub text: String,
}

/// Faults of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RejectedAndRepairedFaults {
    /// Faults that make a replay reject the file.
    pub faults: Vec<CountedFault>,
    /// Faults that a replay repairs and reports in a notice.
    pub notes: Vec<CountedFault>,
}

/// Maximum number of unreadable records that are listed one by one.
const NAMED: usize = 5;

impl RejectedAndRepairedFaults {
    /// Returns how many faults make a replay reject the file.
    pub fn count_replay_rejecting_faults(&self) -> u64 {
        self.faults.iter().map(|fault| fault.count).sum()
    }

    fn add_fault(&mut self, count: u64, text: impl FnOnce() -> String) {
        if count > 0 {
            self.faults.push(CountedFault {
                count,
                text: text(),
            });
        }
    }

    fn add_note(&mut self, count: u64, text: impl FnOnce() -> String) {
        if count > 0 {
            self.notes.push(CountedFault {
                count,
                text: text(),
            });
        }
    }

    /// Adds the records that could not be decoded.
    pub(super) fn add_unreadable_records(&mut self, raw: &mut RawTrace<'_>) {
        let faults = std::mem::take(&mut raw.faults);
        let count = faults.len();
        for (i, fault) in faults.into_iter().enumerate() {
            let text = fault.error.to_string();
            // Show only the first line of the error, because the other lines describe a remedy for replays.
            let text = text.lines().next().unwrap_or_default().to_owned();
            match i {
                ..NAMED => self.add_fault(1, || text),
                NAMED => self.add_fault((count - NAMED) as u64, || format!("{text}, and others")),
                _ => break,
            }
        }
    }

    /// Adds faults in the ids and dependencies of nodes.
    pub(super) fn add_structure_faults(&mut self, raw: &RawTrace<'_>) {
        let id = |i: u32| raw.nodes[i as usize].view.id;
        let mut twice = OneFaultKindCounter::default();
        for pair in raw.nodes.windows(2) {
            if pair[0].view.id == pair[1].view.id {
                twice.count_one(|| (pair[1].view.id, 0));
            }
        }
        let (mut nowhere, mut own) = (
            [OneFaultKindCounter::default(); 2],
            [OneFaultKindCounter::default(); 2],
        );
        for node in raw.range_of_all_node_indices() {
            for dep in raw.dependencies_of(node) {
                let control = usize::from(dep.control);
                if dep.node == PredecessorIdIndexAndKind::MISSING {
                    nowhere[control].count_one(|| (id(node), dep.id));
                } else if dep.node == node {
                    own[control].count_one(|| (id(node), dep.id));
                }
            }
        }
        let (node, _) = twice.first;
        self.add_fault(twice.count, || format!("a second node with the id {node}"));
        let [(node, other), (own_node, _)] = [nowhere[0].first, own[0].first];
        self.add_fault(nowhere[0].count, || {
            format!("node {node} depends on the data of node {other}, which does not exist")
        });
        self.add_fault(own[0].count, || {
            format!("node {own_node} depends on its own data")
        });
        let [(node, other), (own_node, _)] = [nowhere[1].first, own[1].first];
        self.add_note(nowhere[1].count, || {
            format!("node {node} follows node {other}, which does not exist")
        });
        self.add_note(own[1].count, || format!("node {own_node} follows itself"));
    }

    /// Adds a notice that `count` control dependencies are ignored because they close a cycle.
    pub(super) fn note_ignored_control_dependencies(&mut self, count: u64) {
        self.add_note(count, || {
            "control dependencies close a cycle; times and chains use only data dependencies"
                .to_owned()
        });
    }

    /// Adds the nodes that do not run in `recorded` because they are on a cycle or depend on one; `next` contains each
    /// node's successors.
    pub(super) fn add_fault_of_nodes_stuck_by_cycle(
        &mut self,
        raw: &RawTrace<'_>,
        next: &Csr,
        recorded: &NodeStartEndTimesAndCauses,
    ) {
        const SHOWN: usize = 6;
        let stuck = next.row_count() - recorded.ran;
        if stuck == 0 {
            return;
        }
        let cycle = find_short_cycle(next, |node| !recorded.has_node_run(node));
        let mut text = String::from(
            "without times, because they are on a cycle of dependencies or depend on one: ",
        );
        for &node in cycle.iter().take(SHOWN) {
            let view = &raw.nodes[node as usize].view;
            text += &format!("{} ({}) → ", view.id, escape_and_shorten_name(view.name));
        }
        if cycle.len() > SHOWN {
            text += &format!("… {} more … → ", cycle.len() - SHOWN);
        }
        if let Some(&first) = cycle.first() {
            text += &raw.nodes[first as usize].view.id.to_string();
        }
        self.add_fault(stuck as u64, || text);
    }
}

/// Counts faults of one kind. Stores the ids of the first faults.
#[derive(Clone, Copy, Default)]
struct OneFaultKindCounter {
    count: u64,
    first: (u64, u64),
}

impl OneFaultKindCounter {
    fn count_one(&mut self, ids: impl FnOnce() -> (u64, u64)) {
        if self.count == 0 {
            self.first = ids();
        }
        self.count += 1;
    }
}
