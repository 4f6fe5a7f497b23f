//! Plain simulators that serve requests on processors, one task or request at a time; tests check closed forms and
//! policies against them.
//!
//! Times are picoseconds. The simulators prefer simplicity to speed: cores are a list, queues are searched from end to
//! end, and the next time is the minimum over all pending events.

/// Equal tasks, which become ready when earlier jobs of the request have completed.
#[derive(Clone, Debug)]
pub struct JobOfEqualTasks {
    pub tasks: u64,
    pub length: u64,
    /// Indices of the earlier jobs on which this job depends.
    pub after: Vec<usize>,
}

/// A request that consists of jobs.
#[derive(Clone, Debug)]
pub struct MultiJobRequest {
    /// Time when the request's first jobs are ready.
    pub ready: u64,
    pub jobs: Vec<JobOfEqualTasks>,
}

/// Assigns tasks one by one, in turn, to `cores` cores, and returns the end times of the requests. At equal times,
/// later jobs of old requests precede first jobs of new requests, and earlier requests precede later requests.
pub fn request_ends_with_tasks_dealt_in_turn(
    cores: usize,
    requests: &[MultiJobRequest],
) -> Vec<u64> {
    let mut free = vec![0_u64; cores];
    let mut turn = 0;
    let mut ends: Vec<Vec<Option<u64>>> =
        requests.iter().map(|r| vec![None; r.jobs.len()]).collect();
    loop {
        // `next` is the first ready job. At equal times, jobs of old requests come before jobs of
        // new requests. After that, the lower request index and then the lower job index come
        // first.
        let mut next: Option<(u64, bool, usize, usize)> = None;
        for (r, request) in requests.iter().enumerate() {
            for (j, job) in request.jobs.iter().enumerate() {
                let before: Option<Vec<u64>> = job.after.iter().map(|&a| ends[r][a]).collect();
                if let (None, Some(before)) = (ends[r][j], before) {
                    let ready = before.iter().copied().max().unwrap_or(0).max(request.ready);
                    let key = (ready, job.after.is_empty(), r, j);
                    next = Some(next.map_or(key, |other| other.min(key)));
                }
            }
        }
        let Some((ready, _, r, j)) = next else { break };
        let job = &requests[r].jobs[j];
        let mut end = ready;
        for _ in 0..job.tasks {
            let start = free[turn].max(ready);
            free[turn] = start + job.length;
            end = end.max(free[turn]);
            turn = (turn + 1) % cores;
        }
        ends[r][j] = Some(end);
    }
    let last = |jobs: &Vec<Option<u64>>| jobs.iter().flatten().copied().max().unwrap_or(0);
    ends.iter().map(last).collect()
}

/// Returns the waits of requests in the queue of a single server (Lindley, 1952). A request's wait
/// is the previous request's wait plus its service time, minus the gap between their arrivals, but
/// at least 0.
pub fn compute_lindley_waits(arrivals: &[u64], lengths: &[u64]) -> Vec<u64> {
    let mut wait = 0_u64;
    let mut waits = Vec::new();
    let mut before: Option<(u64, u64)> = None;
    for (&arrival, &length) in arrivals.iter().zip(lengths) {
        if let Some((last, busy)) = before {
            wait = (wait + busy).saturating_sub(arrival - last);
        }
        waits.push(wait);
        before = Some((arrival, length));
    }
    waits
}

/// Rule that orders the service of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainRequestOrderRule {
    FirstCome,
    /// Shortest remaining time first.
    Shortest,
    /// Lowest level first. If a value is given, it is the aging time: a request's level falls by one each time the
    /// request has waited this long.
    Priority(Option<u64>),
    Deadline,
    /// Batches. The values are the maximum batch size, and the longest time to wait for more
    /// requests.
    Batching(usize, u64),
}

/// A request that occupies a whole processor for its jobs, one after another.
#[derive(Clone, Debug)]
pub struct WholeProcessorRequest {
    pub ready: u64,
    pub model: usize,
    pub level: u64,
    pub due: u64,
    pub jobs: Vec<u64>,
}

