//! Parses the options of the compute model, which times kernels, and describes them in reports.

use super::given::{OneReplayOptionGroupArgs, ReplayOptionGroup};
use chakram_base::setting::{EnumeratedSetting, SettingKey};
use chakram_engine::{HostLaunchMode, ReplayOptions};
use chakram_hardware::compute::{HostDurationSource, KernelDurationSource};
use chakram_jobs::ReplaySettingsError;
use chakram_report::summary::{KernelCountsByDurationMethod, format_thousands};
use serde_json::{Map, Value};

/// Options that determine the times of kernels, launches and collectives.
#[derive(Clone, Debug)]
pub struct KernelAndCollectiveTimeOptions;

impl ReplayOptionGroup for KernelAndCollectiveTimeOptions {
    fn option_belongs_to_group(key: SettingKey) -> bool {
        matches!(
            key,
            SettingKey::Compute
                | SettingKey::RecordedOn
                | SettingKey::Efficiency
                | SettingKey::Host
                | SettingKey::Launch
                | SettingKey::Collectives
        )
    }
}

/// Arguments of the compute model.
pub type ComputeArgs = OneReplayOptionGroupArgs<KernelAndCollectiveTimeOptions>;

impl ComputeArgs {
    /// Returns the options of a replay that these arguments set.
    pub fn replay_options(&self) -> Result<ReplayOptions, ReplaySettingsError> {
        self.parsed_settings()
            .options_with_efficiency_without_files()
    }
}

impl<G> OneReplayOptionGroupArgs<G> {
    /// Returns the requested compute model, without the efficiency.
    pub fn compute_model(&self) -> KernelDurationSource {
        self.parsed_settings()
            .options_without_files_and_efficiency()
            .compute
    }

    /// Describes the sources of durations for `kernels`.
    pub fn describe_durations(&self, kernels: &KernelCountsByDurationMethod) -> String {
        let times = match self.compute_model() {
            KernelDurationSource::Scaled(factor, _) => format!(", times {}", format_factor(factor)),
            _ => String::new(),
        };
        let recorded_on = &self.parsed_settings().recorded_on;
        let roofline = match self.parsed_settings().efficiency {
            _ if recorded_on.is_some() => "by the ratio of rooflines".to_owned(),
            _ if matches!(self.compute_model(), KernelDurationSource::LoopNest(_)) => {
                format!("by {}", self.describe_compute_basis())
            }
            None => "by roofline".to_owned(),
            Some(efficiency) => {
                let fraction = format_factor(efficiency.as_fraction());
                format!("by roofline at {fraction} of the peak")
            }
        };
        let (recorded, priced) = if self.compute_model().ignores_recorded_durations() {
            (kernels.kept_recorded, kernels.priced)
        } else {
            (kernels.priced, kernels.estimated)
        };
        let untimed = recorded_on.as_ref().map_or(0, |_| kernels.estimated);
        let mut parts = vec![
            (recorded, format!("as recorded{times}")),
            (kernels.by_curves, format!("by measured curves{times}")),
            (priced, format!("{roofline}{times}")),
            (untimed, "by roofline".to_owned()),
            (kernels.unknown, "without a price".to_owned()),
        ];
        parts.retain(|(count, _)| *count > 0);
        let mut text = match &parts[..] {
            [] => "no kernels".to_owned(),
            [(_, only)] => format!("kernels {only}"),
            [(first, basis), others @ ..] => {
                let mut text = format!("{} kernels {basis}", format_thousands(*first));
                for (count, basis) in others {
                    text += &format!(", {} {basis}", format_thousands(*count));
                }
                text
            }
        };
        if let HostDurationSource::Scaled(factor) = self
            .parsed_settings()
            .options_without_files_and_efficiency()
            .host
        {
            text += &format!(", host time times {}", format_factor(factor));
        }
        text
    }

    /// Describes the sources of durations in `options`, for JSON.
    pub fn add_duration_sources_to_json(&self, options: &mut Map<String, Value>) {
        let efficiency = self.parsed_settings().efficiency;
        let replay = self
            .parsed_settings()
            .options_without_files_and_efficiency();
        let launch = Some(replay.launch).filter(|launch| *launch != HostLaunchMode::Auto);
        options.insert("compute".to_owned(), self.describe_compute_basis().into());
        if matches!(self.compute_model(), KernelDurationSource::Roofline(_)) || efficiency.is_some()
        {
            let fraction = efficiency.unwrap_or_default().as_fraction();
            options.insert("efficiency".to_owned(), fraction.into());
        }
        for (key, given) in [
            ("launch", launch.map(EnumeratedSetting::choice_name)),
            (
                "collectives",
                replay.collectives.map(EnumeratedSetting::choice_name),
            ),
        ] {
            if let Some(word) = given {
                options.insert(key.to_owned(), word.into());
            }
        }
        if let HostDurationSource::Scaled(factor) = self
            .parsed_settings()
            .options_without_files_and_efficiency()
            .host
        {
            options.insert("host".to_owned(), format!("scaled:{factor}").into());
        }
    }

    fn describe_compute_basis(&self) -> String {
        match &self.parsed_settings().recorded_on {
            Some(machine) => format!("recorded-on:{machine}"),
            None => self.compute_model().to_string(),
        }
    }
}

/// Formats a factor of ordinary size as a decimal number, without the extra digits of its exact binary value.
fn format_factor(factor: f64) -> String {
    if factor == 0.0 || (1e-4..1e6).contains(&factor) {
        factor.to_string()
    } else {
        format!("{factor:e}")
    }
}

#[cfg(test)]
mod tests;
