//! Collects defects. All defects are counted, but only the first few of each kind are stored.

use super::kind::{DefectKind, Severity};
use super::node::NodeReducedForValidation;
use chakram_trace::format::{TraceErrorLocation, escape_and_shorten_name, scan};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// Location of a defect in a trace's file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DefectLocationInFile {
    /// Id of the defective node.
    pub node: Option<u64>,
    /// Name of the defective node, shortened.
    pub name: String,
    /// Index of the node's record, where the metadata record is 0.
    pub record: Option<usize>,
    /// Byte offset in the decompressed file.
    pub offset: Option<usize>,
}

impl DefectLocationInFile {
    /// Returns the location of a node.
    pub(super) fn of_node(item: &NodeReducedForValidation<'_>) -> Self {
        Self {
            node: Some(item.view.id),
            name: escape_and_shorten_name(scan::read_node_name(item.record)),
            record: Some(item.record.number),
            offset: Some(item.record.offset),
        }
    }

    /// Converts an error's location.
    pub(super) fn from_trace_location(place: &TraceErrorLocation) -> Self {
        Self {
            node: place.node,
            name: String::new(),
            record: place.record,
            offset: place.offset,
        }
    }
}

impl fmt::Display for DefectLocationInFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(node) = self.node {
            write!(f, "node {node}")?;
        }
        if !self.name.is_empty() {
            write!(f, " `{}`", self.name)?;
        }
        match (self.node, self.record, self.offset) {
            (Some(_), Some(record), _) => write!(f, " (record {record})"),
            (None, Some(record), Some(offset)) => write!(f, "record {record}, byte {offset}"),
            (None, None, Some(offset)) => write!(f, "byte {offset}"),
            _ => Ok(()),
        }
    }
}

/// A defect of a trace or of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defect {
    /// Kind of the defect.
    pub kind: DefectKind,
    /// Rank of the defective trace; `None` if the defect is in several traces.
    pub rank: Option<u32>,
    /// Location in this trace.
    pub site: DefectLocationInFile,
    /// Part of a sentence that states what was found and what was expected.
    pub found: String,
    /// Remedy, if there is one more specific than the kind's.
    pub hint: Option<String>,
    /// Rank and location of the contradicting node in another trace.
    pub against: Option<(u32, DefectLocationInFile)>,
}

impl Defect {
    /// Creates a defect at location `site` of a trace, without a rank.
    pub(super) fn new(
        kind: DefectKind,
        site: DefectLocationInFile,
        found: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            rank: None,
            site,
            found: found.into(),
            hint: None,
            against: None,
        }
    }

    /// Sets the rank of the defective trace.
    #[must_use]
    pub(super) fn set_defect_rank(mut self, rank: u32) -> Self {
        self.rank = Some(rank);
        self
    }
}

/// Defect counts by severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DefectCountsBySeverity {
    /// Number of errors.
    pub errors: u64,
    /// Number of warnings.
    pub warnings: u64,
    /// Number of notes.
    pub notes: u64,
}

impl DefectCountsBySeverity {
    fn add_count(&mut self, severity: Severity, count: u64) {
        match severity {
            Severity::Error => self.errors += count,
            Severity::Warning => self.warnings += count,
            Severity::Note => self.notes += count,
        }
    }
}

/// Stored defects, and counts of all defects.
#[derive(Clone, Debug)]
pub struct DefectLog {
    show: usize,
    counts: [u64; DefectKind::COUNT],
    kept: Vec<Vec<Defect>>,
    of_ranks: BTreeMap<u32, DefectCountsBySeverity>,
}

impl DefectLog {
    /// Creates an empty log that stores the first `show` defects of each kind.
    pub(super) fn new(show: usize) -> Self {
        Self {
            show,
            counts: [0; DefectKind::COUNT],
            kept: vec![Vec::new(); DefectKind::COUNT],
            of_ranks: BTreeMap::new(),
        }
    }

    /// Counts a defect of a trace. Calls `make` for the defect's location and description only if the defect is stored.
    #[inline]
    pub(super) fn count_defect_and_store_if_room(
        &mut self,
        kind: DefectKind,
        make: impl FnOnce() -> (DefectLocationInFile, String),
    ) {
        self.counts[kind as usize] += 1;
        if self.kept[kind as usize].len() < self.show {
            let (site, found) = make();
            self.kept[kind as usize].push(Defect::new(kind, site, found));
        }
    }

    /// Adds `defect`, and counts it for its rank.
    pub(super) fn push_and_count_for_rank(&mut self, defect: Defect) {
        let kind = defect.kind;
        if let Some(rank) = defect.rank {
            self.of_ranks
                .entry(rank)
                .or_default()
                .add_count(kind.severity(), 1);
        }
        self.counts[kind as usize] += 1;
        if self.kept[kind as usize].len() < self.show {
            self.kept[kind as usize].push(defect);
        }
    }

    /// Counts `more` defects of `kind` without storing them.
    pub(super) fn count_more(&mut self, kind: DefectKind, more: u64) {
        self.counts[kind as usize] += more;
    }

    /// Adds all defects from the log of a rank's trace.
    pub(super) fn add_trace_defects(&mut self, trace: &Self, rank: u32) {
        for kind in DefectKind::iter_all() {
            let count = trace.counts[kind as usize];
            if count == 0 {
                continue;
            }
            self.counts[kind as usize] += count;
            self.of_ranks
                .entry(rank)
                .or_default()
                .add_count(kind.severity(), count);
            let room = self.show.saturating_sub(self.kept[kind as usize].len());
            let kept = trace.kept[kind as usize].iter().take(room);
            self.kept[kind as usize]
                .extend(kept.map(|defect| defect.clone().set_defect_rank(rank)));
        }
    }

    /// Returns the number of defects of this kind.
    pub fn count_of_kind(&self, kind: DefectKind) -> u64 {
        self.counts[kind as usize]
    }

    /// Returns the stored defects of this kind: first the traces' defects in ascending order of ranks, then the
    /// job's defects.
    pub fn first_defects_of_kind(&self, kind: DefectKind) -> &[Defect] {
        &self.kept[kind as usize]
    }

    /// Returns the number of defects of each severity.
    pub fn count_by_severity(&self) -> DefectCountsBySeverity {
        let mut tally = DefectCountsBySeverity::default();
        for kind in DefectKind::iter_all() {
            tally.add_count(kind.severity(), self.counts[kind as usize]);
        }
        tally
    }

    /// Returns the number of defects of each severity for one rank.
    pub fn count_defects_of_rank_by_severity(&self, rank: u32) -> DefectCountsBySeverity {
        self.of_ranks.get(&rank).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_defects_are_counted_and_the_first_are_stored() {
        let mut trace = DefectLog::new(2);
        for i in 0..5 {
            trace.count_defect_and_store_if_room(DefectKind::SelfData, || {
                (DefectLocationInFile::default(), format!("{i}"))
            });
        }
        assert_eq!(trace.count_of_kind(DefectKind::SelfData), 5);
        let mut all = DefectLog::new(3);
        all.add_trace_defects(&trace, 0);
        all.add_trace_defects(&trace, 1);
        let kept: Vec<_> = all
            .first_defects_of_kind(DefectKind::SelfData)
            .iter()
            .collect();
        let kept: Vec<_> = kept.iter().map(|d| (d.rank, &d.found[..])).collect();
        assert_eq!(kept, [(Some(0), "0"), (Some(0), "1"), (Some(1), "0")]);
        assert_eq!(all.count_by_severity().errors, 10);
        assert_eq!(all.count_defects_of_rank_by_severity(1).errors, 5);
    }
}
