//! Settings of a point: keys of the machine, the model, the plan and the replay, with their values.

use chakram_base::config::{
    ConfigError, ConfigField, ConfigLiteral, did_you_mean, nearest, quoted,
};
use chakram_hardware::compute::ACCELERATOR;
use chakram_workloads::generate::plan::{OPTIONS, PlanOption};
use std::collections::BTreeMap;

/// Settings of a point, by key.
pub type Settings = BTreeMap<String, ConfigLiteral>;

/// Keys that are no part of a file.
pub const PLAIN: [&str; 13] = [
    "machine",
    "model",
    "tokens",
    "trace",
    // Options of the replay, up to `collectives`.
    "network",
    "compute",
    "efficiency",
    "host",
    "launch",
    "collectives",
    "power.busy",
    "power.idle",
    "price.npu",
];

/// Whether `key`, one of [`PLAIN`], is an option of the replay.
pub(super) fn is_replay_option(key: &str) -> bool {
    PLAIN[4..10].contains(&key)
}

/// Part of the configuration that a key belongs to.
#[derive(Clone, Copy, Debug)]
pub enum SettingKind<'k> {
    /// One of [`PLAIN`].
    Plain,
    /// A path in the machine's file.
    Machine(&'k str),
    /// A path in the model's file.
    Model(&'k str),
    /// A key of the accelerator whose loop nests price kernels.
    Accelerator(&'k str),
    /// An option of plans.
    Plan(&'static PlanOption),
}

/// The option of plans that is called `key`.
fn plan_option(key: &str) -> Option<&'static PlanOption> {
    let key = key.replace('-', "_");
    OPTIONS
        .iter()
        .find(|option| option.key == key && !option.value.is_empty())
}

/// Finds what `key` belongs to.
///
/// # Errors
///
/// The name that is most like it, if it names nothing.
pub fn kind(key: &str) -> Result<SettingKind<'_>, Option<String>> {
    if PLAIN.contains(&key) {
        return Ok(SettingKind::Plain);
    }
    match key.split_once('.') {
        Some(("machine", path)) if !path.is_empty() => Ok(SettingKind::Machine(path)),
        Some(("model", path)) if !path.is_empty() => Ok(SettingKind::Model(path)),
        Some(("accelerator", key)) => {
            let names = ACCELERATOR.iter().map(|(name, _)| *name);
            if names.clone().any(|name| name == key) {
                return Ok(SettingKind::Accelerator(key));
            }
            Err(nearest(key, names).map(|near| format!("accelerator.{near}")))
        }
        Some(("plan", name)) => plan_option(name).map(SettingKind::Plan).ok_or_else(|| {
            let near = nearest(name, OPTIONS.iter().map(|option| option.key));
            near.map(|near| format!("plan.{near}"))
        }),
        _ => {
            let plan = OPTIONS.iter().map(|option| format!("plan.{}", option.key));
            let all: Vec<String> = PLAIN
                .iter()
                .map(|key| (*key).to_owned())
                .chain(plan)
                .collect();
            // `tensor` alone is meant as the plan's.
            let bare = plan_option(key).map(|option| format!("plan.{}", option.key));
            Err(bare.or_else(|| nearest(key, all.iter().map(String::as_str)).map(str::to_owned)))
        }
    }
}

/// The settings as one line: `plan.data=4, plan.tensor=8`.
pub fn line(settings: &Settings) -> String {
    let parts = settings.iter().map(|(key, value)| format!("{key}={value}"));
    parts.collect::<Vec<_>>().join(", ")
}

/// The settings of `keys`, in their order, for people: `tensor 8, data 4, dimension.nvlink.bandwidth 100 GB/s`.
pub fn short<'k>(settings: &Settings, keys: impl IntoIterator<Item = &'k str>) -> String {
    let parts = keys.into_iter().filter_map(|key| {
        let value = settings.get(key)?;
        let name = ["plan.", "machine.", "model."]
            .iter()
            .find_map(|start| key.strip_prefix(start));
        Some(format!("{} {value}", name.unwrap_or(key)))
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// Refuses a key that names nothing.
pub(super) fn known_key(key: &str, field: &ConfigField<'_>) -> Result<(), ConfigError> {
    kind(key).map(drop).map_err(|near| {
        let expected = format!(
            "one of {}, plan.OPTION, machine.PATH or model.PATH{}",
            PLAIN.join(", "),
            did_you_mean(near.as_deref())
        );
        field.refuse(format_args!("the key {}", quoted(key)), expected)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_belong_somewhere_or_have_near_misses() {
        assert!(matches!(kind("compute"), Ok(SettingKind::Plain)));
        let path = kind("machine.dimension.nvlink.bandwidth");
        assert!(matches!(
            path,
            Ok(SettingKind::Machine("dimension.nvlink.bandwidth"))
        ));
        assert!(
            matches!(kind("plan.micro-batch"), Ok(SettingKind::Plan(option)) if option.key == "micro_batch")
        );
        let near = |key: &str| kind(key).unwrap_err();
        assert_eq!(near("plan.tensr").as_deref(), Some("plan.tensor"));
        assert_eq!(near("tensor").as_deref(), Some("plan.tensor"));
        assert_eq!(near("netwrk").as_deref(), Some("network"));
        assert_eq!(near("zzzzzzzz"), None);
    }
}
