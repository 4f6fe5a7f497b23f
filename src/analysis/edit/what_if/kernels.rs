//! Kernels, messages and collectives of activations under other batches and sequences.
//!
//! Work: a tensor that holds samples grows with them, one of parameters does not. A product has samples in one of its sizes,
//! so its FLOPs grow with them; those of attention grow with the square of the sequence. Bytes grow as the elements of the
//! tensors together. Where a trace has no shapes, all work of forward and backward passes grows.
//!
//! Time: with the FLOPs `F`, the bytes `Y` and the recorded time `t`, which the profiler's part `p` has been taken from,
//!
//! ```text
//! t' = p + a + (t - p - a) w(F', Y') / w(F, Y)
//! ```
//!
//! `w` is `Y` for kernels without FLOPs, and `F` for others, but for those that moved their bytes at half of the highest rate of
//! the trace or more: theirs is `max(F / f, Y / y)` with the highest rates `f` and `y`.
//!
//! `a` is what a call takes whatever it works on: the intercept of a line through the medians of kernels of one name over their
//! work, where it has kernels of works that differ twice; else the shortest kernel of the trace.

use super::grammar::Factor;
use super::program::{Phase, Program, UNEDITED, Value};
use super::shapes::{Shape, arguments, elements, normal_form, parse_shapes};
use chakram_base::kernel_shape::KernelShape;
use chakram_base::statistics::median;
use chakram_trace::format::Op;
use std::collections::{BTreeMap, BTreeSet};

/// Factors of samples and of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scaling {
    pub batch: Factor,
    pub sequence: Factor,
}

impl Scaling {
    pub const NONE: Self = Self {
        batch: Factor::ONE,
        sequence: Factor::ONE,
    };

    /// Returns the factor of tokens.
    fn tokens(self) -> f64 {
        self.batch.ratio() * self.sequence.ratio()
    }
}

/// What was scaled, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ScalingCounts {
    /// Kernels, messages and collectives of forward and backward passes.
    pub matched: u64,
    pub changed: u64,
    /// Of those that changed: by a line through kernels of the same name.
    pub by_line: u64,
    /// Without shapes.
    pub without_shapes: u64,
}

/// Values of a kernel before any edit.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    flops: u64,
    bytes: u64,
    /// Recorded time without the profiler's part, ns.
    ns: u64,
    profiler: u64,
}

/// Line of time over work of the kernels of a name.
#[derive(Clone, Copy, Debug)]
struct CallTime {
    fixed: f64,
    by_line: bool,
}

pub(super) struct KernelScaler {
    /// Shapes of parameters in normal form.
    parameters: BTreeSet<Shape>,
    /// Samples and tokens of a sequence, if the trace shows them.
    batch: Option<u64>,
    tokens: Option<u64>,
    calls: BTreeMap<String, CallTime>,
    shortest: f64,
    flops_rate: f64,
    bytes_rate: f64,
}

/// Operators with the places of parameters among their arguments.
const PARAMETERS: &[(&str, &[usize])] = &[
    ("aten::linear", &[1, 2]),
    ("aten::embedding", &[0]),
    ("aten::layer_norm", &[2, 3]),
    ("aten::rms_norm", &[2]),
    ("aten::group_norm", &[2, 3]),
    ("aten::convolution", &[1, 2]),
    ("aten::conv1d", &[1, 2]),
    ("aten::conv2d", &[1, 2]),
    ("aten::conv3d", &[1, 2]),
    ("aten::batch_norm", &[1, 2, 3, 4]),
];

