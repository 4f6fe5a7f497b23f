//! Matches receives to sends before a collective is simulated.
//!
//! For each sender, receiver and label, the k-th receive is matched to the k-th send. Both are counted in program
//! order: the topological order of operations in which lower indices come first. Matches therefore do not depend on the
//! order of events at an instant. Dependency cycles are found here, before the simulation.

use super::{MemberScript, ScriptOp, ScriptedAlgorithm};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

/// Reason why a custom algorithm cannot run, with the position and the operation at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptFault {
    /// A send or receive names a peer that does not exist.
    UnknownPeer {
        /// Group position of the member whose script is invalid.
        position: u32,
        /// Index of the operation in that script.
        part: u32,
        /// Position that the operation names as its peer.
        peer: u32,
    },
    /// A send or receive has no matching operation at the peer.
    Unpaired {
        /// Group position of the member whose script is invalid.
        position: u32,
        /// Index of the operation in that script.
        part: u32,
        /// Position that the operation names as its peer.
        peer: u32,
        /// True for a receive, false for a send.
        receive: bool,
    },
    /// An operation depends on itself: a dependency cycle.
    Cycle {
        /// Group position of the member whose script is invalid.
        position: u32,
        /// Index of the operation in that script.
        part: u32,
    },
}

/// An operation as (position, index in the position's script).
type ScriptOpId = (u32, u32);
/// Sends and receives of one label between two positions.
type ChannelSendsAndReceives = (Vec<ScriptOpId>, Vec<ScriptOpId>);

impl ScriptedAlgorithm {
    /// Returns the algorithm with relabelled messages: each message's send and receive share a label that no other
    /// message uses.
    ///
    /// # Errors
    ///
    /// Fails if a peer does not exist, a send or receive has no counterpart, or an operation depends on itself.
    pub fn with_matched_labels(&self) -> Result<Self, ScriptFault> {
        let size = self.position_count();
        let mut channels: BTreeMap<(u32, u32, u32), ChannelSendsAndReceives> = BTreeMap::new();
        for position in 0..size {
            let script = self.script_of_position(position);
            for part in script
                .topological_order()
                .ok_or(ScriptFault::Cycle { position, part: 0 })?
            {
                let what = script.parts[part as usize];
                if let Some(peer) = what.peer_position().filter(|&peer| peer >= size) {
                    return Err(ScriptFault::UnknownPeer {
                        position,
                        part,
                        peer,
                    });
                }
                let at = (position, part);
                match what {
                    ScriptOp::Send { to, label, .. } => {
                        let halves = channels.entry((position, to, label)).or_default();
                        halves.0.push(at);
                    }
                    ScriptOp::Receive { from, label } => {
                        let halves = channels.entry((from, position, label)).or_default();
                        halves.1.push(at);
                    }
                    ScriptOp::Wait(_) => {}
                }
            }
        }
        let mut scripts: Vec<MemberScript> =
            self.0.iter().map(|script| (**script).clone()).collect();
        let mut pairs = Vec::new();
        for ((from, to, _), (sends, receives)) in channels {
            // Reports the first send or receive that has no counterpart.
            let both = sends.len().min(receives.len());
            if let Some(&(position, part)) = sends.get(both).or(receives.get(both)) {
                let receive = receives.len() > both;
                return Err(ScriptFault::Unpaired {
                    position,
                    part,
                    peer: if receive { from } else { to },
                    receive,
                });
            }
            pairs.extend(sends.into_iter().zip(receives));
        }
        for &((from, send), (to, receive)) in &pairs {
            // The receive's index serves as the label, because it is unique among the messages between two positions.
            for (position, part) in [(from, send), (to, receive)] {
                let part = &mut scripts[position as usize].parts[part as usize];
                if let ScriptOp::Send { label, .. } | ScriptOp::Receive { label, .. } = part {
                    *label = receive;
                }
            }
        }
        match find_op_on_dependency_cycle(&scripts, &pairs) {
            Some((position, part)) => Err(ScriptFault::Cycle { position, part }),
            None => Ok(Self(scripts.into_iter().map(Arc::new).collect())),
        }
    }
}

impl MemberScript {
    /// Returns a topological order that prefers lower indices, or `None` if there is a cycle.
    fn topological_order(&self) -> Option<Vec<u32>> {
        let mut waiting = self.in_degrees.clone();
        let roots = (0..self.len()).filter(|&part| waiting[part as usize] == 0);
        // A heap yields the smallest ready index first, which a stack would not.
        let mut ready: BinaryHeap<Reverse<u32>> = roots.map(Reverse).collect();
        let mut order = Vec::with_capacity(self.parts.len());
        while let Some(Reverse(part)) = ready.pop() {
            order.push(part);
            for &next in self.successors(part) {
                waiting[next as usize] -= 1;
                if waiting[next as usize] == 0 {
                    ready.push(Reverse(next));
                }
            }
        }
        (order.len() == self.parts.len()).then_some(order)
    }
}

