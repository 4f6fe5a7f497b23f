//! Pricing of kernels, as arguments and as text in reports.

use super::flags::choices;
use chakram_base::setting::{SettingChoice, SettingKey};
use chakram_engine::{CollectiveTiming, LaunchMode, OptionRefusal, ReplayOptions};
use chakram_hardware::compute::{
    ComputeModel, HostTiming, RecordingClass, RooflineEfficiency, parse_efficiency, parse_host,
    parse_model,
};
use chakram_hardware::devices::maker_of;
use chakram_hardware::machine::Machine;
use chakram_report::summary::{KernelBasis, thousands};
use clap::Args;
use serde_json::{Map, Value};

/// Heading of help.
pub(super) const MODEL: &str = "Timing model";

/// Arguments of the compute model.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct ComputeArgs {
    /// Compute model: recorded (where nothing was: curves, or else roofline), scaled:F (times F), curves (by class and
    /// shape, as measured), roofline (by FLOPs and bytes) or loopnest:gemmini-16
    #[arg(long, help_heading = MODEL, value_name = "MODEL", default_value = "recorded", value_parser = parse_model)]
    compute: ComputeModel,
    /// Machine on which the kernels were recorded: each lasts as recorded, times the ratio of its roofline here to that there
    #[arg(long, hide_short_help = true, help_heading = MODEL, value_name = "MACHINE", conflicts_with_all = ["compute", "efficiency"], value_parser = parse_recorded_on)]
    recorded_on: Option<RecordedOn>,
    /// Fraction of the peak rates that kernels by roofline achieve, up to 1
    #[arg(long, help_heading = MODEL, value_name = "FRACTION", value_parser = parse_efficiency)]
    efficiency: Option<RooflineEfficiency>,
    /// Host timing: recorded, or scaled:F (times F, so below 1 is a faster host)
    #[arg(long, hide_short_help = true, help_heading = MODEL, value_name = "MODEL", default_value = "recorded", value_parser = parse_host)]
    host: HostTiming,
    /// Launches of kernels, collectives and messages by the machine's host, for traces without host work; by default
    /// eager where kernels are priced by curves, and none otherwise
    #[arg(long, hide_short_help = true, help_heading = MODEL, value_parser = choices::<LaunchMode>(), value_name = "HOW")]
    launch: Option<LaunchMode>,
    /// Uncontended time of collectives; by default as kernels, by curves where they are
    #[arg(long, hide_short_help = true, help_heading = MODEL, value_parser = choices::<CollectiveTiming>(), value_name = "HOW")]
    collectives: Option<CollectiveTiming>,
}

/// A machine on which kernels were recorded.
#[derive(Clone, Debug, PartialEq)]
struct RecordedOn {
    machine: String,
    class: RecordingClass,
}

fn parse_recorded_on(text: &str) -> Result<RecordedOn, String> {
    let machine = Machine::load(text).map_err(|error| error.to_string())?;
    let [class] = machine.classes() else {
        let count = machine.classes().len();
        return Err(format!(
            "it has {count} NPU classes; expected a machine of the one on which kernels were recorded"
        ));
    };
    let memory = class.memory_bandwidth().ok_or_else(|| {
        format!(
            "it describes no NPU; expected a machine of the one on which kernels were recorded, such as h100:{text}"
        )
    })?;
    Ok(RecordedOn {
        machine: text.to_owned(),
        class: RecordingClass::new(&class.peaks, memory).made_by(maker_of(&class.name)),
    })
}

impl ComputeArgs {
    /// Returns the requested model, without its efficiency.
    pub fn model(&self) -> ComputeModel {
        match &self.recorded_on {
            Some(source) => ComputeModel::RecordedOn(source.class),
            None => self.compute,
        }
    }

