//! The `collectives` table: how collectives are split into chunks.

use crate::collective::{ChunkCountOrderAndOverlap, DimensionVisitOrder, WaitingChunkPriority};
use chakram_base::config::{ConfigError, ConfigTable};
use std::num::NonZeroU32;

const KEYS: &[&str] = &["chunks", "active", "schedule", "order"];

/// Parses the number, order and overlap of chunks.
pub(super) fn parse_chunk_count_order_and_overlap(
    root: &ConfigTable<'_>,
) -> Result<ChunkCountOrderAndOverlap, ConfigError> {
    let Some(field) = root.get("collectives") else {
        return Ok(ChunkCountOrderAndOverlap::default());
    };
    let table = field.read_table(Some(KEYS))?;
    let count = |key: &str| {
        table.read_or_default(key, None, |field| {
            Ok(NonZeroU32::new(
                field.read_count(ChunkCountOrderAndOverlap::MOST_CHUNKS)?,
            ))
        })
    };
    Ok(ChunkCountOrderAndOverlap {
        chunks: count("chunks")?,
        active: count("active")?.unwrap_or(NonZeroU32::MIN),
        inter: table.read_or_default("schedule", DimensionVisitOrder::default(), |field| {
            field.read_choice(&DimensionVisitOrder::ALL)
        })?,
        intra: table.read_or_default("order", WaitingChunkPriority::default(), |field| {
            field.read_choice(&WaitingChunkPriority::ALL)
        })?,
    })
}
