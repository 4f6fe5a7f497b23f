//! Copies or removes layers in all passes of a step.
//!
//! A *layer run* lists a pass's layers in execution order. Added layers are copies of one layer, the template, and come
//! after it in the run. Removed layers are those after the template. If a node depends on a node `n` layers earlier in
//! the same pass, the distance is still `n` layers after the edit. A dependency on another pass shifts by as many
//! layers as the node itself. For example, parameters that are gathered two layers ahead are still gathered two layers
//! ahead after the edit.

use super::super::MatchedAndChangedItemCounts;
use super::super::gradients;
use super::super::program::{EditableRankProgram, ItemDependency, TrainingStepPhase};
use chakram_trace::format::Op;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Identifies a part of a layer. Corresponding parts of different layers have equal keys. A key has three parts: a hash
/// of the node's name without numbers, how many layers the node is ahead of the running layer, and an index among nodes
/// with the same hash and lead.
type LayerNodeKey = (u64, i64, u32);

/// A pass's layers.
pub(super) struct PassLayers {
    /// True for a backward pass, which runs the last layer first.
    pub backward: bool,
    /// The nodes of each layer, with layers in execution order.
    pub layers: Vec<Vec<u32>>,
    /// Index in `layers` of the template, which is copied.
    pub template: usize,
}

/// Position of a node: the run, the layer's position in the run, and the node's key in the layer.
#[derive(Clone, Copy)]
struct NodePlaceInLayerRun {
    run: usize,
    position: i64,
    key: LayerNodeKey,
}

/// Position of a node's layer in its run before and after the edit. For a copy, `old` is the position of the
/// template.
#[derive(Clone, Copy)]
pub(super) struct LayerPositionBeforeAfter {
    pub run: usize,
    pub old: i64,
    pub new: i64,
}

/// Adds `by` layers to each run of a step; if `by` is negative, removes layers.
pub(super) struct LayerEditor {
    runs: Vec<PassLayers>,
    by: i64,
    /// For each layer of each run, the nodes by key.
    keyed: Vec<Vec<BTreeMap<LayerNodeKey, u32>>>,
    places: BTreeMap<u32, NodePlaceInLayerRun>,
    /// The nodes to copy, by run; present only for runs that leave out some of the template's nodes.
    template_items: BTreeMap<usize, Vec<u32>>,
    /// For each run and each added layer: the copied nodes, in the order of the template's nodes.
    copies: Vec<Vec<Vec<u32>>>,
    /// For each node that remains after the edit, its layer's old and new position.
    pub moves: BTreeMap<u32, LayerPositionBeforeAfter>,
}

impl LayerEditor {
    pub fn new(program: &EditableRankProgram<'_>, runs: Vec<PassLayers>, by: i64) -> Self {
        let mut this = Self {
            by,
            keyed: Vec::new(),
            places: BTreeMap::new(),
            template_items: BTreeMap::new(),
            copies: vec![Vec::new(); runs.len()],
            moves: BTreeMap::new(),
            runs,
        };
        for (run, layers) in this.runs.iter().enumerate() {
            let mut keyed = Vec::new();
            for (position, items) in (0..).zip(&layers.layers) {
                let mut of_layer = BTreeMap::new();
                let mut seen: BTreeMap<(u64, i64), u32> = BTreeMap::new();
                let label = label_of_generated_layer(program, items).unwrap_or_default();
                for &item in items {
                    let own = program.facts_of_item(item).layer;
                    let ahead = own.map_or(0, |own| i64::from(own) - i64::from(label));
                    let name = hash_layer_part_name(program, item);
                    let count = seen.entry((name, ahead)).or_default();
                    let key = (name, ahead, *count);
                    *count += 1;
                    of_layer.insert(key, item);
                    let place = NodePlaceInLayerRun { run, position, key };
                    this.places.insert(item, place);
                }
                keyed.push(of_layer);
            }
            this.keyed.push(keyed);
        }
        this
    }

    fn layer_count_before_edit(&self, run: usize) -> i64 {
        self.runs[run].layers.len() as i64
    }

