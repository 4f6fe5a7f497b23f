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
    let count = |key: &str| {
        let one = NonZeroU32::MIN;
        let most = ChunkPipeline::MOST_CHUNKS;
        table.or(key, one, |field| {
            Ok(NonZeroU32::new(field.count(most)?).unwrap_or(one))
        })
    };
    Ok(ChunkPipeline {
        chunks: count("chunks")?,
        active: count("active")?,
        inter: table.or("schedule", InterDimensionPolicy::default(), |field| {
            field.choice(&InterDimensionPolicy::ALL)
        })?,
        intra: table.or("order", IntraDimensionPolicy::default(), |field| {
            field.choice(&IntraDimensionPolicy::ALL)
        })?,
    })
}
