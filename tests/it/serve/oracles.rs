//! Compares closed forms with simulations of single tasks, and policies with plain simulators, for every request.

use super::{
    build_platform_of_picosecond_cores, parse_scenario_text, serve_and_list_requests_by_id,
};
use chakram::serve::CompletedRequest;
use std::fmt::Write;
use testkit::serving::{
    JobOfEqualTasks, MultiJobRequest, PlainRequestOrderRule, WholeProcessorRequest,
    request_ends_with_tasks_dealt_in_turn, serve_requests_plainly,
};

/// A random sequence independent of the scenarios' own.
struct RandomSequence(u64);

impl RandomSequence {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Returns the number of random cases, which `CHAKRAM_CASES` overrides.
fn read_case_count(default: u64) -> u64 {
    let given = std::env::var("CHAKRAM_CASES").ok();
    given
        .and_then(|number| number.parse().ok())
        .unwrap_or(default)
}

/// Writes the models' arrivals in picoseconds, and returns the scenario's stream that reads them.
fn write_arrivals_and_format_stream(
    folder: &tempfile::TempDir,
    requests: &[(u64, usize)],
) -> String {
    let mut rows = "arrival_ps,model\n".to_owned();
    for (at, model) in requests {
        writeln!(rows, "{at},m{model}").unwrap();
    }
    let path = folder.path().join("arrivals.csv");
    std::fs::write(&path, rows).unwrap();
    format!("[stream]\narrivals = \"file\"\nfile = {path:?}\n")
}

/// Random graphs of jobs run on random numbers of cores. Requests of several models overlap, so the pointer to the next
/// core may be anywhere, and cores are busy when jobs arrive.
#[test]
fn closed_forms_equal_simulating_tasks_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut numbers = RandomSequence(1);
    let (mut jobs_seen, mut overlapped) = (0, 0);
    for case in 0..read_case_count(250) {
        let cores = 1 + numbers.below(13) as usize;
        let mut models = Vec::new();
        let mut text = format!("name = \"case {case}\"\n");
        for model in 0..1 + numbers.below(3) {
            let mut jobs: Vec<JobOfEqualTasks> = Vec::new();
            let mut list = String::new();
            let chain = numbers.below(2) == 0;
            for j in 0..1 + numbers.below(6) as usize {
                let (tasks, length) = (1 + numbers.below(40), 1 + numbers.below(50));
                let after: Vec<usize> = match chain {
                    true => j.checked_sub(1).into_iter().collect(),
                    false => (0..j).filter(|_| numbers.below(3) == 0).collect(),
                };
                write!(
                    list,
                    "{{ tasks = {tasks}, length = {length}, after = {after:?} }},"
                )
                .unwrap();
                jobs.push(JobOfEqualTasks {
                    tasks,
                    length,
                    after,
                });
            }
            write!(text, "[[model]]\nname = \"m{model}\"\njobs = [{list}]\n").unwrap();
            models.push(jobs);
        }
        let mut at = 0;
        let requests: Vec<(u64, usize)> = (0..1 + numbers.below(8))
            .map(|_| {
                at += numbers.below(120);
                (at, numbers.below(models.len() as u64) as usize)
            })
            .collect();
        text += &write_arrivals_and_format_stream(&folder, &requests);
        let plain: Vec<MultiJobRequest> = requests
            .iter()
            .map(|&(ready, model)| MultiJobRequest {
                ready,
                jobs: models[model].clone(),
            })
            .collect();
        jobs_seen += plain
            .iter()
            .map(|request| request.jobs.len())
            .sum::<usize>();
        let ends = request_ends_with_tasks_dealt_in_turn(cores, &plain);
        let (report, found) = serve_and_list_requests_by_id(
            &parse_scenario_text(&text),
            Some(&build_platform_of_picosecond_cores(cores)),
        );
        for (model, jobs) in models.iter().enumerate() {
            let one = MultiJobRequest {
                ready: 0,
                jobs: jobs.clone(),
            };
            let alone = report.row_of_model(&format!("m{model}")).unwrap().alone;
            let plain = request_ends_with_tasks_dealt_in_turn(cores, &[one]);
            assert_eq!(alone.unwrap().0, plain[0], "alone: m{model}\n{text}");
        }
        let found: Vec<u64> = found.iter().map(|request| request.finished.0).collect();
        assert_eq!(found, ends, "{cores} cores\n{text}{requests:?}");
        overlapped += usize::from(
            ends.windows(2)
                .zip(&requests[1..])
                .any(|(pair, next)| pair[0] > next.0),
        );
    }
    assert!(
        jobs_seen as u64 > read_case_count(250) * 3 && overlapped as u64 > read_case_count(250) / 4
    );
}

