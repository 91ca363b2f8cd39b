//! The least time that replays take to keep bytes off the link: the cheapest ones first, and only
//! those of blocks that can be away in the peak slot and be made again.

use swap_core::Trace;

use crate::candidate::Gap;
use crate::generate::RecomputeOption;
use crate::usage::Usage;

/// Bytes against the least replay time, as corners of a line that gets steeper and steeper.
#[derive(Debug)]
pub(super) struct Replays {
    corners: Vec<(f64, f64)>,
}

/// A way of the link: bytes that it must carry, its rate, and the time that it has for nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub(super) bytes: f64,
    pub(super) bytes_per_us: f64,
    pub(super) window_us: f64,
}

impl Way {
    /// Time beyond the window if so many bytes need not be carried. Negative if time is left.
    fn late_us(self, saved_bytes: f64) -> f64 {
        (self.bytes - saved_bytes) / self.bytes_per_us - self.window_us
    }
}

impl Replays {
    /// Of the gaps over the peak, those whose blocks have a recipe when they start. A block that
    /// is not needed again is dropped for nothing.
    pub(super) fn new(
        trace: &Trace,
        usage: &Usage,
        options: &[RecomputeOption],
        gaps: &[Gap],
    ) -> Replays {
        let cost = |gap: &Gap| {
            let option = options.binary_search_by_key(&gap.block, |option| option.block.0).ok()?;
            let op = usage.slots.get(usize::try_from(gap.from).ok()?)?;
            let end = usage.op_end[op.0 as usize] as usize;
            let (_, recipe) = usage.recipe_at(gap.block as usize, end)?;
            let device_us = trace.ops[recipe.producer.0 as usize].device_us;
            let least_us = device_us.min(options[option].replay_us).max(0.0);
            let replay_us = if gap.returns { least_us } else { 0.0 };
            Some((trace.blocks[gap.block as usize].size_bytes as f64, replay_us))
        };
        let mut parts: Vec<(f64, f64)> = gaps.iter().filter_map(cost).collect();
        parts.retain(|part| part.0 > 0.0);
        parts.sort_by(|one, other| (one.1 / one.0).total_cmp(&(other.1 / other.0)));
        let mut corners = vec![(0.0, 0.0)];
        let mut sum = (0.0, 0.0);
        for (bytes, us) in parts {
            sum = (sum.0 + bytes, sum.1 + us);
            corners.push(sum);
        }
        Replays { corners }
    }

    /// Like [`added_us`](Replays::added_us) if the time of replays is also time for copies out.
    /// Takes the better end of each straight piece for either part, so it may be a little low.
    pub(super) fn added_around_us(&self, out: Option<Way>, back: Option<Way>) -> f64 {
        let link_us = |(bytes, _): (f64, f64)| late_us(out, bytes) + late_us(back, bytes);
        let corners = &self.corners;
        // More bytes saved take more replay time and less link time: look where they meet.
        let meet = corners.partition_point(|&corner| corner.1 < link_us(corner));
        let Some(&end) = corners.get(meet) else {
            return link_us(corners[corners.len() - 1]);
        };
        let start_us = meet.checked_sub(1).map_or(0.0, |before| corners[before].1);
        start_us.max(link_us(end))
    }

    /// The least that must be added so that the bytes of both ways are moved or made again.
    ///
    /// A replay saves both ways its bytes, and its time is time for copies back. The sum is
    /// convex in the bytes saved, so its least value is near the corner with the least one.
    pub(super) fn added_us(&self, out: Option<Way>, back: Option<Way>) -> f64 {
        let late_us = |way: Option<Way>, saved: f64| way.map_or(0.0, |way| way.late_us(saved));
        let total_us =
            |(bytes, us): (f64, f64)| late_us(out, bytes).max(0.0) + late_us(back, bytes).max(us);
        let corners = &self.corners;
        let (mut low, mut high) = (0, corners.len() - 1);
        while low < high {
            let middle = low + (high - low) / 2;
            if total_us(corners[middle + 1]) < total_us(corners[middle]) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let mut least_us = total_us(corners[low]);
        for start in [low.checked_sub(1), Some(low)].into_iter().flatten() {
            let Some(&end) = corners.get(start + 1) else { continue };
            for share in kinks(corners[start], end, out, back) {
                least_us = least_us.min(total_us(between(corners[start], end, share)));
            }
        }
        least_us
    }
}

/// Time beyond the window; 0 if there is no such way or time is left.
fn late_us(way: Option<Way>, saved_bytes: f64) -> f64 {
    way.map_or(0.0, |way| way.late_us(saved_bytes).max(0.0))
}

/// A point of a straight piece.
fn between(start: (f64, f64), end: (f64, f64), share: f64) -> (f64, f64) {
    let share = share.clamp(0.0, 1.0);
    (start.0 + share * (end.0 - start.0), start.1 + share * (end.1 - start.1))
}

/// Where on a straight piece the sum may have its least value inside: where the way out is just
/// in time, and where the way back takes just as long as the replays.
fn kinks(start: (f64, f64), end: (f64, f64), out: Option<Way>, back: Option<Way>) -> [f64; 2] {
    let root = |at_start: f64, at_end: f64| {
        let share = at_start / (at_start - at_end);
        if share.is_finite() { share } else { 0.0 }
    };
    let out = out.map_or(0.0, |way| root(way.late_us(start.0), way.late_us(end.0)));
    let behind = |way: Way, point: (f64, f64)| way.late_us(point.0) - point.1;
    let back = back.map_or(0.0, |way| root(behind(way, start), behind(way, end)));
    [out, back]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The least value over a fine grid of shares of each piece.
    fn by_grid(replays: &Replays, out: Option<Way>, back: Option<Way>) -> f64 {
        let mut least_us = f64::INFINITY;
        for pair in replays.corners.windows(2) {
            for step in 0..=1000 {
                let (bytes, us) = between(pair[0], pair[1], f64::from(step) / 1000.0);
                let out_us = out.map_or(0.0, |way| way.late_us(bytes).max(0.0));
                let back_us = back.map_or(0.0, |way| (way.late_us(bytes) - us).max(0.0));
                least_us = least_us.min(us + out_us + back_us);
            }
        }
        least_us
    }

    #[test]
    fn the_least_value_is_found() {
        let mut numbers = crate::synthetic::Numbers::new(7);
        let mut inside = 0;
        for _ in 0..500 {
            let mut number = |end: u64| numbers.below(end) as f64;
            let mut rate = 0.0;
            let mut corners = vec![(0.0, 0.0)];
            for _ in 0..1 + number(6) as usize {
                let (bytes, us) = corners[corners.len() - 1];
                rate += number(5) / 10.0;
                let size_bytes = 1.0 + number(50);
                corners.push((bytes + size_bytes, us + rate * size_bytes));
            }
            let replays = Replays { corners };
            let mut way =
                || Way { bytes: number(200), bytes_per_us: 0.5 + number(4), window_us: number(60) };
            let (out, back) = (way(), way());
            for (out, back) in [(Some(out), Some(back)), (Some(out), None), (None, Some(back))] {
                let (found_us, least_us) =
                    (replays.added_us(out, back), by_grid(&replays, out, back));
                assert!(found_us <= least_us + 1e-9, "{found_us} {least_us} {replays:?}");
                assert!(found_us >= least_us - 1.0, "{found_us} {least_us} {replays:?}");
                inside += u32::from(found_us < least_us - 1e-9);
            }
        }
        assert!(inside > 50, "only {inside} least values between the points of the grid");
    }
}
