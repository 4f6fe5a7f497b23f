//! Tests how many bytes are saved for the backward pass.

use super::{load_preset_model, sum_over_layers_of_role};
use crate::model::{LayerRole, ModelLayer};

#[test]
fn saved_bytes_of_a_block_match_korthikanti_equation_1() {
    // With 2 bytes per element, dropout, and unfused attention, a block saves s h (34 + 5 a s / h)
    // bytes per sample.
    for (name, a, h, s) in [
        ("megatron-22b", 64, 6144, 2048),
        ("megatron-1t", 160, 25_600, 2048),
        ("gpt2-xl", 25, 1600, 1024),
        ("bert-large", 16, 1024, 512),
    ] {
        let model = load_preset_model(name);
        let block = &model.layers[1];
        assert_eq!(block.role, LayerRole::Block);
        assert_eq!(
            block.saved_bytes(2, false),
            34 * s * h + 5 * a * s * s,
            "{name}"
        );
        // A fused kernel saves 4 bytes per row of scores instead of the scores.
        assert_eq!(block.saved_bytes(2, true), 34 * s * h + 4 * a * s, "{name}");
    }
}

#[test]
fn saved_bytes_of_block_parts_match_korthikanti_section_4_1() {
    // Attention saves 11 s h + 5 a s^2 bytes, the MLP saves 19 s h, and the norms save 4 s h.
    let (a, h, s) = (64, 6144, 2048);
    let model = load_preset_model("megatron-22b");
    let part = |names: &[&str]| -> u64 {
        let operators = model.layers[1].operators.iter();
        let chosen = operators.filter(|o| names.iter().any(|name| o.name.starts_with(name)));
        chosen.map(|o| o.saved_bytes(2, false)).sum()
    };
    assert_eq!(
        part(&["attention", "residual1"]),
        11 * s * h + 5 * a * s * s
    );
    assert_eq!(part(&["mlp", "residual2"]), 19 * s * h);
    assert_eq!(part(&["norm"]), 4 * s * h);
}

#[test]
fn saved_bytes_outside_blocks_match_korthikanti_section_4_3() {
    // Outside the blocks, the model saves a dropout mask for embeddings (s h bytes), the inputs of the final norm and
    // of the logits (2 s h each), and the logits in single precision (4 s V).
    let (h, s, v) = (6144, 2048, 51_200);
    let model = load_preset_model("megatron-22b");
    let kept = |layer: &ModelLayer| layer.saved_bytes(2, false);
    assert_eq!(
        sum_over_layers_of_role(&model, LayerRole::Input, kept),
        s * h
    );
    assert_eq!(
        sum_over_layers_of_role(&model, LayerRole::Output, kept),
        4 * s * h + 4 * s * v
    );
    let blocks = sum_over_layers_of_role(&model, LayerRole::Block, kept);
    assert_eq!(
        model.saved_bytes_per_sample(2, false),
        blocks + 5 * s * h + 4 * s * v
    );
}

#[test]
fn gates_and_shared_heads_keep_what_they_are_given() {
    // With 2 bytes per value and without dropout, Llama-3 8B saves 4 s h bytes for norms and no masks. It saves the
    // inputs of products, which take 2 s h (qkv), 2 s h (out), 2 s h (up) and 2 s f (down) bytes. Attention saves 2 s h
    // bytes for queries, and 2 s (2 h / 4) bytes for keys and values. The two halves of the gate take 4 s f bytes. The
    // softmax saves 2 a s^2 bytes.
    let (a, h, s, f) = (32, 4096, 8192, 14_336);
    let block = &load_preset_model("llama3-8b").layers[1];
    let rest = 4 * s * h + 6 * s * h + 2 * s * f + 2 * s * h + s * h + 4 * s * f;
    assert_eq!(block.saved_bytes(2, false), rest + 2 * a * s * s);
    assert_eq!(block.saved_bytes(2, true), rest + 4 * a * s);
}

#[test]
fn convolutions_keep_inputs_and_relus_nothing() {
    // VGG-16's last layer saves two images of 512 x 14 x 14 values with 4 bytes each, one for the convolution and one
    // for the pool.
    let model = load_preset_model("vgg-16");
    let layer = model
        .layers
        .iter()
        .find(|layer| layer.name == "conv5_3")
        .unwrap();
    assert_eq!(layer.saved_bytes(4, false), 2 * 4 * 512 * 14 * 14);
    assert_eq!(layer.output_elements(), 512 * 7 * 7);
    // In a block of ResNet-18, two convolutions and two norms each save an input of 64 x 56 x 56
    // values.
    let block = &load_preset_model("resnet-18").layers[1];
    assert_eq!(block.saved_bytes(2, false), 2 * 4 * 64 * 56 * 56);
}
