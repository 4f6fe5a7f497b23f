//! Validates one trace without the other ranks.

use super::allocations;
use super::communication::{CommunicationDigest, CommunicationDigestCollector};
use super::defects::{Defect, DefectLocationInFile, DefectLog};
use super::dependencies::DependencyChecker;
use super::kind::DefectKind;
use super::node::{NodeReducedForValidation, NodeValidationRole, TraceReducedForValidation};
use super::wait::OneTraceWaitGraphBuilder;
use chakram_trace::format::error;
use chakram_trace::format::groups::{DeclaredGroups, parse_group_metadata};
use chakram_trace::format::{Op, TraceError, escape_and_shorten_name};
use chakram_trace::graph::EnforcedDependencyKinds;
use chakram_trace::graph::raw_trace::ReadFault;

/// The defects of one trace, and a digest that is compared with those of other ranks.
#[derive(Debug)]
pub struct TraceDefectsAndDigest {
    nodes: u64,
    edges: u64,
    pub(super) findings: DefectLog,
    pub(super) facts: CommunicationDigest,
}

impl TraceDefectsAndDigest {
    /// Checks the decompressed contents of a trace file; `policy` selects which dependencies are enforced. The first
    /// `show` defects of each kind are stored.
    pub fn check_trace(contents: &[u8], policy: EnforcedDependencyKinds, show: usize) -> Self {
        Self::check_trace_and_map_errors(contents, policy, show, |error| error)
    }

    /// Like [`Self::check_trace`], but converts locations in errors. If `contents` were converted from another form,
    /// `told` converts the locations in read errors to those in the original file.
    pub fn check_trace_and_map_errors(
        contents: &[u8],
        policy: EnforcedDependencyKinds,
        show: usize,
        told: impl Fn(TraceError) -> TraceError,
    ) -> Self {
        let mut raw = TraceReducedForValidation::read_trace_keeping_selected_data(contents);
        raw.map_fault_errors(told);
        let mut findings = DefectLog::new(show);
        for fault in &raw.faults {
            findings.push_and_count_for_rank(defect_from_read_fault(&raw, fault));
        }
        let mut faulty: Vec<u32> = raw.faults.iter().filter_map(|fault| fault.node).collect();
        faulty.sort_unstable();
        let mut edges = DependencyChecker::new(raw.nodes.len(), &faulty);
        let mut collect = CommunicationDigestCollector::default();
        let with_control = policy != EnforcedDependencyKinds::Data;
        let mut walk = OneTraceWaitGraphBuilder::new(raw.nodes.len(), with_control);
        let mut first = 0;
        for (item, i) in raw.nodes.iter().zip(0..) {
            edges.check_node(&raw, i, &mut findings);
            walk.add_node(&raw, i);
            collect.add_node(&raw, i);
            report_missing_duration_or_host_flag(&raw, item, &mut findings);
            // Nodes are sorted by id, so nodes with equal ids are adjacent.
            if item.view.id != raw.nodes[first as usize].view.id {
                first = i;
            } else if i > first {
                first =
                    report_duplicate_id_and_pick_keeper(&raw, (first, i), &faulty, &mut findings);
            }
            if let NodeValidationRole::Declares(groups) = item.view.role {
                let text = raw.retained.declared[groups as usize];
                add_groups_declared_by_node(
                    item,
                    text,
                    collect.declared_groups_mut(),
                    &mut findings,
                );
            }
        }
        allocations::report_classes_freed_beyond_allocations(&raw, &mut findings);
        let order = edges.report_cycles_and_order_nodes(&raw, policy, &mut findings);
        // If nodes are unreadable or have equal ids, the digest is incomplete.
        let lacking = !raw.faults.is_empty() || findings.count_of_kind(DefectKind::DuplicateId) > 0;
        let mut facts = collect.into_digest(&order, lacking);
        if facts.whole {
            // Replays ignore control dependencies that close a cycle, so such dependencies cause no
            // waits.
            let control = with_control && findings.count_of_kind(DefectKind::ControlCycle) == 0;
            facts.waits = walk.into_trace_wait_graph(&raw, &order, control);
        }
        Self {
            nodes: raw.nodes.len() as u64,
            edges: raw.total_dependency_count() as u64,
            findings,
            facts,
        }
    }

    /// Returns the result for a trace that could not be opened.
    pub fn from_read_error(error: &TraceError, show: usize) -> Self {
        let mut findings = DefectLog::new(show);
        findings.push_and_count_for_rank(defect_from_error(error, DefectLocationInFile::default()));
        Self {
            nodes: 0,
            edges: 0,
            findings,
            facts: CommunicationDigest::default(),
        }
    }

