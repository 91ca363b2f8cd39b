//! The short table that the terminal shows, and whose rows the page shows too.

use super::columns::{self, Align};
use super::run::{Mode, Run};
use super::summary::{self, Figures};
use super::units;

/// What is printed where there is nothing to say.
const NONE: &str = "-";

/// One row: what it is about, then a cell for each mode and one for the uncapped run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// What the figures are.
    pub(super) name: &'static str,
    /// The figures.
    pub(super) cells: [String; 4],
}

/// Names of the columns behind the first.
pub(super) const COLUMNS: [&str; 4] = ["WarmUp", "SearchPolicy", "Stable", "uncapped"];

/// The rows of the table.
pub(super) fn rows(run: &Run) -> Vec<Row> {
    let figures = Mode::ALL.map(|mode| Figures::of_mode(run, mode));
    let row = |name, show: &dyn Fn(&Figures) -> String, uncapped: String| {
        let [warm_up, search, stable] = figures
            .each_ref()
            .map(|figures| if figures.steps == 0 { NONE.to_owned() } else { show(figures) });
        Row { name, cells: [warm_up, search, stable, uncapped] }
    };
    let none = || NONE.to_owned();
    let moved = |pick: fn(&Figures) -> u64| move |figures: &Figures| units::bytes(pick(figures));
    let counted =
        |pick: fn(&Figures) -> u64| move |figures: &Figures| units::thousands(pick(figures));
    vec![
        row("steps", &counted(|figures| figures.steps), none()),
        row(
            "time per step",
            &|figures| units::time_or_unknown(figures.step_us),
            run.step_us_uncapped.map_or_else(none, units::time),
        ),
        row(
            "peak memory",
            &moved(|figures| figures.held_bytes_peak),
            run.peak_uncapped_bytes.map_or_else(none, units::bytes),
        ),
        row("swapped out per step", &moved(|figures| figures.swapped_out_bytes), none()),
        row("swapped in per step", &moved(|figures| figures.swapped_in_bytes), none()),
        row("recomputed ops per step", &counted(|figures| figures.recomputed_ops), none()),
        row("stall per step", &|figures| units::time(figures.stall_us), none()),
        row("misses", &counted(|figures| figures.misses), none()),
        row("rescues", &counted(|figures| figures.rescues), none()),
    ]
}

/// The table as text: aligned columns and two closing lines, ending with a line break.
pub(crate) fn text(run: &Run) -> String {
    let rows = rows(run);
    let line = |name: &str, cells: [String; 4]| {
        let [warm_up, search, stable, uncapped] = cells;
        [name.to_owned(), warm_up, search, stable, uncapped]
    };
    let mut lines = vec![line("", COLUMNS.map(str::to_owned))];
    lines.extend(rows.into_iter().map(|row| line(row.name, row.cells)));
    let mut text = columns::lines(&lines, Align::Right);
    text.push_str(&format!(
        "\npeak on the device {} of a cap of {}\n{}\n",
        units::bytes(run.peak_device_bytes),
        units::bytes(run.memory_limit_bytes),
        summary::headline(run)
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::text;
    use crate::report::run::Mode;
    use crate::report::sample;

    #[test]
    fn the_table_is_aligned_and_complete() {
        let table = text(&sample::swapping());
        let expected = "                          WarmUp  SearchPolicy   Stable  uncapped
steps                          3             5       16         -
time per step             131 ms       97.6 ms  84.2 ms   79.4 ms
peak memory              412 MiB       412 MiB  412 MiB   859 MiB
swapped out per step     230 MiB       210 MiB  205 MiB         -
swapped in per step      230 MiB       210 MiB  205 MiB         -
recomputed ops per step        0            12       12         -
stall per step           38.2 ms       8.41 ms   410 µs         -
misses                        21             2        0         -
rescues                       30             3        0         -

peak on the device 412 MiB of a cap of 430 MiB
Trained in 48 % of the memory at 1.06x the time; losses and weights identical bit for bit.
";
        assert_eq!(table, expected);
    }

    #[test]
    fn modes_without_steps_and_unknown_figures_are_dashes() {
        let mut run = sample::swapping();
        run.steps.retain(|step| step.mode == Mode::WarmUp);
        run.step_us_uncapped = None;
        run.peak_uncapped_bytes = None;
        let table = text(&run);
        let line = table.lines().find(|line| line.starts_with("time per step")).unwrap();
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells, ["time", "per", "step", "131", "ms", "-", "-", "-"]);
    }
}
