//! Edits of the replayed job: the effect of each edit, and the makespan without edits.

use super::Report;
use super::head::HeadingOrWarningLineLayout;
use super::summary::format_thousands;
use chakram_base::units::{Span, format_count_with_noun, format_given_percent_change};
use chakram_engine::{DurationChangeEffect, EffectsOfOneFailure};
use serde::{Deserialize, Serialize};

/// An edit and its effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct EditWithEffectCounts {
    /// The edit as the user wrote it.
    pub edit: String,
    /// Unit of `matched` and `changed`, such as `kernels`.
    pub counts: String,
    /// Number of items that the edit selects.
    pub matched: u64,
    /// Number of selected items that the edit changed.
    pub changed: u64,
    /// Number of nodes that the edit added.
    #[serde(default)]
    pub added: u64,
    /// Number of nodes that the edit removed.
    #[serde(default)]
    pub removed: u64,
    /// Notes about the edit: how it computed new times, and which facts were unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Report {
    /// Inserts the rows of `edits`: edits of the job and of its machine. They come before the rows that the replay
    /// added for changed times of kernels and collectives.
    pub fn add_edits(&mut self, edits: Option<JobAndMachineEditReport>) {
        if let Some(mut edits) = edits {
            let of_prices = self.edits.take().map_or_else(Vec::new, |own| own.rows);
            edits.rows.extend(of_prices);
            self.edits = Some(edits);
        }
    }
}

impl EditWithEffectCounts {
    /// Returns the row of an edit that changes the times of kernels or collectives.
    pub(crate) fn of_duration_change(count: &DurationChangeEffect) -> Self {
        let together = count.before.zip(count.after).filter(|_| count.changed > 0);
        Self {
            edit: count.change.clone(),
            counts: if count.of_collectives {
                "collectives"
            } else {
                "kernels"
            }
            .to_owned(),
            matched: count.matched,
            changed: count.changed,
            added: 0,
            removed: 0,
            notes: vec![match together {
                Some((before, after)) => format!("{before} together, {after} now"),
                None if count.of_collectives => {
                    "each then lasts this long from the arrival of its last member, whatever else is sent"
                        .to_owned()
                }
                None => "they last as long as before".to_owned(),
            }],
        }
    }
}

impl EditWithEffectCounts {
    /// Returns the row of a failed NPU or of failed links.
    pub(crate) fn from_failure_outcome(outcome: &EffectsOfOneFailure) -> Self {
        let of_links = outcome.links > 0;
        let note = match of_links {
            true => format!(
                "{} sent on another way, with {} bytes once more that were on the link",
                format_count_with_noun(outcome.rerouted_messages, "message"),
                format_thousands(outcome.resent_bytes)
            ),
            false => "all of its work had ended".to_owned(),
        };
        Self {
            edit: format!("failure of {}", outcome.failure),
            counts: if of_links { "links" } else { "NPUs" }.to_owned(),
            matched: outcome.links.max(1),
            changed: outcome.links.max(1),
            added: 0,
            removed: 0,
            notes: vec![note],
        }
    }
}

/// Edits of a job and its machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct JobAndMachineEditReport {
    /// Makespan of the job without the edits, if that job was replayed too.
    #[serde(
        rename = "unedited_makespan_ps",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub unedited: Option<Span>,
    /// Interval of the makespan if uncaptured ranks were filled in. One end assumes that each of them copies the
    /// fastest captured rank of its role; the other end assumes the slowest.
    #[serde(
        rename = "completed_makespan_ps",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub completed: Option<UncapturedRanksMakespanInterval>,
    /// One row per edit, in order of application.
    pub rows: Vec<EditWithEffectCounts>,
}

/// Interval of the makespan, if some ranks of the job were not captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct UncapturedRanksMakespanInterval {
    /// The smallest makespan.
    pub low: Span,
    /// The largest makespan.
    pub high: Span,
}

impl UncapturedRanksMakespanInterval {
    /// Returns the smallest and the largest of `makespans`; `None` if it is empty.
    pub fn from_makespans(makespans: &[Span]) -> Option<Self> {
        Some(Self {
            low: *makespans.iter().min()?,
            high: *makespans.iter().max()?,
        })
    }
}

impl JobAndMachineEditReport {
    /// Returns the lines about edits in the head of a report. `makespan` is the makespan with the edits.
    pub(crate) fn describe_head_lines(
        &self,
        makespan: Span,
    ) -> Vec<(&'static str, String, HeadingOrWarningLineLayout)> {
        let mut lines = Vec::new();
        if let Some(unedited) = self.unedited {
            let more = super::summary::percent_more(makespan, unedited);
            let more = more.map_or(String::new(), |percent| {
                format!("; edited {}", format_given_percent_change(percent))
            });
            lines.push((
                "unedited",
                format!("{unedited}{more}"),
                HeadingOrWarningLineLayout::Line,
            ));
        }
        if let Some(UncapturedRanksMakespanInterval { low, high }) = self.completed {
            let text = format!(
                "{low} to {high}, with each rank that was not captured as the fastest and as the slowest captured one of its role"
            );
            lines.push(("roles", text, HeadingOrWarningLineLayout::Wrapped));
        }
        for row in &self.rows {
            let mut text = format!(
                "{}: {} of {} {} changed",
                row.edit,
                format_thousands(row.changed),
                format_thousands(row.matched),
                row.counts
            );
            for (count, what) in [(row.added, "added"), (row.removed, "removed")] {
                if count > 0 {
                    text += &format!(", {} nodes {what}", format_thousands(count));
                }
            }
            for note in &row.notes {
                text += &format!("; {note}");
            }
            lines.push(("edit", text, HeadingOrWarningLineLayout::Wrapped));
        }
        lines
    }
}
