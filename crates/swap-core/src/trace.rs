//! A recorded step: the calls that the engine received, with device times and no pointers.

use std::sync::Arc;

use vmem::AccessMode;

/// Position of an op in its step: the order in which ops began, nested ones included.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpIndex(pub u32);

/// A swappable block's place in the step.
///
/// Blocks that lived at the step's start come first, oldest first; then those allocated during
/// the step, in order of allocation. So the same block has the same place in every like step; while
/// steps are not alike yet, a recorded one has it where the next will, what stays for good first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockIndex(pub u32);

/// Fingerprint of a step: op names and sizes of swappable allocations, in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Signature(pub u64);

impl Signature {
    /// The fingerprint after one more op or allocation.
    #[must_use]
    pub fn mix(self, value: u64) -> Signature {
        // Multiply and rotate by odd constants: cheap, and order matters.
        let mixed = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Signature(mixed ^ (mixed >> 32))
    }
}

/// One step as the engine saw it. Only swappable blocks are in it; small ones appear as the
/// bytes of their segments.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Trace {
    /// Fingerprint of the step.
    pub signature: Signature,
    /// Ops in the order in which they began.
    pub ops: Vec<TraceOp>,
    /// Swappable blocks by [`BlockIndex`].
    pub blocks: Vec<TraceBlock>,
    /// Everything that happened, in call order.
    pub events: Vec<TraceEvent>,
    /// Physical bytes of segments for small blocks, and of what somebody else holds under the same
    /// cap, at the step's start.
    pub segment_bytes: u64,
    /// Device time of the whole step, in microseconds.
    pub step_us: f64,
    /// What the engine's own work costs the host.
    pub host_costs: HostCosts,
}

/// Time of the host that one piece of the engine's work takes, in microseconds; 0 where none was
/// done in the step.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct HostCosts {
    /// An op that runs again.
    pub replay_us: f64,
    /// A block that a plan sends away or asks for.
    pub move_us: f64,
}

impl Trace {
    /// Device time of all ops, in microseconds.
    pub fn ops_us(&self) -> f64 {
        self.ops.iter().map(|op| op.device_us).sum()
    }

    /// Ops have other numbers now; `numbers` has, for each as it was, where it runs last. What put
    /// a recipe out of date, and runs before the op by now, does so no more.
    pub fn renumber_outdated(&mut self, numbers: &[OpIndex]) {
        for (at, op) in (0..).zip(&mut self.ops) {
            let by = op.outdated_by.map(|by| numbers[by.0 as usize]);
            op.outdated_by = by.filter(|by| by.0 >= at);
        }
    }

    /// The same step where the engine's own work costs the host this, as far as it is told. A copy,
    /// where that is another cost than before.
    pub fn with_host_costs(trace: &Arc<Trace>, told: HostCosts) -> Arc<Trace> {
        let mut trace = Arc::clone(trace);
        let costs = told.or(trace.host_costs);
        if costs != trace.host_costs {
            Arc::make_mut(&mut trace).host_costs = costs;
        }
        trace
    }
}

/// One op of a recorded step.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct TraceOp {
    /// Its name.
    pub name: String,
    /// 0 for outermost ops, one more for each op around it.
    pub depth: u32,
    /// Device time with all that it calls, without waits for copies, in microseconds.
    /// Measured for outermost ops, 0 for nested ones.
    pub device_us: f64,
    /// Time of the host from the op's beginning to that of the next outermost op, or to the step's
    /// end, in microseconds: without what the engine does beside, and without its wait for the
    /// device. 0 where it is not known, and for nested ops.
    pub host_us: f64,
    /// Whether the host waits until the device is done with the op before it goes on.
    pub host_waits: bool,
    /// Whether its owner registered a recipe to run it once more.
    pub replayable: bool,
    /// Whether its owner would also register one where its operands are of other sizes.
    pub at_any_size: bool,
    /// The op that was the last to begin when something changed that this one reads and that is no
    /// block of the step, as it is too small: from then on the recipe would make something else.
    pub outdated_by: Option<OpIndex>,
}

impl HostCosts {
    /// These, and where one is not known that of `other`.
    #[must_use]
    pub fn or(self, other: HostCosts) -> HostCosts {
        let known = |us: f64, other_us: f64| if us > 0.0 { us } else { other_us };
        HostCosts {
            replay_us: known(self.replay_us, other.replay_us),
            move_us: known(self.move_us, other.move_us),
        }
    }

    /// Of each the least that is known.
    #[must_use]
    pub fn least(self, other: HostCosts) -> HostCosts {
        let (one, other) = (self.or(other), other.or(self));
        HostCosts {
            replay_us: one.replay_us.min(other.replay_us),
            move_us: one.move_us.min(other.move_us),
        }
    }
}

impl TraceOp {
    /// Takes the same op of another step in: it takes the least that it ever took. Where the host
    /// is late the device waits inside of ops, which says nothing about how long they are.
    pub fn take_least(&mut self, other: &TraceOp) {
        self.device_us = self.device_us.min(other.device_us);
        match (self.host_waits, other.host_waits) {
            (false, true) => {}
            (true, false) => (self.host_us, self.host_waits) = (other.host_us, false),
            _ => self.host_us = self.host_us.min(other.host_us),
        }
    }
}

/// One swappable block of a recorded step.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceBlock {
    /// Physical bytes: the request rounded up to the granularity.
    pub size_bytes: u64,
    /// Where it came from.
    pub origin: Origin,
    /// What its owner calls it; empty when unnamed.
    pub name: String,
    /// It stays on the device: somebody uses it where the engine does not see it.
    pub held: bool,
    /// How many blocks, small ones too, were allocated before it since the last op began.
    pub nth: u32,
}

/// Where a block of a step came from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Origin {
    /// It lived at the step's start.
    Persistent,
    /// Allocated by this op.
    Op(OpIndex),
    /// Allocated outside any op, before this op began.
    Before(OpIndex),
}

/// One call that the engine received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceEvent {
    /// An op began. Its planned actions of phase `Begin` run just before.
    Begin(OpIndex),
    /// The innermost open op touched a block. It is pinned until that op ends.
    Touch(BlockIndex, AccessMode),
    /// A block was allocated, pinned until the innermost open op ends.
    Allocate(BlockIndex),
    /// A block was freed.
    Free(BlockIndex),
    /// Segments of small blocks, and what somebody else holds, come to this many bytes.
    Segments(u64),
    /// An op ended. Its planned actions of phase `End` run just after.
    End(OpIndex),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_copied_only_for_costs_that_are_new() {
        let known = HostCosts { replay_us: 40.0, move_us: 10.0 };
        let trace = Arc::new(Trace { host_costs: known, ..Trace::default() });
        for told in [HostCosts::default(), known] {
            assert!(Arc::ptr_eq(&trace, &Trace::with_host_costs(&trace, told)));
        }
        let told = HostCosts { replay_us: 50.0, move_us: 0.0 };
        let costs = Trace::with_host_costs(&trace, told).host_costs;
        assert_eq!(costs, HostCosts { replay_us: 50.0, ..known });
        assert_eq!(trace.host_costs, known);
    }

    #[test]
    fn the_least_cost_is_one_that_is_known() {
        let one = HostCosts { replay_us: 40.0, move_us: 3_000.0 };
        let other = HostCosts { replay_us: 0.0, move_us: 30.0 };
        let least = HostCosts { replay_us: 40.0, move_us: 30.0 };
        assert_eq!(one.least(other), least);
        assert_eq!(other.least(one), least);
    }
}
