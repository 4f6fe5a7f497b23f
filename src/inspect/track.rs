//! What the critical path of a job needs of a rank, in flat arrays of some 50 bytes a node.

use super::class::Class;
use super::lanes::group_label;
use super::times::Basis;
use super::trace::Trace;
use crate::graph::recorded::NONE;
use crate::graph::{Names, Recorded};
use crate::trace::groups::parse_metadata;
use crate::trace::{Op, TraceError};
use crate::units::{Span, Time};
use std::collections::BTreeMap;

/// What members of a collective, or both ends of a message, have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Joint {
    /// A group, with its members as the rank declares them, if it does.
    Group(String, Option<Vec<u32>>),
    /// Messages from a rank to another with a tag.
    Pair(u32, u32, i32),
}

/// A rank's part in something that ranks do together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// The node.
    pub node: u32,
    /// Which of the rank's joints.
    pub joint: u32,
    /// The how-manieth of its joint in program order.
    pub sequence: u32,
    /// How long it waited for the others.
    pub wait: Span,
}

/// What the critical path of a job needs of a rank.
#[derive(Debug)]
pub struct Track {
    /// The rank.
    pub rank: u32,
    /// What its times rest on.
    pub basis: Basis,
    /// Whether every duration is a whole number of microseconds.
    pub whole_micros: bool,
    /// When its last event ended where it was recorded, if the file says.
    pub captured: Option<Span>,
    /// How many nodes run.
    pub ran: usize,
    /// How many nodes do not, because of a cycle.
    pub stuck: usize,
    pub(super) last: Option<u32>,
    pub(super) start: Vec<Time>,
    pub(super) end: Vec<Time>,
    pub(super) cause: Vec<u32>,
    pub(super) ids: Vec<u64>,
    pub(super) classes: Vec<Class>,
    pub(super) names: Names,
    pub(super) name_of: Vec<u32>,
    pub(super) joints: Vec<Joint>,
    /// Ascending by node.
    pub(super) parts: Vec<Part>,
}

impl Track {
    /// That of `trace`.
    ///
    /// Fails on more than 4 GiB of names.
    pub fn new(trace: Trace<'_>) -> Result<Self, TraceError> {
        let nodes = &trace.outline.nodes;
        let mut names = Names::default();
        let mut name_of = Vec::with_capacity(nodes.len());
        for item in nodes {
            let number = names.intern(item.view.name);
            name_of.push(number.ok_or_else(|| {
                TraceError::refused(item.view.id, "more than 4 GiB of names", "shorten them")
            })?);
        }
        names.freeze();
        let (joints, parts) = parts(&trace);
        let last = trace.times.run.last();
        let ids = nodes.iter().map(|item| item.view.id).collect();
        let (rank, classes, basis) = (trace.rank, trace.classes, trace.times.basis);
        let captured = trace.outline.metadata.captured;
        let whole_micros = trace.times.whole_micros;
        let Recorded {
            start,
            end,
            cause,
            ran,
            ..
        } = trace.times.run;
        Ok(Self {
            rank,
            basis,
            whole_micros,
            captured,
            ran,
            stuck: start.len() - ran,
            last,
            start,
            end,
            cause,
            ids,
            classes,
            names,
            name_of,
            joints,
            parts,
        })
    }

    /// The part that a node has in something that ranks do together.
    pub(super) fn part(&self, node: u32) -> Option<&Part> {
        let found = self.parts.binary_search_by_key(&node, |part| part.node);
        found.ok().map(|i| &self.parts[i])
    }

    /// What set `node` free, if it waited for anything.
    pub(super) fn cause(&self, node: u32) -> Option<u32> {
        Some(self.cause[node as usize]).filter(|&cause| cause != NONE)
    }

    /// The name of a node.
    pub fn name(&self, node: u32) -> &str {
        self.names.get(self.name_of[node as usize])
    }

    /// When its last node ended; `None` if none runs.
    pub fn last_end(&self) -> Option<Time> {
        Some(self.end[self.last? as usize])
    }
}

/// What a rank does together with others, counted in the order of its program.
fn parts(trace: &Trace<'_>) -> (Vec<Joint>, Vec<Part>) {
    let outline = &trace.outline;
    let mut groups = BTreeMap::new();
    for item in &outline.nodes {
        if let Some(text) = item.view.groups
            && let Ok(declared) = parse_metadata(item.view.id, text)
        {
            groups.extend(declared);
        }
    }
    let mut joints: BTreeMap<Joint, (u32, u32)> = BTreeMap::new();
    let mut parts = Vec::new();
    for node in trace.program_order() {
        let joint = match outline.nodes[node as usize].view.op {
            // Which ranks are meant by dimensions, the trace does not say.
            Op::Collective {
                group,
                dimensions: None,
                ..
            } => {
                let label = group_label(group);
                let members = groups
                    .get(&label)
                    .filter(|members| !members.is_empty())
                    .cloned();
                Joint::Group(label, members)
            }
            Op::Message {
                receive: false,
                peer,
                tag,
                ..
            } => Joint::Pair(trace.rank, peer, tag),
            Op::Message { peer, tag, .. } => Joint::Pair(peer, trace.rank, tag),
            _ => continue,
        };
        let new = joints.len() as u32;
        let (index, count) = joints.entry(joint).or_insert((new, 0));
        parts.push(Part {
            node,
            joint: *index,
            sequence: *count,
            wait: trace.wait(node),
        });
        *count += 1;
    }
    parts.sort_unstable_by_key(|part| part.node);
    let mut list: Vec<(u32, Joint)> = joints
        .into_iter()
        .map(|(joint, (index, _))| (index, joint))
        .collect();
    list.sort_unstable_by_key(|(index, _)| *index);
    (list.into_iter().map(|(_, joint)| joint).collect(), parts)
}
