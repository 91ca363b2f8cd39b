//! Tests of steps whose sizes differ: one place in the loop, a plan for the ordinary ones, and
//! others in hand for larger ones.

use swap_core::{BlockIndex, OpIndex};

use super::*;
use crate::family::peak_bytes;
use crate::generate::{GenerateConfig, Generated, generate};
use crate::machine::{Link, Machine};
use crate::ranks::Figures;
use crate::synthetic::{TraceBuilder, TransformerShape, transformer_trace};

const MIB: u64 = 1 << 20;
const FAMILY: Signature = Signature(0xfa);

/// Up to 34 MiB a step needs no plan.
fn cap_bytes() -> u64 {
    peak_bytes(&member(34))
}

/// Plans at once, and counts how often it was asked.
#[derive(Debug)]
struct Planning {
    machine: Machine,
    latest: Option<Generated>,
    asked: u32,
}

impl Planner for Planning {
    fn plan(&mut self, trace: &Trace, feedback: &Feedback) -> Result<Option<Proposal>, TraceFault> {
        self.asked += 1;
        let reserve_bytes = feedback.margin_bytes;
        let config = GenerateConfig { effort: 1, reserve_bytes, ..GenerateConfig::default() };
        let made = generate(trace, &self.machine, &config, &[]);
        let plan = made.plan.clone();
        self.latest = Some(made);
        let offers = !plan.actions.is_empty();
        Ok(offers.then(|| Proposal { plan, ..Proposal::default() }))
    }

    fn latest(&self) -> Option<&Generated> {
        self.latest.as_ref()
    }

    fn link(&self) -> Option<Link> {
        Some(self.machine.link)
    }
}

fn looping() -> Loop<Planning> {
    let limit_bytes = cap_bytes();
    let rate = 50_000.0;
    let link = Link { out_bytes_per_us: rate, in_bytes_per_us: rate, both_bytes_per_us: rate };
    let machine =
        Machine { limit_bytes, host_limit_bytes: u64::MAX / 2, link, copy_submit_us: 1.0 };
    let config = LoopConfig { limit_bytes, ..LoopConfig::default() };
    Loop::new(config, Planning { machine, latest: None, asked: 0 })
}

fn member(mib: u64) -> Trace {
    let forward_us = 200.0 * mib as f64;
    let shape = TransformerShape { layers: 6, weight_mib: 24, activation_mib: mib, forward_us };
    Trace { signature: Signature(mib), ..transformer_trace(&shape) }
}

/// A step of this size, recorded or not.
fn sized(mib: u64, directive: &Directive) -> StepReport {
    let trace = member(mib);
    let takes_us = trace.ops.iter().map(|op| op.device_us).sum();
    StepReport {
        family: FAMILY,
        op_count: trace.ops.len() as u32,
        device_us: takes_us,
        probes: directive.sizes.iter().map(|sizes| (sizes.probes()[0], mib * MIB)).collect(),
        trace: directive.record.then_some(trace),
        ..step(Signature(mib))
    }
}

/// Steps of these sizes. Says what the last one leads to.
fn run(under_test: &mut Loop<Planning>, sizes: &[u64]) -> Directive {
    let mut directive = under_test.directive();
    for &mib in sizes {
        directive = under_test.observe(&sized(mib, &directive));
    }
    directive
}

fn levels(under_test: &Loop<Planning>) -> Vec<u64> {
    let families = under_test.families();
    families.first().map_or_else(Vec::new, |family| {
        family.levels.iter().map(|level| level.probe_bytes / MIB).collect()
    })
}

