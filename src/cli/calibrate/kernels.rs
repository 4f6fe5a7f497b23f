//! Measures the kernels of captured jobs, and writes their times into `measured` tables of a
//! machine's NPU classes.

use super::{append_machine_section, quote_toml, rank_classes};
use crate::terminal::plain_style;
use chakram_base::ids::Npu;
use chakram_base::units::format_percent;
use chakram_hardware::machine::Machine;
use chakram_jobs::{Job, JobLoadOptions};
use chakram_report::summary::format_thousands;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_studies::score::{OneKernelRecordedTimesBySize, RecordedKernelTimes};
use chakram_trace::format::escape_and_shorten_name;
use chakram_trace::workload::MissingRankPolicy;
use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::{Display, Write as _};
use std::path::PathBuf;

/// Maximum number of rows in the summary's table.
const SHOWN: usize = 12;

/// Adds the kernels of the job at `traces` to `text`, the contents of `machine`'s file. Returns the new contents and a
/// summary of the kernels. If `by_rank` is true, each rank gets its own NPU class.
///
/// # Errors
///
/// Fails if the traces are not those of one job, if the job has more ranks than the machine has NPUs, or if no kernel
/// was recorded.
pub(super) fn add_recorded_kernels_to_machine(
    text: &str,
    machine: &Machine,
    traces: &[PathBuf],
    by_rank: bool,
) -> Result<(String, String), Box<dyn Error>> {
    // Allow missing ranks, because the kernels of a rank do not depend on other ranks.
    let options = JobLoadOptions {
        absent: MissingRankPolicy::Mirror,
        mirrored: machine.topology().npu_count(),
        ..JobLoadOptions::default()
    };
    let job = Job::open_job_with_options(traces, &options)?;
    let (ranks, npus) = (
        job.workload().rank_count_including_untraced(),
        machine.topology().npu_count(),
    );
    if ranks > npus {
        return Err(format!(
            "{} has {ranks} ranks, but machine `{}` has {npus} NPUs\n  try: the machine on which the job was captured",
            job.name(),
            machine.name()
        )
        .into());
    }
    let instances = job.workload().instances().iter();
    let present: BTreeSet<u32> = instances.map(|instance| instance.rank.0).collect();
    let shared = machine;
    let split = by_rank.then(|| rank_classes::give_ranks_own_npu_classes(text, machine, &present));
    let split = split.map(|text| Machine::parse(&text, machine.name()).map(|own| (text, own)));
    let split = split.transpose()?;
    let (text, machine) = match &split {
        Some((text, own)) => (&text[..], own),
        None => (text, machine),
    };
    let recorded = RecordedKernelTimes::new(job.workload(), machine);
    let found = recorded.times_sorted_by_class_name_and_format();
    if found.is_empty() {
        return Err(format!(
            "no kernel of {} has a recorded time\n  try: traces that were converted from a capture",
            job.name()
        )
        .into());
    }
    let summary = tabulate_kernels_with_largest_total_time(&found);
    let mut priced = found;
    if by_rank {
        // If an NPU's rank was not measured, the NPU uses times from all measured ranks in its class.
        let measured: BTreeSet<usize> = priced.iter().map(|kernel| kernel.class).collect();
        let mut shared_class = vec![0; machine.npu_classes().len()];
        for npu in (0..npus).map(Npu) {
            shared_class[machine.class_of_npu(npu)] = shared.class_of_npu(npu);
        }
        for kernel in recorded
            .merge_npu_classes(&shared_class)
            .times_sorted_by_class_name_and_format()
        {
            let name = &shared.npu_classes()[kernel.class].name;
            let class = (machine.npu_classes().iter()).position(|class| class.name == *name);
            if let Some(class) = class.filter(|class| !measured.contains(class)) {
                priced.push(OneKernelRecordedTimesBySize { class, ..kernel });
            }
        }
    }
    let text = append_machine_section(
        text,
        "Kernels",
        &render_measured_kernels_as_toml(&priced, machine, job.name()),
    );
    Ok((text, summary))
}

