//! Recognizes the inputs of other tools, and suggests the command that reads them.
//!
//! Every command accepts any path, and its reader describes errors in terms of the format that it expects. So this
//! module recognizes the format of an input only after a command has failed. If the failing path is on the command line
//! and holds another tool's format, this module replaces the error with one that names the format.

use crate::terminal::quote_shell_word;
use chakram_astra_sim::AstraInputKind;
use chakram_base::bounds;
use chakram_converters::nsys;
use chakram_converters::pytorch::HUB_CONFIGURATION;
use chakram_converters::sources::{ConvertibleOrForeignInput, TraceSource};
use chakram_trace::format::file::{DecompressedStream, parse_file_rank};
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Inputs that a command can read. All other inputs are foreign to the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadableInputs {
    /// chakram's own files: traces, machines, tables.
    Own,
    /// chakram's own files and Hugging Face models.
    Models,
    /// chakram's own files and ASTRA-sim's files.
    AstraSim,
    /// Files that the given source of traces reads.
    Source(TraceSource),
    /// Files that any source of traces reads.
    AnySource,
}

/// Returns a better error to print if `error` concerns an input that the command line `words` names but that is not
/// `readable`.
pub fn explain_input_error(
    error: &(dyn Error + 'static),
    words: &[OsString],
    readable: ReadableInputs,
) -> Option<String> {
    // Recognition needs memory, so keep the original error if little memory is left.
    if bounds::remaining_bytes() < NEEDED {
        return None;
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text += "\n";
        text += &inner.to_string();
        cause = inner.source();
    }
    if let Some(text) = words
        .iter()
        .skip(1)
        .find_map(|word| advise_on_address(split_option(word).1))
    {
        return Some(text);
    }
    let mut machines = words.iter().skip(1).filter_map(|word| word.to_str());
    if text.contains(MACHINE_UNKNOWN)
        && let Some(list) = machines.find(|word| is_comma_separated_preset_list(word))
    {
        let each = list.split(',').map(|name| format!(" --machine {name}"));
        return Some(format!(
            "{list}: these are several machines, but the option takes one name\n  try: chakram replay TRACES{}, \
             which compares them; other commands take one at a time",
            each.collect::<String>()
        ));
    }
    let inputs = existing_inputs(words);
    let named = inputs.iter().filter(|path| text_names_path(&text, path));
    // Choose the longest path, because the command line may name both a folder and a file in it.
    let path = named.max_by_key(|path| path.as_os_str().len())?;
    describe_kind_and_reading_command(path, readable)
}

/// Text that the error about an unknown machine contains.
const MACHINE_UNKNOWN: &str = "no machine is called";

/// Returns true if a word is a list of machines, separated by commas.
fn is_comma_separated_preset_list(word: &str) -> bool {
    word.contains(',') && word.split(',').all(chakram_hardware::machine::is_preset)
}

/// Returns advice for a word that is an address on another computer.
fn advise_on_address(word: &OsStr) -> Option<String> {
    let word = word.to_str()?;
    let (scheme, _) = word.split_once("://")?;
    let shell = quote_shell_word(word);
    if scheme.is_empty() || !scheme.chars().all(|c| c.is_ascii_alphanumeric()) {
        return None;
    }
    let fetch = match scheme {
        "s3" => format!("aws s3 cp --recursive {shell} job"),
        "gs" => format!("gcloud storage cp --recursive {shell} job"),
        "http" | "https" => format!("curl -LO {shell}"),
        "file" => format!(
            "the path alone, {}",
            quote_shell_word(word.trim_start_matches("file://"))
        ),
        _ => "a copy on this computer".to_owned(),
    };
    Some(format!(
        "{word}: this is an address, but only files on this computer can be read\n  try: {fetch}"
    ))
}

/// Memory in bytes that recognition may need: several times the part of a file that it reads.
const NEEDED: u64 = 32 << 20;

/// Returns the kind of the input `path`, and the command that reads it. Returns `None` if the kind
/// is unknown or `readable`.
pub fn describe_kind_and_reading_command(path: &Path, readable: ReadableInputs) -> Option<String> {
    let word = quote_shell_word(&path.to_string_lossy());
    if readable != ReadableInputs::AstraSim
        && let Some(kind) = detect_astra_sim_input_kind(path)
    {
        let (noun, option, network) = match kind {
            AstraInputKind::Network => ("a network file", "network-configuration", ""),
            AstraInputKind::System => ("a system file", "system-configuration", "NETWORK.yml "),
            AstraInputKind::RemoteMemory => (
                "a memory file",
                "remote-memory-configuration",
                "NETWORK.yml ",
            ),
        };
        return Some(format!(
            "{}: this is {noun} of ASTRA-sim\n  try: chakram machine import {network}{word} -o machine.toml, a machine for other commands; or \
             chakram astra-sim --{option} {word}, with the other files of its run",
            path.display()
        ));
    }
    let (noun, hint) = match ConvertibleOrForeignInput::recognize_file(path)? {
        ConvertibleOrForeignInput::Foreign(_) if readable == ReadableInputs::AnySource => {
            return None;
        }
        // Keep the original error, because the Nsight reader already says what the database lacks.
        ConvertibleOrForeignInput::Foreign(_)
            if readable == ReadableInputs::Source(TraceSource::Nsys)
                && nsys::is_sqlite_database(path) =>
        {
            return None;
        }
        // Keep the original error, because it names the model key that cannot be read.
        ConvertibleOrForeignInput::Foreign(HUB_CONFIGURATION)
            if readable == ReadableInputs::Models =>
        {
            return None;
        }
        ConvertibleOrForeignInput::Foreign(found) => (found, None),
        ConvertibleOrForeignInput::Source(source) => {
            let is_readable = match readable {
                ReadableInputs::AnySource => true,
                // `convert goal` also reads traces, because it converts their messages to GOAL.
                ReadableInputs::Source(TraceSource::Goal) if source == TraceSource::Trace => true,
                ReadableInputs::Source(own) => own == source,
                ReadableInputs::Own | ReadableInputs::Models | ReadableInputs::AstraSim => {
                    source == TraceSource::Trace && !is_trace_named_without_rank(path)
                }
            };
            if is_readable {
                return None;
            }
            (
                source.input_noun_phrase(),
                Some(conversion_command(source, &word)),
            )
        }
    };
    let hint = hint.map_or(String::new(), |hint| format!("\n  try: {hint}"));
    Some(format!("{}: this is {noun}{hint}", path.display()))
}

/// Returns a command line that converts an input of `source`.
fn conversion_command(source: TraceSource, input: &str) -> String {
    // Some commands have options without a default, so the suggestion includes a placeholder for them.
    let (options, output) = match source {
        TraceSource::Text => (" --npus N", "job"),
        TraceSource::Msccl => (" --size SIZE", "job"),
        TraceSource::Trace => ("", "job.0.et"),
        _ => ("", "job"),
    };
    format!(
        "chakram convert {} {input}{options} -o {output}",
        source.source_command_word()
    )
}

/// Returns true if the file's name has a trace's ending but no rank. An entry of an archive can also be a trace, but it
/// is not a file.
fn is_trace_named_without_rank(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return false;
    };
    let plain = name.trim_end_matches(".gz").trim_end_matches(".zst");
    let endings = [".et", ".eg", ".json", ".jsonl"];
    path.is_file()
        && parse_file_rank(name).is_none()
        && endings.iter().any(|end| plain.ends_with(end))
}

