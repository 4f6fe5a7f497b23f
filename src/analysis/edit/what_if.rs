//! Edits captured or generated jobs: changes their batch size, layers, buckets, replicas, stages and so on.
//!
//! A [`JobEdit`] changes the traces of all ranks, and reports how many items it [matched and
//! changed](EditWithEffectCounts). The time of a kernel whose work changes is scaled by the ratio of new to old work
//! (`kernels.rs`). Repeated parts of a program keep the recorded times of the part that they repeat. Edits that cancel
//! each other restore the original bytes.

use chakram_base::bounds;
use chakram_report::edits::EditWithEffectCounts;
use chakram_report::summary::format_thousands;
use chakram_trace::format::file::{
    DecompressedTraceFile, FoundTraces, HashAddressedTraceStore, RankFile, TraceStoredByHash,
};
use chakram_trace::format::groups::DeclaredGroups;
use chakram_trace::format::{TraceError, TraceErrorLocation};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

mod gradients;
mod grammar;
mod kept_records;
mod kernels;
mod layers;
mod program;
mod repeat;
mod replicas;
mod roles;
mod shapes;
mod unedited;
mod width;

pub use grammar::{
    AddedLayersOrScaleFactor, EDITS, HiddenSizeChange, JobEdit, PipelinePassOrder, ScaleFactor,
};
pub use program::TrainingStepPhase;
pub use roles::AbsentRankModelRule;

use gradients::CollectiveTimesPerKib;
use kept_records::OriginalRecordsToRestore;
use kernels::{BatchSequenceHiddenFactors, KernelWorkAndTimeScaler};
use layers::{BucketLimitAndLayerBytes, JobRepeatedLayerLabels};
use program::{EditableRankProgram, NewAttributeValueOrRemoval};
use repeat::{NextStageRanksAndPassOrder, StageCountToPipelineEnd};

/// Numbers of items that an edit matched and changed, on one rank or on all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct MatchedAndChangedItemCounts {
    matched: u64,
    changed: u64,
    added: u64,
    removed: u64,
    /// Number of kernels scaled by a line that was fitted to kernels of the same name.
    by_line: u64,
    without_shapes: u64,
    /// Number of kernels that process parameters, plus the number of parameter transfers. Their work is assumed to be
    /// proportional to the total number of parameters.
    by_weights: u64,
    /// Number of added ranks that copy captured ranks.
    completed: u64,
    /// Number of kernels without shapes; counted only if the edit changes the hidden size.
    without_widths: u64,
    notes: BTreeSet<String>,
}

impl MatchedAndChangedItemCounts {
    /// Returns notes about the edit: how it computed new times, and what remains unknown.
    fn list_edit_notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.notes.iter().cloned().collect();
        if self.by_line > 0 {
            notes.push(format!(
                "the time of a call by a line through kernels of its name for {}, otherwise as the shortest kernel",
                format_thousands(self.by_line)
            ));
        }
        let of_shapes = [
            (
                self.without_shapes,
                "without shapes, which grow as the tokens",
            ),
            (
                self.without_widths,
                "without shapes, which grow as the hidden size, and their FLOPs as its square",
            ),
            (
                self.by_weights,
                "on parameters without shapes, which grow as all parameters together",
            ),
        ];
        let of_shapes = of_shapes.iter().filter(|(count, _)| *count > 0);
        notes.extend(of_shapes.map(|(count, what)| format!("{} {what}", format_thousands(*count))));
        notes
    }

    fn add_counts(&mut self, other: &Self) {
        self.by_line += other.by_line;
        self.without_shapes += other.without_shapes;
        self.by_weights += other.by_weights;
        self.completed += other.completed;
        self.without_widths += other.without_widths;
        self.matched += other.matched;
        self.changed += other.changed;
        self.added += other.added;
        self.removed += other.removed;
        self.notes.extend(other.notes.iter().cloned());
    }
}

/// An edited job.
#[derive(Debug)]
pub struct EditedJob {
    /// The edited traces, in memory.
    pub found: FoundTraces,
    /// The groups that are declared outside the traces.
    pub groups: DeclaredGroups,
    /// One row per edit, in order of application.
    pub rows: Vec<EditWithEffectCounts>,
    /// Number of added ranks that copy captured ranks of the same role.
    pub completed: u64,
}

/// The edited traces, keyed by their hashes.
struct EditedTracesByOwnHash(BTreeMap<[u8; 32], Vec<u8>>);

