//! Converts traces to GOAL schedules, and writes schedules as text.
//!
//! A node that occupies a lane becomes a calculation. It lasts as long as the node's recorded duration and delay
//! together. The delay of a communication node becomes a calculation before it. Times are rounded to nanoseconds. GOAL
//! has neither collectives nor kernel work, so traces with collectives or without times are rejected.

use super::{GoalOperation, GoalOperationKind, GoalRankProgram, GoalSchedule};
use chakram_base::ids::NodeIndex;
use chakram_base::setting::SettingKey;
use chakram_base::units::Span;
use chakram_trace::format::{TraceError, TraceErrorLocation};
use chakram_trace::graph::{Graph, NodeKind};
use std::fmt::{self, Display, Formatter};

impl GoalRankProgram {
    /// Converts one rank's trace, `graph`, to the rank's program. `peers` maps each peer index of the trace to a rank
    /// of the job.
    ///
    /// # Errors
    ///
    /// Fails if the trace contains collectives, kernels without a recorded time, or negative tags.
    pub fn from_graph(graph: &Graph, peers: &[u32]) -> Result<Self, TraceError> {
        let mut program = Self::default();
        // For each node, the index of its last operation in the program.
        let mut place: Vec<u32> = vec![0; graph.len()];
        let mut before: Vec<Vec<u32>> = vec![Vec::new(); graph.len()];
        for node in graph.nodes() {
            for next in graph.successors(node) {
                before[next.0 as usize].push(node.0);
            }
        }
        for node in sort_topologically(graph, &before) {
            let mut after: Vec<u32> = before[node.0 as usize]
                .iter()
                .map(|&node| place[node as usize])
                .collect();
            after.sort_unstable();
            after.dedup();
            let (kind, delay) = (
                convert_node_to_goal_operation(graph, peers, node)?,
                round_to_ns(graph.launch_delay_after_dependencies(node)),
            );
            let cpu = graph.lane(node);
            let operations = &mut program.operations;
            let mut push = |kind, after_end| {
                operations.push(GoalOperation {
                    label: format!("l{}", operations.len() + 1),
                    kind,
                    cpu,
                    after_end,
                    after_begin: Vec::new(),
                    line: 0,
                });
                operations.len() as u32 - 1
            };
            place[node.0 as usize] = match kind {
                GoalOperationKind::Calculation { ns } => {
                    let ns = ns.saturating_add(delay);
                    push(GoalOperationKind::Calculation { ns }, after)
                }
                message if delay > 0 => {
                    let wait = push(GoalOperationKind::Calculation { ns: delay }, after);
                    push(message, vec![wait])
                }
                message => push(message, after),
            };
        }
        Ok(program)
    }
}

/// Returns the nodes in topological order. Where dependencies allow, nodes keep the trace's order, so that messages
/// match in this order.
fn sort_topologically(graph: &Graph, before: &[Vec<u32>]) -> Vec<NodeIndex> {
    let mut waits: Vec<u32> = before.iter().map(|before| before.len() as u32).collect();
    let mut ready: std::collections::BTreeSet<u32> = graph
        .nodes()
        .map(|node| node.0)
        .filter(|&node| waits[node as usize] == 0)
        .collect();
    let mut order = Vec::with_capacity(graph.len());
    while let Some(node) = ready.pop_first() {
        order.push(NodeIndex(node));
        for next in graph.successors(NodeIndex(node)) {
            waits[next.0 as usize] -= 1;
            if waits[next.0 as usize] == 0 {
                ready.insert(next.0);
            }
        }
    }
    order
}

/// Converts a node to an operation of a schedule.
fn convert_node_to_goal_operation(
    graph: &Graph,
    peers: &[u32],
    node: NodeIndex,
) -> Result<GoalOperationKind, TraceError> {
    let refused = |found: &str, hint: &str| {
        let found = format!("node {} `{}` {found}", graph.id(node), graph.name(node));
        Err(TraceError::invalid_at(
            TraceErrorLocation::default(),
            found,
            hint,
        ))
    };
    match graph.kind(node) {
        NodeKind::Collective => refused(
            "is a collective, which GOAL cannot express",
            "traces that have only messages; other tools turn collectives into GOAL, and `chakram convert goal` reads their output",
        ),
        NodeKind::Send | NodeKind::Receive => {
            let message = graph.messages()[graph.message_index(node)];
            if message.tag < 0 {
                return refused("has a negative tag", "tags of 0 or more");
            }
            Ok(GoalOperationKind::Message {
                receive: message.receive,
                peer: peers[message.peer as usize],
                bytes: graph.stated_bytes_of_node(node),
                tag: message.tag,
            })
        }
        NodeKind::Compute
            if graph.recorded_duration(node) == Span::ZERO
                && graph.flops(node) + graph.stated_bytes_of_node(node) > 0 =>
        {
            refused(
                "has FLOPs or bytes but no recorded time, and GOAL can express only times",
                &format!(
                    "traces of a job that ran, or `chakram replay … {:#}` for what a machine makes of it",
                    SettingKey::Timeline
                ),
            )
        }
        _ => Ok(GoalOperationKind::Calculation {
            ns: round_to_ns(graph.recorded_duration(node)),
        }),
    }
}

/// Returns a time in nanoseconds, rounded to the nearest whole number.
fn round_to_ns(span: Span) -> u64 {
    span.0 / 1000 + u64::from(span.0 % 1000 >= 500)
}

impl Display for GoalSchedule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "num_ranks {}", self.programs.len())?;
        for (rank, program) in self.programs.iter().enumerate() {
            writeln!(f, "\nrank {rank} {{\n{program}}}")?;
        }
        Ok(())
    }
}

impl Display for GoalRankProgram {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let label = |place: u32| &self.operations[place as usize].label;
        for operation in &self.operations {
            if !operation.label.is_empty() {
                write!(f, "{}: ", operation.label)?;
            }
            match operation.kind {
                GoalOperationKind::Calculation { ns } => {
                    writeln!(f, "calc {ns} cpu {}", operation.cpu)?
                }
                GoalOperationKind::Message {
                    receive,
                    peer,
                    bytes,
                    tag,
                } => {
                    let (word, to) = if receive {
                        ("recv", "from")
                    } else {
                        ("send", "to")
                    };
                    writeln!(
                        f,
                        "{word} {bytes}b {to} {peer} tag {tag} cpu {}",
                        operation.cpu
                    )?;
                }
            }
            for &earlier in &operation.after_end {
                writeln!(f, "{} requires {}", operation.label, label(earlier))?;
            }
            for &earlier in &operation.after_begin {
                writeln!(f, "{} irequires {}", operation.label, label(earlier))?;
            }
        }
        Ok(())
    }
}
