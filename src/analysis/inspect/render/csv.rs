//! Renders one table of the summary as CSV, with times in whole picoseconds.

use super::SummaryTableKind;
use crate::inspect::{
    JobInspectionSummary, RECEIVED, RankSumsAndExtremesByKey, SENT, SumOverRanksAndExtremeRanksRow,
};
use chakram_report::csv::CsvRows;
use std::fmt::Display;

/// Names of the columns for sums, which most tables have.
const SUMS: &str = "ranks,nodes,time_ps,wait_ps,flops,bytes,nodes_without_time,min_ps,min_rank,\
                    max_ps,max_rank";

/// Renders `table` of `job`.
pub fn render_summary_table_as_csv(job: &JobInspectionSummary, table: SummaryTableKind) -> String {
    match table {
        SummaryTableKind::Ranks => render_ranks(job),
        SummaryTableKind::Types => render_sums("type", &job.types, |class| [class.to_string()]),
        SummaryTableKind::Lanes => render_sums("lane,name", &job.lanes, |lane| {
            let name = job.lane_names.get(lane).map_or("", |(name, _)| name);
            [lane.to_string(), name.to_owned()]
        }),
        SummaryTableKind::Collectives => {
            render_sums("group,kind", &job.collectives, |(group, kind)| {
                [group.clone(), kind.to_string()]
            })
        }
        SummaryTableKind::Messages => render_message_totals_per_pair(job),
        SummaryTableKind::Operators => render_sums("name,type", &job.operators, |(name, class)| {
            [name.clone(), class.to_string()]
        }),
        SummaryTableKind::Attributes => {
            let mut rows = CsvRows::new("name,type,nodes");
            for ((name, kind), nodes) in &job.attributes {
                rows.add_row(&[name, kind, nodes]);
            }
            rows.into_text()
        }
    }
}

fn render_sums<K: Ord, const N: usize>(
    key_names: &str,
    table: &RankSumsAndExtremesByKey<K>,
    key: impl Fn(&K) -> [String; N],
) -> String {
    let mut rows = CsvRows::new(&format!("{key_names},{SUMS}"));
    for (of, row) in table.rows_by_key() {
        let SumOverRanksAndExtremeRanksRow {
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
        rows.add_row(&cells);
    }
    rows.into_text()
}

fn render_ranks(job: &JobInspectionSummary) -> String {
    let mut rows = CsvRows::new(
        "rank,file,file_bytes,contents_bytes,nodes,selected,data_dependencies,control_dependencies,depth,\
         width,start_ps,end_ps,captured_ps,times,faults",
    );
    for rank in &job.ranks {
        let captured = rank.captured.map(|captured| captured.0.to_string());
        rows.add_row(&[
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
            &rank.basis.name_of_basis(),
            &rank.faults.count_replay_rejecting_faults(),
        ]);
    }
    rows.into_text()
}

fn render_message_totals_per_pair(job: &JobInspectionSummary) -> String {
    let mut rows = CsvRows::new(
        "from,to,sent,sent_bytes,send_time_ps,send_wait_ps,received,received_bytes,receive_time_ps,\
         receive_wait_ps",
    );
    for ((from, to), ends) in &job.messages {
        let (sent, received) = (&ends[SENT], &ends[RECEIVED]);
        rows.add_row(&[
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
    rows.into_text()
}