    fn template_items_to_copy(&self, run: usize) -> &[u32] {
        let all = &self.runs[run].layers[self.runs[run].template];
        self.template_items.get(&run).unwrap_or(all)
    }

    fn template_layer(&self, run: usize) -> i64 {
        self.runs[run].template as i64
    }

    /// Returns the position that the layer at position `old` has after the edit; `None` if the edit removes this
    /// layer.
    fn position_after_edit(&self, run: usize, old: i64) -> Option<i64> {
        let template = self.template_layer(run);
        if old <= template {
            Some(old)
        } else if old <= template - self.by {
            None
        } else {
            Some(old + self.by)
        }
    }

    /// Returns the index of the layer at `position` in a run with `count` layers. In a backward pass, layers are
    /// counted from the end, because layers may be missing at its start.
    fn layer_index_in_pass_direction(&self, run: usize, position: i64, count: i64) -> i64 {
        match self.runs[run].backward {
            true => count - 1 - position,
            false => position,
        }
    }

    /// Returns the node with the key `key` in the layer at `position` after the edit.
    fn find_keyed_item_in_edited_layer(
        &self,
        run: usize,
        position: i64,
        key: LayerNodeKey,
    ) -> Option<u32> {
        let template = self.template_layer(run);
        let old = match position {
            _ if position <= template => position,
            _ if position <= template + self.by => {
                let item = self.keyed[run][template as usize].get(&key)?;
                let items = self.template_items_to_copy(run);
                let at = items.iter().position(|known| known == item)?;
                let copy = usize::try_from(position - template - 1).ok()?;
                return self.copies[run].get(copy)?.get(at).copied();
            }
            _ => position - self.by,
        };
        let layer = self.keyed[run].get(usize::try_from(old).ok()?)?;
        layer.get(&key).copied()
    }

    /// If a node in the layer at position `old` depends on `target`, returns the node on which the corresponding node
    /// in the layer at position `new` depends.
    fn map_dependency_target_to_new_layer(
        &self,
        run: usize,
        old: i64,
        new: i64,
        target: u32,
    ) -> Option<u32> {
        let Some(of) = self.places.get(&target) else {
            return Some(target);
        };
        let own_pass = of.run == run;
        let crosses = self.runs[of.run].backward != self.runs[run].backward;
        let position = if own_pass {
            new - (old - of.position)
        } else {
            let (count, of_count) = (
                self.layer_count_before_edit(run),
                self.layer_count_before_edit(of.run),
            );
            let ahead = self.layer_index_in_pass_direction(run, old, count)
                - self.layer_index_in_pass_direction(of.run, of.position, of_count);
            if ahead == 0 || crosses && ahead.abs() == 1 {
                let layer = self.layer_index_in_pass_direction(run, new, count + self.by) - ahead;
                match self.runs[of.run].backward {
                    true => of_count + self.by - 1 - layer,
                    false => layer,
                }
            } else {
                self.position_after_edit(of.run, of.position)
                    .unwrap_or_else(|| self.template_layer(of.run))
            }
        };
        self.find_keyed_item_in_edited_layer(of.run, position, of.key)
    }

    /// If the first layer is the template, copies only its last gather, because gathers for several layers run before
    /// it.
    fn keep_last_gather_of_first_layer_template(
        &mut self,
        program: &EditableRankProgram<'_>,
        run: usize,
    ) {
        if self.template_layer(run) > 0 || self.by <= 0 {
            return;
        }
        let gathers = |item: u32| {
            matches!(program.view_of_item(item).op, Op::Collective { .. })
                && program.facts_of_item(item).phase == TrainingStepPhase::Parameters
        };
        let items = &self.runs[run].layers[0];
        let last = items.iter().rposition(|&item| gathers(item));
        let first = items.iter().position(|&item| !gathers(item));
        if let (Some(last), Some(first)) = (last, first)
            && last < first
        {
            self.template_items.insert(run, items[last..].to_vec());
        }
    }

