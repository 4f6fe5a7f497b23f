//! Data of a rank for the critical path of a job, in flat arrays of some 50 bytes for each node.

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

/// Key that the members of a collective, or both ends of a message, share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Joint {
    /// Group, with its members if the rank declares them.
    Group(String, Option<Vec<u32>>),
    /// Messages from one rank to another with a tag.
    Pair(u32, u32, i32),
}

/// Part of a rank in a collective or a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// The node.
    pub node: u32,
    /// Index of its key among those of the rank.
    pub joint: u32,
    /// Index among those with its key in program order.
    pub sequence: u32,
    /// Time of waiting for the others.
    pub wait: Span,
}

/// Data of a rank for the critical path of a job.
#[derive(Debug)]
pub struct Track {
    /// The rank.
    pub rank: u32,
    /// Basis of its times.
    pub basis: Basis,
    /// Whether every duration is a whole number of microseconds.
    pub whole_micros: bool,
    /// Recorded end of the rank's last event, if the file states it.
    pub captured: Option<Span>,
    /// Number of nodes that run.
    pub ran: usize,
    /// Number of nodes that do not run, because of a cycle.
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
    /// Sorted by node.
    pub(super) parts: Vec<Part>,
}

impl Track {
    /// Extracts the data from `trace`.
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

    /// Returns the part of a node in a collective or a message.
    pub(super) fn part(&self, node: u32) -> Option<&Part> {
        let found = self.parts.binary_search_by_key(&node, |part| part.node);
        found.ok().map(|i| &self.parts[i])
    }

    /// Returns the node whose end released `node`, if it waited for any.
    pub(super) fn cause(&self, node: u32) -> Option<u32> {
        Some(self.cause[node as usize]).filter(|&cause| cause != NONE)
    }

    /// Returns the name of a node.
    pub fn name(&self, node: u32) -> &str {
        self.names.get(self.name_of[node as usize])
    }

    /// Returns the end of the last node; `None` if none runs.
    pub fn last_end(&self) -> Option<Time> {
        Some(self.end[self.last? as usize])
    }
}

/// Lists the parts of a rank in collectives and messages, counted in program order.
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
            // The ranks behind a mask of dimensions are not known without a machine.
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
