//! Custom collectives: the member at each position of the group executes a script.
//!
//! A script is a dependency graph of operations: sends, receives and waits. An operation starts as soon as its
//! predecessors have completed. Operations that can start at the same time start in the order of the script. A script
//! has no lanes, so any number of operations may be in progress at once. A receive completes when it has started and
//! its message has arrived. The backend decides when a send completes. Scripts define the message sizes, so the
//! collective's own size is ignored. A member completes the collective when all operations of its script have
//! completed.

use super::{ScriptAction, ScriptExecutingMemberId, ScriptMemberEvent};
use chakram_base::collective_kind::CollectiveKind;
use chakram_base::units::Span;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

mod matched;

pub use matched::ScriptFault;

/// One operation in a script of a custom algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptOp {
    /// A message to another position.
    Send {
        /// The receiver's position.
        to: u32,
        /// Size of the message in bytes.
        bytes: u64,
        /// Label by which the receiver matches the message.
        label: u32,
    },
    /// A message from another position.
    Receive {
        /// The sender's position.
        from: u32,
        /// Label that the sender gives the message.
        label: u32,
    },
    /// A pause of this duration.
    Wait(Span),
}

/// The operations of the member at one position, with their dependencies.
#[derive(Clone, Debug, Default)]
pub struct MemberScript {
    ids: Vec<u64>,
    parts: Vec<ScriptOp>,
    /// Number of predecessors of each operation.
    in_degrees: Vec<u32>,
    /// For each operation, the end of its range in `successors`.
    ends: Vec<u32>,
    successors: Vec<u32>,
}

impl MemberScript {
    /// Appends an operation. `id` is the operation's number in the author's script. The operation waits for `in_degree`
    /// operations, and `successors` wait for it.
    pub fn push(
        &mut self,
        id: u64,
        part: ScriptOp,
        in_degree: u32,
        successors: impl Iterator<Item = u32>,
    ) {
        self.ids.push(id);
        self.parts.push(part);
        self.in_degrees.push(in_degree);
        self.successors.extend(successors);
        self.ends.push(self.successors.len() as u32);
    }

    /// Returns an operation's number in the author's script.
    pub fn op_id(&self, part: u32) -> u64 {
        self.ids[part as usize]
    }

    fn len(&self) -> u32 {
        self.parts.len() as u32
    }

    fn successors(&self, part: u32) -> &[u32] {
        let ends = |part: usize| self.ends[part] as usize;
        let start = (part as usize).checked_sub(1).map_or(0, ends);
        &self.successors[start..ends(part as usize)]
    }
}

/// One script for each position of the group.
#[derive(Clone, Debug)]
pub struct ScriptedAlgorithm(Vec<Arc<MemberScript>>);

/// A scripted algorithm that replaces the machine's algorithm.
#[derive(Clone, Debug)]
pub struct NamedScriptedAlgorithm {
    /// Kind of collective that the algorithm implements.
    pub kind: CollectiveKind,
    /// Name of the algorithm in reports.
    pub name: String,
    /// Size in bytes of the whole buffer for which the scripts' messages are sized, or `None` if the files do not state
    /// it.
    pub buffer: Option<u64>,
    /// Script of each position. Position p is the p-th member of the group, counted from the root if there is one. Each
    /// receive is matched to one send ([`ScriptedAlgorithm::with_matched_labels`]).
    pub scripts: ScriptedAlgorithm,
}

/// Key by which a receiver matches a message: the sender and the label.
type SenderAndMessageLabel = (u32, u32);

/// Progress of one member through its script.
#[derive(Clone, Debug)]
struct ScriptProgress {
    script: Arc<MemberScript>,
    waiting: Vec<u32>,
    left: u32,
    /// Receives that wait for their messages.
    posted_receives: BTreeMap<SenderAndMessageLabel, VecDeque<u32>>,
    /// For each key, the number of messages that arrived before their receives started.
    arrived: BTreeMap<SenderAndMessageLabel, u32>,
}

/// Progress of the members that execute scripts.
#[derive(Clone, Debug, Default)]
pub struct ScriptExecutor(BTreeMap<ScriptExecutingMemberId, ScriptProgress>);

impl NamedScriptedAlgorithm {
    /// Returns true if the algorithm implements collectives of `kind` among `members` members. Returns false for a
    /// single member, which has no peer.
    pub fn applies_to(&self, kind: CollectiveKind, members: u32) -> bool {
        self.kind == kind && members > 1 && self.scripts.position_count() == members
    }
}

impl ScriptedAlgorithm {
    /// Creates the algorithm from one script per position, starting with position 0.
    pub fn new(scripts: Vec<MemberScript>) -> Self {
        Self(scripts.into_iter().map(Arc::new).collect())
    }

    /// Returns the number of positions that have a script.
    pub fn position_count(&self) -> u32 {
        self.0.len() as u32
    }

    /// Returns the script that the member at `position` executes.
    pub fn script_of_position(&self, position: u32) -> &MemberScript {
        &self.0[position as usize]
    }

