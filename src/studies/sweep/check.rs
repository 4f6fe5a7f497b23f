//! Loads studies. [`load_study_with_hash`] parses a study, and checks and hashes it together with the files that it
//! names.

use super::evaluate::PointEvaluator;
use super::point::PointRefusal;
use super::setting::{
    SettingKind, kind_of_setting, option_value_arguments, parse_tokens_per_sample,
};
use super::study::{PointLimits, Study};
use chakram_base::config::{self, ConfigError, ConfigLiteral};
use chakram_base::setting::SettingKey;
use chakram_hardware::machine;
use chakram_jobs::ReplaySettings;
use chakram_workloads::model::PresetOrModelFileText;
use std::path::{Path, PathBuf};

/// Reason why a study is rejected.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// A file cannot be read.
    #[error("cannot read study {}", .path.display())]
    Read {
        /// Path of the file that cannot be read.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The study itself is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The machine, model, plan or replay that a value configures rejects it.
    #[error("{file}:{line}: {key} = {value}: {why}")]
    Value {
        /// Name of the study file.
        file: String,
        /// Line in the file, counting from 1.
        line: usize,
        /// Key with the rejected value.
        key: String,
        /// The rejected value.
        value: String,
        /// The reason why the value is rejected.
        why: String,
    },
}

/// Loads the study at `path`. Returns the study, and one hash over it and the files that it names.
///
/// # Errors
///
/// Fails if the study cannot be read, or has an unknown key or value.
pub fn load_study_with_hash(path: &Path) -> Result<(Study, String), StudyError> {
    let text = config::read_file_or_standard_input(path).map_err(|source| StudyError::Read {
        path: path.to_owned(),
        source,
    })?;
    let file = path.display().to_string();
    let study = Study::parse(&text, &file)?;
    reject_always_invalid_axis_values(&study, &text, &file)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(env!("CARGO_PKG_VERSION").as_bytes());
    hasher.update(text.as_bytes());
    for (key, value) in iter_all_keys_and_values(&study) {
        let name = value.to_string();
        let text = match key {
            "machine" | "recorded_on" => machine::find_machine_text(&name)
                .ok()
                .map(|source| source.text),
            "stack" if name.contains('/') || name.ends_with(".toml") => {
                config::read_file_or_standard_input(&name)
                    .ok()
                    .map(Into::into)
            }
            "model" => PresetOrModelFileText::find_source(&name)
                .ok()
                .map(|source| source.text),
            "groups" => chakram_jobs::read_text(Path::new(&name))
                .ok()
                .map(Into::into),
            _ => None,
        };
        if let Some(text) = text {
            hasher.update(text.as_bytes());
        }
        if let Ok(SettingKind::Option(option)) = kind_of_setting(key)
            && option.key == SettingKey::Custom
        {
            let words = option_value_arguments(option, value);
            let settings = ReplaySettings::parse_settings([(option.key, &words[..])]);
            let mut inputs = Vec::new();
            if let Ok(settings) = settings
                && settings.replay_options(Some(&mut inputs)).is_ok()
            {
                for input in &inputs {
                    hasher.update(input.blake3.as_bytes());
                }
            }
        }
    }
    Ok((study, hasher.finalize().to_hex().to_string()))
}

/// Returns every key that the base settings or an axis set, with each of its values.
fn iter_all_keys_and_values(study: &Study) -> impl Iterator<Item = (&str, &ConfigLiteral)> {
    let base = study.base.iter().map(|(key, value)| (key.as_str(), value));
    let axes = study.axes.iter().flat_map(|axis| {
        let values = axis.values.iter();
        values.flat_map(|values| axis.keys.iter().map(String::as_str).zip(values))
    });
    base.chain(axes)
}

