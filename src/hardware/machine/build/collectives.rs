//! The `collectives` table: chunking of collectives.

use crate::collective::{ChunkPipeline, InterDimensionPolicy, IntraDimensionPolicy};
use chakram_base::config::{ConfigError, ConfigTable};
use std::num::NonZeroU32;

const KEYS: &[&str] = &["chunks", "active", "schedule", "order"];

/// Parses the chunking.
pub(super) fn pipeline(root: &ConfigTable<'_>) -> Result<ChunkPipeline, ConfigError> {
    let Some(field) = root.get("collectives") else {
        return Ok(ChunkPipeline::default());
    };
    let table = field.table(Some(KEYS))?;
    let count = |key: &str| {
        table.or(key, None, |field| {
            Ok(NonZeroU32::new(field.count(ChunkPipeline::MOST_CHUNKS)?))
        })
    };
    Ok(ChunkPipeline {
        chunks: count("chunks")?,
        active: count("active")?.unwrap_or(NonZeroU32::MIN),
        inter: table.or("schedule", InterDimensionPolicy::default(), |field| {
            field.choice(&InterDimensionPolicy::ALL)
        })?,
        intra: table.or("order", IntraDimensionPolicy::default(), |field| {
            field.choice(&IntraDimensionPolicy::ALL)
        })?,
    })
}
