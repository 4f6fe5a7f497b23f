//! Chooses where step times come from.

use super::step_cost::{StepPartTimeCache, StepTimeCalculator, StepTimePart, StepTimesByPart};
use super::step_load::{LinearStepTimeCoefficients, StepTimeInputs};
use super::step_profile::ProfiledStepTimeModel;
use chakram_base::units::Span;

/// Where step times come from.
#[derive(Clone, Debug, PartialEq)]
pub enum StepTimeSource {
    /// The scenario states a linear function of the step's work.
    Linear(LinearStepTimeCoefficients),
    /// Times are interpolated in a table of measured operations.
    Profile(Box<ProfiledStepTimeModel>),
    /// Times are computed from a model's sizes and a machine's kernel times.
    Model(Box<StepTimeCalculator>),
}

impl StepTimeSource {
    /// Returns the time of a step, and its parts if the source has parts.
    pub fn step_time(
        &self,
        load: &StepTimeInputs,
        memo: &mut StepPartTimeCache,
    ) -> (Span, Option<StepTimesByPart>) {
        match self {
            Self::Linear(linear) => (linear.step_time(load), None),
            Self::Profile(profile) => (profile.step_time(load), None),
            Self::Model(cost) => {
                let parts = cost.step_time_by_part(load, memo);
                (parts.iter().copied().sum(), Some(parts))
            }
        }
    }

    /// Describes where step times come from.
    pub fn describe_basis(&self) -> Vec<String> {
        match self {
            Self::Linear(linear) => vec![format!(
                "as the scenario states: {} a step, {} a token, {} a request, {} a token that is read",
                linear.base, linear.token, linear.request, linear.context
            )],
            Self::Profile(profile) => profile.describe_basis(),
            Self::Model(cost) => {
                let mut all = cost.describe_basis();
                if !cost.left_out().is_empty() {
                    let names = cost
                        .left_out()
                        .iter()
                        .map(|part: &StepTimePart| part.part_name());
                    all.push(format!(
                        "left out: {}",
                        names.collect::<Vec<_>>().join(", ")
                    ));
                }
                all
            }
        }
    }
}
