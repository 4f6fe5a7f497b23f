//! Checks the number of weights of each preset.

use super::load_preset_model;
use crate::model::PRESETS;

fn count_preset_parameters(name: &str) -> u64 {
    load_preset_model(name).parameter_count()
}

#[test]
fn megatron_parameter_counts_match_equation_2_plus_a_final_norm() {
    // Equation 2 of Narayanan et al. (2021) is P = 12 l h^2 (1 + 13 / (12 h) + (V + s) / (12 l h)), which equals 12 l
    // h^2 + 13 l h + (V + s) h. It omits 2 h weights: the final norm's gain and bias.
    let table = [
        ("1.7b", 24, 2304, 17),
        ("3.6b", 30, 3072, 36),
        ("7.5b", 36, 4096, 75),
        ("18.4b", 40, 6144, 184),
        ("39.1b", 48, 8192, 391),
        ("76.1b", 60, 10240, 761),
        ("145.6b", 80, 12288, 1456),
        ("310.1b", 96, 16384, 3101),
        ("529.6b", 105, 20480, 5296),
        ("1t", 128, 25600, 10080),
    ];
    for (name, l, h, tenths_of_billions) in table {
        let equation = 12 * l * h * h + 13 * l * h + (51_200 + 2_048) * h;
        let found = count_preset_parameters(&format!("megatron-{name}"));
        assert_eq!(found, equation + 2 * h, "{name}");
        assert_eq!(
            (found + 50_000_000) / 100_000_000,
            tenths_of_billions,
            "{name}"
        );
    }
    // These two models are in Korthikanti et al. (2022), Table 3, but not in the table above.
    for (name, l, h) in [("22b", 48, 6144), ("175b", 96, 12288)] {
        let equation = 12 * l * h * h + 13 * l * h + (51_200 + 2_048) * h;
        assert_eq!(
            count_preset_parameters(&format!("megatron-{name}")),
            equation + 2 * h
        );
    }
    // The number of weights is 12 x 40 x 6144^2 + 13 x 40 x 6144 + 53248 x 6144 + 2 x 6144 =
    // 18,119,393,280 + 3,194,880 + 327,155,712 + 12,288.
    assert_eq!(count_preset_parameters("megatron-18.4b"), 18_449_756_160);
}

#[test]
fn gpt_parameter_counts_match_released_models() {
    // A block of GPT has 4 h^2 + 4 h weights in attention, 8 h^2 + 5 h weights in the MLP, and 4 h weights in its
    // norms.
    let gpt = |l: u64, h: u64, s: u64| 50_257 * h + s * h + l * (12 * h * h + 13 * h) + 2 * h;
    for (name, l, h, released) in [
        ("gpt2-small", 12, 768, 124_439_808),
        ("gpt2-medium", 24, 1024, 354_823_168),
        ("gpt2-large", 36, 1280, 774_030_080),
        ("gpt2-xl", 48, 1600, 1_557_611_200),
    ] {
        assert_eq!(count_preset_parameters(name), gpt(l, h, 1024), "{name}");
        assert_eq!(count_preset_parameters(name), released, "{name}");
    }
    for (name, l, h) in [
        ("gpt3-125m", 12, 768),
        ("gpt3-350m", 24, 1024),
        ("gpt3-760m", 24, 1536),
        ("gpt3-1.3b", 24, 2048),
        ("gpt3-2.7b", 32, 2560),
        ("gpt3-6.7b", 32, 4096),
        ("gpt3-13b", 40, 5120),
        ("gpt3-175b", 96, 12288),
    ] {
        assert_eq!(count_preset_parameters(name), gpt(l, h, 2048), "{name}");
    }
    // The embedding table, positions, 96 blocks and the final norm have 617,558,016 + 25,165,824 + 96 x 1,812,099,072 +
    // 24,576 weights.
    assert_eq!(count_preset_parameters("gpt3-175b"), 174_604_259_328);
}

#[test]
fn bert_parameter_counts_are_those_of_embeddings_blocks_and_pooler() {
    // BERT has tables for 30,522 words, 512 positions and 2 sentences, a norm, 12 h^2 + 13 h
    // weights per block, and h^2 + h weights in the pooler.
    let bert = |l: u64, h: u64| (30_522 + 512 + 2 + 2) * h + l * (12 * h * h + 13 * h) + h * h + h;
    assert_eq!(bert(12, 768), 109_482_240);
    assert_eq!(count_preset_parameters("bert-base"), 109_482_240);
    assert_eq!(bert(24, 1024), 335_141_888);
    assert_eq!(count_preset_parameters("bert-large"), 335_141_888);
    // If BERT base predicts masked words instead, a product, a norm and one bias per word replace
    // the pooler: 109,482,240 - 590,592 + 590,592 + 1,536 + 30,522 weights.
    let text = super::files::find_preset_text("bert-base").replace("\"pooler\"", "\"masked\"");
    let masked = super::files::parse_model_text(&text).unwrap();
    assert_eq!(masked.parameter_count(), 109_514_298);
    // Megatron's BERT has 29,056 words, a final norm instead of the embedding norm, and h^2 + h + 2 h + 29,056 weights
    // in the head.
    let h = 1024;
    let tables = (29_056 + 512 + 2) * h;
    let blocks = 24 * (12 * h * h + 13 * h);
    assert_eq!(
        count_preset_parameters("megatron-bert"),
        tables + blocks + 2 * h + h * h + 3 * h + 29_056
    );
}

