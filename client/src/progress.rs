//! Progress of long work, on a terminal's stderr only.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use pappus_client::functions::Step;

/// How often a spinner turns.
const TICK: Duration = Duration::from_millis(100);

/// A line that vanishes when the work is done.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Work of unknown length.
    pub(crate) fn spinner(message: &str) -> Self {
        let bar = ProgressBar::new_spinner().with_message(message.to_owned());
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    /// What it is doing now.
    pub(crate) fn says(&self, message: &str) {
        self.0.set_message(message.to_owned());
    }

    /// A number of calls.
    pub(crate) fn calls(count: u64) -> Self {
        Self(styled(ProgressBar::new(count), "{bar:40} {pos}/{len} calls, {eta} left"))
    }

    /// One call more is done.
    pub(crate) fn call_done(&self) {
        self.0.inc(1);
    }

    /// Shows a step of a registration.
    pub(crate) fn step(&mut self, step: Step<'_>) {
        match step {
            Step::Upload { path, done_bytes, total_bytes } => {
                if self.0.length().is_none() {
                    let bar = styled(ProgressBar::new(total_bytes), "{bar:40} {bytes}/{total_bytes} {msg}");
                    bar.enable_steady_tick(TICK);
                    self.0 = bar;
                }
                self.0.set_position(done_bytes);
                self.0.set_message(path.display().to_string());
            }
            Step::Register => *self = Self::spinner("checking and compiling"),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        // The default style is good enough for a template that is wrong.
        Err(_) => bar,
    }
}
