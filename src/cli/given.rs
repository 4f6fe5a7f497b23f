//! Parses replay options both as flags and as settings, so that each option's effect on a replay can be checked.

use super::flags::{flag_of_setting, replace_keys_by_flags};
use chakram_base::setting::SettingKey;
use chakram_jobs::{REPLAY_OPTIONS, ReplayOptionDefinition, ReplayOptionValueKind, ReplaySettings};
use clap::builder::{PossibleValue, PossibleValuesParser, ValueParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Map, Value};
use std::marker::PhantomData;

/// Help heading for options of the timing model.
pub(super) const MODEL: &str = "Timing model";
/// Help heading for options about traces.
pub(super) const TRACES: &str = "Traces";

/// A group of the replay options.
pub trait ReplayOptionGroup {
    /// Returns true if the option `key` belongs to the group.
    fn option_belongs_to_group(key: SettingKey) -> bool;
}

/// Options on the command line that belong to one group.
#[derive(Clone, Debug)]
pub struct OneReplayOptionGroupArgs<G> {
    given: GivenOptionsWithValues,
    settings: Box<ReplaySettings>,
    group: PhantomData<G>,
}

/// Options on the command line (not defaults), with their values.
pub type GivenOptionsWithValues = Vec<(SettingKey, Vec<String>)>;

/// Parses `given` without the option `left_out`.
pub fn parse_settings_without_option(
    given: &GivenOptionsWithValues,
    left_out: SettingKey,
) -> Option<ReplaySettings> {
    let others = given.iter().filter(|(key, _)| *key != left_out);
    ReplaySettings::parse_settings(others.map(|(key, words)| (*key, &words[..]))).ok()
}

impl<G> OneReplayOptionGroupArgs<G> {
    /// Returns the options on the command line.
    pub fn given_options(&self) -> &GivenOptionsWithValues {
        &self.given
    }

    /// Adds options on the command line to a report's JSON, except those that `options` already contains. An option
    /// with a list of texts becomes a list.
    pub fn add_given_options_to_json(&self, options: &mut Map<String, Value>) {
        for (key, words) in &self.given {
            let name = key.display_key_in_files().to_string();
            let is_list = ReplayOptionDefinition::find_by_key(*key)
                .is_some_and(|option| matches!(option.syntax, ReplayOptionValueKind::List));
            let value = match &words[..] {
                [] => Value::Bool(true),
                [word] if !is_list => Value::String(word.clone()),
                words => words.iter().cloned().map(Value::String).collect(),
            };
            options.entry(name).or_insert(value);
        }
    }

    /// Returns the settings that result from the options on the command line.
    pub fn parsed_settings(&self) -> &ReplaySettings {
        &self.settings
    }
}

impl<G: ReplayOptionGroup> OneReplayOptionGroupArgs<G> {
    fn all_options() -> impl Iterator<Item = &'static ReplayOptionDefinition> {
        REPLAY_OPTIONS
            .iter()
            .filter(|option| G::option_belongs_to_group(option.key))
    }
}

/// Returns the name by which clap knows an option.
fn clap_id(key: SettingKey) -> String {
    flag_of_setting(key)
        .trim_start_matches('-')
        .replace('-', "_")
}

fn build_clap_arg_of_option(option: &'static ReplayOptionDefinition) -> Arg {
    let parser: ValueParser = match option.syntax {
        ReplayOptionValueKind::Choice(choices) => {
            let values = choices().into_iter().map(|(word, summary)| {
                // clap keeps these words until the program ends, so leaking them is harmless.
                PossibleValue::new(&*word.replace('_', "-").leak()).help(summary)
            });
            PossibleValuesParser::new(values).into()
        }
        _ => ValueParser::new(|word: &str| {
            let word = word.to_owned();
            option
                .check_words(std::slice::from_ref(&word))
                .map(|()| word)
        }),
    };
    let key = option.key;
    let flag: &'static str = flag_of_setting(key).leak();
    let name: &'static str = clap_id(key).leak();
    let arg = Arg::new(name)
        .long(flag.trim_start_matches('-'))
        .help(replace_keys_by_flags(option.help))
        .help_heading(if key.affects_trace_reading() {
            TRACES
        } else {
            MODEL
        })
        .hide_short_help(option.is_rare)
        .conflicts_with_all(option.excludes.iter().map(|key| &*clap_id(*key).leak()));
    let arg = match option.syntax {
        ReplayOptionValueKind::Switch => return arg.action(ArgAction::SetTrue),
        ReplayOptionValueKind::List => arg.action(ArgAction::Append),
        _ => arg,
    };
    let arg = arg.value_name(option.value).value_parser(parser);
    match option.default {
        "" => arg,
        default => arg.default_value(default),
    }
}

impl<G: ReplayOptionGroup> Args for OneReplayOptionGroupArgs<G> {
    fn augment_args(command: Command) -> Command {
        command.args(Self::all_options().map(build_clap_arg_of_option))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<G: ReplayOptionGroup> FromArgMatches for OneReplayOptionGroupArgs<G> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = GivenOptionsWithValues::new();
        for option in Self::all_options() {
            let id = clap_id(option.key);
            if matches.value_source(&id) != Some(ValueSource::CommandLine) {
                continue;
            }
            let words = match option.syntax {
                ReplayOptionValueKind::Switch => vec!["true".to_owned()],
                _ => matches
                    .get_many(&id)
                    .into_iter()
                    .flatten()
                    .cloned()
                    .collect(),
            };
            given.push((option.key, words));
        }
        let settings =
            ReplaySettings::parse_settings(given.iter().map(|(key, words)| (*key, &words[..])));
        let settings = settings
            .map_err(|error| clap::Error::raw(ErrorKind::ValueValidation, format!("{error}\n")))?;
        Ok(Self {
            given,
            settings: Box::new(settings),
            group: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
