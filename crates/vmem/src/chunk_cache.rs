//! The rules of the chunk cache, with no driver in them: which cached chunk serves a request,
//! when a new one fits under the cap, and which ones are given back.
//!
//! The pool runs these rules on real chunks and the planner's simulator runs them on none, so
//! both count the same bytes. No rule looks at time: the outcome depends on the calls alone.
//!
//! A cap that somebody asked for is there to be used: chunks stay until it needs their room, or
//! until no step wanted them for a while, and each size has its own. Held *by need*, what is held
//! stays close to what the last steps needed while the cap is far. A new chunk then first gives
//! back cached ones beyond a fourteenth above that need, and the smallest cached chunk that is
//! large enough serves where none of the size is left, so that steps soon make few chunks, or
//! none. Steps that differ may make chunks all the same: then more is held, up to four sevenths.
//! Under a cap that somebody asked for, larger chunks serve too while nothing leaves, as far as a
//! step finds room that comes near the cap, however small those before it were.

use std::collections::{BTreeMap, VecDeque};

use self::history::History;
use self::spare::Spare;

mod history;
mod spare;

/// At least this part of the cap is held beyond: what small models would save is not worth calls.
const LEAST_SPARE_DIVISOR: u64 = 256;

/// The part of what steps needed that chunks in use may be too large, all together.
const SLACK_DIVISOR: u64 = 2;

/// Bytes in use from which on a cap is near: a fifth of it is left.
pub(crate) const fn near_bytes(limit_bytes: u64) -> u64 {
    limit_bytes - limit_bytes / 5
}

/// A chunk, and what its user asks for: less where a larger chunk serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fit {
    /// What is asked for.
    pub wanted_bytes: u64,
    /// The chunk.
    pub chunk_bytes: u64,
}

impl Fit {
    /// A chunk of the very size.
    pub fn exact(size_bytes: u64) -> Fit {
        Fit { wanted_bytes: size_bytes, chunk_bytes: size_bytes }
    }

    fn slack_bytes(self) -> u64 {
        self.chunk_bytes - self.wanted_bytes
    }
}

/// Cached chunks of type `T` by exact size, and the bytes held against a cap.
///
/// *Held* bytes are all physical bytes taken from the driver: in use, cached, and reserved for
/// other purposes with [`charge`](ChunkCache::charge). They never exceed the cap.
#[derive(Debug, Clone)]
pub struct ChunkCache<T> {
    limit_bytes: u64,
    by_need: bool,
    nothing_leaves: bool,
    held_bytes: u64,
    held_bytes_peak: u64,
    cached_bytes: u64,
    slack_bytes: u64,
    idle_bytes: u64,
    /// Counts what is taken and put: an entry keeps the number at which it was put.
    sequence: u64,
    by_size: BTreeMap<u64, VecDeque<(u64, T)>>,
    history: History,
    spare: Spare,
}

/// Whether a new chunk fits under the cap.
#[derive(Debug, PartialEq, Eq)]
pub enum Room<T> {
    /// It fits once these cached chunks, oldest first, are released. They have left the cache and
    /// are no longer held.
    After(Vec<(u64, T)>),
    /// It does not fit even with an empty cache: this many bytes are missing. Nothing changed.
    Short(u64),
}

impl<T> ChunkCache<T> {
    /// An empty cache under a cap of `limit_bytes`.
    pub fn new(limit_bytes: u64) -> ChunkCache<T> {
        ChunkCache {
            limit_bytes,
            by_need: false,
            nothing_leaves: false,
            held_bytes: 0,
            held_bytes_peak: 0,
            cached_bytes: 0,
            slack_bytes: 0,
            idle_bytes: 0,
            sequence: 0,
            by_size: BTreeMap::new(),
            history: History::default(),
            spare: Spare::default(),
        }
    }

    /// Holds little more than the last steps needed from here on, while the cap is far.
    pub fn hold_by_need(&mut self) {
        self.by_need = true;
    }

    /// Whether all that is in use fits, and stays until it is freed.
    pub fn let_nothing_leave(&mut self, nothing_leaves: bool) {
        self.nothing_leaves = nothing_leaves;
    }

    /// Whether what the last steps needed leaves the cap far away, which nobody asked for.
    pub fn is_cap_far(&self) -> bool {
        self.most_by_need(0).is_some()
    }

    /// The cap.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Bytes taken from the driver: in use, cached and reserved.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// The most that was ever held since the last [`reset_peak`](ChunkCache::reset_peak).
    pub fn held_bytes_peak(&self) -> u64 {
        self.held_bytes_peak
    }

