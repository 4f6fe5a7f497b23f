//! How much is kept, and for how long.

use super::{GPT, Sums, gpt, job, products};
use chakram::generate::Plan;
use chakram::generate::plan::{Attention, Recompute, Zero};
use chakram::generate::schedule::Schedule;
use chakram::model::Block;
use chakram::trace::TensorClass;

/// PALM: stage i of S keeps the activations of S - i micro-batches under 1F1B, and of all m under GPipe.
#[test]
fn stages_keep_as_many_micro_batches_as_the_schedule_says() {
    let kept = |schedule| {
        let mut plan = Plan::new();
        plan.pipeline = 4;
        plan.batch = 8;
        plan.schedule = schedule;
        let job = job(&products(6, 10), &plan);
        // Six blocks do not fall into four stages.
        assert!(job.unwrap_err().contains("a divisor of the 6 blocks"));
        let job = super::job(&products(4, 10), &plan).unwrap();
        let stages = [1, 2].map(|stage| {
            // A product keeps its input of 10 numbers of 2 B.
            Sums::of(&job, stage).peak(TensorClass::Activations) / 20
        });
        stages.to_vec()
    };
    assert_eq!(kept(Schedule::OneForwardOneBackward), [3, 2]);
    assert_eq!(kept(Schedule::GPipe), [8, 8]);
}

/// Korthikanti et al., 2022, bytes of a block of h columns, a heads and s tokens among t members, with b samples:
/// eq. 2, s b h (10 + 24/t + 5 a s / (h t)); eq. 4 with sequence parallelism, s b h / t (34 + 5 a s / h); eq. 6
/// without scores, 34 s b h / t; eq. 5 with everything recomputed, 2 s b h, here each member its part.
#[test]
fn a_block_keeps_what_korthikanti_counts() {
    let Block {
        tokens: s,
        hidden: h,
        heads: a,
        ..
    } = GPT;
    let b = 3;
    let kept = |t: u32, sequence_parallel, recompute| {
        let mut plan = Plan::new();
        plan.tensor = t;
        plan.sequence_parallel = sequence_parallel;
        plan.attention = Attention::Unfused;
        plan.recompute = recompute;
        plan.batch = b;
        plan.micro_batch = b;
        let mut model = gpt();
        let sum = |model: &chakram::model::Model| {
            let job = job(model, &plan).unwrap();
            Sums::of(&job, 0).peak(TensorClass::Activations)
        };
        let four = sum(&model);
        model.layers.remove(1);
        // What one block more adds, at the moment when everything is kept.
        four - sum(&model)
    };
    for t in [1, 2, 4] {
        let n = u64::from(t);
        let scores = 5 * a * s * s * b / n;
        let whole = s * b * h * 10 + s * b * h * 24 / n + scores;
        assert_eq!(kept(t, false, Recompute::None), whole, "eq. 2, t = {t}");
        let selective = whole - scores;
        assert_eq!(kept(t, false, Recompute::Selective), selective, "t = {t}");
        assert_eq!(kept(t, false, Recompute::Full), 2 * s * b * h, "t = {t}");
        if t > 1 {
            let shared = s * b * h * 34 / n;
            assert_eq!(
                kept(t, true, Recompute::None),
                shared + scores,
                "eq. 4, t = {t}"
            );
            assert_eq!(
                kept(t, true, Recompute::Selective),
                shared,
                "eq. 6, t = {t}"
            );
            assert_eq!(
                kept(t, true, Recompute::Full),
                2 * s * b * h / n,
                "eq. 5, t = {t}"
            );
        }
    }
}

/// As much as is needed is recomputed, and no more.
#[test]
fn recomputation_as_needed_is_the_least_that_fits() {
    let peak = |recompute, capacity| {
        let mut plan = Plan::new();
        plan.attention = Attention::Unfused;
        plan.recompute = recompute;
        plan.capacity = capacity;
        plan.batch = 4;
        plan.micro_batch = 4;
        let job = job(&gpt(), &plan)?;
        Ok::<_, String>(Sums::of(&job, 0).peak.iter().sum::<u64>())
    };
    let [none, selective, full] =
        [Recompute::None, Recompute::Selective, Recompute::Full].map(|r| peak(r, None).unwrap());
    assert!(
        none > selective && selective > full,
        "{none} {selective} {full}"
    );
    for (capacity, expected) in [(none, none), (none - 1, selective), (selective - 1, full)] {
        assert_eq!(peak(Recompute::AsNeeded, Some(capacity)), Ok(expected));
    }
    let error = peak(Recompute::AsNeeded, Some(full / 2)).unwrap_err();
    assert!(error.contains("B of memory"), "{error}");
    let error = peak(Recompute::AsNeeded, None).unwrap_err();
    assert!(error.contains("beside a capacity"), "{error}");
}

/// Parameters that are gathered for a layer are there for that layer and those gathered ahead, and its gradients
/// until they are reduced.
#[test]
fn gathered_parameters_are_few_at_a_time() {
    let peak = |prefetch, reshard| {
        let mut plan = Plan::new();
        plan.data = 2;
        plan.batch = 2;
        plan.zero = Zero::Parameters;
        plan.prefetch = prefetch;
        plan.reshard = reshard;
        // A bucket for each layer.
        plan.bucket = 1;
        let job = job(&products(8, 10), &plan).unwrap();
        // A layer has 10 x 10 weights of 2 B, and as many gradients; the norms at the ends have 10.
        Sums::of(&job, 0).peak(TensorClass::Temporary)
    };
    assert_eq!(
        [peak(0, true), peak(1, true), peak(3, true)],
        [400, 600, 1000]
    );
    // All are there when the first products are gone through backwards; the last norm is not.
    assert_eq!(peak(0, false), 8 * 200 + 20 + 200);
}