#[test]
fn three_sizes_are_a_family_that_is_planned_for_and_stays() {
    let mut under_test = looping();
    let two = run(&mut under_test, &[64, 40, 64, 40]);
    assert_eq!((two.sizes, under_test.families().len()), (None, 0));
    let three = run(&mut under_test, &[56]);
    let sizes = three.sizes.clone().expect("it is for all sizes");
    let plan = three.plan.expect("the largest does not fit");
    assert!(!plan.actions.is_empty() && !sizes.may_move(), "others come later");
    assert_eq!(levels(&under_test), [66, 133, 266, 533], "the largest, with room, and outliers");
    // It goes on being recorded until more is known; then nothing changes any more.
    assert!(three.record);
    let known = run(&mut under_test, &[44, 60, 52, 50]);
    assert_eq!((known.stage, known.record), (Stage::Stable, false));
    assert!(known.sizes.as_ref().is_some_and(|sizes| sizes.may_move()));
    let asked = under_test.planner().asked;
    for mib in [40, 64, 47, 59, 33, 61].repeat(9) {
        assert_eq!(run(&mut under_test, &[mib]), known, "{mib} MiB");
    }
    assert_eq!(under_test.planner().asked, asked);
    let family = &under_test.families()[0];
    assert_eq!(family.levels[0].steps, 54 - 2, "but those that moved in");
    assert_eq!(family.levels[0].measured_ratio.map(|ratio| (ratio * 1e3).round()), Some(1e3));
    assert!(family.levels[0].predicted_ratio.is_some_and(|ratio| (1.0..1.5).contains(&ratio)));
}

#[test]
fn where_most_steps_fit_they_run_without_a_plan_and_larger_ones_with() {
    let mut under_test = looping();
    let directive = run(&mut under_test, &[20, 24, 16, 18, 22, 26]);
    assert!(directive.plan.is_some_and(|plan| plan.actions.is_empty()));
    assert!(directive.sizes.is_some_and(|sizes| sizes.may_move()), "outliers would");
    let lowest = levels(&under_test)[0];
    assert_eq!(lowest, 33, "the largest that fits, but for the last halving");
    assert!(!under_test.has_outgrown());
    // One outlier, larger than all levels, gets a level of its own.
    let last = *levels(&under_test).last().expect("there are some");
    run(&mut under_test, &[20, 2 * last, 20]);
    assert!(under_test.has_outgrown(), "until it is long ago");
    assert_eq!(levels(&under_test)[0], lowest);
    let after = levels(&under_test);
    assert!(after.iter().any(|&mib| (2 * last..3 * last).contains(&mib)), "{after:?}");
    // Many of them are no outliers any more.
    run(&mut under_test, &[60, 20, 60, 20, 60, 20, 60, 20, 60]);
    assert!(levels(&under_test)[0] >= 60);
}

#[test]
fn outliers_are_multiples_of_the_largest_that_came() {
    let mut under_test = looping();
    run(&mut under_test, &[20, 24, 16, 18, 22, 48]);
    assert_eq!(levels(&under_test), [33, 50, 100, 200, 400], "33 is what fits");
}

#[test]
fn a_large_step_counts_although_it_began_under_other_orders() {
    let mut under_test = looping();
    let directive = run(&mut under_test, &[20, 24, 16, 18, 22, 26]);
    let largest = *levels(&under_test).last().expect("there are some");
    under_test.note_size(&sized(20, &directive));
    assert!(!under_test.has_outgrown());
    under_test.note_size(&sized(2 * largest, &directive));
    assert!(under_test.has_outgrown());
}

#[test]
fn steps_that_fit_eight_times_over_need_nothing_but_memory() {
    let mut under_test = looping();
    let directive = run(&mut under_test, &[2, 3, 4, 2, 3, 4]);
    assert_eq!(levels(&under_test).len(), 1);
    let sizes = directive.sizes.expect("they are a family");
    assert!(!sizes.may_move() && directive.plan.is_some_and(|plan| plan.actions.is_empty()));
    assert_eq!((directive.stage, under_test.planner().asked), (Stage::Stable, 0));
}

#[test]
fn an_evaluation_in_between_changes_nothing() {
    let mut under_test = looping();
    let known = run(&mut under_test, &[64, 40, 56, 44, 60, 52, 48, 50]);
    for mib in [40, 64, 47, 59] {
        under_test.observe(&step(Signature(0xeaa1)));
        assert_eq!(run(&mut under_test, &[mib]), known);
    }
    assert_eq!(under_test.stage(), Stage::Stable);
}

