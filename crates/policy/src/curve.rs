//! Bytes by slot: sums over ranges of slots, and where the most bytes are.

/// A row of byte counts with fast range changes and a fast maximum. Ranges go round: one that
/// runs over the end goes on at the beginning, and may come by its first slots again.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    count: usize,
    leaves: usize,
    /// The maximum of each node's leaves, without what is added at nodes above it.
    max: Vec<i64>,
    /// Added to all leaves of a node.
    added: Vec<i64>,
}

impl Curve {
    pub(crate) fn new(bytes: &[u64]) -> Curve {
        let bytes: Vec<i64> = bytes.iter().map(|&bytes| bytes as i64).collect();
        Curve::of(&bytes)
    }

    pub(crate) fn of(bytes: &[i64]) -> Curve {
        let leaves = bytes.len().next_power_of_two().max(1);
        let mut max = vec![i64::MIN / 2; 2 * leaves];
        for (index, &value) in bytes.iter().enumerate() {
            max[leaves + index] = value;
        }
        for node in (1..leaves).rev() {
            max[node] = max[2 * node].max(max[2 * node + 1]);
        }
        Curve { count: bytes.len(), leaves, max, added: vec![0; 2 * leaves] }
    }

    /// Adds to `count` slots from `start` on, going round at the end. A slot that the range comes
    /// by twice gets the bytes twice.
    pub(crate) fn add(&mut self, start: usize, count: usize, bytes: i64) {
        for (start, end) in self.parts(start, count) {
            self.add_range(1, 0, self.leaves, start, end, bytes);
        }
    }

    /// The first slot with the most bytes, and how many these are.
    pub(crate) fn peak(&self) -> (usize, i64) {
        let (mut node, mut above) = (1, 0);
        while node < self.leaves {
            above += self.added[node];
            node *= 2;
            if self.max[node + 1] > self.max[node] {
                node += 1;
            }
        }
        (node - self.leaves, self.max[node] + above)
    }

    /// The most bytes in `count` slots from `start` on, going round at the end.
    pub(crate) fn max_over(&self, start: usize, count: usize) -> i64 {
        let [one, other] = self.parts(start, count);
        let max = self.max_range(1, 0, self.leaves, one.0, one.1);
        max.max(self.max_range(1, 0, self.leaves, other.0, other.1))
    }

    /// How many slots of `count` from `start` on come before the first with more than `bytes`,
    /// going round at the end; `None` if none has more.
    pub(crate) fn first_above(&self, start: usize, count: usize, bytes: i64) -> Option<usize> {
        let [one, other] = self.parts(start, count);
        let first = self.find(1, 0, self.leaves, one, bytes, false).map(|slot| slot - one.0);
        let then = || self.find(1, 0, self.leaves, other, bytes, false);
        first.or_else(|| then().map(|slot| one.1 - one.0 + slot))
    }

    /// The like of the last slot with more than `bytes`.
    pub(crate) fn last_above(&self, start: usize, count: usize, bytes: i64) -> Option<usize> {
        let [one, other] = self.parts(start, count);
        let last = self.find(1, 0, self.leaves, other, bytes, true);
        let last = last.map(|slot| one.1 - one.0 + slot);
        last.or_else(|| Some(self.find(1, 0, self.leaves, one, bytes, true)? - one.0))
    }

    /// A range that may go round, as two that do not.
    fn parts(&self, start: usize, count: usize) -> [(usize, usize); 2] {
        let start = start % self.count.max(1);
        let end = start + count;
        assert!(end <= 2 * self.count, "a range goes round once");
        [(start, end.min(self.count)), (0, end.saturating_sub(self.count))]
    }

    /// The first or the last slot of a range with more than `bytes`.
    fn find(
        &self,
        node: usize,
        node_start: usize,
        node_end: usize,
        range: (usize, usize),
        bytes: i64,
        last: bool,
    ) -> Option<usize> {
        if range.1 <= node_start || node_end <= range.0 || self.max[node] <= bytes {
            return None;
        }
        if node >= self.leaves {
            return Some(node_start);
        }
        let middle = node_start.midpoint(node_end);
        let below = bytes - self.added[node];
        let halves = [(2 * node, node_start, middle), (2 * node + 1, middle, node_end)];
        let find = |(node, start, end)| self.find(node, start, end, range, below, last);
        let [one, other] = if last { [halves[1], halves[0]] } else { halves };
        find(one).or_else(|| find(other))
    }

    fn max_range(
        &self,
        node: usize,
        node_start: usize,
        node_end: usize,
        start: usize,
        end: usize,
    ) -> i64 {
        if end <= node_start || node_end <= start {
            return i64::MIN / 2;
        }
        if start <= node_start && node_end <= end {
            return self.max[node];
        }
        let middle = node_start.midpoint(node_end);
        let first = self.max_range(2 * node, node_start, middle, start, end);
        let second = self.max_range(2 * node + 1, middle, node_end, start, end);
        first.max(second) + self.added[node]
    }

