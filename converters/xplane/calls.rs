//! Matches collectives across devices. The k-th collective of one member in a group matches the
//! k-th collective of every other member.

use super::hlo::{HloCollective, HloModules};
use super::space::XplaneStatValue;
use super::timeline::{DeviceTimeline, InnermostEventSlice};
use crate::comm_kernels::{CommKernelNameTable, KernelNameCommunicationHint, UserCommKernelRules};
use chakram_trace::format::CollectiveKind;
use chakram_trace::format::groups::DeclaredGroups;
use std::collections::BTreeMap;

/// A member's part of a collective.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberCallOfMatchedCollective {
    pub kind: CollectiveKind,
    /// `comm_size` of the collective, in bytes.
    pub bytes: u64,
    /// Number of the group; 0 means the group of all ranks.
    pub group: u64,
    /// Time, in ps, that the member waited until the last member started.
    pub wait: i128,
}

/// Collectives of all devices, matched and unmatched.
#[derive(Debug, Default)]
pub(super) struct MatchedAndUnmatchedCollectives {
    /// Matched collectives, by rank and index of the slice.
    calls: BTreeMap<(u32, u32), MemberCallOfMatchedCollective>,
    /// Bytes of unmatched communication, by rank and index of the slice; 0 if unknown.
    unmatched: BTreeMap<(u32, u32), u64>,
    /// Groups of devices, except the group of all ranks.
    pub groups: DeclaredGroups,
}

/// Slices of each member of a group, in order: index, start, end, and collective.
type GroupCollectiveSlicesByMember<'m> = BTreeMap<u32, Vec<(u32, i128, i128, &'m HloCollective)>>;