/// Layers are left out at random, and lengths differ: each count of layers is a family.
#[test]
fn a_family_that_only_leaves_ops_out_goes_by_the_plan_of_the_whole_one() {
    let mut under_test = looping();
    let whole = run(&mut under_test, &[64, 40, 56, 44, 60, 52, 50]);
    let kind = whole.sizes.as_ref().expect("it is for all sizes").kind();
    let shorter = |mib: u64| {
        let own = sized(mib, &whole);
        let trace = Trace { signature: Signature(0x100 + mib), ..member(mib) };
        StepReport {
            family: Signature(0xfb),
            signature: trace.signature,
            op_count: own.op_count - 4,
            trace: Some(trace),
            strayed_ops: 1,
            ..own
        }
    };
    for mib in [41, 63, 47, 59, 33, 61, 43, 57] {
        let directive = under_test.observe(&shorter(mib));
        assert!(directive.plan == whole.plan && directive.sizes == whole.sizes, "{mib} MiB");
    }
    assert_eq!(under_test.families().len(), 2, "what was recorded of it is known");
    // One that leaves out too much is an exception. Two in a row have a plan of their own.
    let mut drifts = || {
        let drifted = StepReport { drifted_at: Some(OpIndex(0)), ..shorter(45) };
        under_test.observe(&drifted).sizes.expect("it is for all sizes").kind()
    };
    assert_eq!(drifts(), kind);
    assert_ne!(drifts(), kind);
}

#[test]
fn branches_tell_of_their_sizes_too() {
    let mut under_test = looping();
    let known = run(&mut under_test, &[64, 40, 56, 44, 60, 52, 48, 50]);
    let branch = |mib: u64| StepReport {
        strayed_ops: 5,
        probes: vec![(BlockIndex(0), mib * MIB)],
        device_us: 900.0,
        ..step(Signature(0xb0 + mib))
    };
    // One that is far larger is none; it was taken for another.
    under_test.observe(&branch(1000));
    assert_eq!(run(&mut under_test, &[50]), known);
    under_test.observe(&branch(70));
    run(&mut under_test, &[50]);
    assert_eq!(levels(&under_test)[0], 72, "with room above the branch");
}

#[test]
fn a_family_goes_on_behind_a_single_other_step() {
    let mut under_test = looping();
    let known = run(&mut under_test, &[64, 40, 56, 44, 60, 52, 48, 50, 61, 43, 55, 47]);
    assert!(known.sizes.is_some());
    for odd in 0..3 {
        assert_eq!(under_test.observe(&rescued(Signature(0xeaa1 + odd))), known, "{odd}");
        assert_eq!(run(&mut under_test, &[50]), known);
    }
}

#[test]
fn steps_behind_another_kind_are_not_short_of_memory() {
    let mut under_test = looping();
    let known = run(&mut under_test, &[64, 40, 56, 44, 60, 52, 48, 50]);
    let asked = under_test.planner().asked;
    for mib in 40..60 {
        let directive = under_test.observe(&step(Signature(0xeaa1)));
        let counters = StepCounters { misses: 9, rescues: 9, ..StepCounters::default() };
        under_test.observe(&StepReport { counters, ..sized(mib, &directive) });
    }
    assert_eq!((under_test.planner().asked, run(&mut under_test, &[50])), (asked, known));
}

#[test]
fn steps_that_lack_memory_get_plans_for_less_but_not_for_ever() {
    let mut under_test = looping();
    let mut directive = run(&mut under_test, &[64, 40, 56, 44, 60, 52]);
    let mut plans = std::collections::BTreeSet::new();
    for index in 0..200_u64 {
        let report = sized(40 + index % 24, &directive);
        let counters = StepCounters { misses: 1, rescues: 1, ..StepCounters::default() };
        directive = under_test.observe(&StepReport { counters, ..report });
        plans.insert(crate::search::fingerprint(directive.plan.as_ref().expect("there is one")));
    }
    assert!((2..=5).contains(&plans.len()), "{} plans", plans.len());
    assert_eq!(directive.stage, Stage::Stable);
    assert!(under_test.families()[0].levels[0].misses > 0);
}

