//! What `top` prints: one training in seven lines, or all in a table.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::report::columns::{self, Align};
use crate::report::units;

use super::status::{Life, Status, Told};

/// Cells of the bar of memory.
const BAR_CELLS: u64 = 40;

/// One training. What it moves is told as rates since `before`, or, without one, of all steps.
pub(super) fn draw(status: &Status, before: Option<&Status>) -> String {
    let told = &status.told;
    let mut rows = vec![
        ["process", &head(status)].map(str::to_owned),
        ["steps", &steps(told)].map(str::to_owned),
        ["memory", &memory(told)].map(str::to_owned),
        ["host", &format!("{} pinned", units::bytes(told.pinned_host_bytes.current))]
            .map(str::to_owned),
        ["last step", &step(told)].map(str::to_owned),
    ];
    let since = before.map(|before| &before.told).filter(|before| before.steps < told.steps);
    rows.push(["moved".to_owned(), moved(told, since)]);
    rows.push(["waited".to_owned(), waited(told, since)]);
    if status.life == Life::Dead {
        rows.push(["ended".to_owned(), "without a word, so this is what it told last".to_owned()]);
    }
    columns::lines(&rows, Align::Left)
}

/// All trainings, a line each.
pub(super) fn list(trainings: &[Status]) -> String {
    let titles = ["pid", "device", "stage", "steps", "held", "cap", "command"].map(str::to_owned);
    let row = |status: &Status| {
        let told = &status.told;
        let stage = if status.life == Life::Dead { "dead" } else { &told.stage };
        [
            status.pid.to_string(),
            plain(&told.device),
            plain(stage),
            told.steps.to_string(),
            units::bytes(told.reserved_bytes.current),
            units::bytes(told.limit_bytes),
            plain(&told.command.join(" ")),
        ]
    };
    let rows: Vec<_> = std::iter::once(titles).chain(trainings.iter().map(row)).collect();
    columns::lines(&rows, Align::Left)
}

fn head(status: &Status) -> String {
    let told = &status.told;
    let rank = match told.n_ranks {
        0 | 1 => String::new(),
        ranks => format!(", rank {} of {ranks}", told.rank),
    };
    format!("{} on {}{rank}: {}", status.pid, plain(&told.device), plain(&told.command.join(" ")))
}

#[allow(clippy::disallowed_methods)] // How long ago the training told is part of what is shown.
fn steps(told: &Told) -> String {
    let by_stage = ["WarmUp", "SearchPolicy", "Stable"]
        .map(|stage| format!("{} {stage}", told.steps_by_stage.get(stage).copied().unwrap_or(0)));
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
    let ago_us = (now_s - told.written_s).max(0.0) * 1e6;
    format!(
        "{}, in {} now; told {} ago",
        by_stage.join(", "),
        plain(&told.stage),
        units::time(ago_us)
    )
}

fn memory(told: &Told) -> String {
    let cells = |size_bytes: u64| {
        let share = size_bytes.min(told.limit_bytes) as f64 / told.limit_bytes.max(1) as f64;
        (share * BAR_CELLS as f64).round() as usize
    };
    let (used, held) = (cells(told.active_bytes.current), cells(told.reserved_bytes.current));
    let bar: String = (0..BAR_CELLS as usize)
        .map(|cell| {
            if cell < used {
                '#'
            } else if cell < held {
                '-'
            } else {
                ' '
            }
        })
        .collect();
    let outside = match told.outside_bytes {
        0 => String::new(),
        size_bytes => format!(", {} of it outside", units::bytes(size_bytes)),
    };
    format!(
        "[{bar}] {} held of {}{outside}; tensors are {}, {} of them here",
        units::bytes(told.reserved_bytes.current),
        units::bytes(told.limit_bytes),
        units::bytes(told.requested_bytes.current),
        units::bytes(told.active_bytes.current),
    )
}

fn step(told: &Told) -> String {
    let time = units::time(told.last_step_us);
    if told.unlimited_us <= 0.0 {
        return time;
    }
    let ratio = told.last_step_us / told.unlimited_us;
    format!("{time}, {ratio:.2}x of {} with memory for all", units::time(told.unlimited_us))
}

