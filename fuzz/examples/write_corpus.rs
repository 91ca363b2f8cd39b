//! Writes the corpus that fuzzing starts from: small files of each kind, made by our own writers.

use std::io::Write as _;
use std::path::Path;
use std::{fs, io};

use flate2::Compression;
use flate2::write::GzEncoder;
use policy::synthetic::{RandomShape, random_trace};
use policy::{
    GenerateConfig, Link, Machine, Plan, RecordedConfig, Trace, generate, read_trace, save,
    simulate, write_trace,
};
use serde_json::Value;

/// Ours beside the plain form of recorded steps.
const OWN_KEYS: [&str; 6] =
    ["format", "version", "signature", "step_us", "segment_bytes", "events"];

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for folder in ["recorded", "trace", "plan"] {
        fs::create_dir_all(root.join(folder))?;
    }
    for (seed, ops) in [(1, 2), (2, 4), (3, 8), (4, 12)] {
        let shape = RandomShape { ops, unit_bytes: 8 << 20, ..RandomShape::small() };
        let trace = random_trace(seed, &shape);
        let ours = write_trace(&trace);
        fs::write(root.join(format!("trace/ops{ops}.json")), &ours)?;
        let recorded = as_recorded(&ours);
        let taken = read_trace(recorded.as_bytes(), Path::new(""), &RecordedConfig::default());
        taken.map_err(io::Error::other)?;
        fs::write(root.join(format!("recorded/ops{ops}.json")), &recorded)?;
        if ops == 4 {
            fs::write(root.join("trace/ops4.json.gz"), gzip(&ours)?)?;
            fs::write(root.join("recorded/ops4.json.gz"), gzip(&recorded)?)?;
        }
        save(&root.join(format!("plan/ops{ops}.json")), &plan(&trace)).map_err(io::Error::other)?;
    }
    Ok(())
}

/// The same step in the plain form.
fn as_recorded(ours: &str) -> String {
    let mut file: Value = serde_json::from_str(ours).expect("what we write is JSON");
    let keys = file.as_object_mut().expect("it is an object");
    keys.retain(|key, _| !OWN_KEYS.contains(&key.as_str()));
    file.to_string()
}

fn gzip(text: &str) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text.as_bytes())?;
    encoder.finish()
}

fn plan(trace: &Trace) -> Plan {
    let link = Link { out_bytes_per_us: 5e4, in_bytes_per_us: 5e4, both_bytes_per_us: 4e4 };
    let roomy =
        Machine { limit_bytes: 1 << 50, host_limit_bytes: 1 << 50, link, copy_submit_us: 8.0 };
    let need_bytes = simulate(trace, &Plan::default(), &roomy).resident_bytes_peak;
    let machine = roomy.with_limit(need_bytes / 10 * 7);
    generate(trace, &machine, &GenerateConfig::default(), &[]).plan
}
