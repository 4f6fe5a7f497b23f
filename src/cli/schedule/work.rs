//! Loads sub-layers with their costs, and schedules them on a topology.

use super::args::MultiChipScheduleArgs;
use chakram_base::config;
use chakram_base::units::{Bandwidth, Span};
use chakram_hardware::compute::{LayerShape, LoopNestModel};
use chakram_hardware::topology::chip_graph::{ChipGraph, LinkRateByLinkCount};
use chakram_studies::schedule::{
    LayerCyclesAndEnergyTable, MultiChipMachine, OrderedSubLayersOfModel, ScheduleRunError,
    StepCostsAndTransferLog, SubLayerTimeAndEnergy, SubLayersByAcceleratorAndStep, parse_schedule,
    schedule_sub_layers_on_chips,
};
use std::collections::BTreeMap;
use std::error::Error;
use std::rc::Rc;

/// Sub-layers with their costs, and the schedule if the user gave a schedule file.
pub struct SubLayerCostsAndGivenSchedule {
    pub graph: OrderedSubLayersOfModel,
    pub costs: Vec<SubLayerTimeAndEnergy>,
    pub given: Option<SubLayersByAcceleratorAndStep>,
    /// Number of parts per matrix product.
    pub parts: u64,
}

/// Results of scheduling the work on one topology.
pub struct TopologyScheduleResult {
    pub links: Option<ChipGraph>,
    pub name: String,
    pub schedule: SubLayersByAcceleratorAndStep,
    pub totals: StepCostsAndTransferLog,
    pub work: Rc<SubLayerCostsAndGivenSchedule>,
    /// Number of accelerators on each chip.
    pub accelerators: usize,
    /// True if the result includes the host's time to issue commands.
    pub has_host: bool,
}

impl TopologyScheduleResult {
    pub fn chip_count(&self) -> usize {
        self.schedule.chips.len().div_ceil(self.accelerators)
    }

    /// Returns the mean distance between two chips, or `None` if there are no links.
    pub fn mean_chip_distance(&self) -> Option<f64> {
        let links = self.links.as_ref()?;
        Some(links.summarize().mean_distance)
    }
}

/// Key of a layer: its loop sizes, strides and dilations.
type LayerShapeKey = ([u64; 7], [u64; 2], [u64; 2]);

/// Costs of layers, from a table of cycles or from a search for a mapping. Each cost is looked up or computed only
/// once.
pub struct LayerCostCache {
    pub model: LoopNestModel,
    pub table: Option<LayerCyclesAndEnergyTable>,
    pub known: BTreeMap<LayerShapeKey, SubLayerTimeAndEnergy>,
    /// Number of layers that chakram mapped itself because the table of cycles lacks them.
    pub mapped: usize,
}

impl LayerCostCache {
    pub fn layer_cost(&mut self, layer: &LayerShape) -> Result<SubLayerTimeAndEnergy, String> {
        let model = self.model;
        let key = (layer.sizes, layer.stride, layer.dilation);
        if let Some(known) = self.known.get(&key) {
            return Ok(*known);
        }
        if let Some(row) = self.table.as_ref().and_then(|table| table.get(layer)) {
            let cost = SubLayerTimeAndEnergy {
                seconds: model.gemmini.clock.time_for_cycles(row.cycles).as_seconds(),
                joules: row.energy.map(|picojoules| picojoules * 1e-12),
                cycles: row.cycles,
            };
            self.known.insert(key, cost);
            return Ok(cost);
        }
        self.mapped += 1;
        let found = model.cost_of_best_mapping(layer, 1);
        let found = found
            .ok_or("found no mapping of a sub-layer\n  try: more mappings in --accelerator")?;
        let cost = SubLayerTimeAndEnergy {
            seconds: model.convert_cycles_to_time(found).as_seconds(),
            joules: Some(found.energy * 1e-12),
            cycles: found.cycles,
        };
        self.known.insert(key, cost);
        Ok(cost)
    }
}

/// Returns the sub-layers of the file or the model. A model's matrix products are cut into `parts` parts.
pub fn load_sub_layers_of_file_or_model(
    args: &MultiChipScheduleArgs,
    parts: u64,
    prices: &mut LayerCostCache,
) -> Result<SubLayerCostsAndGivenSchedule, Box<dyn Error>> {
    let (graph, given) = match &args.file {
        Some(path) => {
            let name = path.display().to_string();
            let text = config::read_file_or_standard_input(path)
                .map_err(|error| format!("cannot read {name}: {error}"))?;
            let (graph, schedule) = parse_schedule(&text, &name)?;
            (graph, Some(schedule))
        }
        None => {
            let model = args.model.to_language_model(parts);
            (model.build_task_graph()?, None)
        }
    };
    let costs = graph
        .tasks
        .iter()
        .map(|task| prices.layer_cost(&task.record.shape));
    Ok(SubLayerCostsAndGivenSchedule {
        costs: costs.collect::<Result<_, _>>()?,
        graph,
        given,
        parts,
    })
}

/// Schedules the work on a topology. If a sub-layer does not fit into a chip's memory, doubles the number of parts per
/// matrix product and schedules again.
pub fn schedule_doubling_parts_until_fit(
    args: &MultiChipScheduleArgs,
    work: &Rc<SubLayerCostsAndGivenSchedule>,
    links: Option<ChipGraph>,
    chips: usize,
    prices: &mut LayerCostCache,
) -> Result<TopologyScheduleResult, Box<dyn Error>> {
    let (rule, interpolation) = (args.rule, args.interpolate);
    let table = LinkRateByLinkCount::deap_table_three(interpolation);
    let technology = LinkRateByLinkCount {
        interpolation,
        ..args.rates.clone().unwrap_or(table)
    };
    let machine = MultiChipMachine {
        links,
        technology,
        capacity: args.memory.map(|size| size.0),
        memory_bandwidth: args.memory_bandwidth.map(Bandwidth::bytes_per_second),
        connection_power: args.power,
        word: 1,
        accelerators: args.accelerators.into(),
        dispatch: args.dispatch.map_or(0.0, Span::as_seconds),
    };
    let slots = chips * machine.accelerators;
    let mut work = Rc::clone(work);
    loop {
        let schedule = match &work.given {
            Some(given) => given.clone(),
            None => schedule_sub_layers_on_chips(&work.graph, slots, rule)?,
        };
        let totals = match machine.simulate_steps(&work.graph, &schedule, &work.costs) {
            Err(ScheduleRunError::DoesNotFit { .. })
                if work.given.is_none() && work.parts < 4096 =>
            {
                work = Rc::new(load_sub_layers_of_file_or_model(
                    args,
                    work.parts * 2,
                    prices,
                )?);
                continue;
            }
            other => other?,
        };
        let name = machine.links.as_ref().map_or("interfaces", ChipGraph::name);
        let name = if work.parts > args.model.tensor {
            format!("{name}, {} parts", work.parts)
        } else {
            name.to_owned()
        };
        return Ok(TopologyScheduleResult {
            name,
            links: machine.links,
            schedule,
            totals,
            work,
            accelerators: machine.accelerators,
            has_host: args.dispatch.is_some(),
        });
    }
}