/// Rejects values that are invalid at every point. Each value is tried with the first values of all other axes, and
/// without limits. A value that is invalid only in some combinations is not an error here: the sweep later rejects the
/// points with these combinations.
fn reject_always_invalid_axis_values(
    study: &Study,
    text: &str,
    file: &str,
) -> Result<(), StudyError> {
    let lenient = Study {
        limits: PointLimits::default(),
        ..study.clone()
    };
    let evaluator = PointEvaluator::new(&lenient);
    let mut first = super::setting::Settings::new();
    for axis in &study.axes {
        first.extend(
            axis.keys
                .iter()
                .cloned()
                .zip(axis.values[0].iter().cloned()),
        );
    }
    // Do not try plan options as part of a point, because the first value of a plan axis or option may be impossible
    // for the model.
    let alone = |key: &str| !matches!(kind_of_setting(key), Ok(SettingKind::Plan(_)));
    let refuse = |key: &str, value: &ConfigLiteral, why: String| StudyError::Value {
        line: find_line_of_setting(text, key, value),
        file: file.to_owned(),
        key: key.to_owned(),
        value: value.to_string(),
        why,
    };
    for (key, value) in iter_all_keys_and_values(study) {
        if let Ok(SettingKind::Plan(option)) = kind_of_setting(key) {
            let mut draft = chakram_workloads::generate::plan::PlanDraft::new(
                chakram_workloads::generate::ParallelismPlan::new(),
            );
            let words = value.to_string();
            let words: Vec<String> = match option.is_list {
                true => words.split(',').map(str::to_owned).collect(),
                false => vec![words],
            };
            (option.set)(&mut draft, &words).map_err(|why| refuse(key, value, why))?;
        }
        if let Ok(SettingKind::Option(option)) = kind_of_setting(key) {
            let checked = option.check_words(&option_value_arguments(option, value));
            checked.map_err(|why| refuse(key, value, why))?;
        }
        if key == "tokens" {
            let tokens = parse_tokens_per_sample(value);
            tokens.map_err(|why| refuse(key, value, why.to_owned()))?;
        }
        if matches!(kind_of_setting(key), Ok(SettingKind::Rate))
            && value.as_number().is_none_or(|n| n < 0.0)
        {
            return Err(refuse(
                key,
                value,
                "expected a number that is not negative".to_owned(),
            ));
        }
    }
    // Check the settings that all points share, with the axes' first machine, model, stack and trace.
    let mut names = first.clone();
    names.retain(|key, _| matches!(key.as_str(), "machine" | "model" | "stack" | "trace"));
    let keys = || study.axes.iter().flat_map(|axis| &axis.keys);
    let of_options = |key: &String| {
        matches!(
            kind_of_setting(key),
            Ok(SettingKind::Option(_) | SettingKind::Machine(_))
        ) || key == "machine"
    };
    if let Err(refusal) = evaluator.resolve_point(&names)
        && !is_caused_by_plan_combination(&refusal)
        && !(refusal.is_option && keys().any(of_options))
    {
        let unnamed = refusal.detail.starts_with("no ") || refusal.detail.starts_with("cannot");
        let inner = format!("{}.", refusal.reason);
        let edit = || study.base.iter().find(|(key, _)| key.starts_with(&inner));
        let own = || {
            names
                .get_key_value(&refusal.reason)
                .or(study.base.get_key_value(&refusal.reason))
        };
        let blamed = if unnamed { own() } else { edit().or_else(own) };
        if let Some((key, value)) = blamed {
            return Err(refuse(key, value, refusal.detail));
        }
    }
    // Check each value with the first values of the other axes. If keys depend on each other,
    // report the first rejection.
    for axis in &study.axes {
        if !axis.keys.iter().all(|key| alone(key)) {
            continue;
        }
        for values in axis.representative_values_to_check() {
            let mut point = first.clone();
            point.extend(axis.keys.iter().cloned().zip(values.iter().cloned()));
            if let Err(refusal) = evaluator.resolve_point(&point)
                && !is_caused_by_plan_combination(&refusal)
                && !refusal.is_option
            {
                let of = axis.keys.iter().zip(values);
                let (key, value) = of
                    .clone()
                    .find(|(key, _)| refusal.reason == **key)
                    .or(of.clone().next())
                    .expect("axes have keys");
                return Err(refuse(key, value, refusal.detail));
            }
        }
    }
    Ok(())
}

/// Returns true if the rejection is due to several values of the plan together. Other combinations may then be valid.
fn is_caused_by_plan_combination(refusal: &PointRefusal) -> bool {
    refusal.reason.starts_with("plan.") || refusal.reason == "size"
}

/// Returns the line, counted from 1, on which `text` sets a key or lists one of its values.
fn find_line_of_setting(text: &str, key: &str, value: &ConfigLiteral) -> usize {
    let last = key.rsplit('.').next().unwrap_or(key);
    let value = value.to_string();
    let has = |line: &str, what: &str| {
        line.match_indices(what).any(|(at, _)| {
            let word = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
            !line[..at].ends_with(word) && !line[at + what.len()..].starts_with(word)
        })
    };
    let lines = || (1..).zip(text.lines());
    let keyed = lines().find(|(_, line)| {
        has(line, key) || (has(line, last) && line.contains('=') && has(line, &value))
    });
    let start = keyed.map_or(1, |(number, _)| number);
    // A key's list of values may continue on later lines, so search from the key's line on.
    let below = lines().skip(start - 1).find(|(_, line)| has(line, &value));
    below.map_or(start, |(number, _)| number)
}
