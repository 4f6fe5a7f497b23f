//! Finds settings that the user gave but that have no effect on the run, and the reason for each.
//!
//! To test a setting, the run is repeated without it. A setting has no effect if both runs have the [same
//! results](Report::has_same_results). The reason is derived from facts about the run.

use super::Report;
use super::csv::CsvColumn;
use super::text::{TextStyleWidthAndDetail, write_paragraph};
use chakram_base::ids::Npu;
use chakram_base::setting::SettingKey;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::{Deserialize, Serialize};

mod machine_differences;
mod option_reasons;
mod run_facts;

pub(super) use machine_differences::explain_why_differences_changed_nothing;
pub use machine_differences::{
    DifferenceBetweenTwoMachines, explain_no_effect_of_differences, machine_differences,
};
pub use option_reasons::reason_option_has_no_effect;
pub use run_facts::CompiledReplayWithReport;

/// A setting that the user gave and that has no effect on the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct SettingWithoutEffect {
    /// Key of the setting in study files, such as `machine.dimension.nvlink.bandwidth`, `network` or `plan.zero`.
    pub key: String,
    /// Value of the setting as the user gave it.
    pub value: String,
    /// Why the setting has no effect, derived from facts about the run.
    pub reason: String,
}

/// Results of testing the settings that the user gave.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct GivenSettingTestResults {
    /// Settings that have no effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_effect: Vec<SettingWithoutEffect>,
    /// Keys of settings whose effect is unknown, because the run was not repeated without them. Very large runs, and
    /// runs with several launches, are not repeated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unchecked: Vec<String>,
}

impl SettingWithoutEffect {
    /// Returns a sentence about the setting and the reason. A long value is shortened.
    pub fn to_sentence(&self) -> String {
        let Self { key, value, reason } = self;
        let mut shown: String = value.chars().take(MAX_VALUE).collect();
        if shown.len() < value.len() {
            shown.push('…');
        }
        let setting = match parse_setting_key(key) {
            Some(option) => option.format_with_value(shown),
            None => format!("`{key} = {shown}`"),
        };
        format!("{setting} has no effect: {reason}")
    }
}

/// Returns the option with the key `key`; `None` if `key` is not an option.
pub fn parse_setting_key(key: &str) -> Option<SettingKey> {
    let key: StrDeserializer<'_, ValueError> = key.into_deserializer();
    SettingKey::deserialize(key).ok()
}

/// Columns of the CSV table of settings.
pub(super) const CSV: &[CsvColumn<Report, SettingWithoutEffect>] = &[
    ("key", |_, setting| setting.key.as_str().into()),
    ("value", |_, setting| setting.value.as_str().into()),
    ("reason", |_, setting| setting.reason.as_str().into()),
];

/// Maximum length of a setting's value in a sentence, in characters.
const MAX_VALUE: usize = 40;

impl GivenSettingTestResults {
    /// Returns true if all settings were tested and have an effect.
    pub fn is_every_setting_tested_and_effective(&self) -> bool {
        self.without_effect.is_empty() && self.unchecked.is_empty()
    }

    /// Returns one sentence for each setting that has no effect, and one sentence for all untested settings.
    pub fn to_sentences(&self) -> impl Iterator<Item = String> + '_ {
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
        let named = self
            .without_effect
            .iter()
            .map(SettingWithoutEffect::to_sentence);
        named.chain(unchecked)
    }

    /// Writes the sentences as notes.
    pub(super) fn write_notes(
        &self,
        out: &mut String,
        style: TextStyleWidthAndDetail,
    ) -> std::fmt::Result {
        self.to_sentences()
            .try_for_each(|text| write_paragraph(out, &text, "  ! ", 4, style.warning))
    }
}

impl Report {
    /// Returns true if all times, memory sizes and rates are equal in both reports. Some parts are not results: names
    /// of machines, models and algorithms, numbers of NPUs, counts of simulated collectives and messages, and
    /// warnings.
    pub fn has_same_results(&self, other: &Self) -> bool {
        self.outcome.makespan == other.outcome.makespan
            && self.mean_parts == other.mean_parts
            && self.copy_with_only_results() == other.copy_with_only_results()
    }

    /// Returns the report with only the parts that are results.
    fn copy_with_only_results(&self) -> Self {
        let mut kept = self.clone();
        kept.provenance = None;
        kept.machine.name.clear();
        kept.machine.npus = 0;
        kept.network = None;
        kept.warnings.clear();
        kept.settings = GivenSettingTestResults::default();
        kept.pictures = None;
        kept.aggregation = None;
        kept.links = None;
        (
            kept.outcome.closed,
            kept.outcome.stepwise,
            kept.outcome.unfolded,
            kept.outcome.messages,
        ) = (0, 0, 0, 0);
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
            row.tally.stepwise = 0;
        }
        kept
    }
}
