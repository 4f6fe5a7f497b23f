//! Command-line flags for the settings that the library's messages name, and parsers for their values.

use chakram_base::setting::{EnumeratedSetting, SettingKey};
use chakram_report::settings::parse_setting_key;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use std::fmt::{self, Write};

/// Writes the flag of a setting into a message.
pub fn write_flag_name_of_setting(setting: SettingKey, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match setting {
        SettingKey::Delays => f.write_str("--delay"),
        SettingKey::Dependencies => f.write_str("--deps"),
        SettingKey::Edits => f.write_str("--edit"),
        SettingKey::MissingRanks => f.write_str("--absent"),
        SettingKey::Output => f.write_str("-o"),
        _ => write!(
            UnderscoreToHyphenWriter(f),
            "--{}",
            setting.display_key_in_files()
        ),
    }
}

/// Writes text with hyphens in place of its underscores, without allocating.
struct UnderscoreToHyphenWriter<'f, 'a>(&'f mut fmt::Formatter<'a>);

impl Write for UnderscoreToHyphenWriter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let hyphened = |c| if c == '_' { '-' } else { c };
        text.chars()
            .try_for_each(|c| self.0.write_char(hyphened(c)))
    }
}

/// Returns the flag of a setting, including its dashes.
pub fn flag_of_setting(setting: SettingKey) -> String {
    struct SettingFlagDisplay(SettingKey);

    impl fmt::Display for SettingFlagDisplay {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write_flag_name_of_setting(self.0, f)
        }
    }

    SettingFlagDisplay(setting).to_string()
}

/// Returns the flag for a key of the library. If the key is not a setting, the flag has the key's name.
pub fn flag_of_key(key: &str) -> String {
    match parse_setting_key(key) {
        Some(setting) => flag_of_setting(setting),
        None => format!("--{}", key.replace('_', "-")),
    }
}

/// Replaces each key in braces in `text` with its flag: `with {zero} 3` becomes `with --zero 3`.
pub fn replace_keys_by_flags(text: &str) -> String {
    let is_key = |key: &&str| key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    let mut parts = text.split('{');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once('}').filter(|(key, _)| is_key(key)) {
            Some((key, rest)) => {
                out += &flag_of_key(key);
                out += rest;
            }
            // No key follows the brace, so the brace belongs to the text.
            None => {
                out.push('{');
                out += part;
            }
        }
    }
    out
}

/// Returns a parser for the words of a setting with a few possible values. On the command line, hyphens replace the
/// underscores in these words.
pub fn parser_of_choices<T: EnumeratedSetting + Send + Sync>() -> impl TypedValueParser<Value = T> {
    let hyphened = |word: &str| word.replace('_', "-");
    let values = T::CHOICES.iter().map(move |(_, word, summary)| {
        // clap keeps these words until the program ends, so leaking them is harmless.
        PossibleValue::new(&*hyphened(word).leak()).help(*summary)
    });
    PossibleValuesParser::new(values).map(move |chosen| {
        let mut all = T::CHOICES.iter();
        let found = all.find(|(_, word, _)| hyphened(word) == chosen);
        found.expect("the parser admits these words only").0
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use chakram_base::setting;
    use clap::Command;
    use serde::Deserialize;
    use serde::de::value::{self, U32Deserializer};

    /// Returns the commands whose messages may name the flag of `setting`; an empty list means every command.
    fn list_commands_naming_setting_flag(setting: SettingKey) -> &'static [&'static str] {
        use SettingKey::*;
        match setting {
            Aggregate | Bandwidth | Collective | Collectives | Comm | Compute | Custom
            | Details | Efficiency | Fail | FillDomains | Host | Jitter | Kernel | Latency
            | Launch | Links | Map | Network | LowerBound | RecordedOn | Set | Slow | Stepwise
            | Table | TileMap => &["replay", "generate"],
            Lenient | NetworkModel | Quirks => &["astra-sim"],
            Dependencies | MissingRanks | Ranks => &["replay", "validate"],
            Delays | Edits | NoVerify | Without => &["replay"],
            Interpolate | Memory | Tensor => &["schedule"],
            Name | Replace => &["archive add"],
            Generation | Salvage => &["convert trace"],
            Order | Output => &["generate"],
            Grid | Sharded => &["scale"],
            Resume | Shard => &["sweep"],
            MaxMemory | MaxRatio => &[],
            Nodes => &["archive extract"],
            Step => &["convert pytorch", "replay", "inspect", "slice"],
            List => &["convert"],
            Show => &["diff"],
            Model => &["platform import"],
            Timeline => &["replay", "astra-sim"],
            Machine => &["replay", "generate", "serve", "validate"],
            Format => &["replay", "generate", "serve"],
            Groups => &["replay", "validate", "scale"],
            Slo => &["serve"],
        }
    }

    fn command_has_flag(command: &Command, flag: &str) -> bool {
        command
            .get_arguments()
            .any(|arg| match flag.strip_prefix("--") {
                Some(long) => arg.get_long() == Some(long),
                None => arg.get_short() == flag.chars().nth(1),
            })
    }

    #[test]
    fn commands_have_the_flags_that_their_messages_name() {
        let program = crate::build_whole_command();
        setting::register_setting_names_for_messages(write_flag_name_of_setting);
        let setting = |i| SettingKey::deserialize(U32Deserializer::<value::Error>::new(i)).ok();
        let settings: Vec<SettingKey> = (0..).map_while(setting).collect();
        assert_eq!(settings.last(), Some(&SettingKey::Without));
        for setting in settings {
            let (flag, commands) = (
                setting.to_string(),
                list_commands_naming_setting_flag(setting),
            );
            let flag = flag.as_str();
            if commands.is_empty() {
                assert!(command_has_flag(&program, flag), "{flag}");
                let global = |arg: &&clap::Arg| arg.is_global_set();
                let mut globals = program.get_arguments().filter(global);
                assert!(
                    globals.any(|arg| arg.get_long() == flag.strip_prefix("--")),
                    "{flag}"
                );
            }
            for path in commands {
                let sub = |command: &Command, name| command.find_subcommand(name).cloned();
                let command = path
                    .split(' ')
                    .try_fold(program.clone(), |at, name| sub(&at, name));
                let command = command.unwrap_or_else(|| panic!("there is no command {path}"));
                assert!(command_has_flag(&command, flag), "{path} {flag}");
            }
        }
    }

    #[test]
    fn flags_stand_for_keys_in_braces() {
        assert_eq!(replace_keys_by_flags("Pad heads"), "Pad heads");
        assert_eq!(
            replace_keys_by_flags("Sums, with {micro_batch} 2 or {zero}"),
            "Sums, with --micro-batch 2 or --zero"
        );
    }
}
