//! The arguments as the original takes them, made into ours before they are parsed.

use super::AstraSimArgs;
use clap::{Arg, Args, Command};
use std::ffi::OsString;
use std::path::Path;

/// The subcommand.
const NAME: &str = "astra-sim";

/// File names of the original's two programs, with the network model of each.
const PROGRAMS: [(&str, &str); 2] = [
    ("AstraSim_Analytical_Congestion_Unaware", "unaware"),
    ("AstraSim_Analytical_Congestion_Aware", "aware"),
];

/// Rewrites a command line, the program's name first. Under the name of one of the original's
/// programs it gets the subcommand and the network model. With `--lenient`, what the subcommand does
/// not know is left out and returned beside the rest.
pub fn arguments(given: impl IntoIterator<Item = OsString>) -> (Vec<OsString>, Vec<String>) {
    let mut given = given.into_iter();
    let Some(program) = given.next() else {
        return (Vec::new(), Vec::new());
    };
    let name = Path::new(&program).file_stem();
    let model = PROGRAMS
        .iter()
        .find(|(program, _)| name.is_some_and(|name| name == *program));
    let mut kept: Vec<OsString> = match model {
        None => vec![program],
        Some((_, model)) => ["chakram", NAME, "--network-model", model]
            .map(OsString::from)
            .into(),
    };
    if model.is_none() {
        kept.extend(given.by_ref().take(1));
    }
    let rest: Vec<OsString> = given.collect();
    let ours = kept.get(1).is_some_and(|command| command == NAME);
    if !ours || !rest.iter().any(|argument| argument == "--lenient") {
        kept.extend(rest);
        return (kept, Vec::new());
    }
    let mut ignored = Vec::new();
    let command = AstraSimArgs::augment_args(Command::new(NAME));
    let mut rest = rest.into_iter();
    while let Some(argument) = rest.next() {
        match known(&command, &argument.to_string_lossy()) {
            None => ignored.push(argument.to_string_lossy().into_owned()),
            Some(Takes::Nothing) => kept.push(argument),
            Some(Takes::Next) => {
                kept.push(argument);
                kept.extend(rest.next());
            }
        }
    }
    (kept, ignored)
}

/// Whether a known argument takes the one after it.
enum Takes {
    Nothing,
    Next,
}

/// What `argument` takes, if it is one of `command`'s.
fn known(command: &Command, argument: &str) -> Option<Takes> {
    let takes = |arg: &Arg| {
        let takes = arg.get_action().takes_values() && !arg.is_require_equals_set();
        if takes { Takes::Next } else { Takes::Nothing }
    };
    let mut args = command.get_arguments();
    if let Some(long) = argument.strip_prefix("--") {
        let (name, value) = match long.split_once('=') {
            None => (long, false),
            Some((name, _)) => (name, true),
        };
        let help = (name == "help").then_some(Takes::Nothing);
        let arg = args.find(|arg| arg.get_long() == Some(name));
        let arg = arg.map(|arg| if value { Takes::Nothing } else { takes(arg) });
        return arg.or(help);
    }
    let mut letters = argument.strip_prefix('-')?.chars();
    let letter = letters.next()?;
    let help = (letter == 'h').then_some(Takes::Nothing);
    let value = letters.next().is_some();
    let arg = args.find(|arg| arg.get_short() == Some(letter));
    let arg = arg.map(|arg| if value { Takes::Nothing } else { takes(arg) });
    arg.or(help)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(line: &str) -> (String, String) {
        let (kept, ignored) = arguments(line.split_whitespace().map(OsString::from));
        let kept: Vec<_> = kept.iter().map(|kept| kept.to_string_lossy()).collect();
        (kept.join(" "), ignored.join(" "))
    }

    #[test]
    fn names_of_the_original_are_the_subcommand() {
        let (kept, _) = rewritten("/bin/AstraSim_Analytical_Congestion_Aware --x=1");
        assert_eq!(kept, "chakram astra-sim --network-model aware --x=1");
        let (kept, _) = rewritten("./AstraSim_Analytical_Congestion_Unaware --lenient --x");
        assert_eq!(kept, "chakram astra-sim --network-model unaware --lenient");
        let other = "chakram replay --lenient --x";
        assert_eq!(rewritten(other), (other.to_owned(), String::new()));
    }

    #[test]
    fn unknown_arguments_are_left_out_if_that_is_asked_for() {
        let strict = "chakram astra-sim --network-configuration n --what 5";
        assert_eq!(rewritten(strict), (strict.to_owned(), String::new()));
        let (kept, ignored) = rewritten(
            "chakram astra-sim --what=5 --network-configuration n x --comm-scale=2 --foo bar -o f \
             -z -of --rendezvous-protocol true -h --help -- - --lenient",
        );
        assert_eq!(
            kept,
            "chakram astra-sim --network-configuration n --comm-scale=2 -o f -of \
             --rendezvous-protocol -h --help --lenient"
        );
        assert_eq!(ignored, "--what=5 x --foo bar -z true -- -");
        assert_eq!(arguments([]), (Vec::new(), Vec::new()));
    }
}
