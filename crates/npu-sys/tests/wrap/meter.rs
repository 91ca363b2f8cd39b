//! The meter driver: each call goes through and is counted under its name, with its time.

use std::collections::BTreeMap;
use std::sync::Arc;

use npu_sys::devices::{CallCost, FALLIBLE_CALLS, FaultDriver, FaultPlan, MeterDriver};
use npu_sys::{Driver, ErrorKind};

use super::fake::FakeDriver;
use super::fault::call;

#[test]
fn every_call_is_counted_under_its_name_and_goes_through() {
    let fake = Arc::new(FakeDriver::default());
    let meter = MeterDriver::new(Arc::clone(&fake) as Arc<dyn Driver>);
    assert_eq!(meter.costs(), BTreeMap::new());
    for (index, name) in FALLIBLE_CALLS.into_iter().enumerate() {
        for _ in 0..=index {
            call(&meter, name).unwrap();
        }
        assert_eq!(fake.count(name), index as u64 + 1, "{name}");
    }
    let costs = meter.costs();
    for (index, name) in FALLIBLE_CALLS.into_iter().enumerate() {
        let CallCost { count, total_us } = costs[name];
        assert_eq!(count, index as u64 + 1, "{name}");
        assert!(total_us.is_finite() && total_us >= 0.0, "{name}");
    }
    assert_eq!(costs.len(), FALLIBLE_CALLS.len());
    meter.clear();
    assert_eq!(meter.costs(), BTreeMap::new());
}

#[test]
fn a_call_that_fails_counts_and_its_error_comes_back() {
    let fault = Arc::new(FaultDriver::new(Arc::new(FakeDriver::default())));
    let meter = MeterDriver::new(Arc::clone(&fault) as Arc<dyn Driver>);
    fault.arm(FaultPlan::once(1, ErrorKind::OutOfMemory));
    assert_eq!(call(&meter, "create_chunk").unwrap_err().kind, ErrorKind::OutOfMemory);
    assert_eq!(meter.costs()["create_chunk"].count, 1);
}

#[test]
fn calls_of_other_threads_count_apart() {
    let meter = MeterDriver::new(Arc::new(FakeDriver::default()));
    call(&meter, "map").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| [(); 2].map(|()| call(&meter, "set_access").unwrap()));
    });
    let names = |costs: BTreeMap<&'static str, CallCost>| -> Vec<(&str, u64)> {
        costs.into_iter().map(|(name, cost)| (name, cost.count)).collect()
    };
    assert_eq!(names(meter.costs()), [("map", 1)]);
    assert_eq!(names(meter.costs_of_others()), [("set_access", 2)]);
}
