//! Devices, hosts and software that the traces of a job were captured on.

use chakram_trace::format::scan::CaptureContext;
use chakram_trace::workload::Workload;
use serde::{Deserialize, Serialize};

/// Distinct devices, hosts and software of the captures of a job, each in the order of ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CapturedOn {
    /// Names of devices, such as `Tesla V100-SXM2-32GB`.
    pub devices: Vec<String>,
    /// Names of hosts.
    pub hosts: Vec<String>,
    /// Software with versions, such as `cuda_runtime 12060, nccl 2.21.5`.
    pub software: Vec<String>,
}

impl CapturedOn {
    /// Collects what the traces of `workload` say; `None` if they say nothing.
    pub fn of(workload: &Workload) -> Option<Self> {
        let mut all = Self::default();
        for instance in workload.instances() {
            let CaptureContext {
                device,
                host,
                software,
            } = workload.graph(instance).captured_on();
            let said = [
                (&mut all.devices, device),
                (&mut all.hosts, host),
                (&mut all.software, software),
            ];
            for (known, value) in said {
                if let Some(value) = value
                    && !known.contains(value)
                {
                    known.push(value.clone());
                }
            }
        }
        (all != Self::default()).then_some(all)
    }

    /// Returns it as one line: devices, hosts, software.
    pub fn line(&self) -> String {
        let hosts = match &self.hosts[..] {
            [] => None,
            [host] => Some(format!("host {host}")),
            hosts => Some(format!("{} hosts", hosts.len())),
        };
        let listed = |list: &[String]| (!list.is_empty()).then(|| list.join(" and "));
        let parts = [listed(&self.devices), hosts, listed(&self.software)];
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
    fn a_line_says_what_is_known() {
        let mut on = CapturedOn {
            hosts: vec!["a".to_owned()],
            ..CapturedOn::default()
        };
        assert_eq!(on.line(), "host a");
        on.hosts.push("b".to_owned());
        on.devices = vec!["Tesla V100".to_owned()];
        on.software = vec!["nccl 2.21.5".to_owned()];
        assert_eq!(on.line(), "Tesla V100; 2 hosts; nccl 2.21.5");
    }
}
