//! What observers of every report are told, kept until there is much of it, and worked through on a thread of its own.
//!
//! The loop writes a few words for each thing that happens and goes on. What it means for sums, memory and the critical path
//! is found beside it, in the order in which it happened, so results are those of observers that are part of the loop.

use super::{CollectiveRecord, Observer};
use crate::engine::{JobTimes, LaunchRecord, LoopCounts, ProcessorJob};
use crate::graph::NodeKind;
use crate::ids::{MAX_NPUS, NodeIndex};
use crate::network::{LinkLoad, NetworkOccupancy};
use crate::units::Time;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;

/// The least number of nodes for which a thread is started: what is told of them takes a millisecond, and to start one a
/// tenth.
const LEAST_NODES: u64 = 20_000;
/// Most of what is told together: enough that threads seldom meet, and little enough to stay in a cache.
const TOGETHER: usize = 4096;
/// Most parts that wait for the other thread, before the loop does.
const WAITING: usize = 32;

/// What happened to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum NodeStep {
    Issued,
    Completed,
    Began,
    Delayed,
    Ready,
}

/// A step of a node, in 16 bytes.
#[derive(Clone, Copy, Debug)]
struct ToldStep {
    at: Time,
    /// Number of the instance, then the kind of the node, then the step.
    what: u32,
    node: NodeIndex,
}

const KIND_AT: u32 = 22;
const STEP_AT: u32 = 25;
const _: () = assert!(MAX_NPUS <= 1 << KIND_AT, "instances have room");

impl ToldStep {
    #[inline]
    fn new(step: NodeStep, at: Time, instance: u32, node: NodeIndex, kind: NodeKind) -> Self {
        let what = instance | (kind as u32) << KIND_AT | (step as u32) << STEP_AT;
        Self { at, what, node }
    }

    #[inline]
    fn tell(self, observer: &mut impl Observer) {
        let Self { at, what, node } = self;
        let instance = what & ((1 << KIND_AT) - 1);
        let kind = NodeKind::ALL[(what >> KIND_AT & 7) as usize];
        match what >> STEP_AT {
            0 => observer.issued(at, instance, node, kind),
            1 => observer.completed(at, instance, node, kind),
            2 => observer.began(at, instance, node),
            3 => observer.delayed(at, instance, node),
            _ => observer.ready(at, instance, node),
        }
    }
}

/// What is told together: steps of nodes in their order, and collectives in theirs. No observer of a report relates the two.
#[derive(Debug, Default)]
struct ToldPart {
    steps: Vec<ToldStep>,
    collectives: Vec<CollectiveRecord>,
}

impl ToldPart {
    /// Tells `observer`, and leaves the part empty.
    fn tell(&mut self, observer: &mut impl Observer) {
        for step in self.steps.drain(..) {
            step.tell(observer);
        }
        for record in self.collectives.drain(..) {
            observer.collective(&record);
        }
    }
}

/// Where parts go.
enum RelayTarget<'t> {
    /// To observers on this thread.
    Here(&'t mut dyn FnMut(&mut ToldPart)),
    /// To another thread, from which empty ones come back.
    Beside {
        full: SyncSender<ToldPart>,
        empty: Receiver<ToldPart>,
    },
}

/// An observer that others are behind: those of a report, which are told later, and `others`, which are told at once.
pub struct Relay<'t, 'o> {
    part: ToldPart,
    target: RelayTarget<'t>,
    others: Option<&'o mut dyn Observer>,
    links: Option<Vec<LinkLoad>>,
    network: Option<NetworkOccupancy>,
    counts: Option<LoopCounts>,
}

/// Runs what `run` does with a relay of the observers that `watch` makes, of a run of `nodes`, and returns its result and
/// these observers, which have been told all. `watch` is called on the thread on which they are told.
pub fn relayed<W: Observer + Send, T>(
    nodes: u64,
    watch: impl FnOnce() -> W + Send,
    others: Option<&mut dyn Observer>,
    run: impl FnOnce(&mut Relay<'_, '_>) -> T,
) -> (T, W) {
    if nodes < LEAST_NODES {
        return relayed_here(watch, others, run);
    }
    relayed_beside(watch, others, run)
}

fn relayed_here<W: Observer, T>(
    watch: impl FnOnce() -> W,
    others: Option<&mut dyn Observer>,
    run: impl FnOnce(&mut Relay<'_, '_>) -> T,
) -> (T, W) {
    let mut watching = watch();
    let mut here = |part: &mut ToldPart| part.tell(&mut watching);
    let mut relay = Relay::new(RelayTarget::Here(&mut here), others);
    let result = run(&mut relay);
    let end = relay.end();
    end.tell(&mut watching);
    (result, watching)
}