/// One step on all ranks. Says what it leads to on each.
fn together(ranks: &mut [Loop<Planning>], reports: &[StepReport]) -> Vec<Directive> {
    let told = ranks.iter().zip(reports).map(|(rank, report)| rank.figures(report));
    let worst = told.reduce(Figures::worst).expect("there is a rank");
    let judged = ranks.iter_mut().zip(reports);
    judged.map(|(rank, report)| rank.observe_together(report, &worst)).collect()
}

#[test]
fn ranks_that_judge_together_have_families_of_their_own() {
    let sizes = [64, 40, 56, 44, 60, 52, 48, 61, 50, 42];
    let alone = [sizes[1..].to_vec(), sizes.iter().rev().copied().collect()].map(|sizes| {
        let mut rank = looping();
        run(&mut rank, &sizes[..9])
    });
    let mut ranks = [looping(), looping()];
    let mut directives = Vec::new();
    for (one, two) in sizes[1..].iter().zip(sizes.iter().rev()) {
        let reports = [
            sized(*one, &ranks[0].directive()),
            StepReport { device_us: 1e9, ..sized(*two, &ranks[1].directive()) },
        ];
        directives = together(&mut ranks, &reports);
    }
    for (alone, together) in alone.iter().zip(&directives) {
        assert!(together.sizes.is_some() && together.stage == Stage::Stable, "{together:?}");
        assert_eq!(together.plan, alone.plan, "each plans for its own sizes");
    }
    assert_ne!(directives[0].plan, directives[1].plan);
}

#[test]
fn a_rank_whose_steps_are_alike_searches_beside_one_whose_sizes_change() {
    let mut ranks = [looping(), looping()];
    let mut stages = Vec::new();
    for number in 0..40_u64 {
        let [one, two] = ranks.each_ref().map(Loop::directive);
        // The other's steps take all times.
        let varies = StepReport { device_us: 1e6 * number as f64, ..sized(40 + number % 24, &one) };
        let plain = sized(64, &two);
        let counters = StepCounters { rescues: u64::from(two.plan.is_none()), ..plain.counters };
        let alike = StepReport { counters, family: Signature(0xa11), ..plain };
        stages.push(together(&mut ranks, &[varies, alike])[1].stage);
    }
    assert!(ranks[0].directive().sizes.is_some());
    let first = stages.iter().position(|stage| *stage == Stage::Stable).expect("it settles");
    assert!(stages[first..].iter().all(|stage| *stage == Stage::Stable), "{stages:?}");
    assert!(first < 20 && ranks[1].directive().plan.is_some(), "{stages:?}");
}

#[test]
fn a_family_whose_planner_fails_goes_on_without() {
    let mut under_test = looping();
    under_test.planner_mut().machine.link.out_bytes_per_us = 0.0;
    let directive = run(&mut under_test, &[64, 40, 56, 44, 60, 52, 41, 42]);
    assert_eq!((directive.plan, directive.stage), (None, Stage::Stable));
    assert!(!under_test.take_failures().is_empty());
}

