//! `--device`: the same training on an Ascend device, behind the stand-in of its library.

use std::path::PathBuf;
use std::sync::OnceLock;

use serde_json::Value;

use crate::rig::{Ran, TINY, number, smartswap_in, train};

#[path = "../../../acl-standin/built.rs"]
mod built;

/// The stand-in library, built beside these tests by the cargo that runs them.
pub(crate) fn library() -> &'static str {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    let found = FOUND.get_or_init(|| built::standin().expect("the stand-in is built"));
    found.to_str().expect("target folders are text")
}

/// Trains the tiny model on the stand-in.
fn train_on(device: &str, variables: &[(&str, &str)], args: &[&str]) -> Ran {
    let variables = [&[("SMARTSWAP_ACL_LIBRARY", library())], variables].concat();
    let command = [&["train"], &TINY[..], &["--device", device], args].concat();
    smartswap_in(&variables, &command)
}

fn losses(object: &Value) -> &Vec<Value> {
    object["losses"].as_array().expect("a list")
}

/// Its larger tensors take whole chunks of the hardware's 2 MiB, so they can leave.
const WIDE: [&str; 6] = ["--hidden", "128", "--batch", "32", "--memory", "48MiB"];

#[test]
fn an_ascend_device_trains_the_same_bits() {
    let args = [&WIDE[..], &["--steps", "8", "--verify", "--json"]].concat();
    let host = train(&args).json();
    for strategy in ["keep", "swap", "joint"] {
        let args = [&args[..], &["--strategy", strategy]].concat();
        let acl = train_on("acl", &[("ACL_STANDIN_LINK", "2GiB/s")], &args).json();
        assert_eq!(acl["bit_identical"], true, "{acl}");
        assert_eq!(losses(&acl), losses(&host), "the device changes no bit");
        let limit_bytes = number(&acl, "memory_limit_bytes");
        assert!(number(&acl, "peak_device_bytes") <= limit_bytes, "{acl}");
        assert!(number(&acl, "peak_uncapped_bytes") > limit_bytes, "something had to move");
        let planned =
            number(&acl, "swapped_out_bytes_per_step") + number(&acl, "recomputed_ops_per_step");
        let on_demand = number(&acl, "misses") + number(&acl, "rescues");
        assert!(planned + on_demand > 0, "{acl}");
    }
}

#[test]
fn a_device_has_a_number_and_memory_that_ends() {
    let two = [("ACL_STANDIN_DEVICES", "2"), ("ACL_STANDIN_MEMORY", "512MiB")];
    let args = [&WIDE[..], &["--steps", "3", "--strategy", "keep", "--json"]].concat();
    assert_eq!(losses(&train_on("acl:1", &two, &args).json()).len(), 3);
}

#[test]
fn devices_that_cannot_train_are_refused_in_one_line() {
    let check = |device: &str, variables: &[(&str, &str)], args: &[&str], expect: &[&str]| {
        let ran = train_on(device, variables, args);
        let line = ran.refusal();
        for part in expect {
            assert!(line.contains(part), "{device}: '{line}' does not say '{part}'");
        }
    };
    check("gpu", &[], &[], &["'gpu' is not a device", "acl:1"]);
    check("acl:x", &[], &[], &["'acl:x' is not a device"]);
    check("acl:7", &[], &[], &["no device 7", "1 of them"]);
    let nowhere = [("SMARTSWAP_ACL_LIBRARY", "/nonexistent/libascendcl.so")];
    check("acl", &nowhere, &[], &["/nonexistent/libascendcl.so", "set_env.sh"]);
    let wrong = [("SMARTSWAP_ACL_LIBRARY", "/proc/self/status")];
    check("acl", &wrong, &[], &["/proc/self/status", "not an ELF file"]);
    let small = [("ACL_STANDIN_MEMORY", "8MiB")];
    check("acl", &small, &[], &["8.0 MiB are free on acl:0", "smaller"]);
    check("acl", &small, &["--memory", "1GiB"], &["--memory 1.00 GiB", "8.0 MiB", "acl:0"]);
    let broken = [("ACL_STANDIN_MODE", "slow")];
    check("acl", &broken, &[], &["ACL_STANDIN_MODE is 'slow'"]);
}
