//! Reads ASTRA-sim's own times, if the variable `CHAKRAM_CORPUS` names a folder that contains them.

use std::collections::BTreeMap;
use std::path::Path;

/// ASTRA-sim's result for a case, with its run time and memory.
pub struct MeasuredAstraSimRun {
    /// The time at which the last NPU finishes, in nanoseconds.
    pub finish: u64,
    /// The number of messages, if they were counted.
    pub messages: Option<u64>,
    /// The run time in seconds.
    pub seconds: f64,
    /// The peak resident memory in MB.
    pub megabytes: f64,
}

/// Returns the rows of `astra-sim/scaling.csv` in the folder that `CHAKRAM_CORPUS` names, keyed by name. Returns `None`
/// if this variable is not set.
pub fn load_astra_sim_measurements() -> Option<BTreeMap<String, MeasuredAstraSimRun>> {
    let folder = std::env::var_os("CHAKRAM_CORPUS")?;
    let path = Path::new(&folder).join("astra-sim/scaling.csv");
    let table = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut lines = table.lines();
    let names: Vec<&str> = lines.next().expect("a line of names").split(',').collect();
    let rows = lines.filter_map(|line| {
        let fields: Vec<&str> = line.split(',').collect();
        let field = |name| {
            let column = names.iter().position(|other| *other == name);
            fields[column.unwrap_or_else(|| panic!("no column `{name}`"))]
        };
        // Rows with any other status crashed or timed out.
        (field("status") == "ok").then(|| {
            let row = MeasuredAstraSimRun {
                finish: field("finish_max_ns").parse().expect("a number"),
                messages: field("messages").parse().ok(),
                seconds: field("wall_s_median").parse().expect("a number"),
                megabytes: field("rss_MB").parse().expect("a number"),
            };
            (field("case").to_owned(), row)
        })
    });
    Some(rows.collect())
}
