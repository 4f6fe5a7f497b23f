//! An observer that connects the event loop with a report's observers. It collects events in batches, which a second
//! thread delivers to the report's observers.
//!
//! The event loop only writes 16 bytes per node event. The second thread processes the batches in order: it computes
//! sums, memory and the critical path. The results are therefore the same as if the loop called the observers directly.

use super::{CollectiveRecord, Observer};
use chakram_base::ids::{MAX_NPUS, NodeIndex};
use chakram_base::interrupt::wrap_with_current_token;
use chakram_base::units::Time;
use chakram_engine::InstanceId;
use chakram_engine::{
    EventAndTileGroupCounts, ProcessorJobStartAndEnd, ProcessorKernelJob, ProgramLaunchRecord,
};
use chakram_hardware::network::{BytesOverOneLink, LinkAndPortBusyTimes};
use chakram_trace::graph::NodeKind;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;

/// Minimum number of nodes for which a run starts a second thread. Delivering the events of 20,000 nodes takes a
/// millisecond; starting a thread takes a tenth of a millisecond.
const LEAST_NODES: u64 = 20_000;
/// Maximum number of events in a batch. Such batches fit into the cache, and the threads rarely synchronize.
const BATCH: usize = 4096;
/// Maximum number of batches in the queue; if the queue is full, the event loop waits.
const QUEUED_BATCHES: usize = 32;

/// Type of a node's event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum NodeEventType {
    Issued,
    Completed,
    Began,
    Delayed,
    Ready,
    MemberWait,
}

/// A node's event, packed into 16 bytes.
#[derive(Clone, Copy, Debug)]
struct PackedNodeEvent {
    at: Time,
    /// Index of the instance, node kind and event type, packed into one number.
    what: u32,
    node: NodeIndex,
}

const KIND_AT: u32 = 22;
const STEP_AT: u32 = 26;
const _: () = assert!(MAX_NPUS <= 1 << KIND_AT, "instances have room");

impl PackedNodeEvent {
    #[inline]
    fn new(
        step: NodeEventType,
        at: Time,
        instance: InstanceId,
        node: NodeIndex,
        kind: NodeKind,
    ) -> Self {
        let what = instance.0 | (kind as u32) << KIND_AT | (step as u32) << STEP_AT;
        Self { at, what, node }
    }

    #[inline]
    fn deliver_to(self, observer: &mut impl Observer) {
        let Self { at, what, node } = self;
        let instance = InstanceId(what & ((1 << KIND_AT) - 1));
        let kind = NodeKind::ALL[(what >> KIND_AT & 15) as usize];
        match what >> STEP_AT {
            0 => observer.on_issued(at, instance, node, kind),
            1 => observer.on_completed(at, instance, node, kind),
            2 => observer.on_transfer_began(at, instance, node),
            3 => observer.on_delay_began(at, instance, node),
            4 => observer.on_ready(at, instance, node),
            _ => observer.on_member_wait(at, instance, node),
        }
    }
}

/// A batch of events: the node events in order, then the collective events in order. This reordering changes no
/// results, because no observer of a report depends on how the two kinds of events interleave.
#[derive(Debug, Default)]
struct ObserverEventBatch {
    steps: Vec<PackedNodeEvent>,
    collectives: Vec<CollectiveRecord>,
}

impl ObserverEventBatch {
    /// Delivers all events to `observer`, and empties the batch.
    fn deliver_to(&mut self, observer: &mut impl Observer) {
        for step in self.steps.drain(..) {
            step.deliver_to(observer);
        }
        for record in self.collectives.drain(..) {
            observer.on_collective_ended(&record);
        }
    }
}

/// Destination of full batches.
enum EventBatchTarget<'t> {
    /// The observers, on this thread.
    Here(&'t mut dyn FnMut(&mut ObserverEventBatch)),
    /// Another thread, which delivers full batches to the observers and sends empty batches back.
    Beside {
        full: SyncSender<ObserverEventBatch>,
        empty: Receiver<ObserverEventBatch>,
    },
}

