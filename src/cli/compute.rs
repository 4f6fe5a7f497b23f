//! Pricing of kernels, as arguments and as text in reports.

use crate::compute::{ComputeModel, RooflineEfficiency};
use crate::machine::{Host, Machine};
use crate::units::Span;
use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

/// Arguments of the compute model.
#[derive(Clone, Debug, Args)]
pub struct ComputeArgs {
    /// How long kernels last: recorded, scaled:F (F below 1 is faster), curves (by class and shape, as measured on
    /// this kind of NPU; by the roofline where that is unknown), or roofline
    #[arg(long, value_name = "MODEL", default_value = "recorded", value_parser = parse_model)]
    compute: ComputeModel,
    /// With --compute roofline: the part of the NPU's peak rates, of arithmetic and of memory, that kernels
    /// reach, above 0 and at most 1; 1 by default, a lower bound of what real ones take
    #[arg(long, value_name = "FRACTION", value_parser = parse_efficiency)]
    efficiency: Option<RooflineEfficiency>,
    /// How the host launches kernels and collectives where the trace has no host work: eager as the machine's [host]
    /// has it, graph (all of a step at once, as CUDA graphs do), or none; eager by default with --compute curves, and
    /// none otherwise
    #[arg(long, value_enum, value_name = "HOW")]
    host: Option<HostArg>,
    /// How long collectives last that nothing disturbs: curves, as measured among as many NPUs of this kind where the
    /// machine has that, or algorithms; curves by default with --compute curves, and algorithms otherwise
    #[arg(long, value_enum, value_name = "HOW")]
    collectives: Option<CollectivesArg>,
}

/// Source of the time of collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CollectivesArg {
    /// Measured times
    Curves,
    /// The machine's algorithms and links
    Algorithms,
}

/// How a host launches work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HostArg {
    /// Every kernel and collective by itself
    Eager,
    /// All of a step at once, as CUDA graphs do
    Graph,
    /// In no time
    None,
}

fn parse_model(text: &str) -> Result<ComputeModel, String> {
    match text {
        "recorded" => Ok(ComputeModel::Recorded),
        "curves" => Ok(ComputeModel::Curves),
        "roofline" => Ok(ComputeModel::Roofline(RooflineEfficiency::default())),
        _ => {
            let factor = text
                .strip_prefix("scaled:")
                .ok_or("expected recorded, scaled:F, curves or roofline")?;
            match factor.parse::<f64>() {
                Ok(factor) if factor >= 0.0 && factor.is_finite() => {
                    Ok(ComputeModel::Scaled(factor))
                }
                _ => Err(format!(
                    "`{factor}` is no factor; write for example scaled:0.5"
                )),
            }
        }
    }
}

fn parse_efficiency(text: &str) -> Result<RooflineEfficiency, String> {
    let fraction = text.parse().ok().and_then(RooflineEfficiency::new);
    fraction.ok_or_else(|| {
        "expected a part of the peak, above 0 and at most 1, for example 0.65".to_owned()
    })
}

impl ComputeArgs {
    /// Returns the requested model.
    pub fn model(&self) -> ComputeModel {
        match (self.compute, self.efficiency) {
            (ComputeModel::Roofline(_), Some(efficiency)) => ComputeModel::Roofline(efficiency),
            (model, _) => model,
        }
    }

    /// Returns the arguments for traces without recorded durations on `machine`: if nothing else is requested its curves
    /// where it has some and no efficiency is given, and otherwise the roofline.
    pub fn unrecorded(mut self, machine: Option<&Machine>) -> Self {
        if self.compute == ComputeModel::Recorded {
            let measured = machine.is_some_and(Machine::has_curves);
            self.compute = match self.efficiency {
                None if measured => ComputeModel::Curves,
                _ => ComputeModel::Roofline(RooflineEfficiency::default()),
            };
        }
        self
    }

    /// Returns whether collectives take what was measured.
    pub fn measures_collectives(&self) -> bool {
        match self.collectives {
            Some(how) => how == CollectivesArg::Curves,
            None => self.compute == ComputeModel::Curves,
        }
    }

    /// Returns the host that launches work on `machine`, if any does.
    ///
    /// # Errors
    ///
    /// If one is requested and the machine has none.
    pub fn host(&self, machine: &Machine) -> Result<Option<Host>, String> {
        let default = match self.compute {
            ComputeModel::Curves => machine.host().map(|_| HostArg::Eager),
            _ => None,
        };
        match (self.host.or(default), machine.host()) {
            (None | Some(HostArg::None), _) => Ok(None),
            (Some(HostArg::Eager), Some(host)) => Ok(Some(*host)),
            (Some(HostArg::Graph), Some(host)) => Ok(Some(Host {
                launch: Span::ZERO,
                collective: Span::ZERO,
                message: Span::ZERO,
                step: host.launch,
                ..*host
            })),
            (Some(_), None) => Err(format!(
                "--host asks for a host that launches work, and machine `{}` has none\n  \
                 try: a [host] table in its file, or --host none",
                machine.name()
            )),
        }
    }

