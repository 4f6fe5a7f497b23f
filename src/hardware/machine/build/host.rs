//! The `host` table: how long it takes to launch work.

use super::LATENCY;
use crate::machine::{Host, HostBlockingOperations};
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

/// Relative error of launch times, used if the file states none.
const UNSTATED_ERROR: f64 = 0.4;

/// Maximum number of launches that a host may issue ahead of its device.
const MAX_QUEUE: u32 = 1 << 24;

/// Parses the host, or returns `None` if the file has no such table.
pub(super) fn parse_host(root: &ConfigTable<'_>) -> Result<Option<Host>, ConfigError> {
    let Some(field) = root.get("host") else {
        return Ok(None);
    };
    let table = field.read_table(Some(KEYS))?;
    let launch = table.read_quantity("launch", LATENCY)?;
    let backward =
        table.read_or_default("backward", launch, |field| field.read_quantity(LATENCY))?;
    Ok(Some(Host {
        launch,
        backward,
        collective: table.read_quantity("collective", LATENCY)?,
        message: table.read_quantity("message", LATENCY)?,
        step: table.read_quantity("step", LATENCY)?,
        queue: table.read_count("queue", MAX_QUEUE)?,
        waits: table.read_choice("waits", &HostBlockingOperations::ALL)?,
        error: table.read_or_default("error", UNSTATED_ERROR, |field| field.read_positive(10.0))?,
        jitter: table
            .read_or_default("jitter", Span::ZERO, |field| field.read_quantity(LATENCY))?,
    }))
}
