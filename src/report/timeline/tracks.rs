//! Tracks of a rank: one per lane, and additional ones for receives, which may overlap.

use super::TimelineWriter;
use super::events::RankTrackId;
use crate::lane_names::lane_name;
use chakram_base::ids::NodeIndex;
use chakram_engine::InstanceId;
use chakram_trace::graph::Lane;
use std::io::Write;

/// Number of the first track for receives; it exceeds all lane numbers.
const RECEIVE_TRACKS: u32 = 1 << 20;

/// A track for receives, which occupy no lane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReceiveTrack {
    /// The receive that currently occupies the track.
    holder: Option<NodeIndex>,
    /// True if the track has a name, because a receive was drawn on it.
    named: bool,
}

impl<W: Write> TimelineWriter<'_, W> {
    /// Writes the names of processes and tracks, in display order.
    pub(super) fn name_tracks(&mut self) {
        let prepared = self.prepared;
        let (workload, machine) = (prepared.workload_with_added_launches(), prepared.machine());
        for (i, instance) in workload.instances().iter().enumerate() {
            if !self.selection.has_rank(instance.rank) {
                continue;
            }
            let npu = prepared.npu_of_rank(instance.rank);
            let class = &machine.npu_classes()[machine.class_of_npu(npu)].name;
            let name = format!("rank {} on NPU {npu} ({class})", instance.rank);
            let rank = instance.rank.0;
            self.encoder_mut().name_rank(rank, &name);
            let graph = workload.graph_of(instance);
            for (lane, key) in graph.lanes_in_order_of_first_use().iter().enumerate() {
                let Some(name) = lane_name(graph, instance, *key) else {
                    continue;
                };
                let order = match *key {
                    Lane::Host(_) | Lane::None => 0,
                    Lane::Compute => 1,
                    Lane::Stream(_) => 2,
                    Lane::Memory => 3,
                    Lane::Group(_) => 4,
                    Lane::Peer(_) => 5,
                };
                let track = self.track_of(i, lane as u32);
                self.encoder_mut().name_track(track, &name, order);
            }
        }
    }

    /// Assigns the lowest free receive track to `node`, a receive.
    pub(super) fn assign_receive_track(&mut self, instance: InstanceId, node: NodeIndex) {
        let tracks = &mut self.receives[instance.index()];
        let free = tracks.iter().position(|track| track.holder.is_none());
        let free = free.unwrap_or_else(|| {
            tracks.push(ReceiveTrack::default());
            tracks.len() - 1
        });
        tracks[free].holder = Some(node);
    }

    /// Frees the receive track of `node`, and returns the track's number.
    pub(super) fn free_receive_track(&mut self, instance: InstanceId, node: NodeIndex) -> u32 {
        let tracks = &mut self.receives[instance.index()];
        let found = tracks.iter().position(|track| track.holder == Some(node));
        let found = found.expect("a receive is issued before it completes");
        tracks[found].holder = None;
        RECEIVE_TRACKS + found as u32
    }

    /// Writes the name of a receive track when a receive is drawn on it for the first time.
    pub(super) fn name_receive_track(&mut self, instance: InstanceId, track: RankTrackId) {
        let Some(number) = track.lane.checked_sub(RECEIVE_TRACKS) else {
            return;
        };
        let of = &mut self.receives[instance.index()][number as usize];
        if !std::mem::replace(&mut of.named, true) {
            self.encoder_mut().name_track(track, "receives", 1000);
        }
    }
}
