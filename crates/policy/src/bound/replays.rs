//! The least time that windows lack if blocks are made again instead.
//!
//! Each window gets a weight from 0 to 1. Weighted, what the windows lack, less what each replay
//! saves beyond its own time, is never above the least added time, whatever the weights are
//! (weak duality of the linear program over shares of replays). So any weights do, and better ones
//! give a better bound.

use swap_core::{Direction, Trace};

use super::duplex::Task;
use super::window::{Window, Windows};
use crate::candidate::Gap;
use crate::generate::RecomputeOption;
use crate::machine::Machine;
use crate::usage::Usage;

/// Weights tried, at most and at least. A quarter of them are the same for all windows; the search
/// starts from the best of these.
const TRIES: [usize; 2] = [80, 8];
/// Savings looked at for all tries together, about.
const LOOKS: usize = 4_000_000;

/// The gaps that a replay can end, with their times.
#[derive(Debug)]
pub(super) struct Replays {
    gap_count: usize,
    slot_count: usize,
    parts: Vec<Part>,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    gap: u32,
    from: i64,
    to: i64,
    bytes: f64,
    us: f64,
}

/// What a replay saves one window.
#[derive(Clone, Copy, Debug)]
struct Saving {
    window: u32,
    /// Link time saved.
    us: f64,
    /// What of it is lost if the replay itself runs in the window.
    lost_us: f64,
}

