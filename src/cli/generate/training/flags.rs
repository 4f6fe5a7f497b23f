//! Command-line flags of the plan options.

use crate::flags::replace_keys_by_flags;
use chakram_base::config::quote_and_truncate_for_message;
use chakram_workloads::generate::plan::{
    OPTIONS, OptionValueSyntax, ParallelismPlan, PlanDraft, PlanOption,
};
use clap::builder::{PossibleValuesParser, TypedValueParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use std::error::Error;
use std::path::Path;

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
                (option.set)(&mut draft, &expand_number_files(option, words)?)?;
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

/// Returns true if the option takes a list of numbers, which may also be in a file.
fn takes_number_file(option: &PlanOption) -> bool {
    option.is_list && matches!(option.syntax, OptionValueSyntax::Number)
}

/// Replaces each word `@FILE` in a list of numbers with the numbers in that file.
fn expand_number_files(
    option: &PlanOption,
    words: &[String],
) -> Result<Vec<String>, Box<dyn Error>> {
    let mut all = Vec::new();
    for word in words {
        match word.strip_prefix('@').filter(|_| takes_number_file(option)) {
            None => all.push(word.clone()),
            Some(path) => {
                let text = chakram_base::config::read_file_or_standard_input(Path::new(path))
                    .map_err(|error| format!("cannot read {path}: {error}"))?;
                let numbers = text.split(|c: char| c == ',' || c.is_whitespace());
                for number in numbers.filter(|number| !number.is_empty()) {
                    if number.parse::<u32>().is_err() {
                        let found = quote_and_truncate_for_message(number);
                        return Err(format!(
                            "{path}: found {found}, expected whole numbers with commas, spaces or line ends between them"
                        )
                        .into());
                    }
                    all.push(number.to_owned());
                }
            }
        }
    }
    Ok(all)
}

/// Returns the plan options that have flags.
fn plan_options_that_have_flags() -> impl Iterator<Item = &'static PlanOption> {
    OPTIONS.iter().filter(|option| !option.value.is_empty())
}

fn option_arg(option: &'static PlanOption) -> Arg {
    let parser: ValueParser = match option.syntax {
        OptionValueSyntax::Number if takes_number_file(option) => ValueParser::new(|text: &str| {
            match text.starts_with('@') {
                true => Ok(text.to_owned()),
                false => text.parse::<u32>().map(|n| n.to_string()).map_err(|_| {
                    "expected whole numbers with commas between them, or @FILE with such numbers"
                }),
            }
        }),
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
        command.args(plan_options_that_have_flags().map(option_arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for GivenPlanOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = plan_options_that_have_flags().filter_map(|option| {
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
