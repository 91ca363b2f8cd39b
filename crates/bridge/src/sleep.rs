//! Sleep: while a model fits, nobody tells of ops. Who does is said here, and nowhere else: the
//! engine only knows whether all that runs is told of, and the adapter asks before it stops.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use adaptive::{AccessMode, Error, OpName, Stage};

use crate::context::{Context, Course};
use crate::failure::Failure;
use crate::totals::Totals;

/// After so many steps that no plan came of, as no two are alike, none is waited for any more.
const ROAMING_STEPS: u32 = 16;

/// What telling of an op costs the host, measured on slow ones, and the part of a step that is
/// little to pay for larger steps to find their plan from their first op on.
const WATCHED_OP_US: f64 = 10.0;
const CHEAP_PART: f64 = 0.1;

/// Whether ops are told of.
#[derive(Debug, Default)]
pub(crate) struct Sleep {
    state: AtomicU8,
    /// Memory ran short once while nobody watched.
    was_short: AtomicBool,
}

/// What [`Sleep`] tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum State {
    /// All are.
    Awake,
    /// None are: the model fits.
    Asleep,
    /// All that begin are, but some that nobody told of may still be running.
    Waking,
}

impl Sleep {
    fn get(&self) -> State {
        match self.state.load(Ordering::Relaxed) {
            0 => State::Awake,
            1 => State::Asleep,
            _ => State::Waking,
        }
    }

    fn set(&self, state: State) {
        self.state.store(state as u8, Ordering::Relaxed);
    }
}

/// Whether it hardly matters for the last step's time that its ops were told of.
fn is_cheap_to_watch(totals: &Totals) -> bool {
    f64::from(totals.last_op_count) * WATCHED_OP_US < totals.last_step_us * CHEAP_PART
}

impl Context {
    /// Where steps stand. Asleep they fit, whether any two of them are alike or not.
    pub(crate) fn stage(&self, course: &Course) -> Stage {
        if self.is_asleep() { Stage::Stable } else { course.session.stage() }
    }

    /// Whether steps need nothing of the engine but memory.
    pub(crate) fn may_sleep(&self) -> Result<bool, Failure> {
        let course = self.course();
        let moves = course.plan().is_some_and(|plan| !plan.actions.is_empty());
        // There are plans for larger steps. Asleep those come unseen, which is worth it as long as
        // none comes, where watching costs something.
        let was_short = self.sleep.was_short.load(Ordering::Relaxed);
        let session = &course.session;
        let awaits_larger =
            was_short || session.has_outgrown() || is_cheap_to_watch(&course.totals);
        let outgrows = session.may_outgrow() && awaits_larger;
        // Of steps that always differ, nobody knows how large the next one is. Once is enough.
        let roams = course.totals.roaming_steps >= ROAMING_STEPS && !was_short;
        let calm = (session.stage() == Stage::Stable || roams) && !moves && !outgrows;
        // The last step's peak; the running one has only begun.
        let peak_bytes = course.totals.last_resident_bytes + self.away_bytes()?;
        // Asleep nobody tells of accesses.
        Ok(calm && !self.checks_order() && peak_bytes < self.wake_bytes())
    }

    fn away_bytes(&self) -> Result<u64, Failure> {
        let stats = self.engine.memory_stats()?;
        Ok(stats.allocated_bytes.current + stats.disowned_bytes - stats.active_bytes.current)
    }

    /// Live bytes at which a sleeping engine wakes: there is room left for the op that is
    /// running then, and until then there was room for all.
    fn wake_bytes(&self) -> u64 {
        self.settings.engine.pool.near_bytes()
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.sleep.get() == State::Asleep
    }

    /// No ops are told of from now on. Whatever they use is on the device by then, and stays.
    pub(crate) fn sleep(&self) -> Result<(), Failure> {
        self.engine.set_watched(false)?;
        let home = self.touch_all().and_then(|()| Ok(self.engine.synchronize()?));
        let settled = home.and_then(|()| Ok(self.course().session.fall_asleep()?));
        if settled.is_err() {
            self.engine.set_watched(true)?;
            return settled;
        }
        self.sleep.set(State::Asleep);
        Ok(())
    }

    /// Brings back what is away, and waits for it.
    fn touch_all(&self) -> Result<(), Failure> {
        const SLEEP: OpName = OpName::new("smartswap::sleep");
        let mut ops = self.engine.op_stack();
        ops.begin_aside(SLEEP, self.engine.compute_stream())?;
        for live in self.blocks.swappable() {
            let touched = self.engine.is_held(live.id).and_then(|is_held| match is_held {
                true => Ok(()),
                false => ops.touch(live.id, AccessMode::Read).map(drop),
            });
            // Another thread may have freed it.
            if let Err(error) = touched
                && error != Error::Freed
            {
                return Err(error.into());
            }
        }
        Ok(ops.end()?)
    }

    pub(crate) fn should_wake(&self, size_bytes: u64) -> Result<bool, Failure> {
        if !self.is_asleep() || !self.settings.engine.pool.is_swappable_size(size_bytes) {
            return Ok(false);
        }
        let in_use_bytes = self.engine.memory_stats()?.in_use_bytes;
        let is_short = in_use_bytes + size_bytes > self.wake_bytes();
        self.sleep.was_short.fetch_or(is_short, Ordering::Relaxed);
        Ok(is_short)
    }

    /// From here to [`awake`](Context::awake) nothing leaves, as it did not before.
    pub(crate) fn wake(&self) {
        self.sleep.set(State::Waking);
    }

    /// Whether ops may be running that nobody told of.
    pub(crate) fn misses_ops(&self) -> bool {
        self.sleep.get() != State::Awake
    }

    /// All ops are told of again.
    pub(crate) fn awake(&self) -> Result<(), Failure> {
        self.sleep.set(State::Awake);
        Ok(self.engine.set_watched(true)?)
    }
}
