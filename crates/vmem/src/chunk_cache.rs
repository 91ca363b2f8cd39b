//! The rules of the chunk cache, with no driver in them: which cached chunk serves a request,
//! when a new one fits under the cap, and which ones are given back to make room.
//!
//! The pool runs these rules on real chunks and the planner's simulator runs them on none, so
//! both count the same bytes. No rule looks at time: the outcome depends on the calls alone.

use std::collections::{BTreeMap, VecDeque};

/// Cached chunks of type `T` by exact size, and the bytes held against a cap.
///
/// *Held* bytes are all physical bytes taken from the driver: in use, cached, and reserved for
/// other purposes with [`charge`](ChunkCache::charge). They never exceed the cap.
#[derive(Debug, Clone)]
pub struct ChunkCache<T> {
    limit_bytes: u64,
    held_bytes: u64,
    held_bytes_peak: u64,
    cached_bytes: u64,
    sequence: u64,
    by_size: BTreeMap<u64, VecDeque<(u64, T)>>,
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
            held_bytes: 0,
            held_bytes_peak: 0,
            cached_bytes: 0,
            sequence: 0,
            by_size: BTreeMap::new(),
        }
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

    /// Takes the chunk of exactly `size_bytes` that was cached first: if copies out of the cached
    /// chunks are still under way, its copy is the first to end.
    pub fn take(&mut self, size_bytes: u64) -> Option<T> {
        let (_, chunk) = self.by_size.get_mut(&size_bytes)?.pop_front()?;
        self.cached_bytes -= size_bytes;
        Some(chunk)
    }

    /// Takes the most recently cached chunk of `size_bytes` that `wanted` accepts.
    pub fn take_if(&mut self, size_bytes: u64, wanted: impl Fn(&T) -> bool) -> Option<T> {
        let chunks = self.by_size.get_mut(&size_bytes)?;
        let index = chunks.iter().rposition(|(_, chunk)| wanted(chunk))?;
        let (_, chunk) = chunks.remove(index)?;
        self.cached_bytes -= size_bytes;
        Some(chunk)
    }

    /// Caches a chunk that was in use.
    pub fn put(&mut self, size_bytes: u64, chunk: T) {
        self.sequence += 1;
        self.cached_bytes += size_bytes;
        assert!(self.cached_bytes <= self.held_bytes, "a chunk was cached that was never charged");
        self.by_size.entry(size_bytes).or_default().push_back((self.sequence, chunk));
    }

    /// Makes room for a new chunk of `size_bytes`; cached chunks go oldest first.
    pub fn make_room(&mut self, size_bytes: u64) -> Room<T> {
        let needed = self.held_bytes.saturating_add(size_bytes);
        let excess = needed.saturating_sub(self.limit_bytes);
        if excess > self.cached_bytes {
            return Room::Short(excess - self.cached_bytes);
        }
        let mut given_back = Vec::new();
        let mut freed = 0;
        while freed < excess {
            let (size, chunk) = self.take_oldest().expect("excess is at most the cached bytes");
            freed += size;
            self.held_bytes -= size;
            given_back.push((size, chunk));
        }
        Room::After(given_back)
    }

    /// Empties the cache; the chunks are no longer held.
    pub fn drain(&mut self) -> Vec<(u64, T)> {
        let mut chunks = Vec::new();
        while let Some((size, chunk)) = self.take_oldest() {
            self.held_bytes -= size;
            chunks.push((size, chunk));
        }
        chunks
    }

    /// Counts bytes that were taken from the driver.
    ///
    /// # Panics
    /// If that exceeds the cap: make room first.
    pub fn charge(&mut self, size_bytes: u64) {
        self.held_bytes += size_bytes;
        assert!(self.held_bytes <= self.limit_bytes, "held more than the cap");
        self.held_bytes_peak = self.held_bytes_peak.max(self.held_bytes);
    }

    /// Counts bytes that were given back to the driver and are not in the cache.
    pub fn refund(&mut self, size_bytes: u64) {
        assert!(self.held_bytes - self.cached_bytes >= size_bytes, "refunded more than was in use");
        self.held_bytes -= size_bytes;
    }

    fn take_oldest(&mut self) -> Option<(u64, T)> {
        let (&size, _) = self
            .by_size
            .iter()
            .filter_map(|(size, chunks)| chunks.front().map(|(sequence, _)| (size, sequence)))
            .min_by_key(|&(_, sequence)| sequence)?;
        let (_, chunk) = self.by_size.get_mut(&size)?.pop_front()?;
        self.cached_bytes -= size;
        Some((size, chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_use(cache: &mut ChunkCache<u32>, size_bytes: u64) {
        assert_eq!(cache.make_room(size_bytes), Room::After(vec![]));
        cache.charge(size_bytes);
    }

    #[test]
    fn the_oldest_chunk_of_the_size_serves() {
        let mut cache = ChunkCache::new(100);
        for chunk in 0..3 {
            in_use(&mut cache, 10);
            cache.put(10, chunk);
        }
        assert_eq!(cache.take(10), Some(0));
        assert_eq!(cache.take(20), None);
        assert_eq!(cache.take_if(10, |&chunk| chunk == 1), Some(1));
        assert_eq!((cache.held_bytes(), cache.cached_bytes()), (30, 10));
    }

    #[test]
    fn the_oldest_chunks_make_room_and_no_more_than_needed() {
        let mut cache = ChunkCache::new(60);
        for (chunk, size) in [(0, 20), (1, 10), (2, 20)] {
            in_use(&mut cache, size);
            cache.put(size, chunk);
        }
        assert_eq!(cache.make_room(35), Room::After(vec![(20, 0), (10, 1)]));
        cache.charge(35);
        assert_eq!(cache.held_bytes(), 55);
        assert_eq!(cache.make_room(30), Room::Short(5));
        assert_eq!((cache.held_bytes(), cache.cached_bytes()), (55, 20));
        assert_eq!(cache.held_bytes_peak(), 55);
    }

    #[test]
    fn chunks_that_are_just_enough_are_all_that_goes() {
        let mut cache = ChunkCache::new(60);
        for chunk in 0..3 {
            in_use(&mut cache, 20);
            cache.put(20, chunk);
        }
        assert_eq!(cache.make_room(20), Room::After(vec![(20, 0)]));
    }

    #[test]
    fn of_several_that_are_wanted_the_last_one_cached_serves() {
        let mut cache = ChunkCache::new(100);
        for chunk in 0..4 {
            in_use(&mut cache, 10);
            cache.put(10, chunk);
        }
        assert_eq!(cache.take_if(10, |&chunk| chunk < 3), Some(2));
        assert_eq!(cache.take_if(10, |&chunk| chunk < 3), Some(1));
        assert_eq!(cache.take_if(10, |&chunk| chunk > 3), None);
    }

    #[test]
    fn a_new_peak_starts_at_what_is_held() {
        let mut cache = ChunkCache::new(100);
        in_use(&mut cache, 40);
        in_use(&mut cache, 30);
        cache.refund(40);
        assert_eq!(cache.held_bytes_peak(), 70);
        cache.reset_peak();
        assert_eq!(cache.held_bytes_peak(), 30);
        in_use(&mut cache, 20);
        assert_eq!(cache.held_bytes_peak(), 50);
    }
}
