//! The `collectives` table: chunking of collectives.

use crate::collective::{Inter, Intra, Pipeline};
use crate::config::{ConfigError, Table};
use std::num::NonZeroU32;

const KEYS: &[&str] = &["chunks", "active", "schedule", "order"];

/// Chunking as the table states it; one chunk without the table.
pub(super) fn pipeline(root: &Table<'_>) -> Result<Pipeline, ConfigError> {
    let Some(field) = root.get("collectives") else {
        return Ok(Pipeline::default());
    };
    let table = field.table(Some(KEYS))?;
    let count = |key: &str, most: u32| match table.get(key) {
        Some(field) => field.count(most).map(NonZeroU32::new),
        None => Ok(None),
    };
    let chunks = count("chunks", Pipeline::MOST_CHUNKS)?;
    let active = count("active", Pipeline::MOST_CHUNKS)?;
    Ok(Pipeline {
        chunks: chunks.unwrap_or(NonZeroU32::MIN),
        active: active.unwrap_or(NonZeroU32::MIN),
        inter: match table.get("schedule") {
            Some(field) => field.choice(&Inter::ALL)?,
            None => Inter::default(),
        },
        intra: match table.get("order") {
            Some(field) => field.choice(&Intra::ALL)?,
            None => Intra::default(),
        },
    })
}
