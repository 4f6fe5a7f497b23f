//! Replicas.

use super::EditCounts;
use chakram_trace::format::TraceError;
use chakram_trace::format::groups::DeclaredGroups;
use std::sync::Arc;

type Traces = Vec<(u32, Arc<Vec<u8>>)>;

pub(super) fn scale(
    _traces: Traces,
    _groups: &DeclaredGroups,
    _replicas: u32,
    _counts: &mut EditCounts,
) -> Result<(Traces, DeclaredGroups), TraceError> {
    Err(super::refused("replicas", "later"))
}
