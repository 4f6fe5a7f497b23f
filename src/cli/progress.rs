//! Progress of runs that take more than a second, on standard error if it is a terminal.
//!
//! The work stores its progress in an atomic number, which a separate thread draws, so the working loops need not read
//! a clock. The second is counted from the start of the program. So if several short pieces of work take longer than
//! that together, the later ones show their progress.

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

/// Time from the start of the program until progress is shown.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two updates of the line.
const TICK: Duration = Duration::from_millis(100);

/// Time at which the program started.
static STARTED: OnceLock<Instant> = OnceLock::new();
/// True if the last line on the terminal is a progress bar.
static DRAWN: AtomicBool = AtomicBool::new(false);

/// Records that the program starts now.
pub fn record_program_start() {
    STARTED.get_or_init(Instant::now);
}

/// Returns true if the last line on the terminal is a progress bar.
pub fn last_line_is_progress_bar() -> bool {
    DRAWN.load(Ordering::Relaxed)
}

/// Counts completed work, and shows the count until it is dropped.
pub struct ProgressDisplay {
    done: Arc<AtomicU64>,
    end: Arc<ProgressEndSignal>,
    note: Arc<Mutex<String>>,
    drawing: Option<JoinHandle<()>>,
}

/// Runs `work`, and shows only the elapsed time.
pub fn run_showing_elapsed_time<T>(doing: &'static str, work: impl FnOnce() -> T) -> T {
    let _progress = ProgressDisplay::start_counting(doing, "", 0);
    work()
}

/// Notifies the drawing thread when the work ends.
#[derive(Default)]
struct ProgressEndSignal {
    ended: Mutex<bool>,
    woken: Condvar,
}

impl ProgressEndSignal {
    fn lock_ended(&self) -> MutexGuard<'_, bool> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the work ends, but at most for `time`. Returns true if the work has ended.
    fn wait_for_end(&self, time: Duration) -> bool {
        let ended = self.lock_ended();
        let waited = self.woken.wait_timeout_while(ended, time, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl ProgressDisplay {
    /// Starts to count `total` items (0 if the number is unknown), which the display calls `unit`. `doing` is the name
    /// of the work, such as `replaying`.
    pub fn start_counting(doing: &'static str, unit: &'static str, total: u64) -> Self {
        let (done, end) = (
            Arc::new(AtomicU64::new(0)),
            Arc::<ProgressEndSignal>::default(),
        );
        let note = Arc::<Mutex<String>>::default();
        let shown = terminal::shows_progress();
        let drawing = shown.then(|| {
            let (done, end, note) = (Arc::clone(&done), Arc::clone(&end), Arc::clone(&note));
            thread::spawn(move || draw_until_end(doing, unit, total, &done, &end, &note))
        });
        Self {
            done,
            end,
            note,
            drawing,
        }
    }

    /// Returns true if progress is drawn on a terminal.
    pub fn is_shown(&self) -> bool {
        self.drawing.is_some()
    }

    /// Sets the number of items that are done.
    pub fn set_done(&self, done: u64) {
        self.done.store(done, Ordering::Relaxed);
    }

    /// Sets a note about the work, shown before the bar.
    pub fn set_note(&self, note: String) {
        if self.is_shown() {
            *self.note.lock().unwrap_or_else(PoisonError::into_inner) = note;
        }
    }

    /// Counts one more item as done.
    pub fn count_one(&self) {
        self.count_more(1);
    }

    /// Counts `more` items as done.
    pub fn count_more(&self, more: u64) {
        self.done.fetch_add(more, Ordering::Relaxed);
    }

    /// Returns an observer that counts the nodes that a replay completes; `None` if progress is not shown.
    pub fn node_observer(&self) -> Option<CompletedNodeCountingObserver<'_>> {
        self.is_shown()
            .then_some(CompletedNodeCountingObserver(self))
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        *self.end.lock_ended() = true;
        self.end.woken.notify_all();
        if let Some(drawing) = self.drawing.take() {
            // When the drawing thread ends, it clears its line. If it panicked, there is no line to clear, so ignore
            // the error.
            let _ = drawing.join();
        }
    }
}

fn draw_until_end(
    doing: &'static str,
    unit: &'static str,
    total: u64,
    done: &AtomicU64,
    end: &ProgressEndSignal,
    note: &Mutex<String>,
) {
    let template = match (total, unit) {
        (0, "") => "{msg} {spinner} {elapsed}",
        (0, _) => "{msg} {spinner} {human_pos} {prefix}, {rate}, {elapsed}",
        _ => "{msg} {wide_bar} {human_pos} of {human_len} {prefix}, {rate}, {left}",
    };
    let style = ProgressStyle::with_template(template).expect("the template is constant");
    // The bar is hidden at first but counts from the start, so that its rate and its remaining time
    // apply to the whole work.
    let hidden = ProgressDrawTarget::hidden();
    let bar = ProgressBar::with_draw_target((total > 0).then_some(total), hidden);
    bar.set_style(
        style
            .with_key("rate", write_rate)
            .with_key("left", write_time_left),
    );
    bar.set_message(doing);
    bar.set_prefix(unit);
    let program = STARTED.get_or_init(Instant::now);
    let mut shown = false;
    loop {
        if end.wait_for_end(TICK) {
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

/// Writes the remaining time. Until the first item is done, writes the elapsed time instead.
fn write_time_left(state: &ProgressState, out: &mut dyn fmt::Write) {
    // Ignore errors, because a terminal that accepts no output must not stop the work.
    let _ = match state.pos() {
        0 => write!(out, "{:#} so far", HumanDuration(state.elapsed())),
        _ => write!(out, "{:#} left", HumanDuration(state.eta())),
    };
}

/// Writes the number of items per second, without decimals if it is 10 or more.
fn write_rate(state: &ProgressState, out: &mut dyn fmt::Write) {
    let rate = state.per_sec();
    // Ignore errors, because a terminal that accepts no output must not stop the work.
    let _ = match rate < 10.0 {
        true => write!(out, "{rate:.1}/s"),
        false => write!(out, "{}/s", HumanCount(rate as u64)),
    };
}

/// Observer that counts the nodes that a replay completes.
pub struct CompletedNodeCountingObserver<'p>(&'p ProgressDisplay);

impl Observer for CompletedNodeCountingObserver<'_> {
    fn on_issued(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}

    #[inline]
    fn on_completed(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {
        self.0.count_one();
    }

    fn on_collective_ended(&mut self, _: &CollectiveRecord) {}
}

/// Sink that counts nodes and forwards them to another sink.
pub struct NodeCountingSink<'p, S>(pub &'p ProgressDisplay, pub &'p mut S);

impl<S: Sink> Sink for NodeCountingSink<'_, S> {
    fn receive_node(&mut self, node: &NodeView<'_>, data: &[u64]) -> Result<(), TraceError> {
        self.0.count_one();
        self.1.receive_node(node, data)
    }
}
