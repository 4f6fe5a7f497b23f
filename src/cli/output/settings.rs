//! The options and machine keys on the command line, as settings of a run. Each setting comes with the run as it would
//! be without that setting.

use super::{MachineWithSourceAndEdits, ReplayAndReportArgs};
use crate::given::parse_settings_without_option;
use chakram_base::setting::SettingKey;
use chakram_engine::ReplayOptions;
use chakram_jobs::{
    EditedMachineFileValue, GivenSetting, ReplayOptionDefinition, RunInputsWithoutSetting,
};
use std::borrow::Cow;

impl ReplayAndReportArgs {
    /// Returns a replay's settings: the command line's `options`, and the values in which the machine `loaded` differs
    /// from its preset.
    pub fn replay_settings<'a>(
        &'a self,
        loaded: &'a MachineWithSourceAndEdits,
        options: &'a ReplayOptions,
    ) -> Vec<GivenSetting<'a>> {
        let given = self
            .timing
            .given_options()
            .iter()
            .filter_map(|(key, words)| {
                let setting = |without| GivenSetting {
                    key: key.display_key_in_files().to_string(),
                    value: words.join(" "),
                    option: Some(*key),
                    without,
                };
                match key {
                    SettingKey::FillDomains => {
                        let unfilled = loaded.unfilled.as_ref()?;
                        Some(setting(Box::new(move || {
                            Some(RunInputsWithoutSetting {
                                machine: Some(Cow::Borrowed(unfilled)),
                                ..RunInputsWithoutSetting::default()
                            })
                        })))
                    }
                    // Exact options never change results, so a run without them need not be compared.
                    _ if ReplayOptionDefinition::find_by_key(*key)
                        .is_some_and(|option| option.is_exact) =>
                    {
                        None
                    }
                    _ => Some(setting(Box::new(move || {
                        self.build_run_inputs_without_option(*key, loaded, options)
                    }))),
                }
            });
        let edits = loaded.edits.iter().map(EditedMachineFileValue::to_setting);
        given.chain(edits).collect()
    }

    /// Returns the run without the option `key`, or `None` if there can be no such run.
    fn build_run_inputs_without_option(
        &self,
        key: SettingKey,
        loaded: &MachineWithSourceAndEdits,
        options: &ReplayOptions,
    ) -> Option<RunInputsWithoutSetting<'static>> {
        let settings = parse_settings_without_option(self.timing.given_options(), key)?;
        let (now, other) = (
            self.timing
                .parsed_settings()
                .options_without_files_and_efficiency(),
            settings.options_without_files_and_efficiency(),
        );
        let is_default = match key {
            // Without its bandwidth or its latency, the machine would be incomplete.
            SettingKey::Bandwidth | SettingKey::Latency => return None,
            // Keys that `--set` changes are already reported as edits of the machine.
            SettingKey::Set => return None,
            SettingKey::Network => now.network == Some(loaded.machine.network_model()),
            SettingKey::Comm => now.comm == other.comm,
            SettingKey::Compute => now.compute == other.compute,
            SettingKey::Host => now.host == other.host,
            SettingKey::LowerBound => now.lower_bound == other.lower_bound,
            _ => false,
        };
        if is_default {
            return Some(RunInputsWithoutSetting::default());
        }
        let custom = match key {
            SettingKey::Custom => Vec::new(),
            _ => options.custom.clone(),
        };
        let options = ReplayOptions {
            custom,
            missing_ranks: options.missing_ranks,
            links: options.links,
            ..settings.options_with_efficiency_without_files().ok()?
        };
        Some(RunInputsWithoutSetting {
            options: Some(options),
            ..RunInputsWithoutSetting::default()
        })
    }
}
