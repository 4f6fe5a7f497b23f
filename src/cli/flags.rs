//! Flags of the settings that the library's messages refer to.

use chakram_base::setting::Setting;

/// Returns the flag of a setting, for messages.
pub fn flag(setting: Setting) -> &'static str {
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
fn used(setting: Setting) -> (&'static str, &'static [&'static str]) {
    match setting {
        Setting::Bandwidth => ("--bandwidth", &["replay", "generate"]),
        Setting::Comm => ("--comm", &["replay", "generate"]),
        Setting::Compute => ("--compute", &["replay", "generate"]),
        Setting::Custom => ("--custom", &["replay", "generate"]),
        Setting::Delays => ("--delay", &["replay"]),
        Setting::Dependencies => ("--deps", &["replay", "validate"]),
        Setting::Details => ("--details", &["replay", "generate"]),
        Setting::Format => ("--format", &["replay", "generate", "serve"]),
        Setting::Generation => ("--generation", &["convert trace"]),
        Setting::Grid => ("--grid", &["scale"]),
        Setting::Groups => ("--groups", &["replay", "validate", "scale"]),
        Setting::Interpolate => ("--interpolate", &["schedule"]),
        Setting::Latency => ("--latency", &["replay", "generate"]),
        Setting::Lenient => ("--lenient", &["astra-sim"]),
        Setting::Links => ("--links", &["replay", "generate"]),
        Setting::List => ("--list", &["convert"]),
        Setting::Machine => ("--machine", &["replay", "generate", "serve", "validate"]),
        Setting::MaxMemory => ("--max-memory", &[]),
        Setting::MaxRatio => ("--max-ratio", &[]),
        Setting::Memory => ("--memory", &["schedule"]),
        Setting::MissingRanks => ("--absent", &["replay", "validate"]),
        Setting::Map => ("--map", &["replay", "generate"]),
        Setting::Model => ("--model", &["platform import"]),
        Setting::Name => ("--name", &["archive add"]),
        Setting::Network => ("--network", &["replay", "generate"]),
        Setting::NetworkModel => ("--network-model", &["astra-sim"]),
        Setting::Nodes => ("--nodes", &["archive extract"]),
        Setting::NoVerify => ("--no-verify", &["replay"]),
        Setting::Order => ("--order", &["generate"]),
        Setting::Output => ("-o", &["generate"]),
        Setting::Quirks => ("--quirks", &["astra-sim"]),
        Setting::Ranks => ("--ranks", &["replay", "validate"]),
        Setting::Replace => ("--replace", &["archive add"]),
        Setting::Resume => ("--resume", &["sweep"]),
        Setting::Salvage => ("--salvage", &["convert trace"]),
        Setting::Sharded => ("--sharded", &["scale"]),
        Setting::Shard => ("--shard", &["sweep"]),
        Setting::Show => ("--show", &["diff"]),
        Setting::Slo => ("--slo", &["serve"]),
        Setting::Tensor => ("--tensor", &["schedule"]),
        Setting::Step => ("--step", &["convert pytorch"]),
        Setting::Table => ("--table", &["replay", "generate"]),
        Setting::TileMap => ("--tile-map", &["replay", "generate"]),
        Setting::Timeline => ("--timeline", &["replay", "astra-sim"]),
        Setting::Without => ("--without", &["replay"]),
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
        for setting in Setting::all() {
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
