//! Widths and lengths of the help of every command.

use super::*;

fn pages(command: &Command, length: HelpLength, width: usize) -> Vec<(String, String)> {
    let mut pages = Vec::new();
    let mut stack = vec![rendered(command.clone(), length, width)];
    while let Some(mut command) = stack.pop() {
        let name = command.get_bin_name().unwrap_or("chakram").to_owned();
        pages.push((name, command.render_help().to_string()));
        stack.extend(command.get_subcommands().cloned());
    }
    pages
}

#[test]
fn help_is_as_wide_as_asked_for_and_ends_with_examples() {
    let command = crate::command_line();
    for length in [HelpLength::Short, HelpLength::Long] {
        for width in [80, 100] {
            for (name, page) in pages(&command, length, width) {
                for line in page.lines() {
                    let columns = line.chars().count();
                    // One word may be longer, such as a flag of ASTRA-sim's in an example.
                    let one_word = !line.trim_start().contains(' ');
                    assert!(columns <= width || one_word, "{name} at {width}: {line}");
                }
            }
        }
    }
}

#[test]
fn short_help_is_short_and_long_help_has_every_option() {
    let command = crate::command_line();
    let lines = |length| -> std::collections::BTreeMap<_, _> {
        let pages = pages(&command, length, 100).into_iter();
        pages
            .map(|(name, page)| (name, page.lines().count()))
            .collect()
    };
    let (short, long) = (lines(HelpLength::Short), lines(HelpLength::Long));
    assert!(
        short["chakram generate"] <= 87,
        "{}",
        short["chakram generate"]
    );
    assert!(
        long["chakram generate"] <= 234,
        "{}",
        long["chakram generate"]
    );
    assert!(short["chakram replay"] <= 60, "{}", short["chakram replay"]);
    for (name, lines) in &short {
        assert!(*lines <= long[name], "{name}");
    }
    let all = pages(&command, HelpLength::Long, 100);
    let page = |name: &str| &all.iter().find(|(found, _)| found == name).unwrap().1;
    assert!(page("chakram generate").contains("--gradients <DTYPE>"));
    assert!(page("chakram replay").contains("contention-free"));
}