impl HashAddressedTraceStore for EditedTracesByOwnHash {
    fn read_by_hash(&self, hash: &[u8; 32]) -> Result<Vec<u8>, TraceError> {
        Ok(self.0.get(hash).cloned().unwrap_or_default())
    }
}

fn refuse_edit(found: impl Into<String>, hint: &str) -> TraceError {
    TraceError::invalid_at(TraceErrorLocation::default(), found, hint)
}

/// Fails if `times` copies of `items` nodes need more than the available memory.
fn check_memory_for_copies(items: usize, times: u64) -> Result<(), TraceError> {
    let nodes = (items as u64).saturating_mul(times);
    let asked = format!("an edited trace with {nodes} additional nodes");
    // Assume 1,024 bytes per copied node: these cover the node with its dependencies, its trace record, and its node in
    // the graph.
    let fits = bounds::check_items_fit_memory(asked, nodes, 1024, "a smaller number");
    fits.map_err(|error| refuse_edit(error.to_string(), "a smaller number"))
}

/// Returns the unit of the counts in an edit's [`EditWithEffectCounts`], such as kernels or layers.
fn unit_of_edit_counts(edit: &JobEdit) -> &'static str {
    match edit {
        JobEdit::Batch(_) | JobEdit::Sequence(_) => {
            "kernels and transfers of forward and backward passes"
        }
        JobEdit::Hidden(_) => "kernels and transfers",
        JobEdit::Layers(_) => "repeated layers of passes",
        JobEdit::Accumulate(_) => "steps",
        JobEdit::MicroBatches(_) => "micro-batches of ranks",
        JobEdit::Data(_) | JobEdit::Pipeline(_) | JobEdit::Ranks(_) => "ranks",
        JobEdit::Bucket(_) => "buckets",
        JobEdit::Reshard(_) => "gathers of parameters",
        JobEdit::Overlap(_) => "reductions of gradients",
        JobEdit::Schedule(_) => "passes of micro-batches",
        JobEdit::Delay { .. } => "steps of ranks",
    }
}