    /// Iterates over the operations of the first `size` scripts as (position, index, operation).
    fn iter_ops_of_first_scripts(&self, size: u32) -> impl Iterator<Item = (u32, u32, ScriptOp)> {
        let scripts = (0..size).zip(&self.0);
        scripts.flat_map(|(position, script)| {
            let parts = (0..).zip(&script.parts);
            parts.map(move |(place, &part)| (position, place, part))
        })
    }

    /// Returns the first pair (sender, receiver) of `size` positions whose sends and receives do
    /// not match, or `None` if all match.
    pub fn find_unpaired_peers(&self, size: u32) -> Option<(u32, u32)> {
        // Number of sends minus number of receives, by sender, receiver and label.
        let mut open: BTreeMap<(u32, u32, u32), i64> = BTreeMap::new();
        for (position, _, part) in self.iter_ops_of_first_scripts(size) {
            let (key, count) = match part {
                ScriptOp::Send { to, label, .. } => ((position, to, label), 1),
                ScriptOp::Receive { from, label } => ((from, position, label), -1),
                ScriptOp::Wait(_) => continue,
            };
            *open.entry(key).or_insert(0) += count;
        }
        let mut open = open.into_iter().filter(|(_, count)| *count != 0);
        open.next().map(|((from, to, _), _)| (from, to))
    }

    /// Returns a peer in the script that is outside a group of `size`, or `None` if there is none.
    pub fn find_peer_outside_group(&self, size: u32) -> Option<u32> {
        let mut peers = self
            .iter_ops_of_first_scripts(size)
            .filter_map(|(_, _, part)| part.peer_position());
        peers.find(|&peer| peer >= size)
    }
}

impl ScriptOp {
    fn peer_position(self) -> Option<u32> {
        match self {
            Self::Send { to: peer, .. } | Self::Receive { from: peer, .. } => Some(peer),
            Self::Wait(_) => None,
        }
    }
}

impl ScriptExecutor {
    /// Delivers the event `cue` to one member of a collective in flight, and appends its script's next actions to
    /// `acts`. `script` returns the index of the member's script; it is called only on the first event.
    pub fn deliver_event_and_append_actions(
        &mut self,
        scripts: &ScriptedAlgorithm,
        script: impl FnOnce() -> u32,
        player: ScriptExecutingMemberId,
        cue: ScriptMemberEvent,
        acts: &mut Vec<ScriptAction>,
    ) {
        let progress = self.0.entry(player).or_insert_with(|| {
            let script = scripts.0[script() as usize].clone();
            ScriptProgress {
                waiting: script.in_degrees.clone(),
                left: script.len(),
                script,
                posted_receives: BTreeMap::new(),
                arrived: BTreeMap::new(),
            }
        });
        match cue {
            ScriptMemberEvent::Begin => {
                // Clone the `Arc`, so that `progress` can be mutated while the script is read.
                let script = progress.script.clone();
                for part in (0..script.len()).filter(|&p| script.in_degrees[p as usize] == 0) {
                    progress.begin_op(part, acts);
                }
            }
            ScriptMemberEvent::OpCompleted { part } => progress.complete_op(part, acts),
            ScriptMemberEvent::Message { from, label } => {
                progress.deliver_arrived_message((from, label), acts)
            }
        }
        if progress.left == 0 {
            acts.push(ScriptAction::End);
            self.0.remove(&player);
        }
    }
}

impl ScriptProgress {
    /// Starts an operation whose predecessors have all completed.
    fn begin_op(&mut self, part: u32, acts: &mut Vec<ScriptAction>) {
        match self.script.parts[part as usize] {
            ScriptOp::Send { to, bytes, label } => acts.push(ScriptAction::Send {
                to,
                bytes,
                label,
                part,
            }),
            ScriptOp::Receive { from, label } => {
                let key = (from, label);
                match self.arrived.get_mut(&key).filter(|count| **count > 0) {
                    // If the message arrived earlier, a separate event completes the receive, so that the order of
                    // events decides when dependent operations start.
                    Some(count) => {
                        *count -= 1;
                        acts.push(ScriptAction::TakeArrived { part });
                    }
                    None => self.posted_receives.entry(key).or_default().push_back(part),
                }
            }
            ScriptOp::Wait(span) => acts.push(ScriptAction::Wait { span, part }),
        }
    }

    fn complete_op(&mut self, part: u32, acts: &mut Vec<ScriptAction>) {
        self.left -= 1;
        let script = self.script.clone();
        for &next in script.successors(part) {
            self.waiting[next as usize] -= 1;
            if self.waiting[next as usize] == 0 {
                self.begin_op(next, acts);
            }
        }
    }

    fn deliver_arrived_message(
        &mut self,
        key: SenderAndMessageLabel,
        acts: &mut Vec<ScriptAction>,
    ) {
        let waiting = self
            .posted_receives
            .get_mut(&key)
            .and_then(VecDeque::pop_front);
        match waiting {
            Some(part) => self.complete_op(part, acts),
            None => *self.arrived.entry(key).or_insert(0) += 1,
        }
    }
}
