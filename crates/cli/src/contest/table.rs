//! The table of `compare`: a row for each strategy.

use super::{Contest, Row};
use crate::report::columns::{self, Align};
use crate::report::units;

const COLUMNS: [&str; 11] = [
    "strategy",
    "fits",
    "step",
    "overhead",
    "peak",
    "out",
    "in",
    "recomputed",
    "stalls",
    "misses+rescues",
    "gap",
];

/// One contest as text, ending with a line break.
pub(super) fn text(contest: &Contest) -> String {
    let share = units::percent(contest.budget_bytes as f64, contest.peak_before_bytes as f64);
    let mut text = format!(
        "{}: a budget of {} ({share} of its peak); with memory for everything a step takes {} ms\n",
        contest.trace,
        units::bytes(contest.budget_bytes),
        milliseconds(contest.baseline_us)
    );
    if let Some(parts) = &contest.in_parts {
        text.push_str(&format!("{parts}\n"));
    }
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    rows.extend(contest.strategies.iter().map(cells));
    text.push_str(&columns::lines(&rows, Align::Right));
    for row in &contest.strategies {
        if let Some(reason) = &row.gap_reason {
            text.push_str(&format!("{}: {reason}\n", row.strategy));
        }
    }
    text
}

fn cells(row: &Row) -> [String; 11] {
    let none = || "-".to_owned();
    if let Some(missing_bytes) = row.infeasible {
        let short = format!("no, {} short", units::bytes(missing_bytes));
        let mut cells = std::array::from_fn(|_| none());
        cells[0] = row.strategy.to_owned();
        cells[1] = short;
        return cells;
    }
    let bytes = |bytes: u64| if bytes == 0 { none() } else { units::bytes(bytes) };
    let time = |us: f64| if us < 0.5 { none() } else { format!("{} ms", milliseconds(us)) };
    let unplanned = row.misses + row.rescues;
    [
        row.strategy.to_owned(),
        "yes".to_owned(),
        format!("{} ms", milliseconds(row.step_us)),
        format!("{:.1} %", 100.0 * row.overhead_fraction.max(0.0)),
        units::bytes(row.peak_bytes),
        bytes(row.swapped_out_bytes),
        bytes(row.swapped_in_bytes),
        time(row.recomputed_us),
        time(row.stall_us),
        if unplanned == 0 { none() } else { format!("{}+{}", row.misses, row.rescues) },
        row.gap_fraction.map_or_else(none, |gap| format!("{:.1} %", 100.0 * gap)),
    ]
}

fn milliseconds(us: f64) -> String {
    format!("{:.1}", us / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_a_shortfall_is_said() {
        let row = |strategy, infeasible: Option<u64>| Row {
            strategy,
            fits: infeasible.is_none(),
            infeasible,
            step_us: 2_500.0,
            overhead_fraction: 0.25,
            peak_bytes: 3 << 20,
            swapped_out_bytes: 1 << 20,
            swapped_in_bytes: 0,
            recomputed_us: 0.0,
            stall_us: 500.0,
            misses: 2,
            rescues: 1,
            bound_us: None,
            gap_fraction: Some(0.04),
            gap_reason: Some("gap 4.0 %: it waits".to_owned()),
        };
        let contest = Contest {
            trace: "small".to_owned(),
            budget_bytes: 4 << 20,
            peak_before_bytes: 8 << 20,
            baseline_us: 2_000.0,
            in_parts: None,
            strategies: vec![row("keep", None), row("swap", Some(5 << 20))],
        };
        let text = text(&contest);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 6);
        assert_eq!(lines[4], "keep: gap 4.0 %: it waits");
        assert!(lines[0].contains("4 MiB (50 % of its peak)"), "{text}");
        for expect in ["yes", "2.5 ms", "25.0 %", "0.5 ms", "2+1", "4.0 %"] {
            assert!(lines[2].contains(expect), "{text}");
        }
        assert!(lines[3].contains("no, 5 MiB short") && !lines[3].contains("2.5"), "{text}");
        assert_eq!(lines[1].len(), lines[2].len());
    }
}
