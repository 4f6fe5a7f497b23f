//! Creates traces for ranks that have none, from the traces of captured ranks with the same role.
//!
//! The ranks form a grid with three kinds of dimensions. The first is the pipeline's *stage*: neighbouring stages are
//! as far apart as the sender and the receiver of a forward message. The second is the *replica*: neighbouring replicas
//! are as far apart as ranks that reduce gradients with each other. The remaining dimension contains all other
//! positions, such as shards of tensors. A captured rank t serves as the model of an absent rank m, which copies the
//! trace of t. The model is a rank of the same stage and, if possible, with the same coordinate in the remaining
//! dimension. If m is in a middle stage, its model may also be in another middle stage. In this case, 1F1B passes are
//! reordered for the stage of m. The trace of t is changed as follows:
//!
//! - If t sends a message to a rank at distance d, then m sends a message to the rank at distance d from m. From stage
//!   to stage, the message's tag changes as the tags of t do.
//! - Along each dimension, the group keeps its coordinates if those of t's group include the coordinate of m.
//!   Otherwise, the group moves to the coordinate of m, or to the block of the same size that contains it.
//!
//! In the completed job, every send must have a receive, and all members of a group must make the same number of calls.

use super::MatchedAndChangedItemCounts;
use super::gradients;
use super::grammar::{JobEdit, PipelinePassOrder};
use super::program::EditableRankProgram;
use super::repeat;
use chakram_base::bounds;
use chakram_base::ids::MAX_NPUS;
use chakram_trace::format::groups::{DeclaredGroups, parse_group_metadata};
use chakram_trace::format::{Op, TraceError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

mod exchanges;
mod grid;
mod group_table;
mod rank_writer;
mod restage;

use exchanges::check_communication_matches;
use grid::{StridedRankGrid, find_stride_and_count_of_members};
use group_table::CapturedAndAddedGroupNames;
use rank_writer::{AbsentRankWriter, tag_differences_between_stages};

pub(super) use restage::change_stage_count;

/// Rule that selects an absent rank's model, a captured rank of the same role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AbsentRankModelRule {
    /// Selects the captured rank that is nearest in the grid.
    #[default]
    Nearest,
    /// Selects the captured rank with the shortest kernel time.
    Fastest,
    /// Selects the captured rank with the longest kernel time.
    Slowest,
}

/// Ranks of a job, each with its trace.
pub(super) type RankTraces = Vec<(u32, Arc<Vec<u8>>)>;

/// Position of a stage in its pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PipelineStagePosition {
    Only,
    First,
    Middle,
    Last,
}

impl PipelineStagePosition {
    fn from_stage(stage: u32, stages: u32) -> Self {
        match (stage, stages) {
            (_, 1) => Self::Only,
            (0, _) => Self::First,
            _ if stage + 1 == stages => Self::Last,
            _ => Self::Middle,
        }
    }

    fn name_of_place(self) -> &'static str {
        match self {
            Self::Only => "only",
            Self::First => "first",
            Self::Middle => "middle",
            Self::Last => "last",
        }
    }
}

/// A rank with a trace.
struct CapturedRank {
    rank: u32,
    /// Groups that this rank's trace declares.
    own: DeclaredGroups,
    place: PipelineStagePosition,
    /// The lowest rank above this rank that exchanges messages with it, which is in the next stage; `None` for the last
    /// stage.
    next: Option<u32>,
    peers: BTreeSet<u32>,
    /// Groups that reduce the rank's gradients. Each entry consists of the distance between adjacent members and the
    /// number of members.
    reductions: BTreeSet<(u32, u32)>,
    /// Time of all kernels of the rank, in picoseconds.
    kernels: u64,
    world: Option<u32>,
}

impl CapturedRank {
    fn from_trace(rank: u32, trace: &[u8], declared: &DeclaredGroups) -> Result<Self, TraceError> {
        let program = EditableRankProgram::read_program(trace)?;
        let mut own = DeclaredGroups::new();
        for node in &program.raw.nodes {
            if let Some(values) = node.view.groups {
                own.extend(parse_group_metadata(node.view.id, values)?);
            }
        }
        let mut peers = BTreeSet::new();
        let (mut reductions, mut kernels) = (BTreeSet::new(), 0_u64);
        let world = program.raw.metadata.world_size;
        for i in program.raw.range_of_all_node_indices() {
            match program.view_of_node(i).op {
                // A stage sends forward messages to higher ranks, and backward messages to lower ranks.
                Op::Message { peer, .. } => {
                    peers.insert(peer);
                }
                Op::Compute { .. } => {
                    kernels = kernels.saturating_add(program.view_of_node(i).recorded.0)
                }
                Op::Collective { group, .. } if gradients::is_gradient_reduction(&program, i) => {
                    let name = group.to_text();
                    let members = name.and_then(|name| declared.get(&name).or(own.get(&name)));
                    match members.filter(|members| !members.is_empty()) {
                        Some(members) => {
                            reductions.extend(find_stride_and_count_of_members(members))
                        }
                        None => reductions.extend(world.map(|world| (1, world))),
                    }
                }
                _ => {}
            }
        }
        let next = peers.range(rank..).next().copied();
        let place = match (next.is_some(), peers.range(..rank).next().is_some()) {
            (false, false) => PipelineStagePosition::Only,
            (true, false) => PipelineStagePosition::First,
            (true, true) => PipelineStagePosition::Middle,
            (false, true) => PipelineStagePosition::Last,
        };
        Ok(Self {
            rank,
            own,
            place,
            next,
            peers,
            reductions,
            kernels,
            world,
        })
    }
}

