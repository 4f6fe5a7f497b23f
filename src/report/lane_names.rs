//! Names of lanes, as shown to users.

use chakram_trace::graph::{Graph, Lane};
use chakram_trace::workload::GraphBoundToRank;

/// Returns the name of a lane of `graph` on rank instance `instance`; `None` for [`Lane::None`].
pub fn lane_name(graph: &Graph, instance: &GraphBoundToRank, lane: Lane) -> Option<String> {
    let name = match lane {
        Lane::None => return None,
        Lane::Host(None) => "host".to_owned(),
        Lane::Host(Some(thread)) => format!("host thread {thread}"),
        Lane::Compute => "compute".to_owned(),
        Lane::Stream(stream) => format!("stream {stream}"),
        Lane::Memory => "memory".to_owned(),
        Lane::Group(slot) => {
            let name = &instance.group_names[slot as usize];
            format!("collectives of {}", name.as_deref().unwrap_or("all ranks"))
        }
        Lane::Peer(slot) => format!("sends to rank {}", instance.peers[slot as usize]),
    };
    Some(graph.lane_name(lane).map_or(name, str::to_owned))
}
