//! Feeds in the loop: they are told what ended and woken, and what they ask for begins.

use super::Engine;
use super::discipline::CollectiveModel;
use super::event::{Event, EventClass};
use super::feed::Feed;
use super::frames::{SERVED, key, node_of};
use super::launch::{LaunchOrderEntry, LaunchQueue};
use super::processor::{JobTimes, ProcessorJob};
use crate::graph::NodeKind;
use crate::ids::NodeIndex;
use crate::network::NetworkBackend;
use crate::report::Observer;
use crate::units::Time;

/// A feed during the run.
pub(super) struct RunningFeed<'a> {
    feed: &'a mut dyn Feed,
    /// Instant of its pending wake.
    wake: Option<Time>,
}

/// The feeds of a run.
#[derive(Default)]
pub(super) struct Feeds<'a> {
    all: Vec<RunningFeed<'a>>,
    /// Feeds that are woken in this round.
    woken: Vec<u32>,
    /// Requests of a feed; kept for its allocation.
    queue: LaunchQueue,
    /// Jobs of processors whose times are known; likewise.
    started: Vec<JobTimes>,
    /// Whether processors were told anything since they settled.
    pub unsettled: bool,
}

impl<'a> Feeds<'a> {
    pub fn new(feeds: impl IntoIterator<Item = &'a mut dyn Feed>) -> Self {
        let feeds = feeds.into_iter();
        Self {
            all: feeds.map(|feed| RunningFeed { feed, wake: None }).collect(),
            ..Self::default()
        }
    }

    /// Notes that a wake of `feed` is due, unless it has been replaced.
    pub fn wake(&mut self, now: Time, feed: u32) {
        let of = &mut self.all[feed as usize];
        if of.wake == Some(now) {
            of.wake = None;
            self.woken.push(feed);
        }
    }

    pub fn are_woken(&self) -> bool {
        !self.woken.is_empty()
    }
}

impl<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel> Engine<'_, O, N, M> {
    /// Wakes the feeds that want to launch something at the start, and asks all when to wake them.
    pub(super) fn start_feeds(&mut self) {
        for feed in 0..self.feeds.all.len() as u32 {
            let of = &mut self.feeds.all[feed as usize];
            if of.feed.wake_at() == Some(Time::ZERO) {
                self.ask(Time::ZERO, feed, |feed, queue| {
                    feed.woken(Time::ZERO, queue)
                });
            } else {
                self.schedule_wake(Time::ZERO, feed);
            }
        }
    }

    /// Tells feeds what ended in this round, and wakes those that are due.
    pub(super) fn tell_feeds(&mut self, now: Time) {
        // Launches without nodes end as they begin.
        while !self.effects.ended.is_empty() {
            self.tell_ends(now);
        }
        let mut woken = std::mem::take(&mut self.feeds.woken);
        woken.sort_unstable();
        for feed in woken.drain(..) {
            self.ask(now, feed, |feed, queue| feed.woken(now, queue));
        }
        self.feeds.woken = woken;
    }

    fn tell_ends(&mut self, now: Time) {
        let mut ended = std::mem::take(&mut self.effects.ended);
        if ended.len() > 1 {
            let (instances, frames) = (&self.flow.instances, &self.launches.frames);
            ended.sort_unstable_by_key(|&instance| {
                let frame = &frames[instances[instance as usize].frame as usize].record;
                (frame.feed, frame.serial, instance)
            });
        }
        for &instance in &ended {
            let running = &self.flow.instances[instance as usize];
            let (frame, rank) = (running.frame, running.of.rank);
            let record = self.launches.frames[frame as usize].record;
            let over = self.end_rank(now, frame);
            self.ask(now, record.feed, |feed, queue| {
                feed.rank_ended(now, &record, rank, queue);
                if over {
                    feed.launch_ended(now, &record, queue);
                }
            });
        }
        if self.effects.ended.is_empty() {
            ended.clear();
            self.effects.ended = ended;
        }
    }

    /// Tells a feed something, and carries out what it asks for.
    fn ask(&mut self, now: Time, feed: u32, tell: impl FnOnce(&mut dyn Feed, &mut LaunchQueue)) {
        let mut queue = std::mem::take(&mut self.feeds.queue);
        queue.next = self.launches.next;
        tell(&mut *self.feeds.all[feed as usize].feed, &mut queue);
        for order in queue.orders.drain(..) {
            match order {
                LaunchOrderEntry::Launch(launch) => self.begin(now, feed, launch),
                LaunchOrderEntry::Release(serial, rank) => self.release_rank(now, serial, rank),
            }
        }
        self.feeds.queue = queue;
        self.schedule_wake(now, feed);
    }

    /// Schedules the next wake of a feed.
    fn schedule_wake(&mut self, now: Time, feed: u32) {
        let of = &mut self.feeds.all[feed as usize];
        let wake = of.feed.wake_at().map(|at| at.max(now));
        if wake == of.wake {
            return;
        }
        of.wake = wake;
        if let Some(at) = wake {
            let event = Event::new(EventClass::Wake, feed, 0);
            self.agenda.push(at, event);
        }
    }

    /// Returns whether a node is a kernel that a processor serves.
    #[inline]
    pub(super) fn is_served(&self, instance: u32, kind: NodeKind) -> bool {
        self.flow.instances[instance as usize].flags & SERVED != 0 && kind == NodeKind::Compute
    }

    fn processor_job(&self, instance: u32, node: NodeIndex) -> ProcessorJob {
        let record = &self.frame_of(instance).record;
        ProcessorJob {
            npu: self.flow.instances[instance as usize].npu,
            launch: record.serial,
            feed: record.feed,
            program: record.program,
            tag: record.tag,
            node,
            price: self.price(instance, node),
            token: key(instance, node),
        }
    }

    /// Submits a kernel to the processor of its NPU.
    pub(super) fn submit_job(&mut self, now: Time, instance: u32, node: NodeIndex) {
        let job = self.processor_job(instance, node);
        if let Some(processors) = &mut self.processors.model {
            processors.submit(now, &job, &mut self.feeds.started);
            self.feeds.unsettled = true;
            self.schedule_jobs(now);
        }
    }

    /// Tells the processor of its NPU that a kernel is complete.
    pub(super) fn end_job(&mut self, now: Time, instance: u32, node: NodeIndex) {
        let job = self.processor_job(instance, node);
        if let Some(processors) = &mut self.processors.model {
            processors.ended(now, &job, &mut self.feeds.started);
            self.feeds.unsettled = true;
            self.schedule_jobs(now);
        }
    }

    /// Tells processors that nothing is left of an instant at which they were told something.
    pub(super) fn settle_processors(&mut self, now: Time) {
        self.feeds.unsettled = false;
        if let Some(processors) = &mut self.processors.model {
            processors.settle(now, &mut self.feeds.started);
            self.schedule_jobs(now);
        }
        // News of processors may have made room for launches that a feed holds back.
        for feed in 0..self.feeds.all.len() as u32 {
            self.schedule_wake(now, feed);
        }
    }

    /// Schedules the ends of the jobs whose times are known by now.
    fn schedule_jobs(&mut self, now: Time) {
        let mut started = std::mem::take(&mut self.feeds.started);
        for times in started.drain(..) {
            let (instance, node) = node_of(times.token);
            let job = self.processor_job(instance, node);
            self.observer.occupied(now, &job, &times);
            self.agenda.push(
                times.end.max(now),
                Event::new(EventClass::Node, instance, node.0),
            );
        }
        self.feeds.started = started;
    }
}
