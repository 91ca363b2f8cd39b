//! `max-model`: a larger model trains with swapping, and both rows are real.

use crate::rig::{number, smartswap};

const SIZES: [&str; 6] = ["--hidden", "64", "--heads", "2", "--seq", "64"];

#[test]
fn a_larger_batch_trains_with_swapping() {
    let args = ["max-model", "--memory", "12MiB", "--grow", "batch", "--layers", "3", "--json"];
    let all: Vec<&str> = args.iter().chain(&SIZES).copied().collect();
    let ran = smartswap(&all);
    assert_eq!(ran.stderr, "");
    let object = ran.json();
    let (without, with) = (&object["without_swapping"], &object["with_swapping"]);
    let (small, large) = (number(without, "size"), number(with, "size"));
    assert!(small >= 1 && large > small, "{object}");
    assert_eq!(object["ratio"].as_f64().unwrap(), large as f64 / small as f64);
    for row in [without, with] {
        assert!(number(row, "peak_device_bytes") <= 12 << 20);
        assert!(row["tokens_per_s"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(object["stopped_by"], "device_memory");

    // The next batch does not train, and this one does, by the word of `train`.
    let trains = |batch: u64| {
        let batch = batch.to_string();
        let args = ["train", "--memory", "12MiB", "--batch", &batch, "--steps", "1", "--json"];
        let all: Vec<&str> = args.iter().chain(&["--layers", "3"]).chain(&SIZES).copied().collect();
        smartswap(&all)
    };
    trains(large).json();
    trains(large + 1).refusal();
    // Without swapping means that nothing moved.
    assert_eq!(number(&trains(small).json(), "swapped_out_bytes_per_step"), 0);
    assert!(number(&trains(small + 1).json(), "peak_uncapped_bytes") > 12 << 20);
}

#[test]
fn people_get_a_table() {
    let args = ["max-model", "--memory", "8MiB", "--grow", "batch", "--layers", "1"];
    let all: Vec<&str> = args.iter().chain(&SIZES).copied().collect();
    let ran = smartswap(&all);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for expect in ["without swapping", "with swapping", "tokens/s", "x the batch"] {
        assert!(ran.stdout.contains(expect), "{}", ran.stdout);
    }
}