/// Times of a served request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlainServedRequestTimes {
    pub end: u64,
    pub compute: u64,
    pub preempted: u64,
    /// Number of requests in the request's batch.
    pub together: usize,
}

/// A batch in service on a processor.
#[derive(Clone, Debug)]
struct PlainRunningBatch {
    requests: Vec<usize>,
    /// Index of the next job.
    job: usize,
    /// End of the current job.
    end: u64,
    /// Index of the batch, in order of start time.
    serial: usize,
}

/// A waiting request.
#[derive(Clone, Debug)]
struct PlainWaitingOrPreemptedRequest {
    request: usize,
    /// If the request was preempted: its next job, the time of preemption, and its index in order of start time.
    stopped: Option<(usize, u64, usize)>,
}

/// Serves `requests` on `processors`; the requests must be in order of `ready`. Each processor serves one request or
/// batch at a time. In a batch of n requests, a job takes n times the job's time for one request. If `preemption` is
/// given, a request can be preempted at the end of a job, and each preemption takes this time.
///
/// At equal times, ends of jobs come first, in the order in which their requests started. After each end, the processor
/// starts its next job or request. Then ready requests join the queue, from which idle processors take requests.
pub fn serve_requests_plainly(
    policy: PlainRequestOrderRule,
    processors: usize,
    preemption: Option<u64>,
    requests: &[WholeProcessorRequest],
) -> Vec<PlainServedRequestTimes> {
    let mut times = vec![PlainServedRequestTimes::default(); requests.len()];
    let mut running: Vec<Option<PlainRunningBatch>> = vec![None; processors];
    // For each processor, the time that preemption takes before the next request.
    let mut blocked = vec![0_u64; processors];
    let mut queue: Vec<PlainWaitingOrPreemptedRequest> = Vec::new();
    let mut coming = 0;
    let mut serial = 0;
    let left = |request: usize, job: usize| -> u64 { requests[request].jobs[job..].iter().sum() };
    // `key` returns a request's sort key for its job at the time `now`; the smallest key goes
    // first. With aging, multiply keys by the aging time, so that they are whole numbers.
    let key = |request: usize, job: usize, now: u64| -> i128 {
        let r = &requests[request];
        match policy {
            PlainRequestOrderRule::FirstCome | PlainRequestOrderRule::Batching(..) => {
                i128::from(r.ready)
            }
            PlainRequestOrderRule::Shortest => i128::from(left(request, job)),
            PlainRequestOrderRule::Priority(None) => i128::from(r.level),
            PlainRequestOrderRule::Priority(Some(aging)) => {
                i128::from(r.level) * i128::from(aging) - (i128::from(now) - i128::from(r.ready))
            }
            PlainRequestOrderRule::Deadline => i128::from(r.due),
        }
    };
    loop {
        let ends = running.iter().flatten().map(|flight| flight.end).min();
        let ready = requests.get(coming).map(|request| request.ready);
        let idle = running.iter().any(Option::is_none);
        let ripe = match policy {
            PlainRequestOrderRule::Batching(_, wait) if idle => queue
                .iter()
                .map(|one| requests[one.request].ready + wait)
                .min(),
            _ => None,
        };
        let Some(now) = [ends, ready, ripe].into_iter().flatten().min() else {
            break;
        };
        // `take` removes a processor's next request or batch from the queue, and returns it.
        let take = |queue: &mut Vec<PlainWaitingOrPreemptedRequest>| -> Vec<PlainWaitingOrPreemptedRequest> {
            if let PlainRequestOrderRule::Batching(most, wait) = policy {
                let mut chosen: Option<(u64, usize, usize)> = None;
                for one in queue.iter() {
                    let model = requests[one.request].model;
                    let same = queue.iter().filter(|o| requests[o.request].model == model);
                    let count = same.count();
                    let first = queue
                        .iter()
                        .find(|o| requests[o.request].model == model)
                        .unwrap();
                    let since = requests[first.request].ready;
                    if count >= most || since + wait <= now {
                        let candidate = (since, first.request, model);
                        chosen = Some(chosen.map_or(candidate, |other| other.min(candidate)));
                    }
                }
                let Some((_, _, model)) = chosen else {
                    return Vec::new();
                };
                let mut batch = Vec::new();
                queue.retain(|one| {
                    let takes = requests[one.request].model == model && batch.len() < most;
                    if takes {
                        batch.push(one.clone());
                    }
                    !takes
                });
                return batch;
            }
            let of = |one: &PlainWaitingOrPreemptedRequest| {
                let job = one.stopped.map_or(0, |(job, _, _)| job);
                (key(one.request, job, now), one.request)
            };
            let best = (0..queue.len()).min_by_key(|&i| of(&queue[i]));
            best.map(|i| queue.remove(i)).into_iter().collect()
        };
        let mut begin = |batch: Vec<PlainWaitingOrPreemptedRequest>,
                         free: u64,
                         times: &mut Vec<PlainServedRequestTimes>|
         -> Option<PlainRunningBatch> {
            let first = batch.first()?;
            let start = now.max(free);
            let (job, number) = match first.stopped {
                Some((job, since, number)) => {
                    times[first.request].preempted += start - since;
                    (job, number)
                }
                None => {
                    serial += 1;
                    (0, serial)
                }
            };
            let length = requests[first.request].jobs[job] * batch.len() as u64;
            for one in &batch {
                times[one.request].together = batch.len();
                times[one.request].compute += length;
            }
            Some(PlainRunningBatch {
                requests: batch.iter().map(|one| one.request).collect(),
                job: job + 1,
                end: start + length,
                serial: number,
            })
        };
        let mut ending: Vec<usize> = (0..processors)
            .filter(|&p| running[p].as_ref().is_some_and(|flight| flight.end == now))
            .collect();
        ending.sort_by_key(|&p| running[p].as_ref().map(|flight| flight.serial));
        // Remove completed requests before considering preemption at the ends of jobs.
        let is_last =
            |flight: &PlainRunningBatch| flight.job == requests[flight.requests[0]].jobs.len();
        let (done, borders): (Vec<usize>, Vec<usize>) = ending
            .into_iter()
            .partition(|&p| running[p].as_ref().is_some_and(is_last));
        for p in done {
            let flight = running[p].take().unwrap();
            for &request in &flight.requests {
                times[request].end = now;
            }
            running[p] = begin(take(&mut queue), blocked[p], &mut times);
        }
        for p in borders {
            let flight = running[p].take().unwrap();
            let request = flight.requests[0];
            let mine = key(request, flight.job, now);
            let better = queue.iter().any(|one| {
                let job = one.stopped.map_or(0, |(job, _, _)| job);
                key(one.request, job, now) < mine
            });
            if let (Some(cost), true) = (preemption, better) {
                queue.push(PlainWaitingOrPreemptedRequest {
                    request,
                    stopped: Some((flight.job, now, flight.serial)),
                });
                blocked[p] = now + cost;
                running[p] = begin(take(&mut queue), blocked[p], &mut times);
            } else {
                let length = requests[request].jobs[flight.job] * flight.requests.len() as u64;
                for &one in &flight.requests {
                    times[one].compute += length;
                }
                running[p] = Some(PlainRunningBatch {
                    job: flight.job + 1,
                    end: now + length,
                    ..flight
                });
            }
        }
        while requests
            .get(coming)
            .is_some_and(|request| request.ready == now)
        {
            queue.push(PlainWaitingOrPreemptedRequest {
                request: coming,
                stopped: None,
            });
            coming += 1;
        }
        for p in 0..processors {
            if running[p].is_none() {
                running[p] = begin(take(&mut queue), blocked[p], &mut times);
            }
        }
    }
    times
}