    /// Starts a new measurement of the peak.
    pub fn reset_peak(&mut self) {
        self.held_bytes_peak = self.held_bytes;
    }

    /// Bytes held by cached chunks.
    pub fn cached_bytes(&self) -> u64 {
        self.cached_bytes
    }

    /// Bytes of chunks in use beyond what their users asked for.
    pub fn slack_bytes(&self) -> u64 {
        self.slack_bytes
    }

    /// The chunk that a new block of `size_bytes` should have: of that size, unless a larger one
    /// is cached and does no harm.
    pub fn best_fit(&self, size_bytes: u64) -> Fit {
        let cached = |(&chunk_bytes, chunks): (&u64, &VecDeque<_>)| {
            let fit = Fit { wanted_bytes: size_bytes, chunk_bytes };
            (!chunks.is_empty()).then_some(fit)
        };
        let smallest = self.by_size.range(size_bytes..).find_map(cached);
        let does_no_harm = |fit: &Fit| fit.slack_bytes() == 0 || self.allows(*fit);
        smallest.filter(does_no_harm).unwrap_or(Fit::exact(size_bytes))
    }

    /// Takes a chunk of the size: one that `is_freed` accepts, as it is ready in compute's own
    /// order, else the one that was cached first.
    pub fn serve(&mut self, fit: Fit, is_freed: impl Fn(&T) -> bool) -> Option<T> {
        self.take_if(fit, is_freed).or_else(|| self.take(fit))
    }

    /// Takes the chunk of the size that was cached first: if copies out of the cached chunks are
    /// still under way, its copy is the first to end.
    fn take(&mut self, fit: Fit) -> Option<T> {
        let (_, chunk) = self.by_size.get_mut(&fit.chunk_bytes)?.pop_front()?;
        self.taken(fit);
        Some(chunk)
    }

    /// Takes the most recently cached chunk of the size that `wanted` accepts.
    pub fn take_if(&mut self, fit: Fit, wanted: impl Fn(&T) -> bool) -> Option<T> {
        let chunks = self.by_size.get_mut(&fit.chunk_bytes)?;
        let index = chunks.iter().rposition(|(_, chunk)| wanted(chunk))?;
        let (_, chunk) = chunks.remove(index)?;
        self.taken(fit);
        Some(chunk)
    }

    /// Caches a chunk that was in use.
    pub fn put(&mut self, fit: Fit, chunk: T) {
        self.sequence += 1;
        self.cached_bytes += fit.chunk_bytes;
        self.slack_bytes -= fit.slack_bytes();
        assert!(self.cached_bytes <= self.held_bytes, "a chunk was cached that was never charged");
        self.by_size.entry(fit.chunk_bytes).or_default().push_back((self.sequence, chunk));
    }

    /// Makes room for a new chunk of `size_bytes`; cached chunks go oldest first.
    pub fn make_room(&mut self, size_bytes: u64) -> Room<T> {
        let needed = self.held_bytes.saturating_add(size_bytes);
        let excess = needed.saturating_sub(self.limit_bytes);
        if excess > self.cached_bytes {
            return Room::Short(excess - self.cached_bytes);
        }
        let most_bytes = self.most_by_need(size_bytes).unwrap_or(self.limit_bytes);
        let mut given_back = Vec::new();
        while self.held_bytes + size_bytes > most_bytes
            && let Some(oldest) = self.give_back_oldest()
        {
            given_back.push(oldest);
        }
        self.spare.note_given_back(given_back.len());
        Room::After(given_back)
    }

    /// Ends a step: what the next ones may hold depends on what the last ones needed. Returns the
    /// chunks that nobody wanted for several steps; they have left the cache and are no longer
    /// held.
    pub fn end_step(&mut self) -> Vec<(u64, T)> {
        self.spare.end_step();
        let live_bytes = self.live_bytes();
        let Some(unwanted) = self.history.end_step(self.sequence, live_bytes) else {
            return Vec::new();
        };
        let mut given_back = Vec::new();
        while self.oldest().is_some_and(|(sequence, _)| sequence <= unwanted) {
            given_back.extend(self.give_back_oldest());
        }
        given_back
    }

    /// Empties the cache and forgets what steps needed; the chunks are no longer held.
    pub fn drain(&mut self) -> Vec<(u64, T)> {
        let mut chunks = Vec::new();
        while let Some(oldest) = self.give_back_oldest() {
            chunks.push(oldest);
        }
        self.spare = Spare::default();
        self.history = History::default();
        self.history.note_live(self.live_bytes());
        chunks
    }

