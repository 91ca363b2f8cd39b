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

#[test]
fn blocks_that_are_too_small_to_be_swappable_may_be_missing() {
    // The first op makes two blocks; in the smaller step one of them is no block.
    let step = |sizes: &[u64], signature: u64| {
        let mut b = crate::synthetic::TraceBuilder::new();
        let blocks: Vec<BlockIndex> = sizes.iter().map(|&size| b.allocate("", size)).collect();
        b.begin("first", 1.0, false);
        blocks.iter().for_each(|&block| b.write(block));
        b.end();
        let last = b.allocate("", sizes.iter().sum());
        b.compute("second", sizes[sizes.len() - 1] as f64, &blocks, last);
        blocks.iter().for_each(|&block| b.free(block));
        b.free(last);
        Trace { signature: Signature(signature), ..b.finish() }
    };
    let mut family = Family::default();
    family.learn(&step(&[2 << 20, 64 << 20], 1));
    family.learn(&step(&[32 << 20], 2));
    let found = family.member(99 << 20, Signature(3)).unwrap();
    assert_eq!(family.probe(), Some(BlockIndex(2)), "the block that both have");
    let sizes: Vec<u64> = found.blocks.iter().map(|block| block.size_bytes).collect();
    assert_eq!(sizes[..2], [2 << 20, 64 << 20], "all that is known of them");
    assert_eq!(sizes[2] >> 20, 100, "in units");
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
