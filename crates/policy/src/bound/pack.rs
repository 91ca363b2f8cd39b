//! The best choice of windows that do not overlap.

use super::window::Window;

/// Windows looked at, at most: those that are worth the most.
const WINDOWS_MAX: usize = 3000;
/// Windows chosen, at most.
const CHOSEN_MAX: usize = 64;
/// Places at which the round of the step is cut open.
const CUTS: usize = 16;

/// Windows, apart from each other, that together are worth about as much as any can be.
///
/// Some window of the best choice has nothing that runs over its start. So the round of the step
/// is cut open there, and what is left is a line.
pub(super) fn pack(mut windows: Vec<Window>, slot_count: usize) -> Vec<Window> {
    windows.sort_by(|one, other| other.worth_us.total_cmp(&one.worth_us));
    windows.truncate(WINDOWS_MAX);
    let mut cuts: Vec<usize> = Vec::new();
    for window in &windows {
        if !cuts.contains(&window.start) {
            cuts.push(window.start);
        }
        if cuts.len() == CUTS {
            break;
        }
    }
    let packed = cuts.into_iter().map(|cut| pack_line(&windows, cut, slot_count));
    let best = packed.max_by(|one, other| one.0.total_cmp(&other.0));
    let mut chosen = best.map_or(Vec::new(), |(_, chosen)| chosen);
    chosen.sort_by(|one, other| other.worth_us.total_cmp(&one.worth_us));
    chosen.truncate(CHOSEN_MAX);
    chosen
}

/// The best choice of those that do not run over a cut, and what they are worth.
pub(super) fn pack_line(windows: &[Window], cut: usize, slot_count: usize) -> (f64, Vec<Window>) {
    let span = |window: &Window| {
        let start = (window.start + slot_count - cut) % slot_count;
        // The waiting before its last slot's op is part of the window, too.
        (start, start + window.slots + 1)
    };
    let mut line: Vec<(usize, usize, &Window)> = windows
        .iter()
        .map(|window| (span(window), window))
        .filter(|((_, end), _)| *end <= slot_count)
        .map(|((start, end), window)| (end, start, window))
        .collect();
    line.sort_by_key(|&(end, start, _)| (end, start));
    // By number of windows: the most that so many of the first ones are worth.
    let mut most_us = vec![0.0];
    let mut taken: Vec<Option<usize>> = vec![None];
    for (index, &(_, start, window)) in line.iter().enumerate() {
        let before = line.partition_point(|&(end, ..)| end <= start).min(index);
        let with_us = most_us[before] + window.worth_us;
        let without_us = most_us[index];
        most_us.push(with_us.max(without_us));
        taken.push((with_us > without_us).then_some(before));
    }
    let mut chosen = Vec::new();
    let mut at = line.len();
    while at > 0 {
        match taken[at] {
            Some(before) => {
                chosen.push(*line[at - 1].2);
                at = before;
            }
            None => at -= 1,
        }
    }
    (most_us[line.len()], chosen)
}
