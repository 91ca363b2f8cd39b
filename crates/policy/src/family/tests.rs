//! Families of made-up steps: what is predicted is what comes.

use super::*;
use crate::assemble::assemble;
use crate::synthetic::{TransformerShape, transformer_trace};

/// A step of a transformer whose activations have so many MiB.
fn member(activation_mib: u64) -> Trace {
    let forward_us = 100.0 * activation_mib as f64;
    let shape = TransformerShape { layers: 3, weight_mib: 24, activation_mib, forward_us };
    let signature = Signature(activation_mib);
    Trace { signature, ..transformer_trace(&shape) }
}

fn family(members: &[u64]) -> Family {
    let mut family = Family::default();
    members.iter().for_each(|&mib| family.learn(&member(mib)));
    family
}

#[test]
fn two_members_tell_all_others() {
    let family = family(&[8, 20]);
    assert_eq!((family.member_count(), family.largest_bytes()), (2, Some(20 << 20)));
    for mib in [4, 14, 20, 32, 80] {
        let (found, expect) = (family.member(mib << 20, Signature(mib)).unwrap(), member(mib));
        assert_eq!(found.blocks, expect.blocks, "{mib} MiB");
        assert_eq!(found.events, expect.events);
        for (found, expect) in found.ops.iter().zip(&expect.ops) {
            assert!((found.device_us - expect.device_us).abs() < 1e-3, "{found:?} {expect:?}");
        }
        assert_eq!(peak_bytes(&found), peak_bytes(&expect));
    }
}

#[test]
fn the_host_takes_the_least_that_it_took_at_any_size() {
    let mut family = Family::default();
    for (mib, host_us) in [(8, 9.0), (14, 5.0), (20, 30.0)] {
        let mut member = member(mib);
        member.ops.iter_mut().for_each(|op| (op.host_us, op.host_waits) = (host_us, mib == 20));
        family.learn(&member);
    }
    let found = family.member(32 << 20, Signature(32)).unwrap();
    assert!(found.ops.iter().all(|op| (op.host_us, op.host_waits) == (5.0, false)));
}

#[test]
fn steps_that_are_alike_are_no_family() {
    let mut family = family(&[16]);
    let mut slower = member(16);
    slower.ops.iter_mut().for_each(|op| op.device_us += 10.0);
    family.learn(&slower);
    assert_eq!((family.member_count(), family.probe()), (0, None));
    assert_eq!(family.member(16 << 20, Signature(1)), None);
}

#[test]
fn of_many_members_the_extremes_stay() {
    let family = family(&[40, 12, 14, 13, 30, 8, 22, 26, 11, 18, 24]);
    assert_eq!(family.member_count(), MEMBERS_MAX);
    let bytes = family.recorded_bytes();
    assert_eq!((bytes[0], bytes[MEMBERS_MAX - 1]), (8 << 20, 40 << 20));
}

/// Blocks of these sizes in MiB are made, of which those of 0 are too small to be swappable, and
/// then one of `last_mib`.
fn step_of(sizes_mib: &[u64], last_mib: u64, signature: u64) -> Trace {
    let mut b = crate::synthetic::TraceBuilder::new();
    let blocks: Vec<BlockIndex> =
        sizes_mib.iter().filter(|&&mib| mib > 0).map(|mib| b.allocate("", mib << 20)).collect();
    b.begin("first", 1.0, false);
    blocks.iter().for_each(|&block| b.write(block));
    b.end();
    let last = b.allocate("", last_mib << 20);
    b.compute("second", last_mib as f64, &blocks, last);
    blocks.iter().for_each(|&block| b.free(block));
    b.free(last);
    let mut trace = Trace { signature: Signature(signature), ..b.finish() };
    let nths = (0..).zip(sizes_mib).filter(|&(_, &mib)| mib > 0);
    blocks.iter().zip(nths).for_each(|(block, (nth, _))| trace.blocks[block.0 as usize].nth = nth);
    trace
}

fn sizes_mib(trace: &Trace) -> Vec<u64> {
    trace.blocks.iter().map(|block| block.size_bytes >> 20).collect()
}

#[test]
fn blocks_that_are_too_small_to_be_swappable_are_told_by_what_came_before_them() {
    let mut family = Family::default();
    family.learn(&step_of(&[8, 64], 80, 1));
    family.learn(&step_of(&[0, 32], 40, 2));
    let found = family.member(96 << 20, Signature(3)).unwrap();
    assert_eq!(family.probe(), Some(BlockIndex(1)), "the first that both have");
    assert_eq!(sizes_mib(&found), [8, 96, 120], "of the first, all that is known");
    // A smaller member has them all the same, as those of its size will under a plan.
    let found = family.member(8 << 20, Signature(4)).unwrap();
    assert_eq!((found.blocks.len(), sizes_mib(&found)[1..].to_vec()), (3, vec![8, 10]));
    // The size of a step is that of its probe, whatever its number is there.
    let probe_bytes = |sizes_mib: &[u64], last_mib: u64| {
        family.size_of(&step_of(sizes_mib, last_mib, 5)).map(|size| size.probe_bytes)
    };
    assert_eq!(probe_bytes(&[0, 20], 25), Some(20 << 20));
    assert_eq!(probe_bytes(&[0, 0], 5), None);
}

