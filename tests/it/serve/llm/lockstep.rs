//! Tests attention ranks that run in lockstep.

use super::serve_llm_and_check_repeated_steps_agree;

const ENGINE: &str = "name = \"wave\"\n[engine]\nblocks = 1000\ndata_parallel = 2\nprefix_caching = false\n\
     [step]\nbase = \"10 ns\"\ntoken = \"1 ns\"\n[requests]\n";

/// Two requests arrive at once on two ranks, with 30 and 10 tokens of prompt and 3 and 2 of answer.
/// The steps take 10 + 30 ns for both ranks, then 10 + 1 ns twice; the second rank has nothing to
/// do in the last step. The first request's tokens are at 40, 51 and 62 ns. The second's are at 40
/// and 51 ns, although its own first step would take 20 ns.
#[test]
fn steps_last_as_long_as_those_of_the_slowest_rank() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("two.csv");
    std::fs::write(&file, "arrival_ps,input_toks,output_toks\n0,30,3\n0,10,2\n").unwrap();
    let (report, log) = serve_llm_and_check_repeated_steps_agree(&format!(
        "{ENGINE}arrivals = \"file\"\nfile = {:?}\n",
        file.display()
    ));
    let times: Vec<_> = log
        .requests
        .iter()
        .map(|request| (request.engine, request.first.0, request.last.0))
        .collect();
    assert_eq!(times, [(0, 40_000, 62_000), (1, 40_000, 51_000)]);
    let steps: Vec<_> = log
        .steps
        .iter()
        .map(|step| (step.begin, step.end))
        .collect();
    assert_eq!(
        steps,
        [
            (0, 40_000),
            (0, 40_000),
            (40_000, 51_000),
            (40_000, 51_000),
            (51_000, 62_000)
        ]
    );
    // Each rank takes part in all three steps, in the last with a dummy.
    assert_eq!(report.utilisation, [1.0, 1.0]);
}

/// Under random loads, every request is served. At each instant each rank runs at most one step, and all these steps
/// end together.
#[test]
fn ranks_step_together() {
    for seed in 1..20 {
        let text = format!(
            "{ENGINE}arrivals = \"poisson\"\nrate = 2e6\ncount = 60\n[[class]]\nname = \"all\"\ninput = \"1..80\"\n\
             output = \"1..30\"\n"
        )
        .replace("[engine]", &format!("seed = {seed}\n[engine]"));
        let (_, log) = serve_llm_and_check_repeated_steps_agree(&text);
        assert_eq!(log.requests.len(), 60);
        let mut until = (0, 0);
        for step in &log.steps {
            assert!(
                (step.begin, step.end) == until || step.begin >= until.1,
                "{step:?} after {until:?}"
            );
            until = (step.begin, step.end);
        }
    }
}