/// Returns the paths on the command line that exist and are not outputs.
fn existing_inputs(words: &[OsString]) -> Vec<PathBuf> {
    let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
    let mut is_output = false;
    for word in words.iter().skip(1) {
        let (option, value) = split_option(word);
        if let Some(option) = option {
            is_output = is_output_option(option);
        }
        let value = PathBuf::from(value);
        if is_output {
            outputs.push(value);
        } else if value.exists() {
            inputs.push(value);
        }
        is_output = is_output_option(&word.to_string_lossy());
    }
    // Omits a file that is both input and output, because the error already says that it would be overwritten.
    inputs.retain(|path| !outputs.contains(path));
    inputs
}

/// Splits `--option=value` into option and value. Returns a word as a value if it is not an option.
fn split_option(word: &OsStr) -> (Option<&str>, &OsStr) {
    let both = word.to_str().and_then(|text| text.split_once('='));
    match both.filter(|(option, _)| option.starts_with("--")) {
        Some((option, value)) => (Some(option), OsStr::new(value)),
        None => (None, word),
    }
}

fn is_output_option(word: &str) -> bool {
    matches!(word, "-o" | "--output" | "--timeline" | "--html" | "--save")
}

/// Returns true if `text` names `path`, or a file inside it. A longer path that merely includes the text of `path` does
/// not count.
fn text_names_path(text: &str, path: &Path) -> bool {
    let name = path.to_string_lossy();
    let name = name.trim_end_matches('/');
    if name.is_empty() {
        return false;
    }
    // `.` and `..` count as paths only before a slash or a colon, because sentences also end in
    // dots.
    let is_dots = name == "." || name == "..";
    let is_of_path = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '-' | '_');
    text.match_indices(name).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let mut after = text[at + name.len()..].chars();
        let next = after.next();
        let ends_sentence = next == Some('.') && !after.next().is_some_and(is_of_path);
        let ends = match is_dots {
            true => matches!(next, Some('/' | ':')),
            false => next == Some('/') || ends_sentence || !next.is_some_and(is_of_path),
        };
        !before.is_some_and(is_of_path) && ends
    })
}

