//! `stress`: everything that moves comes back as it was, on every device that is at hand.

use serde_json::Value;

use crate::device::library;
use crate::rig::{Ran, number, smartswap, smartswap_in};

const SMALL: [&str; 10] = [
    "stress", "--data", "48MiB", "--memory", "16MiB", "--block", "2MiB", "--rounds", "2", "--json",
];

fn judge(ran: &Ran) -> Value {
    let report = ran.json();
    assert_eq!(number(&report, "wrong_words"), 0, "{report}");
    assert!(number(&report, "held_bytes_peak") <= 16 << 20, "{report}");
    // All 24 blocks of 2 MiB are compared in five of the seven passes.
    assert_eq!(number(&report, "compared_words"), 5 * 24 * (2 << 20) / 8);
    let passes = report["phases"].as_array().expect("a list");
    let pass = |name: &str| {
        passes.iter().find(|pass| pass["name"] == name).unwrap_or_else(|| panic!("no {name}"))
    };
    let both = pass("out and in");
    assert_eq!(number(both, "swapped_out_bytes"), 48 << 20, "{both}");
    assert_eq!(number(both, "swapped_in_bytes"), 48 << 20, "{both}");
    assert_eq!(number(pass("in"), "swapped_out_bytes"), 0, "what was only read is not copied out");
    for name in ["in", "out and in", "check again"] {
        let on_demand = number(pass(name), "misses") + number(pass(name), "rescues");
        assert_eq!(on_demand, 0, "{name} goes by its plan: {}", pass(name));
    }
    report
}

#[test]
fn the_software_device_loses_nothing() {
    judge(&smartswap(&SMALL));
}

#[test]
fn an_ascend_device_loses_nothing() {
    let library = [("SMARTSWAP_ACL_LIBRARY", library())];
    let args = [&SMALL[..], &["--device", "acl"]].concat();
    let report = judge(&smartswap_in(&library, &args));
    // The device's own count of what is gone, beside the engine's.
    let passes = report["phases"].as_array().expect("a list");
    let taken = passes.iter().map(|pass| number(pass, "taken_bytes")).max().expect("passes");
    assert!(taken > 0 && taken <= 16 << 20, "{report}");
}

#[test]
fn the_table_is_for_people() {
    let ran = smartswap(&["stress", "--data", "16MiB", "--memory", "8MiB", "--block", "1MiB"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
    for words in ["16.0 MiB in 16 blocks", "out and in", "0 wrong", "under a cap of 8.0 MiB"] {
        assert!(ran.stdout.contains(words), "{words}: {}", ran.stdout);
    }
}

#[test]
fn what_cannot_be_done_is_refused_in_one_line() {
    let check = |args: &[&str], expect: &str| {
        let ran = smartswap(&[&["stress"], args].concat());
        assert!(ran.refusal().contains(expect), "{}", ran.refusal());
    };
    check(&["--memory", "8MiB", "--block", "4MiB"], "no room for 4 blocks");
    check(&["--memory", "64MiB", "--data", "32MiB"], "nothing would move");
    check(&["--device", "gpu"], "cuda:1");
    let missing = [("SMARTSWAP_ACL_LIBRARY", "/nowhere/libascendcl.so")];
    let ran = smartswap_in(&missing, &["stress", "--device", "acl"]);
    assert!(ran.refusal().contains("/nowhere/libascendcl.so"), "{}", ran.refusal());
    let one = [("SMARTSWAP_ACL_LIBRARY", library())];
    let ran = smartswap_in(&one, &["stress", "--device", "acl:7"]);
    assert!(ran.refusal().contains("there is no device 7"), "{}", ran.refusal());
    let old = [one[0], ("ACL_STANDIN_VMM", "off")];
    let ran = smartswap_in(&old, &["stress", "--device", "acl"]);
    assert!(ran.refusal().contains("nothing can be swapped"), "{}", ran.refusal());
}
