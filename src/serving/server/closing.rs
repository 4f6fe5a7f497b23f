//! Ends a run: closes the records, and checks that they are consistent.

use super::ServeRunState;
use crate::error::ServeError;
use crate::recorder::ServeRunRecorder;

impl<'s> ServeRunState<'s> {
    /// Closes and checks the run's records after the event loop has ended.
    pub fn close_and_check_run_records(self) -> Result<ServeRunRecorder<'s>, ServeError> {
        if let Some(error) = self.failure {
            return Err(error);
        }
        let mut recorder = self.recorder;
        let end = recorder.end;
        let cores = u128::from(self.prepared.cores);
        let processors = self.processors.iter();
        recorder.busy_ps = processors
            .map(|one| {
                // While a processor serves a trace, all its cores count as busy.
                let open = match one.traces {
                    0 => 0,
                    _ => u128::from(end.0.saturating_sub(one.traced_since.0)),
                };
                let dealt = one.cores.busy_ps();
                dealt.saturating_sub(one.cores.busy_core_time_after(end))
                    + (one.traced_ps + open) * cores
            })
            .collect();
        let dealt: u128 = self.processors.iter().map(|one| one.cores.busy_ps()).sum();
        let in_flight: u128 = self.flights.iter().map(|flight| flight.core_ps).sum();
        assert_eq!(
            dealt,
            recorder.completed_core_ps + in_flight,
            "cores did the work of all batches and no other"
        );
        let waiting = self.requests.iter().filter(|one| one.arrival <= end);
        let waiting: u128 = waiting
            .map(|one| u128::from(end.since(one.arrival).0))
            .sum();
        recorder.check_littles_law(waiting);
        recorder.arrived_in_all = self.arrived;
        Ok(recorder)
    }
}