/// Applies `edits` to the traces of `found`. `groups` contains the groups that are declared outside the traces.
/// `choice` selects which captured rank an added rank copies.
///
/// # Errors
///
/// Fails if a replay would reject a trace, if the edit finds nothing to change, or if its result is unknown.
pub fn edit_job(
    found: &FoundTraces,
    edits: &[JobEdit],
    groups: &DeclaredGroups,
    choice: AbsentRankModelRule,
) -> Result<EditedJob, TraceError> {
    let mut rates = CollectiveTimesPerKib::default();
    let mut stages = NextStageRanksAndPassOrder::default();
    let read = |file: &RankFile| DecompressedTraceFile::open_verified(file);
    let mut sizes = 0_u64;
    let mut traces: Vec<(u32, Arc<Vec<u8>>)> = Vec::new();
    let mut known: BTreeMap<[u8; 32], Arc<Vec<u8>>> = BTreeMap::new();
    for file in &found.files {
        let contents = read(file)?;
        let hash = *blake3::hash(contents.as_slice()).as_bytes();
        let program = EditableRankProgram::read_program(contents.as_slice())
            .map_err(|e| contents.locate_error_in_original_file(e))?;
        rates.learn_rates(&program);
        stages.learn_rank(file.rank, &program);
        let bytes = known.entry(hash).or_insert_with(|| {
            sizes += contents.as_slice().len() as u64;
            Arc::new(contents.as_slice().to_vec())
        });
        traces.push((file.rank, Arc::clone(bytes)));
    }
    bounds::check_items_fit_memory(
        "an edited job".to_owned(),
        sizes,
        4,
        "a job with fewer distinct traces",
    )
    .map_err(|error| refuse_edit(error.to_string(), "edit fewer ranks"))?;
    let mut groups = groups.clone();
    let (mut rows, mut completed) = (Vec::new(), 0);
    let mut left = merge_edits_of_same_kind(edits)?.into_iter().peekable();
    while let Some(edit) = left.next() {
        let mut counts = MatchedAndChangedItemCounts::default();
        if let JobEdit::Data(replicas) = edit {
            let (new, scaled) =
                replicas::scale_replicas(traces, &groups, replicas, choice, &mut counts)?;
            (traces, groups) = (new, scaled);
        } else if let JobEdit::Pipeline(number) = edit {
            (traces, groups) =
                roles::change_stage_count(traces, &groups, number, choice, &mut counts)?;
        } else if let JobEdit::Ranks(ranks) = edit {
            (traces, groups) =
                roles::derive_missing_ranks(traces, &groups, Some(ranks), choice, &mut counts)?;
        } else {
            let mut layers = JobRepeatedLayerLabels::default();
            if let JobEdit::Layers(change) = edit {
                let count = traces
                    .iter()
                    .map(|(rank, _)| stages.stage_count_to_pipeline_end(*rank).stages)
                    .max();
                let mut seen = BTreeSet::new();
                for (rank, trace) in &traces {
                    if seen.insert(*blake3::hash(trace).as_bytes()) {
                        let learnt = layers.learn_rank(
                            &EditableRankProgram::read_program(trace)?,
                            count.unwrap_or(1),
                            change,
                        );
                        learnt.map_err(|error| add_file_path_to_error(error, *rank, found))?;
                    }
                }
            }
            let before = match edit {
                JobEdit::Layers(_) => traces.clone(),
                _ => Vec::new(),
            };
            // Ranks with equal traces get equal results, so edit each distinct trace only once, unless only one rank is
            // edited.
            let mut done: BTreeMap<[u8; 32], (Arc<Vec<u8>>, MatchedAndChangedItemCounts)> =
                BTreeMap::new();
            for (rank, trace) in &mut traces {
                if let JobEdit::Delay {
                    rank: Some(one), ..
                } = edit
                    && one != *rank
                {
                    continue;
                }
                // The trace's hash suffices as a key: ranks of different stages send to different peers, so their
                // traces differ.
                let hash = *blake3::hash(trace).as_bytes();
                let (new, own) = match done.get(&hash) {
                    Some(known) => known.clone(),
                    None => {
                        let (new, own) = edit_rank(
                            trace,
                            &edit,
                            &rates,
                            stages.stage_count_to_pipeline_end(*rank),
                            &layers,
                        )
                        .map_err(|error| add_file_path_to_error(error, *rank, found))?;
                        done.insert(hash, (Arc::new(new), own));
                        done[&hash].clone()
                    }
                };
                *trace = new;
                counts.add_counts(&own);
            }
            store_records_replaced_by_layer_edit(&before, &mut traces, &stages)?;
        }
        if counts.matched == 0 {
            return Err(refuse_edit(
                format!(
                    "`{edit}` finds nothing to change: no {}",
                    unit_of_edit_counts(&edit)
                ),
                "list the nodes of the job with `inspect`",
            ));
        }
        // The next edit may need the stages of added ranks, so determine the stages again.
        let adds_ranks = matches!(
            edit,
            JobEdit::Data(_) | JobEdit::Pipeline(_) | JobEdit::Ranks(_)
        );
        if adds_ranks && left.peek().is_some() {
            stages = NextStageRanksAndPassOrder::default();
            for (rank, trace) in &traces {
                stages.learn_rank(*rank, &EditableRankProgram::read_program(trace)?);
            }
        }
        completed += counts.completed;
        rows.push(EditWithEffectCounts {
            edit: edit.to_string(),
            counts: unit_of_edit_counts(&edit).to_owned(),
            matched: counts.matched,
            changed: counts.changed,
            added: counts.added,
            removed: counts.removed,
            notes: counts.list_edit_notes(),
        });
    }
    let mut store = BTreeMap::new();
    let mut files = Vec::new();
    for (rank, trace) in traces {
        let hash = *blake3::hash(&trace).as_bytes();
        let path = found.files.iter().find(|file| file.rank == rank);
        let path = path.or(found.files.first()).map(|file| file.path.clone());
        files.push((RankFile::new(rank, path.unwrap_or_default()), hash));
        store.entry(hash).or_insert_with(|| Vec::clone(&trace));
    }
    let store: Arc<dyn HashAddressedTraceStore> = Arc::new(EditedTracesByOwnHash(store));
    let files = files.into_iter().map(|(file, hash)| RankFile {
        stored: Some(TraceStoredByHash::new(Arc::clone(&store), hash)),
        ..file
    });
    Ok(EditedJob {
        found: FoundTraces {
            files: files.collect(),
            stream: None,
            ..found.clone()
        },
        groups,
        rows,
        completed,
    })
}

