//! Rules for options: which combinations are valid, and which properties options require of a machine or workload.
//!
//! The command line, sweeps, scores and archives share these rules, so they accept and reject the same options.

use super::{
    CollectiveCurvesOrAlgorithms, CommunicationDurationSource, HostLaunchMode, ReplayOptions,
};
use chakram_base::setting::SettingKey;
use chakram_base::units::Span;
use chakram_hardware::compute::{HostDurationSource, KernelDurationSource, RooflinePeakFraction};
use chakram_hardware::machine::Machine;
use chakram_hardware::recordings::compute_model_with_recording_class;
use chakram_trace::format::escape_and_shorten_name;
use chakram_trace::graph::{Graph, NodeKind};
use chakram_trace::workload::Workload;
use std::fmt;

/// Why an option is rejected: it would have no effect, or the machine lacks something that the option needs.
#[derive(Clone, Debug, PartialEq)]
pub enum UnusableOptionReason {
    /// The options request curves for kernel times, but the machine has no kernel curves.
    NoKernelCurves {
        /// Name of the machine.
        machine: String,
    },
    /// The options request curves for collectives, but the machine has no curves for collectives.
    NoCollectiveCurves {
        /// Name of the machine.
        machine: String,
    },
    /// The options request launches by a host, but the machine has no host.
    NoHost {
        /// Name of the machine.
        machine: String,
    },
    /// An option makes ranks fill all NPUs of each rack, but every job on this machine does so anyway.
    NoFreeNpus {
        /// Name of the machine.
        machine: String,
    },
    /// The options set a roofline efficiency, but the compute model does not use the roofline.
    NotByRoofline(Box<KernelDurationSource>),
    /// The options set a roofline efficiency, but all kernels keep their recorded durations.
    AllRecorded(Box<KernelDurationSource>),
    /// The options name the machine on which kernels were recorded, but no kernel has a recorded duration.
    NoneRecorded,
    /// The options request kernel times scaled from the capture's device, but the capture names no device, or one that
    /// has no preset.
    DeviceUnknown(Option<String>),
    /// The options name a machine with NPUs on which kernels were recorded, but the kernels ran on a CPU.
    RecordedOnCpu,
    /// The options set a factor on host time, but the workload has no host time.
    NoHostTime,
    /// An option needs simulated communication, but communication takes its recorded or captured time.
    NotSimulated(SettingKey, CommunicationDurationSource),
}

impl UnusableOptionReason {
    /// Returns the key of the rejected option.
    pub fn rejected_key(&self) -> SettingKey {
        match self {
            Self::NoKernelCurves { .. } => SettingKey::Compute,
            Self::NoCollectiveCurves { .. } => SettingKey::Collectives,
            Self::NoHost { .. } => SettingKey::Launch,
            Self::NoFreeNpus { .. } => SettingKey::FillDomains,
            Self::NotByRoofline(_) | Self::AllRecorded(_) => SettingKey::Efficiency,
            Self::NoneRecorded | Self::DeviceUnknown(_) | Self::RecordedOnCpu => {
                SettingKey::RecordedOn
            }
            Self::NoHostTime => SettingKey::Host,
            Self::NotSimulated(key, _) => *key,
        }
    }
}