    /// Counts a chunk that was taken from the driver, for use.
    ///
    /// # Panics
    /// If that exceeds the cap: make room first.
    pub fn charge(&mut self, fit: Fit) {
        self.hold(fit.chunk_bytes);
        self.slack_bytes += fit.slack_bytes();
        self.history.note_live(self.live_bytes());
    }

    /// Counts a chunk as held that nobody uses yet, or any more: it is to be idle, or has left the
    /// cache and is on its way back to the driver.
    ///
    /// # Panics
    /// If that exceeds the cap.
    pub fn hold(&mut self, size_bytes: u64) {
        self.held_bytes += size_bytes;
        assert!(self.held_bytes <= self.limit_bytes, "held more than the cap");
        self.held_bytes_peak = self.held_bytes_peak.max(self.held_bytes);
    }

    /// Counts held bytes as idle: kept for whoever comes to lie there, and in nobody's use.
    pub fn put_idle(&mut self, size_bytes: u64) {
        self.idle_bytes += size_bytes;
    }

    /// Counts idle bytes as in use.
    pub fn use_idle(&mut self, size_bytes: u64) {
        self.take_idle(size_bytes);
        self.history.note_live(self.live_bytes());
    }

    /// Counts idle bytes as kept for nobody: they are about to go back.
    pub fn take_idle(&mut self, size_bytes: u64) {
        self.idle_bytes -= size_bytes;
    }

    /// Counts bytes that were given back to the driver and are not in the cache.
    pub fn refund(&mut self, size_bytes: u64) {
        assert!(self.held_bytes - self.cached_bytes >= size_bytes, "refunded more than was in use");
        self.held_bytes -= size_bytes;
    }

    /// Bytes that users asked for.
    pub fn live_bytes(&self) -> u64 {
        self.held_bytes - self.cached_bytes - self.slack_bytes - self.idle_bytes
    }

    /// The most to hold by need with `size_bytes` more in use, if that leaves the cap far away.
    fn most_by_need(&self, size_bytes: u64) -> Option<u64> {
        let need_bytes = self.history.peak_bytes().max(self.live_bytes() + size_bytes);
        let least_bytes = self.limit_bytes / LEAST_SPARE_DIVISOR;
        let spare_bytes = self.spare.of(need_bytes).max(least_bytes);
        let far_bytes = near_bytes(self.limit_bytes);
        let is_far = need_bytes.saturating_add(least_bytes) <= far_bytes;
        let most_bytes = need_bytes.saturating_add(spare_bytes).min(far_bytes);
        (self.by_need && is_far).then_some(most_bytes)
    }

    /// Whether a larger chunk may serve: while what is in use stays within what is held anyway. Not
    /// in the first step, where what is allocated often stays, and what is freed often does not
    /// come again. And slack is bounded, so that the step finds room for the rest of what those
    /// before needed. Where nothing can leave for it, what no step needed yet finds room as well,
    /// until the cap is near.
    fn allows(&self, fit: Fit) -> bool {
        let used_bytes = self.held_bytes - self.cached_bytes + fit.chunk_bytes;
        let slack_bytes = self.slack_bytes + fit.slack_bytes();
        let past_bytes = self.history.past_peak_bytes();
        let (most_bytes, need_bytes) = match self.most_by_need(fit.wanted_bytes) {
            Some(most_bytes) => (most_bytes, past_bytes),
            None if self.nothing_leaves => {
                (self.limit_bytes, past_bytes.max(near_bytes(self.limit_bytes)))
            }
            None => return false,
        };
        let left_bytes = self.limit_bytes.saturating_sub(need_bytes);
        used_bytes <= most_bytes && slack_bytes <= left_bytes.min(past_bytes / SLACK_DIVISOR)
    }

    /// Counts a chunk that left the cache for use.
    fn taken(&mut self, fit: Fit) {
        self.sequence += 1;
        self.cached_bytes -= fit.chunk_bytes;
        self.slack_bytes += fit.slack_bytes();
        self.history.note_live(self.live_bytes());
    }

    /// When the oldest chunk was cached, and its size.
    fn oldest(&self) -> Option<(u64, u64)> {
        let first = |(&size, chunks): (&u64, &VecDeque<(u64, T)>)| {
            chunks.front().map(|&(sequence, _)| (sequence, size))
        };
        self.by_size.iter().filter_map(first).min()
    }

    fn give_back_oldest(&mut self) -> Option<(u64, T)> {
        let (_, size) = self.oldest()?;
        let (_, chunk) = self.by_size.get_mut(&size)?.pop_front()?;
        self.cached_bytes -= size;
        self.held_bytes -= size;
        Some((size, chunk))
    }
}

#[cfg(test)]
mod tests;
