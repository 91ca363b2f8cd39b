//! What was done last to each byte of one piece of memory, kept per extent of like bytes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::clock::{Clock, Epoch};
use super::violation::AccessSite;

/// One access, with its place in the order.
#[derive(Debug)]
pub(super) struct Stamp {
    pub(super) epoch: Epoch,
    pub(super) site: AccessSite,
}

/// Accesses of which none is ordered before another; those that are, are dropped: whoever is
/// ordered after the later one is ordered after the earlier one too. So a lane is in it with at
/// most one piece of work.
#[derive(Clone, Debug, Default)]
pub(super) struct Frontier {
    stamps: SmallVec<[Arc<Stamp>; 2]>,
}

impl Frontier {
    /// Adds an access that is ordered after all that `clock` covers.
    pub(super) fn push(&mut self, stamp: &Arc<Stamp>, clock: &Clock) {
        self.forget(clock);
        self.stamps.push(Arc::clone(stamp));
    }

    /// The first access that `clock` does not cover.
    pub(super) fn beyond(&self, clock: &Clock) -> Option<&Arc<Stamp>> {
        self.stamps.iter().find(|stamp| !clock.covers(stamp.epoch))
    }

    fn forget(&mut self, clock: &Clock) {
        self.stamps.retain(|stamp| !clock.covers(stamp.epoch));
    }

    fn is_same(&self, other: &Frontier) -> bool {
        self.stamps.len() == other.stamps.len()
            && self.stamps.iter().zip(&other.stamps).all(|(a, b)| Arc::ptr_eq(a, b))
    }
}

/// What a later access must be ordered after.
#[derive(Clone, Debug, Default)]
struct Past {
    /// Whether the bytes were ever written.
    written: bool,
    /// All earlier writes and reads are ordered before it, or else it would have been refused.
    last_write: Option<Arc<Stamp>>,
    reads_since: Frontier,
}

impl Past {
    fn conflict(&self, writes: bool, clock: &Clock) -> Option<&Arc<Stamp>> {
        let write = self.last_write.as_ref().filter(|stamp| !clock.covers(stamp.epoch));
        match write {
            None if writes => self.reads_since.beyond(clock),
            conflict => conflict,
        }
    }

    fn read(&mut self, stamp: &Arc<Stamp>, clock: &Clock, host: &Clock) {
        // Every later submission knows what the host knows: such a write can never conflict.
        self.last_write.take_if(|write| host.covers(write.epoch));
        self.reads_since.push(stamp, clock);
    }

    fn is_same(&self, other: &Past) -> bool {
        let same_write = match (&self.last_write, &other.last_write) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        };
        same_write && self.written == other.written && self.reads_since.is_same(&other.reads_since)
    }
}

#[derive(Debug)]
struct Extent {
    end: u64,
    past: Past,
}

/// The past of each byte, by offset. Extents do not overlap; bytes without one were never used.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    extents: BTreeMap<u64, Extent>,
}

impl Shadow {
    /// An earlier access to some of `bytes` which an access with `clock` conflicts with, and the
    /// first bytes where it does.
    pub(super) fn conflict(
        &self,
        bytes: &Range<u64>,
        writes: bool,
        clock: &Clock,
    ) -> Option<(&Arc<Stamp>, Range<u64>)> {
        self.overlapping(bytes)
            .find_map(|(shared, past)| past.conflict(writes, clock).map(|stamp| (stamp, shared)))
    }

    /// The first of `bytes` that were never written.
    pub(super) fn unwritten(&self, bytes: &Range<u64>) -> Option<Range<u64>> {
        let mut at = bytes.start;
        for (shared, past) in self.overlapping(bytes) {
            if at < shared.start {
                return Some(at..shared.start);
            }
            if !past.written {
                return Some(shared);
            }
            at = shared.end;
        }
        (at < bytes.end).then_some(at..bytes.end)
    }

    /// Notes an access which does not conflict. `clock` is what it may rely on.
    pub(super) fn apply(
        &mut self,
        bytes: &Range<u64>,
        stamp: &Arc<Stamp>,
        clock: &Clock,
        host: &Clock,
    ) {
        self.split(bytes.start);
        self.split(bytes.end);
        let inside: Vec<(u64, Extent)> =
            self.extents.extract_if(bytes.clone(), |_, _| true).collect();
        if stamp.site.mode.writes() {
            let reads_since = Frontier::default();
            let last_write = Some(Arc::clone(stamp));
            self.append(bytes.clone(), Past { written: true, last_write, reads_since });
        } else {
            let mut at = bytes.start;
            let read = |shadow: &mut Shadow, bytes: Range<u64>, mut past: Past| {
                past.read(stamp, clock, host);
                shadow.append(bytes, past);
            };
            for (start, Extent { end, past }) in inside {
                if at < start {
                    read(self, at..start, Past::default());
                }
                read(self, start..end, past);
                at = end;
            }
            if at < bytes.end {
                read(self, at..bytes.end, Past::default());
            }
        }
        if let Some(Extent { end, past }) = self.extents.remove(&bytes.end) {
            self.append(bytes.end..end, past);
        }
    }

    fn overlapping(&self, bytes: &Range<u64>) -> impl Iterator<Item = (Range<u64>, &Past)> {
        let (start, end) = (bytes.start, bytes.end);
        let before = self.extents.range(..start).next_back();
        let inside = self.extents.range(start..end);
        before.into_iter().chain(inside).filter_map(move |(&from, extent)| {
            let shared = from.max(start)..extent.end.min(end);
            (!shared.is_empty()).then_some((shared, &extent.past))
        })
    }

    /// Makes `at` a border between extents.
    fn split(&mut self, at: u64) {
        let Some((_, extent)) = self.extents.range_mut(..at).next_back() else { return };
        if at < extent.end {
            let right = Extent { end: extent.end, past: extent.past.clone() };
            extent.end = at;
            self.extents.insert(at, right);
        }
    }

    /// Inserts an extent where there is none, as part of its left neighbour if that is alike.
    fn append(&mut self, bytes: Range<u64>, past: Past) {
        if let Some((_, left)) = self.extents.range_mut(..bytes.start).next_back()
            && left.end == bytes.start
            && left.past.is_same(&past)
        {
            left.end = bytes.end;
            return;
        }
        self.extents.insert(bytes.start, Extent { end: bytes.end, past });
    }
}

#[cfg(test)]
mod tests;
