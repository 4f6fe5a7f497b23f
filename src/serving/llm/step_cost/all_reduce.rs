//! Times of all-reduces and of token exchanges among the NPUs of an engine: measured for the engine's own kernels,
//! measured for the machine, or computed for a ring.

use super::super::rules::AllReduceKernelLibrary;
use crate::error::ServeError;
use chakram_base::collective_kind::CollectiveKind;
use chakram_base::config::{ConfigDocument, ConfigTable};
use chakram_base::ids::Npu;
use chakram_base::units::Span;
use chakram_hardware::collective::{
    CollectiveCurve, MeasurementSetupLinkProperties, find_measured_time_collective,
};
use chakram_hardware::group::GroupPhasesAndMemberPositions;
use chakram_hardware::machine::Machine;
use chakram_hardware::topology::DimensionShape;

/// NPUs whose all-reduces by TensorRT-LLM are assumed to be as fast as on H100, where they were measured. Their links
/// are at least as fast as H100's, and up to 256 KiB the time is mostly latency.
const AS_H100: &[&str] = &["h200", "b200", "b300", "gb200", "gb300"];
/// NPUs with the same links as B200. Their machines also use B200's curves.
const AS_B200: &[&str] = &["b300", "gb200", "gb300"];

/// All-reduce times for an engine's NPUs, as points (bytes, seconds).
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AllReduceTimes {
    pub(super) kernels: AllReduceKernelLibrary,
    /// Times of the engine's own all-reduce kernel, if they were measured.
    pub(super) own: Vec<(f64, f64)>,
    /// The links on which `own` was measured, if the machine has others and the times were converted to them.
    pub(super) converted_from: Option<MeasurementSetupLinkProperties>,
    pub(super) machine: Option<Box<Machine>>,
    pub(super) npus: u32,
}

impl AllReduceTimes {
    /// Returns how many seconds `npus` NPUs take to exchange tokens of `bytes` bytes in total. Afterwards, each NPU has
    /// the tokens of all NPUs or, for `ReduceScatter`, the sums for its own tokens.
    pub(super) fn token_exchange_seconds(
        &self,
        kind: CollectiveKind,
        bytes: u64,
        npus: u32,
    ) -> f64 {
        let Some(machine) = self.machine.as_deref() else {
            return 0.0;
        };
        let measured = machine.measured_collective(kind, bytes, npus);
        let ring = || measured_or_ring_all_reduce_seconds(machine, bytes, npus) / 2.0;
        measured.map_or_else(ring, Span::as_seconds)
    }

    /// Describes from which links to which the times of the engine's own kernels were converted; empty if the machine
    /// has the measured links.
    pub(super) fn describe_conversion(&self) -> String {
        let (Some(from), Some(machine)) = (self.converted_from, self.machine.as_deref()) else {
            return String::new();
        };
        let to = MeasurementSetupLinkProperties::copy_from_topology_dimension(
            &machine.topology().dimensions()[0],
        );
        let describe = |links: MeasurementSetupLinkProperties| {
            let rate = links.bandwidth.bytes_per_second() / 1e9;
            format!("{rate} GB/s and {}", links.latency)
        };
        format!(
            " on links of {} and converted to {}, or faster collectives of the machine",
            describe(from),
            describe(to)
        )
    }

    pub(super) fn all_reduce_seconds(&self, bytes: u64) -> f64 {
        let own = interpolate(&self.own, bytes as f64);
        if let Some(own) = own {
            return own;
        }
        let of = |machine: &Machine| measured_or_ring_all_reduce_seconds(machine, bytes, self.npus);
        self.machine.as_deref().map_or(0.0, of)
    }
}

/// Interpolates linearly between points; for `x` below the first point, returns the first value. Returns `None` above
/// the last point, or if there are no points.
fn interpolate(points: &[(f64, f64)], x: f64) -> Option<f64> {
    let above = points.partition_point(|(at, _)| *at < x);
    let next = points.get(above)?;
    Some(match above.checked_sub(1) {
        None => next.1,
        Some(before) => {
            let before = points[before];
            before.1 + (next.1 - before.1) * (x - before.0) / (next.0 - before.0)
        }
    })
}

/// Returns the seconds of an all-reduce. If the machine has no measurement, a ring along its first dimension is
/// assumed.
fn measured_or_ring_all_reduce_seconds(machine: &Machine, bytes: u64, npus: u32) -> f64 {
    if let Some(span) = machine.measured_collective(CollectiveKind::AllReduce, bytes, npus) {
        return span.as_seconds();
    }
    let dimension = &machine.topology().dimensions()[0];
    let steps = 2.0 * f64::from(npus - 1);
    // A message between two NPUs passes through a switch, so it crosses two links.
    let latency = 2.0 * dimension.latency.as_seconds();
    let part = bytes as f64 / f64::from(npus) / dimension.bandwidth.bytes_per_second();
    steps * (latency + part)
}

