//! Converts a server's measurements to a platform file. The file states datapath, queueing and compute times for each
//! model, batch size and concurrency.
//!
//! Two formats of request logs are supported. Triton's performance analyzer writes one row per concurrency, with
//! microseconds in the columns `Concurrency`, `Network+Server Send/Recv`, `Server Queue`, `Server Compute Input`,
//! `Server Compute Infer`, `Server Compute Output` and others. In this format, the datapath latency is the time of the
//! client, the network, and the copies of inputs and outputs. Any other table has the columns `compute_us` (or another
//! unit) and `total_us`, and optionally `queue_us`, `model`, `platform`, `batch` and `concurrency`. In this format, the
//! datapath latency is the total minus the queue and compute times.
//!
//! Rows with the same model, batch and concurrency are averaged.

use super::error::ServeError;
use super::tables::{CsvTableRowReader, TimeColumnUnit};
use chakram_base::setting::SettingKey;
use chakram_base::units::Span;
use std::fmt::Write as _;
use std::path::Path;

/// Values for columns that the table lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeasurementImportDefaults {
    /// Name of the platform.
    pub platform: String,
    /// Name of the model, if no column states it.
    pub model: Option<String>,
    /// Number of inferences in a request, if no column states it.
    pub batch: Option<u32>,
}

/// Mean times of all rows with the same model, batch and concurrency.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasurementGroupMeanTimes {
    /// Name of the model.
    pub model: String,
    /// Number of inferences in a request.
    pub batch: u32,
    /// Number of requests in flight at the same time.
    pub concurrency: u32,
    /// Number of averaged rows.
    pub rows: u32,
    /// Mean datapath latency.
    pub datapath: Span,
    /// Mean time in the server's queue.
    pub queue: Span,
    /// Mean compute time.
    pub compute: Span,
    /// Mean total time, if the table has a column for it.
    pub total: Option<Span>,
    /// Largest relative deviation of a row's compute time from the mean.
    pub spread: f64,
}

impl MeasurementGroupMeanTimes {
    /// Returns the total time minus the datapath, queue and compute times, in seconds; may be
    /// negative. `None` if the table has no total.
    pub fn unattributed_seconds(&self) -> Option<f64> {
        let parts = (self.datapath + self.queue + self.compute).as_seconds();
        self.total.map(|total| total.as_seconds() - parts)
    }
}

/// The times of a row, divided into datapath, queue and compute.
struct QueueComputeAndDatapathTimes {
    datapath: Span,
    queue: Span,
    compute: Span,
    total: Option<Span>,
}

/// Columns whose times add up to one of the parts, such as the datapath.
struct ColumnsSummedToLatencyPart(Vec<(usize, TimeColumnUnit)>);

impl ColumnsSummedToLatencyPart {
    fn sum(&self, table: &CsvTableRowReader) -> Result<Span, ServeError> {
        let mut sum = Span::ZERO;
        for (column, unit) in &self.0 {
            sum += unit.to_span(table.number_in_column(*column)?);
        }
        Ok(sum)
    }
}

/// Triton's columns for each part: datapath, queue and compute.
const TRITON: [&[&str]; 3] = [
    &[
        "Client Send",
        "Network+Server Send/Recv",
        "Server Compute Input",
        "Server Compute Output",
        "Client Recv",
    ],
    &["Server Queue"],
    &["Server Compute Infer"],
];

