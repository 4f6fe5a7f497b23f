//! Runs feeds in the loop: notifies and wakes them, and handles their requests.

use super::effects::Effects;
use super::event::{EventClass, PackedEvent};
use super::feed::LaunchFeed;
use super::launch::FeedLaunchAndRankStartRequests;
use chakram_base::units::Time;

/// A feed during a run, with the wake that is pending for it.
pub(super) struct FeedWithPendingWake<'a> {
    feed: &'a mut dyn LaunchFeed,
    /// Instant of the feed's pending wake, or `None`.
    wake: Option<Time>,
}

/// The feeds of a run.
#[derive(Default)]
pub(super) struct RunningFeeds<'a> {
    all: Vec<FeedWithPendingWake<'a>>,
    /// Indices of the feeds to wake in this round.
    woken: Vec<u32>,
    /// Requests of the feed that is being notified. Reused for all feeds to keep its allocation.
    queue: FeedLaunchAndRankStartRequests,
}

impl<'a> RunningFeeds<'a> {
    pub fn new(feeds: impl IntoIterator<Item = &'a mut dyn LaunchFeed>) -> Self {
        let feeds = feeds.into_iter();
        Self {
            all: feeds
                .map(|feed| FeedWithPendingWake { feed, wake: None })
                .collect(),
            ..Self::default()
        }
    }

    /// Records that a wake of `feed` is due. Does nothing if a later request has replaced this wake.
    pub fn record_due_wake_unless_replaced(&mut self, now: Time, feed: u32) {
        let of = &mut self.all[feed as usize];
        if of.wake == Some(now) {
            of.wake = None;
            self.woken.push(feed);
        }
    }

    pub fn has_woken_feeds(&self) -> bool {
        !self.woken.is_empty()
    }

    pub fn feed_count(&self) -> u32 {
        self.all.len() as u32
    }

    /// Returns true if a feed wants to be woken at time 0.
    pub fn must_wake_at_start(&self, feed: u32) -> bool {
        self.all[feed as usize].feed.next_wake_time() == Some(Time::ZERO)
    }

    /// Returns the feeds to wake in this round, in ascending order.
    pub fn take_woken_feeds(&mut self) -> Vec<u32> {
        let mut woken = std::mem::take(&mut self.woken);
        woken.sort_unstable();
        woken
    }

    /// Takes back the list that [`Self::take_woken_feeds`] returned, to reuse its allocation.
    pub fn give_back_woken_list(&mut self, woken: Vec<u32>) {
        self.woken = woken;
    }

    /// Notifies a feed by calling `tell`, and returns the feed's requests. `next` is the index of the run's next
    /// launch.
    pub fn notify_feed_and_take_its_requests(
        &mut self,
        feed: u32,
        next: u64,
        tell: impl FnOnce(&mut dyn LaunchFeed, &mut FeedLaunchAndRankStartRequests),
    ) -> FeedLaunchAndRankStartRequests {
        let mut queue = std::mem::take(&mut self.queue);
        queue.next = next;
        tell(&mut *self.all[feed as usize].feed, &mut queue);
        queue
    }

    /// Takes back the list of requests after the engine has carried them out, and schedules the feed's next wake.
    pub fn give_back_requests_and_schedule_wake(
        &mut self,
        effects: &mut Effects,
        now: Time,
        feed: u32,
        queue: FeedLaunchAndRankStartRequests,
    ) {
        self.queue = queue;
        self.schedule_wake(effects, now, feed);
    }

    /// Schedules the next wake of a feed.
    pub fn schedule_wake(&mut self, effects: &mut Effects, now: Time, feed: u32) {
        let of = &mut self.all[feed as usize];
        let wake = of.feed.next_wake_time().map(|at| at.max(now));
        if wake == of.wake {
            return;
        }
        of.wake = wake;
        if let Some(at) = wake {
            let event = PackedEvent::new(EventClass::Wake, feed, 0);
            effects.agenda.push(at, event);
        }
    }
}