    /// Applies the edit to `program`.
    pub fn apply_edit(
        &mut self,
        program: &mut EditableRankProgram<'_>,
        counts: &mut MatchedAndChangedItemCounts,
    ) {
        let mut gone = BTreeSet::new();
        let mut behind: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for run in 0..self.runs.len() {
            self.keep_last_gather_of_first_layer_template(program, run);
            let template = self.template_items_to_copy(run).to_vec();
            for _ in 0..self.by.max(0) {
                let copies = program.clone_items_with_inner_dependencies(&template, &|_| false);
                counts.added += copies.len() as u64;
                self.copies[run].push(copies);
            }
            if let Some(&end) = template.last() {
                behind
                    .entry(end)
                    .or_default()
                    .extend(self.copies[run].iter().flatten());
            }
            for position in 0..self.layer_count_before_edit(run) {
                let items = &self.runs[run].layers[position as usize];
                match self.position_after_edit(run, position) {
                    Some(new) => {
                        let old = position;
                        let moves = items
                            .iter()
                            .map(|&item| (item, LayerPositionBeforeAfter { run, old, new }));
                        self.moves.extend(moves);
                    }
                    None => {
                        counts.removed += items.len() as u64;
                        gone.extend(items.iter().copied());
                    }
                }
            }
        }
        self.link_layer_copies(program);
        self.relink_layer_items(program, &gone);
        self.relink_items_outside_layers(program, &gone);
        if !gone.is_empty() {
            program.remove_items_and_bridge_dependencies(&|item| gone.contains(&item));
        }
        let mut order = Vec::with_capacity(program.order.len());
        for item in std::mem::take(&mut program.order) {
            order.push(item);
            order.extend(behind.remove(&item).unwrap_or_default());
        }
        program.order = order;
    }

    /// For each copy, returns the layer that provides its recorded times. All layers that are equal to the template are
    /// used equally often. The remaining copies get the times of layers near the mean, so that doubling the number of
    /// layers doubles the time.
    fn layer_that_times_each_copy(
        &self,
        program: &EditableRankProgram<'_>,
        run: usize,
    ) -> Vec<usize> {
        let (layers, template) = (&self.runs[run].layers, self.runs[run].template);
        let copies = self.by.max(0) as usize;
        if program.has_layers || self.template_items.contains_key(&run) {
            return vec![template; copies];
        }
        let alike = |&at: &usize| {
            have_same_operators_and_transfers(program, &layers[at], &layers[template])
        };
        let alike: Vec<usize> = (0..layers.len()).filter(alike).collect();
        let time = |at: usize| -> u64 {
            let views = layers[at].iter().map(|&item| program.view_of_item(item));
            views
                .map(|view| (view.recorded.0 + view.delay.0) / 1000)
                .sum()
        };
        let count = alike.len() as u64;
        let all: u64 = alike.iter().map(|&at| time(at)).sum();
        let mut nearest = alike.clone();
        nearest.sort_by_key(|&at| ((time(at) * count).abs_diff(all), at));
        let whole = alike
            .iter()
            .copied()
            .cycle()
            .take(copies / alike.len() * alike.len());
        whole
            .chain(nearest.into_iter().take(copies % alike.len()))
            .collect()
    }

    fn link_layer_copies(&mut self, program: &mut EditableRankProgram<'_>) {
        for run in 0..self.runs.len() {
            let template = self.template_layer(run);
            // The first layer depends on nodes outside layers, so use the second layer as the model of how a layer
            // depends on the previous one.
            let model = match self.layer_count_before_edit(run) {
                0 | 1 => template,
                _ => template.max(1),
            };
            let items = self.template_items_to_copy(run).to_vec();
            let timed = self.layer_that_times_each_copy(program, run);
            for copy in 0..self.copies[run].len() {
                let timed = match timed[copy] == self.runs[run].template {
                    true => items.clone(),
                    false => self.runs[run].layers[timed[copy]].clone(),
                };
                let new = template + 1 + copy as i64;
                for (at, &item) in items.iter().enumerate() {
                    let own = self.copies[run][copy][at];
                    program.items[own as usize].node = program.items[timed[at] as usize].node;
                    let moved = LayerPositionBeforeAfter {
                        run,
                        old: template,
                        new,
                    };
                    self.moves.insert(own, moved);
                    let key = self.places[&item].key;
                    let shown = self.keyed[run][model as usize].get(&key).copied();
                    let (shown, old) = match shown {
                        Some(shown) => (shown, model),
                        None => (item, template),
                    };
                    let mut deps = program.items[shown as usize].deps.clone();
                    for dep in &mut deps {
                        dep.on = self
                            .map_dependency_target_to_new_layer(run, old, new, dep.on)
                            .unwrap_or(dep.on);
                    }
                    program.items[own as usize].deps = deps;
                    let caller = program.items[item as usize].caller;
                    program.items[own as usize].caller = caller.map(|caller| {
                        self.map_dependency_target_to_new_layer(run, template, new, caller)
                            .unwrap_or(caller)
                    });
                }
            }
        }
    }