fn moved(told: &Told, since: Option<&Told>) -> String {
    let Some(since) = since else {
        return format!(
            "{} out and {} in, {} run again",
            units::bytes(told.swapped_out_bytes),
            units::bytes(told.swapped_in_bytes),
            units::count(told.recomputed_ops, "op"),
        );
    };
    let steps = told.steps - since.steps;
    let elapsed_s = told.written_s - since.written_s;
    let way = |now: u64, then: u64| {
        let size_bytes = now.saturating_sub(then);
        let per_s = size_bytes as f64 / elapsed_s.max(1e-9);
        format!("{}/s, {} a step", units::bytes(per_s as u64), units::bytes(size_bytes / steps))
    };
    format!(
        "out {}; in {}; {} a step run again",
        way(told.swapped_out_bytes, since.swapped_out_bytes),
        way(told.swapped_in_bytes, since.swapped_in_bytes),
        units::count(told.recomputed_ops.saturating_sub(since.recomputed_ops) / steps, "op"),
    )
}

fn waited(told: &Told, since: Option<&Told>) -> String {
    let found = format!("{} misses and {} rescues in all", told.misses, told.rescues);
    let Some(since) = since else {
        return format!("{} for copies; {found}", units::time(told.stall_us));
    };
    let elapsed_us = (told.written_s - since.written_s) * 1e6;
    let share = units::percent((told.stall_us - since.stall_us).max(0.0), elapsed_us);
    format!("{share} of the time for copies; {found}")
}

/// Without what a terminal would act on.
fn plain(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::status::{Life, Status};
    use super::{draw, list};

    fn status(steps: u64, written_s: f64, moved_bytes: u64) -> Status {
        let level = |bytes: u64| serde_json::json!({ "current": bytes, "peak": bytes });
        let told = serde_json::json!({
            "started": 5, "command": ["python", "train.py\x1b[2J"], "device": "cuda:0",
            "rank": 1, "n_ranks": 2, "written_s": written_s, "stage": "Stable", "steps": steps,
            "steps_by_stage": { "WarmUp": 2, "SearchPolicy": 3, "Stable": steps - 5 },
            "limit_bytes": 8u64 << 30, "outside_bytes": 1u64 << 30,
            "requested_bytes": level(12 << 30), "active_bytes": level(4 << 30),
            "reserved_bytes": level(6 << 30), "pinned_host_bytes": level(9 << 30),
            "swapped_out_bytes": moved_bytes, "swapped_in_bytes": moved_bytes,
            "recomputed_ops": 4 * steps, "misses": 0, "rescues": 7,
            "stall_us": 25_000.0 * steps as f64, "last_step_us": 110_000.0,
            "unlimited_us": 100_000.0,
        });
        let told = serde_json::from_value(told).expect("all that is told");
        Status { pid: 77, life: Life::Running, told }
    }

    #[test]
    fn a_training_is_told_in_rates_since_it_was_seen_before() {
        let (before, now) = (status(10, 1000.0, 0), status(20, 1001.0, 5_000_000_000));
        let text = draw(&now, Some(&before));
        for expect in [
            "77 on cuda:0, rank 1 of 2: python train.py [2J\n",
            "2 WarmUp, 3 SearchPolicy, 15 Stable, in Stable now",
            "[####################----------          ] 6 GiB held of 8 GiB, 1 GiB of it outside;",
            "tensors are 12 GiB, 4 GiB of them here",
            "9 GiB pinned",
            "110 ms, 1.10x of 100 ms with memory for all",
            "out 4.66 GiB/s, 477 MiB a step; in 4.66 GiB/s, 477 MiB a step; 4 ops a step run again",
            "25 % of the time for copies; 0 misses and 7 rescues in all",
        ] {
            assert!(text.contains(expect), "{expect}\n{text}");
        }
        assert!(!text.contains('\x1b') && !text.contains("ended"), "{text}");
    }

    #[test]
    fn what_was_seen_once_is_told_of_all_steps() {
        let once = status(20, 1001.0, 5 << 30);
        for before in [None, Some(&once)] {
            let text = draw(&once, before);
            assert!(text.contains("5 GiB out and 5 GiB in, 80 ops run again"), "{text}");
            assert!(text.contains("500 ms for copies"), "{text}");
        }
    }

    #[test]
    fn the_dead_are_named() {
        let dead = Status { life: Life::Dead, ..status(20, 1001.0, 0) };
        assert!(draw(&dead, None).contains("ended      without a word"));
        let text = list(&[status(20, 1001.0, 0), dead]);
        let stages: Vec<&str> =
            text.lines().map(|line| line.split_whitespace().nth(2).expect("a stage")).collect();
        assert_eq!(stages, ["stage", "Stable", "dead"]);
    }
}