    /// Refuses options without effect.
    pub fn check(&self) -> Result<(), String> {
        if self.efficiency.is_some() && !matches!(self.compute, ComputeModel::Roofline(_)) {
            return Err(format!(
                "--efficiency says how near kernels come to the NPU's peak, and with --compute {} they last as \
                 long as the trace says\n  try: --compute roofline",
                self.name()
            ));
        }
        Ok(())
    }

    /// Returns the first option that was given.
    pub fn first_given(&self) -> Option<&'static str> {
        match self.compute {
            ComputeModel::Recorded => self.efficiency.map(|_| "--efficiency"),
            _ => Some("--compute"),
        }
    }

    /// Returns the basis of the durations of kernels, as text.
    pub fn text(&self) -> String {
        match self.model() {
            ComputeModel::Recorded => "kernels as recorded".to_owned(),
            ComputeModel::Scaled(factor) => {
                format!("kernels as recorded, times {}", number(factor))
            }
            ComputeModel::Curves => "kernels by measured curves".to_owned(),
            ComputeModel::Roofline(efficiency) if efficiency == RooflineEfficiency::default() => {
                "kernels by roofline".to_owned()
            }
            ComputeModel::Roofline(efficiency) => {
                let fraction = number(efficiency.fraction());
                format!("kernels by roofline at {fraction} of the peak")
            }
        }
    }

    /// Adds the basis of the durations to `options`, for JSON.
    pub fn describe(&self, options: &mut Map<String, Value>) {
        options.insert("compute".to_owned(), self.name().into());
        if let ComputeModel::Roofline(efficiency) = self.model() {
            let fraction = efficiency.fraction();
            options.insert("efficiency".to_owned(), fraction.into());
        }
    }

    fn name(&self) -> String {
        match self.compute {
            ComputeModel::Recorded => "recorded".to_owned(),
            ComputeModel::Scaled(factor) => format!("scaled:{factor}"),
            ComputeModel::Curves => "curves".to_owned(),
            ComputeModel::Roofline(_) => "roofline".to_owned(),
        }
    }
}

/// Formats a factor as people write it, without the digits of its binary form.
fn number(factor: f64) -> String {
    if (1e-4..1e6).contains(&factor) {
        factor.to_string()
    } else {
        format!("{factor:e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ComputeArgs,
    }

    fn parse(args: &[&str]) -> Result<ComputeArgs, String> {
        let line = Line::try_parse_from([&["x"], args].concat());
        line.map(|line| line.args).map_err(|e| e.to_string())
    }

    #[test]
    fn an_efficiency_reaches_the_model_and_the_words() {
        let args = parse(&["--compute", "roofline", "--efficiency", "0.68"]).unwrap();
        assert_eq!(args.check(), Ok(()));
        let wanted = ComputeModel::Roofline(RooflineEfficiency::new(0.68).unwrap());
        assert_eq!(args.model(), wanted);
        assert_eq!(args.text(), "kernels by roofline at 0.68 of the peak");
        let mut options = Map::new();
        args.describe(&mut options);
        let text = Value::Object(options).to_string();
        assert_eq!(text, r#"{"compute":"roofline","efficiency":0.68}"#);
        // Without one it is the peak, and said so only to programs.
        let args = parse(&["--compute", "roofline"]).unwrap();
        assert_eq!(
            args.model(),
            ComputeModel::Roofline(RooflineEfficiency::default())
        );
        assert_eq!(args.text(), "kernels by roofline");
        let mut options = Map::new();
        args.describe(&mut options);
        assert_eq!(options["efficiency"], 1.0);
    }

    #[test]
    fn an_efficiency_that_does_nothing_is_refused() {
        for given in [&[][..], &["--compute", "scaled:2"]] {
            let args = parse(&[given, &["--efficiency", "0.5"]].concat()).unwrap();
            let error = args.check().unwrap_err();
            assert!(error.contains("try: --compute roofline"), "{error}");
        }
        for none in ["0", "-0.5", "1.5", "68%", "NaN", ""] {
            let given = format!("--efficiency={none}");
            let error = parse(&["--compute", "roofline", &given]).map(|_| ());
            let error = error.unwrap_err();
            assert!(error.contains("above 0 and at most 1"), "{none}: {error}");
        }
    }
}
