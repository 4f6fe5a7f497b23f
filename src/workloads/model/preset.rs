//! The built-in models, and the search for a model file by preset name or path.

use super::hub_name::{is_hub_name, nearest_preset};
use super::{Model, ModelError, ModelWithDefinitionProperties, TokenAndLayerCountOverrides};
use chakram_base::config::{ConfigDocument, STANDARD_INPUT, read_file_or_standard_input};
use std::borrow::Cow;
use std::io::ErrorKind;

/// A built-in model.
#[derive(Clone, Copy, Debug)]
pub struct ModelPreset {
    /// Name of the preset, as users write it.
    pub name: &'static str,
    /// Text of the model file. Its comments give the source of every number.
    pub text: &'static str,
}

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        /// All presets, sorted by family and then by size.
        pub const PRESETS: &[ModelPreset] = &[$(ModelPreset {
            name: $name,
            text: include_str!(concat!("presets/", $name, ".toml")),
        }),*];
    };
}

presets!(
    "gpt2-small",
    "gpt2-medium",
    "gpt2-large",
    "gpt2-xl",
    "chatgpt-star",
    "gpt3-125m",
    "gpt3-350m",
    "gpt3-760m",
    "gpt3-1.3b",
    "gpt3-2.7b",
    "gpt3-6.7b",
    "gpt3-13b",
    "gpt3-175b",
    "megatron-1.7b",
    "megatron-3.6b",
    "megatron-7.5b",
    "megatron-18.4b",
    "megatron-39.1b",
    "megatron-76.1b",
    "megatron-145.6b",
    "megatron-310.1b",
    "megatron-529.6b",
    "megatron-1t",
    "megatron-22b",
    "megatron-175b",
    "bert-base",
    "bert-large",
    "megatron-bert",
    "llama2-7b",
    "llama2-13b",
    "llama2-70b",
    "llama3-8b",
    "llama3-70b",
    "llama3-405b",
    "mixtral-8x7b",
    "mixtral-8x22b",
    "mixtral-8x22b-v0.3",
    "grok-1",
    "deepseek-v2-lite",
    "deepseek-v2",
    "deepseek-v3",
    "kimi-k2",
    "gpt-oss-20b",
    "gpt-oss-120b",
    "llama4-scout",
    "llama4-maverick",
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen3-4b",
    "qwen3-8b",
    "qwen3-14b",
    "qwen3-32b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "qwen3-next-80b-a3b",
    "qwen3.5-397b-a17b",
    "vit-b-16",
    "vit-l-16",
    "vit-h-14",
    "resnet-18",
    "resnet-50",
    "resnet-152",
    "vgg-11",
    "vgg-13",
    "vgg-16",
    "vgg-19",
    "alexnet",
    "lenet-5",
    "dlrm",
);

/// Text of a model file, and the file's name for error messages.
#[derive(Clone, Debug)]
pub struct PresetOrModelFileText {
    /// Name of the preset, or the path as the user gave it.
    pub file: String,
    /// Contents of the model file.
    pub text: Cow<'static, str>,
}

impl PresetOrModelFileText {
    /// Finds the model file that `name` refers to. A name that contains a `/` or ends in `.toml` or
    /// `.json` is a path; any other name is a preset.
    ///
    /// # Errors
    ///
    /// Fails if there is no such preset, or if the file cannot be read.
    pub fn find_source(name: &str) -> Result<Self, ModelError> {
        let is_file = name.ends_with(".toml") || name.ends_with(".json");
        if name.contains('/') || is_file || name == STANDARD_INPUT {
            let text = read_file_or_standard_input(name).map_err(|source| {
                if is_hub_name(name) && source.kind() == ErrorKind::NotFound {
                    let closest = nearest_preset(name, PRESETS.iter().map(|preset| preset.name));
                    let name = name.chars().take(80).collect();
                    return ModelError::OnHub { name, closest };
                }
                ModelError::Read {
                    file: name.to_owned(),
                    source,
                }
            })?;
            return Ok(Self {
                file: name.to_owned(),
                text: Cow::Owned(text),
            });
        }
        match PRESETS.iter().find(|preset| preset.name == name) {
            Some(preset) => Ok(Self {
                file: name.to_owned(),
                text: Cow::Borrowed(preset.text),
            }),
            None => Err(ModelError::Unknown {
                // Shorten the name, so that a very long argument does not flood the message.
                name: name.chars().take(80).collect(),
                closest: nearest_preset(name, PRESETS.iter().map(|preset| preset.name)),
            }),
        }
    }