impl MatchedAndUnmatchedCollectives {
    pub fn new(devices: &[DeviceTimeline<'_>], modules: &HloModules) -> Self {
        let ranks: BTreeMap<u64, u32> = devices.iter().map(|d| d.id).zip(0..).collect();
        let mut this = Self::default();
        let kernels = UserCommKernelRules::default();
        let kernels = kernels.lookup_table();
        let mut groups: BTreeMap<Vec<u32>, GroupCollectiveSlicesByMember<'_>> = BTreeMap::new();
        for (rank, device) in (0..).zip(devices) {
            for (index, piece) in (0..).zip(&device.pieces) {
                let Some(found) = find_collective(device, piece, modules, &kernels) else {
                    continue;
                };
                let members = found
                    .and_then(|found| ranks_of_group_containing_device(found, device.id, &ranks));
                match (members, found) {
                    (Some(members), Some(found)) => {
                        let own = groups.entry(members).or_default().entry(rank).or_default();
                        own.push((index, piece.start, piece.end, found));
                    }
                    (_, found) => {
                        let bytes = found.map_or(0, |found| found.output);
                        this.unmatched.insert((rank, index), bytes);
                    }
                }
            }
        }
        for (members, pieces) in groups {
            this.match_group_collectives(&members, &pieces, devices.len());
        }
        this
    }

    /// Matches a group's collectives if its members agree about them.
    fn match_group_collectives(
        &mut self,
        members: &[u32],
        pieces: &GroupCollectiveSlicesByMember<'_>,
        world: usize,
    ) {
        let said = |rank: &u32| {
            let own = pieces.get(rank).map_or(&[][..], Vec::as_slice);
            own.iter().map(|(.., of)| (of.kind, of.output))
        };
        let alike =
            members.len() > 1 && members.iter().all(|rank| said(rank).eq(said(&members[0])));
        if !alike {
            for (&rank, own) in pieces {
                let own = own
                    .iter()
                    .map(|&(piece, .., of)| ((rank, piece), of.output));
                self.unmatched.extend(own);
            }
            return;
        }
        let is_world = members.iter().copied().eq(0..world as u32);
        let group = if is_world {
            0
        } else {
            let number = self.groups.len() as u64 + 1;
            self.groups.insert(number.to_string(), members.to_vec());
            number
        };
        let count = pieces.get(&members[0]).map_or(0, Vec::len);
        for k in 0..count {
            let last = pieces.values().map(|own| own[k].1).max().unwrap_or(0);
            for (&rank, own) in pieces {
                let (piece, start, end, of) = own[k];
                let Some(bytes) = of.comm_size(members.len() as u64) else {
                    // A buffer too large for a trace leaves the collective unmatched on every member, because all
                    // members record the same size.
                    self.unmatched.insert((rank, piece), 0);
                    continue;
                };
                let call = MemberCallOfMatchedCollective {
                    kind: of.kind,
                    bytes,
                    group,
                    // Hosts' clocks may differ, so one member may end before another starts. Limit the wait to the
                    // member's own time.
                    wait: (last - start).min(end - start),
                };
                self.calls.insert((rank, piece), call);
            }
        }
    }

    /// Returns the matched collective that a rank's slice executes.
    pub fn collective_of_event(
        &self,
        rank: u32,
        piece: u32,
    ) -> Option<&MemberCallOfMatchedCollective> {
        self.calls.get(&(rank, piece))
    }

    /// Returns the bytes of a slice that is unmatched communication (0 if unknown), or `None` for any other slice.
    pub fn bytes_of_slice_if_unmatched(&self, rank: u32, piece: u32) -> Option<u64> {
        self.unmatched.get(&(rank, piece)).copied()
    }

    /// Returns how many collectives of a rank are matched, and how many are unmatched.
    pub fn matched_and_unmatched_counts(&self, rank: u32) -> (u64, u64) {
        let own = (rank, 0)..=(rank, u32::MAX);
        let matched = self.calls.range(own.clone()).count();
        (matched as u64, self.unmatched.range(own).count() as u64)
    }
}

/// Returns the collective that a slice executes, or `Some(None)` if its groups are unknown. On a GPU, only the kernels
/// of a communication library count as the collective. The instruction's other kernels prepare the data.
fn find_collective<'m>(
    device: &DeviceTimeline<'_>,
    piece: &InnermostEventSlice<'_>,
    modules: &'m HloModules,
    kernels: &CommKernelNameTable<'_>,
) -> Option<Option<&'m HloCollective>> {
    let name = device.plane.name_of_event(&piece.event);
    let kernel = kernels.classify_name(name) != KernelNameCommunicationHint::Nothing;
    if !piece.whole || !(kernel || device.plane.name.contains("TPU")) {
        return None;
    }
    let (mut op, mut module, mut program) = (None, None, None);
    let stats = device
        .plane
        .for_each_stat_of_event(&piece.event, |name, value| match (name, value) {
            ("hlo_op", XplaneStatValue::Text(text)) => op = Some(text),
            ("hlo_module", XplaneStatValue::Text(text)) => module = Some(text),
            ("program_id", XplaneStatValue::Number(number)) => program = Some(number),
            _ => {}
        });
    // Reading the stats cannot fail, because they were parsed before.
    stats.ok()?;
    // TPU operators are named like their instructions, so the name identifies the instruction.
    let op = op.as_deref().unwrap_or(name);
    let op = op.trim_start_matches('%').split(' ').next().unwrap_or(op);
    match modules.find_collective(device.file, program, module.as_deref(), op) {
        None if kernel || is_communication_instruction(op) => Some(None),
        found => found,
    }
}

/// Opcodes of instructions that communicate.
const COMMUNICATION: [&str; 9] = [
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "recv",
    "reduce-scatter",
    "send",
];

/// Returns true if an instruction communicates. Its name begins with the opcode, as in `collective-permute-start.3`.
fn is_communication_instruction(instruction: &str) -> bool {
    let name = instruction.split('.').next().unwrap_or(instruction);
    let name = name.trim_end_matches("-start").trim_end_matches("-done");
    COMMUNICATION.contains(&name)
}

/// Returns the ranks of the group that contains a device, or `None` if some of the group's devices are not in the job.
fn ranks_of_group_containing_device(
    found: &HloCollective,
    device: u64,
    ranks: &BTreeMap<u64, u32>,
) -> Option<Vec<u32>> {
    if found.groups.is_empty() {
        return Some(ranks.values().copied().collect());
    }
    let own = found.groups.iter().find(|group| group.contains(&device))?;
    own.iter().map(|id| ranks.get(id).copied()).collect()
}
