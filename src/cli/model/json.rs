//! Models as JSON.

use super::{labels, transformer_block_count};
use chakram_workloads::model::{
    LayerOperator, LayerRole, ModelLayer, ModelWithDefinitionProperties, OperatorKind,
};
use serde::Serialize;

/// JSON document that `model list` prints.
#[derive(Serialize)]
pub(super) struct ModelListDocument<'a> {
    /// The models.
    pub models: Vec<ModelSummary<'a>>,
}

/// JSON document that `model show` prints.
#[derive(Serialize)]
pub(super) struct ModelDocument<'a> {
    /// The model.
    pub model: ModelDetails<'a>,
}

#[derive(Serialize)]
pub(super) struct ModelSummary<'a> {
    name: &'a str,
    kind: &'a str,
    source: &'a str,
    parameters: u64,
    macs: u64,
    blocks: usize,
    hidden: Option<u64>,
    tokens: u64,
}

/// JSON with all properties of a model.
#[derive(Serialize)]
pub(super) struct ModelDetails<'a> {
    #[serde(flatten)]
    summary: ModelSummary<'a>,
    active_parameters: u64,
    cached_elements: u64,
    #[serde(skip_serializing_if = "is_zero")]
    sequence_state_bytes: u64,
    skippable_macs: u64,
    table_weights: u64,
    element_bytes: u64,
    saved_activation_bytes: u64,
    saved_activation_bytes_fused: u64,
    layers: Vec<IdenticalLayersDocument<'a>>,
}

/// JSON for a run of consecutive identical layers, with the counts of one of them.
#[derive(Serialize)]
struct IdenticalLayersDocument<'a> {
    first: &'a str,
    last: &'a str,
    count: u64,
    role: &'static str,
    parameters: u64,
    macs: u64,
    saved_activation_bytes: u64,
    saved_activation_bytes_fused: u64,
    operators: Vec<OperatorDocument<'a>>,
}

#[derive(Serialize)]
struct OperatorDocument<'a> {
    name: &'a str,
    op: &'static str,
    cut: &'static str,
    sizes: &'a OperatorKind,
    parameters: u64,
    macs: u64,
    input_elements: u64,
    output_elements: u64,
    saved_activation_bytes: u64,
    saved_activation_bytes_fused: u64,
}

impl<'a> ModelSummary<'a> {
    /// Summarizes `found`.
    pub(super) fn of_definition(found: &'a ModelWithDefinitionProperties) -> Self {
        let model = &found.model;
        Self {
            name: &model.name,
            kind: found.kind.kind_name(),
            source: &model.source,
            parameters: model.parameter_count(),
            macs: model.multiplication_count(),
            blocks: transformer_block_count(found),
            hidden: found.hidden,
            tokens: model.sequence,
        }
    }
}

/// The JSON omits byte counts of zero, because most models have no linear attention.
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

impl<'a> ModelDetails<'a> {
    /// Describes `found`. `element` is the number of bytes per element of saved activations.
    pub(super) fn of_definition(found: &'a ModelWithDefinitionProperties, element: u64) -> Self {
        let model = &found.model;
        Self {
            summary: ModelSummary::of_definition(found),
            active_parameters: model.active_parameters(),
            cached_elements: model.kv_cache_elements_per_token_in_all_layers(),
            sequence_state_bytes: model.linear_attention_bytes_per_sequence(element),
            skippable_macs: model.causally_skipped_multiplications(),
            table_weights: model.table_weights(),
            element_bytes: element,
            saved_activation_bytes: model.saved_bytes_per_sample(element, false),
            saved_activation_bytes_fused: model.saved_bytes_per_sample(element, true),
            layers: model
                .equal_layer_runs()
                .map(|run| IdenticalLayersDocument::of_run(run, element))
                .collect(),
        }
    }
}

impl<'a> IdenticalLayersDocument<'a> {
    fn of_run(run: &'a [ModelLayer], element: u64) -> Self {
        let (layer, last) = (&run[0], &run[run.len() - 1]);
        let operators = layer.operators.iter();
        Self {
            first: &layer.name,
            last: &last.name,
            count: run.len() as u64,
            role: match layer.role {
                LayerRole::Input => "input",
                LayerRole::Block => "block",
                LayerRole::Output => "output",
            },
            parameters: layer.parameter_count(),
            macs: layer.multiplication_count(),
            saved_activation_bytes: layer.saved_bytes(element, false),
            saved_activation_bytes_fused: layer.saved_bytes(element, true),
            operators: operators
                .map(|one| OperatorDocument::from_layer_operator(one, element))
                .collect(),
        }
    }
}

impl<'a> OperatorDocument<'a> {
    fn from_layer_operator(operator: &'a LayerOperator, element: u64) -> Self {
        let work = &operator.work;
        Self {
            name: &operator.name,
            op: work.to_axes_and_tensors().name,
            cut: labels::tensor_parallel_split_name(operator.cut),
            sizes: work,
            parameters: work.parameter_count(),
            macs: work.multiplication_count(),
            input_elements: work.input_elements(),
            output_elements: work.output_elements(),
            saved_activation_bytes: work.saved_bytes(element, false),
            saved_activation_bytes_fused: work.saved_bytes(element, true),
        }
    }
}
