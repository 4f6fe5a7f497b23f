//! Changes the number of data-parallel replicas, and the gradient reductions between them.
//!
//! Ranks that reduce their gradients with each other are replicas. [`JobScaler`] adds or removes replicas. A job that
//! reduces no gradients but has captured parameter hooks gets the reductions that DistributedDataParallel would
//! perform: all-reduces of buckets of [`DEFAULT_BUCKET`] bytes. Each follows the hook that fills its bucket. The
//! optimizer waits for all all-reduces.

use super::MatchedAndChangedItemCounts;
use super::gradients::{self, StepGradientReductions};
use super::grammar::JobEdit;
use super::kernels::KernelWorkAndTimeScaler;
use super::program::{EditableRankProgram, NewAttributeValueOrRemoval, TrainingStepPhase};
use super::roles::{self, AbsentRankModelRule, RankTraces};
use crate::edit::scale::{JobScaler, RankGridDimensions, ScaledDimension, ShardedBufferKeptSize};
use chakram_trace::format::groups::{DeclaredGroups, parse_group_metadata};
use chakram_trace::format::{CollectiveKind, Op, TraceError};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bucket size, in bytes, at which DistributedDataParallel reduces gradients by default.
const DEFAULT_BUCKET: u64 = 25 << 20;

/// Changes a job's number of replicas to `replicas`.
pub(super) fn scale_replicas(
    traces: RankTraces,
    groups: &DeclaredGroups,
    replicas: u32,
    choice: AbsentRankModelRule,
    counts: &mut MatchedAndChangedItemCounts,
) -> Result<(RankTraces, DeclaredGroups), TraceError> {
    let mut completed = MatchedAndChangedItemCounts::default();
    let (mut traces, mut groups) =
        roles::derive_missing_ranks(traces, groups, None, choice, &mut completed)?;
    let ranks = traces.len() as u32;
    counts.completed += completed.completed;
    if completed.changed > 0 {
        counts.notes.extend(completed.notes);
        counts.notes.insert(format!(
            "{} of {ranks} ranks had no trace",
            completed.changed
        ));
    }
    let mut members = Vec::new();
    if let Some((_, trace)) = traces.first() {
        members = replica_ranks_of_first_rank(
            &EditableRankProgram::read_program(trace)?,
            &groups,
            ranks,
        )?;
    }
    let grid = if members.len() > 1 || members == [0] && ranks == 1 {
        format_rank_grid_with_dimension(&members, ranks)?
    } else {
        // Give each rank a group for its future replicas; so far, the rank is its only member.
        for (rank, trace) in &mut traces {
            let mut program = EditableRankProgram::read_program(trace)?;
            let group = format!("replicas-{rank}");
            counts.added += insert_gradient_all_reduces(&mut program, &group)?;
            *trace = Arc::new(program.encode_as_trace()?);
            groups.insert(group, vec![*rank]);
        }
        counts.notes.insert(format!(
            "all-reduces inserted as DistributedDataParallel issues them, in buckets of {} MiB; their launches on \
             the host take no time",
            DEFAULT_BUCKET >> 20
        ));
        format!("dp=1,rest={ranks}")
    };
    let parsed = RankGridDimensions::parse(&grid);
    let along = parsed.and_then(|grid| ScaledDimension::new(grid, "dp", replicas));
    let along = along
        .map_err(|why| super::refuse_edit(format!("data={replicas}: {why}"), "another number"))?;
    let new_ranks = along.scaled_rank_count();
    if new_ranks == ranks {
        counts.matched += u64::from(ranks);
        return Ok((traces, groups));
    }
    let ratio = f64::from(ranks) / f64::from(new_ranks);
    for (_, trace) in &mut traces {
        let mut program = EditableRankProgram::read_program(trace)?;
        if scale_sharded_optimizer(&mut program, ratio) {
            counts
                .notes
                .insert("the optimizer's work and states by the size of the shards".to_owned());
            *trace = Arc::new(program.encode_as_trace()?);
        }
    }
    let mut scaling = JobScaler::new(along, ShardedBufferKeptSize::KeepTotal, groups)?;
    for (rank, trace) in &traces {
        scaling.scan_rank(*rank, trace)?;
    }
    scaling.check_ranks_send_equal_messages()?;
    counts.matched += u64::from(ranks.max(new_ranks));
    counts.changed += u64::from(new_ranks.abs_diff(ranks));
    counts.notes.insert(
        "recorded transfers and kernels are from the captured replicas; use the machine's network for the times of transfers".to_owned(),
    );
    let mut new = RankTraces::new();
    let mut known: BTreeMap<[u8; 32], Arc<Vec<u8>>> = BTreeMap::new();
    let mut of_old: BTreeMap<u32, Arc<Vec<u8>>> = BTreeMap::new();
    for rank in 0..new_ranks {
        let (old, _) = scaling.scaled_dimension().source_rank_and_block(rank);
        let shared = of_old
            .get(&old)
            .filter(|_| scaling.has_copies_with_equal_traces(old))
            .cloned();
        let trace = match shared {
            Some(trace) => trace,
            None => {
                let written = scaling.build_trace_of_new_rank(rank, &traces[old as usize].1)?;
                let written = record_replica_edit_in_trace(&written, replicas)?;
                let hash = *blake3::hash(&written).as_bytes();
                Arc::clone(known.entry(hash).or_insert_with(|| Arc::new(written)))
            }
        };
        of_old.insert(old, Arc::clone(&trace));
        new.push((rank, trace));
    }
    Ok((new, scaling.scale_declared_groups()))
}

