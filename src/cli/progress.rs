//! Progress of runs that take more than a second: on standard error, where that is a terminal.
//!
//! Work stores how far it is in an atomic number; a thread draws it, so loops ask no clock.

use super::terminal;
use crate::graph::NodeKind;
use crate::ids::NodeIndex;
use crate::report::{CollectiveRecord, Observer};
use crate::trace::TraceError;
use crate::trace::scan::NodeView;
use crate::trace::write::Sink;
use crate::units::Time;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Time before anything is shown.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two drawings.
const TICK: Duration = Duration::from_millis(100);

/// Counter of finished work, which is drawn until it is dropped.
pub struct Progress {
    done: Arc<AtomicU64>,
    end: Arc<EndSignal>,
    note: Arc<Mutex<String>>,
    drawing: Option<JoinHandle<()>>,
}

/// Wakes the thread that draws when the work has ended.
#[derive(Default)]
struct EndSignal {
    ended: Mutex<bool>,
    woken: Condvar,
}

impl EndSignal {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `time` and returns whether the work has ended.
    fn wait(&self, time: Duration) -> bool {
        let ended = self.lock();
        let waited = self.woken.wait_timeout_while(ended, time, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Progress {
    /// Starts to count `total` things called `unit`; `doing` names the work, such as `replaying`.
    pub fn start(doing: &'static str, unit: &'static str, total: u64) -> Self {
        let (done, end) = (Arc::new(AtomicU64::new(0)), Arc::<EndSignal>::default());
        let note = Arc::<Mutex<String>>::default();
        let shown = !terminal::is_quiet() && io::stderr().is_terminal();
        let drawing = shown.then(|| {
            let (done, end, note) = (Arc::clone(&done), Arc::clone(&end), Arc::clone(&note));
            thread::spawn(move || draw(doing, unit, total, &done, &end, &note))
        });
        Self {
            done,
            end,
            note,
            drawing,
        }
    }

    /// Returns whether anybody sees it.
    pub fn is_shown(&self) -> bool {
        self.drawing.is_some()
    }

    /// Sets the number of things that are done.
    pub fn set(&self, done: u64) {
        self.done.store(done, Ordering::Relaxed);
    }

    /// Sets what is said of the work in front of the bar.
    pub fn say(&self, note: String) {
        if self.is_shown() {
            *self.note.lock().unwrap_or_else(PoisonError::into_inner) = note;
        }
    }

    /// Counts one more thing.
    pub fn inc(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns an observer that counts the nodes that complete in a replay, if anybody sees the progress.
    pub fn observer(&self) -> Option<NodeCounter<'_>> {
        self.is_shown().then_some(NodeCounter(self))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        *self.end.lock() = true;
        self.end.woken.notify_all();
        if let Some(drawing) = self.drawing.take() {
            // A thread that draws clears its line at last; if it panicked, nothing is to be cleared.
            let _ = drawing.join();
        }
    }
}

fn draw(
    doing: &'static str,
    unit: &'static str,
    total: u64,
    done: &AtomicU64,
    end: &EndSignal,
    note: &Mutex<String>,
) {
    if end.wait(PATIENCE) {
        return;
    }
    let template = "{msg} {wide_bar} {human_pos} of {human_len} {prefix}, {per_sec}, {eta} left";
    let style = ProgressStyle::with_template(template).expect("the template is constant");
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    // What was done before the bar appeared counts towards the rate.
    let bar = bar.with_elapsed(PATIENCE).with_style(style);
    bar.set_message(doing);
    bar.set_prefix(unit);
    loop {
        bar.set_position(done.load(Ordering::Relaxed));
        let note = note.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !note.is_empty() {
            bar.set_message(format!("{doing} ({note})"));
        }
        bar.tick();
        if end.wait(TICK) {
            break;
        }
    }
    bar.finish_and_clear();
}

/// Observer that counts completed nodes.
pub struct NodeCounter<'p>(&'p Progress);

impl Observer for NodeCounter<'_> {
    fn issued(&mut self, _: Time, _: u32, _: NodeIndex, _: NodeKind) {}

    #[inline]
    fn completed(&mut self, _: Time, _: u32, _: NodeIndex, _: NodeKind) {
        self.0.inc();
    }

    fn collective(&mut self, _: &CollectiveRecord) {}
}

/// Sink that counts nodes on their way into another.
pub struct CountedSink<'p, S>(pub &'p Progress, pub &'p mut S);

impl<S: Sink> Sink for CountedSink<'_, S> {
    fn node(&mut self, node: &NodeView<'_>, data: &[u64]) -> Result<(), TraceError> {
        self.0.inc();
        self.1.node(node, data)
    }
}
