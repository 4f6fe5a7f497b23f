//! Tests the widths and lengths of the help texts of all commands.

use super::*;

fn render_help_pages(command: &Command, length: HelpLength, width: usize) -> Vec<(String, String)> {
    let mut pages = Vec::new();
    let mut stack = vec![set_rendered_help_of_all_commands(
        command.clone(),
        length,
        width,
    )];
    while let Some(mut command) = stack.pop() {
        let name = command.get_bin_name().unwrap_or("chakram").to_owned();
        pages.push((name, command.render_help().to_string()));
        stack.extend(command.get_subcommands().cloned());
    }
    pages
}

#[test]
fn help_is_as_wide_as_asked_for_and_ends_with_examples() {
    let command = crate::build_command_with_completers();
    for length in [HelpLength::Short, HelpLength::Long] {
        for width in [40, 60, 80, 100] {
            for (name, page) in render_help_pages(&command, length, width) {
                for line in page.lines() {
                    let columns = line.chars().count();
                    // A line may be longer if it is a single word, such as a flag of ASTRA-sim in an
                    // example.
                    let one_word = !line.trim_end_matches(" \\").trim_start().contains(' ');
                    assert!(columns <= width || one_word, "{name} at {width}: {line}");
                }
            }
        }
    }
}

#[test]
fn short_help_is_short_and_long_help_has_every_option() {
    let command = crate::build_command_with_completers();
    let lines = |length| -> std::collections::BTreeMap<_, _> {
        let pages = render_help_pages(&command, length, 100).into_iter();
        pages
            .map(|(name, page)| (name, page.lines().count()))
            .collect()
    };
    let (short, long) = (lines(HelpLength::Short), lines(HelpLength::Long));
    assert!(
        short["chakram generate"] <= 90,
        "{}",
        short["chakram generate"]
    );
    assert!(
        long["chakram generate"] <= 320,
        "{}",
        long["chakram generate"]
    );
    assert!(short["chakram replay"] <= 60, "{}", short["chakram replay"]);
    for (name, lines) in &short {
        assert!(*lines <= long[name], "{name}");
    }
    let all = render_help_pages(&command, HelpLength::Long, 100);
    let page = |name: &str| &all.iter().find(|(found, _)| found == name).unwrap().1;
    assert!(page("chakram generate").contains("--gradients <DTYPE>"));
    assert!(page("chakram replay").contains("contention-free"));
}

/// Indented lines of closing texts are commands or entries. Every other line must be full: the first word of the next
/// line would not fit. This shows that the help does not keep the line breaks of the source.
#[test]
fn closing_paragraphs_are_wrapped_once() {
    let command = crate::build_command_with_completers();
    let mut filled = 0;
    for width in [40, 80, 100] {
        for (name, page) in render_help_pages(&command, HelpLength::Long, width) {
            let lines: Vec<&str> = page.lines().collect();
            let options = lines
                .iter()
                .rposition(|line| line.starts_with("  -") || line.starts_with("      --"));
            // `chakram help` has no options and no closing text.
            let Some(options) = options else { continue };
            let closing = &lines[options..];
            let plain = |line: &str| !line.is_empty() && !line.starts_with(' ');
            for pair in closing.windows(2) {
                let [line, next] = [pair[0], pair[1]];
                if plain(line) && plain(next) {
                    let word = next.split(' ').next().expect("a line has a word");
                    let longer = line.chars().count() + 1 + word.chars().count();
                    assert!(longer > width, "{name} at {width}: {line}\n{next}");
                    filled += 1;
                }
                let heads = line.ends_with(':') || !plain(line);
                assert!(
                    heads || !next.starts_with(' '),
                    "{name} at {width}: {line}\n{next}"
                );
            }
        }
    }
    assert!(filled > 100, "{filled} pairs of lines");
}

/// Tests that the lines of a paragraph are joined, and that a command on several source lines
/// becomes one command.
#[test]
fn closing_texts_are_paragraphs_commands_and_entries() {
    use HelpParagraphCommandOrEntry::*;
    let text = "Examples:\n  chakram a \\\n      --b   why\n\nOne\ntwo: three.\n  padding: kept\n    corrected: not";
    let owned = str::to_owned;
    assert_eq!(
        split_closing_text_into_blocks(text),
        [
            Paragraph(owned("Examples:")),
            Command(owned("chakram a --b   why")),
            Blank,
            Paragraph(owned("One two: three.")),
            Entry(owned("padding"), owned("kept")),
            MoreOfEntry(owned("corrected: not")),
        ]
    );
}

fn all_commands() -> Vec<Command> {
    let mut command = crate::build_command_with_completers();
    command.build();
    let mut all = vec![command];
    let mut at = 0;
    while let Some(command) = all.get(at) {
        let subs: Vec<_> = command.get_subcommands().cloned().collect();
        all.extend(subs);
        at += 1;
    }
    all.retain(|command| {
        command
            .get_bin_name()
            .is_some_and(|name| !name.contains("help"))
    });
    all
}

#[test]
fn m_is_the_machine_in_every_command_that_takes_one() {
    let mut machines = 0;
    for command in all_commands() {
        for arg in command.get_arguments() {
            let machine = arg.get_long() == Some("machine");
            let short = arg.get_short() == Some('m');
            assert_eq!(machine, short, "{:?}: {arg}", command.get_bin_name());
            machines += u32::from(machine);
        }
    }
    assert!(machines > 12, "{machines} commands");
}

/// Neither `-h` nor `--help` shows a second paragraph of an argument's comment, so each comment must have only one
/// paragraph.
#[test]
fn texts_of_arguments_are_one_paragraph() {
    for command in all_commands() {
        assert!(
            command.get_long_about().is_none(),
            "{:?}",
            command.get_bin_name()
        );
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let generated = matches!(arg.get_id().as_str(), "help" | "version");
            assert!(generated || arg.get_long_help().is_none(), "{arg}");
            assert!(
                !argument_help_text_with_aliases(arg).is_empty(),
                "{:?}: {arg}",
                command.get_bin_name()
            );
        }
    }
}
