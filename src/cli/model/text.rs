//! A model for people: one line for each operator of each kind of layer.

use super::table::{self, ColumnAlignment};
use super::{blocks, labels};
use crate::model::{ModelDefinition, ModelLayer};
use crate::report::summary::thousands;
use crate::units::Bytes;

/// Layers that follow one another and are alike.
pub(super) struct LayerRun<'m> {
    /// The first of them.
    pub(super) first: &'m ModelLayer,
    /// The last of them.
    pub(super) last: &'m ModelLayer,
    /// Number of layers.
    pub(super) count: u64,
}

/// The layers of `model`, those alike together.
pub(super) fn groups(layers: &[ModelLayer]) -> Vec<LayerRun<'_>> {
    let mut groups: Vec<LayerRun<'_>> = Vec::new();
    for layer in layers {
        match groups.last_mut() {
            Some(group)
                if group.first.role == layer.role && group.first.operators == layer.operators =>
            {
                group.last = layer;
                group.count += 1;
            }
            _ => groups.push(LayerRun {
                first: layer,
                last: layer,
                count: 1,
            }),
        }
    }
    groups
}

/// `found` in text, with `element` bytes an element of what is kept.
pub(super) fn render(found: &ModelDefinition, element: u64) -> String {
    let model = &found.model;
    let mut text = format!("{}: {}", model.name, found.kind.name());
    text += &format!(", {} blocks", blocks(found));
    if let Some(hidden) = found.hidden {
        text += &format!(", hidden {hidden}");
    }
    if model.sequence != 1 {
        text += &format!(", {} tokens a sample", model.sequence);
    }
    text += &format!("\n{}\n\n", model.source);
    text += &totals(found, element);
    text.push('\n');
    text += &operators(&model.layers, element);
    text
}

fn totals(found: &ModelDefinition, element: u64) -> String {
    let model = &found.model;
    let multiplications = model.multiplications();
    // A forward pass has two FLOPs a multiplication; a backward pass multiplies twice as often.
    let flops = |times: f64| format!("{:.4e}", multiplications as f64 * times);
    let kept = |fused| Bytes(model.saved_bytes(element, fused));
    let mut rows = vec![
        ("parameters", thousands(model.parameters())),
        (
            "multiplications",
            format!("{} a sample, forward", thousands(multiplications)),
        ),
        (
            "FLOPs",
            format!(
                "{} a sample, forward; {} with backward",
                flops(2.0),
                flops(6.0)
            ),
        ),
    ];
    let skipped = model.skippable_multiplications();
    if skipped > 0 {
        let text = "of the multiplications pair a token with a later one; causal kernels skip them";
        rows.push(("", format!("{} {text}", thousands(skipped))));
    }
    let same = kept(true) == kept(false);
    let kept_text = if same {
        format!(
            "{} a sample for the backward pass, {element} bytes an element",
            kept(false)
        )
    } else {
        format!(
            "{} a sample for the backward pass, {element} bytes an element; {} with fused attention",
            kept(false),
            kept(true)
        )
    };
    rows.push(("kept", kept_text));
    let line = |(word, rest): (&str, String)| format!("  {word:16}{rest}\n");
    rows.into_iter().map(line).collect()
}

fn operators(layers: &[ModelLayer], element: u64) -> String {
    let head = [
        "LAYER",
        "OPERATOR",
        "WORK",
        "PARAMETERS",
        "MULTIPLICATIONS",
        "KEPT",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    for group in groups(layers) {
        let name = match group.count {
            1 => group.first.name.clone(),
            _ => format!("{} … {}", group.first.name, group.last.name),
        };
        let each = match group.count {
            1 => String::new(),
            count => format!("{count} alike, each"),
        };
        rows.push([
            name,
            each,
            String::new(),
            thousands(group.first.parameters()),
            thousands(group.first.multiplications()),
            Bytes(group.first.saved_bytes(element, false)).to_string(),
        ]);
        for operator in &group.first.operators {
            rows.push([
                String::new(),
                operator.name.clone(),
                labels::sizes(&operator.work),
                count(operator.parameters()),
                count(operator.multiplications()),
                match operator.saved_bytes(element, false) {
                    0 => "-".to_owned(),
                    bytes => Bytes(bytes).to_string(),
                },
            ]);
        }
    }
    let [left, right] = [ColumnAlignment::Left, ColumnAlignment::Right];
    table::render(&rows, [left, left, left, right, right, right])
}

/// A number, or a dash for none.
fn count(number: u64) -> String {
    match number {
        0 => "-".to_owned(),
        _ => thousands(number),
    }
}
