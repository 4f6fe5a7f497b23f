//! Settings that a user gave and that change nothing in a run, each with the reason.
//!
//! Whether a setting has an effect is found out by the run without it: it has none where both runs have the
//! [same results](Report::has_same_results). Reasons are computed from facts of the run.

use super::Report;
use super::csv::CsvColumn;
use super::text::{TextStyle, paragraph};
use chakram_base::ids::Npu;
use chakram_base::setting::SettingKey;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::{Deserialize, Serialize};

mod machine_differences;
mod option_reasons;
mod run_facts;

pub(super) use machine_differences::explain_nothing_moved;
pub use machine_differences::{MachineDifference, machine_differences, reasons};
pub use option_reasons::option_reason;
pub use run_facts::RunFacts;

/// A setting that was given and changes nothing in the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct SettingWithoutEffect {
    /// Its key, as studies have it: `machine.dimension.nvlink.bandwidth`, `network`, `plan.zero`.
    pub key: String,
    /// Its value, as given.
    pub value: String,
    /// The reason, from facts of the run.
    pub reason: String,
}

/// Settings that were given, as a run has found them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct GivenSettings {
    /// Settings that change nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_effect: Vec<SettingWithoutEffect>,
    /// Keys of settings whose effect is unknown, because the run was not repeated without them: it is large, or one of several
    /// launches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unchecked: Vec<String>,
}

impl SettingWithoutEffect {
    /// Returns it as a sentence, with the value shortened.
    pub fn text(&self) -> String {
        let Self { key, value, reason } = self;
        let mut shown: String = value.chars().take(MAX_VALUE).collect();
        if shown.len() < value.len() {
            shown.push('…');
        }
        let setting = match option_of_key(key) {
            Some(option) => option.with(shown),
            None => format!("`{key} = {shown}`"),
        };
        format!("{setting} has no effect: {reason}")
    }
}

/// The option that is called `key`, if one is.
pub fn option_of_key(key: &str) -> Option<SettingKey> {
    let key: StrDeserializer<'_, ValueError> = key.into_deserializer();
    SettingKey::deserialize(key).ok()
}

/// Columns of the table of settings.
pub(super) const CSV: &[CsvColumn<Report, SettingWithoutEffect>] = &[
    ("key", |_, setting| setting.key.as_str().into()),
    ("value", |_, setting| setting.value.as_str().into()),
    ("reason", |_, setting| setting.reason.as_str().into()),
];

/// The most characters of a value that a sentence shows.
const MAX_VALUE: usize = 40;

impl GivenSettings {
    /// Returns true if there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.without_effect.is_empty() && self.unchecked.is_empty()
    }

    /// Returns a sentence for each setting without effect, and one for those that were not checked.
    pub fn sentences(&self) -> impl Iterator<Item = String> + '_ {
        let unchecked = (!self.unchecked.is_empty()).then(|| {
            let keys: Vec<String> = self
                .unchecked
                .iter()
                .map(|key| format!("`{key}`"))
                .collect();
            format!(
                "the effect of {} is unknown: the run was not repeated without {}",
                keys.join(", "),
                if keys.len() == 1 { "it" } else { "them" }
            )
        });
        let named = self.without_effect.iter().map(SettingWithoutEffect::text);
        named.chain(unchecked)
    }

    /// Writes the sentences as notes.
    pub(super) fn write(&self, out: &mut String, style: TextStyle) -> std::fmt::Result {
        self.sentences()
            .try_for_each(|text| paragraph(out, &text, "  ! ", 4, style.warning))
    }
}

impl Report {
    /// Returns whether all that a report says of time, memory and rates is the same in both. Names of machines, models and
    /// algorithms, numbers of NPUs, counts of how collectives were answered, and warnings are no results.
    pub fn has_same_results(&self, other: &Self) -> bool {
        self.outcome.makespan == other.outcome.makespan
            && self.mean_parts == other.mean_parts
            && self.results() == other.results()
    }

    /// The report without what is no result.
    fn results(&self) -> Self {
        let mut kept = self.clone();
        kept.provenance = None;
        kept.machine.name.clear();
        kept.machine.npus = 0;
        kept.network = None;
        kept.warnings.clear();
        kept.settings = GivenSettings::default();
        kept.pictures = None;
        kept.aggregation = None;
        kept.links = None;
        (
            kept.outcome.closed,
            kept.outcome.stepwise,
            kept.outcome.unfolded,
        ) = (0, 0, 0);
        for row in &mut kept.rows {
            row.class.clear();
            row.npu = Npu(0);
        }
        for row in &mut kept.memory {
            row.npu = Npu(0);
        }
        for row in &mut kept.collectives {
            row.algorithm.clear();
            row.measured = false;
            row.derived_from = None;
        }
        kept
    }
}
