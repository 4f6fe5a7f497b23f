//! Writes a timeline in Chrome's trace format. It contains the parts of each request, and the jobs of batches.

use super::observe::{CompletedRequest, RequestObserver, ServedJob};
use chakram_base::units::Time;
use serde::Serialize;
use std::io::{self, Write};

/// Maximum number of events (requests and jobs) in a timeline.
const MOST_EVENTS: u64 = 1_000_000;

/// Writes each request and job of a run as an event.
pub struct RequestTimelineWriter<'m, W> {
    out: W,
    models: Vec<&'m str>,
    events: u64,
    left_out: u64,
    failed: Option<io::Error>,
}

/// An event of the Chrome trace format.
#[derive(Serialize)]
struct RequestChromeEvent<'e, A> {
    ph: &'static str,
    cat: &'static str,
    id: u64,
    pid: u32,
    tid: u32,
    name: &'e str,
    /// Start of the event, in microseconds.
    ts: f64,
    args: &'e A,
}

/// Values in the `args` of a request's event.
#[derive(Serialize)]
struct RequestEventTimeArgs {
    request: u64,
    together: u32,
    processor: u32,
    datapath_ps: u64,
    queue_ps: u64,
    compute_ps: u64,
    preempted_ps: u64,
}

/// Values in the `args` of a job's event.
#[derive(Serialize)]
struct JobEventArgs {
    processor: u32,
}

/// No arguments.
#[derive(Serialize)]
struct NoEventArgs {}

fn time_to_microseconds(at: Time) -> f64 {
    at.0 as f64 / 1e6
}

impl<'m, W: Write> RequestTimelineWriter<'m, W> {
    /// Begins a timeline of requests for `models`.
    ///
    /// # Errors
    ///
    /// Fails if `out` cannot be written.
    pub fn new(mut out: W, models: Vec<&'m str>) -> io::Result<Self> {
        writeln!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        write!(
            out,
            r#"{{"ph":"M","pid":0,"name":"process_name","args":{{"name":"requests"}}}}"#
        )?;
        Ok(Self {
            out,
            models,
            events: 0,
            left_out: 0,
            failed: None,
        })
    }

    fn write_span_events(
        &mut self,
        name: &str,
        id: u64,
        (start, end): (Time, Time),
        args: &impl Serialize,
    ) -> io::Result<()> {
        for (ph, at) in [("b", start), ("e", end)] {
            let event = RequestChromeEvent {
                ph,
                cat: "request",
                id,
                pid: 0,
                tid: 0,
                name,
                ts: time_to_microseconds(at),
                args,
            };
            self.out.write_all(b",\n")?;
            serde_json::to_writer(&mut self.out, &event)?;
        }
        Ok(())
    }

    /// Counts another event; returns true if it still fits into the timeline.
    fn count_event_if_it_fits(&mut self) -> bool {
        let fits = self.events < MOST_EVENTS;
        self.events += u64::from(fits);
        self.left_out += u64::from(!fits);
        fits
    }

    /// Ends the timeline. Returns the output, and how many requests and jobs were omitted.
    ///
    /// # Errors
    ///
    /// Fails if `out` cannot be written.
    pub fn finish_timeline(mut self) -> io::Result<(W, u64)> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        writeln!(self.out, "\n]}}")?;
        Ok((self.out, self.left_out))
    }
}

impl<W: Write> RequestObserver for RequestTimelineWriter<'_, W> {
    fn on_completed(&mut self, request: &CompletedRequest) -> io::Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if !self.count_event_if_it_fits() {
            return Ok(());
        }
        let model = self.models[request.model as usize];
        let parts = RequestEventTimeArgs {
            request: request.number,
            together: request.together,
            processor: request.processor,
            datapath_ps: request.datapath.0,
            queue_ps: request.queue.0,
            compute_ps: request.compute.0,
            preempted_ps: request.preempted.0,
        };
        let times = (request.arrival, request.finished);
        self.write_span_events(model, request.number, times, &parts)?;
        let ready = request.arrival + request.datapath;
        let none = NoEventArgs {};
        if request.datapath.0 > 0 {
            self.write_span_events("datapath", request.number, (request.arrival, ready), &none)?;
        }
        if request.started > ready {
            self.write_span_events("queue", request.number, (ready, request.started), &none)?;
        }
        Ok(())
    }

    fn wants_jobs(&self) -> bool {
        true
    }

    fn on_job_served(&mut self, job: &ServedJob) {
        if self.failed.is_some() || !self.count_event_if_it_fits() {
            return;
        }
        let args = JobEventArgs {
            processor: job.processor,
        };
        let name = format!("job {}", job.job);
        if let Err(error) = self.write_span_events(&name, job.request, job.times, &args) {
            self.failed = Some(error);
        }
    }
}