#[test]
fn without_a_word_of_what_came_before_ops_that_make_less_say_nothing() {
    let silent = |mut trace: Trace| {
        trace.blocks.iter_mut().for_each(|block| block.nth = 0);
        trace
    };
    let mut family = Family::default();
    family.learn(&silent(step_of(&[2, 64], 66, 1)));
    family.learn(&silent(step_of(&[0, 32], 32, 2)));
    let found = family.member(99 << 20, Signature(3)).unwrap();
    assert_eq!(family.probe(), Some(BlockIndex(2)), "the block that both have");
    assert_eq!(sizes_mib(&found), [2, 64, 100], "all that is known of them, in units");
}

#[test]
fn what_small_blocks_take_grows_with_the_step_by_those_that_have_all_blocks() {
    let step = |sizes_mib: &[u64], last_mib, segments_mib: u64| {
        let mut trace = step_of(sizes_mib, last_mib, last_mib);
        trace.segment_bytes = 1 << 20;
        trace.events.insert(0, TraceEvent::Segments(segments_mib << 20));
        trace
    };
    let mut family = Family::default();
    // In the smallest, what is small lies in segments.
    for (sizes, last, most) in [(&[8, 64], 80, 10), (&[4, 32], 40, 6), (&[0, 8], 10, 30)] {
        family.learn(&step(sizes, last, most));
    }
    let segments = |probe_mib: u64| {
        let found = family.member(probe_mib << 20, Signature(9)).unwrap();
        (found.segment_bytes >> 10, segment_bytes_of(&found) >> 20)
    };
    assert_eq!(family.probe(), Some(BlockIndex(1)));
    assert_eq!(segments(128), (1843, 18), "1.8 of 10 MiB");
    assert_eq!((segments(64), segments(8)), ((1024, 10), (1024, 10)), "not less");
}

#[test]
fn what_a_step_finds_is_what_one_of_its_size_left() {
    // Its output outlives it: the next step frees it. The one before was of another size.
    let step = |before_mib: u64, mib: u64| {
        let mut b = crate::synthetic::TraceBuilder::new();
        let weights = b.persistent("weights", 4 << 20);
        let before = b.persistent("output", before_mib << 20);
        b.begin("first", 1.0, false);
        b.read(weights);
        b.end();
        b.free(before);
        let output = b.allocate("output", mib << 20);
        b.compute("second", 1.0, &[weights], output);
        Trace { signature: Signature(mib), ..b.finish() }
    };
    let mut family = Family::default();
    [(30, 10), (10, 20), (20, 16)]
        .iter()
        .for_each(|&(before, mib)| family.learn(&step(before, mib)));
    let found = family.member(40 << 20, Signature(4)).unwrap();
    let sizes: Vec<u64> = found.blocks.iter().map(|block| block.size_bytes >> 20).collect();
    assert_eq!(sizes, [4, 40, 40]);
}

#[test]
fn what_the_first_step_left_in_another_order_is_put_right() {
    // The optimizer's state was made behind the first step's output, which the second frees.
    let step = |is_second: bool, before_mib: u64, mib: u64| {
        let mut b = crate::synthetic::TraceBuilder::new();
        let weights = b.persistent("weights", 4 << 20);
        let (before, state) = if is_second {
            let before = b.persistent("output", before_mib << 20);
            (before, b.persistent("state", 8 << 20))
        } else {
            let state = b.persistent("state", 8 << 20);
            (b.persistent("output", before_mib << 20), state)
        };
        let output = b.allocate("output", mib << 20);
        b.compute("first", 1.0, &[weights], output);
        b.free(before);
        b.begin("second", 1.0, false);
        b.update(state);
        b.end();
        Trace { signature: Signature(mib), ..b.finish() }
    };
    // The second step is the largest of those that were recorded.
    let mut family = Family::default();
    family.learn(&step(true, 10, 30));
    family.learn(&step(false, 30, 20));
    let found = family.member(26 << 20, Signature(3)).unwrap();
    let expect = Trace { signature: Signature(3), ..step(false, 26, 26) };
    assert_eq!((found.blocks, found.events), (expect.blocks, expect.events));
}

