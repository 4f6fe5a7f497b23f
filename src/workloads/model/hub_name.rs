//! Names of models on hubs, such as `meta-llama/Llama-3.1-8B-Instruct`, and the preset nearest to a
//! name.

use chakram_base::config::find_most_similar_name;

/// Returns true if `name` has the form of a name on a hub, `OWNER/MODEL`, and is not a relative
/// path.
pub(super) fn is_hub_name(name: &str) -> bool {
    let is_plain = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '~'])
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    !name.ends_with(".toml")
        && !name.ends_with(".json")
        && name
            .split_once('/')
            .is_some_and(|(owner, model)| is_plain(owner) && is_plain(model))
}

/// Returns the preset that matches `name`. If several presets match, returns the one with the most parts in its name.
/// Without a match, returns the first preset whose name begins with the parts of `name`. If there is no such preset
/// either, returns the preset with the most similar spelling.
pub(super) fn nearest_preset<'n>(
    name: &str,
    all: impl IntoIterator<Item = &'n str>,
) -> Option<&'n str> {
    let name: String = name.chars().take(80).collect();
    let model = name.rsplit('/').next().unwrap_or_default();
    let parts = split_at_punctuation_and_numbers(model);
    let all: Vec<&str> = all.into_iter().collect();
    let mut best: Option<(usize, &str)> = None;
    for &preset in &all {
        let own = split_at_punctuation_and_numbers(preset);
        let is_better = best.is_none_or(|(count, _)| own.len() > count);
        if is_better && do_preset_parts_occur_in_order(&own, &parts) {
            best = Some((own.len(), preset));
        }
    }
    let begins = |preset: &&&str| {
        !parts.is_empty() && split_at_punctuation_and_numbers(preset).starts_with(&parts)
    };
    let found = best.map(|(_, preset)| preset);
    // The beginning of a preset's name (such as `mixtral`) may match, but a single letter must not.
    let found = found.or_else(|| all.iter().find(begins).copied().filter(|_| model.len() > 3));
    found.or_else(|| find_most_similar_name(model, all))
}

/// Splits a name at punctuation and before each number, so that `Llama-3.1-8B` becomes `llama`,
/// `3`, `1`, `8b`.
fn split_at_punctuation_and_numbers(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut last = ' ';
    for c in name.to_lowercase().chars() {
        if !c.is_alphanumeric() || c.is_ascii_digit() && last.is_alphabetic() && last != 'x' {
            parts.push(String::new());
        }
        if c.is_alphanumeric() {
            parts.last_mut().expect("there is one").push(c);
        }
        last = c;
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// Returns true if a preset's parts occur in a name in the same order. A single letter after the first part (the size
/// of a vision transformer) matches every word that begins with it.
fn do_preset_parts_occur_in_order(preset: &[String], name: &[String]) -> bool {
    let mut rest = name.iter();
    preset.iter().enumerate().all(|(index, part)| {
        rest.by_ref().any(|other| {
            let is_letter = part.len() == 1 && part.bytes().all(|b| b.is_ascii_alphabetic());
            part == other || index > 0 && is_letter && other.starts_with(part)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::PRESETS;

    #[test]
    fn names_on_hubs_have_a_nearest_preset() {
        for (name, preset) in [
            ("meta-llama/Llama-3.1-8B", Some("llama3-8b")),
            ("meta-llama/Meta-Llama-3-70B-Instruct", Some("llama3-70b")),
            ("meta-llama/Llama-2-13b-chat-hf", Some("llama2-13b")),
            ("meta-llama/Llama-3.1-405B-FP8", Some("llama3-405b")),
            ("mistralai/Mixtral-8x7B-v0.1", Some("mixtral-8x7b")),
            ("Qwen/Qwen3-30B-A3B", Some("qwen3-30b-a3b")),
            ("Qwen/Qwen3-32B", Some("qwen3-32b")),
            ("openai-community/gpt2-xl", Some("gpt2-xl")),
            ("openai-community/gpt2", Some("gpt2-small")),
            ("google-bert/bert-base-uncased", Some("bert-base")),
            ("google/vit-large-patch16-224", Some("vit-l-16")),
            ("microsoft/resnet-50", Some("resnet-50")),
            ("timm/vgg16.tv_in1k", Some("vgg-16")),
            ("EleutherAI/gpt-neo-1.3B", None),
            ("deepseek-ai/DeepSeek-V3", Some("deepseek-v3")),
            ("openai/gpt-oss-120b", Some("gpt-oss-120b")),
            ("tiiuae/falcon-7b", None),
            ("meta-llama/Llama-3.2-1B", None),
        ] {
            let names = PRESETS.iter().map(|preset| preset.name);
            assert!(is_hub_name(name), "{name}");
            assert_eq!(nearest_preset(name, names), preset, "{name}");
        }
        for name in [
            "./mine",
            "../a/b",
            "a/b/c",
            "my/model.toml",
            "/abs",
            "llama3-8b",
        ] {
            assert!(!is_hub_name(name), "{name}");
        }
    }
}