fn relayed_beside<W: Observer + Send, T>(
    watch: impl FnOnce() -> W + Send,
    others: Option<&mut dyn Observer>,
    run: impl FnOnce(&mut Relay<'_, '_>) -> T,
) -> (T, W) {
    let (full, parts) = sync_channel::<ToldPart>(WAITING);
    let (back, empty) = channel();
    thread::scope(|scope| {
        let told = scope.spawn(move || {
            let mut watching = watch();
            for mut part in parts {
                part.tell(&mut watching);
                // Nobody takes them back when the run is over.
                let _ = back.send(part);
            }
            watching
        });
        let mut relay = Relay::new(RelayTarget::Beside { full, empty }, others);
        let result = run(&mut relay);
        let end = relay.end();
        match told.join() {
            Ok(mut watching) => {
                end.tell(&mut watching);
                (result, watching)
            }
            Err(cause) => std::panic::resume_unwind(cause),
        }
    })
}

/// What is told once, when a run is over.
struct RunEnd {
    links: Option<Vec<LinkLoad>>,
    network: Option<NetworkOccupancy>,
    counts: Option<LoopCounts>,
}

impl RunEnd {
    fn tell(&self, observer: &mut impl Observer) {
        if let Some(loads) = &self.links {
            observer.links(loads);
        }
        if let Some(occupancy) = &self.network {
            observer.network(occupancy);
        }
        if let Some(counts) = &self.counts {
            observer.counted(counts);
        }
    }
}

impl<'t, 'o> Relay<'t, 'o> {
    fn new(target: RelayTarget<'t>, others: Option<&'o mut dyn Observer>) -> Self {
        Self {
            part: ToldPart::default(),
            target,
            others,
            links: None,
            network: None,
            counts: None,
        }
    }

    /// Passes on what is left, and ends the other thread's work.
    fn end(mut self) -> RunEnd {
        self.pass_on();
        RunEnd {
            links: self.links,
            network: self.network,
            counts: self.counts,
        }
    }

    #[inline]
    fn step(&mut self, step: ToldStep) {
        self.part.steps.push(step);
        if self.part.steps.len() >= TOGETHER {
            self.pass_on();
        }
    }

    #[cold]
    fn pass_on(&mut self) {
        match &mut self.target {
            RelayTarget::Here(tell) => tell(&mut self.part),
            RelayTarget::Beside { full, empty } => {
                let next = empty.try_recv().unwrap_or_default();
                let part = std::mem::replace(&mut self.part, next);
                // The other thread takes parts until it panics, which is passed on when it is joined.
                let _ = full.send(part);
            }
        }
    }
}

impl Observer for Relay<'_, '_> {
    #[inline]
    fn issued(&mut self, now: Time, instance: u32, node: NodeIndex, kind: NodeKind) {
        self.step(ToldStep::new(NodeStep::Issued, now, instance, node, kind));
        if let Some(others) = &mut self.others {
            others.issued(now, instance, node, kind);
        }
    }

    #[inline]
    fn completed(&mut self, now: Time, instance: u32, node: NodeIndex, kind: NodeKind) {
        self.step(ToldStep::new(
            NodeStep::Completed,
            now,
            instance,
            node,
            kind,
        ));
        if let Some(others) = &mut self.others {
            others.completed(now, instance, node, kind);
        }
    }

    #[inline]
    fn began(&mut self, now: Time, instance: u32, node: NodeIndex) {
        let kind = NodeKind::Collective;
        self.step(ToldStep::new(NodeStep::Began, now, instance, node, kind));
        if let Some(others) = &mut self.others {
            others.began(now, instance, node);
        }
    }

    fn collective(&mut self, record: &CollectiveRecord) {
        self.part.collectives.push(*record);
        if self.part.collectives.len() >= TOGETHER {
            self.pass_on();
        }
        if let Some(others) = &mut self.others {
            others.collective(record);
        }
    }

    #[inline]
    fn delayed(&mut self, now: Time, instance: u32, node: NodeIndex) {
        // Its kind does not matter until it is issued.
        let kind = NodeKind::Nothing;
        self.step(ToldStep::new(NodeStep::Delayed, now, instance, node, kind));
        if let Some(others) = &mut self.others {
            others.delayed(now, instance, node);
        }
    }

    #[inline]
    fn ready(&mut self, now: Time, instance: u32, node: NodeIndex) {
        let kind = NodeKind::Nothing;
        self.step(ToldStep::new(NodeStep::Ready, now, instance, node, kind));
        if let Some(others) = &mut self.others {
            others.ready(now, instance, node);
        }
    }

