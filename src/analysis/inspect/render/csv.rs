//! Renders a table of the summary as comma-separated values, with times in whole picoseconds.

use super::InspectTable;
use crate::inspect::{JobInspection, RECEIVED, SENT, SpreadRow, SpreadTable};
use chakram_report::csv::CsvRows;
use std::fmt::Display;

/// Names of the columns that all tables of sums have.
const SUMS: &str = "ranks,nodes,time_ps,wait_ps,flops,bytes,nodes_without_time,min_ps,min_rank,\
                    max_ps,max_rank";

/// Renders one table of `job`.
pub fn render(job: &JobInspection, table: InspectTable) -> String {
    match table {
        InspectTable::Ranks => ranks(job),
        InspectTable::Types => sums("type", &job.types, |class| [class.to_string()]),
        InspectTable::Lanes => sums("lane,name", &job.lanes, |lane| {
            let name = job.lane_names.get(lane).map_or("", |(name, _)| name);
            [lane.to_string(), name.to_owned()]
        }),
        InspectTable::Collectives => sums("group,kind", &job.collectives, |(group, kind)| {
            [group.clone(), kind.to_string()]
        }),
        InspectTable::Messages => messages(job),
        InspectTable::Operators => sums("name,type", &job.operators, |(name, class)| {
            [name.clone(), class.to_string()]
        }),
        InspectTable::Attributes => {
            let mut rows = CsvRows::new("name,type,nodes");
            for ((name, kind), nodes) in &job.attributes {
                rows.row(&[name, kind, nodes]);
            }
            rows.text()
        }
    }
}

fn sums<K: Ord, const N: usize>(
    key_names: &str,
    table: &SpreadTable<K>,
    key: impl Fn(&K) -> [String; N],
) -> String {
    let mut rows = CsvRows::new(&format!("{key_names},{SUMS}"));
    for (of, row) in table.rows() {
        let SpreadRow {
            sum,
            ranks,
            least,
            most,
            ..
        } = row;
        let key = key(of);
        let mut cells: Vec<&dyn Display> = key.iter().map(|cell| cell as &dyn Display).collect();
        let rest: [&dyn Display; 11] = [
            ranks,
            &sum.nodes,
            &sum.time.0,
            &sum.wait.0,
            &sum.flops,
            &sum.bytes,
            &sum.untimed,
            &least.0.0,
            &least.1,
            &most.0.0,
            &most.1,
        ];
        cells.extend(rest);
        rows.row(&cells);
    }
    rows.text()
}

fn ranks(job: &JobInspection) -> String {
    let mut rows = CsvRows::new(
        "rank,file,file_bytes,contents_bytes,nodes,selected,data_dependencies,control_dependencies,depth,\
         width,start_ps,end_ps,captured_ps,times,faults",
    );
    for rank in &job.ranks {
        let captured = rank.captured.map(|captured| captured.0.to_string());
        rows.row(&[
            &rank.rank,
            &rank.path.display(),
            &rank.file_bytes,
            &rank.contents_bytes,
            &rank.nodes,
            &rank.selected,
            &rank.data,
            &rank.control,
            &rank.depth,
            &rank.width,
            &rank.start.0,
            &rank.end.0,
            &captured.unwrap_or_default(),
            &rank.basis.word(),
            &rank.faults.count(),
        ]);
    }
    rows.text()
}

fn messages(job: &JobInspection) -> String {
    let mut rows = CsvRows::new(
        "from,to,sent,sent_bytes,send_time_ps,send_wait_ps,received,received_bytes,receive_time_ps,\
         receive_wait_ps",
    );
    for ((from, to), ends) in &job.messages {
        let (sent, received) = (&ends[SENT], &ends[RECEIVED]);
        rows.row(&[
            from,
            to,
            &sent.nodes,
            &sent.bytes,
            &sent.time.0,
            &sent.wait.0,
            &received.nodes,
            &received.bytes,
            &received.time.0,
            &received.wait.0,
        ]);
    }
    rows.text()
}