/// Multiplies the optimizer shards' work and memory by `ratio`. Returns true if there are any optimizer shards.
fn scale_sharded_optimizer(program: &mut EditableRankProgram<'_>, ratio: f64) -> bool {
    let shards = program.order.iter().copied().find(|&item| {
        gradients::is_gradient_reduction(program, item)
            && matches!(
                program.view_of_item(item).op,
                Op::Collective {
                    kind: CollectiveKind::ReduceScatter,
                    ..
                }
            )
    });
    let Some(reduction) = shards else {
        return false;
    };
    let mut shared = vec!["allocates.optimizer", "allocates.remote"];
    if gradients::reduces_gradients_to_shards(program, reduction) {
        shared.push("allocates.gradients");
    }
    if gradients::has_parameter_gathers_in_passes(program) {
        shared.push("allocates.weights");
    }
    let scaler = KernelWorkAndTimeScaler::new(program);
    for item in program.order.clone() {
        let view = *program.view_of_item(item);
        if view.op == Op::NoOp {
            for (name, bytes) in view.memory.nonzero_changes_with_attribute_names() {
                if shared.contains(&name) {
                    let bytes = (bytes as f64 * ratio).ceil() as u64;
                    let changes = &mut program.items[item as usize].changes;
                    changes.insert(name, NewAttributeValueOrRemoval::Count(bytes));
                }
            }
        } else if program.facts_of_item(item).phase == TrainingStepPhase::Optimizer {
            scaler.multiply_kernel_work(program, item, ratio);
        }
    }
    true
}

/// Adds the edit to the trace's list of edits.
fn record_replica_edit_in_trace(trace: &[u8], replicas: u32) -> Result<Vec<u8>, TraceError> {
    let mut program = EditableRankProgram::read_program(trace)?;
    super::add_edit_to_trace_edit_list(&mut program, &JobEdit::Data(replicas));
    program.encode_as_trace()
}

/// Returns the ranks that reduce gradients with the first rank. The result is empty if the first rank reduces no
/// gradients.
fn replica_ranks_of_first_rank(
    program: &EditableRankProgram<'_>,
    groups: &DeclaredGroups,
    ranks: u32,
) -> Result<Vec<u32>, TraceError> {
    let mut declared = groups.clone();
    for node in &program.raw.nodes {
        if let Some(values) = node.view.groups {
            declared.extend(parse_group_metadata(node.view.id, values)?);
        }
    }
    let mut found: Vec<u32> = Vec::new();
    for i in program.raw.range_of_all_node_indices() {
        if !gradients::is_gradient_reduction(program, i) {
            continue;
        }
        let Op::Collective { group, .. } = program.view_of_node(i).op else {
            continue;
        };
        let name = group.to_text();
        let members = name.and_then(|name| declared.get(&name).cloned());
        let members = members.filter(|members| !members.is_empty());
        let members = members.unwrap_or_else(|| (0..ranks).collect());
        // The largest group is the group of replicas. Smaller groups may serve another purpose: for example, stages may
        // share an embedding.
        if members.len() > found.len() {
            found = members;
        }
    }
    Ok(found)
}

/// Returns the text form of a rank grid with a dimension that consists of the ranks in `members`.
fn format_rank_grid_with_dimension(members: &[u32], ranks: u32) -> Result<String, TraceError> {
    let unknown = || {
        super::refuse_edit(
            format!("the replicas are ranks {members:?}, which are not a line of a grid of ranks"),
            "scale the job with `scale`, which takes the grid from you",
        )
    };
    let [first, others @ ..] = members else {
        return Err(unknown());
    };
    let size = members.len() as u32;
    let stride = others
        .first()
        .map_or(1, |second| second.saturating_sub(*first))
        .max(1);
    let even = members
        .iter()
        .zip(0..)
        .all(|(&member, i)| member == first + i * stride);
    if !even || *first != 0 || !ranks.is_multiple_of(size * stride) {
        return Err(unknown());
    }
    Ok(format!(
        "outer={},dp={size},inner={stride}",
        ranks / (size * stride)
    ))
}

/// Inserts all-reduces of gradients into each step. Returns the number of inserted all-reduces.
fn insert_gradient_all_reduces(
    program: &mut EditableRankProgram<'_>,
    group: &str,
) -> Result<u64, TraceError> {
    let mut added = 0;
    for step in 0..program.steps {
        let found = StepGradientReductions::find_reductions(program, step);
        if found.hooks.is_empty() {
            continue;
        }
        added +=
            gradients::insert_bucket_all_reduces(program, &found, DEFAULT_BUCKET, step, group)?;
    }
    if added == 0 {
        return Err(super::refuse_edit(
            "the job reduces no gradients and no hook of a parameter is captured, so the reductions of replicas \
             are unknown; without them, further ranks would repeat the job and exchange nothing",
            "capture the job with DistributedDataParallel, or generate the job with the degree that you want",
        ));
    }
    Ok(added)
}
