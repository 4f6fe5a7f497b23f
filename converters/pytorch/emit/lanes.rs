//! Assigns lanes to activities, and names the lanes.

use super::super::activities::{RankActivitiesAndDependencies, ThreadCommunicationOrStreamLane};
use super::super::rank_timeline::JoinedRankCapture;

/// First lane for communication in flight; higher than any thread number.
pub(super) const FIRST_FLIGHT: i64 = 1000;

/// Returns the names of the lanes as metadata attributes.
pub fn list_lane_name_attributes(
    rank: &JoinedRankCapture,
    activities: &RankActivitiesAndDependencies,
    host_computes: bool,
) -> Vec<(String, String)> {
    let mut names = Vec::new();
    for (index, thread) in rank.threads.iter().enumerate() {
        let track = &rank.kineto.tracks[thread.track as usize];
        let name = if track.name.is_empty() {
            format!("thread {}", track.tid)
        } else {
            track.name.clone()
        };
        let lane = index + 1;
        if host_computes {
            names.push((format!("lane.{lane}"), format!("{name}: work")));
            names.push((format!("host_lane.{lane}"), format!("{name}: overhead")));
        } else {
            names.push((format!("host_lane.{lane}"), name));
        }
    }
    let lanes = activities.list.iter();
    let flights = lanes.filter_map(|work| match activities.lane_of_activity(rank, work) {
        ThreadCommunicationOrStreamLane::Flight(lane) => Some(lane),
        _ => None,
    });
    if let Some(last) = flights.max() {
        let lanes = 0..=last;
        names.extend(lanes.map(|lane| {
            let number = FIRST_FLIGHT + i64::from(lane);
            (
                format!("lane.{number}"),
                format!("communication {}", lane + 1),
            )
        }));
    }
    names
}
