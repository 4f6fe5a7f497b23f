//! Compares the order of cores and passes, and the costs of a layer, with values derived by hand.

use super::super::WorkloadPattern;
use super::super::testing::{check_and_record_every_rank, rejection_message};
use super::*;

/// With two micro-batches, the last stage alternates forward and backward passes (fbfb). The previous stage runs both
/// forward passes first (ffbb). Every rank has exactly `node_count` nodes.
#[test]
fn stages_run_one_forward_one_backward() {
    let mut options = PalmPattern::new();
    (options.batch, options.layers) = (178, 20);
    let generator = options.clone().prepare_generator().unwrap();
    let order = |stage| -> String {
        let passes = generator.pass_order(stage);
        let letter = |pass: &StagePass| if pass.backward { 'b' } else { 'f' };
        passes.iter().map(letter).collect()
    };
    assert_eq!([order(19), order(18), order(0)], ["fbfb", "ffbb", "ffbb"]);
    let ranks = check_and_record_every_rank(WorkloadPattern::Palm(options));
    assert_eq!(ranks.len(), 320);
    for (rank, nodes) in (0..).zip(&ranks) {
        assert_eq!(
            nodes.len() as u64,
            generator.node_count_of_rank(rank),
            "{rank}"
        );
    }
}

/// The forward FLOPs are 2 (24 bsh² + 4 bs²h) / 32. With 89 samples of 2048 tokens, bsh = 1.8664e9,
/// bsh² = 1.9113e13 and bs²h = 3.8225e12, so each of 16 cores has 2.9625e13 FLOPs. The byte counts
/// are i = 2 bsh / 2 = 1780 MiB, 594 times the SRAM; r = 2 (3 / 2 + 12 / 16 + 2.5) bsh = 16910 MiB;
/// and w = 900 MiB. The traffic is 0.005 x 594 (2 x 1780 + 2 x 16910 + 900) = 113,690 MiB, which
/// PALM counts as MB.
#[test]
fn a_layer_costs_what_the_table_says() {
    let generator = PalmPattern::new().prepare_generator().unwrap();
    let near = |found: u64, expected: f64| {
        assert!(
            (found as f64 / expected - 1.0).abs() < 1e-4,
            "{found} {expected}"
        );
    };
    near(generator.flops[0], 2.96245e13);
    assert_eq!(generator.flops[1], 3 * generator.flops[0]);
    near(generator.access[0], 113_692.0e6);
    assert_eq!(generator.access[1], 0);
    near(generator.activations, 1780.0e6);
    assert_eq!(generator.passes, 21);
}

#[test]
fn sizes_that_do_not_divide_evenly_are_refused() {
    let why = |change: &dyn Fn(&mut PalmPattern)| {
        let mut options = PalmPattern::new();
        change(&mut options);
        rejection_message(WorkloadPattern::Palm(options))
    };
    assert!(why(&|o| o.tensor = 3).contains("a divisor of the 16 cores"));
    assert!(why(&|o| o.layers = 50).contains("a multiple of the 20 stages"));
    assert!(why(&|o| o.micro_batch = 0).starts_with("`micro_batch` is 0"));
    assert!(why(&|o| o.hidden = u32::MAX).contains("fewer samples"));
}
