//! Max-min fair rates: solved anew for all streams, or kept while new streams replace old ones.
//!
//! # Certificate
//!
//! Rates are max-min fair if each stream crosses a saturated link on which no stream is faster. Such a link *limits*
//! the stream. Each limiting link therefore stores its *level*, the rate of the streams that it limits. Suppose that
//! streams leave, and that each new stream takes the lowest level on its route. The rates of all other streams then
//! remain fair as long as the links that limit a stream are still saturated and no link carries more than its rate.
//! This test costs a few operations per changed stream, and succeeds when members of a collective go from one message
//! to the next. If it fails, all rates are solved anew.

use super::TransferWithUnsentBytes;
use crate::topology::link_graph::{DirectedLink, LinkMessageFraction};
use chakram_base::units::Time;

/// Relative difference below which rates count as equal. Equal rates must be fixed together, although sums that are
/// added in another order may differ in their last bits.
const EQUAL: f64 = 1.0 + 1e-9;

/// State of a link.
#[derive(Clone, Copy, Debug)]
struct LinkLoadAndFairRate {
    /// Sum of the streams' rates, each multiplied by the part of the stream's bytes that passes the link.
    load: f64,
    /// Rate of the streams that the link limits, or infinity if the link limits none.
    level: f64,
    /// Number of streams on the link.
    streams: u32,
    /// Number of streams whose rate equals the level.
    limited: u32,
    /// True if the link is in [`MaxMinRates::used`].
    is_used: bool,
    /// True if the link is in [`MaxMinRates::changed`].
    is_changed: bool,
    /// While rates are solved: number of streams without a rate, and sum of their parts.
    open: (u32, f64),
    /// While rates are solved: the range of the link's streams in [`MaxMinRates::users`].
    users: (u32, u32),
}

impl LinkLoadAndFairRate {
    const IDLE: Self = Self {
        load: 0.0,
        level: f64::INFINITY,
        streams: 0,
        limited: 0,
        is_used: false,
        is_changed: false,
        open: (0, 0.0),
        users: (0, 0),
    };
}

/// Rates of all streams on a network's links.
#[derive(Debug)]
pub(super) struct MaxMinRates {
    /// Rate of each link in bytes per second.
    capacities: Vec<f64>,
    links: Vec<LinkLoadAndFairRate>,
    /// Links that had streams when rates were last solved, and links that streams have entered since.
    used: Vec<u32>,
    /// Links whose streams have changed since rates were last confirmed.
    changed: Vec<u32>,
    /// Slots of the streams of each link, in the order of `used`.
    users: Vec<u32>,
    /// Links that still have streams without a rate while rates are solved.
    unsolved: Vec<u32>,
    /// True if rates must be solved anew, without testing whether they are still fair.
    is_outdated: bool,
}

impl MaxMinRates {
    /// Creates the state of links that carry no streams.
    pub fn new(links: &[DirectedLink]) -> Self {
        let capacities = links.iter().map(|link| link.bandwidth.bytes_per_second());
        Self {
            capacities: capacities.collect(),
            links: vec![LinkLoadAndFairRate::IDLE; links.len()],
            used: Vec::new(),
            changed: Vec::new(),
            users: Vec::new(),
            unsolved: Vec::new(),
            is_outdated: false,
        }
    }

    /// Makes the next confirmation fail, because streams were added or removed without notifying this state.
    pub fn mark_rates_outdated(&mut self) {
        self.is_outdated = true;
    }

    /// Removes a stream with this rate from its links.
    pub fn remove_stream(&mut self, links: &[LinkMessageFraction], rate: f64) {
        for &(number, part) in links {
            let link = &mut self.links[number as usize];
            link.streams -= 1;
            link.limited -= u32::from(rate == link.level);
            // An empty link has a load of zero, so that rounding errors do not add up.
            link.load = if link.streams == 0 {
                0.0
            } else {
                link.load - part * rate
            };
            self.note_link_changed(number);
        }
    }

    /// Adds a stream at the lowest level of its links and returns this rate, or `None` if rates must be solved. The
    /// rate is valid only if [`Self::confirm_rates`] then returns true.
    pub fn add_stream_at_lowest_link_level(
        &mut self,
        links: &[LinkMessageFraction],
    ) -> Option<f64> {
        let levels = links
            .iter()
            .map(|(link, _)| self.links[*link as usize].level);
        let rate = levels.fold(f64::INFINITY, f64::min);
        if rate == f64::INFINITY {
            self.is_outdated = true;
            return None;
        }
        for &(number, part) in links {
            let link = &mut self.links[number as usize];
            if !std::mem::replace(&mut link.is_used, true) {
                self.used.push(number);
            }
            link.streams += 1;
            link.limited += u32::from(rate == link.level);
            link.load += part * rate;
            self.note_link_changed(number);
        }
        Some(rate)
    }

