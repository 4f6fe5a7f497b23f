//! Cuts a model's layers into the parts of a pipeline.

use crate::generate::plan::{ParallelismPlan, SplitUnit};
use crate::generate::schedule::PipelineSchedule;
use crate::model::{LayerRole, Model, ModelLayer};

/// Returns the first layer of each part; the last entry is the number of layers. With [`SplitUnit::Blocks`], layers
/// before the blocks belong to the first part, and layers after them to the last. With [`SplitUnit::Layers`], all
/// layers count equally.
pub(super) fn first_layers_of_parts(model: &Model, plan: &ParallelismPlan) -> Vec<usize> {
    let count = model.layers.len();
    let parts = plan.schedule.part_count(plan.pipeline) as usize;
    if !plan.stages.is_empty() {
        let starts = plan.stages.iter().map(|[first, _]| *first as usize);
        return starts.chain([count]).collect();
    }
    if matches!(plan.schedule, PipelineSchedule::LayerWise { .. }) {
        return (0..=count).collect();
    }
    // The blocks or layers divide evenly among the parts, and there are no more parts than layers, because `check`
    // rejects other plans.
    match plan.split {
        SplitUnit::Layers => {
            let each = count / parts;
            (0..=parts).map(|part| part * each).collect()
        }
        SplitUnit::Blocks => {
            let is_block = |layer: &&ModelLayer| layer.role == LayerRole::Block;
            let layers = model.layers.iter();
            let before = layers.clone().take_while(|layer| !is_block(layer)).count();
            let each = layers.filter(is_block).count() / parts;
            let inner = (1..parts).map(|part| before + part * each);
            [0].into_iter().chain(inner).chain([count]).collect()
        }
        SplitUnit::Multiplications => {
            let layers = model.layers.iter();
            let counts: Vec<u64> = layers.map(ModelLayer::multiplication_count).collect();
            min_max_partition(&counts, parts)
        }
    }
}

/// Divides `counts` into `parts` consecutive runs so that the largest sum of any run is as small as possible. Returns
/// the start of each run, followed by the end of the last run. Later runs are filled first, which keeps the first run
/// small: the first stage has the most micro-batches in flight.
fn min_max_partition(counts: &[u64], parts: usize) -> Vec<usize> {
    let fits = |most: u128| {
        let (mut runs, mut sum) = (1, 0);
        for &count in counts.iter().rev() {
            sum += u128::from(count);
            if sum > most {
                (runs, sum) = (runs + 1, count.into());
            }
        }
        runs <= parts
    };
    // The largest sum is at least the largest count and at most the total.
    let total: u128 = counts.iter().map(|&count| u128::from(count)).sum();
    let largest = counts.iter().max().map_or(0, |&count| count.into());
    let (mut least, mut most) = (largest, total);
    while least < most {
        let middle = least + (most - least) / 2;
        if fits(middle) {
            most = middle;
        } else {
            least = middle + 1;
        }
    }
    let (mut starts, mut end) = (vec![counts.len()], counts.len());
    for before in (1..parts).rev() {
        let (mut start, mut sum) = (end, 0);
        // Leave at least one entry for each earlier run, so that no run is empty.
        while start > before {
            sum += u128::from(counts[start - 1]);
            if sum > least && start < end {
                break;
            }
            start -= 1;
        }
        starts.push(start);
        end = start;
    }
    starts.push(0);
    starts.reverse();
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finds the minimal largest sum by trying all cuts.
    fn smallest_largest_sum_by_trying_all_cuts(counts: &[u64], parts: usize) -> u64 {
        if parts == 1 {
            return counts.iter().sum();
        }
        let firsts = 1..=counts.len() - (parts - 1);
        let trial = |first: usize| {
            let own: u64 = counts[..first].iter().sum();
            own.max(smallest_largest_sum_by_trying_all_cuts(
                &counts[first..],
                parts - 1,
            ))
        };
        firsts.map(trial).min().unwrap()
    }

    #[test]
    fn no_cut_has_a_smaller_largest_part() {
        let mut seed = 1_u64;
        for length in 1..9 {
            for parts in 1..=length {
                for _ in 0..20 {
                    let counts: Vec<u64> = (0..length)
                        .map(|_| {
                            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                            (seed >> 33) % 7
                        })
                        .collect();
                    let starts = min_max_partition(&counts, parts);
                    assert_eq!(starts.len(), parts + 1);
                    assert!(
                        starts.is_sorted_by(|a, b| a < b),
                        "{starts:?} of {counts:?}"
                    );
                    assert_eq!((starts[0], starts[parts]), (0, length));
                    let sums = starts
                        .windows(2)
                        .map(|run| counts[run[0]..run[1]].iter().sum());
                    let largest: u64 = sums.max().unwrap();
                    assert_eq!(
                        largest,
                        smallest_largest_sum_by_trying_all_cuts(&counts, parts),
                        "{starts:?} of {counts:?}"
                    );
                }
            }
        }
    }

    /// The counts are units of work; Llama's head takes more work than a block, so its stage gets fewer blocks.
    #[test]
    fn a_stage_with_the_head_has_fewer_blocks() {
        let counts = [0, 4, 4, 4, 4, 4, 4, 6];
        // A total of 30 is divided into three parts. Some part therefore has at least three blocks (12), or at least
        // two blocks and the head (14). If no part exceeds 12, the last part has the head and one block, the second has
        // three blocks, and the first has the other two.
        assert_eq!(min_max_partition(&counts, 3), [0, 3, 6, 8]);
    }
}