impl Replays {
    /// Of the gaps, those whose blocks have a recipe when they start. A block that is not needed
    /// again is dropped for nothing.
    pub(super) fn new(
        trace: &Trace,
        usage: &Usage,
        options: &[RecomputeOption],
        gaps: &[Gap],
    ) -> Replays {
        let cost = |(number, gap): (u32, &Gap)| {
            let option = options.binary_search_by_key(&gap.block, |option| option.block.0).ok()?;
            let op = usage.slots.get(usize::try_from(gap.from).ok()?)?;
            let end = usage.op_end[op.0 as usize] as usize;
            let (_, recipe) = usage.recipe_at(gap.block as usize, end)?;
            let least_us = recipe.device_us.min(options[option].replay_us).max(0.0);
            Some(Part {
                gap: number,
                from: gap.from,
                to: gap.to,
                bytes: trace.blocks[gap.block as usize].size_bytes as f64,
                us: if gap.returns { least_us } else { 0.0 },
            })
        };
        let parts = (0..).zip(gaps).filter_map(cost).collect();
        Replays { gap_count: gaps.len(), slot_count: usage.slot_count(), parts }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// By gap: what a replay takes, if there can be one.
    pub(super) fn us_by_gap(&self) -> Vec<Option<f64>> {
        let mut us = vec![None; self.gap_count];
        for part in &self.parts {
            us[part.gap as usize] = Some(part.us);
        }
        us
    }

    /// By gap: the first of some rising shares of the copy's time that a replay takes less than;
    /// their number if there is none.
    pub(super) fn cheaper_from(&self, shares: &[f64], machine: &Machine) -> Vec<u8> {
        let mut from = vec![shares.len() as u8; self.gap_count];
        for part in &self.parts {
            let copy_us = part.bytes / machine.link.in_bytes_per_us;
            from[part.gap as usize] =
                shares.partition_point(|share| part.us >= share * copy_us) as u8;
        }
        from
    }

    /// How many slots behind a window a replay can come that spares it some bytes.
    pub(super) fn slots_behind(&self, windows: &Windows<'_>, window: &Window) -> usize {
        if window.direction == Direction::In {
            // What comes back through one is needed in it.
            return 0;
        }
        let gaps = self.parts.iter().filter(|part| part.us > 0.0).map(|part| part.gap as usize);
        let carried = gaps.filter(|&gap| windows.carries(window, gap));
        carried.map(|gap| windows.ahead(gap, window.peak)).max().unwrap_or(0)
    }

    /// The least that must be added so that all windows can do their work, in microseconds, and
    /// the weights of the tasks that say so.
    pub(super) fn least_us(&self, windows: &Windows<'_>, chosen: &[Task]) -> (f64, Vec<f64>) {
        if chosen.is_empty() {
            return (0.0, Vec::new());
        }
        let lacks_us: Vec<f64> = chosen.iter().map(Task::lacks_us).collect();
        let parts: Vec<(f64, Vec<Saving>)> = self
            .parts
            .iter()
            .map(|part| (part.us, self.savings(part, windows, chosen)))
            .filter(|(_, savings)| savings.iter().any(|saving| saving.us > 0.0))
            .collect();
        Dual { lacks_us, parts }.most_us()
    }

    fn savings(&self, part: &Part, windows: &Windows<'_>, chosen: &[Task]) -> Vec<Saving> {
        let saving = |(number, task): (u32, &Task)| {
            let saved_us = |window: &Window| {
                let carried = windows.carries(window, part.gap as usize);
                if carried { part.bytes * window.us_per_byte() } else { 0.0 }
            };
            let own_us = saved_us(&task.window);
            let us = own_us + task.beside.iter().map(saved_us).sum::<f64>();
            // A replay comes after the peak that it serves.
            let is_before = task.window.direction == Direction::Out && !task.is_wider();
            let lost_us = if is_before { own_us } else { 0.0 };
            let counts = us > 0.0 || task.windows().any(|window| self.meets(part, window));
            counts.then_some(Saving { window: number, us, lost_us })
        };
        (0..).zip(chosen).filter_map(saving).collect()
    }

    /// Whether a gap and a window have a moment in common.
    fn meets(&self, part: &Part, window: &Window) -> bool {
        let count = self.slot_count as i64;
        let (start, slots) = (window.start as i64, window.slots as i64);
        [-count, 0, count].into_iter().any(|shift| {
            let start = start + shift;
            part.from < start + slots && start <= part.to
        })
    }
}

/// The dual of the linear program.
struct Dual {
    lacks_us: Vec<f64>,
    parts: Vec<(f64, Vec<Saving>)>,
}

impl Dual {
    /// The highest value found, with its weights.
    fn most_us(&self) -> (f64, Vec<f64>) {
        let count = self.lacks_us.len();
        if self.parts.is_empty() {
            let weights = self.lacks_us.iter().map(|us| f64::from(u8::from(*us > 0.0))).collect();
            return (self.lacks_us.iter().filter(|us| **us > 0.0).sum(), weights);
        }
        let mut slope = vec![0.0; count];
        let (mut best_us, mut best) = (0.0, vec![0.0; count]);
        let looks: usize = self.parts.iter().map(|(_, savings)| savings.len()).sum();
        let tries = (LOOKS / looks.max(1)).clamp(TRIES[1], TRIES[0]);
        let starts = tries / 4;
        for start in 1..=starts {
            let weights = vec![start as f64 / starts as f64; count];
            let us = self.value(&weights, &mut slope);
            if us > best_us {
                (best_us, best) = (us, weights);
            }
        }
        let mut weights = best.clone();
        self.value(&weights, &mut slope);
        for step in 0..tries - starts {
            let steepest = slope.iter().fold(0.0_f64, |most, slope| most.max(slope.abs()));
            if steepest <= 0.0 {
                break;
            }
            let size = 0.3 / (1.0 + step as f64 / 3.0) / steepest;
            for (weight, slope) in weights.iter_mut().zip(&slope) {
                *weight = (*weight + size * slope).clamp(0.0, 1.0);
            }
            let us = self.value(&weights, &mut slope);
            if us > best_us {
                best_us = us;
                best.copy_from_slice(&weights);
            }
        }
        (best_us, best)
    }

    /// The value at some weights, and where it rises.
    fn value(&self, weights: &[f64], slope: &mut [f64]) -> f64 {
        slope.copy_from_slice(&self.lacks_us);
        let mut value: f64 = weights.iter().zip(&self.lacks_us).map(|(w, us)| w * us).sum();
        for (us, savings) in &self.parts {
            let saved_us: f64 = savings.iter().map(|s| weights[s.window as usize] * s.us).sum();
            // The replay's own time is time for at most one window.
            let mut own: Option<(f64, Saving)> = None;
            for &saving in savings {
                let weight = weights[saving.window as usize];
                let gain_us = weight * (us - saving.lost_us);
                if gain_us > own.map_or(0.0, |(most_us, _)| most_us) {
                    own = Some((gain_us, saving));
                }
            }
            let gain_us = saved_us + own.map_or(0.0, |(gain_us, _)| gain_us) - us;
            if gain_us <= 0.0 {
                continue;
            }
            value -= gain_us;
            for saving in savings {
                slope[saving.window as usize] -= saving.us;
            }
            if let Some((_, saving)) = own {
                slope[saving.window as usize] -= us - saving.lost_us;
            }
        }
        value
    }
}
