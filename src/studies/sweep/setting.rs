//! Parses and formats a point's settings: keys of the machine, the model, the plan and the replay,
//! with their values.

use chakram_base::config::{
    ConfigError, ConfigField, ConfigLiteral, did_you_mean, find_most_similar_name,
    quote_and_truncate_for_message,
};
use chakram_base::setting::SettingKey;
use chakram_hardware::compute::ACCELERATOR;
use chakram_jobs::{
    REPLAY_OPTIONS, ReplayOptionDefinition, ReplayOptionValueKind, ReplaySettings,
    ReplaySettingsError,
};
use chakram_workloads::generate::plan::{OPTIONS, PlanOption};
use std::collections::BTreeMap;

/// Settings of a point, sorted by key.
pub type Settings = BTreeMap<String, ConfigLiteral>;

/// Keys that name a point's machine and work.
const NAMES: [&str; 5] = ["machine", "model", "stack", "tokens", "trace"];

/// Keys with non-negative numbers for objectives and limits: watts, dollars, and the tokens of a whole run.
const RATES: [&str; 4] = ["power.busy", "power.idle", PRICE, "total_tokens"];

/// Key for the price of an NPU in dollars per hour.
pub(super) const PRICE: &str = "price.npu";

/// The part of the configuration to which a key belongs.
#[derive(Clone, Copy, Debug)]
pub enum SettingKind<'k> {
    /// The machine, the model, the stack, the traces, or the number of tokens per sample.
    Name,
    /// A power, a price, or the total tokens of a run.
    Rate,
    /// An option of the replay.
    Option(&'static ReplayOptionDefinition),
    /// Path of a key in the machine file.
    Machine(&'k str),
    /// Path of a key in the model file.
    Model(&'k str),
    /// A key of the accelerator; loop nests on the accelerator yield kernel times.
    Accelerator(&'k str),
    /// An option of the plan, in the table `plan`.
    Plan(&'static PlanOption),
}

/// Returns true if `key` changes how a point's traces are read.
pub(super) fn changes_how_traces_are_read(key: &str) -> bool {
    matches!(kind_of_setting(key), Ok(SettingKind::Option(option)) if option.key.affects_trace_reading())
}

/// Returns `value` as command-line arguments in the syntax of `option`.
pub(super) fn option_value_arguments(
    option: &ReplayOptionDefinition,
    value: &ConfigLiteral,
) -> Vec<String> {
    match (option.syntax, value) {
        (ReplayOptionValueKind::List, ConfigLiteral::List(items)) => {
            items.iter().map(ToString::to_string).collect()
        }
        _ => vec![value.to_string()],
    }
}

/// Parses the replay options among `settings`.
pub(super) fn replay_settings(settings: &Settings) -> Result<ReplaySettings, ReplaySettingsError> {
    let given = settings
        .iter()
        .filter_map(|(key, value)| match kind_of_setting(key) {
            Ok(SettingKind::Option(option)) => {
                Some((option.key, option_value_arguments(option, value)))
            }
            _ => None,
        });
    let given: Vec<(SettingKey, Vec<String>)> = given.collect();
    ReplaySettings::parse_settings(given.iter().map(|(key, words)| (*key, &words[..])))
}

/// Parses the value of the key `tokens`, the number of tokens per sample.
pub(super) fn parse_tokens_per_sample(value: &ConfigLiteral) -> Result<u64, &'static str> {
    let tokens = value.to_string().parse().ok();
    let tokens = tokens.filter(|tokens| *tokens > 0);
    tokens.ok_or("expected a whole number of tokens, 1 or more")
}

/// Returns the plan option called `key`; dashes and underscores are equivalent.
fn find_plan_option_by_key(key: &str) -> Option<&'static PlanOption> {
    let key = key.replace('-', "_");
    OPTIONS
        .iter()
        .find(|option| option.key == key && !option.value.is_empty())
}

/// Returns the part of the configuration to which `key` belongs.
///
/// # Errors
///
/// Fails if `key` is unknown; the error contains the most similar known key.
pub fn kind_of_setting(key: &str) -> Result<SettingKind<'_>, Option<String>> {
    if NAMES.contains(&key) {
        return Ok(SettingKind::Name);
    }
    if RATES.contains(&key) {
        return Ok(SettingKind::Rate);
    }
    if let Some(option) = ReplayOptionDefinition::find_by_study_key(&key.replace('-', "_")) {
        return Ok(SettingKind::Option(option));
    }
    match key.split_once('.') {
        Some(("machine", path)) if !path.is_empty() => Ok(SettingKind::Machine(path)),
        Some(("model", path)) if !path.is_empty() => Ok(SettingKind::Model(path)),
        Some(("accelerator", key)) => {
            let names = ACCELERATOR.iter().map(|(name, _)| *name);
            if names.clone().any(|name| name == key) {
                return Ok(SettingKind::Accelerator(key));
            }
            Err(find_most_similar_name(key, names).map(|near| format!("accelerator.{near}")))
        }
        Some(("plan", name)) => find_plan_option_by_key(name)
            .map(SettingKind::Plan)
            .ok_or_else(|| {
                let near = find_most_similar_name(name, OPTIONS.iter().map(|option| option.key));
                near.map(|near| format!("plan.{near}"))
            }),
        _ => {
            let plan = OPTIONS.iter().map(|option| format!("plan.{}", option.key));
            let all: Vec<String> = list_non_path_setting_keys().chain(plan).collect();
            // A user who writes the bare name of a plan option, such as `tensor`, probably means that option.
            let bare = find_plan_option_by_key(key).map(|option| format!("plan.{}", option.key));
            let bare = bare.or_else(|| {
                let name = |key: SettingKey| key.to_string().replace(['-', '`'], "");
                let mut all = REPLAY_OPTIONS.iter();
                let found = all.find(|option| name(option.key) == key.replace(['-', '_'], ""))?;
                Some(found.key.display_key_in_files().to_string())
            });
            Err(bare.or_else(|| {
                find_most_similar_name(key, all.iter().map(String::as_str)).map(str::to_owned)
            }))
        }
    }
}

/// Returns all keys that are not paths in a file.
fn list_non_path_setting_keys() -> impl Iterator<Item = String> {
    let options = REPLAY_OPTIONS.iter();
    let options = options.map(|option| option.key.display_key_in_files().to_string());
    let named = |keys: &'static [&'static str]| keys.iter().map(|key| (*key).to_owned());
    named(&NAMES).chain(options).chain(named(&RATES))
}

