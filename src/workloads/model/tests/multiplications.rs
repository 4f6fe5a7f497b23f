//! Checks the multiplications of presets against LIGHTSPEED's Table 5.2, and against the simulator behind that table.

use super::{load_preset_model, sum_over_layers_of_role};
use crate::model::{LayerRole, Model, ModelLayer, OperatorKind};

#[test]
fn networks_on_images_have_the_published_counts() {
    for (name, published) in [
        ("vgg-11", 7_609_090_048),
        ("vgg-13", 11_308_466_176),
        ("vgg-16", 15_470_264_320),
        ("vgg-19", 19_632_062_464),
        ("alexnet", 714_188_480),
        ("resnet-18", 1_814_073_344),
    ] {
        assert_eq!(
            load_preset_model(name).multiplication_count(),
            published,
            "{name}"
        );
    }
    // Counted by hand, a convolution of VGG-11 takes 9 c k multiplications per pixel, and the last three layers take
    // 25088 x 4096 + 4096 x 4096 + 4096 x 1000 multiplications.
    let sides = [(3, 64, 224), (64, 128, 112), (128, 256, 56), (256, 256, 56)];
    let small = [
        (256, 512, 28),
        (512, 512, 28),
        (512, 512, 14),
        (512, 512, 14),
    ];
    let products = sides
        .iter()
        .chain(&small)
        .map(|(c, k, side)| 9 * c * k * side * side);
    let convolutions: u64 = products.sum();
    assert_eq!(
        convolutions + 102_760_448 + 16_777_216 + 4_096_000,
        7_609_090_048
    );
}

#[test]
fn gpt2_xl_multiplications_plus_table_weights_match_published_count() {
    // The model takes l (12 h^2 s + 2 s^2 h) + V h s = 1,671,010,713,600 + 82,341,068,800 multiplications.
    let model = load_preset_model("gpt2-xl");
    assert_eq!(
        model.multiplication_count(),
        1_671_010_713_600 + 82_341_068_800
    );
    // The published count is higher by (V + 1024) h = 82,049,600, as if each table weight were one
    // multiplication.
    assert_eq!(model.table_weights(), (50_257 + 1_024) * 1_600);
    assert_eq!(
        model.multiplication_count() + model.table_weights(),
        1_753_433_832_000
    );
    // One token takes 12 l h^2 + V h = 1.55497e9 multiplications. The token's attention to itself
    // adds 2 h l, so the sum is 1.55512e9.
    let model = Model::load_with_token_count("gpt2-xl", 1).unwrap();
    let attention = sum_over_layers_of_role(
        &model,
        LayerRole::Block,
        count_attention_core_multiplications,
    );
    assert_eq!(attention, 2 * 48 * 1_600);
    assert_eq!(model.multiplication_count() - attention, 1_554_971_200);
    assert_eq!(model.multiplication_count() + 1_024 * 1_600, 1_556_763_200);
}

/// Returns the number of multiplications of queries with keys and of scores with values.
fn count_attention_core_multiplications(layer: &ModelLayer) -> u64 {
    let cores = layer
        .operators
        .iter()
        .filter(|o| matches!(o.work, OperatorKind::Attention { .. }));
    cores.map(|core| core.multiplication_count()).sum()
}

#[test]
fn megatron_bert_blocks_plus_word_table_weights_match_published_count() {
    // Blocks with 512 tokens take 24 (12 h^2 s + 2 s^2 h) = 167,503,724,544 multiplications. The published count is
    // higher by 29,056 h, as if each weight in the embedding table for the cased vocabulary were one multiplication. It
    // also omits the operators after the blocks.
    let model = load_preset_model("megatron-bert");
    let blocks =
        sum_over_layers_of_role(&model, LayerRole::Block, ModelLayer::multiplication_count);
    assert_eq!(blocks, 167_503_724_544);
    let words = model.layers[0].operators[0].work.table_weights();
    assert_eq!(blocks + words, 167_533_477_888);
    // The head takes s h^2 multiplications, and the logits take s V h.
    assert_eq!(
        model.multiplication_count() - blocks,
        512 * (1024 * 1024 + 29_056 * 1024)
    );
    // BERT large with a pooler has the same blocks, followed by only one product with h^2 multiplications.
    assert_eq!(
        load_preset_model("bert-large").multiplication_count(),
        167_503_724_544 + 1_048_576
    );
}

#[test]
fn gpt2_xl_with_5750_layers_has_the_published_block_multiplications() {
    // With 5750 layers, one token takes 12 x 5750 x 1600^2 = 176,640,000,000 multiplications,
    // excluding attention.
    let text = super::files::find_preset_text("gpt2-xl").replace("layers = 48", "layers = 5750");
    let model = crate::model::ModelWithDefinitionProperties::parse(&text, "x.toml", Some(1))
        .unwrap()
        .model;
    let blocks = |layer: &ModelLayer| {
        layer.multiplication_count() - count_attention_core_multiplications(layer)
    };
    assert_eq!(
        sum_over_layers_of_role(&model, LayerRole::Block, blocks),
        176_640_000_000
    );
}

#[test]
fn dlrm_multiplications_are_those_of_perceptrons_and_vector_pairs() {
    // DLRM takes 154,112 + 605,952 multiplications in MLPs, and also computes the dot products of 351 pairs of vectors
    // with 64 elements. The source counts every table weight as a multiplication, but does not count the pairs.
    let model = load_preset_model("dlrm");
    assert_eq!(model.multiplication_count(), 760_064 + 351 * 64);
    assert_eq!(model.table_weights() + 760_064, 2_505_926_848);
}

#[test]
fn megatron_flops_match_equation_3() {
    // Narayanan et al. (2021), equation 3 without recomputation: a forward pass over B sequences takes 24 B s
    // l h^2 (1 + s / (6 h) + V / (12 l h)) FLOPs, two per multiplication.
    let (l, h, s, v) = (40, 6144, 2048, 51_200);
    let equation: u64 = 24 * s * l * h * h + 4 * s * s * l * h + 2 * s * v * h;
    assert_eq!(
        2 * load_preset_model("megatron-18.4b").multiplication_count(),
        equation
    );
    // Kernels for causal attention skip s (s - 1) / 2 of the s^2 pairs.
    let skipped = load_preset_model("megatron-18.4b").causally_skipped_multiplications();
    assert_eq!(skipped, l * 2 * h * (s * (s - 1) / 2));
    assert_eq!(
        load_preset_model("bert-large").causally_skipped_multiplications(),
        0
    );
}

#[test]
fn other_sequences_change_tokens_and_keep_weights() {
    // For s tokens, Llama-3 8B takes s multiplications for each weight in its products, plus 2 l s^2 h. These products
    // include neither the embedding table's V h weights nor the norms' gains.
    let (l, h, v) = (32, 4096, 128_256);
    let weights = 8_030_261_248 - v * h - (2 * l + 1) * h;
    for s in [1, 1000, 8192, 131_072] {
        let model = Model::load_with_token_count("llama3-8b", s).unwrap();
        assert_eq!(model.sequence, s);
        assert_eq!(model.parameter_count(), 8_030_261_248);
        assert_eq!(
            model.multiplication_count(),
            s * weights + 2 * l * s * s * h,
            "{s}"
        );
    }
    // The position table keeps its number of rows even for shorter sequences.
    let short = Model::load_with_token_count("gpt2-small", 10).unwrap();
    assert_eq!(short.parameter_count(), 124_439_808);
    assert_eq!(short.layers[0].input_elements(), 10);
}
