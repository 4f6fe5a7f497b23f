//! Runs the program on the files of a case.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use testkit::astra_sim::{SimulationAnswer, WholeSimulationInput};

/// Calls `work` on each item, on all cores.
pub fn run_on_all_cores<T>(items: impl Iterator<Item = T> + Send, work: impl Fn(T) + Sync) {
    let items = Mutex::new(items.fuse());
    let next = || items.lock().expect("taking one does not panic").next();
    let drain = || {
        while let Some(item) = next() {
            work(item);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(drain);
        }
    });
}

/// The program's answer.
#[derive(Debug, PartialEq)]
pub struct ProgramExitCodeAndFinishTimes {
    pub code: Option<i32>,
    /// Finish time and exposed communication of each NPU, in ns.
    pub finish: BTreeMap<usize, (u64, i64)>,
    pub error: String,
}

/// Runs the program on the files in `folder`. As in [`Config::command_args`], the first of `args`
/// is the network.
pub fn run_chakram_astra_sim(
    folder: &Path,
    args: &[String],
    more: &[&str],
) -> ProgramExitCodeAndFinishTimes {
    let output = Command::new(env!("CARGO_BIN_EXE_chakram"))
        .current_dir(folder)
        .arg("astra-sim")
        .arg(format!("--network-model={}", args[0]))
        .args(&args[1..])
        .args(more)
        .output()
        .expect("the program was built");
    let text = String::from_utf8_lossy(&output.stdout);
    ProgramExitCodeAndFinishTimes {
        code: output.status.code(),
        finish: text.lines().filter_map(parse_finish_line).collect(),
        error: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Writes the files of `config` into a temporary folder, and runs the program on them, with and
/// without closed forms.
pub fn run_with_and_without_closed_forms(
    config: &WholeSimulationInput,
) -> [ProgramExitCodeAndFinishTimes; 2] {
    let folder = tempfile::tempdir().expect("a folder");
    config.write_case(folder.path()).expect("it is written");
    [&[][..], &["--stepwise"]]
        .map(|more| run_chakram_astra_sim(folder.path(), &config.command_args(), more))
}

/// Writes the files of `config` into a temporary folder, and runs the program on them, only with
/// closed forms.
pub fn run_config_with_closed_forms(
    config: &WholeSimulationInput,
) -> ProgramExitCodeAndFinishTimes {
    let [ran, _] = run_with_and_without_closed_forms(config);
    ran
}

/// Parses a line such as `sys[3] finished, 90 cycles, exposed communication 50 cycles.`
fn parse_finish_line(line: &str) -> Option<(usize, (u64, i64))> {
    let (npu, rest) = line.strip_prefix("sys[")?.split_once("] finished, ")?;
    let (finish, exposed) = rest.split_once(" cycles, exposed communication ")?;
    let exposed = exposed.strip_suffix(" cycles.")?;
    let number = |text: &str| text.parse().ok();
    Some((
        number(npu)? as usize,
        (number(finish)? as u64, number(exposed)?),
    ))
}

/// Returns any differences from the original's answer in finish times, in exposed communication, and in the exit code,
/// which shows whether all NPUs finish.
pub fn describe_answer_difference(
    ran: &ProgramExitCodeAndFinishTimes,
    expected: &SimulationAnswer,
) -> Option<String> {
    let mut faults = Vec::new();
    let all = expected.finish.iter().all(Option::is_some);
    let code = Some(if all { 0 } else { 1 });
    if ran.code != code {
        faults.push(format!("exit {:?} for {code:?}", ran.code));
    }
    for (npu, finish) in expected.finish.iter().enumerate() {
        let expected = finish.map(|finish| (finish, expected.exposed[npu] as i64));
        let found = ran.finish.get(&npu).copied();
        if found != expected {
            faults.push(format!("{npu}: {found:?} for {expected:?}"));
        }
    }
    let known = expected.finish.len();
    faults.extend(
        ran.finish
            .range(known..)
            .map(|(npu, _)| format!("{npu}: no such NPU")),
    );
    let more = faults.len().saturating_sub(4);
    faults.truncate(4);
    let more = if more > 0 {
        format!("; {more} more")
    } else {
        String::new()
    };
    (!faults.is_empty()).then(|| format!("{}{more}\n{}", faults.join("; "), ran.error))
}