/// Stores in `traces` the records that a layer edit replaced, so that a later edit can restore them. For example, a
/// layer edit divides gradients into new buckets, which replaces the recorded reductions. Does nothing if an earlier
/// edit had already changed the traces in `before`. To find the replaced records, it applies the inverse edit and
/// compares the result with `before`.
fn store_records_replaced_by_layer_edit(
    before: &[(u32, Arc<Vec<u8>>)],
    traces: &mut [(u32, Arc<Vec<u8>>)],
    stages: &NextStageRanksAndPassOrder,
) -> Result<(), TraceError> {
    let (mut rates, mut layers) = (
        CollectiveTimesPerKib::default(),
        JobRepeatedLayerLabels::default(),
    );
    let mut inverse = None;
    let count = traces
        .iter()
        .map(|(rank, _)| stages.stage_count_to_pipeline_end(*rank).stages)
        .max();
    for ((_, old), (_, new)) in before.iter().zip(traces.iter()) {
        let (old, new) = (
            EditableRankProgram::read_program(old)?,
            EditableRankProgram::read_program(new)?,
        );
        let by = noted_layer_growth(&new).filter(|by| *by > 0);
        let (None, false, Some(by)) = (&old.earlier, old.has_layers, by) else {
            return Ok(());
        };
        let change = AddedLayersOrScaleFactor::By(-by);
        rates.learn_rates(&new);
        // If there is no inverse edit, nothing can be restored.
        if layers.learn_rank(&new, count.unwrap_or(1), change).is_err() {
            return Ok(());
        }
        inverse = Some(JobEdit::Layers(change));
    }
    let Some(inverse) = inverse else {
        return Ok(());
    };
    for ((rank, old), (_, new)) in before.iter().zip(traces) {
        let again = edit_rank(
            new,
            &inverse,
            &rates,
            stages.stage_count_to_pipeline_end(*rank),
            &layers,
        );
        let Ok((again, _)) = again else {
            return Ok(());
        };
        if let Some(kept) =
            OriginalRecordsToRestore::find_records_changed_by_undone_edit(old, &again)?
                .filter(|kept| !kept.is_empty())
        {
            let mut program = EditableRankProgram::read_program(new)?;
            program.keeps = Some(kept.to_text());
            let written = program.encode_as_trace()?;
            *new = Arc::new(written);
        }
    }
    Ok(())
}

/// Returns the number of layers that earlier edits added, as noted in the trace.
fn noted_layer_growth(program: &EditableRankProgram<'_>) -> Option<i64> {
    let mut words = program.earlier.as_deref()?.split_ascii_whitespace();
    words.find_map(|word| match word.parse() {
        Ok(JobEdit::Layers(AddedLayersOrScaleFactor::By(by))) => Some(by),
        _ => None,
    })
}

/// Adds the path of the rank's file to an error.
fn add_file_path_to_error(error: TraceError, rank: u32, found: &FoundTraces) -> TraceError {
    match found.files.iter().find(|file| file.rank == rank) {
        Some(file) => error.in_file(&file.path),
        None => error,
    }
}

/// Returns the edits in their order, combining edits of the same kind into one: factors are multiplied, layers are
/// added.
fn merge_edits_of_same_kind(edits: &[JobEdit]) -> Result<Vec<JobEdit>, TraceError> {
    let mut all: Vec<JobEdit> = Vec::new();
    for edit in edits {
        let too_large = || {
            refuse_edit(
                format!("with `{edit}` the product of all factors is too large"),
                "smaller factors",
            )
        };
        let mut is_joined = false;
        for known in &mut all {
            match (known, *edit) {
                (JobEdit::Batch(known), JobEdit::Batch(by))
                | (JobEdit::Sequence(known), JobEdit::Sequence(by))
                | (
                    JobEdit::Hidden(HiddenSizeChange::Times(known)),
                    JobEdit::Hidden(HiddenSizeChange::Times(by)),
                )
                | (
                    JobEdit::Layers(AddedLayersOrScaleFactor::Times(known)),
                    JobEdit::Layers(AddedLayersOrScaleFactor::Times(by)),
                ) => {
                    *known = known
                        .multiply_factors_if_representable(by)
                        .ok_or_else(too_large)?
                }
                (
                    JobEdit::Layers(AddedLayersOrScaleFactor::By(known)),
                    JobEdit::Layers(AddedLayersOrScaleFactor::By(by)),
                ) => {
                    *known = known.saturating_add(by);
                }
                (JobEdit::Data(known), JobEdit::Data(replicas)) => *known = replicas,
                _ => continue,
            }
            is_joined = true;
            break;
        }
        if !is_joined {
            all.push(*edit);
        }
    }
    Ok(all)
}