#[test]
fn recorded_steps_are_laid_side_by_side() {
    let steps = [20, 8, 14].map(member);
    let family = Family::of(&steps).expect("their ops are the same");
    let largest = family.largest().expect("there are some");
    assert_eq!((largest.signature, &largest.blocks), (Signature(20), &steps[0].blocks));
    for step in &steps {
        let found = family.like(step).expect("all have the probe");
        assert_eq!((found.signature, &found.blocks), (step.signature, &step.blocks));
        let plan = assemble(&largest, Vec::new());
        assert_eq!(plan_for_member(&plan, &found).signature, step.signature);
    }
    // One size alone is itself.
    let alike = Family::of(&[member(8), member(8)]).expect("their ops are the same");
    assert_eq!(alike.largest(), Some(member(8)));
    assert_eq!(Family::of(&[]).expect("nothing differs").largest(), None);
}

#[test]
fn steps_of_other_ops_are_no_family() {
    let mut renamed = member(14);
    renamed.ops[3].name = "another".to_owned();
    let mut shorter = member(14);
    shorter.ops.pop();
    let last = shorter.ops.len();
    for (step, op) in [(renamed, 3), (shorter, last)] {
        let unlike = Family::of(&[member(8), member(14), step]).expect_err("they differ");
        assert_eq!(unlike, Unlike { step: 2, op });
        assert_eq!(
            unlike.to_string(),
            format!("step 3 has other ops than step 1, from op {op} on")
        );
    }
}

/// Micro-batches of these lengths, one after the other: what each makes is as long, or longer.
fn batches(lengths_mib: &[u64], signature: u64) -> Trace {
    let mut b = crate::synthetic::TraceBuilder::new();
    for &mib in lengths_mib {
        b.begin("embed", mib as f64, false);
        let tokens = b.allocate("", mib << 20);
        b.write(tokens);
        b.end();
        let hidden = b.allocate("", (3 * mib + 2) << 20);
        b.compute("layer", 7.0 * mib as f64, &[tokens], hidden);
        b.free(tokens);
        let fixed = b.allocate("", 4 << 20);
        b.compute("update", 5.0, &[hidden], fixed);
        b.free(hidden);
        b.free(fixed);
    }
    Trace { signature: Signature(signature), ..b.finish() }
}

#[test]
fn micro_batches_may_each_have_a_length_of_their_own() {
    let lengths = [[8, 20, 11], [17, 9, 24], [12, 14, 10], [20, 10, 16], [10, 18, 8], [15, 8, 19]];
    let steps = [1, 2, 3, 4, 5, 6].map(|at| batches(&lengths[at as usize - 1], at));
    let family = Family::of(&steps).expect("their ops are the same");
    // Any of them can be as long as the longest of all.
    assert_eq!(family.largest_bytes(), Some(24 << 20));
    let check = |found: Trace, expect: Trace| {
        assert_eq!(found.blocks, expect.blocks);
        for (found, expect) in found.ops.iter().zip(&expect.ops) {
            assert!((found.device_us - expect.device_us).abs() < 1e-6, "{found:?} {expect:?}");
        }
    };
    check(family.largest().expect("there are some"), batches(&[24; 3], 1));
    for mib in [6, 24, 60] {
        check(family.member(mib << 20, Signature(9)).expect("they differ"), batches(&[mib; 3], 9));
    }
    // One that was recorded is what it was, and so is another of other lengths.
    for step in steps.iter().chain([&batches(&[30, 9, 13], 7)]) {
        check(family.like(step).expect("it has the probe"), step.clone());
    }
    // As their batches come, each tells its length.
    let [one, two, three] = *family.probes() else { panic!("{:?}", family.probes()) };
    let told = family.size_told(&[(one, 9 << 20), (two, 30 << 20), (three, 13 << 20)]);
    assert_eq!(told.as_ref().map(|size| size.probe_bytes), Some(30 << 20));
    assert_eq!(told, family.size_of(&batches(&[9, 30, 13], 8)));
    let ops_us = batches(&[9, 30, 13], 8).ops.iter().map(|op| op.device_us).sum::<f64>();
    let unlimited_us = told.and_then(|size| family.unlimited_us(&size)).expect("it is known");
    assert!((unlimited_us - ops_us).abs() < 1e-6, "{unlimited_us} {ops_us}");
    // What did not come is taken for as long as the first, without which nothing is known.
    let told = family.size_told(&[(one, 12 << 20), (three, 18 << 20)]);
    assert_eq!(told, family.size_of(&batches(&[12, 12, 18], 8)));
    assert_eq!(family.size_told(&[(two, 30 << 20)]), None);
}