impl KernelScaler {
    /// Learns from a program what its kernels work on and how long they take.
    pub fn new(program: &Program<'_>) -> Self {
        let mut this = Self {
            parameters: BTreeSet::new(),
            batch: None,
            tokens: None,
            calls: BTreeMap::new(),
            shortest: 0.0,
            flops_rate: 0.0,
            bytes_rate: 0.0,
        };
        let mut leading: BTreeMap<u64, u64> = BTreeMap::new();
        for i in program.raw.all() {
            let (view, facts) = (program.view(i), &program.facts[i as usize]);
            let known = PARAMETERS.iter().find(|(name, _)| *name == view.name);
            if let Some((_, places)) = known {
                let shapes = arguments(facts.inputs);
                let found = places.iter().filter_map(|&place| shapes.get(place));
                this.parameters
                    .extend(found.map(|shape| normal_form(shape)));
            }
            if view.name == "aten::embedding"
                && let Some([batch, tokens]) = arguments(facts.inputs).get(1).map(|s| &s[..])
            {
                this.batch = this.batch.or(Some(*batch));
                this.tokens = this.tokens.or(Some(*tokens));
            }
            match facts.phase {
                Phase::Parameters | Phase::Optimizer => {
                    let shapes = parse_shapes(facts.inputs);
                    let found = shapes.iter().map(|shape| normal_form(shape));
                    this.parameters.extend(found);
                }
                Phase::Forward => {
                    for shape in parse_shapes(facts.inputs).iter().filter(|s| s.len() > 2) {
                        *leading.entry(shape[0]).or_default() += 1;
                    }
                }
                _ => {}
            }
            if let Some(KernelShape::Gemm { .. }) = view.kernel
                && facts.phase == Phase::Forward
                && let Some(weight) = parse_shapes(facts.inputs).get(1)
            {
                this.parameters.insert(normal_form(weight));
            }
            if let Some(KernelShape::Attention { batch, queries, .. }) = view.kernel {
                this.batch = this.batch.or(Some(batch));
                this.tokens = this.tokens.or(Some(queries));
            }
        }
        this.parameters.remove(&Shape::new());
        let most = leading.into_iter().max_by_key(|&(_, count)| count);
        this.batch = this.batch.or(most.map(|(size, _)| size));
        this.learn_times(program);
        this
    }

    fn learn_times(&mut self, program: &Program<'_>) {
        let mut by_name: BTreeMap<&str, BTreeMap<u64, Vec<u64>>> = BTreeMap::new();
        let mut shortest = u64::MAX;
        for i in program.raw.all() {
            let view = program.view(i);
            if !matches!(view.op, Op::Compute { .. }) {
                continue;
            }
            let work = work_of(program, i);
            if work.ns == 0 {
                continue;
            }
            shortest = shortest.min(work.ns);
            let ns = work.ns as f64;
            self.flops_rate = self.flops_rate.max(work.flops as f64 / ns);
            self.bytes_rate = self.bytes_rate.max(work.bytes as f64 / ns);
            let amount = if work.flops > 0 {
                work.flops
            } else {
                work.bytes
            };
            let works = by_name.entry(view.name).or_default();
            works.entry(amount).or_default().push(work.ns);
        }
        self.shortest = if shortest == u64::MAX {
            0.0
        } else {
            shortest as f64
        };
        for (name, works) in by_name {
            let points: Vec<(f64, f64)> = works
                .into_iter()
                .filter(|(amount, _)| *amount > 0)
                .map(|(amount, mut times)| {
                    (amount as f64, median(&mut times).unwrap_or_default() as f64)
                })
                .collect();
            if let Some(fixed) = intercept(&points) {
                let call = CallTime {
                    fixed,
                    by_line: true,
                };
                self.calls.insert(name.to_owned(), call);
            }
        }
    }

    fn call(&self, name: &str) -> CallTime {
        let alone = CallTime {
            fixed: self.shortest,
            by_line: false,
        };
        self.calls.get(name).copied().unwrap_or(alone)
    }

    /// Returns the factor by which the elements of a tensor grow; `None` for one of parameters.
    fn growth(&self, shape: &[u64], by: Scaling) -> Option<f64> {
        let tokens_only = match (self.batch, self.tokens) {
            (Some(batch), Some(tokens)) => {
                shape.len() <= 2 && shape[0] == tokens && batch > 1 && tokens != batch
            }
            _ => false,
        };
        if elements(shape) <= 1 || self.parameters.contains(&normal_form(shape)) {
            return None;
        }
        if tokens_only {
            // Positions and tables of angles are of one sequence.
            return Some(by.sequence.ratio());
        }
        let sequences = match self.tokens {
            Some(tokens) if shape.len() > 2 => {
                let along = shape[1..].iter().filter(|&&size| size == tokens).count();
                along.clamp(1, 2) as i32
            }
            _ => 1,
        };
        Some(by.batch.ratio() * by.sequence.ratio().powi(sequences))
    }

    /// Scales the items for which `which` holds, from the values before all edits.
    pub fn scale(
        &self,
        program: &mut Program<'_>,
        by: Scaling,
        which: &dyn Fn(u32) -> bool,
    ) -> ScalingCounts {
        let mut counts = ScalingCounts::default();
        for item in program.order.clone() {
            let facts = program.facts_of(item);
            // Messages between stages are activations and their gradients, whatever is in front of them.
            let passes = matches!(facts.phase, Phase::Forward | Phase::Backward);
            let op = program.view_of(item).op;
            let sends = matches!(op, Op::Message { .. }) && facts.phase != Phase::Outside;
            if !(passes || sends) || !which(item) {
                continue;
            }
            let changed = match op {
                Op::Compute { .. } => self.scale_kernel(program, item, by, &mut counts),
                Op::Message { bytes, .. } | Op::Collective { bytes, .. } if bytes > 0 => {
                    scale_transfer(program, item, bytes, by);
                    true
                }
                _ => continue,
            };
            counts.matched += 1;
            counts.changed += u64::from(changed);
        }
        counts
    }

