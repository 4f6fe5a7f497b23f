//! Ranks without a trace, made of ranks that have the same role.
//!
//! Ranks lie in a grid: along the *stages* of a pipeline, as far apart as forward passes send, along *replicas*, as far
//! apart as the ranks that reduce gradients together, and at other positions, such as shards of tensors. With the coordinates
//! of ranks, an absent rank m does what its model t does, a rank of the same stage, if possible at the same other
//! positions; a middle stage may be modelled by another, whose passes of 1F1B are put into the order of the stage. Then:
//!
//! - a message from t goes to the rank as far from m as it went from t, with the tag that grows from stage to stage as t's do;
//! - a group of t has, along each dimension, the same coordinates if they are those of m too, and else those of the part
//!   of the grid in which m is: the one coordinate, or the block of as many.
//!
//! The completed job is checked: what one rank sends another receives, and members of a group call as often.

use super::EditCounts;
use super::gradients;
use super::grammar::{JobEdit, PassOrder};
use super::program::Program;
use super::repeat;
use crate::edit::attributes;
use chakram_base::bounds;
use chakram_base::ids::MAX_NPUS;
use chakram_trace::format::attr::AttrView;
use chakram_trace::format::encoder::{self, MessageEncoder};
use chakram_trace::format::groups::{DeclaredGroups, change_metadata, parse_metadata};
use chakram_trace::format::rewrite::{AttributeEdit, RecordEdit};
use chakram_trace::format::scan::{self, DependencyVisitor};
use chakram_trace::format::split_sizes::{RECEIVE_BYTES, SEND_BYTES};
use chakram_trace::format::wire::FrameCursor;
use chakram_trace::format::{GroupName, Op, TraceError};
use chakram_trace::workload::shortened;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Traces of a job by rank.
pub(super) type Traces = Vec<(u32, Arc<Vec<u8>>)>;

/// Place of a stage in its pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StagePlace {
    Only,
    First,
    Middle,
    Last,
}

impl StagePlace {
    fn of(stage: u32, stages: u32) -> Self {
        match (stage, stages) {
            (_, 1) => Self::Only,
            (0, _) => Self::First,
            _ if stage + 1 == stages => Self::Last,
            _ => Self::Middle,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Only => "only",
            Self::First => "first",
            Self::Middle => "middle",
            Self::Last => "last",
        }
    }
}

/// Rank with a trace.
struct CapturedRank {
    rank: u32,
    /// Groups that its trace declares.
    own: DeclaredGroups,
    place: StagePlace,
    /// Rank of the next stage, and all ranks with which it exchanges messages.
    next: Option<u32>,
    peers: BTreeSet<u32>,
    /// Groups in which it reduces gradients, as (distance, members).
    reductions: BTreeSet<(u32, u32)>,
    /// Time of its kernels, ps.
    kernels: u64,
    world: Option<u32>,
}

/// Dimension of the grid: distance of neighbours, and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GridDimension {
    stride: u32,
    size: u32,
}

impl GridDimension {
    fn coordinate(self, rank: u32) -> u32 {
        rank / self.stride % self.size
    }
}

/// Grid of ranks, the innermost dimension first.
#[derive(Debug, PartialEq, Eq)]
struct RoleGrid {
    dimensions: Vec<GridDimension>,
    /// Indices of the dimensions along which stages and replicas lie.
    stages: Option<usize>,
    replicas: Option<usize>,
}

struct NoDependencies;

impl DependencyVisitor for NoDependencies {
    fn data(&mut self, _: u64) -> Result<(), TraceError> {
        Ok(())
    }

    fn control(&mut self, _: u64) -> Result<(), TraceError> {
        Ok(())
    }
}

fn named(group: GroupName<'_>) -> Option<String> {
    match group {
        GroupName::World => None,
        GroupName::Number(number) => Some(number.to_string()),
        GroupName::Text(text) => Some(text.to_owned()),
    }
}

