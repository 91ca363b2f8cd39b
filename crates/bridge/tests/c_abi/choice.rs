//! What may leave: the faster of both where nobody says, and what was chosen is told.

use std::ffi::{CStr, CString};

use serde_json::Value;

use super::rig::{
    MIB, OK, READ, Rig, Settings, assert_holds, begin, check, default_settings, explain, free,
    last_error, make, smartswap_end, smartswap_touch, step,
};

const ACTIVATION: u64 = 4 * MIB;
const STATE: u64 = MIB / 2;

/// Trains with four activations and sixteen blocks of state, which one op at the step's end reads,
/// and a little less memory than that. One activation that leaves is enough; so are two blocks of
/// state, a quarter of its bytes. Returns what is said about the plan.
fn trained(prefer: Option<&CStr>) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("run.toml");
    // Nothing hides behind ops that take milliseconds.
    let slow = "link_out = \"1MiB/s\"\nlink_in = \"1MiB/s\"\nlink_both = \"1MiB/s\"\n";
    std::fs::write(&file, slow).expect("written");
    let file = CString::new(file.to_str().expect("UTF-8")).expect("no zero inside");
    let rig = Rig::with(Settings {
        memory_bytes: 4 * ACTIVATION + 16 * STATE - MIB,
        prefer: prefer.map_or(std::ptr::null(), CStr::as_ptr),
        config_file: file.as_ptr(),
        ..default_settings()
    });
    let state: Vec<_> = (0..16).map(|tag| make(STATE, tag)).collect();
    step();
    for _ in 0..6 {
        let activations: Vec<_> = (0..4).map(|tag| make(ACTIVATION, tag)).collect();
        for (tag, activation) in activations.into_iter().enumerate().rev() {
            check(activation, ACTIVATION, tag as u64);
            free(activation);
        }
        assert_eq!(begin("update"), OK, "{}", last_error());
        for (tag, &block) in state.iter().enumerate() {
            assert_eq!(smartswap_touch(block, READ), OK, "{}", last_error());
            assert_holds(block, STATE, tag as u64);
        }
        assert_eq!(smartswap_end(), OK, "{}", last_error());
        step();
    }
    let said = serde_json::from_str(&explain().expect("it is open")).expect("JSON");
    state.into_iter().for_each(free);
    rig.close();
    said
}

/// What leaves by the plan, by size.
fn leave(said: &Value) -> Vec<u64> {
    let decisions = said["decisions"].as_array().expect("a list").iter();
    let away = decisions.filter(|decision| decision["treatment"] != "keep");
    away.map(|decision| decision["size_bytes"].as_u64().expect("a size")).collect()
}

#[test]
fn the_faster_of_both_runs_where_nobody_says_what_may_leave() {
    let [free, performance, memory] = [None, Some(c"performance"), Some(c"memory")].map(trained);
    let step_us = |said: &Value| said["prediction"]["step_us"].as_f64().expect("a plan was made");
    let chosen = |said: &Value| said["prediction"]["prefer"].clone();
    assert_eq!((&free["prefer"], chosen(&free)), (&Value::Null, "memory".into()), "{free}");
    assert_eq!(performance["prefer"], "performance");
    assert_eq!((&memory["prefer"], chosen(&memory)), (&"memory".into(), "memory".into()));
    // Activations alone are enough, and so they alone leave where that was asked for.
    assert_eq!(chosen(&performance), "performance", "{performance}");
    assert!(leave(&performance).iter().all(|&size_bytes| size_bytes == ACTIVATION));
    assert!(!leave(&free).is_empty() && !leave(&free).contains(&ACTIVATION), "{free}");
    assert!(step_us(&free) < 0.5 * step_us(&performance), "{free} {performance}");
}
