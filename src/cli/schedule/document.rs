//! Schedules as JSON, and as CSV tables.

use super::tables::MatrixCutsAndTotalMovedBytes;
use super::work::TopologyScheduleResult;
use chakram_base::units::Span;
use chakram_report::csv::CsvRows;
use chakram_report::document::VersionedDocument;
use chakram_studies::schedule::{
    ChipDataId, ChipDataNeedOrEviction, StepTimeAndEnergy, TransferSource,
};
use serde::Serialize;
use std::fmt::Display;

/// JSON document that `schedule` prints.
#[derive(Debug, Serialize)]
struct TopologySchedulesDocument<'r> {
    /// The chosen cuts of the matrix products; `None` if no rule chose them.
    partition: Option<&'r MatrixCutsAndTotalMovedBytes>,
    /// Number of layers that chakram mapped itself because the table of cycles lacks them; `None` if there is no such
    /// table.
    mapped_layers: Option<usize>,
    topologies: Vec<TopologyScheduleEntry<'r>>,
}

#[derive(Debug, Serialize)]
struct TopologyScheduleEntry<'r> {
    name: &'r str,
    chips: usize,
    accelerators_per_chip: usize,
    parts: u64,
    /// Mean distance between two chips; `None` if there are no links.
    mean_distance: Option<f64>,
    #[serde(flatten)]
    times: SummedStepCosts,
    steps: Vec<StepCostsAndSubLayersEntry<'r>>,
    log: Vec<NeededOrEvictedDataEntry>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct SummedStepCosts {
    dispatch_ps: u64,
    communication_ps: u64,
    processing_ps: u64,
    total_ps: u64,
    between_chips_bytes: u64,
    memory_bytes: u64,
    /// Energy in picojoules; `None` if the table of cycles gives no energy.
    energy_pj: Option<f64>,
}

#[derive(Debug, Serialize)]
struct StepCostsAndSubLayersEntry<'r> {
    step: usize,
    #[serde(flatten)]
    times: SummedStepCosts,
    cycles: u64,
    sub_layers: Vec<SubLayerPlacementEntry<'r>>,
}

#[derive(Debug, Serialize)]
struct SubLayerPlacementEntry<'r> {
    chip: usize,
    accelerator: usize,
    sub_layer: u32,
    name: &'r str,
    duration_ps: u64,
}

/// JSON for a log entry about data that a chip needed or evicted.
#[derive(Debug, Serialize)]
struct NeededOrEvictedDataEntry {
    step: u32,
    chip: u32,
    /// Kind of data: `weights`, `input` or `output`.
    data: &'static str,
    /// Index of the weights or of the part of the input. For an output, index of the sub-layer that produced it.
    number: u32,
    /// Index of the piece, if the output is transferred in pieces.
    piece: Option<u32>,
    bytes: u64,
    /// Where needed data came from (`own`, `chip` or `memory`), or what happened to evicted data (`dropped` or
    /// `written`).
    place: &'static str,
    /// Index of the chip that sends the data.
    from_chip: Option<u32>,
    duration_ps: u64,
}

fn to_picoseconds(seconds: f64) -> u64 {
    Span::from_seconds_saturating(seconds).0
}

impl SummedStepCosts {
    /// Returns the total time, bytes and energy of all `steps`.
    fn sum_steps(steps: &[StepTimeAndEnergy]) -> Self {
        let sum = |of: fn(&StepTimeAndEnergy) -> f64| steps.iter().map(of).sum::<f64>();
        let bytes =
            |of: fn(&StepTimeAndEnergy) -> u64| steps.iter().map(of).fold(0, u64::saturating_add);
        Self {
            dispatch_ps: to_picoseconds(sum(|step| step.dispatch)),
            communication_ps: to_picoseconds(sum(|step| step.communication)),
            processing_ps: to_picoseconds(sum(|step| step.processing)),
            total_ps: to_picoseconds(sum(|step| {
                step.dispatch + step.communication + step.processing
            })),
            between_chips_bytes: bytes(|step| step.between_chips),
            memory_bytes: bytes(|step| step.memory),
            energy_pj: steps
                .iter()
                .map(|step| step.joules)
                .sum::<Option<f64>>()
                .map(|joules| joules * 1e12),
        }
    }

    const HEADER: &str = "dispatch_ps,communication_ps,processing_ps,total_ps,between_chips_bytes,memory_bytes,energy_pj";

    fn table_cells(&self) -> [String; 7] {
        [
            self.dispatch_ps.to_string(),
            self.communication_ps.to_string(),
            self.processing_ps.to_string(),
            self.total_ps.to_string(),
            self.between_chips_bytes.to_string(),
            self.memory_bytes.to_string(),
            cell_text_or_empty(self.energy_pj),
        ]
    }
}