fn render_measured_kernels_as_toml(
    found: &[OneKernelRecordedTimesBySize],
    machine: &Machine,
    job: &str,
) -> String {
    let kernels: u64 = found.iter().map(|kernel| kernel.count).sum();
    let mut text = format!(
        "{} that {} recorded.\n",
        format_thousands(kernels),
        job.replace(char::is_control, " ")
    );
    for kernel in found {
        let class = quote_toml(&machine.npu_classes()[kernel.class].name);
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "\n[[npu.{class}.measured]]      # measured: {}\nname = {}\n",
            format_thousands(kernel.count),
            quote_toml(&kernel.name)
        );
        if let Some(dtype) = kernel.dtype {
            let _ = writeln!(text, "format = \"{dtype}\"");
        }
        text += "times = [\n";
        for time in &kernel.times {
            let micros = time.seconds * 1e6;
            let _ = writeln!(
                text,
                "    [{}, {}, \"{micros:.6} us\"],",
                time.flops, time.bytes
            );
        }
        let _ = writeln!(
            text,
            "]\nerror = {:.4}\nbetween = {:.4}",
            kernel.error.clamp(1e-4, 10.0),
            kernel.expected_error_at_unmeasured_size().clamp(1e-4, 10.0)
        );
    }
    text
}

/// Returns a table of the kernels with the largest total times.
fn tabulate_kernels_with_largest_total_time(found: &[OneKernelRecordedTimesBySize]) -> String {
    let mut table = TextTable::new([
        left_aligned_column("KERNELS", 36),
        right_aligned_column("format", 8),
        right_aligned_column("count", 9),
        right_aligned_column("sizes", 7),
        right_aligned_column("share", 8),
        right_aligned_column("repeat", 8),
        right_aligned_column("left out", 10),
    ]);
    let total: f64 = found.iter().map(|kernel| kernel.total).sum();
    let mut by_time: Vec<_> = found.iter().collect();
    by_time.sort_by(|a, b| b.total.total_cmp(&a.total));
    let count: u64 = found.iter().map(|kernel| kernel.count).sum();
    let mut text = format!(
        "{} kernels of {} names and formats\n",
        format_thousands(count),
        format_thousands(found.len() as u64)
    );
    for kernel in by_time.iter().take(SHOWN) {
        let cells = [
            escape_and_shorten_name(&kernel.name),
            kernel
                .dtype
                .map_or("-".to_owned(), |dtype| dtype.to_string()),
            format_thousands(kernel.count),
            format_thousands(kernel.times.len() as u64),
            format_percent(kernel.total / total),
            format_percent(kernel.error),
            kernel.left_out.map_or("-".to_owned(), format_percent),
        ];
        table.add_row(&cells.each_ref().map(|cell| cell as &dyn Display));
    }
    text += &table.to_text(plain_style());
    if by_time.len() > SHOWN {
        let rest: f64 = by_time[SHOWN..].iter().map(|kernel| kernel.total).sum();
        let _ = writeln!(
            text,
            "and {} others, {} of the time",
            format_thousands((by_time.len() - SHOWN) as u64),
            format_percent(rest / total)
        );
    }
    let known: Vec<_> = found
        .iter()
        .filter(|kernel| kernel.left_out.is_some())
        .collect();
    let over: f64 = known.iter().map(|kernel| kernel.total).sum();
    if over > 0.0 {
        let off = |kernel: &&OneKernelRecordedTimesBySize| {
            kernel.left_out.unwrap_or_default() * kernel.total
        };
        let off: f64 = known.iter().map(off).sum();
        let _ = writeln!(
            text,
            "repeat: deviation between kernels of one size; left out: mean error of a size by the others, {} in all",
            format_percent(off / over)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_kernels_do_not_reach_the_terminal_unescaped() {
        let kernel = OneKernelRecordedTimesBySize {
            class: 0,
            name: "mm\u{1b}[2J".to_owned(),
            dtype: None,
            times: Vec::new(),
            count: 1,
            total: 1.0,
            error: 0.1,
            left_out: None,
        };
        let text = tabulate_kernels_with_largest_total_time(&[kernel]);
        assert!(text.contains("mm") && !text.contains('\u{1b}'), "{text}");
    }
}