    /// Parses the text. If `tokens` is given, it replaces the file's number of tokens per sample.
    ///
    /// # Errors
    ///
    /// Fails if the model is invalid, or if its samples cannot have this number of tokens.
    pub fn parse_definition(
        &self,
        tokens: Option<u64>,
    ) -> Result<ModelWithDefinitionProperties, ModelError> {
        ModelWithDefinitionProperties::parse(&self.text, &self.file, tokens)
    }

    /// Parses the text; `sizes` replace the sizes in the file.
    ///
    /// # Errors
    ///
    /// Fails if the model is invalid, or if it cannot have these sizes.
    pub fn parse_definition_with_sizes(
        &self,
        sizes: TokenAndLayerCountOverrides,
    ) -> Result<ModelWithDefinitionProperties, ModelError> {
        ModelWithDefinitionProperties::parse_with_sizes(&self.text, &self.file, sizes)
    }

    /// Returns the size that the key `key` (`hidden`, `heads`, `kv_heads`, `ffn` or `vocabulary`) gives for a
    /// transformer over tokens or patches. Returns `None` if it has no such size.
    ///
    /// # Errors
    ///
    /// Fails if the text is invalid.
    pub fn size_stated_for_key(&self, key: &str) -> Result<Option<u64>, ModelError> {
        let document = ConfigDocument::parse(&self.text, &self.file)?;
        let root = document.unchecked_root();
        let own = |key: &str| root.get(key).and_then(|field| field.as_whole_number());
        Ok(own(key).or_else(|| match key {
            "kv_heads" => own("heads"),
            "ffn" => own("hidden").map(|hidden| hidden.saturating_mul(4)),
            _ => None,
        }))
    }
}

impl Model {
    /// Loads the model `name`: a path if it contains a `/` or ends in `.toml` or `.json`, otherwise
    /// a preset.
    ///
    /// # Errors
    ///
    /// Fails if there is no such preset, or if the file cannot be read or is invalid.
    pub fn load_named(name: &str) -> Result<Self, ModelError> {
        Ok(PresetOrModelFileText::find_source(name)?
            .parse_definition(None)?
            .model)
    }

    /// Loads a model as [`Model::load_named`] does, but with `tokens` tokens per sample. A position table keeps its
    /// size, so it must have at least `tokens` rows.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Model::load_named`]; also fails if the model's samples cannot have this number of
    /// tokens.
    pub fn load_with_token_count(name: &str, tokens: u64) -> Result<Self, ModelError> {
        Ok(PresetOrModelFileText::find_source(name)?
            .parse_definition(Some(tokens))?
            .model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_model_names_are_refused_with_the_nearest_preset() {
        let error = |name: &str| Model::load_named(name).unwrap_err().to_string();
        let unknown = error("llama3-8");
        let line = "no model is called \"llama3-8\"; did you mean `llama3-8b`?\n  try: a preset";
        assert!(unknown.starts_with(line), "{unknown}");
        assert!(error("laptop").starts_with("no model is called \"laptop\"\n  try: a preset"));
        assert_eq!(error("./none.toml"), "cannot read model file ./none.toml");
        let hub = error("meta-llama/Llama-3.1-8B");
        assert!(
            hub.starts_with("no file is called meta-llama/Llama-3.1-8B")
                && hub.contains("the nearest preset is `llama3-8b`"),
            "{hub}"
        );
        assert!(!error("tiiuae/falcon-7b").contains("nearest"));
        assert!(error(&"x".repeat(10_000)).len() < 300);
        assert!(error(&format!("x/{}", "x".repeat(250))).len() < 300);
    }

    #[test]
    fn model_file_is_loaded_by_path() {
        let known = PRESETS
            .iter()
            .find(|preset| preset.name == "llama3-8b")
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine.toml");
        let text = known.text.replace("layers = 32", "layers = 3");
        assert_ne!(text, known.text);
        std::fs::write(&path, text).unwrap();
        // The model has 2 x 128256 x 4096 + 3 x 218,112,000 + 4096 parameters.
        let mine = Model::load_named(path.to_str().unwrap()).unwrap();
        assert_eq!(
            mine.parameter_count(),
            1_050_673_152 + 3 * 218_112_000 + 4_096
        );
    }
}
