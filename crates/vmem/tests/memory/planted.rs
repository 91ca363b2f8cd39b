//! Planted bugs: with any one wait of the memory left out, the order checker must notice. The
//! models' own tests show that it finds nothing with all of them.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config as Runs, TestCaseError, TestRng, TestRunner};
use vmem::{DeviceMemory, Site};

use super::{plain, planned, pool, swapped};

/// Runs in which each bug must be found.
const RUNS_MAX: u32 = 2000;

/// Runs one case of a model on memory that the function has seen first.
type Model = fn(&mut TestRunner, &dyn Fn(&mut DeviceMemory)) -> Result<(), TestCaseError>;

fn on_pool(
    runner: &mut TestRunner,
    mapping: pool::Mapping,
    prepare: &dyn Fn(&mut DeviceMemory),
) -> Result<(), TestCaseError> {
    let case = (any::<u64>(), pool::calls()).new_tree(runner).expect("a case").current();
    pool::run_with(case.0, mapping, &case.1, prepare).map(drop)
}

const POOL: Model = |runner, prepare| on_pool(runner, pool::Mapping::Caller, prepare);

const AHEAD: Model = |runner, prepare| on_pool(runner, pool::Mapping::Ahead, prepare);

const PLAIN: Model = |runner, prepare| {
    let case = (any::<u64>(), plain::calls()).new_tree(runner).expect("a case").current();
    plain::run_with(case.0, &case.1, prepare).map(drop)
};

const PLANNED: Model = |runner, prepare| {
    let seed = any::<u64>().new_tree(runner).expect("a case").current();
    planned::run_with(seed, prepare)
};

const SWAPPED: Model = |runner, prepare| {
    let case = (any::<u64>(), swapped::calls()).new_tree(runner).expect("a case").current();
    swapped::run_with(case.0, &case.1, prepare).map(drop)
};

const PLANTED: [(Site, Model); 16] = [
    (Site::AllocateAfterRelease, POOL),
    (Site::AllocateAfterRelease, AHEAD),
    (Site::CarveAfterRelease, POOL),
    (Site::UnmapBlockAfterUse, POOL),
    (Site::UnmapBlockAfterUse, AHEAD),
    (Site::UnmapRangeAfterUse, POOL),
    (Site::UnmapRangeAfterUse, AHEAD),
    (Site::RemapAfterUse, POOL),
    (Site::ReleaseAfterUse, POOL),
    (Site::ReleaseAfterUse, AHEAD),
    (Site::AllocateAfterRelease, PLANNED),
    (Site::RemapAfterUse, PLANNED),
    (Site::ReleaseAfterUse, PLANNED),
    (Site::FreeSegmentAfterUse, PLAIN),
    (Site::SwappedAfterRelease, SWAPPED),
    (Site::UnpinAfterUse, SWAPPED),
];

#[test]
fn every_missing_wait_is_noticed() {
    let mut missed = Vec::new();
    for (site, model) in PLANTED {
        let rng = TestRng::deterministic_rng(Runs::default().rng_algorithm);
        let mut runner = TestRunner::new_with_rng(Runs::default(), rng);
        let plant = |memory: &mut DeviceMemory| memory.streams.plant(Some(site));
        let found = (1..=RUNS_MAX).find_map(|number| {
            model(&mut runner, &plant).err().map(|error| (number, error.to_string()))
        });
        match found {
            Some((number, what)) => println!("{site:?} after {number} runs: {what}"),
            None => missed.push(site),
        }
    }
    assert!(missed.is_empty(), "nobody noticed in {RUNS_MAX} runs: {missed:?}");
}
