//! Changes that the search tries: wishes for one block or many alike, and what the link counts for.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use swap_core::{Origin, Trace};

use super::choose::Made;
use super::taste::Wish;
use super::waits::Wait;
use swap_core::devices::Numbers;

/// Where the search for changes starts from. Any number does; it is fixed so that plans are.
const SEED: u64 = 4;

/// Blocks of one size that ops of one name made: what is good for one is mostly good for all.
pub(super) struct Class {
    pub(super) blocks: Vec<u32>,
    bytes: u64,
}

/// Classes of blocks that may leave, those with the most bytes first.
pub(super) fn classes(trace: &Trace, min_block_bytes: u64) -> Vec<Class> {
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
    // Of equal ones the first block's place decides, as names are to change nothing.
    classes.sort_by_key(|class| (Reverse(class.bytes), class.blocks[0]));
    classes
}

/// One change of a choice.
pub(super) enum Change {
    /// What hidden link time counts for.
    Share(f64),
    Wish(Vec<u32>, Wish),
    /// Copies are back earlier by so many microseconds, so that others make room for them.
    Ahead(Vec<u32>, f64),
}

/// The next change of a choice; nothing if it changes nothing.
pub(super) fn changed<'a>(made: &Made<'a>, classes: &[Class]) -> Option<Made<'a>> {
    let mut taste = made.taste.clone();
    let mut hidden_share = made.hidden_share;
    match pick(made, classes) {
        Change::Share(share) if share == hidden_share => return None,
        Change::Share(share) => hidden_share = share,
        Change::Wish(blocks, wish) => {
            if blocks.iter().all(|&block| taste.get(block) == wish) {
                return None;
            }
            for &block in &blocks {
                taste.set(block, wish);
            }
        }
        Change::Ahead(blocks, more_us) => {
            for &block in &blocks {
                taste.set_lead_us(block, (taste.lead_us(block) + more_us).max(0.0));
            }
        }
    }
    Some(made.with(hidden_share, taste))
}

/// Turns of the kinds of changes.
const TURNS: usize = 4;
/// Those of them in which every class gets every wish, and the one after what the step waits for.
const SWEEP_TURNS: usize = 2;
const WAIT_TURN: usize = 2;
/// The last turn is one of what the link counts for each time after so many.
const SHARE_ROUNDS: usize = 4;

/// The next change: by turns of what the step waits for, of every class with every wish, and of
/// parts of classes and single blocks that leave at present.
fn pick(made: &Made<'_>, classes: &[Class]) -> Change {
    let number = made.changes - 1;
    let (round, turn) = (number / TURNS, number % TURNS);
    let mut numbers = Numbers::new(SEED + number as u64);
    let shares = made.chooser.hidden_shares();
    match turn {
        0..SWEEP_TURNS => {
            let place = round * SWEEP_TURNS + turn;
            let wish = Wish::ALL[place % Wish::ALL.len()];
            if let Some(class) = classes.get(place / Wish::ALL.len()) {
                return Change::Wish(class.blocks.clone(), wish);
            }
        }
        WAIT_TURN => {
            if let Some(wait) = Wait::any(made, &mut numbers) {
                return wait.change(classes, &mut numbers);
            }
        }
        _ if shares.len() > 1 && round % SHARE_ROUNDS == 0 => {
            return Change::Share(*any(shares, &mut numbers));
        }
        _ => {}
    }
    let wish = *any(&Wish::ALL, &mut numbers);
    let class = &any(classes, &mut numbers).blocks;
    let half = class.len().div_ceil(2);
    let choices = &made.selection.choices;
    let blocks = match numbers.below(5) {
        0 => class[..half].to_vec(),
        1 => class[half.min(class.len() - 1)..].to_vec(),
        2 => class.iter().copied().step_by(2).collect(),
        3 => vec![*any(class, &mut numbers)],
        _ if choices.is_empty() => class.clone(),
        _ => vec![any(choices, &mut numbers).gap.block],
    };
    Change::Wish(blocks, wish)
}

pub(super) fn any<'a, T>(items: &'a [T], numbers: &mut Numbers) -> &'a T {
    &items[numbers.below(items.len() as u64) as usize]
}