/// Tests random scenarios of a policy on one to three processors. The scenarios have datapath
/// latencies, requests that arrive together, and jobs at whose boundaries requests may be
/// preempted.
fn check_policy_on_random_scenarios(
    seed: u64,
    policy: impl Fn(&mut RandomSequence) -> (PlainRequestOrderRule, String),
    preempts: bool,
) {
    let folder = tempfile::tempdir().unwrap();
    let mut numbers = RandomSequence(seed);
    let (mut waits, mut put_back, mut batches) = (0_u64, 0_u64, 0_u64);
    for case in 0..read_case_count(150) {
        let (plain, kind) = policy(&mut numbers);
        let processors = 1 + numbers.below(3) as usize;
        let cost = (preempts && numbers.below(3) > 0).then(|| numbers.below(30));
        let mut text = format!("name = \"case {case}\"\nprocessors = {processors}\n");
        let models: Vec<(Vec<u64>, u64, u64)> = (0..1 + numbers.below(4))
            .map(|_| {
                let jobs = (0..1 + numbers.below(4))
                    .map(|_| 1 + numbers.below(60))
                    .collect();
                (jobs, numbers.below(4), 300 + numbers.below(900))
            })
            .collect();
        for (number, (jobs, level, deadline)) in models.iter().enumerate() {
            let jobs: Vec<String> = jobs
                .iter()
                .map(|length| format!("{{ tasks = 1, length = {length} }}"))
                .collect();
            write!(
                text,
                "[[model]]\nname = \"m{number}\"\njobs = [{}]\npriority = {level}\ndeadline = \"{deadline} ps\"\n",
                jobs.join(", ")
            )
            .unwrap();
        }
        let mut at = 0;
        let requests: Vec<(u64, usize)> = (0..2 + numbers.below(25))
            .map(|_| {
                at += numbers.below(4) * numbers.below(50);
                (at, numbers.below(models.len() as u64) as usize)
            })
            .collect();
        text += &write_arrivals_and_format_stream(&folder, &requests);
        let preemption = cost.map_or(String::new(), |cost| {
            format!("preemption = \"{cost} ps\"\n")
        });
        write!(text, "[policy]\n{kind}\n{preemption}").unwrap();
        let plainly: Vec<WholeProcessorRequest> = requests
            .iter()
            .map(|&(ready, model)| WholeProcessorRequest {
                ready,
                model,
                level: models[model].1,
                due: ready + models[model].2,
                jobs: models[model].0.clone(),
            })
            .collect();
        let expected = serve_requests_plainly(plain, processors, cost, &plainly);
        let (report, found) = serve_and_list_requests_by_id(
            &parse_scenario_text(&text),
            Some(&build_platform_of_picosecond_cores(1)),
        );
        for (request, expected) in found.iter().zip(&expected) {
            let times = |one: &CompletedRequest| {
                (
                    one.finished.0,
                    one.compute.0,
                    one.preempted.0,
                    one.together as usize,
                )
            };
            let plain = (
                expected.end,
                expected.compute,
                expected.preempted,
                expected.together,
            );
            assert_eq!(
                times(request),
                plain,
                "request {}\n{text}{requests:?}",
                request.number
            );
            waits += u64::from(request.queue.0 > 0);
            batches += u64::from(request.together > 1);
        }
        assert_eq!(found.len(), expected.len());
        put_back += report.preemptions;
    }
    assert!(waits > read_case_count(150), "requests wait: {waits}");
    assert_eq!(preempts, put_back > 0, "{put_back} put back");
    println!("{waits} waited, {put_back} put back, {batches} in batches");
}

#[test]
fn first_come_is_first_served() {
    check_policy_on_random_scenarios(
        2,
        |_| {
            (
                PlainRequestOrderRule::FirstCome,
                "kind = \"first-come\"".to_owned(),
            )
        },
        false,
    );
}

