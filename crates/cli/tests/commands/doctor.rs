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

#[test]
fn one_device_is_tried_step_by_step() {
    // Under a chip's name the host may not address the device's memory, as on hardware.
    let chip = [
        ("SMARTSWAP_ACL_LIBRARY", library()),
        ("ACL_STANDIN_NAME", "Ascend910B4"),
        ("SMARTSWAP_PACKAGES", "torch 2.11.0, torch_npu 2.11.0"),
    ];
    let report = smartswap_in(&chip, &["doctor", "--device", "npu", "--json"]).json();
    assert_eq!(report["drivers"].as_array().map(Vec::len), Some(1), "{report}");
    let device = &driver(&report, "acl")["devices"][0];
    assert_eq!((&device["ready"], &device["model"]), (&true.into(), &"Ascend910B4".into()));
    let steps = device["steps"].as_array().expect("a list");
    assert_eq!(steps.len(), 10, "{device}");
    assert!(steps.iter().all(|step| step["passed"] == true), "{device}");
    assert_eq!(report["software"]["packages"], "torch 2.11.0, torch_npu 2.11.0");
    let text = smartswap_in(&chip, &["doctor", "--device", "acl:0"]).stdout;
    for words in ["torch_npu 2.11.0", "Ascend910B4, driver runtime", "16 copies", "0 wrong"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!(text.lines().filter(|line| line.starts_with("    pass ")).count(), 10, "{text}");
}

#[test]
fn a_device_that_cannot_be_used_is_told_with_exit_code_1() {
    let check = |variables: &[(&str, &str)], device: &str, expect: &str| {
        let variables = [&[("SMARTSWAP_ACL_LIBRARY", library())], variables].concat();
        let ran = smartswap_in(&variables, &["doctor", "--device", device]);
        assert_eq!((ran.code, ran.stderr.as_str()), (1, ""), "{ran:?}");
        assert!(ran.stdout.contains(expect), "{}", ran.stdout);
    };
    check(&[], "npu:3", "there is no device 3");
    check(&[("ACL_STANDIN_VMM", "off")], "npu", "nothing can be swapped");
    // On a virtual clock copies take no time, which no device may say.
    check(&[("ACL_STANDIN_MODE", "by-time")], "npu", "    FAIL        events tell");
    check(&[("ACL_STANDIN_MODE", "by-time")], "npu", "1 of 10 steps failed");
    assert!(smartswap(&["doctor", "--device", "gpu"]).refusal().contains("not a device"));
}
