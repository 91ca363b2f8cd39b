//! The engine on the Ascend driver over its stand-in library: random work under random plans, with
//! the same shadow and the same order checker, and the log of all driver calls for a ledger.
//!
//! The library reads its settings from the environment once a process, so each way of running it
//! has a process of its own: these tests run this binary once more. Without a library, which
//! `SMARTSWAP_ACL_LIBRARY` names or cargo builds, they say so and do nothing; with
//! `SMARTSWAP_REQUIRE=acl` they fail.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use swap_core::Driver;
use swap_core::devices::{AclDriver, CheckConfig, CheckDriver, FaultDriver, RecordDriver};

use super::random_plans::{run_all, run_on};
use super::world::{Setup, World};

#[path = "../../../acl-standin/built.rs"]
mod built;

const LIBRARY: &str = "SMARTSWAP_ACL_LIBRARY";
const CASES: &str = "ENGINE_ACL_CASES";

/// An engine on the driver, opened anew.
fn open(setup: Setup) -> World {
    let driver = AclDriver::open(0).expect("it was opened before");
    let record = Arc::new(RecordDriver::new(driver));
    let check = Arc::new(CheckDriver::new(record.clone(), CheckConfig::ORDER));
    let fault = Arc::new(FaultDriver::new(check.clone()));
    World::behind(record, check, fault, setup).expect("an engine opens")
}

/// The side of the tests below that runs. On its own it has nothing to do.
#[test]
fn child() {
    let Some(cases) = std::env::var(CASES).ok().and_then(|text| text.parse().ok()) else { return };
    let properties = AclDriver::open(0).expect("the parent names the library").properties();
    if !properties.is_host_addressable {
        println!("not tested: {} runs no host functions on its memory", properties.name);
        return;
    }
    let unit = properties.granularity_bytes;
    let tally = run_all(cases, |case| run_on(case, unit, open));
    println!("{tally:#?}");
    let counters = &tally.counters;
    for (what, count) in [
        ("bytes out", counters.swapped_out_bytes),
        ("bytes in", counters.swapped_in_bytes),
        ("clean swap outs", counters.clean_swap_outs),
        ("recomputed ops", counters.recomputed_ops),
        ("misses", counters.misses),
        ("rescues", counters.rescues),
        ("drifts", tally.drifted),
        ("retakes", tally.retakes),
        ("ops on the side stream", tally.side_ops),
        ("accesses checked", tally.accesses_checked),
        ("words checked", tally.words_checked),
    ] {
        assert!(count > 0, "{what} never happened");
    }
}

/// Runs cases in a process where the library works in this mode.
fn run_in(mode: &str, cases: u32) {
    let library = match library() {
        Ok(library) => library,
        Err(why) => {
            let required = std::env::var("SMARTSWAP_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|name| name == "acl"), "acl is required: {why}");
            println!("not tested: {why}");
            return;
        }
    };
    let output = Command::new(std::env::current_exe().expect("it runs"))
        .args(["--exact", "engine::acl::child", "--nocapture", "--test-threads=1"])
        .env(LIBRARY, library)
        .env(CASES, cases.to_string())
        .env("ACL_STANDIN_MODE", mode)
        .output()
        .expect("it runs once more");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("running 1 test"), "{printed}");
    // Shown only if the test fails.
    println!("{mode}: {printed}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{mode}: {}", output.status);
}

/// The library that the environment names, or the stand-in, built beside this test.
fn library() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os(LIBRARY) {
        return Ok(PathBuf::from(path));
    }
    built::standin()
}

#[test]
fn no_plan_breaks_a_promise_on_threads() {
    run_in("threads", 20);
}

#[test]
fn no_plan_breaks_a_promise_in_virtual_time() {
    run_in("by-time", 30);
}

#[test]
fn no_plan_breaks_a_promise_in_any_order() {
    for seed in 0..2 {
        run_in(&format!("seed:{seed}"), 30);
    }
}
