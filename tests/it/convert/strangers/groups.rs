//! Tests collectives of unnamed groups, as PyTorch 2.1 and 2.2 write them. A record states only the
//! number of members, and each group has its own stream.

use super::gpu_job::{
    COMMUNICATION, assert_job_converts_with_device_time, convert_rank_files, generate_rank_files,
    has_category, sum_kernel_ns, trace_events_mut,
};
use serde_json::{Value, json};

/// Returns the groups of ranks along each dimension of a grid, fastest dimension first.
fn list_grid_groups(sizes: &[u64]) -> Vec<Vec<Vec<u64>>> {
    let ranks: u64 = sizes.iter().product();
    let mut stride = 1;
    let along = sizes.iter().map(|&size| {
        let step = stride;
        stride *= size;
        let first = (0..ranks).filter(|rank| rank / step % size == 0);
        first
            .map(|first| (0..size).map(|i| first + i * step).collect())
            .collect()
    });
    along.collect()
}

/// Assigns the collectives of layers in turn to the dimensions of a grid. Members of one group end
/// within 1 µs of one another. Different groups end at least 7 µs apart.
fn assign_collectives_to_grid(all: &mut [Value], sizes: &[u64], named: bool) {
    let dimensions = list_grid_groups(sizes);
    for (rank, file) in (0..).zip(all) {
        if !named {
            file["distributedInfo"]
                .as_object_mut()
                .unwrap()
                .remove("pg_config");
        } else {
            let own = dimensions.iter().enumerate().map(|(d, groups)| {
                let group = groups.iter().find(|group| group.contains(&rank)).unwrap();
                json!({"pg_name": (d + 1).to_string(), "pg_size": group.len(), "ranks": group})
            });
            file["distributedInfo"]["pg_config"] = own.collect();
        }
        let mut seen = [0, 0];
        for event in trace_events_mut(file) {
            if event["args"]["Collective name"].is_null() {
                continue;
            }
            let kernel = has_category(event, "kernel");
            let number = seen[usize::from(kernel)];
            seen[usize::from(kernel)] += 1;
            let dimension = number % dimensions.len();
            let groups = &dimensions[dimension];
            let place = groups
                .iter()
                .position(|group| group.contains(&rank))
                .unwrap();
            let args = event["args"].as_object_mut().unwrap();
            args.retain(|key, _| !key.starts_with("Process Group"));
            args["Group size"] = json!(groups[place].len());
            if kernel {
                let stream = COMMUNICATION + 4 * dimension as u64;
                args["stream"] = json!(stream);
                event["tid"] = json!(stream);
                let later = 7 * place as u64 + 3 * (number as u64 % 5 * place as u64) + rank % 2;
                event["dur"] = json!(event["dur"].as_f64().unwrap() + later as f64);
            }
        }
    }
}

/// Returns the inferred groups with their numbers of collectives, in order.
fn infer_grid_groups(
    sizes: &[u64],
    layers: u64,
    named: bool,
    present: impl Fn(u64) -> bool,
) -> Vec<(Vec<u32>, u64)> {
    let ranks: u64 = sizes.iter().product();
    let mut all = generate_rank_files(ranks, layers);
    assign_collectives_to_grid(&mut all, sizes, named);
    let kept: Vec<Value> = (0..)
        .zip(all)
        .filter(|(rank, _)| present(*rank))
        .map(|(_, file)| file)
        .collect();
    let texts: Vec<String> = kept.iter().map(Value::to_string).collect();
    let job = if kept.len() as u64 == ranks {
        // Each layer has one collective for each group of the dimension.
        let groups: Vec<u64> = sizes.iter().map(|size| ranks / size).collect();
        let calls = (0..layers)
            .map(|layer| groups[layer as usize % groups.len()])
            .sum();
        assert_job_converts_with_device_time(
            &format!("{sizes:?}"),
            &texts,
            sum_kernel_ns(&kept),
            calls,
        )
    } else {
        convert_rank_files(&texts).unwrap()
    };
    let groups = job
        .summary
        .groups
        .iter()
        .filter(|group| group.collectives > 0);
    let mut groups: Vec<_> = groups
        .map(|group| (group.ranks.clone(), group.collectives))
        .collect();
    groups.sort();
    groups
}

fn expected_grid_groups(sizes: &[u64], each: u64) -> Vec<(Vec<u32>, u64)> {
    let all = list_grid_groups(sizes).into_iter().flatten();
    let mut all: Vec<_> = all
        .map(|group| (group.iter().map(|&rank| rank as u32).collect(), each))
        .collect();
    all.sort();
    all
}

#[test]
fn grids_without_names_are_told_by_streams_and_ends() {
    for (sizes, layers) in [(&[2, 2][..], 6), (&[2, 2, 2], 9), (&[4, 2], 6)] {
        let each = layers / sizes.len() as u64;
        for named in [false, true] {
            let found = infer_grid_groups(sizes, layers, named, |_| true);
            assert_eq!(
                found,
                expected_grid_groups(sizes, each),
                "{sizes:?}, declared {named}"
            );
        }
    }
}

/// The members nearest in time may be absent, so only declared groups are reported.
#[test]
fn of_some_ranks_only_declared_groups_are_told() {
    assert_eq!(
        infer_grid_groups(&[2, 2], 6, false, |rank| rank % 3 == 0),
        []
    );
    // The sizes alone determine the groups of a 4 x 2 grid.
    let all = infer_grid_groups(&[4, 2], 6, true, |rank| rank < 4);
    assert_eq!(all[0], ((0..4).collect(), 3), "{all:?}");
}
