//! Which of many sizes add up to nearly a limit: a bounded subset sum.
//!
//! All reachable sums are kept, in order, after each group of equal sizes. While they are few the
//! answer is exact. Where they become too many, only the largest sum of each of many equal steps
//! up to the limit is kept, which costs at most a step for each group.

/// Sums that are kept over all rounds together, so that time and memory are bounded.
const SUMS_TOTAL: usize = 1 << 21;

/// Bounds of the sums that are kept after one round.
const SUMS_LEAST: usize = 256;
const SUMS_MOST: usize = 1 << 16;

/// Rounds. Sizes beyond these, the smallest, only fill what is left.
const BUNDLES_MOST: usize = SUMS_TOTAL / SUMS_LEAST;

/// A reachable sum: how many of the round's pieces it has, and what it was before.
#[derive(Clone, Copy)]
struct Sum {
    bytes: u64,
    /// Index among the sums of the round before.
    before: u32,
    /// Whether the round's bundle is in it.
    has_bundle: bool,
}

/// Some of the equal sizes, taken together or not at all.
#[derive(Clone, Copy)]
struct Bundle {
    group: usize,
    count: u64,
    bytes: u64,
}

/// How many of each of the `(size, count)` groups to take, so that their sum is as near to
/// `limit_bytes` as can be found without going beyond. The groups come largest size first.
pub(super) fn nearest(groups: &[(u64, u64)], limit_bytes: u64) -> Vec<(u64, u64)> {
    let mut chosen: Vec<(u64, u64)> = groups.iter().map(|&(size, _)| (size, 0)).collect();
    let bundles = bundles(groups, limit_bytes);
    let sums_max = (SUMS_TOTAL / bundles.len().max(1)).clamp(SUMS_LEAST, SUMS_MOST);
    let mut rounds = vec![vec![Sum { bytes: 0, before: 0, has_bundle: false }]];
    for bundle in &bundles {
        let last = rounds.last().expect("there is a first one");
        if last.last().is_some_and(|sum| sum.bytes == limit_bytes) {
            break;
        }
        rounds.push(thinned(extended(last, bundle.bytes, limit_bytes), sums_max, limit_bytes));
    }
    let mut index = rounds.last().expect("there is a first one").len() - 1;
    let mut left_bytes = limit_bytes - rounds.last().expect("as above")[index].bytes;
    for (round, bundle) in rounds[1..].iter().zip(&bundles).rev() {
        let sum = round[index];
        if sum.has_bundle {
            chosen[bundle.group].1 += bundle.count;
        }
        index = sum.before as usize;
    }
    // Thinning may have lost a sum that has room for more.
    for (taken, &(size, count)) in chosen.iter_mut().zip(groups) {
        let more = (count - taken.1).min(left_bytes / size);
        taken.1 += more;
        left_bytes -= more * size;
    }
    chosen
}

/// Bundles of 1, 2, 4 and so on of each group, with which any number of it can be taken.
fn bundles(groups: &[(u64, u64)], limit_bytes: u64) -> Vec<Bundle> {
    let mut bundles = Vec::new();
    for (group, &(size, count)) in groups.iter().enumerate() {
        let mut left = count.min(limit_bytes / size);
        let mut count = 1;
        while left > 0 {
            let now = count.min(left);
            bundles.push(Bundle { group, count: now, bytes: now * size });
            left -= now;
            count *= 2;
        }
    }
    bundles.truncate(BUNDLES_MOST);
    bundles
}

/// The sums with and without one more bundle, in order and each once. Where both give the same
/// sum, the one without is kept: it is of larger sizes.
fn extended(sums: &[Sum], bundle_bytes: u64, limit_bytes: u64) -> Vec<Sum> {
    let number = |index: usize| u32::try_from(index).expect("sums are few");
    let mut result: Vec<Sum> = Vec::with_capacity(sums.len() * 2);
    let mut with = 0;
    for (without, sum) in sums.iter().enumerate() {
        let sum_with =
            |index: usize| sums.get(index).map(|sum: &Sum| sum.bytes.saturating_add(bundle_bytes));
        while let Some(bytes) = sum_with(with)
            && bytes < sum.bytes
        {
            result.push(Sum { bytes, before: number(with), has_bundle: true });
            with += 1;
        }
        if sum_with(with) == Some(sum.bytes) {
            with += 1;
        }
        result.push(Sum { bytes: sum.bytes, before: number(without), has_bundle: false });
    }
    for (index, sum) in sums.iter().enumerate().skip(with) {
        let bytes = sum.bytes.saturating_add(bundle_bytes);
        if bytes > limit_bytes {
            break;
        }
        result.push(Sum { bytes, before: number(index), has_bundle: true });
    }
    result
}

/// At most about `sums_max` of the sums: the largest in each of as many equal steps.
fn thinned(sums: Vec<Sum>, sums_max: usize, limit_bytes: u64) -> Vec<Sum> {
    if sums.len() <= sums_max {
        return sums;
    }
    let step = limit_bytes / sums_max as u64 + 1;
    let mut kept: Vec<Sum> = Vec::with_capacity(sums_max);
    for sum in sums {
        match kept.last_mut() {
            Some(last) if last.bytes / step == sum.bytes / step => *last = sum,
            _ => kept.push(sum),
        }
    }
    kept
}