    fn relink_layer_items(&self, program: &mut EditableRankProgram<'_>, gone: &BTreeSet<u32>) {
        for (&item, place) in &self.places {
            let Some(new) = self.position_after_edit(place.run, place.position) else {
                continue;
            };
            let mut deps = std::mem::take(&mut program.items[item as usize].deps);
            for dep in deps.iter_mut().filter(|dep| !dep.in_turn) {
                dep.on = self
                    .map_dependency_target_to_new_layer(place.run, place.position, new, dep.on)
                    .unwrap_or(dep.on);
            }
            program.items[item as usize].deps = deps;
            let caller = program.items[item as usize].caller;
            program.items[item as usize].caller = caller.map(|caller| {
                let moved =
                    self.map_dependency_target_to_new_layer(place.run, place.position, new, caller);
                moved.filter(|on| !gone.contains(on)).unwrap_or(caller)
            });
        }
    }

    /// Updates the dependencies of nodes outside the layers. A node that depended on the last layer depends on the new
    /// last layer. A node that depended on all layers now depends on the added ones too.
    fn relink_items_outside_layers(
        &self,
        program: &mut EditableRankProgram<'_>,
        gone: &BTreeSet<u32>,
    ) {
        for item in program.order.clone() {
            if self.places.contains_key(&item) || gradients::is_bucket_reduction(program, item) {
                continue;
            }
            let mut named: BTreeMap<(usize, LayerNodeKey), Vec<ItemDependency>> = BTreeMap::new();
            for dep in &program.items[item as usize].deps {
                if let Some(of) = self.places.get(&dep.on).filter(|_| !dep.in_turn) {
                    named.entry((of.run, of.key)).or_default().push(*dep);
                }
            }
            for ((run, key), deps) in named {
                let collects = deps.len() > 1;
                let own = &mut program.items[item as usize].deps;
                if collects {
                    own.retain(|dep| dep.in_turn || !gone.contains(&dep.on));
                    let template = self.template_layer(run);
                    let new = (1..=self.by).filter_map(|copy| {
                        self.find_keyed_item_in_edited_layer(run, template + copy, key)
                    });
                    own.extend(new.map(|on| ItemDependency { on, ..deps[0] }));
                    continue;
                }
                for dep in own
                    .iter_mut()
                    .filter(|dep| !dep.in_turn && gone.contains(&dep.on))
                {
                    let Some(of) = self
                        .places
                        .get(&dep.on)
                        .filter(|of| (of.run, of.key) == (run, key))
                    else {
                        continue;
                    };
                    // Keep the layer's distance from the end of the run.
                    let moved =
                        self.find_keyed_item_in_edited_layer(run, of.position + self.by, key);
                    dep.on = moved.unwrap_or(dep.on);
                }
            }
            let caller = program.items[item as usize].caller;
            if let Some(of) = caller.and_then(|caller| self.places.get(&caller))
                && caller.is_some_and(|caller| gone.contains(&caller))
            {
                let moved =
                    self.find_keyed_item_in_edited_layer(of.run, of.position + self.by, of.key);
                program.items[item as usize].caller = moved;
            }
        }
    }

