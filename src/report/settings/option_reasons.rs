//! Reasons why an option has no effect on a run.

use super::run_facts::CompiledReplayWithReport;
use chakram_base::setting::SettingKey;
use chakram_trace::graph::NodeKind;

/// Returns why the option `key` does not affect the run; `is_default` is true if the option's value equals the run's
/// default. The option must be known to have no effect, because the last remaining reason is returned without a check.
pub fn reason_option_has_no_effect(
    key: SettingKey,
    is_default: bool,
    run: &CompiledReplayWithReport<'_>,
) -> String {
    if is_default || key == SettingKey::Launch && run.prepared.has_default_launch_mode() {
        return "the run is the same without the setting".to_owned();
    }
    let as_long = |what: &str| format!("{what} take the same time without the setting");
    match key {
        SettingKey::Compute | SettingKey::RecordedOn => match run.report.kernels.kernel_count() {
            0 => "the job has no kernel".to_owned(),
            _ => as_long("kernels"),
        },
        SettingKey::Efficiency => (run.reason_kernels_ignore_npu_rates())
            .unwrap_or_else(|| "no kernel waits for the peak rate".to_owned()),
        SettingKey::Host => match run.has_nodes(NodeKind::Host) {
            false => "the job has no host work".to_owned(),
            true => "host work is hidden by the work of the NPUs".to_owned(),
        },
        SettingKey::Launch => match run.prepared.has_machine_host_launches() {
            false => "every trace has host work of its own".to_owned(),
            true => "launches are hidden by the work of the NPUs".to_owned(),
        },
        SettingKey::Collectives => {
            run.reason_collectives_are_constant().unwrap_or_else(|| {
                match run.report.collectives.iter().any(|row| row.measured) {
                    false => "algorithms time all collectives either way".to_owned(),
                    true => as_long("collectives"),
                }
            })
        }
        SettingKey::Custom => (run.reason_collectives_are_constant())
            .unwrap_or_else(|| "no collective is of that kind, among as many members".to_owned()),
        SettingKey::Comm => match run.report.collectives.is_empty() && !run.has_messages() {
            true => "the job has no collective and no message".to_owned(),
            false => as_long("collectives and messages"),
        },
        SettingKey::Network => run
            .reason_without_network_traffic()
            .unwrap_or_else(|| as_long("transfers")),
        SettingKey::LowerBound => "all communication has a size or a recorded duration".to_owned(),
        SettingKey::Map | SettingKey::FillDomains => {
            "without the setting, ranks are on NPUs with the same connections".to_owned()
        }
        SettingKey::MissingRanks if run.report.absent.is_empty() => {
            "every rank has a trace".to_owned()
        }
        SettingKey::Stepwise | SettingKey::Aggregate => {
            "the setting chooses how the result is computed, and the result is the same".to_owned()
        }
        SettingKey::Kernel | SettingKey::Collective | SettingKey::Slow | SettingKey::Jitter => {
            "the changed work is hidden by other work, or takes the same time".to_owned()
        }
        SettingKey::Fail => {
            "the job ends before, or nothing that passes the link delays it".to_owned()
        }
        SettingKey::Bandwidth | SettingKey::Latency => as_long("collectives and messages"),
        SettingKey::Dependencies => "the same dependencies apply without the setting".to_owned(),
        _ => "the job is the same without the setting".to_owned(),
    }
}
