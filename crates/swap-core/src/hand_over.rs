//! The hand-over of replays: of all threads that need a discarded block one replays it, and the
//! others wait for that one.
//!
//! It knows neither blocks nor locks, so that a model checker can run it on locks of its own.

use std::ops::DerefMut;

#[cfg(test)]
mod tests;

/// A state behind a lock, on whose change threads can wait.
pub(crate) trait Monitor {
    type State;
    type Guard<'a>: DerefMut<Target = Self::State>
    where
        Self: 'a;
    type Error;

    fn lock(&self) -> Result<Self::Guard<'_>, Self::Error>;

    /// Lets the lock go until the next [`wake`](Monitor::wake).
    fn wait<'a>(&'a self, guard: Self::Guard<'a>) -> Result<Self::Guard<'a>, Self::Error>;

    /// Ends all waits.
    fn wake(&self);
}

/// What came of trying to use a block.
#[derive(Debug)]
pub(crate) enum Attempt<T, B> {
    Done(T),
    /// This block must be replayed first.
    Replay(B),
    /// Another thread is replaying what this one needs.
    Busy,
}

/// Tries until it is done; `replay` brings a block back, or finds that another thread did.
pub(crate) fn until_done<M: Monitor, C, T, B>(
    monitor: &M,
    context: &mut C,
    mut attempt: impl FnMut(&mut C, &mut M::State) -> Result<Attempt<T, B>, M::Error>,
    mut replay: impl FnMut(&mut C, B) -> Result<(), M::Error>,
) -> Result<T, M::Error> {
    let mut state = monitor.lock()?;
    loop {
        match attempt(context, &mut state)? {
            Attempt::Done(value) => return Ok(value),
            Attempt::Replay(block) => {
                drop(state);
                replay(context, block)?;
                state = monitor.lock()?;
            }
            Attempt::Busy => state = monitor.wait(state)?,
        }
    }
}

/// A replay: `begin` claims it, or returns `None` where it is not needed any more; `run` works
/// without the lock and must not unwind; `end` notes how it ended. Returns what that says.
pub(crate) fn replay<M: Monitor, C, R, T, U>(
    monitor: &M,
    context: &mut C,
    begin: impl FnOnce(&mut M::State) -> Result<Option<R>, M::Error>,
    run: impl FnOnce(&mut C, R) -> T,
    end: impl FnOnce(&mut C, &mut M::State, T) -> U,
) -> Result<Option<U>, M::Error> {
    let begun = begin(&mut *monitor.lock()?)?;
    let Some(begun) = begun else { return Ok(None) };
    // Others may wait for this replay, so they hear of its end in any case.
    let _wake = WakeAtEnd(monitor);
    let ran = run(context, begun);
    let mut state = monitor.lock()?;
    Ok(Some(end(context, &mut state, ran)))
}

struct WakeAtEnd<'a, M: Monitor>(&'a M);

impl<M: Monitor> Drop for WakeAtEnd<'_, M> {
    fn drop(&mut self) {
        self.0.wake();
    }
}
