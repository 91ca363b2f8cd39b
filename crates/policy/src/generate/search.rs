//! Local search over what leaves: wishes for blocks, one block or many alike at a time, kept where
//! the simulated step gets shorter.

use std::collections::BTreeMap;

use swap_core::{Origin, Trace};

use super::taste::{Taste, Wish};
use super::{Chooser, Made};
use crate::synthetic::Numbers;

/// Where the search for moves starts from. Any number does; it is fixed so that plans are.
const SEED: u64 = 4;
/// Moves for each unit of effort, at most.
const MOVES_MAX: usize = 24;
/// Events of all moves for each unit of effort, about.
const EVENTS: usize = 60_000;
/// A step that is longer than the bound by less than this share is good enough.
const NEAR: f64 = 0.003;

/// One change of wishes.
struct Change {
    blocks: Vec<u32>,
    wish: Wish,
}

/// Blocks of one size that ops of one name made: what is good for one is mostly good for all.
struct Class {
    blocks: Vec<u32>,
    bytes: u64,
}

/// The best choice found from `best` on; `best` itself if there is none better.
pub(super) fn improve(chooser: &Chooser<'_>, mut best: Made) -> Made {
    let trace = chooser.trace;
    let classes = classes(trace, chooser.config.min_block_bytes);
    let for_each = MOVES_MAX.min(EVENTS / trace.events.len().max(1));
    let move_count = chooser.config.effort as usize * for_each;
    let mut taste = Taste::neutral(trace.blocks.len());
    let mut numbers = Numbers::new(SEED);
    let mut moved = false;
    for number in 0..move_count {
        let near_us = chooser.least_us * (1.0 + NEAR);
        let fits = best.selection.excess.is_none();
        if classes.is_empty() || fits && best.placement.simulation.step_us <= near_us {
            break;
        }
        let change = pick(number, &classes, &best, &mut numbers);
        if change.blocks.iter().all(|&block| taste.get(block) == change.wish) {
            continue;
        }
        let before = taste.clone();
        for &block in &change.blocks {
            taste.set(block, change.wish);
        }
        let selection = chooser.select(best.hidden_share, &taste);
        let placement = chooser.placer(&selection).like(&best.placement);
        let made = Made { selection, placement, hidden_share: best.hidden_share };
        if made.cost() < best.cost() {
            best = made;
            moved = true;
        } else {
            taste = before;
        }
    }
    if moved {
        let made = chooser.attempt(best.hidden_share, &taste);
        if made.cost() < best.cost() {
            return made;
        }
    }
    best
}

/// Classes of blocks that may leave, those with the most bytes first.
fn classes(trace: &Trace, min_block_bytes: u64) -> Vec<Class> {
    let mut classes: BTreeMap<(&str, u64, bool), Vec<u32>> = BTreeMap::new();
    for (index, block) in (0..).zip(&trace.blocks) {
        let maker = match block.origin {
            Origin::Op(op) => trace.ops[op.0 as usize].name.as_str(),
            _ => "",
        };
        let key = (maker, block.size_bytes, block.origin == Origin::Persistent);
        if block.size_bytes >= min_block_bytes {
            classes.entry(key).or_default().push(index);
        }
    }
    let class = |((_, size_bytes, _), blocks): (_, Vec<u32>)| {
        let bytes = size_bytes * blocks.len() as u64;
        Class { blocks, bytes }
    };
    let mut classes: Vec<Class> = classes.into_iter().map(class).collect();
    classes.sort_by_key(|class| std::cmp::Reverse(class.bytes));
    classes
}

/// The next change to try: first every class with every wish, then parts of classes and single
/// blocks that leave at present.
fn pick(number: usize, classes: &[Class], best: &Made, numbers: &mut Numbers) -> Change {
    let (place, wish) = (number / Wish::ALL.len(), Wish::ALL[number % Wish::ALL.len()]);
    if let Some(class) = classes.get(place)
        && number % 3 != 2
    {
        return Change { blocks: class.blocks.clone(), wish };
    }
    let wish = Wish::ALL[numbers.below(Wish::ALL.len() as u64) as usize];
    let class = &classes[numbers.below(classes.len() as u64) as usize].blocks;
    let half = class.len().div_ceil(2);
    let choices = &best.selection.choices;
    let blocks = match numbers.below(5) {
        0 => class[..half].to_vec(),
        1 => class[half.min(class.len() - 1)..].to_vec(),
        2 => class.iter().copied().step_by(2).collect(),
        3 => vec![class[numbers.below(class.len() as u64) as usize]],
        _ if choices.is_empty() => class.clone(),
        _ => vec![choices[numbers.below(choices.len() as u64) as usize].gap.block],
    };
    Change { blocks, wish }
}