    fn scale_kernel(
        &self,
        program: &mut Program<'_>,
        item: u32,
        by: Scaling,
        counts: &mut ScalingCounts,
    ) -> bool {
        let node = program.items[item as usize].node;
        let (view, facts) = (*program.view(node), program.facts[node as usize]);
        let old = work_of(program, node);
        let (inputs, outputs) = shapes_of(program, node);
        let shapes: Vec<Shape> = inputs.iter().chain(&outputs).cloned().collect();
        let grown: Vec<Option<f64>> = shapes.iter().map(|shape| self.growth(shape, by)).collect();
        let products = old.flops > 0;
        let (mut flops, mut bytes) = (old.flops as f64, old.bytes as f64);
        if shapes.is_empty() {
            counts.without_shapes += 1;
            flops *= by.tokens();
            bytes *= by.tokens();
        } else {
            if grown.iter().all(Option::is_none) && !products {
                return false;
            }
            let attends = is_attention(program, node);
            if products {
                let squares = attends
                    || grown
                        .iter()
                        .flatten()
                        .any(|&g| g > by.tokens() * 1.000_1 || g < by.tokens() * 0.999_9);
                let sequence = by.sequence.ratio();
                flops *= by.tokens() * if squares { sequence } else { 1.0 };
            }
            let sizes = shapes.iter().map(|shape| elements(shape) as f64);
            let all: f64 = sizes.clone().sum();
            let tensors = sizes.zip(&grown).zip(&shapes);
            let new: f64 = tensors
                .map(|((size, growth), _)| {
                    let growth = if attends && growth.is_some() {
                        Some(by.tokens())
                    } else {
                        *growth
                    };
                    size * growth.unwrap_or(1.0)
                })
                .sum();
            if all > 0.0 {
                bytes *= new / all;
            }
        }
        let call = self.call(view.name);
        let fixed = call.fixed.min(old.ns as f64);
        // A product that moves its bytes at half of the highest rate or more is held up by them, as one of few rows by its
        // weights; others by what they multiply.
        let by_bytes = |bytes: f64| match self.bytes_rate > 0.0 {
            true => bytes / self.bytes_rate,
            false => 0.0,
        };
        let moves = products && by_bytes(old.bytes as f64) >= old.ns as f64 / 2.0 && old.ns > 0;
        let weight = |flops: f64, bytes: f64| match (products, moves) {
            (true, true) => (flops / self.flops_rate).max(by_bytes(bytes)),
            (true, false) => flops,
            (false, _) => bytes,
        };
        let before = weight(old.flops as f64, old.bytes as f64);
        let ratio = match before > 0.0 {
            true => weight(flops, bytes) / before,
            // Work that nobody knows grows with the tokens.
            false => by.tokens(),
        };
        let ns = old.profiler as f64 + fixed + (old.ns as f64 - fixed) * ratio;
        counts.by_line += u64::from(call.by_line);
        let in_delay = program.is_in_delay(node);
        let mut new: Vec<(&'static str, Value)> = Vec::new();
        let count = |value: f64| Value::Count(value.round().max(0.0) as u64);
        if old.ns > 0 {
            let name = if in_delay { "delay_ns" } else { "duration_ns" };
            new.push((name, count(ns)));
        }
        if old.flops > 0 {
            new.push(("num_ops", count(flops)));
        }
        if old.bytes > 0 {
            new.push(("tensor_size", count(bytes)));
        }
        if let Some(kernel) = view.kernel
            && let Some(kernel) = self.scaled_shape(kernel, facts.phase, &inputs, by)
        {
            new.push(("kernel_shape", Value::Text(kernel.to_string())));
        }
        for (name, bytes) in view.memory.named() {
            if name.ends_with(".activations") || name.ends_with(".temporary") {
                new.push((name, count(bytes as f64 * by.tokens())));
            }
        }
        change(program, item, new, by == Scaling::NONE);
        true
    }

    /// Returns the shape of a kernel with more rows, sequences or keys.
    fn scaled_shape(
        &self,
        kernel: KernelShape,
        phase: Phase,
        inputs: &[Shape],
        by: Scaling,
    ) -> Option<KernelShape> {
        let tokens = by.batch.times(by.sequence)?;
        match kernel {
            KernelShape::Attention {
                batch,
                heads,
                kv_heads,
                queries,
                keys,
                width,
                causal,
                backward,
            } => Some(KernelShape::Attention {
                batch: by.batch.of(batch),
                heads,
                kv_heads,
                queries: by.sequence.of(queries),
                keys: by.sequence.of(keys),
                width,
                causal,
                backward,
            }),
            KernelShape::Gemm { batch, m, n, k } if batch > 1 => {
                let sequence = |size| match Some(size) == self.tokens {
                    true => by.sequence.of(size),
                    false => size,
                };
                Some(KernelShape::Gemm {
                    batch: by.batch.of(batch),
                    m: sequence(m),
                    n: sequence(n),
                    k: sequence(k),
                })
            }
            KernelShape::Gemm { batch, m, n, k } => {
                // A gradient of weights sums over samples: both of its inputs have as many rows.
                let sums = phase == Phase::Backward
                    && matches!(inputs, [one, other, ..] if one[0] == k && other[0] == k && (m, n) != (k, k));
                Some(match sums {
                    true => KernelShape::Gemm {
                        batch,
                        m,
                        n,
                        k: tokens.of(k),
                    },
                    false => KernelShape::Gemm {
                        batch,
                        m: tokens.of(m),
                        n,
                        k,
                    },
                })
            }
            KernelShape::Moving(_) => None,
        }
    }
}

/// Returns the shapes that a kernel works on: its own, or those of the operator that launched it.
fn shapes_of(program: &Program<'_>, node: u32) -> (Vec<Shape>, Vec<Shape>) {
    let mut callers = program.callers(node);
    let stated = callers.find(|&caller| {
        let facts = &program.facts[caller as usize];
        !parse_shapes(facts.inputs).is_empty() || !parse_shapes(facts.outputs).is_empty()
    });
    let Some(stated) =
        stated.filter(|&stated| stated == node || matches!(program.view(stated).op, Op::Host))
    else {
        return (Vec::new(), Vec::new());
    };
    let facts = &program.facts[stated as usize];
    (parse_shapes(facts.inputs), parse_shapes(facts.outputs))
}

fn is_attention(program: &Program<'_>, node: u32) -> bool {
    let mut names = program
        .callers(node)
        .take(3)
        .map(|caller| program.view(caller).name);
    matches!(
        program.view(node).kernel,
        Some(KernelShape::Attention { .. })
    ) || names.any(|name| name.contains("attention") || name.contains("flash_attn"))
}

/// Returns the work of a kernel before all edits.
fn work_of(program: &Program<'_>, node: u32) -> Work {
    let view = program.view(node);
    let unedited = Unedited::parse(program.facts[node as usize].unedited);
    let Op::Compute { flops, bytes, .. } = view.op else {
        return Work::default();
    };
    let ns = match program.is_in_delay(node) {
        true => unedited.count("delay_ns").unwrap_or(view.delay.0 / 1000),
        false => unedited
            .count("duration_ns")
            .unwrap_or(view.recorded.0 / 1000),
    };
    let profiler = view.profiler.0 / 1000;
    let profiler = match program.is_in_delay(node) {
        true => profiler,
        // The profiler's part is of the delay first.
        false => profiler.saturating_sub(view.delay.0 / 1000),
    }
    .min(ns);
    Work {
        flops: unedited.count("num_ops").unwrap_or(flops),
        bytes: unedited.count("tensor_size").unwrap_or(bytes),
        ns: ns - profiler,
        profiler,
    }
}

/// Scales the bytes of a message or of a collective of activations. Transfers as recorded take longer in proportion.
fn scale_transfer(program: &mut Program<'_>, item: u32, bytes: u64, by: Scaling) {
    let node = program.items[item as usize].node;
    let unedited = Unedited::parse(program.facts[node as usize].unedited);
    let view = *program.view(node);
    let old = |name: &str, now: u64| unedited.count(name).unwrap_or(now);
    let times = |value: u64| (value as f64 * by.tokens()).round() as u64;
    let mut new = vec![("comm_size", Value::Count(times(old("comm_size", bytes))))];
    let mut sides = Vec::new();
    // Records are sound: they were read.
    let _ = super::super::attributes(program.raw.nodes[node as usize].record, |attr| {
        for name in ["in_bytes", "out_bytes"] {
            if attr.name == name.as_bytes() {
                sides.push((name, attr.as_u64()?));
            }
        }
        Ok(())
    });
    for (name, bytes) in sides {
        new.push((name, Value::Count(times(old(name, bytes)))));
    }
    let ns = old("duration_ns", view.recorded.0 / 1000);
    if ns > 0 {
        new.push(("duration_ns", Value::Count(times(ns))));
    }
    change(program, item, new, by == Scaling::NONE);
}

/// Changes attributes of an item, and notes what they were; where all edits together change nothing, they become that again.
fn change(program: &mut Program<'_>, item: u32, new: Vec<(&'static str, Value)>, restores: bool) {
    let node = program.items[item as usize].node;
    let kept = program.facts[node as usize].unedited;
    let mut changes = BTreeMap::new();
    if restores {
        for (name, value) in Unedited::parse(kept).entries() {
            if let Some((known, _)) = new.iter().find(|(known, _)| *known == name) {
                changes.insert(*known, value);
            }
        }
        if kept.is_some() {
            changes.insert(UNEDITED, Value::Removed);
        }
    } else {
        let mut text = kept.unwrap_or_default().to_owned();
        if kept.is_none() {
            let mut values: BTreeMap<&str, String> = BTreeMap::new();
            // Records are sound: they were read.
            let _ = super::super::attributes(program.raw.nodes[node as usize].record, |attr| {
                if let Some((name, _)) = new.iter().find(|(name, _)| name.as_bytes() == attr.name) {
                    let count = attr.as_u64().map(|count| count.to_string());
                    let text = attr.as_str().ok().flatten().map(str::to_owned);
                    values.insert(name, text.or(count.ok()).unwrap_or_default());
                }
                Ok(())
            });
            let of = |name: &str| values.get(name).map_or("-", |value| value.as_str());
            let parts = new.iter().map(|(name, _)| format!("{name}={}", of(name)));
            text = parts.collect::<Vec<_>>().join(";");
        }
        changes.extend(new);
        changes.insert(UNEDITED, Value::Text(text));
    }
    program.items[item as usize].changes.extend(changes);
}

