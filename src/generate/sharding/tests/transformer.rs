//! The sums of a transformer's layer, in all and one by one.

use super::layer::TransformerRow;
use super::*;

/// T-145B of PALM's Table IV, a layer.
const T145: TransformerRow = TransformerRow {
    batch: 115,
    tokens: 2048,
    hidden: 12288,
    heads: 96,
};

#[test]
fn eq_6_has_its_least_between_one_and_four() {
    // 8 B S H Nm / N = 8 x 115 x 2048 x 12288 / 16 Nm = 1.447034e9 Nm, 24 H^2 / Nm = 3.623879e9 / Nm.
    let published = [5.0709e9, 4.7060e9, 6.6941e9, 1.2029e10, 2.3379e10];
    for (power, expected) in published.into_iter().enumerate() {
        let volume = T145.volume(16.0, f64::from(1 << power));
        // Five digits are known.
        assert!((volume / expected - 1.0).abs() < 5e-5, "{power}: {volume}");
    }
    // sqrt(3 x 12288 x 16 / (115 x 2048)) = sqrt(589824 / 235520) = 1.58252.
    let best = T145.optimum(16.0);
    assert!((best - 1.58252).abs() < 1e-5, "{best}");
    let least = T145.volume(16.0, best);
    for near in [0.9, 0.99, 1.01, 1.1] {
        assert!(T145.volume(16.0, best * near) > least, "{near}");
    }
}

#[test]
fn a_transformers_sums_are_eq_6() {
    // With 128 samples all parts are whole; two bytes for each element of the three sums.
    let row = TransformerRow { batch: 128, ..T145 };
    for model in [1, 2, 4, 8, 16] {
        let data = 16 / model;
        let cut = row.sharding(data, model, 16).unwrap();
        let sums = [cut.forward, cut.backward, cut.update];
        let bytes: u64 = sums.iter().map(|one| 2 * one.elements).sum();
        assert_eq!(bytes as f64, row.volume(16.0, f64::from(model)), "{model}");
        assert_eq!(sums.map(|one| one.size), [model, model, data]);
        // 24 B S H^2 + 4 B S^2 H = 24 x 128 x 2048 x 12288^2 + 4 x 128 x 2048^2 x 12288.
        let flops = 24_u128 * 128 * 2048 * 12288 * 12288 + 4 * 128 * 2048 * 2048 * 12288;
        assert_eq!(u128::from(cut.flops) * 16, flops);
    }
    // Members of a replica follow one another.
    let cut = row.sharding(2, 4, 8).unwrap();
    let devices: Vec<Rank> = (0..8).map(Rank).collect();
    assert_eq!(
        cut.groups(&cut.forward, &devices)[1],
        [4, 5, 6, 7].map(Rank)
    );
    assert_eq!(cut.groups(&cut.update, &devices)[1], [1, 5].map(Rank));
    let error = row.sharding(2, 10, 20).unwrap_err().to_string();
    assert_eq!(
        error,
        "`Nm` is 10; expected a divisor of the 96 heads and the 12288 columns, for parts are equal, such as 8 or 12"
    );
    let error = T145.sharding(16, 1, 8).unwrap_err().to_string();
    assert_eq!(
        error,
        "`devices` is 8; expected 16, the product of the degrees Nd 16, Nm 1"
    );
}
