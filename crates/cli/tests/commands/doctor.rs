//! `doctor`: what it finds on a machine with and without an accelerator.

use serde_json::Value;

use crate::device::library;
use crate::rig::{smartswap, smartswap_in};

fn driver<'a>(report: &'a Value, name: &str) -> &'a Value {
    let drivers = report["drivers"].as_array().expect("a list");
    drivers.iter().find(|driver| driver["name"] == name).expect("every driver is in it")
}

#[test]
fn the_software_device_is_always_ready_and_the_machine_is_described() {
    let report = smartswap(&["doctor", "--json"]).json();
    let host = driver(&report, "host");
    assert_eq!(host["ready"], true, "{host}");
    let device = &host["devices"][0];
    for figure in ["out_gb_per_s", "in_gb_per_s", "both_gb_per_s"] {
        assert!(device["link"][figure].as_f64().expect("a rate") > 0.0, "{device}");
    }
    assert!(device["map_calls"]["unmap_us"].as_f64().expect("a time") > 0.0, "{device}");
    assert!(report["machine"]["cores"].as_u64().expect("a count") > 0);
}

#[test]
fn a_missing_library_is_a_finding_that_says_how_to_mend_it() {
    let missing = [("SMARTSWAP_ACL_LIBRARY", "/nowhere/libascendcl.so")];
    let ran = smartswap_in(&missing, &["doctor"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
    let line = ran.stdout.lines().find(|line| line.starts_with("acl ")).expect("a line for acl");
    assert!(line.contains("not ready") && line.contains("/nowhere/libascendcl.so"), "{line}");
    let report = smartswap_in(&missing, &["doctor", "--json"]).json();
    assert_eq!(driver(&report, "acl")["ready"], false);
}

#[test]
fn each_device_of_a_library_is_examined() {
    let two = [("SMARTSWAP_ACL_LIBRARY", library()), ("ACL_STANDIN_DEVICES", "2")];
    let report = smartswap_in(&two, &["doctor", "--json"]).json();
    let acl = driver(&report, "acl");
    assert_eq!(acl["ready"], true, "{acl}");
    let devices = acl["devices"].as_array().expect("a list");
    let names: Vec<&Value> = devices.iter().map(|device| &device["name"]).collect();
    assert_eq!(names, ["acl:0", "acl:1"]);
    assert!(devices.iter().all(|device| device["has_virtual_memory"] == true), "{acl}");
    let text = smartswap_in(&two, &["doctor"]).stdout;
    assert!(text.contains("verdict") && text.contains("ready: a tensor of 64.0 MiB"), "{text}");
}

#[test]
fn a_device_without_virtual_memory_is_told_apart() {
    let old = [("SMARTSWAP_ACL_LIBRARY", library()), ("ACL_STANDIN_VMM", "off")];
    let report = smartswap_in(&old, &["doctor", "--json"]).json();
    let device = &driver(&report, "acl")["devices"][0];
    assert_eq!((&device["ready"], &device["has_virtual_memory"]), (&false.into(), &false.into()));
    assert!(device["verdict"].as_str().expect("words").contains("nothing can be swapped"));
}
