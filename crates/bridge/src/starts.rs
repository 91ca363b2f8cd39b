//! A table by start address: open addressing, one probe for most, no order.
//!
//! Its order is never looked at, so its hash may be simple, and outcomes do not depend on it.

/// What lies at an address.
pub(crate) trait Located {
    /// Where it begins; never 0.
    fn start(&self) -> u64;
}

/// Slots at first; always a power of two.
const SLOTS_AT_FIRST: usize = 1024;

/// Values by where they begin.
#[derive(Debug)]
pub(crate) struct Starts<T> {
    /// The start in each slot, 0 for none. Apart from the values, as they fit the cache then.
    starts: Vec<u64>,
    values: Vec<Option<T>>,
    count: usize,
}

impl<T> Default for Starts<T> {
    fn default() -> Starts<T> {
        Starts { starts: Vec::new(), values: Vec::new(), count: 0 }
    }
}

impl<T: Located> Starts<T> {
    /// Where a start would be if nothing were in its way.
    fn home(&self, start: u64) -> usize {
        // Starts are multiples of hundreds or of millions, and the high bits of the product depend
        // on all of theirs.
        let mixed = start.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (64 - self.starts.len().ilog2())) as usize
    }

    fn behind(&self, slot: usize) -> usize {
        (slot + 1) & (self.starts.len() - 1)
    }

    /// The slot of a start, or the one where it belongs. There is an empty one.
    fn slot(&self, start: u64) -> usize {
        let mut slot = self.home(start);
        while self.starts[slot] != start && self.starts[slot] != 0 {
            slot = self.behind(slot);
        }
        slot
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn get(&self, start: u64) -> Option<&T> {
        if self.count == 0 { None } else { self.values[self.slot(start)].as_ref() }
    }

    pub(crate) fn get_mut(&mut self, start: u64) -> Option<&mut T> {
        if self.count == 0 {
            return None;
        }
        let slot = self.slot(start);
        self.values[slot].as_mut()
    }

    /// Adds a value; one with the same start goes.
    pub(crate) fn insert(&mut self, value: T) {
        // Half of the slots stay empty, so that probes are short.
        if self.count * 2 >= self.starts.len() {
            self.grow();
        }
        let slot = self.slot(value.start());
        self.starts[slot] = value.start();
        self.count += usize::from(self.values[slot].replace(value).is_none());
    }

    fn grow(&mut self) {
        let slots = (self.starts.len() * 2).max(SLOTS_AT_FIRST);
        self.starts = vec![0; slots];
        let empty = (0..slots).map(|_| None).collect();
        for value in std::mem::replace(&mut self.values, empty).into_iter().flatten() {
            let slot = self.slot(value.start());
            self.starts[slot] = value.start();
            self.values[slot] = Some(value);
        }
    }

    pub(crate) fn remove(&mut self, start: u64) -> Option<T> {
        if self.count == 0 {
            return None;
        }
        let mut hole = self.slot(start);
        let removed = self.values[hole].take()?;
        self.count -= 1;
        // What was pushed behind the hole moves up, or a probe would end there.
        let mut slot = self.behind(hole);
        while self.starts[slot] != 0 {
            let ring = self.starts.len() - 1;
            let pushed = slot.wrapping_sub(self.home(self.starts[slot])) & ring;
            if pushed >= slot.wrapping_sub(hole) & ring {
                self.starts[hole] = self.starts[slot];
                self.values[hole] = self.values[slot].take();
                hole = slot;
            }
            slot = self.behind(slot);
        }
        self.starts[hole] = 0;
        Some(removed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    impl Located for (u64, u32) {
        fn start(&self) -> u64 {
            self.0
        }
    }

    /// Starts that are close and far, so that probes run into each other and round the end.
    #[test]
    fn it_holds_what_an_ordered_map_holds() {
        let (mut table, mut model) = (Starts::default(), BTreeMap::new());
        let mut random = 7_u64;
        let (mut found, mut removed) = (0, 0);
        for turn in 0..200_000_u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let start = ((random >> 33) % 3000 + 1) << (9 + 12 * (random >> 63));
            match (random >> 20) % 3 {
                0 => {
                    table.insert((start, turn));
                    model.insert(start, turn);
                }
                1 => {
                    let value = table.remove(start);
                    assert_eq!(value.map(|(_, turn)| turn), model.remove(&start));
                    removed += u32::from(value.is_some());
                }
                _ => {
                    let value = table.get(start).copied();
                    assert_eq!(value, model.get(&start).map(|&turn| (start, turn)));
                    found += u32::from(value.is_some());
                }
            }
            assert_eq!(table.len(), model.len());
        }
        assert!(found > 10_000 && removed > 10_000 && table.starts.len() > SLOTS_AT_FIRST);
        for (&start, &turn) in &model {
            assert_eq!(table.get_mut(start), Some(&mut (start, turn)));
        }
    }
}
