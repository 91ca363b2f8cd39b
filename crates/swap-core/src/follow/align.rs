//! Which blocks of a step's start are which of the recorded one's.

/// How many further differences a guess is compared by.
const SKIPPED_MAX: usize = 64;

/// For each block that was found, the planned one that it is. Both come in order, by their sizes;
/// some may be missing on either side.
pub(crate) fn align(planned: &[u64], found: &[u64]) -> Vec<Option<u32>> {
    let mut places = vec![None; found.len()];
    let (mut at, mut of) = (0, 0);
    while at < found.len() && of < planned.len() {
        if found[at] == planned[of] {
            places[at] = Some(of as u32);
            (at, of) = (at + 1, of + 1);
        } else {
            let (extra, missing) = fewest_skipped(&planned[of..], &found[at..]);
            (at, of) = (at + extra, of + missing);
        }
    }
    places
}

/// How many to skip on either side, at first sight, so that what comes then is the same.
fn fewest_skipped(planned: &[u64], found: &[u64]) -> (usize, usize) {
    for skipped in 1..=SKIPPED_MAX {
        let splits = (0..=skipped).rev().map(|extra| (extra, skipped - extra));
        let run = |&(extra, missing): &(usize, usize)| {
            let rest = found.iter().skip(extra).zip(planned.iter().skip(missing));
            rest.take_while(|(found, planned)| found == planned).count()
        };
        let best = splits.max_by_key(run).filter(|split| run(split) > 0);
        if let Some(best) = best {
            return best;
        }
    }
    (found.len(), planned.len())
}
