//! How a collective uses links when it is simulated alone in advance (rehearsed), and its claims on links while a later
//! collective reuses the result.

use super::servers::{QueueingServerId, QueueingServerTable};
use chakram_base::ids::Npu;
use chakram_base::units::{Span, Time};
use std::collections::BTreeMap;

/// How a rehearsed collective uses one link. Times are relative to the collective's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RehearsedCollectiveUseOfLink {
    /// The link that the collective uses.
    pub place: QueueingServerId,
    /// Time at which the last transfer over the link was submitted.
    pub last: Span,
    /// Time at which the last transfer over the link ends.
    pub free: Span,
    /// Total time for which the link is busy.
    pub busy: Span,
}

/// Links on which operations can be simulated alone in advance (rehearsed). Only networks that serve transfers in the
/// order of submission implement this trait.
pub trait RehearsableLinks {
    /// Begins a rehearsal. Sets aside the state of all other traffic until [`Self::end_rehearsal_and_take_link_uses`].
    fn set_aside_traffic_and_begin_rehearsal(&mut self);

    /// Ends the rehearsal and restores the other traffic. Returns how the rehearsal's transfers used links, with times
    /// since `start`, or `None` if a transfer took no time.
    fn end_rehearsal_and_take_link_uses(
        &mut self,
        start: Time,
    ) -> Option<Vec<RehearsedCollectiveUseOfLink>>;

    /// If all links are idle, reserves them for the owner `claim`, and records that a rehearsed operation uses them
    /// from `now` on. Returns true if all links were idle.
    fn repeat_uses_if_links_idle(
        &mut self,
        now: Time,
        uses: &[RehearsedCollectiveUseOfLink],
        claim: u32,
    ) -> bool;

    /// Undoes [`Self::repeat_uses_if_links_idle`] at `start`, so that the operation can be simulated again. Removes
    /// later transfers on links that the operation had already released; [`Self::put_back_retracted_transfers`] puts
    /// them back.
    fn retract_uses(&mut self, start: Time, uses: &[RehearsedCollectiveUseOfLink], claim: u32);

    /// Puts back transfers that [`Self::retract_uses`] removed.
    fn put_back_retracted_transfers(&mut self);

    /// If all links of a rehearsed operation are idle, reserves them for the owner `claim` from `now` until
    /// [`Self::release_reserved_links`]. Returns true if all links were idle.
    fn reserve_links_if_all_idle(
        &mut self,
        now: Time,
        uses: &[RehearsedCollectiveUseOfLink],
        claim: u32,
    ) -> bool;

    /// Ends reservations made by [`Self::reserve_links_if_all_idle`].
    fn release_reserved_links(&mut self, uses: &[RehearsedCollectiveUseOfLink], claim: u32);
}

/// A rehearsal in progress.
#[derive(Debug)]
pub(super) struct LinkRehearsalWithSetAsideTraffic {
    /// The state of the links with all other traffic, which the rehearsal must not see.
    aside: QueueingServerTable,
    /// Time of the last submission on each link, by its dimension, side and core.
    last: BTreeMap<(usize, usize, u32), Time>,
    /// True if a transfer took no time.
    instantaneous: bool,
}

impl LinkRehearsalWithSetAsideTraffic {
    /// Begins a rehearsal; `aside` is the state of the links with all other traffic.
    pub fn new(aside: QueueingServerTable) -> Self {
        Self {
            aside,
            last: BTreeMap::new(),
            instantaneous: false,
        }
    }

    /// Records a transfer, submitted at `now`, over the links of `way`.
    pub fn record_transfer(&mut self, now: Time, way: &[QueueingServerId], span: Span) {
        self.instantaneous |= span == Span::ZERO;
        for place in way {
            let key = (place.dimension, place.side, place.npu.0);
            self.last.insert(key, now);
        }
    }

    /// Ends the rehearsal. Returns the state of the links with other traffic, and how the rehearsal used `links` since
    /// `start`. The use is `None` if a transfer took no time.
    pub fn end_rehearsal_and_return_link_use(
        self,
        start: Time,
        links: &QueueingServerTable,
    ) -> (
        QueueingServerTable,
        Option<Vec<RehearsedCollectiveUseOfLink>>,
    ) {
        let used = |((dimension, side, npu), last): (_, Time)| {
            let npu = Npu(npu);
            let place = QueueingServerId {
                dimension,
                side,
                npu,
            };
            RehearsedCollectiveUseOfLink {
                place,
                last: last.since(start),
                free: links.busy_until(place).since(start),
                busy: links.busy_time_of(place),
            }
        };
        let uses = self.last.into_iter().map(used).collect();
        (self.aside, (!self.instantaneous).then_some(uses))
    }
}

/// Claims on links, each valid until its owner submits its last transfer.
#[derive(Debug, Default)]
pub(super) struct LinkClaimsUntilLastTransfer {
    /// Owner of each link and the time of the owner's last submission, by dimension and side, then by core.
    rows: Vec<Vec<(u32, Time)>>,
}

/// Number of links that belong to a core along a dimension.
const SIDES: usize = 2;

impl LinkClaimsUntilLastTransfer {
    /// Returns a link's owner if it will submit another transfer at `now` or later; otherwise returns `None`.
    #[inline]
    pub fn owner_that_will_still_transfer(
        &self,
        now: Time,
        place: QueueingServerId,
    ) -> Option<u32> {
        let row = self.rows.get(SIDES * place.dimension + place.side)?;
        let (owner, last) = row.get(place.npu.index())?;
        (*last >= now && *owner > 0).then(|| owner - 1)
    }

    /// Ends the claim of `owner` on a link, unless another owner has claimed the link since.
    pub fn end_claim_of_owner(&mut self, place: QueueingServerId, owner: u32) {
        let row = self.rows.get_mut(SIDES * place.dimension + place.side);
        let claim = row.and_then(|row| row.get_mut(place.npu.index()));
        if let Some(claim) = claim.filter(|claim| claim.0 == owner + 1) {
            *claim = (0, Time::ZERO);
        }
    }

    /// Claims a link for `owner`, until the owner's last submission at `last`.
    pub fn set_owner(&mut self, place: QueueingServerId, owner: u32, last: Time) {
        let row = SIDES * place.dimension + place.side;
        if row >= self.rows.len() {
            self.rows.resize_with(row + 1, Vec::new);
        }
        let row = &mut self.rows[row];
        let index = place.npu.index();
        if index >= row.len() {
            row.resize(index + 1, (0, Time::ZERO));
        }
        row[index] = (owner + 1, last);
    }
}
