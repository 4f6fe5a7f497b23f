//! Rewrites an ASTRA-sim command line as a chakram command line, before it is parsed.

use super::AstraSimArgs;
use crate::LimitAndVerbosityArgs;
use chakram_astra_sim::MisleadingValidInputNote;
use chakram_base::config::find_most_similar_name;
use clap::{Arg, Args, Command};
use std::ffi::OsString;
use std::path::Path;

/// Name of the subcommand that replays like ASTRA-sim.
const NAME: &str = "astra-sim";

/// File names of ASTRA-sim's two programs, each with its network model.
const PROGRAMS: [(&str, &str); 2] = [
    ("AstraSim_Analytical_Congestion_Unaware", "unaware"),
    ("AstraSim_Analytical_Congestion_Aware", "aware"),
];

/// The result of rewriting a command line.
#[derive(Debug, Default)]
pub struct RewrittenArgs {
    /// Arguments for the parser; the first is the program's name.
    pub kept: Vec<OsString>,
    /// Arguments that were removed, each with the reason.
    pub ignored: Vec<MisleadingValidInputNote>,
    /// True if the program was called by the name of one of ASTRA-sim's programs.
    pub original: bool,
}

/// Rewrites an ASTRA-sim command line for chakram. The first word is the program's name. If the first word is the name
/// of one of ASTRA-sim's programs, adds the subcommand and the network model. Removes arguments that the subcommand
/// does not have, because ASTRA-sim ignores unknown arguments. If a flag accepts a value only after `=`, also removes a
/// separate word after it.
pub fn rewrite_arguments(given: impl IntoIterator<Item = OsString>) -> RewrittenArgs {
    let mut given = given.into_iter();
    let mut to = RewrittenArgs::default();
    let Some(program) = given.next() else {
        return to;
    };
    let name = Path::new(&program).file_stem();
    let model = PROGRAMS
        .iter()
        .find(|(program, _)| name.is_some_and(|name| name == *program));
    match model {
        None => {
            to.kept.push(program);
            keep_args_through_command(&mut given, &mut to.kept);
        }
        Some((_, model)) => {
            let words = ["chakram", NAME, "--network-model", model];
            to.kept.extend(words.map(OsString::from));
            to.original = true;
        }
    }
    // Command lines of all other subcommands are parsed unchanged.
    if !to.original && to.kept.last().is_none_or(|command| command != NAME) {
        to.kept.extend(given);
        return to;
    }
    let command =
        LimitAndVerbosityArgs::augment_args(AstraSimArgs::augment_args(Command::new(NAME)));
    // The previous flag, if it takes an optional value or a value after `=`, and `None` otherwise. A separate word
    // after this flag is ignored.
    let mut before = None;
    while let Some(argument) = given.next() {
        let text = argument.to_string_lossy();
        let flag = before.take();
        match find_known(&command, &text) {
            None => to
                .ignored
                .push(ignored_argument_note(&command, &text, flag)),
            Some(FlagValuePlace::Nothing) => to.kept.push(argument),
            Some(FlagValuePlace::Behind) => {
                before = Some(text.into_owned());
                to.kept.push(argument);
            }
            Some(FlagValuePlace::Next) => {
                to.kept.push(argument);
                to.kept.extend(given.next());
            }
        }
    }
    to
}

/// Moves general options before the command, and the command itself, from `given` to `kept`.
fn keep_args_through_command(given: &mut impl Iterator<Item = OsString>, kept: &mut Vec<OsString>) {
    let mut general = None;
    while let Some(argument) = given.next() {
        let text = argument.to_string_lossy();
        let option = text.starts_with('-').then(|| {
            let general = general.get_or_insert_with(|| {
                LimitAndVerbosityArgs::augment_args(Command::new("general"))
            });
            find_known(general, &text)
        });
        kept.push(argument);
        match option {
            None | Some(None) => return,
            Some(Some(FlagValuePlace::Next)) => kept.extend(given.next()),
            Some(Some(_)) => {}
        }
    }
}

/// Returns a note that says why `argument` is ignored. `flag` is the previous flag if it may have a value.
fn ignored_argument_note(
    command: &Command,
    argument: &str,
    flag: Option<String>,
) -> MisleadingValidInputNote {
    if let Some(flag) = flag.filter(|_| !argument.starts_with('-')) {
        let why = format!(
            "ignored, as in the original: the value of {flag} must follow `=`; without a value the flag is on"
        );
        return MisleadingValidInputNote::about_flag(argument, why);
    }
    let longs = command.get_arguments().filter_map(Arg::get_long);
    let meant = argument.strip_prefix("--").and_then(|long| {
        let name = long.split('=').next().unwrap_or(long);
        find_most_similar_name(name, longs)
    });
    let meant = meant.map_or_else(String::new, |name| format!("; did you mean `--{name}`?"));
    MisleadingValidInputNote::about_flag(argument, format!("ignored, because it is unknown{meant}"))
}

/// Where a known argument's value is: the argument takes no value, the value is the next word, or the value is missing
/// because the argument has no `=`.
enum FlagValuePlace {
    Nothing,
    Behind,
    Next,
}

