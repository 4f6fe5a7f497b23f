//! Finds keys of engines that change no step.

use super::super::rules::{AllReduceKernelLibrary, ExpertKernelLibrary};
use super::all_reduce::AllReduceTimes;
use super::expert_kernels::ExpertKernelTimingConstants;
use super::{ServeError, StepTimeCalculator};
use chakram_base::dtype::Dtype;

impl StepTimeCalculator {
    /// Returns, for each key of an engine that changes no step, why. `states` says whether the scenario states a key.
    ///
    /// # Errors
    ///
    /// Fails if a table of measured times is invalid.
    pub fn list_keys_without_effect(
        &self,
        states: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>, ServeError> {
        let class = &self.class.name;
        let reasons = [
            ("all_reduce", self.reason_all_reduce_has_no_effect()?),
            (
                "expert_kernels",
                self.reason_expert_kernels_have_no_effect()?,
            ),
            (
                "expert_parallel",
                self.reason_expert_parallel_has_no_effect(),
            ),
            (
                "quantization",
                (!self.has_products_with_rule_for_quantization()).then(|| {
                    "no weights outside experts are in fp8 with a scale per tensor, or in fp4"
                        .to_owned()
                }),
            ),
            (
                "graphs",
                self.launch
                    .is_none()
                    .then(|| format!("the time to launch a kernel on {class} is unknown")),
            ),
        ];
        let stated = reasons.into_iter().filter(|(key, _)| states(key));
        Ok(stated
            .filter_map(|(key, why)| Some(format!("{key} has no effect: {}", why?)))
            .collect())
    }

    fn reason_all_reduce_has_no_effect(&self) -> Result<Option<String>, ServeError> {
        let (Some(machine), true) = (self.all_reduce.machine.as_deref(), self.npus > 1) else {
            return Ok(Some(
                "no two NPUs share a layer, so there are no all-reduces".to_owned(),
            ));
        };
        for (kernels, _) in AllReduceKernelLibrary::NAMES {
            let npu = &self.class.name;
            let times = AllReduceTimes::load(*kernels, machine, npu, self.npus, self.ranks)?;
            if !times.own.is_empty() {
                return Ok(None);
            }
        }
        Ok(Some(format!(
            "no engine's all-reduces among {} NPUs of {} were measured",
            self.npus, self.class.name
        )))
    }

    fn reason_expert_kernels_have_no_effect(&self) -> Result<Option<String>, ServeError> {
        let (class, format) = (&self.class.name, self.formats.experts);
        for (kernels, _) in ExpertKernelLibrary::NAMES {
            if ExpertKernelTimingConstants::load(*kernels, class, format)?.is_some() {
                return Ok(None);
            }
        }
        Ok(Some(format!(
            "no engine's kernels were measured on {class}"
        )))
    }

    fn reason_expert_parallel_has_no_effect(&self) -> Option<String> {
        match (self.ranks, self.npus) {
            (1, 1) => self
                .has_whole_experts
                .then(|| "a single NPU has all experts anyway".to_owned()),
            (1, _) => None,
            _ => Some("ranks in lockstep have whole experts anyway".to_owned()),
        }
    }

    /// Returns true if the rule `quantization` says how the inputs of some product are quantized.
    fn has_products_with_rule_for_quantization(&self) -> bool {
        let computes_in = self.compute_format_for_weights(self.formats.weights);
        match computes_in {
            Dtype::Fp8 => !self.formats.has_block_scales,
            Dtype::Fp4 => self.class.curves.gemm[Dtype::Fp4 as usize].is_some(),
            _ => false,
        }
    }
}
