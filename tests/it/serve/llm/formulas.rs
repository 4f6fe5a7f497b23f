//! Compares tables with values by hand, and queues with formulas.

use super::{StepAndRequestLog, serve_llm_and_check_repeated_steps_agree};

/// An engine whose steps take 1 us.
const MICROSECOND_STEPS: &str = "[step]\nbase = \"1 us\"\n";

fn sum_logged_tokens_per_step(log: &StepAndRequestLog) -> Vec<usize> {
    let steps = log.steps.iter();
    steps
        .map(|step| step.parts.iter().map(|part| part.2).sum())
        .collect()
}

/// A hundred requests have answers that last longer than the run. A later prompt has 5,000 tokens,
/// with a budget of 2,048, so the prompt's chunks are 1,948, 1,948 and 1,104 tokens.
#[test]
fn a_long_prompt_takes_the_token_budget_left_by_answers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("requests.csv");
    let mut rows = "arrival_us,input_toks,output_toks\n".to_owned();
    rows += &"0,1,20\n".repeat(100);
    rows += "5,5000,2\n";
    std::fs::write(&file, rows).unwrap();
    let text = format!(
        "name = \"chunks\"\n[engine]\nblocks = 10000\nmax_num_batched_tokens = 2048\n{MICROSECOND_STEPS}\
         [requests]\narrivals = \"file\"\nfile = {file:?}\n"
    );
    let (_, log) = serve_llm_and_check_repeated_steps_agree(&text);
    let parts = log.steps.iter().flat_map(|step| &step.parts);
    let long: Vec<usize> = parts
        .filter(|part| part.0 == 100)
        .map(|part| part.2)
        .collect();
    assert_eq!(long, [1948, 1948, 1104, 1]);
    // The prompt arrives when the fifth step ends, is computed in the sixth to the eighth, and has its first token at
    // the end of the eighth.
    let of = log.requests[100];
    assert_eq!(
        [of.scheduled.0, of.first.0, of.last.0],
        [5, 8, 9].map(|us| us * 1_000_000)
    );
    // The answers are older requests, so they are served first.
    assert_eq!(log.steps[5].parts[0], (0, 5, 1));
}

/// There are ten blocks of four tokens, and three requests with a prompt of eight tokens and an answer of eight tokens.
/// Each request has two blocks, then three. The first request's fourth block empties the pool, and the second's
/// preempts the third request, which loses 12 tokens. When both have ended, the third computes its 13 tokens again.
#[test]
fn the_last_request_is_preempted_for_lack_of_a_block() {
    let text = format!(
        "name = \"blocks\"\n[engine]\nblocks = 10\nblock_size = 4\nprefix_caching = false\n{MICROSECOND_STEPS}\
         [requests]\narrivals = \"at-once\"\ncount = 3\n[[class]]\nname = \"a\"\ninput = 8\noutput = 8\n"
    );
    let (report, log) = serve_llm_and_check_repeated_steps_agree(&text);
    assert_eq!(
        sum_logged_tokens_per_step(&log),
        [24, 3, 3, 3, 3, 2, 2, 2, 13, 1, 1]
    );
    let free: Vec<usize> = log.steps.iter().map(|step| step.free).collect();
    assert_eq!(free, [4, 1, 1, 1, 1, 2, 2, 2, 6, 6, 6]);
    let put_back: Vec<&[usize]> = log.steps.iter().map(|step| &step.put_back[..]).collect();
    assert_eq!(put_back[5], [2]);
    assert_eq!(put_back.iter().map(|all| all.len()).sum::<usize>(), 1);
    let ends: Vec<u64> = log
        .requests
        .iter()
        .map(|of| of.last.0 / 1_000_000)
        .collect();
    assert_eq!(ends, [8, 8, 11]);
    assert_eq!(
        (report.preemptions, report.cache.recomputed_tokens),
        (1, 12)
    );
    let third = &log.requests[2];
    assert_eq!((third.output, third.put_back, third.recomputed), (8, 1, 12));
}