impl AllReduceTimes {
    /// Loads the times of all-reduces with `kernels` among `npus` NPUs of the class `npu` of `machine`, for an engine
    /// of `ranks` ranks.
    pub(super) fn load(
        kernels: AllReduceKernelLibrary,
        machine: &Machine,
        npu: &str,
        npus: u32,
        ranks: u32,
    ) -> Result<Self, ServeError> {
        let mut times = Self {
            kernels,
            own: Vec::new(),
            converted_from: None,
            machine: (npus * ranks > 1).then(|| Box::new(machine.clone())),
            npus,
        };
        let Some(links) = machine.topology().dimensions().first() else {
            return Ok(times);
        };
        // The kernels were measured through a switch, where each NPU reaches all others at its full bandwidth.
        if npus == 1 || links.shape != DimensionShape::Switch {
            return Ok(times);
        }
        let document = ConfigDocument::parse(
            include_str!("../engine_all_reduce.toml"),
            "engine_all_reduce.toml",
        )?;
        let measured = document.root_table_with_allowed_keys(&["links", "curve"])?;
        times.own = read_engine_all_reduce_times(&measured, kernels, npu, npus)?;
        let measured_at = read_links_of_measured_npu(&measured, npu)?;
        let differs = |at: &MeasurementSetupLinkProperties| {
            *at != MeasurementSetupLinkProperties::copy_from_topology_dimension(links)
        };
        times.converted_from = measured_at.filter(|at| !times.own.is_empty() && differs(at));
        if let Some(measured_at) = times.converted_from {
            times.own = convert_times_to_machine_links(&times.own, measured_at, machine, npus);
        }
        Ok(times)
    }
}

/// Converts the times of an engine's own all-reduces to the links of `machine`, by the rule for the machine's own
/// curves. An engine whose kernel is slower than the machine's collectives on these links uses the latter.
fn convert_times_to_machine_links(
    own: &[(f64, f64)],
    measured_at: MeasurementSetupLinkProperties,
    machine: &Machine,
    npus: u32,
) -> Vec<(f64, f64)> {
    let kind = CollectiveKind::AllReduce;
    let curves = [vec![CollectiveCurve {
        kind,
        members: npus,
        points: own.to_vec(),
        measured_at: Some(measured_at),
    }]];
    let members: Vec<Npu> = (0..npus).map(Npu).collect();
    let extent = GroupPhasesAndMemberPositions::new(&members, machine.topology());
    let convert = |&(bytes, seconds): &(f64, f64)| {
        let on = (&extent, machine.topology());
        let converted = find_measured_time_collective(&curves, (kind, bytes as u64), on);
        let converted = converted.map_or(seconds, Span::as_seconds);
        let others = measured_or_ring_all_reduce_seconds(machine, bytes as u64, npus);
        (bytes, converted.min(others))
    };
    own.iter().map(convert).collect()
}

/// Returns the links of NPUs of the class `npu` that use the measured times; `None` if no NPU of this class does.
fn read_links_of_measured_npu(
    measured: &ConfigTable<'_>,
    npu: &str,
) -> Result<Option<MeasurementSetupLinkProperties>, ServeError> {
    let classes = measured.require_field("links", "links")?.read_table(None)?;
    let Some(field) = classes.get(npu) else {
        return Ok(None);
    };
    let links = field.read_table(Some(&["bandwidth", "latency"]))?;
    Ok(Some(MeasurementSetupLinkProperties {
        bandwidth: links.read_quantity("bandwidth", "450 GB/s")?,
        latency: links.read_quantity("latency", "400 ns")?,
    }))
}

/// Returns the times of the engine's own all-reduces with `kernels`, for `npus` NPUs of the class `npu`. TensorRT-LLM's
/// kernels were measured only on H100. NPUs of the same or a later generation use these times if vLLM's kernels were
/// measured on them.
fn read_engine_all_reduce_times(
    measured: &ConfigTable<'_>,
    kernels: AllReduceKernelLibrary,
    npu: &str,
    npus: u32,
) -> Result<Vec<(f64, f64)>, ServeError> {
    let npu = match kernels {
        AllReduceKernelLibrary::TensorrtLlm if AS_H100.contains(&npu) => "h100",
        AllReduceKernelLibrary::Vllm if AS_B200.contains(&npu) => "b200",
        _ => npu,
    };
    for curve in measured
        .require_field("curve", "curves")?
        .read_tables(&["npu", "kernels", "members", "points"])?
    {
        let of = curve.read_or_default("kernels", AllReduceKernelLibrary::Vllm, |field| {
            field.read_choice(AllReduceKernelLibrary::NAMES)
        })?;
        let is =
            of == kernels && curve.require_field("npu", "a name")?.read_one_line_text()? == npu;
        if !is || curve.read_count("members", 64)? != npus {
            continue;
        }
        let mut points = Vec::new();
        for point in curve
            .require_field("points", "points")?
            .read_array_items("points")?
        {
            let [bytes, micros] =
                point.read_array_of_exact_length("numbers", "bytes and microseconds")?;
            points.push((
                bytes.read_positive(1e12)?,
                micros.read_positive(1e9)? * 1e-6,
            ));
        }
        return Ok(points);
    }
    Ok(Vec::new())
}