    /// Returns the number of nodes that could be decoded.
    pub fn node_count(&self) -> u64 {
        self.nodes
    }

    /// Returns how many dependencies the decoded nodes have.
    pub fn edge_count(&self) -> u64 {
        self.edges
    }

    /// Returns the defects found in this trace alone.
    pub fn defect_log(&self) -> &DefectLog {
        &self.findings
    }
}

/// Converts a read fault of a raw trace to a defect.
fn defect_from_read_fault(raw: &TraceReducedForValidation<'_>, fault: &ReadFault) -> Defect {
    let site = fault
        .node
        .map(|node| DefectLocationInFile::of_node(&raw.nodes[node as usize]));
    defect_from_error(&fault.error, site.unwrap_or_default())
}

/// Converts a reader's error to a defect; the defect's location comes from `site` and from the error.
fn defect_from_error(error: &TraceError, site: DefectLocationInFile) -> Defect {
    match error.fault() {
        error::TraceErrorKind::Io { doing, source, .. } => Defect::new(
            DefectKind::Unreadable,
            site,
            format!("cannot {doing} it: {source}"),
        ),
        error::TraceErrorKind::Interrupted(interruption) => {
            Defect::new(DefectKind::Unreadable, site, interruption.to_string())
        }
        error::TraceErrorKind::Malformed { place, found } => {
            let mut at = DefectLocationInFile::from_trace_location(place);
            at.node = at.node.or(site.node);
            at.name = site.name;
            Defect::new(DefectKind::Unreadable, at, found)
        }
        error::TraceErrorKind::Refused { place, found, hint } => {
            let site = match site.node {
                Some(_) => site,
                None => DefectLocationInFile::from_trace_location(place),
            };
            Defect {
                hint: Some(hint.clone()),
                ..Defect::new(DefectKind::InvalidNode, site, found)
            }
        }
    }
}

/// Reports work without a duration, and communication that is marked as host work.
#[inline]
fn report_missing_duration_or_host_flag(
    raw: &TraceReducedForValidation<'_>,
    item: &NodeReducedForValidation<'_>,
    findings: &mut DefectLog,
) {
    let (kind, found) = match item.view.role {
        NodeValidationRole::Call(part) | NodeValidationRole::Message(part) => {
            match raw.retained.parts[part as usize].1 {
                Op::Message { host: true, .. } | Op::Collective { host: true, .. } => {
                    (DefectKind::HostCommunication, "`is_cpu_op` is set")
                }
                _ => return,
            }
        }
        role => match role.implied_defect() {
            Some(defect) => defect,
            None => return,
        },
    };
    findings.count_defect_and_store_if_room(kind, || {
        (DefectLocationInFile::of_node(item), found.to_owned())
    });
}

fn add_groups_declared_by_node(
    item: &NodeReducedForValidation<'_>,
    text: &str,
    declared: &mut DeclaredGroups,
    findings: &mut DefectLog,
) {
    let groups = match parse_group_metadata(item.view.id, text) {
        Ok(groups) => groups,
        Err(error) => {
            return findings.push_and_count_for_rank(defect_from_error(
                &error,
                DefectLocationInFile::of_node(item),
            ));
        }
    };
    for (name, ranks) in groups {
        match declared.get(&name) {
            Some(known) if *known != ranks => {
                findings.count_defect_and_store_if_room(DefectKind::DeclaredTwice, || {
                    let found = format!(
                        "group `{}` is ranks {} here and ranks {} before",
                        escape_and_shorten_name(&name),
                        super::ranks::format_ranks(&ranks),
                        super::ranks::format_ranks(known)
                    );
                    (DefectLocationInFile::of_node(item), found)
                })
            }
            Some(_) => {}
            None => {
                declared.insert(name, ranks);
            }
        }
    }
}

/// Reports two nodes with the same id, unless an id was guessed because its record is damaged. Returns the index of the
/// node that keeps the id.
#[cold]
fn report_duplicate_id_and_pick_keeper(
    raw: &TraceReducedForValidation<'_>,
    (first, again): (u32, u32),
    faulty: &[u32],
    findings: &mut DefectLog,
) -> u32 {
    let is_faulty = |node: u32| faulty.binary_search(&node).is_ok();
    if is_faulty(first) {
        return again;
    }
    if !is_faulty(again) {
        findings.count_defect_and_store_if_room(DefectKind::DuplicateId, || {
            let [first, again] = [first, again].map(|node| &raw.nodes[node as usize]);
            let mut found = format!("record {} already has this id", first.record.number);
            if again.record.bytes.is_empty() {
                found += "; the record is empty, as in a file overwritten by zeros";
            }
            (DefectLocationInFile::of_node(again), found)
        });
    }
    first
}
