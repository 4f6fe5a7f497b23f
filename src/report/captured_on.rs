//! Devices, hosts and software with which a job was captured.

use chakram_base::setting::SettingKey;
use chakram_hardware::devices::{maker_of, preset_and_npu_class_of_device};
use chakram_trace::format::scan::CaptureEnvironment;
use chakram_trace::workload::Workload;
use serde::{Deserialize, Serialize};

/// Distinct devices, hosts and software of a job's captures, in rank order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CaptureDevicesHostsAndSoftware {
    /// Names of the devices, such as `Tesla V100-SXM2-32GB`.
    pub devices: Vec<String>,
    /// Names of the hosts.
    pub hosts: Vec<String>,
    /// Preset for the device, if all devices are of the same kind and have a preset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// True if kernels keep their captured durations although the machine's NPUs differ from the captured devices.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub kernels_stay: bool,
    /// True if all these devices have other makers than the machine's NPUs. Times of kernels are not scaled between
    /// makers.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub makers_differ: bool,
    /// Software with its version, such as `cuda_runtime 12060, nccl 2.21.5`.
    pub software: Vec<String>,
}

impl CaptureDevicesHostsAndSoftware {
    /// Collects the devices, hosts and software that the traces of `workload` name; `None` if no trace names any.
    pub fn from_workload(workload: &Workload) -> Option<Self> {
        let mut all = Self::default();
        for instance in workload.instances() {
            let CaptureEnvironment {
                device,
                host,
                software,
            } = workload.graph_of(instance).capture_environment();
            let said = [
                (&mut all.devices, device),
                (&mut all.hosts, host),
                (&mut all.software, software),
            ];
            for (known, value) in said {
                if let Some(value) = value
                    && !value.is_empty()
                    && !known.contains(value)
                {
                    known.push(value.clone());
                }
            }
        }
        all.preset = all
            .common_preset_and_npu_class()
            .map(|[preset, _]| preset.to_owned());
        (all != Self::default()).then_some(all)
    }

    /// Returns the preset that describes all devices, and its NPU class; `None` if there is no such preset.
    fn common_preset_and_npu_class(&self) -> Option<[&'static str; 2]> {
        let mut presets = self
            .devices
            .iter()
            .map(|device| preset_and_npu_class_of_device(device));
        let first = presets.next()??;
        presets.all(|other| other == Some(first)).then_some(first)
    }

    /// Returns true if all devices are of the NPU class of each of `classes`.
    pub(super) fn devices_are_classes<'a>(
        &self,
        classes: impl IntoIterator<Item = &'a str>,
    ) -> bool {
        let own = self.common_preset_and_npu_class().map(|[_, class]| class);
        own.is_some() && classes.into_iter().all(|class| Some(class) == own)
    }

    /// Sets `kernels_stay` if any of the machine's NPU classes (`classes`) differs from the captured devices' class.
    /// The kernels then keep durations that were captured on another device.
    pub(super) fn mark_kernels_kept_from_other_device<'a>(
        &mut self,
        classes: impl IntoIterator<Item = &'a str> + Clone,
    ) {
        self.kernels_stay = !self.devices_are_classes(classes.clone());
        let makers = |device: &String| {
            let own = maker_of(device);
            own.is_some()
                && (classes.clone().into_iter().map(maker_of))
                    .all(|other| other.is_some() && other != own)
        };
        self.makers_differ =
            self.kernels_stay && !self.devices.is_empty() && self.devices.iter().all(makers);
    }

    /// Returns advice on scaling the kernels to the machine's NPUs. Returns `None` unless they keep durations from
    /// another device.
    fn describe_scaling_advice(&self) -> Option<String> {
        if !self.kernels_stay {
            return None;
        }
        if self.makers_differ {
            return Some(
                "kernels last as recorded there: times are not scaled between NPUs of different makers".to_owned(),
            );
        }
        let option = |machine: &str| SettingKey::RecordedOn.format_with_value(machine);
        let described = |device: &String| preset_and_npu_class_of_device(device).is_some();
        Some(match &self.devices[..] {
            devices if !devices.is_empty() && devices.iter().all(described) => format!(
                "kernels last as recorded there; {} scales them to this machine",
                option("capture")
            ),
            [] => format!(
                "kernels last as recorded, and the capture names no device; {} scales them to this machine",
                option("MACHINE")
            ),
            [_, _, ..] => format!(
                "kernels last as recorded there, and some of these devices have no preset; {} scales the \
                 kernels of all ranks as if one device had run them",
                option("MACHINE")
            ),
            [_] => format!(
                "kernels last as recorded there, and that device has no preset; {} scales them to this machine",
                option("FILE.toml")
            ),
        })
    }

    /// Formats devices, hosts and software as one line.
    pub fn describe_capture(&self) -> String {
        let hosts = match &self.hosts[..] {
            [] => None,
            [host] => Some(format!("host {host}")),
            hosts => Some(format!("{} hosts", hosts.len())),
        };
        let listed = |list: &[String]| (!list.is_empty()).then(|| list.join(" and "));
        let parts = [
            listed(&self.devices),
            hosts,
            listed(&self.software),
            self.describe_scaling_advice(),
        ];
        parts
            .into_iter()
            .flatten()
            .collect::<Vec<String>>()
            .join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capture_line_names_known_devices_hosts_and_software() {
        let mut on = CaptureDevicesHostsAndSoftware {
            hosts: vec!["a".to_owned()],
            ..CaptureDevicesHostsAndSoftware::default()
        };
        assert_eq!(on.describe_capture(), "host a");
        on.hosts.push("b".to_owned());
        on.devices = vec!["Tesla V100".to_owned()];
        on.software = vec!["nccl 2.21.5".to_owned()];
        assert_eq!(on.describe_capture(), "Tesla V100; 2 hosts; nccl 2.21.5");
        // The kernels were captured on another device, so the line includes advice on scaling them. There would be no
        // advice if the machine's NPU class had the same name as the device.
        on.devices = vec!["NVIDIA H100 80GB HBM3".to_owned()];
        on.preset = Some("dgx-h100".to_owned());
        on.mark_kernels_kept_from_other_device(["h100"]);
        assert!(!on.kernels_stay);
        on.mark_kernels_kept_from_other_device(["mi300x"]);
        let line = on.describe_capture();
        assert!(
            line.ends_with("times are not scaled between NPUs of different makers"),
            "{line}"
        );
        on.mark_kernels_kept_from_other_device(["h200", "mi300x"]);
        let line = on.describe_capture();
        assert!(line.ends_with(
            "kernels last as recorded there; `recorded_on = capture` scales them to this machine"
        ), "{line}");
        // Both names denote the same kind of device. If the devices differ or a device has no name, the user must
        // specify the device.
        on.devices.push("NVIDIA H100 SXM5".to_owned());
        assert_eq!(on.common_preset_and_npu_class(), Some(["dgx-h100", "h100"]));
        on.preset = None;
        on.devices[1] = "Tesla P100-SXM2-16GB".to_owned();
        on.mark_kernels_kept_from_other_device(["h100"]);
        let differ = "some of these devices have no preset; `recorded_on = MACHINE` scales the kernels of all ranks as if one device had run them";
        assert!(
            on.describe_capture().ends_with(differ),
            "{}",
            on.describe_capture()
        );
        on.devices.clear();
        on.mark_kernels_kept_from_other_device(["h100"]);
        let unnamed =
            "the capture names no device; `recorded_on = MACHINE` scales them to this machine";
        assert!(
            on.describe_capture().ends_with(unnamed),
            "{}",
            on.describe_capture()
        );
    }
}
