//! Join of the host trace and the Kineto trace of one rank by record function id.

use super::host::HostTrace;
use super::kineto::{EventCategory, KinetoTrace};
use super::rank_timeline::NONE;
use crate::trace::escape;

/// Host node of each Kineto event.
#[derive(Debug, Default)]
pub struct HostNodeLinks {
    /// Per Kineto event: its host node, or [`NONE`].
    pub host_of: Vec<u32>,
    /// Number of host nodes with an event.
    pub linked: u64,
    /// Number of host nodes with a record function id and without an event: work on threads that Kineto did not
    /// watch, or before it started.
    pub host_only: u64,
    /// Number of host nodes that stand for a process or thread.
    pub roots: u64,
    /// Number of Kineto's operators and annotations without a host node.
    pub kineto_only: u64,
    /// Number of pairs whose names differ although the ids agree.
    pub renamed: u64,
    first_renamed: Option<(u64, String, String, u64)>,
}

/// Reason for which two files cannot be joined.
#[derive(Debug, PartialEq, Eq)]
pub struct EventLinkError {
    /// Finding.
    pub found: String,
    /// Hint: what to try.
    pub hint: &'static str,
    /// Offset in the Kineto file, if at some place.
    pub offset: Option<u64>,
}

/// Maximum share of pairs with differing names; beyond it the files count as those of two jobs.
const MAX_RENAMED: f64 = 0.02;

impl HostNodeLinks {
    /// Joins `host` and `kineto`.
    pub fn new(host: &HostTrace, kineto: &KinetoTrace) -> Result<Self, EventLinkError> {
        if kineto.with_rf_id == 0 {
            return Err(EventLinkError {
                found: format!(
                    "none of its {} events has a \"Record function id\", so nothing says which host \
                     node is which event",
                    kineto.events.len()
                ),
                hint: "capture with PyTorch 2.5 or later; older profilers (before 2024) did not \
                       write the id, and guessing by order is not done",
                offset: None,
            });
        }
        let mut by_id: Vec<(u64, u32)> = Vec::with_capacity(host.nodes.len());
        let mut this = Self {
            host_of: vec![NONE; kineto.events.len()],
            ..Self::default()
        };
        for (i, node) in host.nodes.iter().enumerate() {
            if node.rf_id == 0 {
                this.roots += 1;
            } else {
                by_id.push((node.rf_id, i as u32));
            }
        }
        by_id.sort_unstable();
        if let Some(pair) = by_id.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(EventLinkError {
                found: format!(
                    "the host trace uses record function id {} for node {} and for node {}",
                    pair[0].0, host.nodes[pair[0].1 as usize].id, host.nodes[pair[1].1 as usize].id
                ),
                hint: "capture anew; one file holds one window of one process",
                offset: None,
            });
        }
        for (i, event) in kineto.events.iter().enumerate() {
            if !matches!(
                event.category,
                EventCategory::CpuOp | EventCategory::Annotation
            ) {
                continue;
            }
            let found = by_id.binary_search_by_key(&event.rf_id, |&(id, _)| id);
            let (true, Ok(found)) = (event.rf_id != 0, found) else {
                this.kineto_only += 1;
                continue;
            };
            let node = by_id[found].1;
            this.host_of[i] = node;
            this.linked += 1;
            let names = (
                host.texts.get(host.nodes[node as usize].name),
                kineto.texts.get(event.name),
            );
            // Kineto writes "unknown" for names that it would have to escape.
            if names.0 != names.1 && names.1 != "unknown" {
                this.renamed += 1;
                this.first_renamed.get_or_insert_with(|| {
                    (event.rf_id, escape(names.0), escape(names.1), event.offset)
                });
            }
        }
        this.host_only = by_id.len() as u64 - this.linked.min(by_id.len() as u64);
        this.check(by_id.len() as u64)?;
        Ok(this)
    }

    fn check(&self, nodes: u64) -> Result<(), EventLinkError> {
        const HINT: &str = "pair the host trace and the Kineto trace of one run, rank by rank; both \
                            are started together by profile(execution_trace_observer=…)";
        if self.renamed as f64 > self.linked as f64 * MAX_RENAMED {
            let (id, host, kineto, offset) = self.first_renamed.clone().unwrap_or_default();
            return Err(EventLinkError {
                found: format!(
                    "it belongs to another run than the host trace: of {} operators with equal \
                     record function ids {} have other names, first id {id}, `{host}` in the host \
                     trace and `{kineto}` here",
                    self.linked, self.renamed
                ),
                hint: HINT,
                offset: Some(offset),
            });
        }
        // Kineto may watch longer than the observer, but hardly the other way round.
        if self.linked == 0 || self.linked * 2 < nodes {
            return Err(EventLinkError {
                found: format!(
                    "only {} of the host trace's {nodes} operators have an event here",
                    self.linked
                ),
                hint: HINT,
                offset: None,
            });
        }
        Ok(())
    }
}
