//! A table of the summary as comma-separated values; times are in whole picoseconds.

use super::TableArg;
use crate::inspect::{Inspection, RECEIVED, Row, SENT, Table};
use crate::report::csv::quoted;
use std::fmt::Write as _;

/// Columns that every table of sums has.
const SUMS: &str = "ranks,nodes,time_ps,wait_ps,flops,bytes,nodes_without_time,least_ps,least_rank,\
                    most_ps,most_rank";

/// Renders one table of `job`.
pub fn render(job: &Inspection, table: TableArg) -> String {
    let mut out = String::new();
    write(&mut out, job, table).expect("a string grows as needed");
    out
}

fn write(out: &mut String, job: &Inspection, table: TableArg) -> std::fmt::Result {
    match table {
        TableArg::Ranks => ranks(out, job),
        TableArg::Types => sums(out, "type", &job.types, |class| class.to_string()),
        TableArg::Lanes => sums(out, "lane,name", &job.lanes, |lane| {
            let name = job.lane_names.get(lane).map_or("", |(name, _)| name);
            format!("{},{}", quoted(&lane.to_string()), quoted(name))
        }),
        TableArg::Collectives => sums(out, "group,kind", &job.collectives, |(group, kind)| {
            format!("{},{kind}", quoted(group))
        }),
        TableArg::Messages => messages(out, job),
        TableArg::Operators => sums(out, "name,type", &job.operators, |(name, class)| {
            format!("{},{class}", quoted(name))
        }),
        TableArg::Attributes => {
            writeln!(out, "name,type,nodes")?;
            job.attributes.iter().try_for_each(|((name, kind), nodes)| {
                writeln!(out, "{},{kind},{nodes}", quoted(name))
            })
        }
    }
}

fn sums<K: Ord>(
    out: &mut String,
    key_names: &str,
    table: &Table<K>,
    key: impl Fn(&K) -> String,
) -> std::fmt::Result {
    writeln!(out, "{key_names},{SUMS}")?;
    for (of, row) in table.rows() {
        write!(out, "{}", key(of))?;
        let Row {
            sum,
            ranks,
            least,
            most,
            ..
        } = row;
        writeln!(
            out,
            ",{ranks},{},{},{},{},{},{},{},{},{},{}",
            sum.nodes,
            sum.time.0,
            sum.wait.0,
            sum.flops,
            sum.bytes,
            sum.untimed,
            least.0.0,
            least.1,
            most.0.0,
            most.1
        )?;
    }
    Ok(())
}

fn ranks(out: &mut String, job: &Inspection) -> std::fmt::Result {
    writeln!(
        out,
        "rank,file,file_bytes,contents_bytes,nodes,selected,data_dependencies,control_dependencies,depth,\
         width,start_ps,end_ps,captured_ps,times,faults"
    )?;
    for rank in &job.ranks {
        let captured = rank.captured.map(|captured| captured.0.to_string());
        writeln!(
            out,
            "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            rank.rank,
            quoted(&rank.path.display().to_string()),
            rank.file_bytes,
            rank.contents_bytes,
            rank.nodes,
            rank.selected,
            rank.data,
            rank.control,
            rank.depth,
            rank.width,
            rank.start.0,
            rank.end.0,
            captured.unwrap_or_default(),
            rank.basis.word(),
            rank.faults.count()
        )?;
    }
    Ok(())
}

fn messages(out: &mut String, job: &Inspection) -> std::fmt::Result {
    writeln!(
        out,
        "from,to,sent,sent_bytes,send_time_ps,send_wait_ps,received,received_bytes,receive_time_ps,\
         receive_wait_ps"
    )?;
    for ((from, to), ends) in &job.messages {
        write!(out, "{from},{to}")?;
        for end in [SENT, RECEIVED] {
            let tally = &ends[end];
            write!(
                out,
                ",{},{},{},{}",
                tally.nodes, tally.bytes, tally.time.0, tally.wait.0
            )?;
        }
        writeln!(out)?;
    }
    Ok(())
}