/// Formats the error with the names of options. `{:#}` prints the options' keys in files instead.
impl fmt::Display for UnusableOptionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let in_files = f.alternate();
        let with = |key: SettingKey, value: &dyn fmt::Display| match in_files {
            true => key.format_as_entry(value),
            false => key.format_with_value(value),
        };
        let own = match in_files {
            true => format!("`{}`", self.rejected_key().display_key_in_files()),
            false => self.rejected_key().to_string(),
        };
        let text = match self {
            Self::NoKernelCurves { machine } => format!(
                "{}: machine `{machine}` has no curves of measured kernels\n  try: {}",
                with(SettingKey::Compute, &"curves"),
                with(SettingKey::Compute, &"roofline")
            ),
            Self::NoCollectiveCurves { machine } => format!(
                "{}: machine `{machine}` has no measured collectives\n  try: {}",
                with(SettingKey::Collectives, &"curves"),
                with(SettingKey::Collectives, &"algorithms")
            ),
            Self::NoHost { machine } => format!(
                "{own}: machine `{machine}` does not state the cost of launches\n  try: a [host] table in its file"
            ),
            Self::NoFreeNpus { machine } => format!(
                "{own}: machine `{machine}` places ranks on all of its NPUs\n  try: without {own}"
            ),
            Self::NotByRoofline(model) => {
                let (duration, hint) = match **model {
                    KernelDurationSource::Curves => (
                        "measured, or by roofline at the peak rates if no curve applies to them",
                        format!(", or {}", with(SettingKey::Compute, &"roofline")),
                    ),
                    KernelDurationSource::LoopNest(_) => ("from loop nests", String::new()),
                    _ => ("recorded", String::new()),
                };
                format!(
                    "{own} is for kernels timed by roofline, but with {} their times are {duration}\n  try: without {own}{hint}",
                    with(SettingKey::Compute, model)
                )
            }
            Self::AllRecorded(model) => format!(
                "{own} scales the NPU's peak, but with {} all kernels of this job have recorded \
                 times\n  try: {}",
                with(SettingKey::Compute, model),
                with(SettingKey::Compute, &"roofline")
            ),
            Self::NoneRecorded => format!(
                "{own} names the machine of recorded kernels, but this job has none\n  try: without {own}"
            ),
            Self::DeviceUnknown(device) => {
                let (found, hint) = match device {
                    Some(device) => (
                        format!(
                            "no preset describes the device `{}`",
                            escape_and_shorten_name(device)
                        ),
                        "a file that describes the device",
                    ),
                    None => (
                        "a capture of this job names no device".to_owned(),
                        "the machine that kernels were recorded on",
                    ),
                };
                format!(
                    "{} needs the device that a capture names, but {found}\n  try: {hint}, {}",
                    with(SettingKey::RecordedOn, &"capture"),
                    with(SettingKey::RecordedOn, &"FILE.toml")
                )
            }
            Self::RecordedOnCpu => format!(
                "{own} names a machine with NPUs, but the kernels of this job ran on a CPU\n  try: {}, or {} that describes the CPU",
                with(SettingKey::Compute, &"roofline"),
                with(SettingKey::RecordedOn, &"FILE.toml")
            ),
            Self::NoHostTime => format!(
                "{own} sets the time of host work, but no node of this job is host work or has a \
                 host delay\n  try: without {own}"
            ),
            Self::NotSimulated(key, comm) => {
                let with = with(SettingKey::Comm, comm);
                let reason = match key {
                    SettingKey::Aggregate => {
                        format!("{own} needs simulated communication, but with {with} it lasts")
                    }
                    SettingKey::Stepwise => format!(
                        "{own} simulates the messages of collectives, but with {with} they last"
                    ),
                    SettingKey::Links => format!(
                        "bytes over links are counted from simulated messages, but with {with} communication lasts"
                    ),
                    SettingKey::Custom => {
                        format!("{own} sets the messages of collectives, but with {with} they last")
                    }
                    _ => format!("{own} changes simulated communication, but with {with} it lasts"),
                };
                format!("{reason} as {comm}\n  try: leave one of the two out")
            }
        };
        f.write_str(&text)
    }
}

impl std::error::Error for UnusableOptionReason {}

impl ReplayOptions {
    /// Sets the fraction of peak rates that kernels reach, for the roofline model.
    ///
    /// # Errors
    ///
    /// Fails if the compute model does not use the roofline.
    pub fn set_roofline_efficiency(
        &mut self,
        efficiency: RooflinePeakFraction,
    ) -> Result<(), UnusableOptionReason> {
        let model = self.compute.with_roofline_efficiency(efficiency);
        self.compute =
            model.ok_or_else(|| UnusableOptionReason::NotByRoofline(Box::new(self.compute)))?;
        Ok(())
    }

    /// Checks that each option has an effect when `workload` is replayed on `machine`.
    ///
    /// # Errors
    ///
    /// Fails if an option has no effect, or if the machine lacks something that the option needs. The error names the
    /// first such option.
    pub fn check_options_have_effect(
        &self,
        machine: &Machine,
        workload: &Workload,
    ) -> Result<(), UnusableOptionReason> {
        self.check_options_do_not_conflict()?;
        self.check_machine_supports_options(machine)?;
        self.check_options_affect_workload(workload)
    }

    /// Checks that no option makes another one ineffective. This check is part of [`Self::check_options_have_effect`],
    /// for callers that have no machine yet.
    ///
    /// # Errors
    ///
    /// Fails if an option has no effect. The error names the first rejected option.
    pub fn check_options_do_not_conflict(&self) -> Result<(), UnusableOptionReason> {
        let of_networks = [
            (self.network.is_some(), SettingKey::Network),
            (self.aggregate, SettingKey::Aggregate),
            (self.stepwise, SettingKey::Stepwise),
            (self.links, SettingKey::Links),
            (!self.custom.is_empty(), SettingKey::Custom),
        ];
        let given = of_networks.into_iter().find(|(is_given, _)| *is_given);
        match (self.comm, given) {
            (
                CommunicationDurationSource::Captured | CommunicationDurationSource::Recorded,
                Some((_, key)),
            ) => Err(UnusableOptionReason::NotSimulated(key, self.comm)),
            _ => Ok(()),
        }
    }

