//! Ranks that judge each step together. The other rank is made up: it tells what this one does,
//! or worse.

use std::ffi::c_void;

use super::rig::{
    ALONE, AT_ONCE, BLOCK, FIGURES, LATER, LEADS, MIB, NEXT_STEP, OK, Rig, TIMES, USAGE, agree,
    agree_times, assert_fails, check, figures, free, last_error, make, smartswap_may_sleep,
    smartswap_share, smartswap_sleep, stats, step, times,
};

const WARM_UP: u32 = 0;
const SEARCH_POLICY: u32 = 1;
const STABLE: u32 = 2;
/// The first figure: the rank has no finished step.
const LACKS: usize = 0;
const RESCUES: usize = 6;
/// A number of the blocks that the rank recorded.
const BLOCKS: usize = 18;
/// Behind six numbers for each of the four ops of a step, and two for each of the four blocks.
const STEP_TIME: usize = 6 * 4 + 2 * 4;
/// Of all of it there are four, and each op uses one block.
const N_TIMES: u32 = STEP_TIME as u32 + 4 + 4;

struct Training {
    rig: Rig,
    weights: Vec<*mut c_void>,
}

impl Training {
    /// A model that fits, on a rank that shares from its first step on.
    fn new() -> Training {
        let rig = Rig::open(16 * MIB);
        let weights = (0..4).map(|tag| make(BLOCK, tag)).collect();
        step();
        assert_eq!(smartswap_share(LEADS), OK, "{}", last_error());
        Training { rig, weights }
    }

    fn step(&self) {
        for (tag, &weight) in self.weights.iter().enumerate() {
            check(weight, BLOCK, tag as u64);
        }
        step();
    }

    fn end(self) {
        self.weights.into_iter().for_each(free);
        self.rig.close();
    }
}

fn own() -> Vec<f64> {
    let mut numbers = vec![f64::NAN; FIGURES as usize];
    assert_eq!(figures(&mut numbers), OK, "{}", last_error());
    assert!(numbers.iter().all(|number| number.is_finite()), "{numbers:?}");
    numbers
}

/// What came of a round, and of the times that it asked for.
fn round(worst: &[f64]) -> i32 {
    let (next, n_times) = agree(Some(worst)).expect("it is taken in");
    if next != TIMES {
        assert_eq!(n_times, 0);
        return next;
    }
    assert_eq!(n_times, N_TIMES);
    let mut longest = vec![0.0; n_times as usize];
    assert_eq!(times(&mut longest), OK, "{}", last_error());
    assert!(longest.iter().all(|time| *time >= 0.0) && longest[STEP_TIME] > 0.0, "{longest:?}");
    agree_times(&longest).expect("they are taken in")
}

#[test]
fn what_another_rank_had_to_rescue_counts_here() {
    let stages = |rescues: f64| {
        let training = Training::new();
        let mut stages = Vec::new();
        for _ in 0..2 {
            training.step();
            let mut worst = own();
            assert_eq!((worst[LACKS], worst[RESCUES]), (0.0, 0.0));
            worst[RESCUES] = rescues;
            assert_eq!(round(&worst), NEXT_STEP);
            stages.push(stats().stage);
        }
        training.end();
        stages
    };
    assert_eq!(stages(0.0), [WARM_UP, STABLE]);
    assert_eq!(stages(1.0), [WARM_UP, SEARCH_POLICY]);
}

#[test]
fn a_step_of_which_another_rank_recorded_other_blocks_is_put_off_a_few_times() {
    let training = Training::new();
    let stage_after_another = || {
        training.step();
        let mut worst = own();
        worst[BLOCKS] += 1.0;
        assert_eq!(round(&worst), NEXT_STEP);
        stats().stage
    };
    for _ in 0..8 {
        assert_eq!(stage_after_another(), WARM_UP);
    }
    // Then it is one of two in WarmUp, for which this rank makes a plan of its own.
    assert_eq!([stage_after_another(), stage_after_another()], [WARM_UP, STABLE]);
    training.end();
}