/// Returns an operation on a dependency cycle of matched scripts, or `None`. A receive waits for its send.
fn find_op_on_dependency_cycle(
    scripts: &[MemberScript],
    pairs: &[(ScriptOpId, ScriptOpId)],
) -> Option<ScriptOpId> {
    let sends: BTreeMap<ScriptOpId, ScriptOpId> = pairs.iter().copied().collect();
    let mut waiting: Vec<Vec<u32>> = scripts.iter().map(|s| s.in_degrees.clone()).collect();
    for &(_, (position, receive)) in pairs {
        waiting[position as usize][receive as usize] += 1;
    }
    let all = |waiting: &[Vec<u32>], ready: bool| -> Vec<ScriptOpId> {
        let all = (0..).zip(waiting).flat_map(|(position, waiting)| {
            let parts = (0..)
                .zip(waiting)
                .filter(move |(_, left)| (**left == 0) == ready);
            parts.map(move |(part, _)| (position, part))
        });
        all.collect()
    };
    let mut ready = all(&waiting, true);
    while let Some((position, part)) = ready.pop() {
        let own = scripts[position as usize]
            .successors(part)
            .iter()
            .map(|&next| (position, next));
        for (position, next) in own.chain(sends.get(&(position, part)).copied()) {
            let left = &mut waiting[position as usize][next as usize];
            *left -= 1;
            if *left == 0 {
                ready.push((position, next));
            }
        }
    }
    // Each remaining operation of a script waits for another remaining operation. A walk along the waits therefore
    // reaches a cycle.
    let mut before: BTreeMap<ScriptOpId, ScriptOpId> = BTreeMap::new();
    let left = all(&waiting, false);
    for &(position, part) in &left {
        let own = scripts[position as usize]
            .successors(part)
            .iter()
            .map(|&next| (position, next));
        for next in own.chain(sends.get(&(position, part)).copied()) {
            before.insert(next, (position, part));
        }
    }
    let mut at = *left.first()?;
    for _ in &left {
        at = before[&at];
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_send_op(to: u32) -> ScriptOp {
        ScriptOp::Send {
            to,
            bytes: 1,
            label: 7,
        }
    }

    fn build_receive_op(from: u32) -> ScriptOp {
        ScriptOp::Receive { from, label: 7 }
    }

    /// Creates a script in which each operation waits for the previous one.
    fn build_script_of_sequential_operations(parts: &[ScriptOp]) -> MemberScript {
        let mut script = MemberScript::default();
        for (i, &part) in (0..).zip(parts) {
            let next = Some(i + 1).filter(|&next| (next as usize) < parts.len());
            script.push(u64::from(i), part, u32::from(i > 0), next.into_iter());
        }
        script
    }

    #[test]
    fn the_first_receive_takes_the_first_send() {
        let scripts = ScriptedAlgorithm::new(vec![
            build_script_of_sequential_operations(&[
                build_send_op(1),
                build_receive_op(1),
                build_send_op(1),
            ]),
            build_script_of_sequential_operations(&[
                build_receive_op(0),
                build_send_op(0),
                build_receive_op(0),
            ]),
        ]);
        let matched = scripts.with_matched_labels().unwrap();
        let labels = |position| -> Vec<u32> {
            let parts = matched.script_of_position(position).parts.iter();
            let labels = parts.map(|part| match *part {
                ScriptOp::Send { label, .. } | ScriptOp::Receive { label, .. } => label,
                ScriptOp::Wait(_) => unreachable!("there is none"),
            });
            labels.collect()
        };
        // Each label is the index of the receive: 0 and 2 at position 1, 1 at position 0.
        assert_eq!([labels(0), labels(1)], [[0, 1, 2], [0, 1, 2]]);
    }

    #[test]
    fn faulty_scripts_are_refused_with_the_fault() {
        let fault = |scripts| {
            ScriptedAlgorithm::new(scripts)
                .with_matched_labels()
                .unwrap_err()
        };
        let stranger = vec![
            build_script_of_sequential_operations(&[build_send_op(1), build_send_op(2)]),
            build_script_of_sequential_operations(&[build_receive_op(0)]),
        ];
        let (position, part, peer) = (0, 1, 2);
        assert_eq!(
            fault(stranger),
            ScriptFault::UnknownPeer {
                position,
                part,
                peer
            }
        );
        let unmatched = vec![
            build_script_of_sequential_operations(&[build_send_op(1)]),
            build_script_of_sequential_operations(&[build_receive_op(0), build_receive_op(0)]),
        ];
        let (position, part, peer, receive_half) = (1, 1, 0, true);
        assert_eq!(
            fault(unmatched),
            ScriptFault::Unpaired {
                position,
                part,
                peer,
                receive: receive_half
            }
        );
        // Both positions receive before they send; the waits after the sends are not on the cycle.
        let wait = ScriptOp::Wait(chakram_base::units::Span::ZERO);
        let both = vec![
            build_script_of_sequential_operations(&[build_receive_op(1), build_send_op(1), wait]),
            build_script_of_sequential_operations(&[build_receive_op(0), build_send_op(0), wait]),
        ];
        let ScriptFault::Cycle { part, .. } = fault(both) else {
            panic!("another fault");
        };
        assert!(part < 2, "{part}");
    }
}