/// An observer that passes events to the report's observers in batches, and to the observers
/// `others` immediately.
pub struct ObserverRelay<'t, 'o> {
    batch: ObserverEventBatch,
    target: EventBatchTarget<'t>,
    others: Option<&'o mut dyn Observer>,
    links: Option<Vec<BytesOverOneLink>>,
    network: Option<LinkAndPortBusyTimes>,
    counts: Option<EventAndTileGroupCounts>,
}

/// Calls `run` with a relay to the observers that `watch` creates; `run` processes `nodes` nodes. Returns the result of
/// `run`, and the observers after all events were delivered to them. `watch` runs on the thread that delivers the
/// events.
pub fn run_with_observer_relay<W: Observer + Send, T>(
    nodes: u64,
    watch: impl FnOnce() -> W + Send,
    others: Option<&mut dyn Observer>,
    run: impl FnOnce(&mut ObserverRelay<'_, '_>) -> T,
) -> (T, W) {
    if nodes < LEAST_NODES {
        return run_and_deliver_events_on_same_thread(watch, others, run);
    }
    run_with_relay_on_other_thread(watch, others, run)
}

fn run_and_deliver_events_on_same_thread<W: Observer, T>(
    watch: impl FnOnce() -> W,
    others: Option<&mut dyn Observer>,
    run: impl FnOnce(&mut ObserverRelay<'_, '_>) -> T,
) -> (T, W) {
    let mut watching = watch();
    let mut here = |batch: &mut ObserverEventBatch| batch.deliver_to(&mut watching);
    let mut relay = ObserverRelay::new(EventBatchTarget::Here(&mut here), others);
    let result = run(&mut relay);
    let end = relay.flush_and_take_end_statistics();
    end.deliver_to(&mut watching);
    (result, watching)
}

fn run_with_relay_on_other_thread<W: Observer + Send, T>(
    watch: impl FnOnce() -> W + Send,
    others: Option<&mut dyn Observer>,
    run: impl FnOnce(&mut ObserverRelay<'_, '_>) -> T,
) -> (T, W) {
    let (full, batches) = sync_channel::<ObserverEventBatch>(QUEUED_BATCHES);
    let (back, empty) = channel();
    thread::scope(|scope| {
        let delivery = scope.spawn(wrap_with_current_token(move || {
            let mut watching = watch();
            for mut batch in batches {
                batch.deliver_to(&mut watching);
                // After the run, sending fails because no thread receives empty batches any more. Ignore this error.
                let _ = back.send(batch);
            }
            watching
        }));
        let mut relay = ObserverRelay::new(EventBatchTarget::Beside { full, empty }, others);
        let result = run(&mut relay);
        let end = relay.flush_and_take_end_statistics();
        match delivery.join() {
            Ok(mut watching) => {
                end.deliver_to(&mut watching);
                (result, watching)
            }
            Err(cause) => std::panic::resume_unwind(cause),
        }
    })
}

/// Results that the event loop reports only once, when a run ends.
struct RunEndStatistics {
    links: Option<Vec<BytesOverOneLink>>,
    network: Option<LinkAndPortBusyTimes>,
    counts: Option<EventAndTileGroupCounts>,
}

impl RunEndStatistics {
    fn deliver_to(&self, observer: &mut impl Observer) {
        if let Some(loads) = &self.links {
            observer.on_link_loads_measured(loads);
        }
        if let Some(occupancy) = &self.network {
            observer.on_link_and_memory_port_busy_times(occupancy);
        }
        if let Some(counts) = &self.counts {
            observer.on_event_loop_statistics(counts);
        }
    }
}

impl<'t, 'o> ObserverRelay<'t, 'o> {
    fn new(target: EventBatchTarget<'t>, others: Option<&'o mut dyn Observer>) -> Self {
        Self {
            batch: ObserverEventBatch::default(),
            target,
            others,
            links: None,
            network: None,
            counts: None,
        }
    }

    /// Delivers the last batch, closes the queue to the other thread, and returns the results that the loop reported at
    /// the end of the run.
    fn flush_and_take_end_statistics(mut self) -> RunEndStatistics {
        self.flush_batch();
        RunEndStatistics {
            links: self.links,
            network: self.network,
            counts: self.counts,
        }
    }

