//! In which order a recorded step has the blocks that lived at its start.
//!
//! They come in order of birth. So once steps are all alike, what stays for good comes before what
//! some step makes for the next ones. In the first steps that need not be: what an optimizer keeps
//! is made late in the first one, behind a batch that was loaded ahead of its use. A plan for such
//! a step would look for each block where another one will be.

use crate::trace::{BlockIndex, Origin, Trace, TraceBlock, TraceEvent};

/// Puts what stays for good before all else, as the next step will have it: what is not freed,
/// although it is as old as the oldest block that is. `births` says in which step each block was
/// made that lived at the start.
pub(super) fn put_what_stays_first(trace: &mut Trace, births: &[u64]) {
    debug_assert!(trace.blocks[..births.len()].iter().all(|it| it.origin == Origin::Persistent));
    let mut is_freed = vec![false; births.len()];
    for event in &trace.events {
        if let TraceEvent::Free(BlockIndex(block)) = *event
            && let Some(is_freed) = is_freed.get_mut(block as usize)
        {
            *is_freed = true;
        }
    }
    let freed = births.iter().zip(&is_freed).filter(|&(_, &is_freed)| is_freed);
    let Some(oldest) = freed.map(|(&birth, _)| birth).min() else { return };
    let goes = |block: usize| is_freed[block] || births[block] > oldest;
    let mut order: Vec<usize> = (0..births.len()).collect();
    if order.is_sorted_by_key(|&block| goes(block)) {
        return;
    }
    order.sort_by_key(|&block| goes(block));
    let blocks: Vec<TraceBlock> = order.iter().map(|&block| trace.blocks[block].clone()).collect();
    trace.blocks.splice(..blocks.len(), blocks);
    let mut places = vec![0; order.len()];
    for (place, &block) in (0..).zip(&order) {
        places[block] = place;
    }
    for event in &mut trace.events {
        if let TraceEvent::Touch(block, _) | TraceEvent::Free(block) = event
            && let Some(&place) = places.get(block.0 as usize)
        {
            block.0 = place;
        }
    }
}
