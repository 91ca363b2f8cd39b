//! What the engine knows about one block beyond its memory.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;
use vmem::{BlockId, Departure, DevicePtr, Point, Slot, StreamId, Uses};

use crate::launches::Launches;
use crate::recipe::Replayable;
use crate::trace::{BlockIndex, Origin};

/// Where a block's bytes are, in the words of the residency machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Residency {
    /// On the device.
    Resident,
    /// Given away; the copy to the host may still be running.
    Leaving,
    /// On the host.
    Away,
    /// On the device once the copy that was issued is complete.
    Arriving,
    /// Nowhere; replaying the producer brings them back.
    Discarded,
}

/// A fresh block, for those who know blocks by their addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// Its name.
    pub block: BlockId,
    /// Where it is from now on until it is freed.
    pub address: DevicePtr,
    /// Whether it is swappable: by its size, or as the plan knows it as larger.
    pub is_swappable: bool,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: BlockId,
    pub(crate) state: State,
    /// Open ops that touch the block, and one more while it is kept for captures.
    pub(crate) pins: u32,
    /// The block's place in this step. Small blocks and those of replays have none.
    pub(crate) place: Option<BlockIndex>,
    /// The block's place in the step that the plan is for, if it has one there.
    pub(crate) planned: Option<BlockIndex>,
    pub(crate) origin: Origin,
    /// Order of allocation over all steps.
    pub(crate) birth: u64,
    /// The step in which it was allocated.
    pub(crate) born_in: u64,
    /// For the least recently used victim.
    pub(crate) last_touch: u64,
    /// It is away; a swap-in was ordered and found no room yet.
    pub(crate) asked_for: bool,
    /// The bytes on the host; as long as it exists they are the block's current ones.
    pub(crate) host_copy: Option<HostCopy>,
    /// What nobody but the engine knows of: the copy that brought the bytes, and replays that wrote
    /// or read them. Ops on other streams wait for it before they touch the block.
    pub(crate) arrived: Uses,
    pub(crate) launches: Launches,
    /// How to make the bytes again.
    pub(crate) replayable: Option<Arc<Replayable>>,
    /// Counts writes, to tell whether a recipe's inputs are what they were.
    pub(crate) version: u32,
    /// Of a small block: the recipes of other blocks that read its present bytes.
    pub(crate) recipes: u32,
    /// A small block that its owner freed, kept for `recipes`.
    pub(crate) is_kept: bool,
    /// Discarded blocks whose recipe reads this one.
    pub(crate) dependents: SmallVec<[BlockId; 2]>,
    /// Discarded for blocks that are made from it and that are to be discarded as well. Until the
    /// first of them is, it stays although its owner may free it, and takes no memory.
    pub(crate) awaits_dependents: bool,
    /// Freed by its owner, kept for its dependents.
    pub(crate) free_wanted: bool,
    pub(crate) hold: Hold,
    /// Who wants it held or has it lent, for reports.
    pub(crate) held_by: &'static str,
    /// Streams of the caller that use it until it is freed, whatever ops say.
    pub(crate) streams: SmallVec<[StreamId; 1]>,
    pub(crate) name: Cow<'static, str>,
}

impl Entry {
    /// A block that is there and that nobody has used yet.
    pub(crate) fn new(
        id: BlockId,
        clock: u64,
        launches: Launches,
        name: Cow<'static, str>,
    ) -> Entry {
        Entry {
            id,
            state: State::Resident,
            pins: 0,
            place: None,
            planned: None,
            origin: Origin::Persistent,
            birth: clock,
            born_in: 0,
            last_touch: clock,
            asked_for: false,
            host_copy: None,
            arrived: Uses::default(),
            launches,
            replayable: None,
            version: 0,
            recipes: 0,
            is_kept: false,
            dependents: SmallVec::new(),
            awaits_dependents: false,
            free_wanted: false,
            hold: Hold::No,
            held_by: "",
            streams: SmallVec::new(),
            name,
        }
    }

    /// The bytes are about to change: recipes that read them are out of date.
    pub(crate) fn change(&mut self) {
        self.version += 1;
        self.recipes = 0;
    }
}

/// Whether a block must stay on the device although no open op uses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hold {
    /// It may leave.
    No,
    /// Nobody has shown yet that they use it through ops.
    UntilTouched,
    /// Somebody has its raw pointer, and may use it where the engine does not see it until the
    /// step ends.
    Lent,
    /// Somebody uses it where the engine does not see it.
    Always,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Resident,
    /// On the host. The chunk that it had may still be in the cache.
    Away {
        departure: Option<Departure>,
    },
    Discarded,
    /// A replay is writing it, on the op stack of this number.
    Replaying {
        by: u64,
    },
}

#[derive(Debug)]
pub(crate) struct HostCopy {
    pub(crate) slot: Slot,
    /// The copy that filled it.
    pub(crate) copied: Point,
    /// The copies that use it.
    pub(crate) uses: Uses,
}
