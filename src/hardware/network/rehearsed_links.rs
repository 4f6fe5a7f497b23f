//! Links of a collective that is tried out alone, and claims on them while another is answered by that.

use super::servers::{ServerId, ServerTable};
use chakram_base::ids::Npu;
use chakram_base::units::{Span, Time};
use std::collections::BTreeMap;

/// A link as a rehearsed collective uses it; times are those since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RehearsedLink {
    /// The link.
    pub place: ServerId,
    /// Submission of the last transfer over it.
    pub last: Span,
    /// End of the last transfer over it.
    pub free: Span,
    /// Time for which it is taken.
    pub busy: Span,
}

/// Links on which operations can be tried out alone, of networks in which transfers take links in the order of their
/// submission.
pub trait RehearsedLinks {
    /// Sets all else aside until [`Self::end`].
    fn begin(&mut self);

    /// Takes all else back. Returns how the transfers since used links, by time since `start`; none if one took no time.
    fn end(&mut self, start: Time) -> Option<Vec<RehearsedLink>>;

    /// Has a rehearsed operation use links from `now` on, reserved for the owner `claim`, if all of them are idle. Returns
    /// whether they are.
    fn perform(&mut self, now: Time, uses: &[RehearsedLink], claim: u32) -> bool;

    /// Undoes [`Self::perform`] at `start`, so that the operation can be carried out again; then [`Self::restore`] puts back what
    /// came behind it on links that it had done with.
    fn retract(&mut self, start: Time, uses: &[RehearsedLink], claim: u32);

    /// See [`Self::retract`].
    fn restore(&mut self);

    /// Reserves the links of a rehearsed operation for the owner `claim` from `now` until [`Self::release`], if all of them are
    /// idle. Returns whether they are.
    fn hold(&mut self, now: Time, uses: &[RehearsedLink], claim: u32) -> bool;

    /// Ends reservations of [`Self::hold`].
    fn release(&mut self, uses: &[RehearsedLink], claim: u32);
}

/// A rehearsal that goes on.
#[derive(Debug)]
pub(super) struct LinkRehearsal {
    /// The links of everything else.
    aside: ServerTable,
    /// By dimension, side and core of a link, the submission of its last transfer.
    last: BTreeMap<(usize, usize, u32), Time>,
    /// Whether a transfer took no time.
    instantaneous: bool,
}

impl LinkRehearsal {
    /// Begins, with the links of everything else set aside.
    pub fn new(aside: ServerTable) -> Self {
        Self {
            aside,
            last: BTreeMap::new(),
            instantaneous: false,
        }
    }

    /// Notes a transfer over the links of `way` that was submitted `now`.
    pub fn note(&mut self, now: Time, way: &[ServerId], span: Span) {
        self.instantaneous |= span == Span::ZERO;
        for place in way {
            let key = (place.dimension, place.side, place.npu.0);
            self.last.insert(key, now);
        }
    }

    /// Ends: returns the other links, and the use of those that were taken since `start`, in `links`; none if a transfer took no
    /// time.
    pub fn end(
        self,
        start: Time,
        links: &ServerTable,
    ) -> (ServerTable, Option<Vec<RehearsedLink>>) {
        let used = |((dimension, side, npu), last): (_, Time)| {
            let npu = Npu(npu);
            let place = ServerId {
                dimension,
                side,
                npu,
            };
            RehearsedLink {
                place,
                last: last.since(start),
                free: links.free(place).since(start),
                busy: links.busy_of(place),
            }
        };
        let uses = self.last.into_iter().map(used).collect();
        (self.aside, (!self.instantaneous).then_some(uses))
    }
}

/// Claims on links, each up to the last transfer of its owner.
#[derive(Debug, Default)]
pub(super) struct LinkClaims {
    /// By dimension and side, then by core: the owner, and the submission of its last transfer.
    rows: Vec<Vec<(u32, Time)>>,
}

/// Sides of a link's lower or upper end, along each dimension.
const SIDES: usize = 2;

impl LinkClaims {
    /// Returns the owner of a link for which a transfer has yet to be submitted after `now`, or is at it.
    #[inline]
    pub fn owner(&self, now: Time, place: ServerId) -> Option<u32> {
        let row = self.rows.get(SIDES * place.dimension + place.side)?;
        let (owner, last) = row.get(place.npu.index())?;
        (*last >= now && *owner > 0).then(|| owner - 1)
    }

    /// Ends the claim of `owner`, unless another has claimed the link since.
    pub fn clear(&mut self, place: ServerId, owner: u32) {
        let row = self.rows.get_mut(SIDES * place.dimension + place.side);
        let claim = row.and_then(|row| row.get_mut(place.npu.index()));
        if let Some(claim) = claim.filter(|claim| claim.0 == owner + 1) {
            *claim = (0, Time::ZERO);
        }
    }

    /// Sets the owner up to `last`.
    pub fn set(&mut self, place: ServerId, owner: u32, last: Time) {
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