/// Returns the distance of the members of an even list, and their number.
fn progression(members: &[u32]) -> Option<(u32, u32)> {
    let (first, second) = (members.first()?, members.get(1)?);
    let stride = second.checked_sub(*first).filter(|stride| *stride > 0)?;
    let even = members
        .windows(2)
        .all(|pair| pair[0].checked_add(stride) == Some(pair[1]));
    even.then_some((stride, members.len() as u32))
}

impl CapturedRank {
    fn read(rank: u32, trace: &[u8], declared: &DeclaredGroups) -> Result<Self, TraceError> {
        let program = Program::read(trace)?;
        let mut own = DeclaredGroups::new();
        for node in &program.raw.nodes {
            if let Some(values) = node.view.groups {
                own.extend(parse_metadata(node.view.id, values)?);
            }
        }
        let mut peers = BTreeSet::new();
        let (mut reductions, mut kernels) = (BTreeSet::new(), 0_u64);
        let world = program.raw.metadata.world_size;
        for i in program.raw.all() {
            match program.view(i).op {
                // Stages send forward to higher ranks, and backward to lower ones.
                Op::Message { peer, .. } => {
                    peers.insert(peer);
                }
                Op::Compute { .. } => kernels = kernels.saturating_add(program.view(i).recorded.0),
                Op::Collective { group, .. } if gradients::is_reduction(&program, i) => {
                    let name = named(group);
                    let members = name.and_then(|name| declared.get(&name).or(own.get(&name)));
                    match members.filter(|members| !members.is_empty()) {
                        Some(members) => reductions.extend(progression(members)),
                        None => reductions.extend(world.map(|world| (1, world))),
                    }
                }
                _ => {}
            }
        }
        let next = peers.range(rank..).next().copied();
        let place = match (next.is_some(), peers.range(..rank).next().is_some()) {
            (false, false) => StagePlace::Only,
            (true, false) => StagePlace::First,
            (true, true) => StagePlace::Middle,
            (false, true) => StagePlace::Last,
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

impl RoleGrid {
    /// Finds the grid of `world` ranks by what the captured ones exchange.
    fn find(captured: &[CapturedRank], world: u32) -> Result<Self, TraceError> {
        let unknown = |why: &str| {
            super::refused(
                format!("the roles of its ranks are unknown: {why}"),
                "capture all ranks, or generate the job",
            )
        };
        let mut known: BTreeMap<u32, (Option<u32>, bool)> = BTreeMap::new();
        let mut shared: Option<BTreeSet<(u32, u32)>> = None;
        for one in captured {
            shared = Some(match shared {
                None => one.reductions.clone(),
                Some(shared) => shared.intersection(&one.reductions).copied().collect(),
            });
        }
        // Of several, such as embeddings that two stages share, the largest.
        let largest = shared
            .unwrap_or_default()
            .into_iter()
            .max_by_key(|&(_, size)| size);
        if largest.is_none() && captured.iter().any(|one| !one.reductions.is_empty()) {
            return Err(unknown(
                "they reduce gradients in groups of different forms",
            ));
        }
        if let Some((stride, size)) = largest {
            known.insert(stride, (Some(size), false));
        }
        let mut step = None;
        for one in captured {
            let Some(next) = one.next else { continue };
            let own = next - one.rank;
            if *step.get_or_insert(own) != own {
                return Err(unknown(
                    "messages to the next stage go to ranks of different distances",
                ));
            }
        }
        let is_far = |one: &CapturedRank| {
            let mut peers = one.peers.iter();
            peers.any(|peer| Some(peer.abs_diff(one.rank)) != step)
        };
        if step.is_some() && captured.iter().any(is_far) {
            return Err(unknown(
                "messages go to other stages than the next, as those of stages in several parts do",
            ));
        }
        let last = captured.iter().find(|one| one.place == StagePlace::Last);
        if step.is_none() && last.is_some() {
            return Err(missing(StagePlace::First));
        }
        if let Some(stride) = step
            && known.insert(stride, (None, true)).is_some()
        {
            return Err(unknown("stages and replicas lie along the same ranks"));
        }
        let next_strides: Vec<u32> = known.keys().copied().skip(1).chain([world]).collect();
        let mut this = Self {
            dimensions: Vec::new(),
            stages: None,
            replicas: None,
        };
        let mut inner = 1;
        let uneven = || unknown("they are no grid of ranks");
        for ((stride, (size, is_stages)), outer) in known.into_iter().zip(next_strides) {
            if !stride.is_multiple_of(inner) {
                return Err(uneven());
            }
            if stride > inner {
                let size = stride / inner;
                this.dimensions.push(GridDimension {
                    stride: inner,
                    size,
                });
            }
            let size = match (size, last) {
                (Some(size), _) => size,
                (None, Some(last)) => last.rank / stride % (outer / stride).max(1) + 1,
                (None, None) => return Err(missing(StagePlace::Last)),
            };
            let index = this.dimensions.len();
            if is_stages {
                this.stages = Some(index);
            } else {
                this.replicas = Some(index);
            }
            this.dimensions.push(GridDimension { stride, size });
            inner = stride.checked_mul(size).ok_or_else(uneven)?;
        }
        if !world.is_multiple_of(inner) {
            return Err(uneven());
        }
        if world > inner {
            let size = world / inner;
            this.dimensions.push(GridDimension {
                stride: inner,
                size,
            });
        }
        for one in captured {
            if this.place(one.rank) != one.place {
                return Err(unknown(&format!(
                    "rank {} is of the {} stage by its place among {world} ranks, and exchanges what the {} stage does",
                    one.rank,
                    this.place(one.rank).name(),
                    one.place.name()
                )));
            }
        }
        Ok(this)
    }

    fn stage(&self, rank: u32) -> u32 {
        self.stages
            .map_or(0, |at| self.dimensions[at].coordinate(rank))
    }

    fn stage_count(&self) -> u32 {
        self.stages.map_or(1, |at| self.dimensions[at].size)
    }

    fn place(&self, rank: u32) -> StagePlace {
        StagePlace::of(self.stage(rank), self.stage_count())
    }

    /// Returns whether two ranks differ in their stage and replica alone.
    fn has_same_position(&self, a: u32, b: u32) -> bool {
        self.dimensions.iter().enumerate().all(|(at, dimension)| {
            [self.stages, self.replicas].contains(&Some(at))
                || dimension.coordinate(a) == dimension.coordinate(b)
        })
    }

    /// Returns the rank as far from `to` as `peer` is from `from`; `None` beyond the ends of a pipeline.
    fn moved_peer(&self, peer: u32, from: u32, to: u32) -> Option<u32> {
        let mut moved = 0;
        for (at, dimension) in self.dimensions.iter().enumerate() {
            let [peer, from, to] =
                [peer, from, to].map(|rank| i64::from(dimension.coordinate(rank)));
            let size = i64::from(dimension.size);
            let x = to + peer - from;
            let x = match self.stages == Some(at) {
                true => Some(x).filter(|x| (0..size).contains(x))?,
                false => x.rem_euclid(size),
            };
            moved += x as u32 * dimension.stride;
        }
        Some(moved)
    }

    /// Returns the group that `to` has where `from` has one of `members`.
    fn moved_group(&self, members: &[u32], from: u32, to: u32) -> Option<Vec<u32>> {
        let mut moved = vec![0; members.len()];
        for dimension in &self.dimensions {
            let xs: BTreeSet<u32> = members
                .iter()
                .map(|&rank| dimension.coordinate(rank))
                .collect();
            let (old, new) = (dimension.coordinate(from), dimension.coordinate(to));
            let all: Vec<u32> = xs.iter().copied().collect();
            let block = |x: u32| -> Option<u32> {
                let (stride, count) = progression(&all)?;
                let length = stride.checked_mul(count)?;
                let is_aligned = x / length == old / length && x % stride == old % stride;
                let moved = new / length * length + x / stride % count * stride + new % stride;
                (is_aligned && moved < dimension.size).then_some(moved)
            };
            for (rank, &member) in moved.iter_mut().zip(members) {
                let x = dimension.coordinate(member);
                let x = match all.len() {
                    _ if xs.contains(&new) => x,
                    1 => new,
                    _ => block(x)?,
                };
                *rank += x * dimension.stride;
            }
        }
        moved.contains(&to).then_some(moved)
    }
}

fn missing(place: StagePlace) -> TraceError {
    super::refused(
        format!(
            "no captured rank is of the {} stage, so what absent ones do is unknown",
            place.name()
        ),
        "capture a rank of the first, of a middle and of the last stage",
    )
}

/// Names of groups, and of those that absent ranks add.
struct GroupTable<'g> {
    captured: &'g [CapturedRank],
    declared: DeclaredGroups,
    /// Names of groups by their members.
    names: BTreeMap<Vec<u32>, BTreeSet<String>>,
    /// Names that mean different ranks in different traces.
    ambiguous: BTreeSet<String>,
    added: BTreeMap<(Vec<u32>, usize), String>,
    next: u64,
}

impl<'g> GroupTable<'g> {
    fn new(captured: &'g [CapturedRank], declared: &DeclaredGroups) -> Self {
        let mut this = Self {
            captured,
            declared: declared.clone(),
            names: BTreeMap::new(),
            ambiguous: BTreeSet::new(),
            added: BTreeMap::new(),
            next: 1,
        };
        let mut seen: BTreeMap<&String, &Vec<u32>> = BTreeMap::new();
        for (name, members) in declared
            .iter()
            .chain(captured.iter().flat_map(|one| &one.own))
        {
            if seen
                .insert(name, members)
                .is_some_and(|before| before != members)
            {
                this.ambiguous.insert(name.clone());
            }
            this.names
                .entry(members.clone())
                .or_default()
                .insert(name.clone());
            this.next = this.next.max(
                name.parse::<u64>()
                    .map_or(1, |number| number.saturating_add(1)),
            );
        }
        this
    }

    /// Returns the name and the members of the group that `to` has where the captured `from` has `name`.
    fn moved(
        &mut self,
        grid: &RoleGrid,
        name: &str,
        members: &[u32],
        from: u32,
        to: u32,
    ) -> Result<(String, Vec<u32>), TraceError> {
        if members.is_empty() {
            return Ok((name.to_owned(), Vec::new()));
        }
        let Some(moved) = grid.moved_group(members, from, to) else {
            return Err(super::refused(
                format!(
                    "group `{}` of rank {from} cannot be continued for rank {to}: ranks {} are no part of the grid",
                    chakram_trace::format::escape(name),
                    shortened(members.iter().copied())
                ),
                "capture all ranks of such groups",
            ));
        };
        if moved == members {
            return Ok((name.to_owned(), moved));
        }
        let same = self.names.get(members).into_iter().flatten();
        let index = same.take_while(|known| *known != name).count();
        if let Some(known) = self
            .names
            .get(&moved)
            .and_then(|names| names.iter().nth(index))
        {
            return Ok((known.clone(), moved));
        }
        if self.ambiguous.contains(name) && !self.declared.contains_key(name) {
            return Ok((name.to_owned(), moved));
        }
        let key = (moved.clone(), index);
        let next = &mut self.next;
        let new = self.added.entry(key).or_insert_with(|| {
            let number = *next;
            *next += 1;
            match name.parse::<u64>() {
                Ok(_) => number.to_string(),
                Err(_) => format!("{name}.{number}"),
            }
        });
        Ok((new.clone(), moved))
    }

    /// Returns the members of the group that a captured rank calls `name`, and whether they are declared beside traces.
    fn members(&self, captured: usize, name: &str) -> Option<(Vec<u32>, bool)> {
        if let Some(members) = self.declared.get(name) {
            return Some((members.clone(), true));
        }
        Some((self.captured[captured].own.get(name)?.clone(), false))
    }
}

/// Adds the ranks without a trace to `traces`, of `world` in all, or of as many as traces and groups show.
pub(super) fn complete(
    traces: Traces,
    groups: &DeclaredGroups,
    world: Option<u32>,
    counts: &mut EditCounts,
) -> Result<(Traces, DeclaredGroups), TraceError> {
    let mut captured = Vec::with_capacity(traces.len());
    for (rank, trace) in &traces {
        captured.push(CapturedRank::read(*rank, trace, groups)?);
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
        return Err(super::refused(
            match stated {
                Some(_) => format!("ranks={world}: the job has {seen}"),
                None => format!("ranks={world}: its traces and groups name {seen}"),
            },
            "that number; `data` makes more replicas",
        ));
    }
    let absent = world - traces.len() as u32;
    counts.matched += u64::from(world);
    counts.changed += u64::from(absent);
    if absent == 0 {
        return Ok((traces, groups.clone()));
    }
    let grid = RoleGrid::find(&captured, world)?;
    for place in [StagePlace::First, StagePlace::Middle, StagePlace::Last] {
        let stages = grid.stage_count();
        let needed = stages > 1 && (place != StagePlace::Middle || stages > 2);
        if needed && !captured.iter().any(|one| one.place == place) {
            return Err(missing(place));
        }
    }
    let largest = traces
        .iter()
        .map(|(_, trace)| trace.len() as u64)
        .max()
        .unwrap_or(0);
    bounds::check(
        format!("{absent} more traces"),
        largest.saturating_mul(u64::from(absent)),
        1,
        "fewer ranks",
    )
    .map_err(|error| super::refused(error.to_string(), "fewer ranks"))?;
    // The last stage alone tells 1F1B from GPipe, whatever the number of micro-batches.
    let last = captured
        .iter()
        .position(|one| one.place == StagePlace::Last);
    let order = last
        .map(|at| Ok::<_, TraceError>(repeat::warm_up_of_passes(&Program::read(&traces[at].1)?)));
    let order = order.transpose()?.flatten();
    let mut table = GroupTable::new(&captured, groups);
    let mut reordered: BTreeMap<(usize, u32), Arc<Vec<u8>>> = BTreeMap::new();
    let mut all = Traces::with_capacity(world as usize);
    let (mut other_positions, mut other_stages) = (0_u64, 0_u64);
    let mut left = traces.iter().peekable();
    for rank in 0..world {
        if let Some((_, trace)) = left.next_if(|(known, _)| *known == rank) {
            all.push((rank, Arc::clone(trace)));
            continue;
        }
        let stage = grid.stage(rank);
        let candidates = captured
            .iter()
            .enumerate()
            .filter(|(_, one)| one.place == grid.place(rank));
        let key = |one: &CapturedRank| {
            (
                grid.stage(one.rank).abs_diff(stage),
                !grid.has_same_position(one.rank, rank),
                one.rank.abs_diff(rank),
            )
        };
        let Some((index, model)) = candidates.min_by_key(|(_, one)| key(one)) else {
            return Err(missing(grid.place(rank)));
        };
        other_positions += u64::from(!grid.has_same_position(model.rank, rank));
        let moves_stage = grid.stage(model.rank) != stage;
        other_stages += u64::from(moves_stage);
        let trace = match reordered.get(&(index, stage)) {
            Some(trace) => Arc::clone(trace),
            None => {
                let mut program = Program::read(&traces[index].1)?;
                if moves_stage {
                    match order {
                        Some(Some((_, 1))) => {
                            let left = grid.stage_count() - stage;
                            repeat::reorder(&mut program, PassOrder::OneForwardOneBackward, left)?;
                        }
                        Some(Some((micro_batches, warm_up))) if warm_up == micro_batches => {}
                        Some(_) => {
                            return Err(super::refused(
                                format!(
                                    "stage {stage} has no captured rank, and micro-batches pass in the order of neither GPipe nor 1F1B"
                                ),
                                "capture a rank of each stage",
                            ));
                        }
                        None => {}
                    }
                }
                super::note_edit(&mut program, &JobEdit::Ranks(world));
                let trace = Arc::new(program.write()?);
                reordered.insert((index, stage), Arc::clone(&trace));
                trace
            }
        };
        let mut writer = RoleWriter {
            grid: &grid,
            table: &mut table,
            model: index,
            from: model.rank,
            to: rank,
        };
        let written = writer.write(&trace)?;
        all.push((rank, Arc::new(written)));
    }
    check_exchanges(&all, &table.declared, world)?;
    note_roles(&captured, &grid, counts);
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
    let shared: BTreeMap<[u8; 32], Arc<Vec<u8>>> = all
        .iter()
        .map(|(_, trace)| (*blake3::hash(trace).as_bytes(), Arc::clone(trace)))
        .collect();
    for (_, trace) in &mut all {
        *trace = Arc::clone(&shared[blake3::hash(trace).as_bytes()]);
    }
    Ok((all, table.declared))
}

/// Notes how far kernels of captured ranks of one role differ, which is what those of absent ranks may.
fn note_roles(captured: &[CapturedRank], grid: &RoleGrid, counts: &mut EditCounts) {
    let mut roles: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for one in captured {
        roles
            .entry(grid.stage(one.rank))
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
            "kernels of absent ranks may take up to {percent:.1} % more or less, as those of captured ranks of one role differ"
        ),
        None => "no role has two captured ranks with times, so how far ranks of one role differ is unknown".to_owned(),
    };
    counts.notes.insert(text);
    counts.notes.insert("collectives with absent members as the machine prices them, or as recorded with captured members".to_owned());
}

/// Writer of the trace of an absent rank.
struct RoleWriter<'w, 'g> {
    grid: &'w RoleGrid,
    table: &'w mut GroupTable<'g>,
    /// Index of the captured rank that it is made of.
    model: usize,
    from: u32,
    to: u32,
}

impl RoleWriter<'_, '_> {
    /// Returns by how much tags of messages down and up the pipeline grow from one stage to the next, where each stage has
    /// tags of its own.
    fn tag_steps(&self, contents: &[u8]) -> Result<[i64; 2], TraceError> {
        // Smallest tag of the messages down and up, of those with the stage before and with the one behind.
        let mut least: [[Option<i64>; 2]; 2] = [[None; 2]; 2];
        let own = self.grid.stage(self.from);
        let mut frames = FrameCursor::new(contents);
        while let Some(record) = frames.next_record()? {
            if record.number == 0 {
                continue;
            }
            let view = scan::node(record, &mut NoDependencies)?;
            if let Op::Message {
                receive, peer, tag, ..
            } = view.op
                && self.grid.stage(peer) != own
            {
                let behind = self.grid.stage(peer) > own;
                let known = &mut least[usize::from(behind == receive)][usize::from(behind)];
                *known = Some(known.map_or(i64::from(tag), |least| least.min(i64::from(tag))));
            }
        }
        Ok(least.map(|[before, behind]| match (before, behind) {
            (Some(before), Some(behind)) => behind - before,
            _ => 0,
        }))
    }

