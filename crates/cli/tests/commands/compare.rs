//! `compare`: every strategy on the same recorded step, as table, object and drawing.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::rig::{number, smartswap};

const LAYERS: u64 = 6;
const TENSOR_BYTES: u64 = 64 << 20;

/// A step as a framework records it: layers of attention and a product, and their backward.
fn record(path: &Path) {
    let mut ops: Vec<Value> = Vec::new();
    let mut tensors: Vec<[i64; 2]> = vec![[-1, -1]];
    let op = |name: &str, reads: &[usize], outputs: &[usize]| {
        json!({"name": name, "depth": 0, "us": 2500.0, "reads": reads, "writes": [],
               "outputs": outputs})
    };
    let mut saved: Vec<[usize; 2]> = Vec::new();
    let mut input = 0;
    for _ in 0..LAYERS {
        let mut layer = [0; 2];
        for (slot, name) in ["aten::scaled_dot_product_attention", "aten::mm"].iter().enumerate() {
            ops.push(op(name, &[input, 0], &[tensors.len()]));
            input = tensors.len();
            layer[slot] = input;
            tensors.push([ops.len() as i64, -1]);
        }
        saved.push(layer);
    }
    for layer in saved.into_iter().rev() {
        for (name, tensor) in [("MmBackward0", layer[1]), ("AttentionBackward0", layer[0])] {
            let name = format!("autograd::engine::evaluate_function: {name}");
            ops.push(op(&name, &[tensor, 0], &[]));
            tensors[tensor][1] = ops.len() as i64;
        }
    }
    ops.push(op("aten::_fused_adamw_", &[0], &[]));
    let tensor =
        |&[alloc, free]: &[i64; 2]| json!({"bytes": TENSOR_BYTES, "alloc": alloc, "free": free});
    let tensors: Vec<Value> = tensors.iter().map(tensor).collect();
    let file = json!({"meta": {"step_ms": 65.0}, "ops": ops, "tensors": tensors});
    fs::write(path, file.to_string()).expect("it can be written");
}

const STRATEGIES: [&str; 10] = [
    "keep",
    "vdnn",
    "capuchin",
    "smartswap-v1",
    "smartswap-v1-measured",
    "smartswap-v2",
    "smartswap-v2-measured",
    "full-recompute",
    "swap",
    "joint",
];

#[test]
fn ours_are_at_or_below_all_others_on_every_budget() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.json");
    record(&path);
    let ran = smartswap(&["compare", path.to_str().unwrap(), "--memory", "80%", "50%", "--json"]);
    let object = ran.json();
    let contests = object["contests"].as_array().unwrap();
    assert_eq!(contests.len(), 2);
    for (contest, percent) in contests.iter().zip([80, 50]) {
        let peak_bytes = number(contest, "peak_before_bytes");
        assert_eq!(number(contest, "budget_bytes"), peak_bytes * percent / 100);
        let rows = contest["strategies"].as_array().unwrap();
        let names: Vec<&str> = rows.iter().map(|row| row["strategy"].as_str().unwrap()).collect();
        assert_eq!(names, STRATEGIES);
        let step_us = |row: &Value| row["step_us"].as_f64().unwrap();
        for row in rows {
            assert!(row["fits"] == true && row["infeasible"] == Value::Null, "{row}");
            assert!(number(row, "peak_bytes") <= number(contest, "budget_bytes"), "{row}");
            for ours in &rows[8..] {
                assert!(step_us(ours) <= step_us(row) + 1e-6, "{ours} {row}");
            }
        }
        for ours in &rows[8..] {
            let gap = ours["gap_fraction"].as_f64().unwrap();
            assert_eq!(ours["gap_reason"].is_string(), gap > 0.03, "{ours}");
        }
        assert_eq!(rows[1]["gap_fraction"], Value::Null);
        // Without a plan the step has to wait, and somebody does better.
        assert!(number(&rows[0], "rescues") > 0 && step_us(&rows[9]) < step_us(&rows[0]));
    }
}

#[test]
fn people_get_a_table_for_each_budget_and_a_drawing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.json");
    record(&path);
    let plot = folder.path().join("plot.svg");
    let ran = smartswap(&[
        "compare",
        path.to_str().unwrap(),
        "--memory",
        "70%,1MiB",
        "--plot",
        plot.to_str().unwrap(),
    ]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert_eq!(ran.stdout.matches("small: a budget of").count(), 2);
    for name in STRATEGIES {
        let rows = ran.stdout.lines().filter(|line| line.split(' ').next() == Some(name));
        let rows: Vec<&str> = rows.collect();
        assert_eq!(rows.len(), 2, "{name}: {}", ran.stdout);
        assert!(rows[0].contains("yes") && rows[1].contains("short"), "{rows:?}");
    }
    let drawing = fs::read_to_string(&plot).unwrap();
    assert_eq!(drawing.matches("<polyline").count(), STRATEGIES.len());
}

#[test]
fn a_request_that_cannot_be_met_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.json");
    fs::write(&path, "{}").unwrap();
    let path = path.to_str().unwrap();
    assert!(smartswap(&["compare", path, "--memory", "50%"]).refusal().contains("small.json"));
    assert!(smartswap(&["compare", path]).refusal().contains("--memory"));
    assert!(smartswap(&["compare", path, "--memory", "x%"]).refusal().contains("60%"));
    assert!(smartswap(&["compare", "--memory", "50%"]).refusal().contains("TRACE"));
}
