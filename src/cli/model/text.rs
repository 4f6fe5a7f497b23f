//! Renders a model as text, with one line per operator for each distinct layer.

use super::{labels, transformer_block_count};
use crate::terminal::plain_style;
use chakram_base::units::Bytes;
use chakram_report::summary::format_thousands;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_workloads::model::{Model, ModelWithDefinitionProperties};

/// Renders `found` as text. `element` is the number of bytes per element of saved activations.
pub(super) fn render_text(found: &ModelWithDefinitionProperties, element: u64) -> String {
    let model = &found.model;
    let mut text = format!("{}: {}", model.name, found.kind.kind_name());
    text += &format!(", {} blocks", transformer_block_count(found));
    if let Some(hidden) = found.hidden {
        text += &format!(", hidden {hidden}");
    }
    if model.sequence != 1 {
        text += &format!(", {} tokens per sample", model.sequence);
    }
    text += &format!("\n{}\n\n", model.source);
    text += &render_totals(found, element);
    text.push('\n');
    text += &render_operators(model, element);
    text
}

fn render_totals(found: &ModelWithDefinitionProperties, element: u64) -> String {
    let model = &found.model;
    let multiplications = model.multiplication_count();
    // A multiplication counts as two FLOPs, in both passes. The backward pass does twice as many multiplications as the
    // forward pass.
    let flops = |times: f64| format!("{:.4e}", multiplications as f64 * times);
    let kept = |fused| Bytes(model.saved_bytes_per_sample(element, fused));
    let mut rows = vec![("parameters", format_thousands(model.parameter_count()))];
    if model.active_parameters() != model.parameter_count() {
        let active = format_thousands(model.active_parameters());
        rows.push(("active", format!("{active} for each token")));
    }
    rows.extend([
        (
            "MACs",
            format!("{} per sample, forward", format_thousands(multiplications)),
        ),
        (
            "FLOPs",
            format!(
                "{} per sample, forward; {} with backward",
                flops(2.0),
                flops(6.0)
            ),
        ),
    ]);
    let skipped = model.causally_skipped_multiplications();
    if skipped > 0 {
        let text = "of the MACs are above the causal mask; causal kernels skip them";
        rows.push(("", format!("{} {text}", format_thousands(skipped))));
    }
    let same = kept(true) == kept(false);
    let kept_text = if same {
        format!(
            "{} per sample for the backward pass, {element} bytes per element",
            kept(false)
        )
    } else {
        format!(
            "{} per sample, {element} bytes per element; {} with fused attention",
            kept(false),
            kept(true)
        )
    };
    rows.push(("activations", kept_text));
    let cached = model.kv_cache_elements_per_token_in_all_layers();
    if cached > 0 {
        let bytes = format_thousands(cached.saturating_mul(element));
        rows.push(("KV cache", format!("{bytes} B per token, all layers")));
    }
    let state = model.linear_attention_bytes_per_sequence(element);
    if state > 0 {
        let bytes = format_thousands(state);
        rows.push(("states", format!("{bytes} B per sequence, all layers")));
    }
    let line = |(word, rest): (&str, String)| format!("  {word:16}{rest}\n");
    rows.into_iter().map(line).collect()
}

fn render_operators(model: &Model, element: u64) -> String {
    let mut table = TextTable::new([
        left_aligned_column("LAYER", 0),
        left_aligned_column("OPERATOR", 0),
        left_aligned_column("WORK", 0),
        right_aligned_column("PARAMETERS", 0),
        right_aligned_column("MACS", 0),
        right_aligned_column("ACTIVATIONS", 0),
    ])
    .with_indent(0);
    for run in model.equal_layer_runs() {
        let (first, last) = (&run[0], &run[run.len() - 1]);
        let [name, each] = match run.len() {
            1 => [first.name.clone(), String::new()],
            count => [
                format!("{} … {}", first.name, last.name),
                format!("{count} identical, each"),
            ],
        };
        table.add_row(&[
            &name,
            &each,
            &"",
            &format_thousands(first.parameter_count()),
            &format_thousands(first.multiplication_count()),
            &Bytes(first.saved_bytes(element, false)),
        ]);
        for operator in &first.operators {
            let saved = match operator.saved_bytes(element, false) {
                0 => "-".to_owned(),
                bytes => Bytes(bytes).to_string(),
            };
            table.add_row(&[
                &"",
                &operator.name,
                &labels::format_operator_sizes(&operator.work),
                &format_count_or_dash(operator.parameter_count()),
                &format_count_or_dash(operator.multiplication_count()),
                &saved,
            ]);
        }
    }
    table.to_text(plain_style())
}

/// Formats a number, with a dash for 0.
fn format_count_or_dash(number: u64) -> String {
    match number {
        0 => "-".to_owned(),
        _ => format_thousands(number),
    }
}