/// Values that edits replaced: `duration_ns=12;num_ops=-`, with `-` where there was none.
struct Unedited<'t>(Vec<(&'t str, &'t str)>);

impl<'t> Unedited<'t> {
    fn parse(text: Option<&'t str>) -> Self {
        let parts = text.unwrap_or_default().split(';');
        Self(parts.filter_map(|part| part.split_once('=')).collect())
    }

    fn count(&self, name: &str) -> Option<u64> {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.and_then(|(_, value)| value.parse().ok())
    }

    fn entries(&self) -> impl Iterator<Item = (&'t str, Value)> + '_ {
        self.0.iter().map(|&(name, value)| {
            let value = match (value, value.parse()) {
                ("-", _) => Value::Removed,
                (_, Ok(count)) => Value::Count(count),
                (text, _) => Value::Text(text.to_owned()),
            };
            (name, value)
        })
    }
}

/// Returns the time of no work on the line through `points` of work and time, by least squares of relative errors: at least 0,
/// and at most nine tenths of the shortest. `None` where the works do not differ twice.
fn intercept(points: &[(f64, f64)]) -> Option<f64> {
    let works = points.iter().map(|point| point.0);
    let (least, most) = works.fold((f64::MAX, 0.0_f64), |(a, b), w| (a.min(w), b.max(w)));
    if points.len() < 2 || most < 2.0 * least {
        return None;
    }
    // Weights 1/t^2: sums of w, wx, wy, wxx, wxy with y = t.
    let mut sums = [0.0; 5];
    for &(x, y) in points {
        let weight = 1.0 / (y * y);
        for (sum, value) in sums.iter_mut().zip([1.0, x, y, x * x, x * y]) {
            *sum += weight * value;
        }
    }
    let [one, x, y, xx, xy] = sums;
    let below = one * xx - x * x;
    let fixed = (y * xx - x * xy) / below;
    let shortest = points.iter().map(|point| point.1).fold(f64::MAX, f64::min);
    fixed.is_finite().then(|| fixed.clamp(0.0, 0.9 * shortest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// t = 10 + 2 w: 14 at 2, 18 at 4, 30 at 10.
    #[test]
    fn a_line_through_exact_points_has_their_intercept() {
        let fixed = intercept(&[(2.0, 14.0), (4.0, 18.0), (10.0, 30.0)]).unwrap();
        assert!((fixed - 10.0).abs() < 1e-9, "{fixed}");
        assert_eq!(
            intercept(&[(2.0, 14.0), (3.0, 18.0)]),
            None,
            "works differ too little"
        );
        // Falling times have no negative slope to take: the intercept is at most 0.9 of the shortest.
        let falling = intercept(&[(1.0, 20.0), (4.0, 10.0)]).unwrap();
        assert!((falling - 9.0).abs() < 1e-9, "{falling}");
    }
}