/// Formats the settings as one line: `plan.data=4, plan.tensor=8`.
pub fn format_settings(settings: &Settings) -> String {
    let parts = settings.iter().map(|(key, value)| format!("{key}={value}"));
    parts.collect::<Vec<_>>().join(", ")
}

/// Formats the settings of `keys` for users, in the order of `keys`:
/// `tensor 8, data 4, dimension.nvlink.bandwidth 100 GB/s`.
pub fn format_settings_short<'k>(
    settings: &Settings,
    keys: impl IntoIterator<Item = &'k str>,
) -> String {
    let parts = keys.into_iter().filter_map(|key| {
        let value = settings.get(key)?;
        let name = ["plan.", "machine.", "model."]
            .iter()
            .find_map(|start| key.strip_prefix(start));
        Some(format!("{} {value}", name.unwrap_or(key)))
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// Rejects unknown keys.
pub(super) fn reject_unknown_key(key: &str, field: &ConfigField<'_>) -> Result<(), ConfigError> {
    kind_of_setting(key).map(drop).map_err(|near| {
        let expected = format!(
            "one of {}, plan.OPTION, machine.PATH or model.PATH{}",
            list_non_path_setting_keys().collect::<Vec<_>>().join(", "),
            did_you_mean(near.as_deref())
        );
        field.invalid_value_error(
            format_args!("the key {}", quote_and_truncate_for_message(key)),
            expected,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_keys_have_a_kind_and_unknown_ones_a_near_key() {
        assert!(
            matches!(kind_of_setting("compute"), Ok(SettingKind::Option(option)) if option.key == SettingKey::Compute)
        );
        assert!(matches!(
            kind_of_setting("price.npu"),
            Ok(SettingKind::Rate)
        ));
        let path = kind_of_setting("machine.dimension.nvlink.bandwidth");
        assert!(matches!(
            path,
            Ok(SettingKind::Machine("dimension.nvlink.bandwidth"))
        ));
        assert!(
            matches!(kind_of_setting("plan.micro-batch"), Ok(SettingKind::Plan(option)) if option.key == "micro_batch")
        );
        let near = |key: &str| kind_of_setting(key).unwrap_err();
        assert_eq!(near("plan.tensr").as_deref(), Some("plan.tensor"));
        assert_eq!(near("tensor").as_deref(), Some("plan.tensor"));
        assert_eq!(near("netwrk").as_deref(), Some("network"));
        assert_eq!(near("recordedon").as_deref(), Some("recorded_on"));
        assert_eq!(near("zzzzzzzz"), None);
    }
}
