//! Durations that depend on the software stack. They replace the machine's kernel curves and launch times.

use super::class_prices::ClassStackCurvesAndHost;
use super::{Machine, NpuClass, build};
use crate::compute::{AttentionKernelTimeCurve, GemmTimeCurve, KernelTimeCurves};
use chakram_base::config::{ConfigError, ConfigField};
use chakram_base::dtype::Dtype;

/// Kernel curves and launch times of a software stack, by NPU class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SoftwareStackCurvesAndHosts {
    classes: Vec<ClassStackCurvesAndHost>,
}

/// A part of the machine that a software stack replaces: a curve, or launch times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameOfStackReplacedPart {
    /// Name of the NPU class.
    pub class: String,
    /// `attention`, `gemm`, `moving` or `host`.
    pub part: &'static str,
    /// Number formats of the curve, or name of the kernel. Empty if the class has no other part of this kind.
    pub what: String,
}

impl SoftwareStackCurvesAndHosts {
    /// Reads a stack's tables, one for each NPU class. `field` is the key `npu` of its file.
    ///
    /// # Errors
    ///
    /// Fails if a key is unknown, a value is invalid, or a table is empty.
    pub fn parse_class_tables(field: &ConfigField<'_>) -> Result<Self, ConfigError> {
        let classes = build::parse_software_stack_curves_by_npu_class(field)?;
        Ok(Self { classes })
    }

    /// Returns true if the stack replaces nothing.
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    /// Returns the names of the classes that have a table in the stack.
    pub fn class_names(&self) -> impl Iterator<Item = &str> {
        self.classes.iter().map(|class| class.name.as_str())
    }
}

impl Machine {
    /// Returns the machine with the stack's kernel curves and launch times, and a list of the parts that they replace.
    ///
    /// Classes without a table in the stack keep their curves. Measured shapes and kernels take precedence over the
    /// stack's curves, just as they do over the machine's curves. The machine's power limit and its factors for
    /// continuous load also apply to the stack's curves. A machine with several NPU classes keeps its host, which
    /// serves all classes.
    pub fn with_stack(
        &self,
        prices: &SoftwareStackCurvesAndHosts,
    ) -> (Self, Vec<NameOfStackReplacedPart>) {
        let mut machine = self.clone();
        let mut parts = Vec::new();
        let has_one_class = machine.classes.len() == 1;
        for class in &mut machine.classes {
            let found = prices.classes.iter().find(|own| own.name == class.name);
            let Some(own) = found else { continue };
            replace_kernel_curves(class, &own.kernels, &mut parts);
            if let (Some(host), true) = (own.host, has_one_class) {
                machine.host = Some(host);
                parts.push(NameOfStackReplacedPart {
                    class: class.name.clone(),
                    part: "host",
                    what: String::new(),
                });
            }
        }
        (machine, parts)
    }
}

/// Replaces curves of `class` with a stack's curves.
fn replace_kernel_curves(
    class: &mut NpuClass,
    own: &KernelTimeCurves,
    parts: &mut Vec<NameOfStackReplacedPart>,
) {
    let curves = &mut class.curves;
    let kept = curves.kept;
    let mut add = |part: &'static str, what: String| {
        parts.push(NameOfStackReplacedPart {
            class: class.name.clone(),
            part,
            what,
        });
    };
    let mut formats = Vec::new();
    for (dtype, name) in Dtype::ALL {
        let Some(curve) = own.gemm[dtype as usize] else {
            continue;
        };
        // Measured shapes correct only the curve from which their residuals were computed, so keep that curve.
        if curves.products[dtype as usize].is_some() {
            continue;
        }
        curves.gemm[dtype as usize] = Some(GemmTimeCurve {
            efficiency: kept.products * curve.efficiency,
            throttling: kept.throttling,
            ..curve
        });
        formats.push(name);
    }
    if !formats.is_empty() {
        add("gemm", formats.join(", "));
    }
    let mut formats = Vec::new();
    for (dtype, name) in Dtype::ALL {
        let Some(curve) = own.attention[dtype as usize] else {
            continue;
        };
        let before = curves.attention[dtype as usize];
        curves.attention[dtype as usize] = Some(AttentionKernelTimeCurve {
            compute: kept.attention * curve.compute,
            decode: curve.decode.or(before.and_then(|before| before.decode)),
            ..curve
        });
        formats.push(name);
    }
    if !formats.is_empty() {
        let kernel = own.attention_kernel.clone();
        curves.attention_kernel.clone_from(&kernel);
        add("attention", kernel.unwrap_or_else(|| formats.join(", ")));
    }
    if let Some(moving) = own.moving {
        curves.moving = Some(moving);
        add("moving", String::new());
    }
}