#[test]
fn another_block_may_turn_out_to_tell_the_size() {
    // The first block is as large in the first steps, and only then it is not.
    let step = |first_mib: u64, mib: u64, directive: &Directive| {
        let mut b = TraceBuilder::new();
        let first = b.allocate("", first_mib * MIB);
        b.compute("look", 1e3, &[], first);
        let [kept, last] = [mib, mib].map(|mib| b.allocate("", mib * MIB));
        b.compute("make", 9e3, &[first], kept);
        b.compute("more", 9e3, &[kept], last);
        b.compute("end", 9e3, &[kept, last], first);
        [first, kept, last].into_iter().for_each(|block| b.free(block));
        let signature = Signature(first_mib << 32 | mib);
        let trace = Trace { signature, ..b.finish() };
        let told = |probe: BlockIndex| match probe {
            BlockIndex(0) => (probe, first_mib * MIB),
            _ => (probe, mib * MIB),
        };
        StepReport {
            family: FAMILY,
            op_count: 4,
            trace: directive.record.then_some(trace),
            probes: directive.sizes.iter().map(|sizes| told(sizes.probes()[0])).collect(),
            ..super::step(signature)
        }
    };
    let mut under_test = looping();
    let mut directive = under_test.directive();
    for (first_mib, mib) in [(64, 700), (64, 500), (64, 600)] {
        directive = under_test.observe(&step(first_mib, mib, &directive));
    }
    assert!(directive.sizes.is_some() && directive.record);
    let largest = |under_test: &Loop<Planning>| {
        under_test.families()[0].recorded_bytes.iter().max().map(|bytes| bytes / MIB)
    };
    assert_eq!(largest(&under_test), Some(700));
    for (first_mib, mib) in [(48, 550), (32, 400), (40, 450), (50, 580)] {
        directive = under_test.observe(&step(first_mib, mib, &directive));
        assert!(directive.sizes.is_some());
    }
    assert_eq!(largest(&under_test), Some(64), "of the first block");
    assert_eq!(under_test.families()[0].recent_bytes.last(), Some(&(50 * MIB)));
}

#[test]
fn a_longer_batch_that_is_not_the_first_of_its_step_is_planned_for() {
    // Two batches of lengths of their own, whose blocks all stay to the end.
    let step = |lengths_mib: [u64; 2], directive: &Directive| {
        let mut b = TraceBuilder::new();
        let mut kept = Vec::new();
        for mib in lengths_mib {
            let tokens = b.allocate("", mib * MIB);
            b.compute("embed", 1e3, &kept, tokens);
            let hidden = b.allocate("", 40 * mib * MIB);
            b.compute("layer", 9e3, &[tokens], hidden);
            kept.extend([tokens, hidden]);
        }
        kept.iter().for_each(|&block| b.free(block));
        let signature = Signature(lengths_mib[0] << 32 | lengths_mib[1]);
        let trace = Trace { signature, ..b.finish() };
        let sizes = trace.blocks.iter().map(|block| block.size_bytes);
        let came: Vec<(BlockIndex, u64)> = (0..).map(BlockIndex).zip(sizes).collect();
        let told = directive.sizes.iter().flat_map(|sizes| sizes.probes());
        StepReport {
            family: FAMILY,
            op_count: 4,
            probes: told.map(|probe| came[probe.0 as usize]).collect(),
            trace: directive.record.then_some(trace),
            ..super::step(signature)
        }
    };
    let mut under_test = looping();
    let mut directive = under_test.directive();
    let recorded = [[64, 40], [40, 56], [56, 44], [44, 60], [60, 52], [52, 48]];
    for lengths_mib in recorded.into_iter().chain(recorded) {
        directive = under_test.observe(&step(lengths_mib, &directive));
    }
    let known = directive.sizes.clone().expect("they differ");
    assert_eq!((known.probes().len(), directive.record), (2, false));
    assert_eq!(levels(&under_test)[0], 66, "with room above the longest");
    directive = under_test.observe(&step([50, 70], &directive));
    assert_eq!(under_test.families()[0].recent_bytes.last(), Some(&(70 * MIB)));
    assert_eq!(levels(&under_test)[0], 72, "with room above the second batch");
    assert_ne!(directive.sizes, Some(known));
}

#[test]
fn what_was_done_is_told() {
    let mut under_test = looping();
    run(&mut under_test, &[64, 40, 56]);
    let told: Vec<String> =
        under_test.take_news().iter().map(|news| news.event.to_string()).collect();
    let begins = |start: &str| told.iter().any(|line| line.starts_with(start));
    assert!(begins("comes in 3 sizes, mostly up to 66.7 MiB: plans for 4"), "{told:?}");
    assert!(begins("planned up to 66.7 MiB: "), "{told:?}");
    assert_eq!(under_test.families()[0].recorded_bytes, [40, 56, 64].map(|mib| mib * MIB));
}