    /// Returns the step's runs, with the layers as they were before the edit.
    pub fn runs_before_edit(&self) -> &[PassLayers] {
        &self.runs
    }
}

/// Returns the label of a layer in a generated job; `None` in a capture.
pub(super) fn label_of_generated_layer(
    program: &EditableRankProgram<'_>,
    layer: &[u32],
) -> Option<u32> {
    let computes = |item: &&u32| matches!(program.view_of_item(**item).op, Op::Compute { .. });
    program.facts_of_item(*layer.iter().find(computes)?).layer
}

/// Hashes the name of a part of a layer. In a generated job, the layer's own name is not included.
fn hash_layer_part_name(program: &EditableRankProgram<'_>, item: u32) -> u64 {
    let name = program.view_of_item(item).name;
    match program.facts_of_item(item).layer {
        Some(_) => {
            let mut ends = name.rmatch_indices('/').map(|(at, _)| at);
            hash_name_without_digits(&name[ends.nth(1).unwrap_or(0)..])
        }
        None => hash_name_without_digits(name),
    }
}

/// Hashes a name without its digits, because names contain module, layer and micro-batch numbers.
pub(super) fn hash_name_without_digits(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    let parts = name.split(|c: char| c.is_ascii_digit());
    parts
        .filter(|part| !part.is_empty())
        .for_each(|part| part.hash(&mut hasher));
    hasher.finish()
}

/// Returns true if two layers have the same operators and transfers of the same size.
pub(super) fn have_same_operators_and_transfers(
    program: &EditableRankProgram<'_>,
    one: &[u32],
    other: &[u32],
) -> bool {
    let bytes = |item| match program.view_of_item(item).op {
        Op::Collective { bytes, .. } | Op::Message { bytes, .. } => bytes,
        _ => 0,
    };
    one.len() == other.len()
        && one.iter().zip(other).all(|(&a, &b)| {
            let names =
                [a, b].map(|item| hash_name_without_digits(program.view_of_item(item).name));
            names[0] == names[1] && bytes(a) == bytes(b)
        })
}

/// Returns the nodes of each layer, in program order. A layer contains the nodes of its entry in `parts`, the transfers
/// that they launch, and those transfers between them that no node launches.
pub(super) fn collect_layer_nodes_with_transfers(
    program: &EditableRankProgram<'_>,
    parts: &[&[u32]],
) -> Vec<Vec<u32>> {
    let mut layer_of: BTreeMap<u32, usize> = BTreeMap::new();
    for (layer, part) in parts.iter().enumerate() {
        layer_of.extend(part.iter().map(|&item| (item, layer)));
    }
    let mut left: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    let mut layers = vec![Vec::new(); parts.len()];
    // A gather between two layers is for the second of them or for a later layer.
    let mut front: Vec<u32> = Vec::new();
    let (mut current, mut before): (Option<usize>, bool) = (None, true);
    for &item in &program.order {
        let transfers = matches!(
            program.view_of_item(item).op,
            Op::Collective { .. } | Op::Message { .. }
        );
        if let Some(&layer) = layer_of.get(&item) {
            if left[layer] == parts[layer].len() {
                layers[layer].append(&mut front);
            }
            layers[layer].push(item);
            left[layer] -= 1;
            current = (left[layer] > 0).then_some(layer);
            front.clear();
            before = layer + 1 < parts.len();
            continue;
        }
        let is_message = matches!(program.view_of_item(item).op, Op::Message { .. });
        if !transfers || is_message || gradients::is_bucket_reduction(program, item) {
            if !transfers {
                front.clear();
            }
            continue;
        }
        let caller = program.items[item as usize].caller;
        match (caller, current) {
            (Some(caller), _) => {
                if let Some(&layer) = layer_of.get(&caller) {
                    layers[layer].push(item);
                }
            }
            (None, Some(layer)) => layers[layer].push(item),
            (None, None) => {
                let gathers = program.facts_of_item(item).phase == TrainingStepPhase::Parameters
                    && !gradients::is_gradient_reduction(program, item);
                if before && gathers {
                    front.push(item);
                }
            }
        }
    }
    layers
}
