//! The `failure` tables: parts of the machine that stop working during a replay.

use crate::machine::{FailedNpuOrNamedLinks, FailedPartAndTime};
use crate::topology::Topology;
use crate::topology::link_graph::MOST_NPUS;
use chakram_base::config::{ConfigError, ConfigTable};
use chakram_base::ids::Npu;
use chakram_base::units::{Span, Time};

const KEYS: &[&str] = &["npu", "link", "at"];

/// Parses the failures in the order of the file.
pub(super) fn parse_failures(
    root: &ConfigTable<'_>,
    topology: &Topology,
) -> Result<Vec<FailedPartAndTime>, ConfigError> {
    let Some(field) = root.get("failure") else {
        return Ok(Vec::new());
    };
    let tables = field.read_tables(KEYS)?;
    let failures = tables.iter().map(|table| {
        let at: Span = table.read_quantity("at", "2 ms")?;
        Ok(FailedPartAndTime {
            part: parse_failed_part(table, topology)?,
            at: Time::ZERO + at,
        })
    });
    failures.collect()
}

fn parse_failed_part(
    table: &ConfigTable<'_>,
    topology: &Topology,
) -> Result<FailedNpuOrNamedLinks, ConfigError> {
    match (table.get("npu"), table.get("link")) {
        (Some(npu), None) => {
            let number = npu.read_integer_between(0, u64::from(topology.npu_count()) - 1)?;
            Ok(FailedNpuOrNamedLinks::Npu(Npu(number as u32)))
        }
        (None, Some(link)) => {
            let ends = link.read_one_line_text()?;
            let Some(graph) = topology.explicit_or_built_link_graph() else {
                let found = format!(
                    "a failing link on a machine of {} NPUs",
                    topology.npu_count()
                );
                return Err(link.invalid_value_error(
                    found,
                    format!("at most {MOST_NPUS} NPUs if single links fail"),
                ));
            };
            let expected = "two vertices that a link joins, such as \"0-1\"";
            let known = graph.links_between_named_ends(ends);
            known.map_err(|found| link.invalid_value_error(found, expected))?;
            Ok(FailedNpuOrNamedLinks::Link(ends.to_owned()))
        }
        _ => Err(table.invalid_table_error(
            "`npu` and `link`, or neither",
            "either of them, for the part that fails",
        )),
    }
}
