//! Converts the tables of a model file to a [`ModelWithDefinitionProperties`]. Defines the file format and checks all
//! rules for models.

use super::{
    Model, ModelDefinitionForm, ModelError, ModelWithDefinitionProperties,
    TokenAndLayerCountOverrides,
};
use chakram_base::config::{ConfigDocument, ConfigError, ConfigField, ConfigTable};

mod chain;
mod hub_config;
mod operator;
mod transformer;
mod vit;

/// Maximum of each size in a model file.
const MOST: u64 = 1_000_000_000_000;

/// Maximum number of layers in a model.
const MOST_LAYERS: u64 = 20_000;

/// Keys that all model files have.
const COMMON: [&str; 3] = ["name", "source", "kind"];

impl ModelWithDefinitionProperties {
    /// Parses a model file. Error messages call the file `file`. If `tokens` is given, it replaces the file's number of
    /// tokens per sample.
    ///
    /// # Errors
    ///
    /// Fails if the model is invalid, or if its samples cannot have this number of tokens.
    pub fn parse(text: &str, file: &str, tokens: Option<u64>) -> Result<Self, ModelError> {
        Self::parse_with_sizes(
            text,
            file,
            TokenAndLayerCountOverrides {
                tokens,
                ..TokenAndLayerCountOverrides::default()
            },
        )
    }

    /// Parses a model file as [`parse`](Self::parse) does, but uses the caller's `sizes` instead of the file's.
    ///
    /// # Errors
    ///
    /// Fails if the model is invalid, or if it cannot have these sizes.
    pub fn parse_with_sizes(
        text: &str,
        file: &str,
        sizes: TokenAndLayerCountOverrides,
    ) -> Result<Self, ModelError> {
        parse_definition(text, file, sizes)
    }
}

/// Parses and checks the model in `text`. Error messages call the text `file`. The caller's `sizes`
/// replace the file's sizes.
fn parse_definition(
    text: &str,
    file: &str,
    sizes: TokenAndLayerCountOverrides,
) -> Result<ModelWithDefinitionProperties, ModelError> {
    let TokenAndLayerCountOverrides { tokens, layers } = sizes;
    if let Some(tokens) = tokens.filter(|tokens| !(1..=MOST).contains(tokens)) {
        return Err(ModelError::TokenCount {
            file: file.to_owned(),
            tokens,
            most: MOST,
        });
    }
    // A TOML file never starts with a brace, so this file is JSON.
    if text.trim_start().starts_with('{') {
        let (hidden, model) = hub_config::parse_hidden_size_and_model(text, file, sizes)?;
        check_counts_fit_64_bits(&model, file)?;
        return Ok(ModelWithDefinitionProperties {
            kind: ModelDefinitionForm::Transformer,
            hidden: Some(hidden),
            model,
        });
    }
    let document = ConfigDocument::parse(text, file)?;
    let kind = document
        .unchecked_root()
        .read_choice("kind", &ModelDefinitionForm::ALL)?;
    let keys = match kind {
        ModelDefinitionForm::Transformer => transformer::KEYS,
        ModelDefinitionForm::Vit => vit::KEYS,
        ModelDefinitionForm::Layers => chain::KEYS,
    };
    let root = document.root_table_with_allowed_keys(&[&COMMON, keys].concat())?;
    let text = |key: &str, expected: &str| {
        root.require_field(key, expected)?
            .read_one_line_text()
            .map(str::to_owned)
    };
    let name = text("name", "the model's name")?;
    let source = text("source", "where its sizes are published, in quotes")?;
    let (sequence, hidden, layers) = match kind {
        ModelDefinitionForm::Transformer => {
            transformer::parse_tokens_hidden_and_layers(&root, sizes)?
        }
        ModelDefinitionForm::Vit => vit::parse_tokens_hidden_and_layers(&root, sizes)?,
        ModelDefinitionForm::Layers => {
            if let Some(layers) = layers {
                let found = format_args!(
                    "a request for {layers} layers of a model with a fixed list of layers"
                );
                let expected = "no number of layers; change the layers in a copy of the file";
                return Err(root
                    .require_field("kind", "a kind")?
                    .invalid_value_error(found, expected)
                    .into());
            }
            chain::parse_tokens_hidden_and_layers(&root, tokens)?
        }
    };
    let model = Model {
        name,
        source,
        sequence,
        layers,
    };
    check_counts_fit_64_bits(&model, file)?;
    Ok(ModelWithDefinitionProperties {
        kind,
        hidden,
        model,
    })
}

