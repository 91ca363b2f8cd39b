//! The sections of time in which the same items are there, as far as they tell anything: one whose
//! items are all in the section before or behind it does not.

use std::ops::Range;

use super::pack::Item;

/// Sections that follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SectionRange {
    first: u32,
    end: u32,
}

/// Who is when there.
pub(super) struct Sections {
    count: usize,
    /// By item.
    ranges: Vec<Vec<SectionRange>>,
}

impl SectionRange {
    pub(super) fn range(self) -> Range<usize> {
        self.first as usize..self.end as usize
    }
}

impl Sections {
    pub(super) fn new(items: &[Item]) -> Sections {
        let members = members(items);
        let mut ranges: Vec<Vec<SectionRange>> = vec![Vec::new(); items.len()];
        for (section, members) in (0..).zip(&members) {
            for &item in members {
                match ranges[item as usize].last_mut() {
                    Some(range) if range.end == section => range.end += 1,
                    _ => ranges[item as usize]
                        .push(SectionRange { first: section, end: section + 1 }),
                }
            }
        }
        Sections { count: members.len(), ranges }
    }

    /// The sections of an item.
    pub(super) fn of(&self, item: u32) -> &[SectionRange] {
        &self.ranges[item as usize]
    }

    /// From the first to the last section of an item.
    fn hull_of(&self, item: u32) -> Range<usize> {
        let ranges = self.of(item);
        ranges[0].first as usize..ranges[ranges.len() - 1].end as usize
    }

    /// From the first to the last section of any of these.
    pub(super) fn hull(&self, items: impl Iterator<Item = u32>) -> Range<usize> {
        let hulls = items.map(|item| self.hull_of(item));
        hulls.reduce(|all, hull| all.start.min(hull.start)..all.end.max(hull.end)).unwrap_or(0..0)
    }

    /// By item: in how many sections it is.
    pub(super) fn lifetimes(&self) -> Vec<u64> {
        let lifetime = |ranges: &Vec<SectionRange>| {
            ranges.iter().map(|range| range.range().len() as u64).sum()
        };
        self.ranges.iter().map(lifetime).collect()
    }

    /// By section: the sum of its items' sizes.
    pub(super) fn totals(&self, sizes: &[u32]) -> Vec<u32> {
        let mut totals = vec![0; self.count];
        for (ranges, size) in self.ranges.iter().zip(sizes) {
            for range in ranges {
                totals[range.range()].iter_mut().for_each(|total| *total += size);
            }
        }
        totals
    }

    /// By item: the others that are in one of its sections.
    pub(super) fn meets(&self) -> Vec<Vec<u32>> {
        let touch = |one: &SectionRange, other: &SectionRange| {
            one.first < other.end && other.first < one.end
        };
        let meet = |one: u32, other: u32| {
            self.of(one).iter().any(|range| self.of(other).iter().any(|it| touch(range, it)))
        };
        let all = 0..self.ranges.len() as u32;
        let meets = |one: u32| all.clone().filter(|&it| it != one && meet(one, it)).collect();
        all.clone().map(meets).collect()
    }

    /// Parts of these items that have no time in common, the smallest first: it fails soonest. What
    /// is away in between counts as there, so parts may be larger than they need be.
    pub(super) fn groups(&self, items: &[u32]) -> Vec<Vec<u32>> {
        let mut reaches = vec![0; self.count];
        for hull in items.iter().map(|&item| self.hull_of(item)) {
            reaches[hull.start] = hull.end.max(reaches[hull.start]);
        }
        // By section: the number of its group.
        let mut numbers = vec![0; self.count];
        let (mut number, mut until) = (0, 0);
        for (section, &reach) in reaches.iter().enumerate() {
            if reach > 0 && section >= until && until > 0 {
                number += 1;
            }
            until = until.max(reach);
            numbers[section] = number;
        }
        let mut groups = vec![Vec::new(); number + 1];
        items.iter().for_each(|&item| groups[numbers[self.hull_of(item).start]].push(item));
        groups.retain(|group| !group.is_empty());
        groups.sort_by_key(Vec::len);
        groups
    }
}

/// Who is there, for each section that is kept.
fn members(items: &[Item]) -> Vec<Vec<u32>> {
    let stays = || {
        let of_item = |(item, stays): (u32, &Item)| (item, stays.stays.clone());
        (0..).zip(items).map(of_item)
    };
    let mut times: Vec<u32> =
        items.iter().flat_map(|item| &item.stays).flat_map(|&(start, end)| [start, end]).collect();
    times.sort_unstable();
    times.dedup();
    let mut members: Vec<Vec<u32>> = vec![Vec::new(); times.len()];
    for (item, stays) in stays() {
        for (start, end) in stays {
            let [first, end] = [start, end].map(|at| times.partition_point(|&time| time < at));
            members[first..end].iter_mut().for_each(|members| members.push(item));
        }
    }
    let is_part =
        |one: &[u32], other: &[u32]| one.iter().all(|item| other.binary_search(item).is_ok());
    let mut kept: Vec<Vec<u32>> = Vec::new();
    for members in members {
        while kept.last().is_some_and(|last| is_part(last, &members)) {
            kept.pop();
        }
        if !members.is_empty() && kept.last().is_none_or(|last| !is_part(&members, last)) {
            kept.push(members);
        }
    }
    kept
}