    fn note_link_changed(&mut self, number: u32) {
        let link = &mut self.links[number as usize];
        if !link.is_changed {
            link.is_changed = true;
            self.changed.push(number);
        }
    }

    /// Returns true if all rates are still max-min fair after streams were removed and added. Otherwise
    /// [`Self::solve_rates`] must follow.
    pub fn confirm_rates(&mut self) -> bool {
        let mut is_fair = !std::mem::take(&mut self.is_outdated);
        for number in self.changed.drain(..) {
            let link = &mut self.links[number as usize];
            link.is_changed = false;
            let capacity = self.capacities[number as usize];
            if link.limited == 0 {
                link.level = f64::INFINITY;
            }
            is_fair &= link.load <= capacity * EQUAL;
            is_fair &= link.limited == 0 || link.load * EQUAL >= capacity;
        }
        is_fair
    }

    /// Solves the rates of all streams by progressive filling, and sets the rates that change. All rates rise together
    /// until a link saturates, which fixes the rates of its streams. Each pass saturates at least one link, so there
    /// are at most as many passes as links.
    pub fn solve_rates(&mut self, streams: &mut [Option<TransferWithUnsentBytes>], now: Time) {
        self.list_streams_of_each_link(streams);
        let mut unsolved = std::mem::take(&mut self.unsolved);
        unsolved.clone_from(&self.used);
        let mut tight: Vec<u32> = Vec::new();
        loop {
            unsolved.retain(|link| self.links[*link as usize].open.0 > 0);
            let rate_if_full = |link: u32| {
                let state = &self.links[link as usize];
                // Rounding may make the sum of rates exceed the link's rate, so clamp the remaining rate to zero.
                (self.capacities[link as usize] - state.load).max(0.0) / state.open.1
            };
            let rates = unsolved.iter().map(|link| rate_if_full(*link));
            let Some(least) = rates.reduce(f64::min) else {
                break;
            };
            let narrow = least * EQUAL;
            // The saturated links are collected before any rate is fixed, because fixed rates change the links' loads.
            tight.clear();
            tight.extend(
                unsolved
                    .iter()
                    .filter(|link| rate_if_full(**link) <= narrow),
            );
            for &number in &tight {
                let link = &mut self.links[number as usize];
                (link.level, link.limited) = (least, link.open.0);
            }
            for &number in &tight {
                let (first, end) = self.links[number as usize].users;
                for user in first..end {
                    let slot = self.users[user as usize] as usize;
                    let stream = streams[slot].as_mut().expect("users are streams");
                    if stream.is_fixed {
                        continue;
                    }
                    stream.is_fixed = true;
                    stream.set_rate(least, now);
                    for &(link, part) in stream.occupied_links() {
                        let link = &mut self.links[link as usize];
                        link.open = (link.open.0 - 1, link.open.1 - part);
                        link.load += part * least;
                    }
                }
            }
        }
        self.unsolved = unsolved;
    }

    /// Lists the streams of each link, and resets the links' loads.
    fn list_streams_of_each_link(&mut self, streams: &mut [Option<TransferWithUnsentBytes>]) {
        for link in self.used.drain(..) {
            self.links[link as usize] = LinkLoadAndFairRate::IDLE;
        }
        for stream in streams.iter_mut().flatten() {
            stream.is_fixed = false;
            for &(number, part) in stream.occupied_links() {
                let link = &mut self.links[number as usize];
                if !std::mem::replace(&mut link.is_used, true) {
                    self.used.push(number);
                }
                link.streams += 1;
                link.open = (link.streams, link.open.1 + part);
            }
        }
        let mut first = 0;
        for &number in &self.used {
            let link = &mut self.links[number as usize];
            link.users = (first, first);
            first += link.streams;
        }
        self.users.resize(first as usize, 0);
        for (slot, stream) in (0..).zip(streams.iter()) {
            for &(link, _) in stream
                .iter()
                .flat_map(TransferWithUnsentBytes::occupied_links)
            {
                let users = &mut self.links[link as usize].users;
                self.users[users.1 as usize] = slot;
                users.1 += 1;
            }
        }
    }
}