/// Rejects models whose counts exceed 64 bits.
fn check_counts_fit_64_bits(model: &Model, file: &str) -> Result<(), ModelError> {
    let between = model.layers.iter().flat_map(|layer| &layer.operators);
    let widest = between.map(|o| o.work.input_elements().max(o.work.output_elements()));
    // Counts saturate, so `u64::MAX` means an overflow.
    let counts = [
        (model.parameter_count(), "parameters"),
        (model.multiplication_count(), "multiplications"),
        (widest.max().unwrap_or(0), "inputs and outputs"),
        (
            model.saved_bytes_per_sample(8, false),
            "bytes kept for the backward pass",
        ),
    ];
    match counts.into_iter().find(|(count, _)| *count == u64::MAX) {
        None => Ok(()),
        Some((_, what)) => Err(ModelError::TooLarge {
            file: file.to_owned(),
            what,
        }),
    }
}

/// Returns the caller's number of blocks or, if the caller gives none, the file's.
fn block_count_of_caller_or_file(
    root: &ConfigTable<'_>,
    asked: Option<u64>,
) -> Result<u64, ConfigError> {
    let field = root.require_field("layers", "the number of blocks")?;
    let own = field.read_integer_between(1, MOST_LAYERS)?;
    match asked {
        Some(asked) if !(1..=MOST_LAYERS).contains(&asked) => {
            let expected = format_args!("a whole number from 1 to {MOST_LAYERS}");
            Err(field.invalid_value_error(format_args!("{asked} layers asked for"), expected))
        }
        asked => Ok(asked.unwrap_or(own)),
    }
}

/// Reads the integer at `key`, which must be at least 1.
fn read_positive_integer(table: &ConfigTable<'_>, key: &str) -> Result<u64, ConfigError> {
    let expected = format_args!("a whole number from 1 to {MOST}");
    table
        .require_field(key, expected)?
        .read_integer_between(1, MOST)
}

/// Reads the integer at `key`, which must be at least `least`. Returns `default` if the key is missing.
fn read_size_or_default(
    table: &ConfigTable<'_>,
    key: &str,
    least: u64,
    default: u64,
) -> Result<u64, ConfigError> {
    table.read_or_default(key, default, |field| {
        field.read_integer_between(least, MOST)
    })
}

/// Reads the boolean at `key`. Returns `default` if the key is missing.
fn read_flag_or_default(
    table: &ConfigTable<'_>,
    key: &str,
    default: bool,
) -> Result<bool, ConfigError> {
    table.read_or_default(key, default, |field| field.read_flag())
}

/// Reads height and width: one number for both, or a list of two numbers.
fn parse_height_and_width(field: &ConfigField<'_>) -> Result<[u64; 2], ConfigError> {
    if field.as_whole_number().is_some() {
        let side = field.read_integer_between(1, MOST)?;
        return Ok([side, side]);
    }
    let [height, width] =
        field.read_array_of_exact_length("values", "a whole number, or [height, width]")?;
    Ok([
        height.read_integer_between(1, MOST)?,
        width.read_integer_between(1, MOST)?,
    ])
}

/// Rejects another number of tokens if the model's sizes do not depend on it.
fn reject_token_count_override(
    root: &ConfigTable<'_>,
    tokens: Option<u64>,
) -> Result<(), ConfigError> {
    match tokens {
        None => Ok(()),
        Some(tokens) => Err(root.require_field("kind", "a kind")?.invalid_value_error(
            format_args!("a request for {tokens} tokens per sample of a model without tokens"),
            "no number of tokens; change the sizes in a copy of the file",
        )),
    }
}