impl NeededOrEvictedDataEntry {
    fn from_log(entry: &ChipDataNeedOrEviction) -> Self {
        let (data, number, piece) = match entry.data {
            ChipDataId::Weights(number) => ("weights", number, None),
            ChipDataId::Input(number) => ("input", number, None),
            ChipDataId::Output(task) => ("output", task, None),
            ChipDataId::Piece(task, piece) => ("output", task, Some(piece)),
        };
        let (place, from_chip) = match entry.from {
            Some(TransferSource::Own) => ("own", None),
            Some(TransferSource::Chip(other)) => ("chip", Some(other)),
            Some(TransferSource::Memory) => ("memory", None),
            None if entry.written => ("written", None),
            None => ("dropped", None),
        };
        Self {
            step: entry.step,
            chip: entry.chip,
            data,
            number,
            piece,
            bytes: entry.bytes,
            place,
            from_chip,
            duration_ps: to_picoseconds(entry.seconds),
        }
    }
}

impl<'r> TopologyScheduleEntry<'r> {
    fn from_schedule_result_row(row: &'r TopologyScheduleResult) -> Self {
        let steps = row.totals.steps.iter().enumerate();
        let steps = steps.map(|(step, cost)| StepCostsAndSubLayersEntry {
            step,
            times: SummedStepCosts::sum_steps(std::slice::from_ref(cost)),
            cycles: cost.cycles,
            sub_layers: sub_layer_placements_of_step(row, step).collect(),
        });
        Self {
            name: &row.name,
            chips: row.chip_count(),
            accelerators_per_chip: row.accelerators,
            parts: row.work.parts,
            mean_distance: row.mean_chip_distance(),
            times: SummedStepCosts::sum_steps(&row.totals.steps),
            steps: steps.collect(),
            log: row
                .totals
                .log
                .iter()
                .map(NeededOrEvictedDataEntry::from_log)
                .collect(),
        }
    }
}

fn sub_layer_placements_of_step(
    row: &TopologyScheduleResult,
    step: usize,
) -> impl Iterator<Item = SubLayerPlacementEntry<'_>> {
    (0..row.chip_count()).flat_map(move |chip| {
        let all = row
            .schedule
            .sub_layers_of_chip_at_step(chip, row.accelerators, step);
        all.map(move |(accelerator, task)| SubLayerPlacementEntry {
            chip,
            accelerator,
            sub_layer: task,
            name: &row.work.graph.tasks[task as usize].name,
            duration_ps: to_picoseconds(row.work.costs[task as usize].seconds),
        })
    })
}

/// Renders all results as one JSON document.
pub fn render_json(
    rows: &[TopologyScheduleResult],
    partition: Option<&MatrixCutsAndTotalMovedBytes>,
    mapped_layers: Option<usize>,
) -> String {
    let document = TopologySchedulesDocument {
        partition,
        mapped_layers,
        topologies: rows
            .iter()
            .map(TopologyScheduleEntry::from_schedule_result_row)
            .collect(),
    };
    VersionedDocument::new("chakram.schedule.1", document).to_json_text()
}

fn cell_text_or_empty(cell: Option<impl Display>) -> String {
    cell.map_or_else(String::new, |cell| cell.to_string())
}

/// Renders topologies as CSV, with one row per topology.
pub fn csv_topologies(rows: &[TopologyScheduleResult]) -> String {
    let header = "topology,chips,accelerators_per_chip,parts,mean_distance,steps";
    let mut csv = CsvRows::new(&format!("{header},{}", SummedStepCosts::HEADER));
    for row in rows {
        let front = [
            row.name.clone(),
            row.chip_count().to_string(),
            row.accelerators.to_string(),
            row.work.parts.to_string(),
            cell_text_or_empty(row.mean_chip_distance()),
            row.totals.steps.len().to_string(),
        ];
        let times = SummedStepCosts::sum_steps(&row.totals.steps);
        csv.add_row_of_cells(front.into_iter().chain(times.table_cells()));
    }
    csv.into_text()
}

/// Renders steps as CSV, with one row per step and topology.
pub fn csv_steps(rows: &[TopologyScheduleResult]) -> String {
    let mut csv = CsvRows::new(&format!("topology,step,cycles,{}", SummedStepCosts::HEADER));
    for row in rows {
        for (step, cost) in row.totals.steps.iter().enumerate() {
            let front = [row.name.clone(), step.to_string(), cost.cycles.to_string()];
            let times = SummedStepCosts::sum_steps(std::slice::from_ref(cost));
            csv.add_row_of_cells(front.into_iter().chain(times.table_cells()));
        }
    }
    csv.into_text()
}

/// Renders the log as CSV, with one row per log entry and topology.
pub fn csv_data_need_and_eviction_log(rows: &[TopologyScheduleResult]) -> String {
    let mut csv =
        CsvRows::new("topology,step,chip,data,number,piece,bytes,place,from_chip,duration_ps");
    for row in rows {
        for entry in row
            .totals
            .log
            .iter()
            .map(NeededOrEvictedDataEntry::from_log)
        {
            csv.add_row(&[
                &row.name,
                &entry.step,
                &entry.chip,
                &entry.data,
                &entry.number,
                &cell_text_or_empty(entry.piece),
                &entry.bytes,
                &entry.place,
                &cell_text_or_empty(entry.from_chip),
                &entry.duration_ps,
            ]);
        }
    }
    csv.into_text()
}
