//! Collectives whose algorithm is a trace for each position of the group.
//!
//! Rank r of the group plays `PREFIX.p.et`, where p is its place among the group's ranks *in ascending
//! order*; a peer a in it is the a-th rank of the group *as the file of groups has it*. All nodes whose
//! dependencies are complete are issued at once, in order of their ids: there are no lanes. A compute node
//! lasts as recorded, at least 1 ns; the sizes are those of the algorithm, and the collective's own
//! does not count. It is over at a rank when all of its nodes are.

use crate::collective::{Act, Cue};
use crate::graph::{Dependencies, Graph, Kind};
use crate::ids::{NodeIndex, Npu};
use crate::trace::scan::NodeView;
use crate::trace::{Op, TraceError};
use crate::units::Span;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The script of one position.
#[derive(Debug)]
struct Script {
    graph: Graph,
    /// For each message of the graph: the peer's position, and its label.
    messages: Vec<(u32, u32)>,
}

/// An algorithm: a script for each position.
#[derive(Clone, Debug)]
pub struct Algorithm {
    scripts: Vec<Arc<Script>>,
}

/// A message by which a receiver knows it: the sender, and a label that stands for tag and size.
type Key = (u32, u32);

/// How far a member is.
#[derive(Clone, Debug)]
struct Progress {
    script: Arc<Script>,
    waiting: Vec<u32>,
    left: usize,
    /// Receives that wait.
    listening: BTreeMap<Key, VecDeque<NodeIndex>>,
    /// Messages that have arrived and that no receive has taken.
    arrived: BTreeMap<Key, u32>,
}

/// The members that play, by run and position.
#[derive(Clone, Debug, Default)]
pub(super) struct Players(BTreeMap<(u32, u32), Progress>);

/// Makes of a node what a script makes of it.
fn edit(node: &mut NodeView<'_>) -> Result<(), TraceError> {
    (node.delay, node.wait) = (Span::ZERO, Span::ZERO);
    node.recorded = Span::from_ns(node.micros.saturating_mul(1000).max(1));
    match node.op {
        Op::Compute { .. } | Op::Host | Op::Message { .. } | Op::Nothing => Ok(()),
        _ => Err(TraceError::refused(
            node.id,
            "an algorithm has compute nodes, sends and receives only",
            "leave the node out, or name a built-in implementation",
        )),
    }
}

impl Algorithm {
    /// Makes an algorithm of the contents of its scripts, those of position 0 first.
    ///
    /// # Errors
    ///
    /// As [`Graph::read`], and on nodes that are neither compute nor a send nor a receive; with the position
    /// whose script is at fault.
    pub fn read<C: AsRef<[u8]>>(contents: &[C]) -> Result<Self, (u32, TraceError)> {
        let mut labels: BTreeMap<(i32, u64), u32> = BTreeMap::new();
        let mut scripts = Vec::new();
        for (position, contents) in (0..).zip(contents) {
            let policy = Dependencies::Both;
            let read = Graph::read_edited(contents.as_ref(), position, policy, edit);
            let (graph, binding) = read.map_err(|e| (position, e))?;
            let messages = graph.messages().iter().map(|message| {
                let next = labels.len() as u32;
                let key = (message.tag, graph.bytes(message.node));
                let label = *labels.entry(key).or_insert(next);
                (binding.peers[message.peer as usize], label)
            });
            let messages = messages.collect();
            scripts.push(Arc::new(Script { graph, messages }));
        }
        Ok(Self { scripts })
    }

    /// How many positions it has scripts for.
    pub(super) fn positions(&self) -> u32 {
        self.scripts.len() as u32
    }

    /// Two of `size` positions of which the first does not send the second what it receives, if there are any.
    pub(super) fn unpaired(&self, size: u32) -> Option<(u32, u32)> {
        // By sender, receiver and label: sends less receives.
        let mut open: BTreeMap<(u32, u32, u32), i64> = BTreeMap::new();
        for (position, script) in (0..size).zip(&self.scripts) {
            for (message, &(peer, label)) in script.graph.messages().iter().zip(&script.messages) {
                let (from, to, count) = match message.receive {
                    true => (peer, position, -1),
                    false => (position, peer, 1),
                };
                *open.entry((from, to, label)).or_insert(0) += count;
            }
        }
        let mut open = open.into_iter().filter(|(_, count)| *count != 0);
        open.next().map(|((from, to, _), _)| (from, to))
    }

    /// A peer that is none of a group of `size`, if its scripts have one.
    pub(super) fn stranger(&self, size: u32) -> Option<u32> {
        let scripts = self.scripts.iter().take(size as usize);
        let mut peers = scripts.flat_map(|script| script.messages.iter().map(|(peer, _)| *peer));
        peers.find(|&peer| peer >= size)
    }
}

impl Players {
    /// Has the member at `position` of a run play on; `npus` are those of all positions.
    pub fn play(
        &mut self,
        algorithm: &Algorithm,
        (run, position): (u32, u32),
        npus: &[Npu],
        cue: Cue,
        acts: &mut Vec<Act>,
    ) {
        let progress = self.0.entry((run, position)).or_insert_with(|| {
            let own = npus[position as usize];
            let place = npus.iter().filter(|npu| **npu < own).count();
            let script = algorithm.scripts[place].clone();
            Progress {
                waiting: script.graph.in_degrees().to_vec(),
                left: script.graph.len(),
                script,
                listening: BTreeMap::new(),
                arrived: BTreeMap::new(),
            }
        });
        match cue {
            Cue::Begin => {
                let script = progress.script.clone();
                let roots = script.graph.nodes();
                for node in roots.filter(|n| script.graph.in_degrees()[n.index()] == 0) {
                    progress.issue(node, acts);
                }
            }
            Cue::Over { part } => progress.complete(NodeIndex(part), acts),
            Cue::Message { from, label } => progress.arrive((from, label), acts),
        }
        if progress.left == 0 {
            acts.push(Act::End);
            self.0.remove(&(run, position));
        }
    }
}

impl Progress {
    /// All that a node waits for is over.
    fn issue(&mut self, node: NodeIndex, acts: &mut Vec<Act>) {
        let graph = &self.script.graph;
        let part = node.0;
        match graph.kind(node) {
            Kind::Send => {
                let (to, label) = self.script.messages[graph.message_index(node)];
                let bytes = graph.bytes(node);
                acts.push(Act::Send {
                    to,
                    bytes,
                    label,
                    part,
                });
            }
            Kind::Receive => {
                let key = self.script.messages[graph.message_index(node)];
                match self.arrived.get_mut(&key).filter(|count| **count > 0) {
                    Some(count) => {
                        *count -= 1;
                        acts.push(Act::Take { part });
                    }
                    None => self.listening.entry(key).or_default().push_back(node),
                }
            }
            Kind::Nothing => acts.push(Act::Wait {
                span: Span::ZERO,
                part,
            }),
            _ => acts.push(Act::Wait {
                span: graph.recorded(node),
                part,
            }),
        }
    }

    fn complete(&mut self, node: NodeIndex, acts: &mut Vec<Act>) {
        self.left -= 1;
        let script = self.script.clone();
        for &next in script.graph.successors(node) {
            self.waiting[next.index()] -= 1;
            if self.waiting[next.index()] == 0 {
                self.issue(next, acts);
            }
        }
    }

    fn arrive(&mut self, key: Key, acts: &mut Vec<Act>) {
        let waiting = self.listening.get_mut(&key).and_then(VecDeque::pop_front);
        match waiting {
            Some(node) => self.complete(node, acts),
            None => *self.arrived.entry(key).or_insert(0) += 1,
        }
    }
}