/// Applies one edit to a rank's trace.
fn edit_rank(
    contents: &[u8],
    edit: &JobEdit,
    rates: &CollectiveTimesPerKib,
    place: StageCountToPipelineEnd,
    layers: &JobRepeatedLayerLabels,
) -> Result<(Vec<u8>, MatchedAndChangedItemCounts), TraceError> {
    let mut program = EditableRankProgram::read_program(contents)?;
    let counts = match *edit {
        JobEdit::Batch(batch) => scale_original_sizes_by_all_factors(
            &mut program,
            BatchSequenceHiddenFactors {
                batch,
                ..BatchSequenceHiddenFactors::NONE
            },
        )?,
        JobEdit::Sequence(sequence) => scale_original_sizes_by_all_factors(
            &mut program,
            BatchSequenceHiddenFactors {
                sequence,
                ..BatchSequenceHiddenFactors::NONE
            },
        )?,
        JobEdit::Hidden(change) => {
            let hidden = KernelWorkAndTimeScaler::new(&program)
                .stored_model_widths()
                .hidden_size_change_to_factor(change)?;
            scale_original_sizes_by_all_factors(
                &mut program,
                BatchSequenceHiddenFactors {
                    hidden,
                    ..BatchSequenceHiddenFactors::NONE
                },
            )?
        }
        JobEdit::Layers(change) => {
            let (counts, changed) =
                layers::change_layer_count_on_rank(&mut program, change, layers, rates)?;
            add_edit_to_trace_edit_list(
                &mut program,
                &JobEdit::Layers(AddedLayersOrScaleFactor::By(changed.by)),
            );
            note_bucket_sizes(&mut program, changed.buckets);
            counts
        }
        JobEdit::Accumulate(times) => repeat::repeat_passes_before_optimizer(&mut program, times)?,
        JobEdit::MicroBatches(times) => {
            let scaler = KernelWorkAndTimeScaler::new(&program);
            repeat::divide_micro_batches_into_smaller(&mut program, times, place, &scaler)?
        }
        JobEdit::Bucket(limit) => gradients::regroup_gradients(&mut program, limit, rates, None)?,
        JobEdit::Reshard(_) => gradients::keep_parameters_gathered(&mut program),
        JobEdit::Overlap(_) => gradients::move_reductions_to_end(&mut program),
        JobEdit::Schedule(order) => {
            repeat::reorder_micro_batch_passes_of_rank(&mut program, order, place.stages)?
        }
        JobEdit::Delay { span, at, .. } => delay_phase_in_steps(&mut program, span.0 / 1000, at),
        JobEdit::Data(_) | JobEdit::Pipeline(_) | JobEdit::Ranks(_) => {
            MatchedAndChangedItemCounts::default()
        }
    };
    let is_noted = matches!(
        edit,
        JobEdit::Batch(_) | JobEdit::Sequence(_) | JobEdit::Hidden(_) | JobEdit::Layers(_)
    );
    if !is_noted && (counts.changed > 0 || counts.added > 0) {
        add_edit_to_trace_edit_list(&mut program, edit);
    }
    Ok((program.encode_as_trace()?, counts))
}

/// Adds an edit to the trace's list of edits. Layers that this edit adds are summed with the layers of earlier edits.
fn add_edit_to_trace_edit_list(program: &mut EditableRankProgram<'_>, edit: &JobEdit) {
    let mut words = Vec::new();
    let mut layers = match edit {
        JobEdit::Layers(AddedLayersOrScaleFactor::By(by)) => Some(*by),
        _ => None,
    };
    for word in program
        .earlier
        .as_deref()
        .unwrap_or_default()
        .split_ascii_whitespace()
    {
        match (word.parse(), &mut layers) {
            (Ok(JobEdit::Layers(AddedLayersOrScaleFactor::By(by))), Some(sum)) => *sum += by,
            _ => words.push(word.to_owned()),
        }
    }
    match layers {
        Some(0) => {}
        Some(by) => words.push(JobEdit::Layers(AddedLayersOrScaleFactor::By(by)).to_string()),
        None => words.push(edit.to_string()),
    }
    program.scaled = (!words.is_empty()).then(|| words.join(" "));
}

/// Stores the bucket sizes in the trace, because they cannot be derived from a trace with fewer layers.
fn note_bucket_sizes(
    program: &mut EditableRankProgram<'_>,
    buckets: Option<BucketLimitAndLayerBytes>,
) {
    let edits = program.scaled.clone().unwrap_or_default();
    let words = || edits.split_ascii_whitespace();
    let edited = words().any(|word| matches!(word.parse(), Ok(JobEdit::Layers(_))));
    let is_known = words().any(|word| word.starts_with(layers::BUCKETS));
    let kept = words().filter(|word| edited || !word.starts_with(layers::BUCKETS));
    let mut noted: Vec<String> = kept.map(str::to_owned).collect();
    noted.extend(
        buckets
            .filter(|_| edited && !is_known)
            .map(|buckets| buckets.to_string()),
    );
    program.scaled = (!noted.is_empty()).then(|| noted.join(" "));
}

