//! Command-line flags of the plan options.

use crate::flags::replace_keys_by_flags;
use chakram_workloads::generate::plan::{
    OPTIONS, OptionValueSyntax, ParallelismPlan, PlanDraft, PlanOption,
};
use clap::builder::{PossibleValuesParser, TypedValueParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use std::error::Error;

/// The plan options on the command line, with their values.
#[derive(Debug)]
pub(super) struct GivenPlanOptions(Vec<(&'static PlanOption, Vec<String>)>);

impl GivenPlanOptions {
    /// Returns `plan` with the values on the command line, except the value of the option
    /// `left_out`.
    pub(super) fn apply_to_plan(
        &self,
        plan: ParallelismPlan,
        left_out: Option<&str>,
    ) -> Result<ParallelismPlan, Box<dyn Error>> {
        let mut draft = PlanDraft::new(plan);
        for (option, words) in &self.0 {
            if left_out != Some(option.key) {
                (option.set)(&mut draft, words)?;
            }
        }
        Ok(draft.finish_plan()?)
    }

    /// Returns the key and the values of each plan option on the command line.
    pub(super) fn given_values(&self) -> impl Iterator<Item = (&'static str, String)> {
        let given = self.0.iter();
        given.map(|(option, words)| (option.key, words.join(",")))
    }
}

/// Returns the plan options that have flags.
fn plan_options_with_flags() -> impl Iterator<Item = &'static PlanOption> {
    OPTIONS.iter().filter(|option| !option.value.is_empty())
}

fn option_arg(option: &'static PlanOption) -> Arg {
    let parser: ValueParser = match option.syntax {
        OptionValueSyntax::Number => value_parser!(u32).map(|n: u32| n.to_string()).into(),
        OptionValueSyntax::LongNumber => value_parser!(u64).map(|n: u64| n.to_string()).into(),
        OptionValueSyntax::Words(words) => PossibleValuesParser::new(words()).into(),
        OptionValueSyntax::Text(check) => {
            ValueParser::new(move |text: &str| check(text).map(|()| text.to_owned()))
        }
    };
    // clap keeps these names until the program ends, so leaking them is harmless.
    let flag: &'static str = option.key.replace('_', "-").leak();
    let mut arg = Arg::new(option.key)
        .long(flag)
        .visible_aliases(option.alias)
        .value_name(option.value)
        .help(match option.default {
            "" => replace_keys_by_flags(option.help),
            default => format!(
                "{} [default: {default}]",
                replace_keys_by_flags(option.help)
            ),
        })
        .help_heading(option.heading)
        .hide_short_help(option.is_rare)
        .value_parser(parser)
        .conflicts_with_all(option.excludes);
    if option.is_list {
        arg = arg.value_delimiter(',').action(ArgAction::Append);
    }
    if option.is_switch {
        arg = arg.num_args(0..=1).default_missing_value("true");
    }
    arg
}

impl Args for GivenPlanOptions {
    fn augment_args(command: Command) -> Command {
        command.args(plan_options_with_flags().map(option_arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for GivenPlanOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = plan_options_with_flags().filter_map(|option| {
            let words = matches.get_many::<String>(option.key)?;
            Some((option, words.cloned().collect()))
        });
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
