//! Rows of the linear program that say that blocks move whole.
//!
//! A copy out lies between two uses, all of it, and makes the second wait if the time is too short.
//!
//! Of any of the gaps that are open at a time, some must be away whose blocks come to a sum that is
//! no less than what all others leave. Each such sum is a row, for the gaps that end first and for
//! those that could begin last.

use std::collections::BTreeSet;

use microlp::{ComparisonOp, LinearExpr, Problem, Variable};

use crate::Spent;

/// A block that can be away at the end of a part.
pub(crate) struct Open {
    pub(crate) size_bytes: u64,
    /// Its shares that are away, on the host and dropped.
    pub(crate) shares: Vec<Variable>,
    /// How far the end of its gap is, if it must be back then.
    pub(crate) ahead: Option<i64>,
    /// How far its last write is, if it is known.
    pub(crate) behind: Option<i64>,
}

impl Open {
    fn bytes(&self) -> impl Iterator<Item = (Variable, f64)> {
        self.shares.iter().map(|&share| (share, self.size_bytes as f64))
    }
}

/// A copy out that is made in one gap, between two uses, if it is made there at all.
pub(crate) struct Whole {
    /// The slots behind the first use, up to that of the second.
    pub(crate) slots: Vec<usize>,
    /// Its shares.
    pub(crate) copies: Vec<Variable>,
    pub(crate) us: f64,
}

impl Whole {
    /// The second use waits for what the ops between leave of the copy.
    pub(crate) fn add_waits(
        &self,
        problem: &mut Problem,
        ops_us: &[f64],
        waits: &[Variable],
        spent: &[Spent],
    ) {
        let between = &self.slots[..self.slots.len() - 1];
        let lacks_us = self.us - between.iter().map(|&slot| ops_us[slot]).sum::<f64>();
        if lacks_us <= 0.0 || self.copies.is_empty() {
            return;
        }
        let mut sum: LinearExpr = self.copies.iter().map(|&share| (share, lacks_us)).collect();
        for &slot in &self.slots {
            sum.add(waits[slot], -1.0);
            spent[2 * slot][2].iter().for_each(|&(share, us)| sum.add(share, -us));
        }
        problem.add_constraint(sum, ComparisonOp::Le, 0.0);
    }
}

/// The least sum of some of the sizes that is no less than some bytes.
fn whole_bytes(sizes: impl Iterator<Item = u64>, least_bytes: u64) -> Option<u64> {
    let mut sums = BTreeSet::from([0]);
    for size in sizes {
        let with: Vec<u64> = sums.iter().map(|sum| sum + size).collect();
        sums.extend(with);
        // Of those that are enough, the least will do.
        let enough = sums.range(least_bytes..).next().copied();
        sums.retain(|&sum| sum < least_bytes);
        sums.extend(enough);
    }
    sums.range(least_bytes..).next().copied()
}

/// So many bytes must be away at the end of a part. Nothing if there are not so many.
pub(crate) fn add_away(problem: &mut Problem, open: &[Open], bytes: u64) -> Option<()> {
    let whole = whole_bytes(open.iter().map(|open| open.size_bytes), bytes)?;
    let sum = open.iter().flat_map(Open::bytes).collect::<Vec<_>>();
    problem.add_constraint(sum, ComparisonOp::Ge, whole as f64);
    add_sums(problem, open, bytes, |open| open.ahead);
    add_sums(problem, open, bytes, |open| open.behind);
    Some(())
}

/// Of those that are near by some measure, so many whole blocks must be away that all others do for
/// the rest.
fn add_sums(problem: &mut Problem, open: &[Open], bytes: u64, far: impl Fn(&Open) -> Option<i64>) {
    let distances: BTreeSet<i64> = open.iter().filter_map(&far).collect();
    for most in distances {
        let is_near = |open: &&Open| far(open).is_some_and(|distance| distance <= most);
        let near: Vec<&Open> = open.iter().filter(is_near).collect();
        let all: u64 = open.iter().map(|open| open.size_bytes).sum();
        let own: u64 = near.iter().map(|open| open.size_bytes).sum();
        let least = bytes.saturating_sub(all - own);
        let whole = whole_bytes(near.iter().map(|open| open.size_bytes), least).unwrap_or(least);
        if whole > least {
            let sum: Vec<_> = near.iter().flat_map(|open| open.bytes()).collect();
            problem.add_constraint(sum, ComparisonOp::Ge, whole as f64);
        }
    }
}