/// Returns where the value of `argument` is, or `None` if `command` has no such argument.
fn find_known(command: &Command, argument: &str) -> Option<FlagValuePlace> {
    let takes = |arg: &Arg| {
        if !arg.get_action().takes_values() {
            FlagValuePlace::Nothing
        } else if arg.is_require_equals_set() {
            FlagValuePlace::Behind
        } else {
            FlagValuePlace::Next
        }
    };
    let mut args = command.get_arguments();
    if let Some(long) = argument.strip_prefix("--") {
        let (name, value) = match long.split_once('=') {
            None => (long, false),
            Some((name, _)) => (name, true),
        };
        // `help` needs a separate comparison, because the parser adds it and the command does not list it.
        let help = (name == "help").then_some(FlagValuePlace::Nothing);
        let arg = args.find(|arg| arg.get_long() == Some(name)).map(|arg| {
            if value {
                FlagValuePlace::Nothing
            } else {
                takes(arg)
            }
        });
        return arg.or(help);
    }
    // `-qofile` means `-q -o file`. The first letter that takes a value takes the rest of the word, or the next word if
    // nothing is left.
    let mut letters = argument.strip_prefix('-')?.chars();
    let mut last = None;
    while let Some(letter) = letters.next() {
        let arg = command
            .get_arguments()
            .find(|arg| arg.get_short() == Some(letter));
        let help = (letter == 'h').then_some(FlagValuePlace::Nothing);
        last = Some(arg.map(takes).or(help)?);
        if !matches!(last, Some(FlagValuePlace::Nothing)) {
            return if letters.as_str().is_empty() {
                last
            } else {
                Some(FlagValuePlace::Nothing)
            };
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewrite_command_line(line: &str) -> (String, Vec<String>) {
        let to = rewrite_arguments(line.split_whitespace().map(OsString::from));
        let kept: Vec<_> = to.kept.iter().map(|kept| kept.to_string_lossy()).collect();
        let prefix = "command line: ";
        let notes = to.ignored.iter().map(MisleadingValidInputNote::to_string);
        let notes = notes.map(|note| note.trim_start_matches(prefix).to_owned());
        (kept.join(" "), notes.collect())
    }

    #[test]
    fn original_program_names_become_the_subcommand() {
        let (kept, _) =
            rewrite_command_line("/bin/AstraSim_Analytical_Congestion_Aware --comm-scale=1");
        assert_eq!(
            kept,
            "chakram astra-sim --network-model aware --comm-scale=1"
        );
        let (kept, _) =
            rewrite_command_line("./AstraSim_Analytical_Congestion_Unaware --lenient --x");
        assert_eq!(kept, "chakram astra-sim --network-model unaware --lenient");
        let other = "chakram replay --lenient --x";
        assert_eq!(rewrite_command_line(other), (other.to_owned(), Vec::new()));
    }

    #[test]
    fn unknown_arguments_are_left_out() {
        let (kept, ignored) = rewrite_command_line(
            "chakram astra-sim --what=5 --network-configuration n x --comm-scale=2 --foo bar -o f \
             -z -of --rendezvous-protocol false -h --help -- - --lenient --netwrok-model=aware",
        );
        assert_eq!(
            kept,
            "chakram astra-sim --network-configuration n --comm-scale=2 -o f -of \
             --rendezvous-protocol -h --help --lenient"
        );
        let unknown = |word: &str| format!("`{word}`: ignored, because it is unknown");
        let mut expected: Vec<String> = ["--what=5", "x", "--foo", "bar", "-z"].map(unknown).into();
        expected.push(
            "`false`: ignored, as in the original: the value of --rendezvous-protocol must follow \
             `=`; without a value the flag is on"
                .to_owned(),
        );
        expected.extend(["--", "-"].map(unknown));
        expected.push(unknown("--netwrok-model=aware") + "; did you mean `--network-model`?");
        assert_eq!(ignored, expected);
        assert!(rewrite_arguments([]).kept.is_empty());
    }

    /// Tests that the parser knows the long and short names of all options in the help. Also tests that it accepts
    /// general options before the command.
    #[test]
    fn rewriting_keeps_every_option_listed_in_help() {
        let mut cli = crate::build_whole_command();
        cli.build();
        let listed = cli.find_subcommand(NAME).expect("it is a command");
        let mut count = 0;
        for arg in listed.get_arguments().filter(|arg| !arg.is_positional()) {
            let long = arg.get_long().map(|long| format!("--{long}"));
            let short = arg.get_short().map(|short| format!("-{short}"));
            for name in long.into_iter().chain(short) {
                let value = arg.get_action().takes_values() && !arg.is_require_equals_set();
                let line = format!("chakram astra-sim {name}{}", if value { " 1" } else { "" });
                assert_eq!(rewrite_command_line(&line), (line.clone(), Vec::new()));
                count += 1;
            }
        }
        assert!(count > 25, "{count} names");
        for line in [
            "chakram -q astra-sim -vq --max-ratio=5 -qo f -qof",
            "chakram --max-memory 1GB -v astra-sim --lenient",
            "chakram -z astra-sim --x",
            "chakram --max-memory 1GB replay --x",
        ] {
            assert_eq!(rewrite_command_line(line), (line.to_owned(), Vec::new()));
        }
        let (kept, ignored) = rewrite_command_line("chakram -q astra-sim --x -qz -v");
        assert_eq!((&kept[..], ignored.len()), ("chakram -q astra-sim -v", 2));
    }
}
