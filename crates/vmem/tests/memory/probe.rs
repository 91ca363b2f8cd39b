//! Measuring a device: the rates are those of the link, and all that was taken is given back.

use std::collections::BTreeSet;
use std::sync::Arc;

use vmem::devices::{
    FaultDriver, FaultPlan, HostConfig, HostDriver, HostLink, check_device, measure_link,
    measure_map,
};
use vmem::{Driver, ErrorKind};

const PIECE: u64 = 1 << 20;

fn device() -> Arc<HostDriver> {
    let link =
        HostLink { out_bytes_per_s: 4 << 30, in_bytes_per_s: 2 << 30, both_bytes_per_s: 1 << 30 };
    let config = HostConfig { link: Some(link), ..HostConfig::by_time(6 * PIECE) };
    HostDriver::new(config).expect("a device")
}

#[test]
fn rates_are_those_of_the_link() {
    let host = device();
    let driver: Arc<dyn Driver> = host.clone();
    let rates = measure_link(&driver, PIECE, 8).expect("measures");
    let near = |rate: f64, expected: u64| {
        let ratio = rate / expected as f64;
        assert!((0.999..1.001).contains(&ratio), "{rate} is not {expected}");
    };
    near(rates.out_bytes_per_s, 4 << 30);
    near(rates.in_bytes_per_s, 2 << 30);
    near(rates.both_bytes_per_s, 1 << 30);
    assert!(host.ledger().is_empty(), "{:?}", host.ledger());
    // The first pair, eight one after the other each way, and eight pairs.
    assert_eq!(host.ledger().copied_out_bytes, (2 + 8 + 8) * PIECE);
    assert_eq!(host.ledger().copied_in_bytes, (2 + 8 + 8) * PIECE);
}

#[test]
fn each_memory_call_has_a_cost() {
    let host = device();
    let driver: Arc<dyn Driver> = host.clone();
    let costs = measure_map(&driver, PIECE, 4).expect("measures");
    for us in [
        costs.reserve_us,
        costs.create_us,
        costs.map_us,
        costs.set_access_us,
        costs.unmap_us,
        costs.release_us,
    ] {
        assert!(us > 0.0 && us.is_finite(), "{costs:?}");
    }
    assert!(host.ledger().is_empty(), "{:?}", host.ledger());
}

#[test]
fn a_failing_call_leaves_nothing_behind() {
    let mut failed = 0;
    for call in 1.. {
        let host = device();
        let fault = Arc::new(FaultDriver::new(host.clone()));
        fault.arm(FaultPlan::once(call, ErrorKind::Failed));
        let driver: Arc<dyn Driver> = fault.clone();
        let result = measure_link(&driver, PIECE, 2);
        if fault.injected() == 0 {
            result.expect("nothing failed");
            break;
        }
        failed += 1;
        result.expect_err("a call failed");
        let given_back = ["unmap", "free_range", "release_chunk", "free_pinned"];
        let in_the_end = fault.hits().keys().any(|name| given_back.contains(name));
        let lost_object = fault.hits().keys().any(|name| name.starts_with("destroy"));
        if !in_the_end && !lost_object {
            assert!(host.ledger().is_empty(), "call {call}: {:?}", host.ledger());
        }
    }
    assert!(failed > 30, "only {failed} calls were failed");
}

#[test]
fn a_device_that_does_all_is_told_step_by_step_and_nothing_is_left() {
    let threads = HostDriver::new(HostConfig::threads(3 * PIECE)).expect("a device");
    for host in [threads, device()] {
        let driver: Arc<dyn Driver> = host.clone();
        for step in check_device(&driver, PIECE) {
            step.outcome.unwrap_or_else(|text| panic!("{}: {text}", step.name));
        }
        assert!(host.ledger().is_empty(), "{:?}", host.ledger());
    }
}

#[test]
fn a_step_that_fails_says_why_and_the_others_go_on() {
    let mut failed = BTreeSet::new();
    for call in 1.. {
        let host = device();
        let fault = Arc::new(FaultDriver::new(host));
        fault.arm(FaultPlan::once(call, ErrorKind::Failed));
        let driver: Arc<dyn Driver> = fault.clone();
        let steps = check_device(&driver, PIECE);
        let errors = steps
            .iter()
            .filter_map(|step| step.outcome.as_ref().err().map(|text| (step.name, text)));
        let errors: Vec<_> = errors.collect();
        if fault.injected() == 0 {
            assert_eq!(errors, []);
            break;
        }
        let [(name, text)] = errors[..] else { panic!("call {call}: {errors:?}") };
        assert!(!text.is_empty());
        failed.insert(name);
    }
    assert_eq!(failed.len(), 9, "{failed:?}");
}
