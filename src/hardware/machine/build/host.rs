//! The `host` table: times to launch work.

use super::LATENCY;
use crate::machine::{Host, HostWait};
use chakram_base::config::{ConfigError, ConfigTable};
use chakram_base::units::Span;

const KEYS: &[&str] = &[
    "launch",
    "backward",
    "collective",
    "message",
    "step",
    "queue",
    "waits",
    "error",
    "jitter",
];

/// Relative error of launch times if the file states none.
const UNSTATED_ERROR: f64 = 0.4;

/// Maximum number of launches by which a host may run ahead.
const MAX_QUEUE: u32 = 1 << 24;

/// Parses the host, or returns `None` if the file has no such table.
pub(super) fn host(root: &ConfigTable<'_>) -> Result<Option<Host>, ConfigError> {
    let Some(field) = root.get("host") else {
        return Ok(None);
    };
    let table = field.table(Some(KEYS))?;
    let launch = table.quantity("launch", LATENCY)?;
    let backward = table.or("backward", launch, |field| field.quantity(LATENCY))?;
    Ok(Some(Host {
        launch,
        backward,
        collective: table.quantity("collective", LATENCY)?,
        message: table.quantity("message", LATENCY)?,
        step: table.quantity("step", LATENCY)?,
        queue: table.count("queue", MAX_QUEUE)?,
        waits: table.choice("waits", &HostWait::ALL)?,
        error: table.or("error", UNSTATED_ERROR, |field| field.positive(10.0))?,
        jitter: table.or("jitter", Span::ZERO, |field| field.quantity(LATENCY))?,
    }))
}
