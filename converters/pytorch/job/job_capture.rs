//! Captures of all ranks of a job: matched calls, clock offsets, and waiting apart from transfer.

use super::rank_capture::{RankCapture, refused};
use crate::converters::pytorch::activities::Activities;
use crate::converters::pytorch::call_matching::{self, CallMatches};
use crate::converters::pytorch::calls::CommCalls;
use crate::converters::pytorch::clock::{self, ClockOffset};
use crate::converters::pytorch::emit::{self, CallMatchInfo};
use crate::converters::pytorch::event_links::HostNodeLinks;
use crate::converters::pytorch::group_inference::{self, JobGroup};
use crate::converters::pytorch::rank_timeline::RankTimeline;
use crate::converters::pytorch::summary::{ConversionSummary, RankConversion};
use crate::converters::pytorch::transfer_times::{self, CallTime};
use crate::trace::TraceError;
use crate::trace::scan;
use crate::trace::write::{AttributeValue, TraceWriter};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A job whose ranks were matched.
pub(super) struct JobCapture {
    pub ranks: Vec<RankTimeline>,
    calls: Vec<CommCalls>,
    activities: Vec<Activities>,
    links: Vec<HostNodeLinks>,
    groups: Vec<JobGroup>,
    times: Vec<Vec<CallTime>>,
    met: Vec<Vec<CallMatchInfo>>,
    offsets: Vec<ClockOffset>,
    world: u32,
    /// Start of the first rank, ns since the epoch by the reference clock.
    first: i64,
    host_computes: bool,
    pub summary: ConversionSummary,
}

impl JobCapture {
    /// Matches `parts`.
    pub fn new(mut parts: Vec<RankCapture>) -> Result<Self, TraceError> {
        parts.sort_by_key(|part| part.rank.rank);
        let twice = |pair: &&[RankCapture]| pair[0].rank.rank == pair[1].rank.rank;
        if let Some(pair) = parts.windows(2).find(twice) {
            let (one, other) = (&pair[0], &pair[1]);
            return Err(refused(
                &other.file,
                format!(
                    "it is of rank {} by what it says itself, and so is {}",
                    other.rank.rank,
                    one.file.display()
                ),
                "convert one job at a time, each rank once",
            ));
        }
        let world = world_size(&parts);
        let files: Vec<PathBuf> = parts.iter().map(|part| part.file.clone()).collect();
        let (mut ranks, mut calls, mut activities, mut links) = (vec![], vec![], vec![], vec![]);
        for part in parts {
            ranks.push(part.rank);
            calls.push(part.calls);
            activities.push(part.activities);
            links.push(part.link);
        }
        let file = |rank: u32| {
            let at = ranks.iter().position(|r| r.rank == rank).unwrap_or(0);
            files.get(at).map_or(Path::new(""), |file| file)
        };
        let (groups, inferred) = group_inference::resolve(&ranks, &mut calls, world)
            .map_err(|unknown| refused(file(unknown.rank), unknown.found, &unknown.hint))?;
        let matches = call_matching::matching(&ranks, &calls, &groups).map_err(|disagreement| {
            let hint = "convert the captures of one run, all profiled over the same steps";
            refused(file(u32::MAX), disagreement.0, hint)
        })?;
        let offsets = clock::offsets(&ranks, &calls, &matches);
        let blocked: Vec<Vec<bool>> = activities
            .iter()
            .map(|activities| activities.blocked.clone())
            .collect();
        let (times, odd) = transfer_times::divide(&calls, &blocked, &offsets, &matches);
        let starts = activities.iter().zip(&offsets);
        let starts =
            starts.map(|(activities, offset)| activities.span().0.saturating_add(offset.applied));
        let host_computes = ranks.iter().all(|rank| rank.devices.is_empty());
        Ok(Self {
            met: matched_calls(&calls, &matches, &ranks),
            first: starts.min().unwrap_or(0),
            summary: ConversionSummary::new(
                &groups,
                &inferred,
                &matches,
                odd,
                world,
                host_computes,
            ),
            ranks,
            calls,
            activities,
            links,
            groups,
            times,
            offsets,
            world,
            host_computes,
        })
    }

    /// Writes the trace of the `i`-th rank into `out`, which is called `to` in the summary.
    pub fn write<W: Write>(&mut self, i: usize, out: W, to: &Path) -> Result<W, TraceError> {
        let (rank, activities) = (&self.ranks[i], &self.activities[i]);
        let offset = self.offsets[i];
        let captured = activities
            .span()
            .1
            .saturating_add(offset.applied)
            .saturating_sub(self.first);
        let job = emit::EmitContext {
            groups: &self.groups,
            times: &self.times[i],
            matches: &self.met[i],
            start: self.first.saturating_sub(offset.applied),
            host_computes: self.host_computes,
        };
        let lanes = emit::lane_names(rank, activities, self.host_computes);
        let kernels_on = if self.host_computes {
            scan::CPU
        } else {
            scan::DEVICE
        };
        let ns = u64::try_from(captured).unwrap_or(0);
        let mut metadata = vec![
            ("captured_ns", AttributeValue::Uint(ns)),
            ("schema", AttributeValue::Text(&rank.host.schema)),
            ("source", AttributeValue::Text("pytorch")),
            ("rank", AttributeValue::Int(i64::from(rank.rank))),
            ("world_size", AttributeValue::Int(i64::from(self.world))),
            (scan::KERNELS_ON, AttributeValue::Text(kernels_on)),
        ];
        for (lane, name) in &lanes {
            metadata.push((lane, AttributeValue::Text(name)));
        }
        let io = |source| TraceError::io(to, "write", source);
        let mut writer = TraceWriter::with_metadata(out, &metadata).map_err(io)?;
        let calls = &self.calls[i];
        let written =
            emit::write(rank, calls, activities, &job, &mut writer).map_err(|e| e.in_file(to))?;
        self.summary.ranks.push(RankConversion::new(
            rank,
            calls,
            activities,
            &self.links[i],
            offset,
            written,
            captured,
            &self.times[i],
            to,
        ));
        Ok(writer.into_inner())
    }
}

fn world_size(parts: &[RankCapture]) -> u32 {
    let said = parts
        .iter()
        .filter_map(|part| part.rank.kineto.world_size)
        .max();
    let seen = parts
        .iter()
        .map(|part| part.rank.rank.saturating_add(1))
        .max();
    said.unwrap_or(0).max(seen.unwrap_or(0))
}

/// Returns the match of each call.
fn matched_calls(
    calls: &[CommCalls],
    matches: &CallMatches,
    ranks: &[RankTimeline],
) -> Vec<Vec<CallMatchInfo>> {
    let mut met: Vec<Vec<CallMatchInfo>> = calls
        .iter()
        .map(|calls| vec![CallMatchInfo::default(); calls.list.len()])
        .collect();
    for matched in &matches.collectives {
        let root = matched
            .root
            .map(|root| ranks[matched.members[root as usize].0 as usize].rank);
        for &(rank, call) in &matched.members {
            met[rank as usize][call as usize] = CallMatchInfo {
                bytes: matched.bytes,
                root,
                found: true,
            };
        }
    }
    for message in &matches.messages {
        for (rank, call) in [message.send, message.receive] {
            met[rank as usize][call as usize].found = true;
        }
    }
    met
}