fn build_missing_stage_error(place: PipelineStagePosition) -> TraceError {
    super::refuse_edit(
        format!(
            "no captured rank is of the {} stage, so the work of absent ranks of this stage is unknown",
            place.name_of_place()
        ),
        "capture a rank of the first, of a middle and of the last stage",
    )
}

/// Adds a trace for each rank below `world` that has none. If `world` is `None`, the traces and groups determine the
/// number of ranks.
pub(super) fn derive_missing_ranks(
    traces: RankTraces,
    groups: &DeclaredGroups,
    world: Option<u32>,
    choice: AbsentRankModelRule,
    counts: &mut MatchedAndChangedItemCounts,
) -> Result<(RankTraces, DeclaredGroups), TraceError> {
    let mut captured = Vec::with_capacity(traces.len());
    for (rank, trace) in &traces {
        captured.push(CapturedRank::from_trace(*rank, trace, groups)?);
    }
    let stated = captured.iter().filter_map(|one| one.world).max();
    let listed = groups
        .values()
        .chain(captured.iter().flat_map(|one| one.own.values()));
    let seen = listed.flatten().copied().chain(
        captured
            .iter()
            .flat_map(|one| one.next.into_iter().chain([one.rank])),
    );
    let seen = seen
        .max()
        .map_or(0, |max| max.saturating_add(1))
        .max(stated.unwrap_or(0));
    let world = world.unwrap_or(seen);
    if world < seen || stated.is_some_and(|stated| stated != world) || world > MAX_NPUS {
        return Err(super::refuse_edit(
            match stated {
                Some(_) => format!("ranks={world}: the job has {seen} ranks"),
                None => format!("ranks={world}: the job's traces and groups name {seen} ranks"),
            },
            "the number of ranks that the job has; `data` makes more replicas",
        ));
    }
    let absent = world - traces.len() as u32;
    counts.matched += u64::from(world);
    counts.changed += u64::from(absent);
    counts.completed += u64::from(absent);
    if absent == 0 {
        return Ok((traces, groups.clone()));
    }
    let grid = StridedRankGrid::derive_grid_from_captured_ranks(&captured, world)?;
    for place in [
        PipelineStagePosition::First,
        PipelineStagePosition::Middle,
        PipelineStagePosition::Last,
    ] {
        let stages = grid.stage_count();
        let needed = stages > 1 && (place != PipelineStagePosition::Middle || stages > 2);
        if needed && !captured.iter().any(|one| one.place == place) {
            return Err(build_missing_stage_error(place));
        }
    }
    check_traces_fit_memory(&traces, absent, "more traces", "fewer ranks")?;
    // Use the last stage, because in other stages 1F1B and GPipe may give the same order.
    let last = captured
        .iter()
        .position(|one| one.place == PipelineStagePosition::Last);
    let order = last.map(|at| {
        Ok::<_, TraceError>(repeat::micro_batches_and_warm_up(
            &EditableRankProgram::read_program(&traces[at].1)?,
        ))
    });
    let order = order.transpose()?.flatten();
    let mut table = CapturedAndAddedGroupNames::new(&captured, groups);
    let mut reordered: BTreeMap<(usize, u32), Arc<Vec<u8>>> = BTreeMap::new();
    let mut all = RankTraces::with_capacity(world as usize);
    let (mut other_positions, mut other_stages) = (0_u64, 0_u64);
    let mut left = traces.iter().peekable();
    for rank in 0..world {
        if let Some((_, trace)) = left.next_if(|(known, _)| *known == rank) {
            all.push((rank, Arc::clone(trace)));
            continue;
        }
        let stage = grid.stage_of(rank);
        let candidates = captured
            .iter()
            .enumerate()
            .filter(|(_, one)| one.place == grid.stage_kind_of_rank(rank));
        let key = |one: &CapturedRank| {
            (
                grid.stage_of(one.rank).abs_diff(stage),
                match choice {
                    AbsentRankModelRule::Nearest => 0,
                    AbsentRankModelRule::Fastest => one.kernels,
                    AbsentRankModelRule::Slowest => u64::MAX - one.kernels,
                },
                !grid.differ_only_in_stage_or_replica(one.rank, rank),
                one.rank.abs_diff(rank),
            )
        };
        let Some((index, model)) = candidates.min_by_key(|(_, one)| key(one)) else {
            return Err(build_missing_stage_error(grid.stage_kind_of_rank(rank)));
        };
        other_positions += u64::from(!grid.differ_only_in_stage_or_replica(model.rank, rank));
        let moves_stage = grid.stage_of(model.rank) != stage;
        other_stages += u64::from(moves_stage);
        let trace = match reordered.get(&(index, stage)) {
            Some(trace) => Arc::clone(trace),
            None => {
                let mut program = EditableRankProgram::read_program(&traces[index].1)?;
                if moves_stage {
                    match order {
                        Some(Some((_, 1))) => {
                            let left = grid.stage_count() - stage;
                            repeat::reorder_micro_batch_passes_of_rank(
                                &mut program,
                                PipelinePassOrder::OneForwardOneBackward,
                                left,
                            )?;
                        }
                        Some(Some((micro_batches, warm_up))) if warm_up == micro_batches => {}
                        Some(_) => {
                            return Err(super::refuse_edit(
                                format!(
                                    "stage {stage} has no captured rank, and its order of micro-batches is neither GPipe nor 1F1B"
                                ),
                                "capture a rank of each stage",
                            ));
                        }
                        None => {}
                    }
                }
                super::add_edit_to_trace_edit_list(&mut program, &JobEdit::Ranks(world));
                let trace = Arc::new(program.encode_as_trace()?);
                reordered.insert((index, stage), Arc::clone(&trace));
                trace
            }
        };
        let mut writer = AbsentRankWriter {
            grid: &grid,
            target: &grid,
            table: &mut table,
            model: index,
            from: model.rank,
            to: rank,
            tag_steps: match moves_stage {
                true => tag_differences_between_stages(&grid, model.rank, &traces[index].1)?,
                false => [0; 2],
            },
        };
        let written = writer.write_trace(&trace)?;
        all.push((rank, Arc::new(written)));
    }
    check_communication_matches(&all, &table.declared, world)?;
    note_role_time_differences(&captured, &grid, counts);
    for (count, what) in [
        (other_positions, "at another position of their stage"),
        (other_stages, "of another middle stage"),
    ] {
        if count > 0 {
            counts
                .notes
                .insert(format!("{count} absent ranks as ranks {what}"));
        }
    }
    share_equal_traces(&mut all);
    Ok((all, table.declared))
}

