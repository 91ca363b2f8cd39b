//! A fresh block: where it is to lie, and which one of the step it is, and of the plan.

use vmem::{BlockId, Lot};

use crate::core::{Asker, Core};
use crate::follow::Fresh;
use crate::trace::{BlockIndex, Origin, TraceEvent};

/// Where a fresh block is to lie.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whereabouts {
    /// In a segment or a chunk of its own, by its size.
    BySize,
    /// In a lot or, without one, a chunk of its own.
    Planned(Option<Lot>),
}

impl Core {
    /// Where the block that comes next is to lie; `fresh` if it belongs to the step. One that is
    /// too small to be swappable by itself is so where the plan knows it as larger. One that the
    /// plan does not know, as what other threads take meanwhile, lies where none of the plan's is
    /// at present.
    pub(crate) fn whereabouts(
        &self,
        size_bytes: u64,
        asker: Asker,
        fresh: Option<Fresh>,
    ) -> Whereabouts {
        let pool = &self.memory.pool;
        if asker == Asker::Replay && pool.is_swappable_size(size_bytes) {
            return Whereabouts::Planned(pool.idle_lot(size_bytes));
        }
        if self.orders.current().is_none() {
            return Whereabouts::BySize;
        }
        let follower = &self.step.follower;
        let place_of = |fresh| {
            let place = follower.coming_block(fresh).or_else(|| follower.coming_stand_in(fresh));
            Some((place?, fresh.size_bytes))
        };
        match fresh.and_then(place_of) {
            Some((place, size_bytes)) => {
                Whereabouts::Planned(self.orders.lot_of_size(place, size_bytes))
            }
            None if pool.is_swappable_size(size_bytes) => {
                Whereabouts::Planned(pool.spare_lot(size_bytes))
            }
            None => Whereabouts::BySize,
        }
    }

    /// Gives a fresh swappable block its place in the step, and that in the plan's if it has one.
    pub(crate) fn place_in_step(
        &mut self,
        id: BlockId,
        fresh: Fresh,
        origin: Origin,
        name: &str,
    ) -> (BlockIndex, Option<BlockIndex>) {
        let size_bytes = fresh.size_bytes;
        let place = self.step.next_place();
        let mut planned = None;
        if let Some(found) = self.step.follower.allocated(id, fresh) {
            planned = Some(found);
            self.measure_up(found, size_bytes);
        } else if let Some(found) = self.step.follower.stand_in(id, fresh) {
            planned = Some(found);
        }
        self.step.signature = self.step.signature.mix(size_bytes);
        if let Some(recorder) = self.recording.recorder_mut() {
            recorder.block(size_bytes, origin, name, fresh.nth);
        }
        self.event(TraceEvent::Allocate(place));
        (place, planned)
    }

    /// Whether a block that somebody allocates belongs to the step. Replays and what runs beside
    /// the step come and go, so they have no place in it.
    pub(crate) fn has_place(&self, asker: Asker) -> bool {
        match asker {
            Asker::Op(_) => true,
            // From another thread, or on another stream than the op that is open.
            Asker::Nobody => !self.step.is_inside_op(),
            Asker::Replay | Asker::Aside => false,
        }
    }
}
