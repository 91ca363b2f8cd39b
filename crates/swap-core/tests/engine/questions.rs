//! Promise: the host seldom asks the device in vain, and soon sees that it is done.

use swap_core::Residency;

use super::lab::{ENOUGH, Lab, read};

const OPS: u64 = 200;

#[test]
fn ops_that_run_ahead_of_the_device_ask_it_now_and_then() {
    let mut lab = Lab::new(ENOUGH);
    let block = lab.make(1);
    lab.op(&[read(block, 1)]).expect("works");
    lab.swap_out(block);
    let mappings = lab.host.ledger().mapping_count;
    let asked = |lab: &Lab| lab.meter.costs().get("query_event").map_or(0, |cost| cost.count);
    let before = asked(&lab);
    (0..OPS).for_each(|_| lab.tick());
    let questions = asked(&lab) - before;
    assert_eq!(lab.state(block), Residency::Leaving, "no time has passed");
    assert!((10..=OPS / 3).contains(&questions), "{questions} questions in {OPS} ops");
    assert_eq!(lab.host.ledger().mapping_count, mappings);

    lab.complete_all();
    (0..4).for_each(|_| lab.tick());
    assert_eq!(lab.host.ledger().mapping_count, mappings - 1, "its address is unmapped");
    lab.finish();
}