    /// Checks that `machine` supports the options. This check is part of [`Self::check_options_have_effect`], for
    /// callers that have no workload yet.
    ///
    /// # Errors
    ///
    /// Fails if the machine lacks something that an option needs. The error names the first rejected option.
    pub fn check_machine_supports_options(
        &self,
        machine: &Machine,
    ) -> Result<(), UnusableOptionReason> {
        let name = || machine.name().to_owned();
        if self.compute == KernelDurationSource::Curves && !machine.has_kernel_curves() {
            return Err(UnusableOptionReason::NoKernelCurves { machine: name() });
        }
        let launches = matches!(self.launch, HostLaunchMode::Eager | HostLaunchMode::Graph);
        if launches && machine.host().is_none() {
            return Err(UnusableOptionReason::NoHost { machine: name() });
        }
        let mut curves = machine.collective_curves().iter();
        if self.collectives == Some(CollectiveCurvesOrAlgorithms::Curves)
            && curves.all(|curves| curves.is_empty())
        {
            return Err(UnusableOptionReason::NoCollectiveCurves { machine: name() });
        }
        Ok(())
    }

    /// Checks that the options have an effect on `workload`. This check is part of [`Self::check_options_have_effect`].
    ///
    /// # Errors
    ///
    /// Fails if an option has no effect. The error names the first rejected option.
    pub fn check_options_affect_workload(
        &self,
        workload: &Workload,
    ) -> Result<(), UnusableOptionReason> {
        let any = |has: fn(&Graph) -> bool| workload.distinct_graphs().iter().any(has);
        match self.compute {
            KernelDurationSource::Recorded(efficiency)
            | KernelDurationSource::Scaled(_, efficiency)
                if efficiency.is_stated() && !any(has_unrecorded_kernels) =>
            {
                return Err(UnusableOptionReason::AllRecorded(Box::new(self.compute)));
            }
            KernelDurationSource::RecordedOn(_) | KernelDurationSource::RecordedOnDevices
                if !any(has_kernels_with_recorded_duration) =>
            {
                return Err(UnusableOptionReason::NoneRecorded);
            }
            KernelDurationSource::RecordedOn(class)
                if class.is_of_known_maker() && any(Graph::were_kernels_captured_on_cpu) =>
            {
                return Err(UnusableOptionReason::RecordedOnCpu);
            }
            KernelDurationSource::RecordedOnDevices => {
                let unknown = |graph: &&Graph| {
                    let device = graph.capture_environment().device.as_deref();
                    let model = compute_model_with_recording_class(self.compute, device);
                    model == KernelDurationSource::RecordedOnDevices
                        && has_kernels_with_recorded_duration(graph)
                };
                if let Some(graph) = workload.distinct_graphs().iter().find(unknown) {
                    let device = graph.capture_environment().device.clone();
                    return Err(UnusableOptionReason::DeviceUnknown(device));
                }
            }
            _ => {}
        }
        if self.host != HostDurationSource::Recorded && !any(graph_has_host_time) {
            return Err(UnusableOptionReason::NoHostTime);
        }
        Ok(())
    }
}

/// Returns true if a kernel of `graph` has a recorded duration.
fn has_kernels_with_recorded_duration(graph: &Graph) -> bool {
    let recorded =
        |node| graph.kind(node) == NodeKind::Compute && graph.recorded_duration(node) > Span::ZERO;
    graph.nodes().any(recorded)
}

/// Returns true if a kernel of `graph` has FLOPs or bytes and no recorded duration.
fn has_unrecorded_kernels(graph: &Graph) -> bool {
    let unrecorded = |node| {
        graph.kind(node) == NodeKind::Compute
            && graph.recorded_duration(node) == Span::ZERO
            && (graph.flops(node) > 0 || graph.stated_bytes_of_node(node) > 0)
    };
    graph.captured_end().is_none() && graph.nodes().any(unrecorded)
}

/// Returns true if `graph` has any host time.
fn graph_has_host_time(graph: &Graph) -> bool {
    let on_host =
        |node| graph.kind(node) == NodeKind::Host && graph.recorded_duration(node) > Span::ZERO;
    graph.has_delays() || graph.nodes().any(on_host)
}

#[cfg(test)]
mod tests;