/// Maximum size in bytes of a file that is recognized as an ASTRA-sim input; such files are small, because people write
/// them by hand.
const MAX_ASTRA_SIM: u64 = 1 << 16;

fn detect_astra_sim_input_kind(path: &Path) -> Option<AstraInputKind> {
    if !path.is_file() || path.metadata().ok()?.len() > MAX_ASTRA_SIM {
        return None;
    }
    let mut text = String::new();
    let stream = DecompressedStream::open_path(path).ok()?;
    stream.take(MAX_ASTRA_SIM).read_to_string(&mut text).ok()?;
    AstraInputKind::classify_text(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_named_as_whole_words() {
        for (text, named) in [
            ("k.json: no usable traces", true),
            ("no machine is called \"k.json\"", true),
            ("cannot read k.json.", true),
            ("k.json/0.et: damaged", true),
            ("k.json.gz: damaged", false),
            ("kk.json: damaged", false),
            ("a/k.json: damaged", false),
        ] {
            assert_eq!(text_names_path(text, Path::new("k.json")), named, "{text}");
        }
        for (text, named) in [
            (".: no usable traces", true),
            ("./0.et: damaged", true),
            ("cannot read a.b. Try another: c.", false),
            ("..: no usable traces", false),
        ] {
            assert_eq!(text_names_path(text, Path::new(".")), named, "{text}");
        }
    }

    #[test]
    fn existing_inputs_leave_out_paths_given_as_outputs() {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("k.json");
        std::fs::write(&path, "{}").expect("there is room");
        let path = path.into_os_string();
        let words = |option: &str| ["chakram", "replay", option].map(OsString::from).to_vec();
        let with = |option| [words(option), vec![path.clone()]].concat();
        assert_eq!(existing_inputs(&with("-o")), Vec::<PathBuf>::new());
        assert_eq!(existing_inputs(&with("-m")), [PathBuf::from(&path)]);
        let both = [with("-m"), vec!["-o".into(), path.clone()]].concat();
        assert_eq!(existing_inputs(&both), Vec::<PathBuf>::new());
        let joined = format!("--machine={}", Path::new(&path).display());
        assert_eq!(existing_inputs(&words(&joined)), [PathBuf::from(&path)]);
    }

    #[test]
    fn hints_can_be_pasted_into_a_shell() {
        assert_eq!(quote_shell_word("run/k.json"), "run/k.json");
        assert_eq!(quote_shell_word("my run"), "'my run'");
        assert_eq!(quote_shell_word("it's"), r"'it'\''s'");
    }
}
