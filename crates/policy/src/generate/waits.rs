//! Where a step waits for copies, and what could be done about it.

use swap_core::Direction;

use super::choose::Made;
use super::moves::{Change, Class, any};
use super::taste::Wish;
use crate::simulate::{CopySpan, Simulation};
use crate::usage::Usage;
use swap_core::devices::Numbers;

/// A shorter wait is not worth a change.
const LEAST_US: f64 = 20.0;
/// Copies with less time between them follow each other without a rest.
const REST_US: f64 = 20.0;

/// A wait, and the copies without rest that end with it.
pub(super) struct Wait {
    wait_us: f64,
    direction: Direction,
    /// In order of the copies, each once.
    blocks: Vec<u32>,
}

impl Wait {
    /// One of the waits, the long ones more often.
    pub(super) fn any(made: &Made<'_>, numbers: &mut Numbers) -> Option<Wait> {
        let simulation = &made.placement.simulation;
        let waits = waits(made.chooser.usage, simulation);
        let total_us: f64 = waits.iter().map(|&(start_us, end_us)| end_us - start_us).sum();
        let mut rest_us = numbers.below((total_us as u64).max(1)) as f64;
        let &(start_us, end_us) = waits.iter().find(|&&(start_us, end_us)| {
            rest_us -= end_us - start_us;
            rest_us < 0.0
        })?;
        let copies = &simulation.copies;
        let last = copies.iter().rposition(|copy| (copy.span.end_us - end_us).abs() < 1.0)?;
        let direction = copies[last].direction;
        let mut blocks = Vec::new();
        let mut from_us = copies[last].span.start_us;
        let is_before = |copy: &&CopySpan| copy.direction == direction;
        for copy in copies[..=last].iter().rev().filter(is_before) {
            if copy.span.end_us < from_us - REST_US {
                break;
            }
            from_us = from_us.min(copy.span.start_us);
            if !blocks.contains(&copy.block.0) {
                blocks.push(copy.block.0);
            }
        }
        blocks.reverse();
        Some(Wait { wait_us: end_us - start_us, direction, blocks })
    }

    /// What is copied without rest until it ends, in order of the copies.
    pub(super) fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// Something that could make it shorter.
    pub(super) fn change(mut self, classes: &[Class], numbers: &mut Numbers) -> Change {
        let wish = *any(&[Wish::Recompute, Wish::Stay, Wish::Any], numbers);
        let kind = numbers.below(6);
        if kind >= 3 && self.direction == Direction::In {
            let from = if kind == 3 { self.blocks.len() / 2 } else { 0 };
            let blocks = if kind == 4 {
                vec![*any(&self.blocks, numbers)]
            } else {
                self.blocks.split_off(from)
            };
            let more_us = self.wait_us * any(&[0.5, 1.0, 2.0, -1.0], numbers);
            return Change::Ahead(blocks, more_us);
        }
        let block = *any(&self.blocks, numbers);
        let class = classes.iter().find(|class| class.blocks.contains(&block));
        let blocks = match (class, kind % 3) {
            (Some(class), 0) => class.blocks.clone(),
            (_, 1) => self.blocks,
            _ => vec![block],
        };
        Change::Wish(blocks, wish)
    }
}

/// When compute waits, from when and until when.
fn waits(usage: &Usage, simulation: &Simulation) -> Vec<(f64, f64)> {
    let mut replays = simulation.replays.iter().peekable();
    let mut waits = Vec::new();
    let mut busy_us: f64 = 0.0;
    for op in &usage.slots {
        let span = simulation.ops[op.0 as usize];
        while let Some(replay) = replays.next_if(|replay| replay.span.start_us < span.end_us) {
            if replay.span.start_us - busy_us > LEAST_US && replay.span.end_us <= span.start_us {
                waits.push((busy_us, replay.span.start_us));
            }
            busy_us = busy_us.max(replay.span.end_us.min(span.start_us));
        }
        if span.start_us - busy_us > LEAST_US {
            waits.push((busy_us, span.start_us));
        }
        busy_us = busy_us.max(span.end_us);
    }
    waits
}
