//! Models as JSON.

use super::text::{LayerRun, groups};
use super::{blocks, labels};
use crate::model::{LayerOperator, LayerRole, ModelDefinition, OperatorKind};
use serde_json::{Map, Value, json};

/// One document under its schema's name and version.
pub(super) fn document(schema: &str, key: &str, value: Value) -> String {
    let mut document = Map::new();
    document.insert("schema".to_owned(), schema.into());
    document.insert("tool_version".to_owned(), env!("CARGO_PKG_VERSION").into());
    document.insert(key.to_owned(), value);
    crate::cli::terminal::json(&Value::from(document))
}

/// A model as the list has it.
pub(super) fn summary(found: &ModelDefinition) -> Value {
    let model = &found.model;
    json!({
        "name": model.name,
        "kind": found.kind.name(),
        "source": model.source,
        "parameters": model.parameters(),
        "multiplications": model.multiplications(),
        "blocks": blocks(found),
        "hidden": found.hidden,
        "tokens": model.sequence,
    })
}

/// All of a model, with `element` bytes an element of what is kept.
pub(super) fn details(found: &ModelDefinition, element: u64) -> Value {
    let model = &found.model;
    let mut all = summary(found);
    all["skippable_multiplications"] = model.skippable_multiplications().into();
    all["table_weights"] = model.table_weights().into();
    all["element_bytes"] = element.into();
    all["kept_bytes"] = model.saved_bytes(element, false).into();
    all["kept_bytes_fused"] = model.saved_bytes(element, true).into();
    let groups = groups(&model.layers);
    all["layers"] = groups.iter().map(|group| layers(group, element)).collect();
    all
}

/// Layers that are alike; counts are those of one.
fn layers(group: &LayerRun<'_>, element: u64) -> Value {
    let layer = group.first;
    let operators = layer.operators.iter();
    json!({
        "first": layer.name,
        "last": group.last.name,
        "count": group.count,
        "role": match layer.role {
            LayerRole::Input => "input",
            LayerRole::Block => "block",
            LayerRole::Output => "output",
        },
        "parameters": layer.parameters(),
        "multiplications": layer.multiplications(),
        "kept_bytes": layer.saved_bytes(element, false),
        "kept_bytes_fused": layer.saved_bytes(element, true),
        "operators": operators.map(|o| operator(o, element)).collect::<Vec<_>>(),
    })
}

fn operator(operator: &LayerOperator, element: u64) -> Value {
    let work = &operator.work;
    json!({
        "name": operator.name,
        "op": labels::op(work),
        "cut": labels::cut(operator.cut),
        "sizes": sizes(work),
        "parameters": work.parameters(),
        "multiplications": work.multiplications(),
        "input_elements": work.input_elements(),
        "output_elements": work.output_elements(),
        "kept_bytes": work.saved_bytes(element, false),
        "kept_bytes_fused": work.saved_bytes(element, true),
    })
}

/// Every number of an operator, under its name in the library.
fn sizes(work: &OperatorKind) -> Value {
    match *work {
        OperatorKind::Linear {
            rows,
            inputs,
            outputs,
            bias,
            tied,
        } => {
            json!({"rows": rows, "inputs": inputs, "outputs": outputs, "bias": bias, "tied": tied})
        }
        OperatorKind::Attention {
            tokens,
            heads,
            kv_heads,
            width,
            causal,
            dropout,
        } => json!({
            "tokens": tokens, "heads": heads, "kv_heads": kv_heads, "width": width,
            "causal": causal, "dropout": dropout,
        }),
        OperatorKind::Norm { rows, width, bias } => {
            json!({"rows": rows, "width": width, "bias": bias})
        }
        OperatorKind::Activation {
            function,
            rows,
            width,
            gated,
        } => json!({
            "function": labels::function(function), "rows": rows, "width": width, "gated": gated,
        }),
        OperatorKind::Residual {
            rows,
            width,
            dropout,
        } => json!({"rows": rows, "width": width, "dropout": dropout}),
        OperatorKind::Embedding {
            vocabulary,
            width,
            tokens,
        } => json!({"vocabulary": vocabulary, "width": width, "tokens": tokens}),
        OperatorKind::Loss { rows, classes } => json!({"rows": rows, "classes": classes}),
        OperatorKind::Convolution {
            inputs,
            outputs,
            size,
            kernel,
            stride,
            padding,
            groups,
            bias,
        } => json!({
            "inputs": inputs, "outputs": outputs, "size": size, "kernel": kernel, "stride": stride,
            "padding": padding, "groups": groups, "bias": bias,
        }),
        OperatorKind::Pool {
            channels,
            size,
            kernel,
            stride,
            padding,
        } => json!({
            "channels": channels, "size": size, "kernel": kernel, "stride": stride, "padding": padding,
        }),
        OperatorKind::EmbeddingBag {
            rows,
            width,
            lookups,
        } => json!({"rows": rows, "width": width, "lookups": lookups}),
        OperatorKind::Interaction { vectors, width } => json!({"vectors": vectors, "width": width}),
    }
}
