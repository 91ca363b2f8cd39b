//! Planted bugs: with any one wait left out, the checker or a kernel must notice.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config as Runs, TestRng, TestRunner};
use swap_core::Site;

use super::random_plans::{case, run_with};
use super::told;

/// Runs in which each bug must be found.
const RUNS_MAX: u32 = 600;

#[test]
fn every_missing_wait_is_noticed() {
    let mut missed = Vec::new();
    for (site, lays_out) in Site::MOVES.into_iter().flat_map(|site| [(site, false), (site, true)]) {
        let rng = TestRng::deterministic_rng(Runs::default().rng_algorithm);
        let mut runner = TestRunner::new_with_rng(Runs::default(), rng);
        let mut found = None;
        for number in 1..=RUNS_MAX {
            let mut case = case().new_tree(&mut runner).expect("a case").current();
            case.lays_out = lays_out;
            let planted = run_with(&case, |engine| engine.plant(Some(site)).expect("plants"));
            let Err(what) = planted else { continue };
            let noticed = what.contains("not ordered") || what.contains("wrong bytes");
            if noticed || what.contains("code -1") {
                // The bug alone is to blame.
                run_with(&case, |_| ()).expect("without the bug all is well");
                found = Some((number, what));
                break;
            }
        }
        match found {
            Some((number, what)) => {
                println!("{site:?}, laid out: {lays_out}, after {number} runs: {what}");
            }
            None => missed.push((site, lays_out)),
        }
    }
    assert!(missed.is_empty(), "nobody noticed in {RUNS_MAX} runs: {missed:?}");
}

/// Trainings in which each bug must be found.
const TRAININGS_MAX: u64 = 300;

#[test]
fn every_missing_wait_is_noticed_by_a_framework_that_only_tells() {
    let unmaps = [Site::UnmapBlockAfterUse, Site::UnmapRangeAfterUse, Site::RemapAfterUse];
    let others = [Site::CarveAfterRelease, Site::ReleaseAfterUse];
    // It launches nothing through the engine.
    let moves = Site::MOVES.into_iter().filter(|&site| site != Site::LaunchAfterLaunch);
    let mut missed = Vec::new();
    for site in moves.chain(unmaps).chain(others) {
        let planted = |seed: &u64| {
            told::run_short(*seed, |engine| engine.plant(Some(site)).expect("plants")).is_err()
        };
        match (0..TRAININGS_MAX).find(planted) {
            Some(seed) => {
                told::run_short(seed, |_| ()).expect("without the bug all is well");
                println!("{site:?}: training {seed}");
            }
            None => missed.push(site),
        }
    }
    assert!(missed.is_empty(), "nobody noticed in {TRAININGS_MAX} trainings: {missed:?}");
}
