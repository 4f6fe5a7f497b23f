//! Formats the help of all commands: groups the options, and prints them in two columns. Lines are no wider than the
//! terminal, and have at most 100 columns.
//!
//! `-h` leaves out rare options (options with `hide_short_help`). `--help` shows all options, and explains the values
//! that they accept.

use super::{given, output};
use clap::builder::{PossibleValue, StyledStr};
use clap::{Arg, Command};
use std::ffi::OsString;
use std::fmt::Write;
use textwrap::Options;

/// Maximum width of lines, in columns; [`MIN_WIDTH`] is the minimum.
const WIDTH: usize = 100;
const MIN_WIDTH: usize = 30;
/// Column at which the descriptions of options begin. Lines narrower than [`WIDE`] have no space for two columns, so
/// the descriptions follow on separate lines.
const TEXT: usize = 30;
const NARROW_TEXT: usize = 10;
const WIDE: usize = 60;

/// Length of a help text: long texts also list rare options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelpLength {
    /// Common options.
    Short,
    /// All options, including rare ones.
    Long,
}

/// Returns the length of the help that `arguments` ask for, or `None` if they do not ask for help.
pub fn requested_help_length(arguments: &[OsString]) -> Option<HelpLength> {
    let words = arguments.iter().skip(1).take_while(|word| *word != "--");
    let asked = |flags: &[&str]| words.clone().any(|word| flags.iter().any(|f| word == *f));
    if asked(&["-h"]) {
        Some(HelpLength::Short)
    } else {
        let long = asked(&["--help", "help"]) || arguments.len() < 2;
        long.then_some(HelpLength::Long)
    }
}

/// Replaces the help texts of `command` and of all its subcommands.
pub fn replace_help_of_command_and_subcommands(command: Command, length: HelpLength) -> Command {
    set_rendered_help_of_all_commands(command, length, help_line_width())
}

/// Returns the width of lines: `COLUMNS` or the terminal's width, but at most [`WIDTH`].
fn help_line_width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    let columns = columns.or_else(|| {
        let size = terminal_size::terminal_size();
        size.map(|(width, _)| width.0.into())
    });
    columns.unwrap_or(WIDTH).clamp(MIN_WIDTH, WIDTH)
}

fn set_rendered_help_of_all_commands(
    mut command: Command,
    length: HelpLength,
    width: usize,
) -> Command {
    command.build();
    set_rendered_help_of_command_tree(command, length, width)
}

fn set_rendered_help_of_command_tree(
    mut command: Command,
    length: HelpLength,
    width: usize,
) -> Command {
    let names: Vec<_> = command
        .get_subcommands()
        .map(|c| c.get_name().to_owned())
        .collect();
    for name in names {
        command = command.mut_subcommand(name, |sub| {
            set_rendered_help_of_command_tree(sub, length, width)
        });
    }
    let mut page = HelpPageBuilder {
        text: String::new(),
        width,
        length,
    };
    page.render_page(&mut command)
        .expect("a string grows as needed");
    command.override_help(StyledStr::from(page.text))
}

/// The help page of one command, while it is written.
struct HelpPageBuilder {
    text: String,
    width: usize,
    length: HelpLength,
}

