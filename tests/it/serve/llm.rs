//! Tests engines of language models: compares each step with a plain simulator, results with
//! formulas, and tables with values by hand.

use chakram::serve::llm::{
    BegunEngineStep, CompletedLlmRequest, LlmObserver, LlmReport, LlmScenario, NoLlmObserver,
    serve_llm,
};
use std::fmt::Write;
use std::path::Path;
use testkit::llm_serving::{
    EngineRulesAndStepTimes, PlainEngineStep, PlainRequestWithTokenIds, serve_step_by_step,
};

mod formulas;
mod lockstep;
mod measured;
mod refused;
mod scores;

/// Keeps steps and requests.
#[derive(Default)]
pub struct StepAndRequestLog {
    pub steps: Vec<PlainEngineStep>,
    pub requests: Vec<CompletedLlmRequest>,
    /// The maximum number of running requests.
    pub running: u64,
}

impl LlmObserver for StepAndRequestLog {
    fn wants_steps(&self) -> bool {
        true
    }

    fn on_step(&mut self, of: &BegunEngineStep<'_>) {
        let shares = of.step.shares.iter();
        self.running = self.running.max(of.running);
        self.steps.push(PlainEngineStep {
            begin: of.begin.0,
            end: of.end.0,
            parts: shares
                .map(|share| {
                    (
                        share.number as usize,
                        share.past as usize,
                        share.tokens as usize,
                    )
                })
                .collect(),
            put_back: of
                .step
                .put_back
                .iter()
                .map(|one| one.number as usize)
                .collect(),
            free: of.free_blocks as usize,
        });
    }

    fn on_completed(&mut self, request: &CompletedLlmRequest) -> std::io::Result<()> {
        self.requests.push(*request);
        Ok(())
    }
}

