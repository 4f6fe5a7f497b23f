//! Flags of the settings that the library's messages refer to.

use chakram_base::setting::SettingKey;

/// Returns the flag of a setting, for messages.
pub fn flag(setting: SettingKey) -> &'static str {
    used(setting).0
}

/// Returns the flag of a key of the library whose flag has the same name.
pub fn flag_of_key(key: &str) -> String {
    format!("--{}", key.replace('_', "-"))
}

/// Returns `text`, a description for people, with flags for the keys that it has in braces: `with {zero} 3`.
pub fn with_flags(text: &str) -> String {
    let mut parts = text.split('{');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (key, rest) = part.split_once('}').expect("a key is closed");
        out += &flag_of_key(key);
        out += rest;
    }
    out
}

/// Returns the flag of a setting, and commands whose messages name it; none where every command has it.
fn used(setting: SettingKey) -> (&'static str, &'static [&'static str]) {
    match setting {
        SettingKey::Bandwidth => ("--bandwidth", &["replay", "generate"]),
        SettingKey::Comm => ("--comm", &["replay", "generate"]),
        SettingKey::Compute => ("--compute", &["replay", "generate"]),
        SettingKey::Custom => ("--custom", &["replay", "generate"]),
        SettingKey::Delays => ("--delay", &["replay"]),
        SettingKey::Dependencies => ("--deps", &["replay", "validate"]),
        SettingKey::Details => ("--details", &["replay", "generate"]),
        SettingKey::FillDomains => ("--fill-domains", &["replay", "generate"]),
        SettingKey::Format => ("--format", &["replay", "generate", "serve"]),
        SettingKey::Generation => ("--generation", &["convert trace"]),
        SettingKey::Grid => ("--grid", &["scale"]),
        SettingKey::Groups => ("--groups", &["replay", "validate", "scale"]),
        SettingKey::Interpolate => ("--interpolate", &["schedule"]),
        SettingKey::Latency => ("--latency", &["replay", "generate"]),
        SettingKey::Lenient => ("--lenient", &["astra-sim"]),
        SettingKey::Links => ("--links", &["replay", "generate"]),
        SettingKey::List => ("--list", &["convert"]),
        SettingKey::Machine => ("--machine", &["replay", "generate", "serve", "validate"]),
        SettingKey::MaxMemory => ("--max-memory", &[]),
        SettingKey::MaxRatio => ("--max-ratio", &[]),
        SettingKey::Memory => ("--memory", &["schedule"]),
        SettingKey::MissingRanks => ("--absent", &["replay", "validate"]),
        SettingKey::Map => ("--map", &["replay", "generate"]),
        SettingKey::Model => ("--model", &["platform import"]),
        SettingKey::Name => ("--name", &["archive add"]),
        SettingKey::Network => ("--network", &["replay", "generate"]),
        SettingKey::NetworkModel => ("--network-model", &["astra-sim"]),
        SettingKey::Nodes => ("--nodes", &["archive extract"]),
        SettingKey::NoVerify => ("--no-verify", &["replay"]),
        SettingKey::Order => ("--order", &["generate"]),
        SettingKey::Output => ("-o", &["generate"]),
        SettingKey::Quirks => ("--quirks", &["astra-sim"]),
        SettingKey::Ranks => ("--ranks", &["replay", "validate"]),
        SettingKey::Replace => ("--replace", &["archive add"]),
        SettingKey::Resume => ("--resume", &["sweep"]),
        SettingKey::Salvage => ("--salvage", &["convert trace"]),
        SettingKey::Sharded => ("--sharded", &["scale"]),
        SettingKey::Shard => ("--shard", &["sweep"]),
        SettingKey::Show => ("--show", &["diff"]),
        SettingKey::Slo => ("--slo", &["serve"]),
        SettingKey::Tensor => ("--tensor", &["schedule"]),
        SettingKey::Step => ("--step", &["convert pytorch"]),
        SettingKey::Table => ("--table", &["replay", "generate"]),
        SettingKey::TileMap => ("--tile-map", &["replay", "generate"]),
        SettingKey::Timeline => ("--timeline", &["replay", "astra-sim"]),
        SettingKey::Without => ("--without", &["replay"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Command;

    fn has(command: &Command, flag: &str) -> bool {
        command
            .get_arguments()
            .any(|arg| match flag.strip_prefix("--") {
                Some(long) => arg.get_long() == Some(long),
                None => arg.get_short() == flag.chars().nth(1),
            })
    }

    #[test]
    fn commands_have_the_flags_that_their_messages_name() {
        let program = crate::whole_command();
        for setting in SettingKey::all() {
            let (flag, commands) = used(setting);
            if commands.is_empty() {
                assert!(has(&program, flag), "{flag}");
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
                assert!(has(&command, flag), "{path} {flag}");
            }
        }
    }

    #[test]
    fn flags_stand_for_keys_in_braces() {
        assert_eq!(with_flags("Pad heads"), "Pad heads");
        assert_eq!(
            with_flags("Sums, with {micro_batch} 2 or {zero}"),
            "Sums, with --micro-batch 2 or --zero"
        );
    }
}