/// Reads measurements at `path`.
///
/// # Errors
///
/// Fails if the table lacks columns or a row is invalid.
pub fn read_measurement_group_means(
    path: &Path,
    options: &MeasurementImportDefaults,
) -> Result<Vec<MeasurementGroupMeanTimes>, ServeError> {
    let mut table = CsvTableRowReader::open_table(path)?;
    let file = table.file_name().to_owned();
    let is_triton = table.find_first_column(TRITON[2]).is_some();
    let named = |table: &CsvTableRowReader, name: &str| {
        let all = table.column_names().iter().enumerate();
        let found: Vec<_> = all
            .filter(|(_, heading)| {
                let heading = heading.to_lowercase();
                heading
                    .rsplit_once('_')
                    .is_some_and(|(front, _)| front == name)
            })
            .filter_map(|(at, heading)| Some((at, TimeColumnUnit::from_column_name(heading)?)))
            .collect();
        ColumnsSummedToLatencyPart(found)
    };
    let (datapath, queue, compute, total) = if is_triton {
        let part = |names: &[&str]| {
            let columns = names
                .iter()
                .filter_map(|name| table.find_first_column(&[name]));
            ColumnsSummedToLatencyPart(
                columns
                    .map(|at| (at, TimeColumnUnit::MICROSECONDS))
                    .collect(),
            )
        };
        let total = part(&["Avg latency"]);
        (part(TRITON[0]), part(TRITON[1]), part(TRITON[2]), total)
    } else {
        let datapath = named(&table, "datapath");
        (
            datapath,
            named(&table, "queue"),
            named(&table, "compute"),
            named(&table, "total"),
        )
    };
    if compute.0.is_empty() || (!is_triton && total.0.is_empty() && datapath.0.is_empty()) {
        let found = format!("the columns {}", table.column_names().join(", "));
        let expected = "the columns of Triton's performance analyzer, or compute_us and total_us (or _ns, _ms, _s)";
        return Err(ServeError::invalid_row(&file, 1, found, expected));
    }
    let [model, batch, concurrency, platform] =
        ["model", "batch", "concurrency", "platform"].map(|name| table.find_first_column(&[name]));
    let mut groups: Vec<((String, u32, u32), Vec<QueueComputeAndDatapathTimes>)> = Vec::new();
    while table.advance_to_next_matching_row()? {
        if platform.is_some_and(|column| table.cell_text(column) != options.platform) {
            continue;
        }
        let count = |column: Option<usize>, default: u32| match column {
            None => Ok(default),
            Some(column) => {
                let number = table.number_in_column(column)?;
                let whole = number.fract() == 0.0 && (1.0..=1e9).contains(&number);
                if whole {
                    Ok(number as u32)
                } else {
                    Err(table.invalid_row_error(number, "a whole number, 1 or more"))
                }
            }
        };
        let name = match (model, &options.model) {
            (Some(column), _) => table.cell_text(column).to_owned(),
            (None, Some(model)) => model.clone(),
            (None, None) => {
                return Err(ServeError::invalid_row(
                    &file,
                    1,
                    "no column `model`",
                    format!("a column `model`, or {} NAME", SettingKey::Model),
                ));
            }
        };
        let key = (
            name,
            count(batch, options.batch.unwrap_or(1))?,
            count(concurrency, 1)?,
        );
        let queue = queue.sum(&table)?;
        let compute = compute.sum(&table)?;
        let total = if total.0.is_empty() {
            None
        } else {
            Some(total.sum(&table)?)
        };
        let datapath = match (datapath.0.is_empty(), total) {
            (false, _) | (_, None) => datapath.sum(&table)?,
            (true, Some(total)) => {
                let left = total.0.checked_sub((queue + compute).0);
                Span(left.ok_or_else(|| {
                    table.invalid_row_error(
                        format_args!(
                            "a total of {total}, less than {} for queue and compute",
                            queue + compute
                        ),
                        "a total that includes both",
                    )
                })?)
            }
        };
        let row = QueueComputeAndDatapathTimes {
            datapath,
            queue,
            compute,
            total,
        };
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, rows)) => rows.push(row),
            None => groups.push((key, vec![row])),
        }
    }
    if groups.is_empty() {
        let expected = match platform {
            Some(_) => format!("rows of platform {:?}", options.platform),
            None => "one at least".to_owned(),
        };
        return Err(ServeError::invalid_row(&file, 1, "no rows", expected));
    }
    groups.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(groups
        .into_iter()
        .map(average_times_of_measurement_group)
        .collect())
}

fn average_times_of_measurement_group(
    ((model, batch, concurrency), rows): ((String, u32, u32), Vec<QueueComputeAndDatapathTimes>),
) -> MeasurementGroupMeanTimes {
    let count = rows.len() as u128;
    let mean = |of: &dyn Fn(&QueueComputeAndDatapathTimes) -> Span| {
        let sum: u128 = rows.iter().map(|row| u128::from(of(row).0)).sum();
        Span(((sum + count / 2) / count) as u64)
    };
    let compute = mean(&|row| row.compute);
    let off = |row: &QueueComputeAndDatapathTimes| row.compute.0.abs_diff(compute.0) as f64;
    let most = rows.iter().map(off).fold(0.0, f64::max);
    MeasurementGroupMeanTimes {
        rows: rows.len() as u32,
        datapath: mean(&|row| row.datapath),
        queue: mean(&|row| row.queue),
        compute,
        total: rows
            .iter()
            .all(|row| row.total.is_some())
            .then(|| mean(&|row| row.total.unwrap_or_default())),
        spread: most / compute.0.max(1) as f64,
        model,
        batch,
        concurrency,
    }
}

/// Formats `measurements`, which come from `source`, as a platform file.
pub fn format_platform_file(
    options: &MeasurementImportDefaults,
    source: &str,
    measurements: &[MeasurementGroupMeanTimes],
) -> String {
    let mut text = String::new();
    let put = "a string grows as needed";
    writeln!(text, "name = {:?}", options.platform).expect(put);
    writeln!(text, "source = {:?}", format!("measurements in {source}")).expect(put);
    for one in measurements {
        writeln!(
            text,
            "\n[[measured]]\nmodel = {:?}\nbatch = {}\nconcurrency = {}\ndatapath = \"{} ps\"\nqueue = \"{} ps\"\ncompute = \"{} ps\"\nrows = {} # averaged; compute times are within {:.1} % of their mean",
            one.model,
            one.batch,
            one.concurrency,
            one.datapath.0,
            one.queue.0,
            one.compute.0,
            one.rows,
            100.0 * one.spread
        )
        .expect(put);
        if let Some(left) = one.unattributed_seconds() {
            writeln!(
                text,
                "# {:.3} us of the total belong to none of these parts",
                left * 1e6
            )
            .expect(put);
        }
    }
    text
}