impl HelpPageBuilder {
    fn render_page(&mut self, command: &mut Command) -> std::fmt::Result {
        if let Some(about) = command.get_about() {
            let about = about.to_string();
            self.write_paragraph(&about, "", "");
        }
        let usage = command.render_usage();
        let plain = usage.to_string();
        if plain.lines().all(|line| line.chars().count() <= self.width) {
            writeln!(self.text, "\n{}", usage.ansi())?;
        } else {
            self.text.push('\n');
            let lines = plain.lines().map(str::trim_end);
            lines.for_each(|line| self.write_paragraph(line, "", "           "));
        }
        let commands: Vec<_> = command
            .get_subcommands()
            .filter(|c| !c.is_hide_set())
            .collect();
        if !commands.is_empty() {
            self.write_heading("Commands");
            for sub in commands {
                let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
                self.write_row(2, sub.get_name(), &about, 17);
            }
        }
        let short = self.length == HelpLength::Short;
        let shown = |arg: &&Arg| !(arg.is_hide_set() || short && arg.is_hide_short_help_set());
        let positional: Vec<_> = command.get_positionals().filter(shown).collect();
        if !positional.is_empty() {
            self.write_heading("Arguments");
            positional.into_iter().for_each(|arg| self.write_arg(arg));
        }
        let options = command.get_arguments().filter(shown);
        let mut ordered: Vec<&Arg> = options.filter(|arg| !arg.is_positional()).collect();
        // Sort help and version to the end of the general options.
        ordered.sort_by_key(|arg| matches!(arg.get_id().as_str(), "help" | "version"));
        let mut headings: Vec<Option<&str>> = vec![None];
        for arg in &ordered {
            let heading = arg.get_help_heading();
            if !headings.contains(&heading) {
                headings.push(heading);
            }
        }
        // Headings that several commands share follow the command's own headings.
        let shared = [given::MODEL, output::REPORT, super::GENERAL];
        headings.sort_by_key(|heading| shared.iter().position(|name| *heading == Some(*name)));
        for heading in headings {
            let of = ordered
                .iter()
                .filter(|arg| arg.get_help_heading() == heading);
            let of: Vec<_> = of.collect();
            if of.is_empty() {
                continue;
            }
            self.write_heading(heading.unwrap_or("Options"));
            of.into_iter().for_each(|arg| self.write_arg(arg));
        }
        let hidden = command
            .get_arguments()
            .filter(|arg| arg.is_hide_short_help_set())
            .count();
        if short && hidden > 0 {
            self.write_paragraph(&format!("{hidden} more options: --help"), "\n", "");
        }
        if let Some(after) = command.get_after_help() {
            self.text.push('\n');
            for part in split_closing_text_into_blocks(&after.to_string()) {
                match part {
                    HelpParagraphCommandOrEntry::Blank => self.text.push('\n'),
                    HelpParagraphCommandOrEntry::Paragraph(text) => {
                        self.write_paragraph(&text, "", "")
                    }
                    HelpParagraphCommandOrEntry::Command(text) => self.write_example(&text, "  "),
                    HelpParagraphCommandOrEntry::Entry(name, text) => {
                        self.write_row(2, &name, &text, self.option_description_start_column())
                    }
                    HelpParagraphCommandOrEntry::MoreOfEntry(text) => {
                        let pad = " ".repeat(self.option_description_start_column());
                        self.write_paragraph(&text, &pad, &pad);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the column at which the descriptions of options begin.
    fn option_description_start_column(&self) -> usize {
        if self.width < WIDE { NARROW_TEXT } else { TEXT }
    }

    /// Writes an example's command; if it is too long, breaks it into several lines in a way that a shell accepts.
    /// Writes the example's purpose on the same line, or as a comment before the command.
    fn write_example(&mut self, text: &str, indent: &str) {
        if indent.len() + text.chars().count() <= self.width {
            self.text += &format!("{indent}{text}\n");
            return;
        }
        let (command, purpose) = text.split_once("   ").unwrap_or((text, ""));
        if !purpose.is_empty() {
            let comment = format!("{indent}# ");
            self.write_paragraph(purpose.trim_start(), &comment, &comment);
        }
        let from = self.text.len();
        let width = self.width;
        self.width -= 2;
        self.write_paragraph(command, indent, &format!("{indent}    "));
        self.width = width;
        let lines = self.text.split_off(from);
        self.text += &lines.trim_end().replace('\n', " \\\n");
        self.text.push('\n');
    }

    fn write_heading(&mut self, text: &str) {
        let style = clap::builder::Styles::styled();
        let style = style.get_header();
        self.text += &format!("\n{style}{text}:{style:#}\n");
    }

    /// Writes `text` after `lead`, and begins all further lines with `next`.
    fn write_paragraph(&mut self, text: &str, lead: &str, next: &str) {
        let options = Options::new(self.width)
            .initial_indent(lead)
            .subsequent_indent(next)
            .break_words(false)
            .word_separator(textwrap::WordSeparator::AsciiSpace)
            .word_splitter(textwrap::WordSplitter::NoHyphenation);
        for line in textwrap::wrap(text, options) {
            self.text += line.trim_end();
            self.text.push('\n');
        }
    }

    /// Writes `name`, and then `text` from column `column` onwards, or on a new line if the name is too long.
    fn write_row(&mut self, indent: usize, name: &str, text: &str, column: usize) {
        let style = clap::builder::Styles::styled();
        let style = style.get_literal();
        let used = indent + name.chars().count();
        let pad = " ".repeat(column);
        let lead = " ".repeat(indent);
        if used > self.width {
            let hanging = " ".repeat(indent + 6);
            self.write_paragraph(&format!("{style}{name}{style:#}"), &lead, &hanging);
            return self.write_paragraph(text, &pad, &pad);
        }
        self.text += &format!("{lead}{style}{name}{style:#}");
        if used + 2 > column {
            self.text.push('\n');
            return self.write_paragraph(text, &pad, &pad);
        }
        let at = self.text.len();
        self.write_paragraph(text, &pad, &pad);
        // The first line of the text is on the same line as the name.
        self.text.replace_range(at..at + used, "");
    }

    fn write_arg(&mut self, arg: &Arg) {
        let mut name = match (arg.get_short(), arg.get_long()) {
            (Some(short), Some(long)) => format!("-{short}, --{long}"),
            (Some(short), None) => format!("-{short}"),
            (None, Some(long)) => format!("    --{long}"),
            (None, None) => String::new(),
        };
        let value = arg
            .get_value_names()
            .map(|names| names.join(" "))
            .unwrap_or_default();
        if arg.is_positional() {
            name = arg.to_string();
        } else if arg.get_action().takes_values() {
            let optional = arg.get_num_args().is_some_and(|n| n.min_values() == 0);
            name += &match (optional, arg.is_require_equals_set()) {
                (true, true) => format!("[=<{value}>]"),
                (true, false) => format!(" [<{value}>]"),
                _ => format!(" <{value}>"),
            };
        }
        let mut text = argument_help_text_with_aliases(arg);
        let values: Vec<PossibleValue> = arg.get_possible_values();
        let values: Vec<_> = values.iter().filter(|value| !value.is_hide_set()).collect();
        let takes = arg.get_action().takes_values();
        let told = self.length == HelpLength::Long && values.iter().any(|v| v.get_help().is_some());
        let names: Vec<_> = values.iter().map(|value| value.get_name()).collect();
        if takes && !told && !names.is_empty() && names != ["true", "false"] {
            text += &format!(" [values: {}]", names.join(", "));
        }
        let defaults: Vec<_> = arg
            .get_default_values()
            .iter()
            .map(|d| d.to_string_lossy())
            .collect();
        if takes && !defaults.is_empty() && !arg.is_hide_default_value_set() {
            text += &format!(" [default: {}]", defaults.join(" "));
        }
        let column = self.option_description_start_column();
        self.write_row(2, &name, &text, column);
        if takes && told {
            let widest = values.iter().map(|value| value.get_name().len()).max();
            let aligned = column + 4 + widest.unwrap_or(0);
            // With fewer than 20 columns, most lines would have only one word.
            let texts = if aligned + 20 > self.width {
                column + 6
            } else {
                aligned
            };
            for value in values {
                let help = value
                    .get_help()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                self.write_row(column + 2, value.get_name(), &help, texts);
            }
        }
    }
}

/// Returns an argument's help text, with its aliases.
pub fn argument_help_text_with_aliases(arg: &Arg) -> String {
    let mut text = arg.get_help().map(ToString::to_string).unwrap_or_default();
    for alias in arg.get_visible_aliases().unwrap_or_default() {
        text += &format!(" [alias: --{alias}]");
    }
    text
}

/// A part of the text that closes a command's help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HelpParagraphCommandOrEntry {
    Blank,
    /// A heading, or sentences. Its lines are wrapped anew, without the line breaks of the source text.
    Paragraph(String),
    /// A command line, optionally followed by its purpose.
    Command(String),
    /// An entry of a list: name and text.
    Entry(String, String),
    /// Another line of the previous entry.
    MoreOfEntry(String),
}

/// Splits a closing text. Lines without indentation form paragraphs. An indented line is an entry of a list
/// if its first word ends with a colon; otherwise it is a command.
pub fn split_closing_text_into_blocks(text: &str) -> Vec<HelpParagraphCommandOrEntry> {
    let mut parts = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let text = line.trim();
        let indent = line.len() - line.trim_start().len();
        if text.is_empty() {
            parts.push(HelpParagraphCommandOrEntry::Blank);
        } else if indent == 0 {
            match parts.last_mut() {
                Some(HelpParagraphCommandOrEntry::Paragraph(paragraph)) => {
                    paragraph.push(' ');
                    paragraph.push_str(text);
                }
                _ => parts.push(HelpParagraphCommandOrEntry::Paragraph(text.to_owned())),
            }
        } else if indent > 2 {
            parts.push(HelpParagraphCommandOrEntry::MoreOfEntry(text.to_owned()));
        } else if let Some((name, text)) = text
            .split_once(": ")
            .filter(|(name, _)| !name.contains(' '))
        {
            parts.push(HelpParagraphCommandOrEntry::Entry(
                name.to_owned(),
                text.to_owned(),
            ));
        } else {
            let mut command = text.to_owned();
            while let Some(begun) = command.strip_suffix('\\') {
                let next = lines.next().unwrap_or_default().trim();
                command = format!("{} {next}", begun.trim_end());
            }
            parts.push(HelpParagraphCommandOrEntry::Command(command));
        }
    }
    parts
}

#[cfg(test)]
mod tests;
