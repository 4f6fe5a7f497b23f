//! Reading reports that `chakram replay --format json` wrote.

use crate::trace::of_any_micro_batch;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A document that cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// It is not what it should be.
    #[error("it is no report: {0}\n  try: the output of chakram replay --format json")]
    Malformed(#[from] serde_json::Error),
    /// It is something else, or of another version.
    #[error(
        "its schema is `{0}`; expected `chakram.report.1` or `chakram.comparison.1`\n  try: replay again \
         with the version that compares, --format json"
    )]
    Schema(String),
    /// Its numbers contradict one another.
    #[error(
        "the parts of rank {rank} sum to {sum} ps, but the makespan is {makespan} ps: the report was changed"
    )]
    Sum {
        /// Which rank.
        rank: u32,
        /// What its parts sum to.
        sum: u128,
        /// What they should.
        makespan: u64,
    },
}

/// The parts of an NPU's time.
pub(super) const PARTS: [&str; 5] = ["compute", "communication", "memory", "host", "idle"];

/// A report, or the reports of several machines.
#[derive(Clone, Debug)]
pub struct Document {
    /// Who wrote it.
    pub tool_version: String,
    pub(super) options: Map<String, Value>,
    pub(super) inputs: Vec<Input>,
    /// One for each machine.
    pub machines: Vec<Machine>,
}

impl Document {
    /// An option of the replay as the document has it.
    pub(super) fn option(&self, name: &str) -> String {
        let value = self.options.get(name);
        value.map_or_else(|| "nothing".to_owned(), Value::to_string)
    }
}

/// What became of a replay on one machine.
#[derive(Clone, Debug)]
pub struct Machine {
    name: String,
    report: Option<Report>,
}

impl Machine {
    /// What the machine is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The report, if the replay completed.
    pub(super) fn report(&self) -> Option<&Report> {
        self.report.as_ref()
    }
}

#[derive(Deserialize)]
struct Head {
    schema: String,
    #[serde(default)]
    tool_version: String,
    #[serde(default)]
    options: Map<String, Value>,
    #[serde(default)]
    inputs: Vec<Input>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Input {
    pub role: String,
    pub blake3: String,
}

#[derive(Deserialize)]
struct Several {
    machines: Vec<Map<String, Value>>,
}

#[derive(Deserialize)]
struct Failed {
    machine: Named,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Named {
    pub name: String,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Report {
    pub machine: Named,
    pub ranks: u32,
    pub makespan_ps: u64,
    pub nodes: u64,
    pub messages: u64,
    pub npus: Vec<Npu>,
    pub collectives: Vec<Collective>,
    pub exposed: Vec<Exposed>,
    pub operators: Vec<Operator>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Npu {
    pub rank: u32,
    pub time_ps: Times,
    pub finish_ps: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Times {
    compute: u64,
    communication: u64,
    memory: u64,
    host: u64,
    idle: u64,
}

impl Times {
    /// Of the parts in the order of [`PARTS`].
    pub fn of(&self, part: usize) -> u64 {
        [
            self.compute,
            self.communication,
            self.memory,
            self.host,
            self.idle,
        ][part]
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Collective {
    pub group: String,
    pub kind: String,
    pub calls: u64,
    pub buffer_bytes: Buffers,
    pub transfer_ps: u64,
    pub waited_ps_sum_over_members: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Buffers {
    pub sum: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Exposed {
    pub what: String,
    pub sum_over_npus_ps: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Operator {
    pub name: String,
    pub kind: String,
    pub calls: u64,
    pub total_ps: u64,
}

/// Reads a report, of one machine or of several.
pub fn read(text: &str) -> Result<Document, ReportError> {
    let head: Head = serde_json::from_str(text)?;
    let machines = match &*head.schema {
        "chakram.report.1" => vec![completed(serde_json::from_str(text)?)?],
        "chakram.comparison.1" => {
            let several: Several = serde_json::from_str(text)?;
            let machines = several.machines.into_iter().map(|machine| {
                if !machine.contains_key("failed") {
                    return completed(serde_json::from_value(machine.into())?);
                }
                let failed: Failed = serde_json::from_value(machine.into())?;
                Ok(Machine {
                    name: failed.machine.name,
                    report: None,
                })
            });
            machines.collect::<Result<_, _>>()?
        }
        _ => return Err(ReportError::Schema(head.schema)),
    };
    Ok(Document {
        tool_version: head.tool_version,
        options: head.options,
        inputs: head.inputs,
        machines,
    })
}

fn completed(mut report: Report) -> Result<Machine, ReportError> {
    for npu in &report.npus {
        let sum: u128 = (0..PARTS.len())
            .map(|part| u128::from(npu.time_ps.of(part)))
            .sum();
        if sum != u128::from(report.makespan_ps) {
            return Err(ReportError::Sum {
                rank: npu.rank,
                sum,
                makespan: report.makespan_ps,
            });
        }
    }
    report.operators = over_micro_batches(report.operators);
    Ok(Machine {
        name: report.machine.name.clone(),
        report: Some(report),
    })
}

/// One of two reports may have a row for each micro-batch, and the other one for all.
fn over_micro_batches(operators: Vec<Operator>) -> Vec<Operator> {
    let mut sums: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
    for operator in operators {
        let name = of_any_micro_batch(&operator.name).into_owned();
        let (calls, total_ps) = sums.entry((name, operator.kind)).or_default();
        *calls = calls.saturating_add(operator.calls);
        *total_ps = total_ps.saturating_add(operator.total_ps);
    }
    let rows = sums.into_iter();
    let rows = rows.map(|((name, kind), (calls, total_ps))| Operator {
        name,
        kind,
        calls,
        total_ps,
    });
    rows.collect()
}