    /// All values, in order.
    pub(crate) fn values(&self) -> Vec<i64> {
        (0..self.count)
            .map(|index| {
                let mut node = self.leaves + index;
                let mut value = self.max[node];
                while node > 1 {
                    node /= 2;
                    value += self.added[node];
                }
                value
            })
            .collect()
    }

    fn add_range(
        &mut self,
        node: usize,
        node_start: usize,
        node_end: usize,
        start: usize,
        end: usize,
        bytes: i64,
    ) {
        if end <= node_start || node_end <= start {
            return;
        }
        if start <= node_start && node_end <= end {
            self.max[node] += bytes;
            if node < self.leaves {
                self.added[node] += bytes;
            }
            return;
        }
        let middle = node_start.midpoint(node_end);
        self.add_range(2 * node, node_start, middle, start, end, bytes);
        self.add_range(2 * node + 1, middle, node_end, start, end, bytes);
        self.max[node] = self.max[2 * node].max(self.max[2 * node + 1]) + self.added[node];
    }
}

/// Free time by slot: sums over ranges, and taking time from either end of one.
#[derive(Clone, Debug)]
pub(crate) struct FreeTime {
    sums: Vec<f64>,
    free_us: Vec<f64>,
    /// By slot: a later or equal one before which no slot from this one on has free time.
    next: Vec<u32>,
    /// By slot, counted from 1: the same, backward.
    last: Vec<u32>,
}

impl FreeTime {
    pub(crate) fn new(free_us: Vec<f64>) -> FreeTime {
        let mut sums = vec![0.0; free_us.len() + 1];
        for (index, us) in free_us.iter().enumerate() {
            let mut node = index + 1;
            while node < sums.len() {
                sums[node] += us;
                node += node & node.wrapping_neg();
            }
        }
        let next = (0..=free_us.len() as u32).collect();
        let last = (0..=free_us.len() as u32).collect();
        FreeTime { sums, free_us, next, last }
    }

    /// Free time of `count` slots from `start` on, going round at the end.
    pub(crate) fn sum_us(&self, start: usize, count: usize) -> f64 {
        let slots = self.free_us.len();
        let start = start % slots;
        let end = start + count;
        if end <= slots {
            self.prefix_us(end) - self.prefix_us(start)
        } else {
            self.prefix_us(slots) - self.prefix_us(start) + self.prefix_us(end - slots)
        }
    }

    /// Takes time from `count` slots from `start` on, the first slots first or the last ones
    /// first. Takes what there is if it is not enough.
    pub(crate) fn take(&mut self, start: usize, count: usize, mut us: f64, last_first: bool) {
        let slots = self.free_us.len();
        let start = start % slots;
        let end = start + count;
        let mut parts = [(start, end.min(slots)), (0, end.saturating_sub(slots))];
        if last_first {
            parts.reverse();
        }
        for (start, end) in parts {
            if last_first {
                self.take_last(start, end, &mut us);
            } else {
                self.take_first(start, end, &mut us);
            }
        }
    }

    fn take_first(&mut self, start: usize, end: usize, us: &mut f64) {
        let mut slot = start;
        while *us > 0.0 {
            slot = skip(&mut self.next, slot);
            if slot >= end {
                return;
            }
            self.take_from(slot, us);
            slot += 1;
        }
    }

    fn take_last(&mut self, start: usize, end: usize, us: &mut f64) {
        let mut behind = end;
        while *us > 0.0 {
            behind = skip(&mut self.last, behind);
            if behind <= start {
                return;
            }
            self.take_from(behind - 1, us);
            behind -= 1;
        }
    }

    fn take_from(&mut self, slot: usize, us: &mut f64) {
        let part = us.min(self.free_us[slot]);
        *us -= part;
        self.free_us[slot] -= part;
        if self.free_us[slot] <= 0.0 {
            self.next[slot] = slot as u32 + 1;
            self.last[slot + 1] = slot as u32;
        }
        let mut node = slot + 1;
        while node < self.sums.len() {
            self.sums[node] -= part;
            node += node & node.wrapping_neg();
        }
    }

    fn prefix_us(&self, end: usize) -> f64 {
        let (mut node, mut sum) = (end, 0.0);
        while node > 0 {
            sum += self.sums[node];
            node &= node - 1;
        }
        sum
    }
}

/// Follows links to the place that links to itself, and shortens the way for the next time.
fn skip(links: &mut [u32], start: usize) -> usize {
    let mut place = start;
    while links[place] as usize != place {
        let further = links[links[place] as usize];
        links[place] = further;
        place = further as usize;
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_comes_by_a_slot_twice_counts_twice_there() {
        let mut curve = Curve::new(&[0; 5]);
        curve.add(3, 7, 10);
        assert_eq!(curve.values(), [10, 10, 10, 20, 20]);
        assert_eq!((curve.peak(), curve.max_over(4, 6)), ((3, 20), 20));
        assert_eq!((curve.first_above(0, 5, 15), curve.last_above(3, 6, 15)), (Some(3), Some(5)));
        curve.add(3, 7, -10);
        assert_eq!(curve.values(), [0; 5]);
    }
}
