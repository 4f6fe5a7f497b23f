//! Joins the host trace and the Kineto trace of one rank. Nodes and events are matched by record
//! function id, or by their order on each thread if there are no ids.

use super::host::{HostTrace, NONE};
use super::kineto::{EventCategory, KinetoTrace, KinetoTrackIdentity};
use chakram_trace::format::escape_and_shorten_name;

mod by_order;

/// Method that matched operators in the host file with operators in Kineto's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HostKinetoMatchMethod {
    /// By record function id.
    #[default]
    Ids,
    /// By order on each thread.
    Order,
    /// No host trace exists.
    KinetoAlone,
    /// There is no Kineto trace, so nothing has a time.
    HostAlone,
}

/// Result of matching the operators of one host thread by order.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct HostThreadKinetoMatchCounts {
    /// Thread number that the observer assigned.
    pub thread: u32,
    /// The Kineto track that was matched to the thread.
    pub track: KinetoTrackIdentity,
    /// Number of host nodes on the thread.
    pub nodes: u64,
    /// Number of operators and annotations on the track.
    pub events: u64,
    /// Number of nodes that have an event.
    pub linked: u64,
    /// Number of pairs for which both files state shapes.
    pub compared: u64,
    /// Number of compared pairs whose shapes are equal.
    pub agreeing: u64,
    /// Range of the track's events, by index, that was matched to the nodes.
    pub window: (u64, u64),
    /// Number of event ranges that fit the nodes equally well. Only the first range is used.
    pub windows: u64,
}

impl HostThreadKinetoMatchCounts {
    /// Returns the fraction of nodes that are linked, multiplied by the fraction of compared pairs
    /// whose shapes are equal.
    pub fn link_confidence(&self) -> f64 {
        if self.nodes == 0 {
            return 1.0;
        }
        let agreeing = match self.compared {
            0 => 1.0,
            compared => self.agreeing as f64 / compared as f64,
        };
        self.linked as f64 / self.nodes as f64 * agreeing
    }
}

/// The host node of each Kineto event, with statistics of the matching.
#[derive(Debug, Default)]
pub struct KinetoEventHostNodeMap {
    /// For each Kineto event, its host node or [`NONE`].
    pub host_of: Vec<u32>,
    /// Number of host nodes that have an event.
    pub linked: u64,
    /// Number of host nodes with a record function id but no event. Their work ran on threads that Kineto did not
    /// record, or before it started to record.
    pub host_only: u64,
    /// Number of host nodes that represent a process or thread.
    pub roots: u64,
    /// Number of host nodes that are intervals of a library's worker threads. Counted only if there is no Kineto trace,
    /// because then only operators represent calls.
    pub carried: u64,
    /// Number of worker intervals (see `carried`) that no operator requests.
    pub unrequested: u64,
    /// Number of Kineto's operators and annotations that have no host node.
    pub kineto_only: u64,
    /// Number of pairs with equal ids but different names.
    pub renamed: u64,
    first_renamed: Option<(u64, String, String, u64)>,
    /// Method that joined the two files.
    pub method: HostKinetoMatchMethod,
    /// Links of each host thread; empty unless nodes and events were joined by order.
    pub threads: Vec<HostThreadKinetoMatchCounts>,
    /// Part of the Kineto trace that the host trace covers, or `None` if it covers the whole Kineto
    /// trace.
    pub window: Option<KeptCaptureWindow>,
}

/// The part of a capture that is kept.
#[derive(Clone, Copy, Debug)]
pub struct KeptCaptureWindow {
    /// Start, in ns since 1970.
    pub from: i64,
    /// End, exclusive.
    pub to: i64,
}

impl KeptCaptureWindow {
    /// The whole capture.
    pub const ALL: Self = Self {
        from: i64::MIN,
        to: i64::MAX,
    };

    /// Returns true if the window covers the whole capture.
    pub fn covers_whole_capture(&self) -> bool {
        self.from == i64::MIN && self.to == i64::MAX
    }

    /// Returns true if `start` is within the window.
    pub fn contains_time(&self, start: i64) -> bool {
        self.from <= start && start < self.to
    }
}

/// Reason why two files cannot be joined.
#[derive(Debug, PartialEq, Eq)]
pub struct HostKinetoJoinError {
    /// Description of the problem in the files.
    pub found: String,
    /// Advice to the user.
    pub hint: &'static str,
    /// Byte offset in the Kineto file, if the error refers to one position.
    pub offset: Option<u64>,
}

/// Maximum fraction of pairs with different names. Above this fraction, the files are assumed to come from different
/// runs.
const MAX_RENAMED: f64 = 0.02;
/// Minimum confidence for matching by order.
const MIN_CONFIDENCE: f64 = 0.9;