#[test]
fn the_shortest_goes_first() {
    let policy = |_: &mut RandomSequence| {
        (
            PlainRequestOrderRule::Shortest,
            "kind = \"shortest-job-first\"".to_owned(),
        )
    };
    check_policy_on_random_scenarios(3, policy, false);
    check_policy_on_random_scenarios(4, policy, true);
}

#[test]
fn the_highest_priority_request_goes_first_with_or_without_aging() {
    let policy = |numbers: &mut RandomSequence| match numbers.below(2) {
        0 => (
            PlainRequestOrderRule::Priority(None),
            "kind = \"priority\"".to_owned(),
        ),
        _ => {
            let aging = 1 + numbers.below(200);
            let text = format!("kind = \"priority\"\naging = \"{aging} ps\"");
            (PlainRequestOrderRule::Priority(Some(aging)), text)
        }
    };
    check_policy_on_random_scenarios(5, policy, false);
    check_policy_on_random_scenarios(6, policy, true);
}

#[test]
fn the_earliest_deadline_goes_first() {
    let policy = |_: &mut RandomSequence| {
        (
            PlainRequestOrderRule::Deadline,
            "kind = \"earliest-deadline\"".to_owned(),
        )
    };
    check_policy_on_random_scenarios(7, policy, false);
    check_policy_on_random_scenarios(8, policy, true);
}

#[test]
fn batches_are_of_one_model() {
    let policy = |numbers: &mut RandomSequence| {
        let (most, wait) = (1 + numbers.below(5), numbers.below(150));
        let text = format!("kind = \"batching\"\nbatch = {most}\nwait = \"{wait} ps\"");
        (PlainRequestOrderRule::Batching(most as usize, wait), text)
    };
    check_policy_on_random_scenarios(9, policy, false);
}

/// A request of level 3 with an aging time of 100 is overtaken only by requests that arrive less than 300 ps after it.
#[test]
fn aging_bounds_how_long_low_priority_requests_are_overtaken() {
    let folder = tempfile::tempdir().unwrap();
    // At 0 a request of level 3 waits for a busy processor. Urgent requests of 50 ps arrive every
    // 50 ps, ten of them before the processor is free.
    let mut requests = vec![(0, 0), (0, 1)];
    requests.extend((1..200).map(|i| (i * 50 - 10, 0)));
    let stream = write_arrivals_and_format_stream(&folder, &requests);
    let text = format!(
        "name = \"starve\"\n[[model]]\nname = \"m0\"\njobs = [{{ tasks = 1, length = 50 }}]\n\
         [[model]]\nname = \"m1\"\njobs = [{{ tasks = 1, length = 10 }}]\npriority = 3\n{stream}\
         [policy]\nkind = \"priority\""
    );
    let starts = |text: &str| {
        let (_, found) = serve_and_list_requests_by_id(
            &parse_scenario_text(text),
            Some(&build_platform_of_picosecond_cores(1)),
        );
        found[1].started.0
    };
    assert_eq!(starts(&text), 199 * 50 + 50, "without aging it is the last");
    // The request that arrives at 290 overtakes it, from 300 to 350; the request at 340 does not.
    assert_eq!(starts(&format!("{text}\naging = \"100 ps\"")), 350);
}

/// A share of 0.3 of 7 tasks means 2.1 skipped tasks on average, so each request skips 2 or 3, and the mean over
/// requests is 2.1.
#[test]
fn sparsity_skips_the_share_that_it_says() {
    let text = "name = \"sparse\"\nseed = 5\n[[model]]\nname = \"m\"\njobs = [{ tasks = 7, length = 1000 }]\nsparsity = 0.3\n\
                [stream]\narrivals = \"periodic\"\nrate = 1000000.0\n[stop]\nrequests = 20000";
    let (_, found) = serve_and_list_requests_by_id(
        &parse_scenario_text(text),
        Some(&build_platform_of_picosecond_cores(1)),
    );
    let kept: Vec<u64> = found
        .iter()
        .map(|request| request.compute.0 / 1000)
        .collect();
    assert!(kept.iter().all(|kept| [4, 5].contains(kept)));
    let mean = kept.iter().sum::<u64>() as f64 / 20_000.0;
    // The standard deviation of the mean is 0.3 / sqrt(20,000) = 0.002.
    assert!((mean - 4.9).abs() < 0.008, "{mean}");
}