    /// Returns the options of a replay that these arguments set.
    pub fn options(&self) -> Result<ReplayOptions, OptionRefusal> {
        let mut options = ReplayOptions {
            compute: self.model(),
            host: self.host,
            launch: self.launch.unwrap_or_default(),
            collectives: self.collectives,
            ..ReplayOptions::default()
        };
        if let Some(efficiency) = self.efficiency {
            options.set_efficiency(efficiency)?;
        }
        Ok(options)
    }

    /// Returns the arguments without the option `key`, which may be none of them.
    pub fn without(&self, key: SettingKey) -> Self {
        let mut other = self.clone();
        match key {
            SettingKey::Compute => other.compute = ComputeModel::default(),
            SettingKey::RecordedOn => other.recorded_on = None,
            SettingKey::Efficiency => other.efficiency = None,
            SettingKey::Host => other.host = HostTiming::default(),
            SettingKey::Launch => other.launch = None,
            SettingKey::Collectives => other.collectives = None,
            _ => {}
        }
        other
    }

    /// Returns the first option that was given.
    pub fn first_given(&self) -> Option<&'static str> {
        let given = [
            (self.compute != ComputeModel::default(), "--compute"),
            (self.recorded_on.is_some(), "--recorded-on"),
            (self.efficiency.is_some(), "--efficiency"),
            (self.host != HostTiming::Recorded, "--host"),
            (self.launch.is_some(), "--launch"),
            (self.collectives.is_some(), "--collectives"),
        ];
        given.iter().find_map(|(is, name)| is.then_some(*name))
    }

    /// Returns the basis of the durations of `kernels`, as text.
    pub fn text(&self, kernels: &KernelBasis) -> String {
        let times = match self.compute {
            ComputeModel::Scaled(factor, _) => format!(", times {}", number(factor)),
            _ => String::new(),
        };
        let roofline = match self.efficiency {
            _ if self.recorded_on.is_some() => "by the ratio of rooflines".to_owned(),
            _ if matches!(self.compute, ComputeModel::LoopNest(_)) => {
                format!("by {}", self.name())
            }
            None => "by roofline".to_owned(),
            Some(efficiency) => {
                let fraction = number(efficiency.fraction());
                format!("by roofline at {fraction} of the peak")
            }
        };
        let (recorded, priced) = if self.model().computes() {
            (kernels.kept_recorded, kernels.priced)
        } else {
            (kernels.priced, kernels.estimated)
        };
        let untimed = self.recorded_on.as_ref().map_or(0, |_| kernels.estimated);
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
                let mut text = format!("{} kernels {basis}", thousands(*first));
                for (count, basis) in others {
                    text += &format!(", {} {basis}", thousands(*count));
                }
                text
            }
        };
        if let HostTiming::Scaled(factor) = self.host {
            text += &format!(", host time times {}", number(factor));
        }
        text
    }

    /// Adds the basis of the durations to `options`, for JSON.
    pub fn describe(&self, options: &mut Map<String, Value>) {
        options.insert("compute".to_owned(), self.name().into());
        if matches!(self.compute, ComputeModel::Roofline(_)) || self.efficiency.is_some() {
            let fraction = self.efficiency.unwrap_or_default().fraction();
            options.insert("efficiency".to_owned(), fraction.into());
        }
        for (key, given) in [
            ("launch", self.launch.map(SettingChoice::word)),
            ("collectives", self.collectives.map(SettingChoice::word)),
        ] {
            if let Some(word) = given {
                options.insert(key.to_owned(), word.into());
            }
        }
        if let HostTiming::Scaled(factor) = self.host {
            options.insert("host".to_owned(), format!("scaled:{factor}").into());
        }
    }

    fn name(&self) -> String {
        if let Some(source) = &self.recorded_on {
            return format!("recorded-on:{}", source.machine);
        }
        self.compute.to_string()
    }
}

/// Formats a factor as people write it, without the digits of its binary form.
fn number(factor: f64) -> String {
    if factor == 0.0 || (1e-4..1e6).contains(&factor) {
        factor.to_string()
    } else {
        format!("{factor:e}")
    }
}

#[cfg(test)]
mod tests;