#[test]
fn llama_parameter_counts_match_released_models() {
    // Llama has two tables with V h weights each. A block has h (2 h + 2 kv h / a) weights in attention, 3 h f weights
    // in the MLP, and two gains. After the blocks, there is a final gain with h weights.
    let llama = |v: u64, l: u64, h: u64, [a, kv]: [u64; 2], f: u64| {
        2 * v * h + l * (2 * h * h + 2 * h * (h / a * kv) + 3 * h * f + 2 * h) + h
    };
    for (name, formula, released) in [
        (
            "llama2-7b",
            llama(32_000, 32, 4096, [32, 32], 11_008),
            6_738_415_616,
        ),
        (
            "llama2-13b",
            llama(32_000, 40, 5120, [40, 40], 13_824),
            13_015_864_320,
        ),
        (
            "llama2-70b",
            llama(32_000, 80, 8192, [64, 8], 28_672),
            68_976_648_192,
        ),
        (
            "llama3-8b",
            llama(128_256, 32, 4096, [32, 8], 14_336),
            8_030_261_248,
        ),
        (
            "llama3-70b",
            llama(128_256, 80, 8192, [64, 8], 28_672),
            70_553_706_496,
        ),
        (
            "llama3-405b",
            llama(128_256, 126, 16_384, [128, 8], 53_248),
            405_853_388_800,
        ),
    ] {
        assert_eq!(formula, released, "{name}");
        assert_eq!(count_preset_parameters(name), released, "{name}");
    }
}

#[test]
fn image_model_parameter_counts_match_torchvision() {
    // A ViT has 3 p^2 h + h weights for patches, a class token with h weights, positions, 12 h^2 + 13 h weights per
    // block, a final norm, and 1000 (h + 1) weights in the classifier.
    let vit = |l: u64, h: u64, p: u64| {
        let tokens = (224 / p) * (224 / p) + 1;
        3 * p * p * h + h + h + tokens * h + l * (12 * h * h + 13 * h) + 2 * h + 1000 * (h + 1)
    };
    for (name, formula, published) in [
        ("vit-b-16", vit(12, 768, 16), 86_567_656),
        ("vit-l-16", vit(24, 1024, 16), 304_326_632),
        ("vit-h-14", vit(32, 1280, 14), 632_045_800),
    ] {
        assert_eq!(formula, published, "{name}");
        assert_eq!(count_preset_parameters(name), published, "{name}");
    }
    for (name, published) in [
        ("resnet-18", 11_689_512),
        ("resnet-50", 25_557_032),
        ("resnet-152", 60_192_808),
        ("vgg-11", 132_863_336),
        ("vgg-13", 133_047_848),
        ("vgg-16", 138_357_544),
        ("vgg-19", 143_667_240),
        ("alexnet", 61_100_840),
    ] {
        assert_eq!(count_preset_parameters(name), published, "{name}");
    }
    // Counted by hand, ResNet-18's stem has 9,408 + 128 weights, a block has 2 x 9 w^2 + 4 w, and the classifier has
    // 512,000 + 1,000. A block that doubles the channels has 9 w^2 / 2 fewer weights in its first convolution, and w^2
    // / 2 + 2 w additional weights on the skip path.
    let same = |w: u64| 18 * w * w + 4 * w;
    let wider = |w: u64| same(w) - 9 * w * w / 2 + w * w / 2 + 2 * w;
    let blocks: u64 = [128, 256, 512].iter().map(|&w| same(w) + wider(w)).sum();
    assert_eq!(9_408 + 128 + 2 * same(64) + blocks + 513_000, 11_689_512);
}

#[test]
fn dlrm_parameter_count_is_that_of_tables_and_perceptrons() {
    // The tables have 39,143,231 x 64 weights. The MLPs 13-512-256-64 and 415-512-512-256-1 have 154,112 + 605,952
    // weights, which the source counts. They also have 832 + 1,281 biases (one per output), which the source does not
    // count.
    let weights = 39_143_231 * 64 + 154_112 + 605_952;
    assert_eq!(weights, 2_505_926_848);
    assert_eq!(count_preset_parameters("dlrm"), weights + 832 + 1_281);
    // 27 vectors form 351 pairs. Together with the first vector (64 elements), these pairs give the top MLP 415 inputs.
    assert_eq!(load_preset_model("dlrm").layers[0].output_elements(), 415);
}

#[test]
fn every_preset_is_a_model_with_its_name_and_source() {
    for known in PRESETS {
        let model = load_preset_model(known.name);
        assert_eq!(model.name, known.name);
        assert!(
            [" (20", " (19", "(SC"]
                .iter()
                .any(|year| model.source.contains(year)),
            "{}",
            known.name
        );
        assert!(
            known.text.lines().all(|line| line.chars().count() <= 140),
            "{}",
            known.name
        );
    }
}
