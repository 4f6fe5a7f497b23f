//! Parses `kind = "layers"`, which lists every operator. The sizes of an operator's input follow from the operators
//! before it.

use super::operator::{self, ActivationShape, LayerShapeCursor};
use super::{MOST, MOST_LAYERS, read_positive_integer, reject_token_count_override};
use crate::model::{LayerRole, ModelLayer};
use chakram_base::config::{ConfigError, ConfigField, ConfigTable};
use std::collections::BTreeSet;

pub(super) const KEYS: &[&str] = &["input", "layer"];

const INPUT: &[&str] = &["channels", "height", "width", "tokens", "columns"];
const LAYER: &[&str] = &["name", "role", "repeat", "first", "operators"];

/// Maximum number of operators, summed over all layers.
const MOST_OPERATORS: u64 = 250_000;

const ROLES: [(LayerRole, &str); 3] = [
    (LayerRole::Input, "input"),
    (LayerRole::Block, "block"),
    (LayerRole::Output, "output"),
];

/// Returns the number of tokens per sample, `None` (because there is no hidden size), and the
/// layers.
pub(super) fn parse_tokens_hidden_and_layers(
    root: &ConfigTable<'_>,
    tokens: Option<u64>,
) -> Result<(u64, Option<u64>, Vec<ModelLayer>), ConfigError> {
    let (sequence, mut shape) = parse_token_count_and_input_shape(root, tokens)?;
    let expected = "layers, each under [[layer]]";
    let tables = root.require_field("layer", expected)?.read_tables(LAYER)?;
    if tables.is_empty() {
        return Err(root.missing_entry_error("layer", expected));
    }
    let mut layers = Vec::new();
    let mut names = BTreeSet::new();
    let mut operators = 0;
    for table in &tables {
        let field = table.require_field("name", "the layer's name")?;
        let name = field.read_one_line_text()?;
        let role = table.read_choice("role", &ROLES)?;
        // `repeat` is limited to the remaining layers, so `layers` never exceeds `MOST_LAYERS`.
        let room = MOST_LAYERS - layers.len() as u64;
        let repeat = table
            .get("repeat")
            .map(|field| field.read_integer_between(1, room));
        let first = table
            .get("first")
            .map(|field| field.read_integer_between(0, MOST));
        if let (None, Some(_), Some(first)) = (&repeat, &first, table.get("first")) {
            return Err(
                first.invalid_value_error("`first` without `repeat`", "both keys or neither")
            );
        }
        if room == 0 {
            return Err(
                field.invalid_value_error("one more layer", format_args!("{MOST_LAYERS} at most"))
            );
        }
        let numbered = repeat.is_some();
        let (repeat, first) = (repeat.unwrap_or(Ok(1))?, first.unwrap_or(Ok(0))?);
        let items = table.require_field("operators", "an array of operators")?;
        let items = items
            .read_array_items("an array of operators, such as [{ op = \"pool\", kernel = 2 }]")?;
        // The sum cannot overflow, because the file's length and `MOST_LAYERS` limit its factors.
        operators += repeat * items.len() as u64;
        if items.is_empty() || operators > MOST_OPERATORS {
            let found = format_args!("{operators} operators in the layers so far");
            let expected = format_args!("at most {MOST_OPERATORS}, and at least one in each layer");
            return Err(table.invalid_table_error(found, expected));
        }
        // Build each copy of a repeated layer separately, because a layer may change the input shape of its next copy.
        for number in first..first + repeat {
            let name = if numbered {
                format!("{name}{number}")
            } else {
                name.to_owned()
            };
            if !names.insert(name.clone()) {
                let found = format_args!("a second layer called {name:?}");
                return Err(field.invalid_value_error(found, "a different name for each layer"));
            }
            layers.push(ModelLayer::new(
                name,
                role,
                parse_operator_chain(&items, &mut shape)?,
            ));
        }
    }
    Ok((sequence, None, layers))
}

/// Parses the operators of one layer.
fn parse_operator_chain(
    items: &[ConfigField<'_>],
    shape: &mut ActivationShape,
) -> Result<Vec<crate::model::LayerOperator>, ConfigError> {
    let mut state = LayerShapeCursor::new(*shape);
    let mut names = BTreeSet::new();
    let mut operators = Vec::with_capacity(items.len());
    for item in items {
        let operator = operator::parse_operator(item, &mut state)?;
        if !names.insert(operator.name.clone()) {
            return Err(item.invalid_value_error(
                format_args!("a second operator called {:?}", operator.name),
                "a different `name` for each operator of a layer",
            ));
        }
        operators.push(operator);
    }
    *shape = state.main;
    Ok(operators)
}

/// Parses the number of tokens per sample, and the shape of the first layer's input.
fn parse_token_count_and_input_shape(
    root: &ConfigTable<'_>,
    tokens: Option<u64>,
) -> Result<(u64, ActivationShape), ConfigError> {
    let expected = "the sizes of a sample, such as { channels = 3, height = 224, width = 224 }, { columns = 13 }, \
                    or { tokens = 1024 }";
    let field = root.require_field("input", expected)?;
    let table = field.read_table(Some(INPUT))?;
    let has = |key: &str| table.get(key).is_some();
    let (image, row) = (
        has("channels") || has("height") || has("width"),
        has("columns"),
    );
    if u8::from(image) + u8::from(row) + u8::from(has("tokens")) != 1 {
        return Err(field.invalid_value_error("another mixture of keys", expected));
    }
    if has("tokens") {
        let sequence = read_positive_integer(&table, "tokens")?;
        let rows = tokens.unwrap_or(sequence);
        return Ok((rows, ActivationShape::Rows { rows, columns: 1 }));
    }
    reject_token_count_override(root, tokens)?;
    let shape = if image {
        ActivationShape::Image {
            channels: read_positive_integer(&table, "channels")?,
            size: [
                read_positive_integer(&table, "height")?,
                read_positive_integer(&table, "width")?,
            ],
        }
    } else {
        ActivationShape::Rows {
            rows: 1,
            columns: read_positive_integer(&table, "columns")?,
        }
    };
    Ok((1, shape))
}
