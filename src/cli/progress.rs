//! Progress of runs that take more than a second: on standard error, where that is a terminal.
//!
//! Work stores how far it is in an atomic number; a thread draws it, so loops ask no clock. The second counts from the start
//! of the program, so that of several short pieces of work those after it are shown.

use super::terminal;
use chakram_base::ids::NodeIndex;
use chakram_base::units::Time;
use chakram_engine::InstanceId;
use chakram_report::{CollectiveRecord, Observer};
use chakram_trace::format::TraceError;
use chakram_trace::format::scan::NodeView;
use chakram_trace::format::write::Sink;
use chakram_trace::graph::NodeKind;
use indicatif::{
    HumanCount, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle,
};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time before anything is shown.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two drawings.
const TICK: Duration = Duration::from_millis(100);

/// Start of the program.
static STARTED: OnceLock<Instant> = OnceLock::new();
/// Whether a bar stands in the last line of the terminal.
static DRAWN: AtomicBool = AtomicBool::new(false);

/// Marks the start of the program.
pub fn started() {
    STARTED.get_or_init(Instant::now);
}

/// Returns whether a bar stands in the last line of the terminal.
pub fn is_drawn() -> bool {
    DRAWN.load(Ordering::Relaxed)
}

/// Counter of finished work, which is drawn until it is dropped.
pub struct Progress {
    done: Arc<AtomicU64>,
    end: Arc<EndSignal>,
    note: Arc<Mutex<String>>,
    drawing: Option<JoinHandle<()>>,
}

/// Does `work`, whose parts are not counted: its time is shown.
pub fn shown<T>(doing: &'static str, work: impl FnOnce() -> T) -> T {
    let _progress = Progress::start(doing, "", 0);
    work()
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
    /// Starts to count `total` things called `unit`, or an unknown number if it is 0; `doing` names the work, such as
    /// `replaying`.
    pub fn start(doing: &'static str, unit: &'static str, total: u64) -> Self {
        let (done, end) = (Arc::new(AtomicU64::new(0)), Arc::<EndSignal>::default());
        let note = Arc::<Mutex<String>>::default();
        let shown = terminal::shows_progress();
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
        self.add(1);
    }

    /// Counts `more` things.
    pub fn add(&self, more: u64) {
        self.done.fetch_add(more, Ordering::Relaxed);
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
    let template = match (total, unit) {
        (0, "") => "{msg} {spinner} {elapsed}",
        (0, _) => "{msg} {spinner} {human_pos} {prefix}, {rate}, {elapsed}",
        _ => "{msg} {wide_bar} {human_pos} of {human_len} {prefix}, {rate}, {left}",
    };
    let style = ProgressStyle::with_template(template).expect("the template is constant");
    // Hidden until it is worth a line, and yet drawn: the rate and the time left are those of all the work.
    let hidden = ProgressDrawTarget::hidden();
    let bar = ProgressBar::with_draw_target((total > 0).then_some(total), hidden);
    bar.set_style(style.with_key("rate", rate).with_key("left", left));
    bar.set_message(doing);
    bar.set_prefix(unit);
    let program = STARTED.get_or_init(Instant::now);
    let mut shown = false;
    loop {
        if end.wait(TICK) {
            break;
        }
        if !shown && program.elapsed() >= PATIENCE {
            shown = true;
            bar.set_draw_target(ProgressDrawTarget::stderr());
            DRAWN.store(true, Ordering::Relaxed);
        }
        bar.set_position(done.load(Ordering::Relaxed));
        let note = note.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !note.is_empty() {
            bar.set_message(format!("{doing} ({note})"));
        }
        bar.tick();
    }
    bar.finish_and_clear();
    DRAWN.store(false, Ordering::Relaxed);
}

/// Writes the time left; before anything is done it is unknown, and the time that has passed says more.
fn left(state: &ProgressState, out: &mut dyn fmt::Write) {
    // As below.
    let _ = match state.pos() {
        0 => write!(out, "{:#} so far", HumanDuration(state.elapsed())),
        _ => write!(out, "{:#} left", HumanDuration(state.eta())),
    };
}

/// Writes things per second: whole numbers where they are large.
fn rate(state: &ProgressState, out: &mut dyn fmt::Write) {
    let rate = state.per_sec();
    // A terminal that takes no more is no concern of the work.
    let _ = match rate < 10.0 {
        true => write!(out, "{rate:.1}/s"),
        false => write!(out, "{}/s", HumanCount(rate as u64)),
    };
}

/// Observer that counts completed nodes.
pub struct NodeCounter<'p>(&'p Progress);

impl Observer for NodeCounter<'_> {
    fn issued(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}

    #[inline]
    fn completed(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {
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