/// With one request at a time, the mean wait of Poisson arrivals is rho S / (2 (1 - rho)).
#[test]
fn one_at_a_time_is_a_queue_with_constant_service() {
    for (rho, within) in [(0.5, 0.02), (0.8, 0.03)] {
        let rate = rho * 1e6 / 3.0;
        // Each request is a prompt and two more tokens, which take three steps of 1 us.
        let text = format!(
            "name = \"queue\"\n[engine]\nblocks = 10\nmax_num_seqs = 1\n{MICROSECOND_STEPS}\
             [requests]\narrivals = \"poisson\"\nrate = {rate}\ncount = 60000\n\
             [[class]]\nname = \"a\"\ninput = 5\noutput = 3\n"
        );
        let (report, _) = serve_llm_and_check_repeated_steps_agree(&text);
        let wait = report
            .row_of_all_classes()
            .unwrap()
            .queue
            .mean
            .unwrap()
            .value
            .as_seconds();
        let expected = rho * 3e-6 / (2.0 * (1.0 - rho));
        assert!(
            (wait / expected - 1.0).abs() < within,
            "rho {rho}: {wait} and {expected}"
        );
        // The run itself checks Little's law; the mean number of running requests is rho.
        assert!(
            (report.running.mean / rho - 1.0).abs() < 0.02,
            "{}",
            report.running.mean
        );
    }
}

/// Steps take constant time, and all requests fit in memory. A request waits half a step on average until the next step
/// begins, and then takes its steps. The time to first token does not depend on the load.
#[test]
fn constant_steps_without_limits_serve_any_load_alike() {
    let mut waits = Vec::new();
    for rate in [2e6, 20e6] {
        let text = format!(
            "name = \"steps\"\n[engine]\nblocks = 100000\nmax_num_seqs = 100000\nmax_num_batched_tokens = 1000000\n\
             {MICROSECOND_STEPS}[requests]\narrivals = \"poisson\"\nrate = {rate}\ncount = 30000\n\
             [[class]]\nname = \"a\"\ninput = 3\noutput = 40\n[measure]\nwarmup = 100\n"
        );
        let (report, _) = serve_llm_and_check_repeated_steps_agree(&text);
        let all = report.row_of_all_classes().unwrap();
        let mean = all.e2e.mean.unwrap().value.as_seconds();
        assert!((mean / 40.5e-6 - 1.0).abs() < 0.005, "{mean}");
        waits.push(all.ttft.mean.unwrap().value.as_seconds());
        assert!((all.tpot.mean.unwrap().value.as_seconds() / 1e-6 - 1.0).abs() < 1e-9);
    }
    assert!((waits[0] / waits[1] - 1.0).abs() < 0.02, "{waits:?}");
}

/// There are two batches of four. Each batch computes 4 x 100 tokens of prompts in a step, and then 9 steps of four
/// tokens: 2 x (1000 + 400 x 10 + 9 x (1000 + 4 x 10)) ps.
#[test]
fn static_batches_take_the_sum_of_their_steps() {
    let text = "name = \"static\"\n[engine]\nrules = \"static\"\nblocks = 1000\nmax_num_seqs = 4\n\
                [step]\nbase = \"1 ns\"\ntoken = \"10 ps\"\n\
                [requests]\narrivals = \"at-once\"\ncount = 8\n[[class]]\nname = \"a\"\ninput = 100\noutput = 10\n";
    let (report, log) = serve_llm_and_check_repeated_steps_agree(text);
    assert_eq!(report.window.0, 2 * (1000 + 4000 + 9 * (1000 + 40)));
    assert_eq!(log.steps.len(), 20);
    assert_eq!(log.requests[4].scheduled.0, report.window.0 / 2);
}

/// With a budget as large as the longest prompt, and one request at a time, chunks do not change the results.
#[test]
fn a_budget_of_the_longest_prompt_needs_no_chunks() {
    let run = |chunked: bool| {
        let text = format!(
            "name = \"one\"\n[engine]\nblocks = 1000\nmax_num_seqs = 1\nmax_num_batched_tokens = 300\n\
             chunked_prefill = {chunked}\n[step]\nbase = \"1 us\"\ntoken = \"7 ns\"\n\
             [requests]\narrivals = \"poisson\"\nrate = 10000\ncount = 200\n\
             [[class]]\nname = \"a\"\ninput = \"10..300\"\noutput = \"1..20\"\n"
        );
        serve_llm_and_check_repeated_steps_agree(&text).1.steps
    };
    assert_eq!(run(true), run(false));
}

/// At an extremely high rate, requests are served as if all arrived at once, and rho shows the overload.
#[test]
fn a_saturated_engine_serves_as_offline() {
    let run = |arrivals: &str| {
        let text = format!(
            "name = \"full\"\n[engine]\nblocks = 2000\nmax_num_seqs = 32\n[step]\nbase = \"1 ms\"\ntoken = \"10 us\"\n\
             [requests]\n{arrivals}\ncount = 300\n[[class]]\nname = \"a\"\ninput = \"50..200\"\noutput = \"10..50\"\n"
        );
        serve_llm_and_check_repeated_steps_agree(&text).0
    };
    let (fast, offline) = (
        run("arrivals = \"constant\"\nrate = 1e8"),
        run("arrivals = \"at-once\""),
    );
    let ratio = fast.throughput.output_tokens_per_s / offline.throughput.output_tokens_per_s;
    assert!((ratio - 1.0).abs() < 0.01, "{ratio}");
    assert!(fast.rho.unwrap() > 100.0);
    assert!(
        fast.warnings
            .iter()
            .any(|warning| warning.contains("the load exceeds the capacity")),
        "{:?}",
        fast.warnings
    );
    assert_eq!(offline.rho, None);
}