#[test]
fn a_step_is_judged_when_all_have_told_of_it() {
    let training = Training::new();
    for _ in 0..3 {
        training.step();
        let mut worst = own();
        worst[LACKS] = 1.0;
        let _ = round(&worst);
        assert_eq!(stats().stage, WARM_UP);
    }
    // The other is there: three rounds at once for three steps.
    assert_eq!(round(&own()), AT_ONCE);
    assert_eq!(stats().stage, WARM_UP);
    assert_eq!(round(&own()), AT_ONCE);
    assert_eq!(stats().stage, STABLE);
    assert_eq!(round(&own()), LATER, "all are Stable");
    assert_eq!(own()[LACKS], 1.0, "nothing is left to judge");
    training.step();
    assert_eq!(own()[LACKS], 0.0);
    assert_eq!(round(&own()), LATER);
    // A sleeping rank has nothing to say, and keeps nobody waiting.
    assert_eq!((smartswap_may_sleep(), smartswap_sleep()), (1, OK));
    training.step();
    assert_eq!(own()[LACKS], 0.0);
    let mut worst = own();
    worst[RESCUES] = 3.0;
    assert_eq!(round(&worst), LATER);
    assert_eq!((own()[LACKS], stats().stage), (1.0, STABLE));
    training.end();
}

#[test]
fn a_step_that_is_judged_once_the_rank_sleeps_changes_nothing() {
    let training = Training::new();
    let mut stages = Vec::new();
    for _ in 0..2 {
        training.step();
        assert_eq!(round(&own()), NEXT_STEP);
        stages.push(stats().stage);
    }
    assert_eq!(stages, [WARM_UP, STABLE]);
    // It ends its step and falls asleep, and only then hears that the others' search begins anew.
    training.step();
    assert_eq!((smartswap_may_sleep(), smartswap_sleep()), (1, OK));
    let mut worst = own();
    assert_eq!(worst[LACKS], 0.0);
    worst[RESCUES] = 3.0;
    assert_eq!(round(&worst), LATER);
    assert_eq!(stats().stage, STABLE);
    // There is nobody who could tell it of the steps of a search.
    training.step();
    assert_eq!(round(&own()), LATER);
    assert_eq!(stats().stage, STABLE);
    training.end();
}

#[test]
fn a_rank_that_lost_the_others_judges_what_it_has() {
    let training = Training::new();
    for _ in 0..2 {
        training.step();
        assert_eq!(stats().stage, WARM_UP);
    }
    assert_eq!(smartswap_share(ALONE), OK, "{}", last_error());
    assert_eq!(stats().stage, STABLE);
    assert_eq!(smartswap_share(ALONE), OK, "it is alone already");
    training.end();
}

#[test]
fn rounds_out_of_order() {
    let rig = Rig::open(16 * MIB);
    let mut numbers = vec![0.0; FIGURES as usize];
    let alone = "does not share its steps";
    assert_fails(figures(&mut numbers), USAGE, alone);
    assert_fails(agree(Some(&numbers)).expect_err("alone"), USAGE, alone);
    assert_fails(times(&mut numbers), USAGE, alone);
    assert_fails(agree_times(&numbers).expect_err("alone"), USAGE, alone);
    assert_fails(smartswap_share(LEADS + 1), USAGE, "not one of smartswap_role");
    rig.close();
    let training = Training::new();
    assert_fails(
        agree(Some(&numbers)).expect_err("no step"),
        USAGE,
        "a step that this rank has not run",
    );
    training.step();
    assert_fails(times(&mut numbers), USAGE, "no times of a step were asked for");
    assert_fails(
        agree_times(&numbers).expect_err("not asked"),
        USAGE,
        "no times of a step were asked for",
    );
    assert_fails(figures(&mut numbers[1..]), USAGE, "SMARTSWAP_FIGURES");
    assert_fails(agree(Some(&numbers[1..])).expect_err("too few"), USAGE, "SMARTSWAP_FIGURES");
    assert_fails(agree(None).expect_err("NULL"), USAGE, "the numbers are NULL");
    numbers[0] = f64::NAN;
    assert_fails(agree(Some(&numbers)).expect_err("NaN"), USAGE, "one of the numbers is NaN");
    assert_eq!(agree(Some(&own())), Ok((TIMES, N_TIMES)));
    assert_fails(times(&mut numbers[..3]), USAGE, "n_times is not what smartswap_agree said");
    assert_fails(
        agree_times(&[1.0; 3]).expect_err("too few"),
        USAGE,
        "the number of times is not the one that was asked for",
    );
    numbers.resize(N_TIMES as usize, 0.0);
    assert_eq!(times(&mut numbers), OK);
    assert_eq!(agree_times(&numbers), Ok(NEXT_STEP));
    training.end();
}