    // A report of one launch looks at none of the next three.

    fn launched(&mut self, now: Time, launch: &LaunchRecord) {
        if let Some(others) = &mut self.others {
            others.launched(now, launch);
        }
    }

    fn launch_ended(&mut self, now: Time, launch: &LaunchRecord) {
        if let Some(others) = &mut self.others {
            others.launch_ended(now, launch);
        }
    }

    fn occupied(&mut self, now: Time, job: &ProcessorJob, times: &JobTimes) {
        if let Some(others) = &mut self.others {
            others.occupied(now, job, times);
        }
    }

    fn links(&mut self, loads: &[LinkLoad]) {
        self.links = Some(loads.to_vec());
        if let Some(others) = &mut self.others {
            others.links(loads);
        }
    }

    fn network(&mut self, occupancy: &NetworkOccupancy) {
        self.network = Some(occupancy.clone());
        if let Some(others) = &mut self.others {
            others.network(occupancy);
        }
    }

    fn counted(&mut self, counts: &LoopCounts) {
        self.counts = Some(counts.clone());
        if let Some(others) = &mut self.others {
            others.counted(counts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::CollectiveKind;
    use crate::units::Span;

    /// Writes down what it is told.
    #[derive(Debug, Default, PartialEq)]
    struct Diary {
        steps: Vec<(u32, u64, u32, u32, u8)>,
        groups: Vec<u32>,
    }

    impl Observer for Diary {
        fn issued(&mut self, now: Time, instance: u32, node: NodeIndex, kind: NodeKind) {
            let row = (0, now.0, instance, node.0, kind as u8);
            self.steps.push(row);
        }
        fn completed(&mut self, now: Time, instance: u32, node: NodeIndex, kind: NodeKind) {
            let row = (1, now.0, instance, node.0, kind as u8);
            self.steps.push(row);
        }
        fn began(&mut self, now: Time, instance: u32, node: NodeIndex) {
            self.steps.push((2, now.0, instance, node.0, 0));
        }
        fn delayed(&mut self, now: Time, instance: u32, node: NodeIndex) {
            self.steps.push((3, now.0, instance, node.0, 0));
        }
        fn ready(&mut self, now: Time, instance: u32, node: NodeIndex) {
            self.steps.push((4, now.0, instance, node.0, 0));
        }
        fn collective(&mut self, record: &CollectiveRecord) {
            self.groups.push(record.group);
        }
    }

    /// Tells of many steps of all kinds, of the largest numbers too.
    fn live(observer: &mut impl Observer) {
        for i in 0..3 * TOGETHER as u32 + 7 {
            let now = Time(u64::from(i) << 40);
            let instance = i % MAX_NPUS.min(1000) + MAX_NPUS - 1000;
            let node = NodeIndex(i.wrapping_mul(0x9e37_79b9) >> 1);
            let kind = NodeKind::ALL[i as usize % 8];
            match i % 5 {
                0 => observer.issued(now, instance, node, kind),
                1 => observer.completed(now, instance, node, kind),
                2 => observer.began(now, instance, node),
                3 => observer.delayed(now, instance, node),
                _ => observer.ready(now, instance, node),
            }
            observer.collective(&CollectiveRecord {
                group: i,
                kind: CollectiveKind::AllReduce,
                buffer: 1,
                last_start: now,
                end: now,
                transfer: Span::ZERO,
                waited_for: None,
                waited: Span::ZERO,
                stepwise: false,
                materialized: false,
                messages: 0,
            });
        }
    }

    #[test]
    fn observers_are_told_the_same_at_once_later_and_beside() {
        let mut told = Diary::default();
        live(&mut told);
        let mut others = Diary::default();
        let ((), here) = relayed_here(Diary::default, Some(&mut others), |relay| live(relay));
        assert_eq!((&here, &others), (&told, &told));
        let (five, beside) = relayed_beside(Diary::default, None, |relay| {
            live(relay);
            5
        });
        assert_eq!((five, beside), (5, told));
    }

    #[test]
    #[should_panic(expected = "the observer's own")]
    fn panics_of_observers_reach_whoever_runs() {
        struct Nervous;
        impl Observer for Nervous {
            fn issued(&mut self, _: Time, _: u32, _: NodeIndex, _: NodeKind) {
                panic!("the observer's own");
            }
            fn completed(&mut self, _: Time, _: u32, _: NodeIndex, _: NodeKind) {}
            fn collective(&mut self, _: &CollectiveRecord) {}
        }
        relayed_beside(|| Nervous, None, |relay| live(relay));
    }
}