/// All requests of closed-loop users run concurrently, and their number equals the throughput times a request's time.
#[test]
fn all_closed_loop_users_are_served_concurrently() {
    let text = format!(
        "name = \"users\"\n[engine]\nblocks = 10000\n{MICROSECOND_STEPS}\
         [requests]\narrivals = \"users\"\nusers = 16\ncount = 3200\n[[class]]\nname = \"a\"\ninput = 20\noutput = 50\n"
    );
    let (report, log) = serve_llm_and_check_repeated_steps_agree(&text);
    assert_eq!(log.running, 16);
    let all = report.row_of_all_classes().unwrap();
    let users = report.throughput.requests_per_s * all.e2e.mean.unwrap().value.as_seconds();
    assert!((users / 16.0 - 1.0).abs() < 0.01, "{users}");
}

/// Each turn of a conversation begins with the earlier turns, whose tokens are cached, except for those in the last
/// block and the new ones.
#[test]
fn later_turns_find_earlier_turns_in_the_prefix_cache() {
    let text = format!(
        "name = \"talk\"\n[engine]\nblocks = 10000\nblock_size = 10\n{MICROSECOND_STEPS}\
         [requests]\narrivals = \"constant\"\nrate = 1000\ncount = 5\n\
         [[class]]\nname = \"a\"\ninput = 30\noutput = 25\nturns = 3\nthink = \"50 us\"\nshared_prefix = 100\n"
    );
    let (report, log) = serve_llm_and_check_repeated_steps_agree(&text);
    assert_eq!(report.completed, 15);
    let mut prompts: Vec<_> = log.requests.iter().map(|of| (of.prompt, of.hit)).collect();
    prompts.sort_unstable();
    prompts.dedup();
    // The prompts have 130 tokens; then 130 + 25 + 30, of which 154 have keys and values, so 15 full blocks; then 185 +
    // 25 + 30, of which 209 have keys and values, so 20 blocks.
    assert_eq!(prompts, [(130, 0), (130, 100), (185, 150), (240, 200)]);
    let first = log
        .requests
        .iter()
        .filter(|of| of.prompt == 130 && of.hit == 0)
        .count();
    assert_eq!(first, 1, "the prefix is computed once");
}

/// The routers are round robin, least outstanding, and prefix affinity.
#[test]
fn routers_choose_engines_as_they_say() {
    let run = |router: &str| {
        let text = format!(
            "name = \"route\"\n[engine]\nblocks = 1000\nreplicas = 3\nrouter = \"{router}\"\n{MICROSECOND_STEPS}\
             [requests]\narrivals = \"constant\"\nrate = 100000\ncount = 12\n\
             [[class]]\nname = \"a\"\ninput = 3\noutput = 2\nshared_prefix = 32\n"
        );
        let requests = serve_llm_and_check_repeated_steps_agree(&text).1.requests;
        requests.iter().map(|of| of.engine).collect::<Vec<_>>()
    };
    assert_eq!(run("round-robin"), [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]);
    // Each request ends before the next arrives.
    assert_eq!(run("least-outstanding"), [0; 12]);
    assert_eq!(run("longest-prefix"), [0; 12]);
}

#[test]
fn the_same_seed_gives_the_same_report() {
    let text = |seed: u64| {
        format!(
            "name = \"seeds\"\nseed = {seed}\n[engine]\nblocks = 500\n{MICROSECOND_STEPS}\
             [requests]\narrivals = \"poisson\"\nrate = 50000\ncount = 300\n\
             [[class]]\nname = \"a\"\ninput = \"lognormal 60 0.8\"\noutput = \"5..40\"\n\
             [[class]]\nname = \"b\"\nweight = 2\ninput = 20\noutput = 8\npriority = 1\n"
        )
    };
    let (a, b, other) = (
        serve_llm_and_check_repeated_steps_agree(&text(7)).0,
        serve_llm_and_check_repeated_steps_agree(&text(7)).0,
        serve_llm_and_check_repeated_steps_agree(&text(8)).0,
    );
    assert_eq!(a, b);
    assert_ne!(a.rows, other.rows);
    assert_eq!(a.rows.len(), 3);
    assert!(a.rows[1].arrived > a.rows[0].arrived);
}
