//! Compares schedules of sub-layers with results computed by hand, and with the best of all
//! schedules.

use super::list::{SubLayerChipAssignmentError, schedule_by_durations};
use super::*;
use chakram_hardware::topology::chip_graph::{
    ChipGraph, LinkRateByLinkCount, RateInterpolationByLinkCount,
};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn build_layer_part(rows: u64, after: &[u32]) -> LayerPartOfOneAccelerator {
    LayerPartOfOneAccelerator {
        name: String::new(),
        record: SubLayerShapeAndKind::from_linear_layer(rows, 1, 1).unwrap(),
        after: after.to_vec(),
        piece: None,
        pieces: 1,
        weights: None,
        input: None,
    }
}

/// The record printed in the DEAP paper (Agrawal and Xu, 2023).
const SAMPLE: &str = "[[{\n  'C': 32,\n  'Hdilation': 1,\n  'Hstride': 1,\n  'K': 32,\n  'N': 1,\n  'P': 2500,\n  'Q': 1,\n  'R': 1,\n\
    'S': 1,\n  'Wdilation': 1,\n  'Wstride': 1,\n  'type': 'LinearLayer'\n}]]";

/// With I = 32 and O = 2,500, DEAP's Eq. 1 yields 63 x 2,500 = 157,500 operations for each of 32 output channels. This
/// layer has 32 x 32 x 2,500 multiplications.
#[test]
fn printed_record_has_operation_count_of_equation_1() {
    let (graph, schedule) = parse_schedule(SAMPLE, "s").unwrap();
    let record = &graph.tasks[0].record;
    assert_eq!(record.operation_count(), 32 * 157_500);
    assert_eq!(
        SubLayerShapeAndKind::from_linear_layer(1, 32, 2500)
            .unwrap()
            .operation_count(),
        157_500
    );
    assert_eq!(record.shape.mac_count(), 2_560_000);
    assert_eq!(schedule.chips, [[Some(0)]]);
}

#[test]
fn schedules_are_read_as_they_are_written() {
    let model = DeapLanguageModel {
        embedding: 8,
        forward: 16,
        heads: 2,
        encoders: 1,
        decoders: 1,
        vocabulary: 32,
        sequence: 4,
        micro_batches: 2,
        tensor: 2,
        partition: MatrixProductPartitionRule::Columns,
    };
    let graph = model.build_task_graph().unwrap();
    // The graph has six products of an encoder, ten of a decoder, and one for the vocabulary. Each
    // product has two parts and two micro-batches.
    assert_eq!(graph.tasks.len(), 17 * 2 * 2);
    let schedule =
        schedule_sub_layers_on_chips(&graph, 3, SubLayerChipAssignmentRule::Steps).unwrap();
    let text = format_schedule_file(&graph, &schedule);
    let (again, places) = parse_schedule(&text, "s").unwrap();
    assert_eq!(
        format_schedule_file(&again, &places)
            .matches("'id'")
            .count(),
        graph.tasks.len()
    );
    // The parsed schedule has the same sub-layers as the original, at the same positions and with
    // the same inputs.
    for step in 0..schedule.step_count() {
        for chip in 0..3 {
            let (one, other) = (
                schedule.sub_layer_of_accelerator_at_step(chip, step),
                places.sub_layer_of_accelerator_at_step(chip, step),
            );
            assert_eq!(one.is_some(), other.is_some());
            if let (Some(one), Some(other)) = (one, other) {
                let [one, other] = [&graph.tasks[one as usize], &again.tasks[other as usize]];
                assert_eq!(
                    (&one.record, one.weights, one.after.len()),
                    (&other.record, other.weights, other.after.len())
                );
            }
        }
    }
    assert_eq!(
        parse_schedule(&format_schedule_file(&again, &places), "s")
            .unwrap()
            .1,
        places
    );
    // The text mixes JSON and Python, with empty steps in both notations.
    let json = "[[{\"C\": 2, \"type\": \"LinearLayer\"}, null], [None, {'K': 3}]]";
    let (graph, places) = parse_schedule(json, "s").unwrap();
    assert_eq!(places.chips, [[Some(0), None], [None, Some(1)]]);
    // Without ids, the second step depends on the first.
    assert_eq!(graph.tasks[1].after, [0]);
}