/// Multiplies the factors by those of earlier edits, and scales the nodes' original values by the products.
fn scale_original_sizes_by_all_factors(
    program: &mut EditableRankProgram<'_>,
    by: BatchSequenceHiddenFactors,
) -> Result<MatchedAndChangedItemCounts, TraceError> {
    let too_large = || {
        refuse_edit(
            "the product of the factors of this edit and of earlier edits in the file is too large",
            "edit the capture itself",
        )
    };
    let earlier = scaling_factors_of_earlier_edits(program.earlier.as_deref());
    let all = BatchSequenceHiddenFactors {
        batch: earlier
            .batch
            .multiply_factors_if_representable(by.batch)
            .ok_or_else(too_large)?,
        sequence: earlier
            .sequence
            .multiply_factors_if_representable(by.sequence)
            .ok_or_else(too_large)?,
        hidden: earlier
            .hidden
            .multiply_factors_if_representable(by.hidden)
            .ok_or_else(too_large)?,
    };
    let scaler = KernelWorkAndTimeScaler::new(program);
    scaler
        .stored_model_widths()
        .check_whole_widths(all.hidden)?;
    let found = scaler.scale_selected_nodes(program, all, &|_| true);
    let earlier_words = program.earlier.clone().unwrap_or_default();
    let others = earlier_words.split_ascii_whitespace().filter(|word| {
        !matches!(
            word.parse(),
            Ok(JobEdit::Batch(_) | JobEdit::Sequence(_) | JobEdit::Hidden(_))
        )
    });
    let mut edits: Vec<String> = others.map(str::to_owned).collect();
    for (edit, factor) in [
        (JobEdit::Batch(all.batch), all.batch),
        (JobEdit::Sequence(all.sequence), all.sequence),
        (
            JobEdit::Hidden(HiddenSizeChange::Times(all.hidden)),
            all.hidden,
        ),
    ] {
        if factor != ScaleFactor::ONE {
            edits.push(edit.to_string());
        }
    }
    program.scaled = (!edits.is_empty()).then(|| edits.join(" "));
    if all == earlier {
        program
            .items
            .iter_mut()
            .for_each(|item| item.changes.clear());
    }
    Ok(MatchedAndChangedItemCounts {
        matched: found.matched,
        changed: found.changed,
        by_line: found.by_line,
        without_shapes: if by.hidden == ScaleFactor::ONE {
            found.without_shapes
        } else {
            0
        },
        without_widths: if by.hidden == ScaleFactor::ONE {
            0
        } else {
            found.without_shapes
        },
        by_weights: found.by_weights,
        ..MatchedAndChangedItemCounts::default()
    })
}

/// Returns the factors of earlier edits, as noted in the trace's list of edits.
fn scaling_factors_of_earlier_edits(text: Option<&str>) -> BatchSequenceHiddenFactors {
    let mut scaling = BatchSequenceHiddenFactors::NONE;
    for word in text.unwrap_or_default().split_ascii_whitespace() {
        match word.parse() {
            Ok(JobEdit::Batch(batch)) => scaling.batch = batch,
            Ok(JobEdit::Sequence(sequence)) => scaling.sequence = sequence,
            Ok(JobEdit::Hidden(HiddenSizeChange::Times(hidden))) => scaling.hidden = hidden,
            _ => {}
        }
    }
    scaling
}

/// In each step, adds host time before the first node of a phase.
fn delay_phase_in_steps(
    program: &mut EditableRankProgram<'_>,
    ns: u64,
    at: TrainingStepPhase,
) -> MatchedAndChangedItemCounts {
    let mut counts = MatchedAndChangedItemCounts::default();
    for step in 0..program.steps {
        let mut items = program.order.iter().copied();
        let first = items.find(|&item| {
            let facts = program.facts_of_item(item);
            facts.step == Some(step) && facts.phase == at
        });
        let Some(item) = first else { continue };
        let before = program.view_of_item(item).delay.0 / 1000;
        let changes = &mut program.items[item as usize].changes;
        changes.insert("delay_ns", NewAttributeValueOrRemoval::Count(before + ns));
        counts.matched += 1;
        counts.changed += 1;
    }
    counts
}