    #[inline]
    fn add_node_event_to_batch(&mut self, step: PackedNodeEvent) {
        self.batch.steps.push(step);
        if self.batch.steps.len() >= BATCH {
            self.flush_batch();
        }
    }

    #[cold]
    fn flush_batch(&mut self) {
        match &mut self.target {
            EventBatchTarget::Here(deliver) => deliver(&mut self.batch),
            EventBatchTarget::Beside { full, empty } => {
                let next = empty.try_recv().unwrap_or_default();
                let batch = std::mem::replace(&mut self.batch, next);
                // Sending fails only if the other thread panicked. Ignore this error, because joining that thread
                // propagates the panic.
                let _ = full.send(batch);
            }
        }
    }
}

impl Observer for ObserverRelay<'_, '_> {
    #[inline]
    fn on_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        self.add_node_event_to_batch(PackedNodeEvent::new(
            NodeEventType::Issued,
            now,
            instance,
            node,
            kind,
        ));
        if let Some(others) = &mut self.others {
            others.on_issued(now, instance, node, kind);
        }
    }

    #[inline]
    fn on_completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        self.add_node_event_to_batch(PackedNodeEvent::new(
            NodeEventType::Completed,
            now,
            instance,
            node,
            kind,
        ));
        if let Some(others) = &mut self.others {
            others.on_completed(now, instance, node, kind);
        }
    }

    #[inline]
    fn on_transfer_began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        let kind = NodeKind::Collective;
        self.add_node_event_to_batch(PackedNodeEvent::new(
            NodeEventType::Began,
            now,
            instance,
            node,
            kind,
        ));
        if let Some(others) = &mut self.others {
            others.on_transfer_began(now, instance, node);
        }
    }

    fn on_collective_ended(&mut self, record: &CollectiveRecord) {
        self.batch.collectives.push(*record);
        if self.batch.collectives.len() >= BATCH {
            self.flush_batch();
        }
        if let Some(others) = &mut self.others {
            others.on_collective_ended(record);
        }
    }

    #[inline]
    fn on_delay_began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        // No observer uses a node's kind before the node is issued, so any kind will do here.
        let kind = NodeKind::Nothing;
        self.add_node_event_to_batch(PackedNodeEvent::new(
            NodeEventType::Delayed,
            now,
            instance,
            node,
            kind,
        ));
        if let Some(others) = &mut self.others {
            others.on_delay_began(now, instance, node);
        }
    }

    #[inline]
    fn on_ready(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        let kind = NodeKind::Nothing;
        self.add_node_event_to_batch(PackedNodeEvent::new(
            NodeEventType::Ready,
            now,
            instance,
            node,
            kind,
        ));
        if let Some(others) = &mut self.others {
            others.on_ready(now, instance, node);
        }
    }

    #[inline]
    fn on_member_wait(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        let kind = NodeKind::Collective;
        self.add_node_event_to_batch(PackedNodeEvent::new(
            NodeEventType::MemberWait,
            now,
            instance,
            node,
            kind,
        ));
        if let Some(others) = &mut self.others {
            others.on_member_wait(now, instance, node);
        }
    }

    // Observers of a report do not use this event, so only the other observers get it.
    #[inline]
    fn on_lane_wait(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        if let Some(others) = &mut self.others {
            others.on_lane_wait(now, instance, node);
        }
    }

    // Reports of a single launch do not use the three events below, so only the other observers get them.

    fn on_launch_began(&mut self, now: Time, launch: &ProgramLaunchRecord) {
        if let Some(others) = &mut self.others {
            others.on_launch_began(now, launch);
        }
    }

    fn on_all_launch_nodes_complete(&mut self, now: Time, launch: &ProgramLaunchRecord) {
        if let Some(others) = &mut self.others {
            others.on_all_launch_nodes_complete(now, launch);
        }
    }

    fn on_kernel_scheduled(
        &mut self,
        now: Time,
        job: &ProcessorKernelJob,
        times: &ProcessorJobStartAndEnd,
    ) {
        if let Some(others) = &mut self.others {
            others.on_kernel_scheduled(now, job, times);
        }
    }

    fn on_link_loads_measured(&mut self, loads: &[BytesOverOneLink]) {
        self.links = Some(loads.to_vec());
        if let Some(others) = &mut self.others {
            others.on_link_loads_measured(loads);
        }
    }

    fn on_link_and_memory_port_busy_times(&mut self, occupancy: &LinkAndPortBusyTimes) {
        self.network = Some(occupancy.clone());
        if let Some(others) = &mut self.others {
            others.on_link_and_memory_port_busy_times(occupancy);
        }
    }

    fn on_event_loop_statistics(&mut self, counts: &EventAndTileGroupCounts) {
        self.counts = Some(counts.clone());
        if let Some(others) = &mut self.others {
            others.on_event_loop_statistics(counts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chakram_base::units::Span;
    use chakram_engine::ReplayGroupId;
    use chakram_trace::format::CollectiveKind;

    /// An observer that stores all calls, so that tests can compare them.
    #[derive(Debug, Default, PartialEq)]
    struct CallRecordingObserver {
        steps: Vec<(u32, u64, u32, u32, u8)>,
        groups: Vec<u32>,
    }

    impl Observer for CallRecordingObserver {
        fn on_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
            let row = (0, now.0, instance.0, node.0, kind as u8);
            self.steps.push(row);
        }
        fn on_completed(
            &mut self,
            now: Time,
            instance: InstanceId,
            node: NodeIndex,
            kind: NodeKind,
        ) {
            let row = (1, now.0, instance.0, node.0, kind as u8);
            self.steps.push(row);
        }
        fn on_transfer_began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
            self.steps.push((2, now.0, instance.0, node.0, 0));
        }
        fn on_delay_began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
            self.steps.push((3, now.0, instance.0, node.0, 0));
        }
        fn on_ready(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
            self.steps.push((4, now.0, instance.0, node.0, 0));
        }
        fn on_member_wait(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
            self.steps.push((5, now.0, instance.0, node.0, 0));
        }
        fn on_collective_ended(&mut self, record: &CollectiveRecord) {
            self.groups.push(record.group.0);
        }
    }

    /// Sends many events of all types to `observer`, including events with the largest indices and times.
    fn send_many_events_to_observer(observer: &mut impl Observer) {
        for i in 0..3 * BATCH as u32 + 7 {
            let now = Time(u64::from(i) << 40);
            let instance = InstanceId(i % MAX_NPUS.min(1000) + MAX_NPUS - 1000);
            let node = NodeIndex(i.wrapping_mul(0x9e37_79b9) >> 1);
            let kind = NodeKind::ALL[i as usize % NodeKind::ALL.len()];
            match i % 6 {
                0 => observer.on_issued(now, instance, node, kind),
                1 => observer.on_completed(now, instance, node, kind),
                2 => observer.on_transfer_began(now, instance, node),
                3 => observer.on_delay_began(now, instance, node),
                4 => observer.on_ready(now, instance, node),
                _ => observer.on_member_wait(now, instance, node),
            }
            observer.on_collective_ended(&CollectiveRecord {
                group: ReplayGroupId(i),
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
    fn observers_receive_the_same_at_once_in_batches_and_on_a_thread() {
        let mut direct = CallRecordingObserver::default();
        send_many_events_to_observer(&mut direct);
        let mut others = CallRecordingObserver::default();
        let ((), here) = run_and_deliver_events_on_same_thread(
            CallRecordingObserver::default,
            Some(&mut others),
            |relay| send_many_events_to_observer(relay),
        );
        assert_eq!((&here, &others), (&direct, &direct));
        let (five, beside) =
            run_with_relay_on_other_thread(CallRecordingObserver::default, None, |relay| {
                send_many_events_to_observer(relay);
                5
            });
        assert_eq!((five, beside), (5, direct));
    }

    #[test]
    #[should_panic(expected = "the observer's own")]
    fn panics_of_observers_reach_the_caller() {
        struct PanickingObserver;
        impl Observer for PanickingObserver {
            fn on_issued(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {
                panic!("the observer's own");
            }
            fn on_completed(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}
            fn on_collective_ended(&mut self, _: &CollectiveRecord) {}
        }
        run_with_relay_on_other_thread(
            || PanickingObserver,
            None,
            |relay| send_many_events_to_observer(relay),
        );
    }
}
