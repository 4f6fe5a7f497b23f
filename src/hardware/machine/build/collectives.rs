//! The `collectives` table: chunking of collectives.

use crate::collective::{ChunkPipeline, InterDimensionPolicy, IntraDimensionPolicy};
use chakram_base::config::{ConfigError, ConfigTable};
use std::num::NonZeroU32;

const KEYS: &[&str] = &["chunks", "active", "schedule", "order"];

/// Chunking as the table states it; one chunk without the table.
pub(super) fn pipeline(root: &ConfigTable<'_>) -> Result<ChunkPipeline, ConfigError> {
    let Some(field) = root.get("collectives") else {
        return Ok(ChunkPipeline::default());
    };
    let table = field.table(Some(KEYS))?;
    let count = |key: &str, most: u32| match table.get(key) {
        Some(field) => field.count(most).map(NonZeroU32::new),
        None => Ok(None),
    };
    let chunks = count("chunks", ChunkPipeline::MOST_CHUNKS)?;
    let active = count("active", ChunkPipeline::MOST_CHUNKS)?;
    Ok(ChunkPipeline {
        chunks: chunks.unwrap_or(NonZeroU32::MIN),
        active: active.unwrap_or(NonZeroU32::MIN),
        inter: match table.get("schedule") {
            Some(field) => field.choice(&InterDimensionPolicy::ALL)?,
            None => InterDimensionPolicy::default(),
        },
        intra: match table.get("order") {
            Some(field) => field.choice(&IntraDimensionPolicy::ALL)?,
            None => IntraDimensionPolicy::default(),
        },
    })
}