#[test]
fn what_one_micro_batch_shows_is_so_in_all() {
    // What is made of the tokens grows in large steps, and not as they do. The lengths of the third
    // batch do not show it.
    let hidden_mib = |mib: u64| 3 * mib.next_multiple_of(8);
    let step = |lengths: [u64; 3], signature: u64| {
        let mut b = crate::synthetic::TraceBuilder::new();
        for mib in lengths {
            b.begin("embed", 1.0, false);
            let tokens = b.allocate("", mib << 20);
            b.write(tokens);
            b.end();
            let hidden = b.allocate("", hidden_mib(mib) << 20);
            b.compute("layer", hidden_mib(mib) as f64, &[tokens], hidden);
            b.free(tokens);
            b.free(hidden);
        }
        let updated = b.allocate("", 5 << 20);
        b.compute("layer", 5.0, &[], updated);
        b.free(updated);
        Trace { signature: Signature(signature), ..b.finish() }
    };
    let lengths = [[8, 40, 17], [40, 16, 24], [16, 8, 22], [32, 24, 19], [24, 32, 20]];
    let steps = [1, 2, 3, 4, 5].map(|at| step(lengths[at as usize - 1], at));
    let family = Family::of(&steps).expect("their ops are the same");
    assert_eq!(family.probes().len(), 3);
    for mib in [24, 40, 80] {
        let found = family.member(mib << 20, Signature(9)).expect("they differ");
        let expect = step([mib; 3], 9);
        for (found, expect) in found.blocks.iter().zip(&expect.blocks) {
            // The third tells of lengths that are no multiple: there is room for what it had.
            let more_bytes = found.size_bytes.checked_sub(expect.size_bytes);
            assert!(more_bytes.is_some_and(|more| more <= expect.size_bytes / 2), "{found:?}");
        }
        for (found, expect) in found.ops.iter().zip(&expect.ops) {
            let off_us = (found.device_us - expect.device_us).abs();
            assert!(off_us <= 0.1 * expect.device_us, "{found:?} {expect:?}");
        }
    }
}

#[test]
fn a_micro_batch_whose_probe_seems_to_follow_another_has_a_length_of_its_own() {
    // Tokens come in few units, and those of the third batch are always three or four.
    let step = |lengths: [u64; 3], signature: u64| {
        let mut b = crate::synthetic::TraceBuilder::new();
        for length in lengths {
            b.begin("embed", 1.0, false);
            let tokens = b.allocate("", length.div_ceil(4) << 21);
            b.write(tokens);
            b.end();
            let hidden = b.allocate("", length << 21);
            b.compute("layer", length as f64, &[tokens], hidden);
            b.free(tokens);
            b.free(hidden);
        }
        Trace { signature: Signature(signature), ..b.finish() }
    };
    let lengths = [[8, 24, 9], [12, 10, 10], [16, 14, 15], [20, 18, 11], [24, 8, 15], [10, 22, 12]];
    let steps = [1, 2, 3, 4, 5, 6].map(|at| step(lengths[at as usize - 1], at));
    let family = Family::of(&steps).expect("their ops are the same");
    assert_eq!(family.probes(), [0, 2, 4].map(BlockIndex));
    let found = sizes_mib(&family.largest().expect("there are some"));
    for (found, expect) in found.into_iter().zip(sizes_mib(&step([24; 3], 9))) {
        assert!((expect..=expect + expect / 2).contains(&found), "{found} MiB for {expect}");
    }
}

#[test]
fn what_each_expert_gets_is_hardly_larger_than_it_was() {
    // Of each batch a part goes to each of them, now more and now less.
    let step = |tokens_mib: u64, parts_mib: [u64; 3]| {
        let mut b = crate::synthetic::TraceBuilder::new();
        b.begin("embed", 1.0, false);
        let tokens = b.allocate("", tokens_mib << 20);
        b.write(tokens);
        b.end();
        for mib in parts_mib {
            b.begin("expert", mib as f64, false);
            b.read(tokens);
            let part = b.allocate("", mib << 20);
            b.write(part);
            b.end();
            b.free(part);
        }
        b.free(tokens);
        Trace { signature: Signature(tokens_mib), ..b.finish() }
    };
    let steps = [
        step(40, [4, 26, 10]),
        step(30, [12, 8, 10]),
        step(24, [2, 16, 6]),
        step(36, [6, 20, 10]),
        step(20, [10, 4, 6]),
    ];
    let family = Family::of(&steps).expect("their ops are the same");
    assert_eq!(family.largest_bytes(), Some(40 << 20));
    let largest = sizes_mib(&family.largest().expect("there are some"));
    for (found, most) in largest.into_iter().zip([40, 12, 26, 10]) {
        assert!((most..=most + most / 2).contains(&found), "{found} MiB where it had {most}");
    }
}
