//! tmp
use policy::*;
use std::path::Path;
#[test]
fn ratios() {
    let mut files: Vec<_> = std::fs::read_dir("/work/shared/traces")
        .unwrap()
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == "gz"))
        .collect();
    files.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/nanogpt.json.gz"));
    files.sort();
    for file in files {
        let only = std::env::var("TMP_ONLY").unwrap_or_default();
        if !file.to_str().unwrap().contains(&only) {
            continue;
        }
        let trace = load_trace(&file, &RecordedConfig::default()).unwrap();
        let link = Link {
            out_bytes_per_us: 55_300.0,
            in_bytes_per_us: 55_300.0,
            both_bytes_per_us: 49_500.0,
        };
        let machine = |limit_bytes| Machine {
            limit_bytes,
            host_limit_bytes: 1 << 50,
            link,
            copy_submit_us: 8.0,
        };
        let peak = simulate(&trace, &Plan::default(), &machine(1 << 50)).resident_bytes_peak;
        for percent in [100u64, 85, 70, 55] {
            for recompute in [false, true] {
                if percent == 100 && recompute {
                    continue;
                }
                let options: Vec<_> = replayable_blocks(&trace)
                    .into_iter()
                    .filter(|_| recompute)
                    .map(|one| RecomputeOption { block: one.block, replay_us: one.device_us })
                    .collect();
                let config = GenerateConfig { effort: 1, ..GenerateConfig::default() };
                let plan = if percent == 100 {
                    Plan::default()
                } else {
                    let made = generate(&trace, &machine(peak * percent / 100), &config, &options);
                    if made.infeasible.is_some() {
                        println!("{file:?} {percent} {recompute}: no plan");
                        continue;
                    }
                    made.plan
                };
                for (name, limit) in [("tight", peak * percent / 100), ("least", 0)] {
                    let t = std::time::Instant::now();
                    let layout = lay_out(&trace, &plan, &machine(limit));
                    let used = layout.lots.iter().flatten().count();
                    println!(
                        "{:?} {percent} {recompute} {name}: ratio {:.4} excess {:.4} step {:.0} of {used} lots {:.2} s",
                        file.file_name().unwrap(),
                        layout.ratio(),
                        layout.excess_bytes(limit) as f64 / limit.max(1) as f64,
                        layout.step_us,
                        t.elapsed().as_secs_f64()
                    );
                }
            }
        }
    }
}
