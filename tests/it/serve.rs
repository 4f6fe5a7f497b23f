//! Tests requests over time: LIGHTSPEED's numbers, queues against formulas, closed forms and policies against plain
//! simulators that share no code with them, and rejected scenarios.

mod alone;
mod lightspeed;
mod llm;
mod oracles;
mod program;
mod queueing;
mod refused;
mod traced;
mod traces;

use chakram::serve::{
    CompletedRequest, Platform, RequestObserver, RequestServeTimeLimitOption, Scenario,
    ServeReport, serve_requests,
};
use std::path::Path;

/// Keeps requests by id.
#[derive(Default)]
pub struct CompletedRequestCollector(pub Vec<CompletedRequest>);

impl RequestObserver for CompletedRequestCollector {
    fn on_completed(&mut self, request: &CompletedRequest) -> std::io::Result<()> {
        self.0.push(*request);
        Ok(())
    }
}

pub fn parse_scenario_text(text: &str) -> Scenario {
    Scenario::parse(text, "test.toml", Path::new(env!("CARGO_MANIFEST_DIR")))
        .unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Serves a scenario; returns the report, and its requests by id.
pub fn serve_and_list_requests_by_id(
    scenario: &Scenario,
    platform: Option<&Platform>,
) -> (ServeReport, Vec<CompletedRequest>) {
    let mut log = CompletedRequestCollector::default();
    let report = serve_requests(
        scenario,
        platform,
        RequestServeTimeLimitOption::default(),
        &mut log,
    );
    let report = report.unwrap_or_else(|error| panic!("{error}"));
    log.0.sort_by_key(|request| request.number);
    (report, log.0)
}

/// Returns a platform with this many cores at 1 THz, so that a multiplication takes 1 ps.
pub fn build_platform_of_picosecond_cores(cores: usize) -> Platform {
    let text = format!("name = \"p\"\nsource = \"a test\"\ncores = {cores}\nclock = \"1 THz\"");
    Platform::parse(&text, "p.toml").unwrap()
}
