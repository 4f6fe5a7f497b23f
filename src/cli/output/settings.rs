//! Options and machine keys that were given, each with the run without it.

use super::{LoadedMachine, RunArgs};
use chakram_base::setting::SettingKey;
use chakram_engine::ReplayOptions;
use chakram_jobs::{GivenSetting, MachineEdit, RunWithout};
use std::borrow::Cow;

impl RunArgs {
    /// Returns what these arguments and the file of `loaded` set for a replay with `options`.
    pub fn settings<'a>(
        &'a self,
        loaded: &'a LoadedMachine,
        options: &'a ReplayOptions,
    ) -> Vec<GivenSetting<'a>> {
        let given = self.given.iter().filter_map(|(key, words)| {
            let setting = |without| GivenSetting {
                key: key.key().to_string(),
                value: words.to_owned(),
                option: Some(key),
                without,
            };
            match key {
                SettingKey::FillDomains => {
                    let unfilled = loaded.unfilled.as_ref()?;
                    Some(setting(Box::new(move || {
                        Some(RunWithout {
                            machine: Some(Cow::Borrowed(unfilled)),
                            ..RunWithout::default()
                        })
                    })))
                }
                // Options of traces are those of the command.
                _ if key.is_of_traces() => None,
                _ => Some(setting(Box::new(move || {
                    self.run_without(key, loaded, options)
                }))),
            }
        });
        let edits = loaded.edits.iter().map(MachineEdit::setting);
        given.chain(edits).collect()
    }

    /// Returns the run without the option `key`; `None` where another option needs it.
    fn run_without(
        &self,
        key: SettingKey,
        loaded: &LoadedMachine,
        options: &ReplayOptions,
    ) -> Option<RunWithout<'static>> {
        let mut other = self.clone();
        other.timing.compute = self.timing.compute.without(key);
        let mut is_default = false;
        match key {
            SettingKey::Comm => other.timing.comm = Default::default(),
            SettingKey::Network => {
                is_default = other.timing.network == Some(loaded.machine.network());
                other.timing.network = None;
            }
            SettingKey::LowerBound => other.timing.lower_bound = false,
            SettingKey::Map => other.timing.map = None,
            SettingKey::Custom => other.timing.custom.clear(),
            _ => is_default = other.timing.compute == self.timing.compute,
        }
        is_default |= key == SettingKey::Comm && other.timing.comm == self.timing.comm;
        if is_default {
            return Some(RunWithout::default());
        }
        let custom = match key {
            SettingKey::Custom => Vec::new(),
            _ => options.custom.clone(),
        };
        let options = ReplayOptions {
            custom,
            missing_ranks: options.missing_ranks,
            ..other.options_without_files().ok()?
        };
        Some(RunWithout {
            options: Some(options),
            ..RunWithout::default()
        })
    }
}
