//! Parses the words of options.

use super::MachineValueChange;
use crate::CustomCollectiveAlgorithmFiles;
use chakram_analysis::edit::JobEdit;
use chakram_base::config::{self, ConfigDocument, ConfigLiteral};
use chakram_base::ids::{MAX_NPUS, Npu, Rank};
use chakram_base::setting::EnumeratedSetting;
use chakram_base::units::Span;
use chakram_hardware::compute::KernelDurationSource;
use chakram_hardware::machine::Machine;
use chakram_trace::format::CollectiveKind;
use std::path::Path;

/// Parses `words`, which must be a single word.
pub(super) fn parse_single_word<T>(
    words: &[String],
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, String> {
    match words {
        [word] => read(word),
        _ => Err("expected one value".to_owned()),
    }
}

/// Parses each word.
pub(super) fn parse_each_word<T>(
    words: &[String],
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    words.iter().map(|word| read(word)).collect()
}

/// Parses the word of a choice. Hyphens and underscores are equivalent.
pub(super) fn parse_choice<T: EnumeratedSetting>(words: &[String]) -> Result<T, String> {
    parse_single_word(words, |word| T::parse_named_choice(&word.replace('-', "_")))
}

pub(super) fn choice_words_and_summaries<T: EnumeratedSetting>() -> Vec<(&'static str, &'static str)>
{
    let all = T::CHOICES.iter();
    all.map(|(_, word, summary)| (*word, *summary)).collect()
}

pub(super) fn parse_text(word: &str) -> Result<String, String> {
    match word {
        "" => Err("expected a text".to_owned()),
        _ => Ok(word.to_owned()),
    }
}

pub(super) fn parse_flag(word: &str) -> Result<bool, String> {
    (word.parse()).map_err(|_| "expected true or false".to_owned())
}

pub(super) fn parse_recorded_kernel_duration_source(
    text: &str,
) -> Result<KernelDurationSource, String> {
    if text == "capture" {
        return Ok(KernelDurationSource::RecordedOnDevices);
    }
    let machine = Machine::load_by_name(text).map_err(|error| error.to_string())?;
    let [class] = machine.npu_classes() else {
        let count = machine.npu_classes().len();
        return Err(format!(
            "the machine has {count} NPU classes; expected a machine with only the class on which kernels were recorded"
        ));
    };
    let recording = class.to_recording_class().ok_or_else(|| {
        format!(
            "the machine describes no NPU; expected a machine with the class on which kernels were recorded, such as h100:{text}"
        )
    })?;
    Ok(KernelDurationSource::RecordedOn(recording))
}

/// Parses the NPUs of ranks 0, 1, …, as numbers and ranges: `0-3,8-11`.
///
/// # Errors
///
/// Fails with the invalid part of the text, or with a message that no machine has that many NPUs.
pub fn parse_npus(text: &str) -> Result<Vec<Npu>, String> {
    let mut map = Vec::new();
    for part in text.split(',') {
        let number = |t: &str| {
            let wrong = || format!("`{t}` in `{part}` is not an NPU; write for example 0-3,8-11");
            t.trim().parse::<u32>().map_err(|_| wrong())
        };
        let (from, to) = match part.split_once('-') {
            Some((from, to)) => (number(from)?, number(to)?),
            None => (number(part)?, number(part)?),
        };
        if from > to || to >= chakram_hardware::topology::Topology::MAX_NPUS {
            return Err(format!("`{part}` is not a range of NPUs"));
        }
        map.extend((from..=to).map(Npu));
        if map.len() > chakram_hardware::topology::Topology::MAX_NPUS as usize {
            return Err("more entries than a machine can have NPUs".to_owned());
        }
    }
    Ok(map)
}

pub(super) fn parse_rank_count(text: &str) -> Result<u32, String> {
    let ranks = text.parse().ok();
    ranks
        .filter(|ranks| (1..=MAX_NPUS).contains(ranks))
        .ok_or_else(|| format!("expected a number of ranks from 1 to {MAX_NPUS}"))
}

pub(super) fn parse_step_number(text: &str) -> Result<u64, String> {
    let step = text.parse();
    step.map_err(|_| "expected the number of a step, as in the profiler".to_owned())
}

pub(super) fn parse_rank_delay(text: &str) -> Result<(u32, Span), String> {
    let (rank, span) = text
        .split_once('=')
        .ok_or("expected RANK=TIME, for example 3=10ms")?;
    let rank = rank
        .parse()
        .map_err(|_| format!("`{rank}` is not a rank"))?;
    Ok((rank, span.parse::<Span>().map_err(|e| e.to_string())?))
}

/// Parses one edit, or a file of edits. If `text` ends in `.toml`, it is the name of a file of
/// edits: `edits = ["batch=2x"]`.
///
/// # Errors
///
/// Fails with a description of the expected text.
pub fn parse_edit_or_edits_file(text: &str) -> Result<Vec<JobEdit>, String> {
    if !text.ends_with(".toml") {
        return Ok(vec![text.parse()?]);
    }
    let contents = config::read_file_or_standard_input(Path::new(text))
        .map_err(|error| format!("cannot read {text}: {error}"))?;
    let document = ConfigDocument::parse(&contents, text).map_err(|error| error.to_string())?;
    let root = document
        .root_table_with_allowed_keys(&["edits"])
        .map_err(|error| error.to_string())?;
    let field = root
        .require_field("edits", "a list of edits")
        .map_err(|error| error.to_string())?;
    let items = field
        .read_array_items("a list of edits")
        .map_err(|error| error.to_string())?;
    let edits = items.iter().map(|item| {
        let text = item.read_text("an edit such as \"batch=2x\"");
        text.map_err(|error| error.to_string())?.parse()
    });
    edits.collect()
}

/// Parses `RANK=FACTOR`.
pub(super) fn parse_slow_rank(text: &str) -> Result<(Rank, f64), String> {
    let expected = || "expected RANK=FACTOR, for example 3=1.2".to_owned();
    let (rank, factor) = text.split_once('=').ok_or_else(expected)?;
    let rank = rank
        .trim()
        .parse()
        .map_err(|_| format!("`{rank}` is not a rank"))?;
    let factor = factor.strip_suffix('x').unwrap_or(factor);
    let factor = factor.parse::<f64>().map_err(|_| expected())?;
    match factor.is_finite() && factor > 0.0 {
        true => Ok((Rank(rank), factor)),
        false => Err(format!("the factor {factor} is not above 0")),
    }
}

/// Parses `machine.PATH=VALUE`.
pub(super) fn parse_machine_value_change(text: &str) -> Result<MachineValueChange, String> {
    let expected =
        "expected machine.KEY=VALUE, for example machine.dimension.nvlink.bandwidth=900GB/s";
    let (path, value) = text.split_once('=').ok_or(expected)?;
    let path = path
        .trim()
        .strip_prefix("machine.")
        .filter(|path| !path.is_empty());
    let path =
        path.ok_or_else(|| format!("{expected}; keys of the machine begin with `machine.`"))?;
    Ok(MachineValueChange {
        path: path.to_owned(),
        value: ConfigLiteral::from_word(value.trim()),
    })
}

/// Parses `KIND=PREFIX`.
pub(super) fn parse_custom_algorithm_prefix(
    text: &str,
) -> Result<CustomCollectiveAlgorithmFiles, String> {
    let (name, prefix) = text
        .split_once('=')
        .filter(|(_, prefix)| !prefix.is_empty())
        .ok_or("expected KIND=PREFIX, for example all-reduce=ring8")?;
    let wanted = name.replace('_', "-");
    let mut all = CollectiveKind::ALL.iter();
    let Some((kind, _, _)) = all.find(|(_, name, _)| *name == wanted) else {
        let all: Vec<_> = CollectiveKind::ALL.iter().map(|(_, n, _)| *n).collect();
        return Err(format!(
            "`{name}` is not a collective; expected one of {}",
            all.join(", ")
        ));
    };
    Ok(CustomCollectiveAlgorithmFiles {
        kind: *kind,
        prefix: prefix.into(),
    })
}
