//! Replays whose recipes fail or panic: who hears of it, and what stays as it was.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use swap_core::{AccessMode, ActionKind, BlockId, Error, Recipe, Residency};

use super::lab::{ENOUGH, Lab, OP, read, work, write};

/// A block whose recipe fails as long as the flag says so.
fn make_unsure(lab: &mut Lab, fails: &Arc<AtomicBool>) -> BlockId {
    let block = lab.make(1);
    let (errors, flag) = (Arc::clone(&lab.errors), Arc::clone(fails));
    lab.ops.begin(OP).expect("begins");
    work(&mut lab.ops, &[write(block, 2)], &errors).expect("works");
    let recipe = Recipe::new(move |ops, _| {
        ops.begin(OP)?;
        work(ops, &[write(block, 2)], &errors)?;
        if flag.load(Ordering::Relaxed) {
            let text = "not now".to_owned();
            return Err(Error::Replay { op: "op".to_owned(), text });
        }
        ops.end()
    });
    lab.ops.recipe(recipe).expect("an op is open");
    lab.ops.end().expect("ends");
    block
}

#[test]
fn a_failed_recipe_is_an_error_and_the_block_stays_discarded() {
    let mut lab = Lab::new(ENOUGH);
    let fails = Arc::new(AtomicBool::new(true));
    let block = make_unsure(&mut lab, &fails);
    lab.discard(block);
    lab.ops.begin(OP).expect("begins");
    let error = lab.ops.touch(block, AccessMode::Read).expect_err("the recipe fails");
    assert_eq!(error.to_string(), "replaying 'op' failed: not now");
    assert_eq!(lab.ops.depth(), 1, "the frames of the recipe are gone");
    assert_eq!(lab.state(block), Residency::Discarded);
    lab.ops.end().expect("ends");
    fails.store(false, Ordering::Relaxed);
    lab.op(&[read(block, 2)]).expect("replays");
    lab.finish();
}

#[test]
fn a_planned_replay_that_fails_is_the_error_of_the_op_that_needs_it_and_of_no_other() {
    let mut lab = Lab::new(ENOUGH);
    let fails = Arc::new(AtomicBool::new(true));
    let [block, other] = [0; 2].map(|_| make_unsure(&mut lab, &fails));
    for block in [block, other] {
        lab.discard(block);
        lab.act(&[(ActionKind::Replay, block)]);
        assert_eq!(lab.state(block), Residency::Discarded);
    }
    let error = lab.op(&[read(block, 2)]).expect_err("it fails here, too");
    assert_eq!(error.to_string(), "replaying 'op' failed: not now");
    lab.ops = lab.engine.op_stack();
    // Where it failed for a while only, nobody hears of it.
    fails.store(false, Ordering::Relaxed);
    lab.op(&[read(other, 2)]).expect("replays");
    lab.finish();
}

#[test]
fn a_panic_in_a_recipe_harms_nobody_else() {
    let mut lab = Lab::new(ENOUGH);
    let count = Arc::new(AtomicU32::new(0));
    let block = lab.make(1);
    let errors = Arc::clone(&lab.errors);
    lab.ops.begin(OP).expect("begins");
    work(&mut lab.ops, &[write(block, 2)], &errors).expect("works");
    let counter = Arc::clone(&count);
    lab.ops
        .recipe(Recipe::new(move |ops, _| {
            ops.begin(OP)?;
            work(ops, &[write(block, 2)], &errors)?;
            assert!(counter.fetch_add(1, Ordering::Relaxed) > 0, "the first replay panics");
            ops.end()
        }))
        .expect("an op is open");
    lab.ops.end().expect("ends");
    lab.discard(block);
    let mut broken = lab.engine.op_stack();
    broken.begin(OP).expect("begins");
    let touch = catch_unwind(AssertUnwindSafe(|| broken.touch(block, AccessMode::Read)));
    assert!(touch.is_err(), "the panic goes on");
    assert_eq!(lab.state(block), Residency::Discarded);
    drop(broken);
    lab.op(&[read(block, 2)]).expect("replays");
    assert_eq!(count.load(Ordering::Relaxed), 2);
    lab.finish();
}
