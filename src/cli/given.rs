//! Options that were given, as settings whose effect on a run is checked.

use chakram_base::setting::SettingKey;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};

/// Options of the model and of a job's traces, by the names of their arguments.
const OPTIONS: [(&str, SettingKey); 18] = [
    ("compute", SettingKey::Compute),
    ("recorded_on", SettingKey::RecordedOn),
    ("efficiency", SettingKey::Efficiency),
    ("host", SettingKey::Host),
    ("launch", SettingKey::Launch),
    ("collectives", SettingKey::Collectives),
    ("comm", SettingKey::Comm),
    ("lower_bound", SettingKey::LowerBound),
    ("network", SettingKey::Network),
    ("map", SettingKey::Map),
    ("fill_domains", SettingKey::FillDomains),
    ("custom", SettingKey::Custom),
    ("groups", SettingKey::Groups),
    ("deps", SettingKey::Dependencies),
    ("absent", SettingKey::MissingRanks),
    ("without", SettingKey::Without),
    ("delay", SettingKey::Delays),
    ("step", SettingKey::Step),
];

/// Options that the command line has, defaults excluded, each with its words. It has to be the first field of the arguments
/// that declare them, because clap's matches lose what is taken from them.
#[derive(Clone, Debug, Default)]
pub struct GivenOptions(Vec<(SettingKey, String)>);

impl GivenOptions {
    /// The options with their words.
    pub fn iter(&self) -> impl Iterator<Item = (SettingKey, &str)> {
        self.0.iter().map(|(key, words)| (*key, words.as_str()))
    }
}

impl Args for GivenOptions {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for GivenOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Vec::new();
        for id in matches.ids() {
            let Some((name, key)) = OPTIONS.iter().find(|(name, _)| *name == id.as_str()) else {
                continue;
            };
            if matches.value_source(name) == Some(ValueSource::CommandLine) {
                let words = matches.get_raw(name).into_iter().flatten();
                let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
                given.push((*key, words.join(" ")));
            }
        }
        Ok(Self(given))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