#[test]
fn schedule_files_with_errors_are_refused_with_their_place() {
    for (text, said) in [
        ("[[{'C': 32", "s:1: expected `,` or `}`"),
        ("[[{'C': 0}]]", "s: chip 0, step 0: found"),
        ("[[{}, {'c': 1}]]", "chip 0, step 1: found"),
        ("[[{'C': 1, 'C': 2}]]", "found \"C\" twice"),
        ("[\n[{'C' 1}]]", "s:2: expected `:` behind \"C\""),
        ("[[{'C': -1}]]", "found '-', expected a literal"),
        (
            "[[{'id': 1, 'after': [2]}]]",
            "ids of sub-layers of earlier steps",
        ),
        ("[[{'id': 1, 'C': 1}, {'id': 1}]]", "id 1 twice"),
        ("{}", "the file: found"),
        ("[1]", "chip 0: found"),
        ("[[]] x", "found 'x', expected the end"),
        (
            "[[{'type': 'a\nb'}]]",
            "without a closing quote on its line",
        ),
        (&"[".repeat(99), "more than 16 nested lists"),
    ] {
        let error = parse_schedule(text, "s").unwrap_err().to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
}

fn task_graph_strategy() -> impl Strategy<Value = (OrderedSubLayersOfModel, usize)> {
    let tasks = prop::collection::vec((1_u64..9, any::<u8>()), 1..8);
    (tasks, 2_usize..4).prop_map(|(tasks, chips)| {
        let tasks = tasks.into_iter().enumerate().map(|(i, (rows, bits))| {
            let after: Vec<u32> = (0..i as u32)
                .filter(|one| bits >> one & 1 == 1 && bits & 1 == 1)
                .collect();
            build_layer_part(rows, &after)
        });
        (
            OrderedSubLayersOfModel {
                tasks: tasks.collect(),
            },
            chips,
        )
    })
}

/// Returns the shortest time that any order of the sub-layers takes. In each order, a sub-layer starts as early as its
/// chip and its dependencies allow.
fn find_shortest_schedule_time(graph: &OrderedSubLayersOfModel, chips: usize) -> u64 {
    fn search_schedule_orders(
        graph: &OrderedSubLayersOfModel,
        ends: &mut Vec<Option<u64>>,
        free: &mut Vec<u64>,
        best: &mut u64,
    ) {
        if ends.iter().all(Option::is_some) {
            *best = (*best).min(ends.iter().flatten().copied().max().unwrap());
            return;
        }
        for i in 0..graph.tasks.len() {
            let of = &graph.tasks[i];
            let ready: Option<Vec<u64>> = of.after.iter().map(|one| ends[*one as usize]).collect();
            let (None, Some(ready)) = (ends[i], ready) else {
                continue;
            };
            let from = ready.into_iter().max().unwrap_or(0);
            for chip in 0..free.len() {
                let before = free[chip];
                let end = before.max(from) + of.record.operation_count();
                if end < *best {
                    (free[chip], ends[i]) = (end, Some(end));
                    search_schedule_orders(graph, ends, free, best);
                    (free[chip], ends[i]) = (before, None);
                }
            }
        }
    }
    let mut best = u64::MAX;
    search_schedule_orders(
        graph,
        &mut vec![None; graph.tasks.len()],
        &mut vec![0; chips],
        &mut best,
    );
    best
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Tests that every sub-layer occurs once, after all its dependencies, and that a chip is idle only if none is
    /// ready.
    #[test]
    fn steps_keep_dependencies_and_leave_no_chip_idle((graph, chips) in task_graph_strategy()) {
        for rule in [SubLayerChipAssignmentRule::Steps, SubLayerChipAssignmentRule::Durations] {
            let schedule = schedule_sub_layers_on_chips(&graph, chips, rule).unwrap();
            let mut step_of = vec![None; graph.tasks.len()];
            for step in 0..schedule.step_count() {
                let done: BTreeSet<u32> = (0..graph.tasks.len() as u32)
                    .filter(|task| step_of[*task as usize].is_some())
                    .collect();
                let ready = |task: &LayerPartOfOneAccelerator| task.after.iter().all(|one| done.contains(one));
                let can = graph.tasks.iter().enumerate().filter(|(i, task)| !done.contains(&(*i as u32)) && ready(task)).count();
                let at: Vec<u32> = (0..chips).filter_map(|chip| schedule.sub_layer_of_accelerator_at_step(chip, step)).collect();
                for task in &at {
                    prop_assert!(ready(&graph.tasks[*task as usize]));
                    prop_assert_eq!(step_of[*task as usize].replace(step), None);
                }
                if rule == SubLayerChipAssignmentRule::Steps {
                    prop_assert_eq!(at.len(), can.min(chips));
                }
            }
            prop_assert!(step_of.iter().all(Option::is_some));
        }
    }

    /// Checks that the time is at least that of the longest path, and at most the sum of all sub-layers' times. By
    /// Graham's bound, it is also at most 2 - 1/N times the shortest time on N chips.
    #[test]
    fn durations_keep_grahams_bound((graph, chips) in task_graph_strategy()) {
        let (_, end) = schedule_by_durations(&graph, chips);
        let mut path = vec![0; graph.tasks.len()];
        for (i, task) in graph.tasks.iter().enumerate() {
            let before = task.after.iter().map(|one| path[*one as usize]).max().unwrap_or(0);
            path[i] = before + task.record.operation_count();
        }
        let all: u64 = graph.tasks.iter().map(|task| task.record.operation_count()).sum();
        prop_assert!(path.into_iter().max().unwrap() <= end && end <= all);
        let best = find_shortest_schedule_time(&graph, chips);
        prop_assert!(best <= end);
        prop_assert!(end * chips as u64 <= (2 * chips as u64 - 1) * best, "{} {}", end, best);
    }
}

/// Three sub-layers have no dependencies, and a fourth depends on the last of them. As printed, the algorithm gives all
/// three to the first chip, and the fourth to the second. It never completes a chain of three sub-layers on two chips.
#[test]
fn algorithm_1_as_printed_gives_one_chip_all_that_is_ready() {
    let graph = OrderedSubLayersOfModel {
        tasks: vec![
            build_layer_part(1, &[]),
            build_layer_part(1, &[]),
            build_layer_part(1, &[]),
            build_layer_part(1, &[2]),
        ],
    };
    let printed =
        schedule_sub_layers_on_chips(&graph, 2, SubLayerChipAssignmentRule::Printed).unwrap();
    assert_eq!(
        printed.chips,
        [vec![Some(0), Some(1), Some(2)], vec![None, Some(3)]]
    );
    let corrected =
        schedule_sub_layers_on_chips(&graph, 2, SubLayerChipAssignmentRule::Steps).unwrap();
    assert_eq!(
        corrected.chips,
        [[Some(0), Some(2), Some(3)], [Some(1), None, None]]
    );
    let chain = OrderedSubLayersOfModel {
        tasks: vec![
            build_layer_part(1, &[]),
            build_layer_part(1, &[0]),
            build_layer_part(1, &[1]),
        ],
    };
    let error =
        schedule_sub_layers_on_chips(&chain, 2, SubLayerChipAssignmentRule::Printed).unwrap_err();
    assert_eq!(
        error,
        SubLayerChipAssignmentError::Stuck { given: 2, all: 3 }
    );
    assert_eq!(
        schedule_sub_layers_on_chips(&chain, 0, SubLayerChipAssignmentRule::Steps),
        Err(SubLayerChipAssignmentError::NoChips)
    );
}

/// Creates a machine of four chips in a ring. The links have a unit rate of 64 GB/s.
fn build_ring_machine(capacity: Option<u64>) -> MultiChipMachine {
    MultiChipMachine {
        links: Some(ChipGraph::parse_named_shape("ring:4").unwrap()),
        technology: LinkRateByLinkCount {
            interface: 1.0,
            links: vec![(2, 4.0)],
            interpolation: RateInterpolationByLinkCount::None,
        },
        capacity,
        memory_bandwidth: Some(8.0),
        connection_power: 3.0,
        word: 1,
        accelerators: 1,
        dispatch: 0.0,
    }
}

/// Chip 0 computes A (10 B). Chip 2 computes B (20 B). Chip 1 receives both outputs over one hop at 4 B/s. The longer
/// transfer takes 5 s, and the 30 B take another 3.75 s to enter chip 1's memory at 8 B/s. In the next step, chip 0
/// receives B over one hop from chip 1. Chip 1 has had B since the previous step, because chip 2 is two hops away.
#[test]
fn chips_take_data_from_the_nearest_holder() {
    let tasks = vec![
        build_layer_part(10, &[]),
        build_layer_part(20, &[]),
        build_layer_part(1, &[0, 1]),
        build_layer_part(1, &[1]),
        build_layer_part(1, &[0]),
    ];
    let graph = OrderedSubLayersOfModel { tasks };
    let schedule = SubLayersByAcceleratorAndStep {
        chips: vec![
            vec![Some(0), None, Some(3), Some(4)],
            vec![None, Some(2), None, None],
            vec![Some(1), None, None, None],
            vec![None; 4],
        ],
    };
    let cost = SubLayerTimeAndEnergy {
        seconds: 7.0,
        joules: Some(2.0),
        cycles: 70,
    };
    let totals = build_ring_machine(None)
        .simulate_steps(&graph, &schedule, &[cost; 5])
        .unwrap();
    let log: Vec<String> = totals
        .log
        .iter()
        .map(ChipDataNeedOrEviction::to_string)
        .collect();
    assert_eq!(
        log,
        [
            "step 1 chip 1: output 0, 10 B from chip 0",
            "step 1 chip 1: output 1, 20 B from chip 2",
            "step 2 chip 0: output 1, 20 B from chip 1",
            "step 3 chip 0: output 0, 10 B on it",
        ]
    );
    let times: Vec<_> = totals
        .steps
        .iter()
        .map(|step| (step.communication, step.processing, step.joules))
        .collect();
    // Transfers take 2.5 s and 5 s at 3 W. The later communication stage takes 5 s + 20/8 s, and
    // all other stages take no time.
    let expected = [
        (0.0, 7.0, Some(4.0)),
        (5.0 + 3.75, 7.0, Some(2.0 + 7.5 * 3.0)),
        (5.0 + 2.5, 7.0, Some(2.0 + 5.0 * 3.0)),
        (0.0, 7.0, Some(2.0)),
    ];
    assert_eq!(times, expected);
    assert_eq!(totals.total_seconds(), 4.0 * 7.0 + 8.75 + 7.5);
    assert_eq!(totals.steps[1].between_chips, 30);
    // Without links, all data pass through interfaces of 1 B/s.
    let interfaces = MultiChipMachine {
        links: None,
        ..build_ring_machine(None)
    };
    let totals = interfaces
        .simulate_steps(&graph, &schedule, &[cost; 5])
        .unwrap();
    assert_eq!(totals.steps[1].communication, 20.0 + 3.75);
    // The table has no rate for a chip with three links.
    let many = MultiChipMachine {
        links: Some(ChipGraph::parse_named_shape("torus:2x4").unwrap()),
        ..build_ring_machine(None)
    };
    assert_eq!(
        many.simulate_steps(&graph, &schedule, &[cost; 5]),
        Err(ScheduleRunError::NoRate(3))
    );
}

/// Weights are loaded from memory only once. A chip with 25 B of memory that stores A and B must evict A. A is still
/// needed, so it is written to memory and loaded again later.
#[test]
fn data_beyond_memory_are_evicted_and_loaded_again() {
    let weights = |number| Some(number);
    let mut tasks = vec![
        build_layer_part(10, &[]),
        build_layer_part(12, &[]),
        build_layer_part(1, &[1]),
        build_layer_part(1, &[0]),
    ];
    tasks[0].weights = weights(0);
    tasks[3].weights = weights(0);
    let graph = OrderedSubLayersOfModel { tasks };
    let schedule = SubLayersByAcceleratorAndStep {
        chips: vec![vec![Some(0), Some(1), Some(2), Some(3)]],
    };
    let costs = [SubLayerTimeAndEnergy::default(); 4];
    let log = |capacity| {
        let totals = build_ring_machine(capacity)
            .simulate_steps(&graph, &schedule, &costs)
            .unwrap();
        totals
            .log
            .iter()
            .map(ChipDataNeedOrEviction::to_string)
            .collect::<Vec<_>>()
    };
    let all = log(None);
    assert_eq!(all[0], "step 0 chip 0: weights 0, 1 B from memory");
    assert_eq!(
        all[2..],
        [
            "step 3 chip 0: output 0, 10 B on it",
            "step 3 chip 0: weights 0, 1 B on it"
        ]
    );
    let few = log(Some(20));
    assert_eq!(
        few[1..3],
        [
            "step 1 chip 0: weights 0, 1 B evicted",
            "step 1 chip 0: output 0, 10 B evicted to memory"
        ]
    );
    assert!(few.contains(&"step 3 chip 0: output 0, 10 B from memory".to_owned()));
    let error = build_ring_machine(Some(11))
        .simulate_steps(&graph, &schedule, &costs)
        .unwrap_err();
    assert_eq!(
        error,
        ScheduleRunError::DoesNotFit {
            task: 1,
            needs: 12,
            holds: 11
        }
    );
}

/// The machine has two chips with two accelerators each. A (10 B) and B are computed on the first chip. Both sub-layers
/// of the second chip read A, which is transferred only once. The transfer takes 2.5 s over one hop at 4 B/s, and 1.25
/// s into the chip's memory at 8 B/s. In the first step, the host issues two commands of half a second each. In the
/// second step, the host issues one command for the transfer and two for the sub-layers.
#[test]
fn accelerators_of_a_chip_share_one_transfer_and_a_host_issues_commands() {
    let graph = OrderedSubLayersOfModel {
        tasks: vec![
            build_layer_part(10, &[]),
            build_layer_part(20, &[]),
            build_layer_part(1, &[0]),
            build_layer_part(1, &[0]),
        ],
    };
    let schedule = SubLayersByAcceleratorAndStep {
        chips: vec![
            vec![Some(0), None],
            vec![Some(1), None],
            vec![None, Some(2)],
            vec![None, Some(3)],
        ],
    };
    let cost = |seconds| SubLayerTimeAndEnergy {
        seconds,
        ..SubLayerTimeAndEnergy::default()
    };
    let machine = MultiChipMachine {
        accelerators: 2,
        dispatch: 0.5,
        ..build_ring_machine(None)
    };
    let costs = [7.0, 3.0, 1.0, 2.0].map(cost);
    let totals = machine.simulate_steps(&graph, &schedule, &costs).unwrap();
    let times = totals.steps.iter();
    let times: Vec<_> = times
        .map(|step| (step.dispatch, step.communication, step.processing))
        .collect();
    assert_eq!(times, [(1.0, 0.0, 7.0), (1.5, 3.75, 2.0)]);
    assert_eq!(totals.total_seconds(), 8.0 + 7.25);
    let log: Vec<String> = totals
        .log
        .iter()
        .map(ChipDataNeedOrEviction::to_string)
        .collect();
    assert_eq!(log, ["step 1 chip 1: output 0, 10 B from chip 0"]);
    // With four chips of one accelerator each, A must be sent to one more chip, so the host issues
    // a fourth command.
    let machine = MultiChipMachine {
        accelerators: 1,
        ..machine
    };
    let totals = machine.simulate_steps(&graph, &schedule, &costs).unwrap();
    assert_eq!(totals.steps[1].dispatch, 2.0);
    assert_eq!(totals.log.len(), 2);
}

/// A sub-layer that reads a piece of an output transfers only this piece; this also holds for schedules from files.
#[test]
fn sub_layer_transfers_only_the_piece_it_reads() {
    let text = "[[{'P': 10, 'id': 7, 'pieces': 2}, {'id': 8, 'after': [7], 'piece': 1}],\n\
                [None, {'id': 9, 'after': [7], 'piece': 0}]]";
    let (graph, schedule) = parse_schedule(text, "s").unwrap();
    let totals = build_ring_machine(None)
        .simulate_steps(&graph, &schedule, &[SubLayerTimeAndEnergy::default(); 3])
        .unwrap();
    let log: Vec<String> = totals
        .log
        .iter()
        .map(ChipDataNeedOrEviction::to_string)
        .collect();
    assert_eq!(
        log,
        [
            "step 0 chip 0: input 0, 10 B from memory",
            "step 1 chip 0: output 0.1, 5 B on it",
            "step 1 chip 1: output 0.0, 5 B from chip 0"
        ]
    );
    let again = format_schedule_file(&graph, &schedule);
    assert_eq!(parse_schedule(&again, "s").unwrap().0, graph);
    let wrong = text.replace("'piece': 1", "'piece': 2");
    let error = parse_schedule(&wrong, "s").unwrap_err().to_string();
    assert!(error.contains("found \"piece 2\""), "{error}");
}

/// Dropout and batch normalization are removed. Sub-layers after a removed layer read its inputs.
#[test]
fn layers_that_inference_does_not_compute_are_left_out() {
    let text = "[[{'K': 2, 'id': 1}, {'type': 'Dropout', 'id': 2, 'after': [1]},\n\
                {'type': 'BatchNorm2d', 'id': 3, 'after': [2]}, {'K': 3, 'id': 4, 'after': [3]}]]";
    let (graph, schedule) = parse_schedule(text, "s").unwrap();
    assert_eq!(graph.tasks.len(), 2);
    assert_eq!(graph.tasks[1].after, [0]);
    assert_eq!(schedule.chips, [[Some(0), None, None, Some(1)]]);
    // Without ids, a step depends on the latest earlier step that still has a sub-layer.
    let text = "[[{'K': 2}, {'type': 'Dropout'}, {'K': 3}]]";
    let (graph, _) = parse_schedule(text, "s").unwrap();
    assert_eq!(graph.tasks[1].after, [0]);
}
