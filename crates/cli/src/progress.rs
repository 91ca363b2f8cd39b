//! Progress of long work: on a terminal, and nowhere else.

use indicatif::{ProgressBar, ProgressStyle};

use crate::collect;
use crate::training::Progress;

/// Shows how far a run is. It goes away with its last handle.
#[derive(Debug)]
pub(crate) struct Meter {
    bar: ProgressBar,
}

impl Meter {
    /// A bar of `steps` steps on stderr, if that is a terminal.
    pub(crate) fn new(what: &'static str, steps: u64) -> Meter {
        let style = ProgressStyle::with_template("{prefix:<13} [{bar:24}] {pos}/{len} {msg}")
            .expect("the template is well formed");
        Meter { bar: ProgressBar::new(steps).with_style(style).with_prefix(what) }
    }

    /// One more step is complete.
    pub(crate) fn step(&self, progress: &Progress) {
        let loss = progress.loss.map_or_else(|| "?".to_owned(), |loss| format!("{loss:.4}"));
        let mode = collect::mode(progress.stage).name();
        let step_ms = progress.step_us / 1e3;
        self.bar.set_message(format!("{mode:<12}  loss {loss}  {step_ms:.0} ms a step"));
        self.bar.inc(1);
    }
}

/// Shows what a search is trying.
#[derive(Debug)]
pub(crate) struct Search {
    spinner: ProgressBar,
}

impl Search {
    pub(crate) fn new() -> Search {
        Search { spinner: ProgressBar::new_spinner() }
    }

    pub(crate) fn tries(&self, what: &str, size: usize) {
        self.spinner.set_message(format!("trying {size} {what}"));
        self.spinner.tick();
    }
}

impl Drop for Search {
    fn drop(&mut self) {
        self.spinner.finish_and_clear();
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