    fn write(&mut self, contents: &[u8]) -> Result<Vec<u8>, TraceError> {
        let stages = i64::from(self.grid.stage(self.to)) - i64::from(self.grid.stage(self.from));
        let tag_steps = match stages {
            0 => [0; 2],
            _ => self.tag_steps(contents)?,
        };
        let mut out = Vec::with_capacity(contents.len());
        let mut message = MessageEncoder::default();
        let mut frames = FrameCursor::new(contents);
        while let Some(record) = frames.next_record()? {
            message.clear();
            if record.number == 0 {
                let edit = RecordEdit {
                    attributes: &[("rank", AttributeEdit::Remove)],
                    ..RecordEdit::default()
                };
                edit.apply(record, &mut message)?;
                message.frame(&mut out);
                continue;
            }
            let view = scan::node(record, &mut NoDependencies)?;
            let values = match view.groups {
                None => None,
                Some(values) => Some(change_metadata(view.id, values, |name, members| {
                    self.table
                        .moved(self.grid, name, members, self.from, self.to)
                        .map(Some)
                })?),
            };
            let mut new_name = String::new();
            let mut sets: Vec<(&str, AttributeEdit<'_>)> = Vec::new();
            match view.op {
                Op::Collective { group, root, .. } => {
                    sets.push((SEND_BYTES, AttributeEdit::Remove));
                    sets.push((RECEIVE_BYTES, AttributeEdit::Remove));
                    let (mut old_members, mut members) = (Vec::new(), Vec::new());
                    if let Some(name) = named(group) {
                        let Some((known, is_declared)) = self.table.members(self.model, &name)
                        else {
                            return Err(super::refused(
                                format!(
                                    "group `{}` is not declared",
                                    chakram_trace::format::escape(&name)
                                ),
                                "pass the groups of the job",
                            ));
                        };
                        let (moved_name, moved) = self
                            .table
                            .moved(self.grid, &name, &known, self.from, self.to)?;
                        if is_declared && !self.table.declared.contains_key(&moved_name) {
                            self.table
                                .declared
                                .insert(moved_name.clone(), moved.clone());
                        }
                        if moved_name != name {
                            new_name = moved_name;
                        }
                        (old_members, members) = (known, moved);
                    }
                    if !new_name.is_empty() {
                        sets.push(("pg_name", AttributeEdit::Text(&new_name)));
                        sets.push(("comm_group", AttributeEdit::Text(&new_name)));
                    }
                    if let Some(root) = root {
                        let place = old_members.iter().position(|&member| member == root);
                        let moved = place
                            .and_then(|place| members.get(place).copied())
                            .unwrap_or(root);
                        sets.push(("comm_root", AttributeEdit::Count(moved.into())));
                    }
                }
                Op::Message {
                    receive, peer, tag, ..
                } => {
                    let behind = self.grid.stage(peer) > self.grid.stage(self.from);
                    let tag = i64::from(tag) + stages * tag_steps[usize::from(behind == receive)];
                    if let Some(tag) = u64::try_from(tag).ok().filter(|_| stages != 0) {
                        sets.push(("comm_tag", AttributeEdit::Count(tag)));
                    }
                    let Some(moved) = self.grid.moved_peer(peer, self.from, self.to) else {
                        return Err(super::refused(
                            format!(
                                "rank {} would exchange messages beyond the ends of the pipeline, as rank {} does with rank {peer}",
                                self.to, self.from
                            ),
                            "capture a rank of each stage",
                        ));
                    };
                    let (far, near) = if receive {
                        ("comm_src", "comm_dst")
                    } else {
                        ("comm_dst", "comm_src")
                    };
                    sets.push((far, AttributeEdit::Count(moved.into())));
                    sets.push((near, AttributeEdit::Count(self.to.into())));
                }
                _ => {}
            }
            if stages != 0 {
                sets.push((
                    "stage",
                    AttributeEdit::Count(self.grid.stage(self.to).into()),
                ));
            }
            // Attributes that the node lacks are not added.
            let mut there = Vec::new();
            if !sets.is_empty() {
                attributes(record, |attr: &AttrView<'_>| {
                    if let Some(set) = sets.iter().find(|(name, _)| name.as_bytes() == attr.name)
                        && attr.is_set()
                        && !there.contains(set)
                    {
                        there.push(*set);
                    }
                    Ok(())
                })?;
            }
            let edit = RecordEdit {
                values: values.as_deref(),
                attributes: &there,
                ..RecordEdit::default()
            };
            if edit.is_empty() {
                encoder::frame(&mut out, record.bytes);
            } else {
                edit.apply(record, &mut message)?;
                message.frame(&mut out);
            }
        }
        Ok(out)
    }
}

/// Fails where a rank would send what another does not receive, or members of a group call unequally often.
fn check_exchanges(
    traces: &Traces,
    declared: &DeclaredGroups,
    world: u32,
) -> Result<(), TraceError> {
    let mut messages: BTreeMap<(u32, u32, i32), i64> = BTreeMap::new();
    let mut calls: BTreeMap<(String, Vec<u32>), BTreeMap<u32, u64>> = BTreeMap::new();
    for (rank, trace) in traces {
        let mut own = DeclaredGroups::new();
        let mut found: BTreeMap<String, u64> = BTreeMap::new();
        let mut frames = FrameCursor::new(trace);
        while let Some(record) = frames.next_record()? {
            if record.number == 0 {
                continue;
            }
            let view = scan::node(record, &mut NoDependencies)?;
            if let Some(values) = view.groups {
                own.extend(parse_metadata(view.id, values)?);
            }
            match view.op {
                Op::Message {
                    receive: true,
                    peer,
                    tag,
                    ..
                } => *messages.entry((peer, *rank, tag)).or_default() -= 1,
                Op::Message {
                    receive: false,
                    peer,
                    tag,
                    ..
                } => *messages.entry((*rank, peer, tag)).or_default() += 1,
                Op::Collective { group, .. } => {
                    *found.entry(named(group).unwrap_or_default()).or_default() += 1
                }
                _ => {}
            }
        }
        for (name, count) in found {
            let members = declared
                .get(&name)
                .or(own.get(&name))
                .filter(|members| !members.is_empty());
            let members = members.cloned().unwrap_or_else(|| (0..world).collect());
            calls
                .entry((name, members))
                .or_default()
                .insert(*rank, count);
        }
    }
    let unequal = |found: String| {
        super::refused(
            format!("the completed job does not fit together: {found}"),
            "capture more ranks: some role has none",
        )
    };
    if let Some(((from, to, _), left)) = messages.iter().find(|(_, left)| **left != 0) {
        let (more, less) = if *left > 0 {
            ("sends", "receives")
        } else {
            ("receives", "sends")
        };
        let (a, b) = if *left > 0 { (from, to) } else { (to, from) };
        return Err(unequal(format!(
            "rank {a} {more} {} messages more than rank {b} {less}",
            left.unsigned_abs()
        )));
    }
    for ((name, members), counts) in &calls {
        let first = counts.values().next();
        let odd = members.iter().find(|member| counts.get(member) != first);
        if let Some(odd) = odd {
            return Err(unequal(format!(
                "rank {odd} calls collectives of group `{}` {} times, others {}",
                chakram_trace::format::escape(name),
                counts.get(odd).copied().unwrap_or(0),
                first.copied().unwrap_or(0)
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> RoleGrid {
        // rank = 8 stage + 4 replica + shard: 4 stages of 2 replicas of 4 shards.
        RoleGrid {
            dimensions: [(1, 4), (4, 2), (8, 4)]
                .map(|(stride, size)| GridDimension { stride, size })
                .to_vec(),
            stages: Some(2),
            replicas: Some(1),
        }
    }

    #[test]
    fn groups_and_peers_move_with_their_rank() {
        let grid = grid();
        // Replicas of shard 1 in stage 1 are 9 and 13; those of shard 2 in stage 3 are 26 and 30.
        assert_eq!(grid.moved_group(&[9, 13], 9, 26), Some(vec![26, 30]));
        // Shards keep the order of the group.
        assert_eq!(
            grid.moved_group(&[1, 0, 2, 3], 1, 31),
            Some(vec![29, 28, 30, 31])
        );
        // Half of the shards: 0 and 1, or 2 and 3.
        assert_eq!(grid.moved_group(&[0, 1], 0, 7), Some(vec![6, 7]));
        // The first and the last stage, of which a middle one is no part.
        assert_eq!(grid.moved_group(&[0, 24], 0, 6), Some(vec![6, 30]));
        assert_eq!(grid.moved_group(&[0, 24], 0, 8), None);
        assert_eq!(grid.moved_peer(8, 0, 6), Some(14));
        assert_eq!(grid.moved_peer(16, 8, 24), None);
        // Shard 3 sends around the ring to shard 0.
        assert_eq!(grid.moved_peer(1, 0, 3), Some(0));
    }
}