impl KinetoEventHostNodeMap {
    /// Joins the nodes of `host` to the events of `kineto`.
    pub fn new(host: &HostTrace, kineto: &KinetoTrace) -> Result<Self, HostKinetoJoinError> {
        if !Self::can_join_by_id(host, kineto) {
            return by_order::link_host_trace_to_kineto_by_order(host, kineto).require_confidence();
        }
        let mut by_id: Vec<(u64, u32)> = Vec::with_capacity(host.nodes.len());
        let mut this = Self {
            host_of: vec![NONE; kineto.events.len()],
            ..Self::default()
        };
        for (i, record) in host.records.iter().enumerate() {
            if record.rf_id == 0 {
                this.roots += 1;
            } else {
                by_id.push((record.rf_id, i as u32));
            }
        }
        by_id.sort_unstable();
        if let Some(pair) = by_id.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(HostKinetoJoinError {
                found: format!(
                    "the host trace uses record function id {} for node {} and for node {}",
                    pair[0].0,
                    host.node_id(pair[0].1),
                    host.node_id(pair[1].1)
                ),
                hint: "capture again; a file contains one window of one process",
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
            // If a name has characters that JSON must escape, Kineto writes "unknown" instead.
            if names.0 != names.1 && names.1 != "unknown" {
                this.renamed += 1;
                this.first_renamed.get_or_insert_with(|| {
                    (
                        event.rf_id,
                        escape_and_shorten_name(names.0),
                        escape_and_shorten_name(names.1),
                        event.offset,
                    )
                });
            }
        }
        this.host_only = by_id.len() as u64 - this.linked.min(by_id.len() as u64);
        this.reject_links_of_different_runs(by_id.len() as u64)?;
        Ok(this)
    }

    /// Returns true if both files have record function ids, so that they can be joined by id.
    pub fn can_join_by_id(host: &HostTrace, kineto: &KinetoTrace) -> bool {
        kineto.with_rf_id > 0 && host.records.iter().any(|record| record.rf_id != 0)
    }

    /// Creates links for `events` events without host nodes.
    pub(super) fn without_links(events: usize) -> Self {
        Self {
            host_of: vec![NONE; events],
            ..Self::default()
        }
    }

    /// Returns the fraction of nodes that are linked, multiplied by the fraction of compared shapes
    /// that are equal. Counts only nodes on threads that Kineto recorded.
    pub fn mean_link_confidence_over_threads(&self) -> f64 {
        let watched = || self.threads.iter().filter(|row| row.events > 0);
        let nodes: u64 = watched().map(|row| row.nodes).sum();
        let sure = watched().map(|row| row.link_confidence() * row.nodes as f64);
        if nodes == 0 {
            1.0
        } else {
            sure.sum::<f64>() / nodes as f64
        }
    }

    /// Rejects links that were found by order if the confidence is low.
    fn require_confidence(self) -> Result<Self, HostKinetoJoinError> {
        let confidence = self.mean_link_confidence_over_threads();
        // Kineto may record fewer threads than the observer. If more than half of the operators
        // have no event, the files probably belong to different runs.
        let enough = self.linked > 0 && self.linked >= self.host_only;
        if enough && confidence >= MIN_CONFIDENCE {
            return Ok(self);
        }
        let rows = self.threads.iter().take(8).map(|row| {
            format!(
                "thread {}: {} of {} nodes linked, {} of {} shapes agree",
                row.thread, row.linked, row.nodes, row.agreeing, row.compared
            )
        });
        let rows: Vec<String> = rows.collect();
        if rows.is_empty() {
            return Err(HostKinetoJoinError {
                found: "the host trace of this rank has no operators".to_owned(),
                hint: "convert the Kineto trace alone",
                offset: None,
            });
        }
        Err(HostKinetoJoinError {
            found: format!(
                "no record function ids link this file to the host trace, and by order the operators \
                 of both match with a confidence of {confidence:.3}, expected at least \
                 {MIN_CONFIDENCE} ({})",
                rows.join("; ")
            ),
            hint: "pair the two files of one run, rank by rank; or convert the Kineto trace alone",
            offset: None,
        })
    }

    fn reject_links_of_different_runs(&self, nodes: u64) -> Result<(), HostKinetoJoinError> {
        const HINT: &str = "pair the host trace and the Kineto trace of one run, rank by rank; \
                            profile(execution_trace_observer=…) starts both together";
        if self.renamed as f64 > self.linked as f64 * MAX_RENAMED {
            let (id, host, kineto, offset) = self.first_renamed.clone().unwrap_or_default();
            return Err(HostKinetoJoinError {
                found: format!(
                    "this file and the host trace are of different runs: of {} operators with equal \
                     record function ids {} have different names, first id {id}, `{host}` in the \
                     host trace and `{kineto}` here",
                    self.linked, self.renamed
                ),
                hint: HINT,
                offset: Some(offset),
            });
        }
        // Kineto may record for longer than the observer, but it rarely records less than half of
        // the observer's nodes.
        if self.linked == 0 || self.linked * 2 < nodes {
            return Err(HostKinetoJoinError {
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
