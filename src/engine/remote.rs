//! Loads and stores beyond the NPU: what the loop asks of the remote memory, and what it hears.

use super::event::{Class, Event};
use super::{Engine, key};
use crate::collective::Manner;
use crate::ids::NodeIndex;
use crate::memory::Access;
use crate::network::Network;
use crate::report::Observer;
use crate::units::Time;

impl<O: Observer, N: Network, M: Manner> Engine<'_, O, N, M> {
    /// A load or store beyond the NPU begins.
    pub(super) fn reach_out(&mut self, now: Time, instance: u32, node: NodeIndex) {
        let graph = self.instances[instance as usize].graph;
        let access = Access {
            npu: self.plan.instances[instance as usize].npu,
            bytes: graph.bytes(node),
            in_switch: graph.in_switch(node).is_some(),
            token: key(instance, node),
        };
        let remote = self.remote.as_mut();
        let remote = remote.expect("the plan refused machines without");
        if let Some(end) = remote.begin(now, access) {
            self.until(end, instance, node);
        }
    }

    /// Shares the links of the remote memory anew, if accesses began or ended at this instant, of which
    /// nothing more is to come. Returns whether it did.
    #[inline]
    pub(super) fn settle_memory(&mut self, now: Time) -> bool {
        let unsettled = self.remote.as_mut().filter(|remote| remote.is_unsettled());
        let Some(remote) = unsettled.filter(|_| !self.agenda.has(now)) else {
            return false;
        };
        if let Some((at, settlement)) = remote.settle(now) {
            let event = Event::new(Class::Memory, 0, settlement);
            self.agenda.push(at, event);
        }
        true
    }

    /// Accesses have streamed to their ends, if nothing was settled since `settlement` was.
    pub(super) fn memory_event(&mut self, now: Time, settlement: u32) {
        let mut ends = std::mem::take(&mut self.ends);
        if let Some(remote) = &mut self.remote {
            remote.ended(now, settlement, |end| ends.push(end));
        }
        for end in ends.drain(..) {
            let (instance, node) = ((end.token >> 32) as u32, NodeIndex(end.token as u32));
            self.until(end.at, instance, node);
        }
        self.ends = ends;
    }
}