/// Makes ranks with equal traces share one copy of the bytes.
fn share_equal_traces(traces: &mut RankTraces) {
    let mut shared: BTreeMap<[u8; 32], Arc<Vec<u8>>> = BTreeMap::new();
    for (_, trace) in traces {
        let hash = *blake3::hash(trace).as_bytes();
        *trace = Arc::clone(shared.entry(hash).or_insert_with(|| Arc::clone(trace)));
    }
}

/// Checks that `count` traces as large as the largest of `traces` fit into the available memory; `fewer` is the advice
/// that the error gives.
fn check_traces_fit_memory(
    traces: &RankTraces,
    count: u32,
    what: &str,
    fewer: &str,
) -> Result<(), TraceError> {
    let largest = traces.iter().map(|(_, trace)| trace.len() as u64).max();
    let bytes = largest.unwrap_or(0).saturating_mul(u64::from(count));
    bounds::check_items_fit_memory(format!("{count} {what}"), bytes, 1, fewer)
        .map_err(|error| super::refuse_edit(error.to_string(), fewer))
}

/// Adds a note about how much the kernel times of captured ranks with the same role differ. The times of added ranks
/// may be wrong by as much as that.
fn note_role_time_differences(
    captured: &[CapturedRank],
    grid: &StridedRankGrid,
    counts: &mut MatchedAndChangedItemCounts,
) {
    let mut roles: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for one in captured {
        roles
            .entry(grid.stage_of(one.rank))
            .or_default()
            .push(one.kernels);
    }
    let mut spread: Option<f64> = None;
    for times in roles.values().filter(|times| times.len() > 1) {
        if let (Some(&least), Some(&most)) = (times.iter().min(), times.iter().max())
            && least > 0
        {
            let own = (most as f64 / least as f64 - 1.0) * 100.0;
            spread = Some(spread.map_or(own, |known| known.max(own)));
        }
    }
    let text = match spread {
        Some(percent) => format!(
            "kernels of absent ranks may take up to {percent:.1} % more or less, the spread among captured ranks of one role"
        ),
        None => "no role has two captured ranks with times, so the spread within a role is unknown"
            .to_owned(),
    };
    counts.notes.insert(text);
    counts.notes.insert("collectives with absent members take the machine's times, or the recorded times with captured members".to_owned());
}
