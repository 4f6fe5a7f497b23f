//! Reads the times of steps that a job measured without a profiler, in addition to its capture. `capture.py` writes
//! these times to `steps.RANK.json`.

use chakram_trace::format::file::{DecompressedTraceFile, decompress_bytes};
use chakram_trace::format::{TraceError, TraceErrorLocation};
use serde::Deserialize;
use std::path::Path;

/// Durations of a rank's steps, in ns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct UnprofiledStepDurations {
    /// Durations of steps without a profiler, in order.
    pub unprofiled_ns: Vec<u64>,
    /// Number of steps that the capture covers; 0 if unknown.
    #[serde(default)]
    pub captured_steps: u64,
}

impl UnprofiledStepDurations {
    /// Reads the file at `path`, which may be compressed.
    pub fn read_file(path: &Path) -> Result<Self, TraceError> {
        let contents = DecompressedTraceFile::decompress_file_without_converting(path)?;
        Self::parse(contents.as_slice()).map_err(|error| error.in_file(path))
    }

    /// Parses a file's contents, which may be compressed.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TraceError> {
        match decompress_bytes(bytes) {
            None => Self::parse(bytes),
            Some(Ok(bytes)) => Self::parse(&bytes),
            Some(Err(source)) => Err(TraceError::from_io("", "decompress", source)),
        }
    }

    fn parse(json: &[u8]) -> Result<Self, TraceError> {
        serde_json::from_slice(json).map_err(|error| {
            TraceError::invalid_at(
                TraceErrorLocation::default(),
                format!("the step times cannot be read: {error}"),
                "remove the file, or copy it again from the folder where capture.py wrote it",
            )
        })
    }

    /// Returns how long each of the job's steps took on the slowest rank, in ns.
    pub fn step_durations_of_job<'s>(ranks: impl Iterator<Item = &'s Self>) -> Vec<u64> {
        let measured = ranks.map(|rank| &rank.unprofiled_ns);
        let measured = measured.filter(|steps| !steps.is_empty()).cloned();
        // Count only steps that all measuring ranks measured.
        let slower = |one: Vec<u64>, other: Vec<u64>| -> Vec<u64> {
            one.into_iter().zip(other).map(|(a, b)| a.max(b)).collect()
        };
        measured.reduce(slower).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_unprofiled_step_durations(steps: &[u64]) -> UnprofiledStepDurations {
        UnprofiledStepDurations {
            unprofiled_ns: steps.to_vec(),
            captured_steps: 0,
        }
    }

    #[test]
    fn a_step_lasts_as_long_as_its_slowest_rank() {
        let ranks = [
            build_unprofiled_step_durations(&[10, 20, 30, 11, 99]),
            build_unprofiled_step_durations(&[12, 15, 28, 10]),
        ];
        assert_eq!(
            UnprofiledStepDurations::step_durations_of_job(ranks.iter()),
            [12, 20, 30, 11]
        );
        let one = [
            build_unprofiled_step_durations(&[7]),
            build_unprofiled_step_durations(&[]),
        ];
        assert_eq!(
            UnprofiledStepDurations::step_durations_of_job(one.iter()),
            [7]
        );
        assert!(UnprofiledStepDurations::step_durations_of_job([].iter()).is_empty());
    }
}