pub fn parse_llm_scenario(text: &str) -> LlmScenario {
    LlmScenario::parse(text, "test.toml", Path::new(""))
        .unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Records requests only, so that the engine simulates runs of equal steps together.
#[derive(Default)]
struct CompletedLlmRequestCollector(Vec<CompletedLlmRequest>);

impl LlmObserver for CompletedLlmRequestCollector {
    fn on_completed(&mut self, request: &CompletedLlmRequest) -> std::io::Result<()> {
        self.0.push(*request);
        Ok(())
    }
}

/// Serves a scenario step by step, and checks that runs of equal steps give the same report and requests. Requests are
/// ordered by their numbers.
pub fn serve_llm_and_check_repeated_steps_agree(text: &str) -> (LlmReport, StepAndRequestLog) {
    let scenario = parse_llm_scenario(text);
    let mut log = StepAndRequestLog::default();
    let report = serve_llm(&scenario, None, &mut log);
    let report = report.unwrap_or_else(|error| panic!("{error}\n{text}"));
    log.requests.sort_by_key(|request| request.number);
    let mut requests = CompletedLlmRequestCollector::default();
    let together = serve_llm(&scenario, None, &mut requests).unwrap();
    requests.0.sort_by_key(|request| request.number);
    assert_eq!(requests.0, log.requests, "{text}");
    assert_eq!(together, report, "{text}");
    (report, log)
}

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

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Counts the features of random scenarios, so that the test fails if one never occurred.
#[derive(Debug, Default)]
struct ScenarioFeatureCounts {
    steps: usize,
    put_back: usize,
    hits: usize,
    refused: usize,
    chunks: usize,
}

/// Returns requests of a random scenario as a file, and the same requests for the plain simulator.
fn random_request_file_and_plain_requests(
    numbers: &mut RandomSequence,
    length: u64,
) -> (String, Vec<PlainRequestWithTokenIds>) {
    let mut rows = "arrival_ps,input_toks,output_toks,priority,prefix,prefix_toks\n".to_owned();
    let mut all = Vec::new();
    let mut at = 0;
    let gap = [1, 30, 200, 2000][numbers.below(4) as usize];
    let prefixes = 1 + numbers.below(4);
    for number in 0..2 + numbers.below(24) {
        // Several requests arrive at the same instant, and some arrive as a step ends.
        if !numbers.one_in(3) {
            at += numbers.below(gap) / 10 * 10;
        }
        let (prompt, answer) = (1 + numbers.below(length), 1 + numbers.below(length / 2 + 1));
        let (prefix, shared) = (numbers.below(prefixes), numbers.below(prompt + 1));
        let shared = if numbers.one_in(3) { 0 } else { shared };
        let priority = numbers.below(3);
        writeln!(rows, "{at},{prompt},{answer},{priority},{prefix},{shared}").unwrap();
        let own = 1_000_000 + number * 10_000;
        let tokens = (0..prompt).map(|i| match i < shared {
            true => prefix * 10_000 + i,
            false => own + i,
        });
        all.push(PlainRequestWithTokenIds {
            arrival: at,
            prompt: tokens.collect(),
            answer: (prompt..prompt + answer).map(|i| own + i).collect(),
            priority: priority as i64,
        });
    }
    (rows, all)
}

fn random_engine(numbers: &mut RandomSequence, length: u64) -> EngineRulesAndStepTimes {
    let size = [1, 2, 4, 16][numbers.below(4) as usize];
    let whole = (length * 3 / 2 + 2).div_ceil(size);
    let blocks = whole / 2 + numbers.below(whole * 4) + 1;
    EngineRulesAndStepTimes {
        blocks: blocks as usize,
        block_size: size as usize,
        budget: (1 + numbers.below(length * 2)) as usize,
        most_running: (1 + numbers.below(12)) as usize,
        most_length: numbers
            .one_in(5)
            .then(|| (2 + numbers.below(length * 2)) as usize),
        threshold: if numbers.one_in(4) {
            1 + numbers.below(length) as usize
        } else {
            0
        },
        chunked: !numbers.one_in(4),
        caching: !numbers.one_in(3),
        by_priority: numbers.one_in(2),
        whole_must_fit: numbers.one_in(2),
        watermark: 0,
        is_static: numbers.one_in(6),
        prompts_first: false,
        reserves_whole: numbers.one_in(6),
        state: 0,
        look_interval: 1,
        ahead: false,
        times: [
            10 * numbers.below(5) + 10,
            numbers.below(3),
            numbers.below(4),
            numbers.below(2),
        ],
    }
}

fn engine_text(engine: &EngineRulesAndStepTimes, watermark: f64, file: &Path) -> String {
    let [base, token, request, read] = engine.times;
    let mut text = format!(
        "name = \"case\"\n[engine]\nblocks = {}\nblock_size = {}\nmax_num_batched_tokens = {}\nmax_num_seqs = {}\n\
         long_prefill_token_threshold = {}\nchunked_prefill = {}\nprefix_caching = {}\npolicy = \"{}\"\n\
         full_sequence_must_fit = {}\nwatermark = {watermark}\nbatching = \"{}\"\nreserve = \"{}\"\nasync_scheduling = {}\nstate_blocks = {}\nreceive_interval = {}\n",
        engine.blocks,
        engine.block_size,
        engine.budget,
        engine.most_running,
        engine.threshold,
        engine.chunked,
        engine.caching,
        if engine.by_priority {
            "priority"
        } else {
            "fcfs"
        },
        engine.whole_must_fit,
        match (engine.is_static, engine.prompts_first) {
            (true, _) => "static",
            (false, true) => "prompts-first",
            (false, false) => "continuous",
        },
        if engine.reserves_whole {
            "whole-request"
        } else {
            "as-computed"
        },
        engine.ahead,
        engine.state,
        engine.look_interval,
    );
    if let Some(most) = engine.most_length {
        writeln!(text, "max_model_len = {most}").unwrap();
    }
    write!(
        text,
        "[step]\nbase = \"{base} ps\"\ntoken = \"{token} ps\"\nrequest = \"{request} ps\"\ncontext = \"{read} ps\"\n\
         [requests]\narrivals = \"file\"\nfile = {file:?}\n"
    )
    .unwrap();
    text
}

/// Compares a random scenario with the plain simulator: each step's requests, tokens, times and free blocks, and each
/// request's times.
fn compare_random_case_with_plain_simulator(
    case: u64,
    folder: &Path,
    seen: &mut ScenarioFeatureCounts,
) {
    let mut numbers = RandomSequence(case);
    (0..4).for_each(|_| _ = numbers.below(2));
    let length = [6, 20, 60][numbers.below(3) as usize];
    let (rows, requests) = random_request_file_and_plain_requests(&mut numbers, length);
    let mut engine = random_engine(&mut numbers, length);
    // The value is drawn separately, so that all other values stay the same.
    engine.ahead = RandomSequence(case ^ 0x5a5a).below(8) % 2 == 1;
    engine.prompts_first = !engine.is_static && RandomSequence(case ^ 0x6b6b).below(4) == 1;
    engine.whole_must_fit |= engine.prompts_first;
    engine.look_interval = [1, 1, 1, 2, 3, 10][RandomSequence(case ^ 0x2d2d).below(6) as usize];
    // Requests with states share no blocks.
    engine.state = [1, 5, 0, 0, 0, 0, 0, 0][RandomSequence(case ^ 0x3c3c).below(8) as usize];
    engine.caching &= engine.state == 0;
    // Without cached blocks, a preempted request that was put back may need more tokens than one step can compute.
    engine.chunked |= engine.state > 0;
    let watermark = if numbers.one_in(3) {
        numbers.below(40) as f64 / 100.0
    } else {
        0.0
    };
    engine.watermark = (watermark * engine.blocks as f64) as usize;
    if !engine.chunked && engine.most_length.is_some_and(|most| most > engine.budget) {
        engine.most_length = Some(engine.budget.max(2));
        engine.budget = engine.budget.max(2);
    }
    let file = folder.join(format!("{case}.csv"));
    std::fs::write(&file, rows).unwrap();
    let text = engine_text(&engine, watermark, &file);
    let (steps, times) = serve_step_by_step(&engine, &requests);
    let (_, log) = serve_llm_and_check_repeated_steps_agree(&text);
    for (at, (found, expected)) in log.steps.iter().zip(&steps).enumerate() {
        assert_eq!(found, expected, "case {case}, step {at}\n{text}");
    }
    assert_eq!(log.steps.len(), steps.len(), "case {case}\n{text}");
    let served: Vec<_> = (0..times.len())
        .filter(|&who| !times[who].is_refused)
        .collect();
    assert_eq!(log.requests.len(), served.len(), "case {case}\n{text}");
    for (found, who) in log.requests.iter().zip(served) {
        let expected = &times[who];
        let found = (
            found.number as usize,
            [found.scheduled.0, found.first.0, found.last.0],
            [found.output, found.hit, found.put_back].map(|count| count as usize),
        );
        let expected = (
            who,
            [expected.scheduled, expected.first, expected.last],
            [expected.tokens, expected.hit, expected.put_back],
        );
        assert_eq!(found, expected, "case {case}\n{text}");
    }
    seen.steps += steps.len();
    seen.put_back += steps.iter().map(|step| step.put_back.len()).sum::<usize>();
    seen.hits += times.iter().filter(|of| of.hit > 0).count();
    seen.refused += times.iter().filter(|of| of.is_refused).count();
    let chunks = steps.iter().flat_map(|step| &step.parts);
    seen.chunks += chunks
        .filter(|(_, past, tokens)| *past > 0 && *tokens > 1)
        .count();
}

fn compare_random_cases_with_plain_simulator(from: u64, to: u64) {
    let folder = tempfile::tempdir().unwrap();
    let mut seen = ScenarioFeatureCounts::default();
    (from..to)
        .for_each(|case| compare_random_case_with_plain_simulator(case, folder.path(), &mut seen));
    let cases = (to - from) as usize;
    println!("{cases} cases: {seen:?}");
    assert!(
        seen.put_back > cases / 4
            && seen.hits > cases
            && seen.chunks > cases
            && seen.refused > cases / 20,
        "{seen:?}"
    );
}

#[test]
fn every_step_is_that_of_a_plain_simulator() {
    compare_random_cases_with_plain_simulator(0, 200);
}

#[test]
#[ignore = "the same two thousand times"]
fn two_thousand_random_cases_step_like_a_plain_simulator() {
    compare_random_cases_with_plain_simulator(1000, 3000);
}

/// Tests several engines, routers, users who wait for answers, and conversations: simulating runs of equal steps
/// together gives the same result as single steps, for any order in which engines end.
#[test]
fn simulating_equal_steps_together_gives_the_result_of_single_steps() {
    let mut steps = 0;
    for (case, router) in ["round-robin", "least-outstanding", "longest-prefix"]
        .iter()
        .cycle()
        .take(24)
        .enumerate()
    {
        let mut numbers = RandomSequence(case as u64 + 7);
        (0..4).for_each(|_| _ = numbers.below(2));
        let arrivals = match case % 4 {
            0 => "arrivals = \"users\"\nusers = 7",
            1 => "arrivals = \"users\"\nusers = 5\nthink = \"300 ns\"",
            2 => "arrivals = \"poisson\"\nrate = 2e6",
            _ => "arrivals = \"bursts\"\nburst = 9\nevery = \"20 us\"",
        };
        let turns = if numbers.one_in(2) { 3 } else { 1 };
        let text = format!(
            "name = \"ahead\"\nseed = {case}\n[measure]\nwarmup = {}\n\
             [engine]\nreplicas = {}\nrouter = \"{router}\"\nblocks = {}\nblock_size = {}\nmax_num_seqs = {}\nmax_num_batched_tokens = 64\n\
             [step]\nbase = \"10 ns\"\ntoken = \"1 ns\"\nrequest = \"2 ns\"\ncontext = \"{} ps\"\n\
             [requests]\n{arrivals}\ncount = 40\n[[class]]\nname = \"all\"\ninput = \"1..50\"\noutput = \"1..40\"\nturns = {turns}\n",
            numbers.below(2) * 5,
            1 + numbers.below(3),
            40 + numbers.below(60),
            [1, 4, 16][numbers.below(3) as usize],
            2 + numbers.below(6),
            numbers.below(20),
        );
        steps += serve_llm_and_check_repeated_steps_agree(&text)
            .1
            .steps
            .len();
    }
    assert!(steps > 3_000, "{steps}");
}

/// A request to Qwen3-Next holds the blocks for its states from its admission on, and never finds a cached prefix.
#[test]
fn states_of_linear_attention_take_blocks() {
    let text = |rules: &str| {
        format!(
            "name = \"hybrid\"\n[engine]\nmodel = \"qwen3-next-80b-a3b\"\ntensor = 4\n{rules}\n[requests]\n\
             arrivals = \"at-once\"\ncount = 12\n[[class]]\nname = \"all\"\ninput = 64\noutput = 16\nshared_prefix = 256\n"
        )
    };
    let machine = chakram::machine::Machine::load_by_name("dgx-h100").unwrap();
    let serve = |rules: &str| {
        let mut log = StepAndRequestLog::default();
        let report = serve_llm(&parse_llm_scenario(&text(rules)), Some(&machine), &mut log);
        report.map(|report| (report, log))
    };
    let (report, log) = serve("").unwrap();
    // 36 x (8 x 128 x 128 x 4 + 3 x 2 x 2048) bytes for the states, and 12 x 2 x 256 x 2 bytes for a token, on an NPU.
    let place = report.place.as_ref().unwrap();
    let state: u64 = 36 * (524_288 + 12_288);
    assert_eq!(
        (place.memory.state_of_request, place.memory.kv_of_token),
        (state, 12_288)
    );
    let of_state = state.div_ceil(16 * 12_288);
    assert_eq!(of_state, 99);
    // The last step of a prompt of 320 tokens, and the next: 20 blocks of tokens, then 21.
    let first = &log.steps[0];
    assert_eq!(first.parts.len(), 12);
    let used = u64::from(place.memory.blocks) - first.free as u64;
    assert_eq!(used, 12 * (20 + of_state));
    assert!(log.requests.iter().all(|request| request.hit == 0));
    let (_, stated) = serve("state_blocks = 3\nprefix_caching = false").unwrap();
    let used = u64::from(place.memory.blocks) - stated.steps[0].free as u64;
    assert_eq!(used, 12 * 23);
    let refused = serve("prefix_caching = true").err().unwrap().to_string();
    assert!(
        refused.contains("engine.prefix_caching: found true"),
        "{refused}"
    );
    // If there is no memory for a second state, requests run one after another.
    let blocks = of_state + 21;
    let (_, alone) = serve(&format!("blocks = {blocks}")).unwrap();
    assert_eq!(alone.running, 1);
}

/// Experts may have their own format, and whole experts on each NPU need as much memory as parts of all experts.
#[test]
fn experts_may_have_their_own_format_and_placement() {
    let machine = chakram::machine::Machine::load_by_name("dgx-b200").unwrap();
    let serve = |model: &str, rules: &str| {
        let text = format!(
            "name = \"experts\"\n[engine]\nmodel = \"{model}\"\n{rules}\n[requests]\narrivals = \"users\"\nusers = 8\n\
             count = 16\n[[class]]\nname = \"all\"\ninput = 100\noutput = 10\n"
        );
        serve_llm(
            &parse_llm_scenario(&text),
            Some(&machine),
            &mut NoLlmObserver,
        )
    };
    let weights = |report: &LlmReport| report.place.as_ref().unwrap().memory.weights as f64;
    let plain = serve("gpt-oss-120b", "tensor = 2").unwrap();
    let narrow = serve("gpt-oss-120b", "tensor = 2\nexpert_weights = \"fp4\"").unwrap();
    // 36 x 128 experts of 3 x 2880 x 2880 weights, in two bytes and in half a byte and more.
    let experts = 36.0 * 128.0 * 3.0 * 2880.0 * 2880.0 / 2.0;
    let saved = (weights(&plain) - weights(&narrow)) / experts;
    assert!((1.4..=1.5).contains(&saved), "{saved}");
    let tokens = |report: &LlmReport| report.row_of_all_classes().unwrap().tpot.mean;
    assert!(tokens(&narrow).unwrap().value < tokens(&plain).unwrap().value);
    assert!(
        narrow
            .basis
            .iter()
            .any(|line| line.contains("products in fp4")),
        "{:?}",
        narrow.basis
    );
    let whole = serve(
        "gpt-oss-120b",
        "tensor = 2\nexpert_weights = \"fp4\"\nexpert_parallel = true",
    )
    .unwrap();
    assert_eq!(weights(&whole), weights(&narrow));
    assert_ne!(
        tokens(&whole).unwrap().value,
        tokens(&narrow).unwrap().value
    );
    for (model, rules, expected) in [
        (
            "llama3-8b",
            "expert_weights = \"fp4\"",
            "llama3-8b has no experts",
        ),
        (
            "llama3-8b",
            "expert_parallel = true",
            "engine.expert_parallel: found true, expected no such key",
        ),
        (
            "llama3-8b",
            "graph_tokens = 64\n[step]\nbase = \"1 ms\"",
            "engine.graph_tokens: found this key",
        ),
        (
            "grok-1",
            "tensor = 8\nweights = \"fp8\"\nexpert_parallel = true",
            "",
        ),
    ] {
        match serve(model, rules) {
            Ok(_) => assert!(expected.is_empty(), "{model} {rules}"),
            Err(error) => assert!(
                !expected.is_empty() && error.to_string().contains(expected),
                "{error}"
            ),
        }
    }
}

/// Prompts that arrive together are tokenized one after another, and a later prompt does not wait for them.
#[test]
fn prompts_are_tokenized_in_turn() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokenize.toml").display().to_string();
    let text = "name = \"tokenize\"\n[engine]\nblocks = 100\n[step]\nbase = \"1 ms\"\n[client]\nbefore = \"3 ms\"\n\
                tokenize = \"1 ms\"\n[requests]\narrivals = \"bursts\"\nburst = 2\nevery = \"1 s\"\ncount = 4\n[[class]]\n\
                name = \"all\"\ninput = 10\noutput = 1\n";
    std::fs::write(&file, text).unwrap();
    let rows = crate::commands::run_for_output(&[
        "serve", &file, "--format", "csv", "--table", "requests",
    ]);
    let mut lines = rows.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let heads = lines.next().unwrap();
    let at = |name: &str| heads.iter().position(|head| *head == name).unwrap();
    let (sent, queued) = (at("arrival_ps"), at("queued_ps"));
    let waits = lines.map(|row| {
        let picoseconds = |column: usize| row[column].parse::<u64>().unwrap();
        (picoseconds(queued) - picoseconds(sent)) / 1_000_000_000
    });
    assert_eq!(waits.collect::<Vec<_>>(), [13, 23, 13, 23]);
}
