//! Checks costs, hours and days against values computed by hand.

use super::*;

/// A replay of 2 s on 16 NPUs with 8,000 tokens per second.
const BASIS: ReplayFiguresForCosts = ReplayFiguresForCosts {
    npus: 16.0,
    makespan: 2.0,
    tokens_per_s: Some(8000.0),
    ends: Some([0.8, 1.5]),
    watts: None,
};

fn assert_near(found: f64, expected: f64) {
    assert!(
        (found / expected - 1.0).abs() < 1e-12,
        "{found} for {expected}"
    );
}

#[test]
fn money_follows_from_hours_of_npus() {
    let cost = BASIS.cost_at_price(2.5);
    // The replay takes 16 x 2 / 3600 = 0.00889 NPU hours, at 2.5 dollars each.
    assert_near(cost.npu_hours, 32.0 / 3600.0);
    assert_near(cost.dollars, 80.0 / 3600.0);
    // An hour costs 16 x 2.5 = 40 dollars and yields 8,000 x 3,600 = 28.8 million tokens: 40 / 28.8 = 1.3889.
    let per_million = cost.dollars_per_million_tokens.unwrap();
    assert_near(per_million, 40.0 / 28.8);
    let [low, high] = cost.dollars_per_million_tokens_90.unwrap();
    assert_near(low, 0.8 * 40.0 / 28.8);
    assert_near(high, 1.5 * 40.0 / 28.8);
    let [low, high] = cost.dollars_90.unwrap();
    assert_near(low + high, 2.3 * 80.0 / 3600.0);
    let silent = ReplayFiguresForCosts {
        tokens_per_s: None,
        ends: None,
        ..BASIS
    };
    let cost = silent.cost_at_price(2.5);
    assert_eq!(
        (cost.dollars_per_million_tokens, cost.dollars_90),
        (None, None)
    );
    assert_eq!(silent.time_and_cost_for_tokens(7, Some(2.5)), None);
}

#[test]
fn time_and_cost_for_tokens_follow_from_tokens_per_second() {
    // The run takes 1e12 / 8000 = 1.25e8 s = 1446.76 days. On 16 NPUs this is 555,556 NPU hours. At 2.5 dollars each,
    // they cost 1,388,889 dollars.
    let run = BASIS
        .time_and_cost_for_tokens(1_000_000_000_000, Some(2.5))
        .unwrap();
    assert_near(run.days, 1.25e8 / 86_400.0);
    assert_near(run.npu_hours, 2e9 / 3600.0);
    assert_near(run.dollars.unwrap(), 5e9 / 3600.0);
    let [low, high] = run.days_90.unwrap();
    assert_near(low, 1e8 / 86_400.0);
    assert_near(high, 1.875e8 / 86_400.0);
    let [low, high] = run.dollars_90.unwrap();
    assert_near(low, 4e9 / 3600.0);
    assert_near(high, 7.5e9 / 3600.0);
    assert_eq!(run.kernel_energy_j, None);
    // The energy is 3 kW for 1.25e8 s. If the price is unknown, there is no cost.
    let lit = ReplayFiguresForCosts {
        watts: Some(3000.0),
        ..BASIS
    };
    let run = lit
        .time_and_cost_for_tokens(1_000_000_000_000, None)
        .unwrap();
    assert_near(run.kernel_energy_j.unwrap(), 3.75e11);
    assert_eq!((run.dollars, run.dollars_90), (None, None));
}

#[test]
fn dollar_amounts_have_as_many_digits_as_they_need() {
    for (amount, shown) in [
        (1_234_567.4, "$1,234,567"),
        (12.345, "$12.35"),
        (0.25, "$0.250"),
        (0.012_34, "$0.0123"),
        (0.000_012_34, "$0.0000123"),
        (0.0, "$0"),
    ] {
        assert_eq!(format_dollars(amount), shown);
    }
}
