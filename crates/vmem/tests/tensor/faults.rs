//! Every driver call of a script fails, once, or with all later ones: the call that was asked for
//! fails with an error, all tensors are as before, and the same script goes through afterwards.

use std::collections::BTreeMap;

use vmem::devices::FaultPlan;
use vmem::{Dtype, ErrorKind, Place, SwapTensor, TensorError, load, save};

use super::bench::Bench;

type Step = (&'static str, fn(&Tensors) -> Result<(), TensorError>);

struct Tensors {
    folder: tempfile::TempDir,
    on_device: SwapTensor,
    to_leave: SwapTensor,
    away: SwapTensor,
    swapped: SwapTensor,
    host: SwapTensor,
    /// What the steps write. After a failure its elements are anything.
    target: SwapTensor,
}

impl Tensors {
    fn new(bench: &Bench) -> Tensors {
        let values: Vec<i32> = (0..2500).collect();
        let make = |place| bench.device.from_slice(place, &[50, 50], &values).expect("room");
        let to_leave = make(Place::Device);
        let left = make(Place::Device);
        assert!(left.swap_out().expect("leaves"));
        Tensors {
            folder: tempfile::tempdir().expect("a folder"),
            on_device: make(Place::Device),
            to_leave,
            away: left,
            swapped: make(Place::Swapped),
            host: make(Place::Host),
            target: make(Place::Device),
        }
    }

    fn all(&self) -> [&SwapTensor; 5] {
        [&self.on_device, &self.to_leave, &self.away, &self.swapped, &self.host]
    }

    fn state(&self) -> Vec<(Place, Vec<u8>)> {
        let all = self.all().into_iter();
        all.map(|it| (it.place(), it.to_bytes().expect("readable"))).collect()
    }
}

const STEPS: [Step; 14] = [
    ("swap out", |t| t.to_leave.swap_out().map(|moved| assert!(moved))),
    ("swap in", |t| t.away.swap_in().map(|moved| assert!(moved))),
    ("clone on the device", |t| t.on_device.try_clone().map(drop)),
    ("clone away", |t| t.away.try_clone().map(drop)),
    ("clone swapped", |t| t.swapped.try_clone().map(drop)),
    ("cpu", |t| t.on_device.cpu().map(drop)),
    ("npu", |t| t.swapped.npu().map(drop)),
    ("convert", |t| t.on_device.to_dtype(Dtype::F64).map(drop)),
    ("fill a view", |t| t.target.select(1, 3)?.fill_(0x0102).map(|_| ())),
    ("zero", |t| t.target.zero_().map(|_| ())),
    ("transpose", |t| t.target.copy_(&t.on_device.transpose(0, 1)?).map(|_| ())),
    ("from away", |t| t.target.copy_(&t.away).map(|_| ())),
    ("save", |t| save(&t.folder.path().join("a"), &[("x", &t.on_device), ("y", &t.swapped)])),
    ("load", |t| {
        let path = t.folder.path().join("b");
        if !path.exists() {
            save(&path, &[("x", &t.host)])?;
        }
        load(&path, t.host.device(), Place::Swapped).map(drop)
    }),
];

/// Takes what is free of the arena's pinned memory, so that the next slot needs more of it.
fn crowd(bench: &Bench) -> Vec<SwapTensor> {
    let free = || {
        bench.device.inspect(|memory| {
            memory.arena.pinned_bytes().current - memory.arena.used_bytes().current
        })
    };
    let mut crowd = Vec::new();
    while free() > 0 {
        let one = bench.device.empty_in(Place::Away, &[4096], Dtype::U8);
        crowd.push(one.expect("there is room"));
    }
    crowd
}

/// Runs a step with its `call`-th driver call failing. Whether one did.
fn run(
    step: Step,
    plan: FaultPlan,
    crowded: bool,
    failed: &mut BTreeMap<&'static str, u64>,
) -> bool {
    let (name, act) = step;
    let bench = Bench::new(plan.call, 1 << 20, 1 << 20);
    bench.device.set_stage_bytes(8192);
    let tensors = Tensors::new(&bench);
    let before = tensors.state();
    let crowd = if crowded { crowd(&bench) } else { vec![] };
    bench.fault.arm(plan);
    let result = act(&tensors);
    let hits = bench.fault.hits();
    bench.fault.disarm();
    for call in hits.keys() {
        *failed.entry(call).or_default() += 1;
    }
    if let Err(error) = result {
        assert!(!hits.is_empty(), "{name}: {error}");
        let of_driver = matches!(error, TensorError::Driver(_) | TensorError::Memory(_));
        assert!(of_driver, "{name}: {error:?}");
        // What was given back half-way goes to the driver only when its copies are over.
        bench.device.trim().expect("trims");
        assert_eq!(tensors.state(), before, "{name}, call {}", plan.call);
        let files = std::fs::read_dir(tensors.folder.path()).expect("readable");
        let left = files.filter(|file| {
            file.as_ref().is_ok_and(|file| file.file_name().to_string_lossy().ends_with(".tmp"))
        });
        assert_eq!(left.count(), 0, "{name}: a file that was not finished is left");
        act(&tensors).expect(name);
    }
    for (index, (_, bytes)) in tensors.state().into_iter().enumerate() {
        assert_eq!(bytes, before[index].1, "{name}, tensor {index}, call {}", plan.call);
    }
    drop((tensors, crowd));
    bench.finish();
    !hits.is_empty()
}

#[test]
fn whatever_call_fails_the_tensors_are_as_before() {
    let mut failed = BTreeMap::new();
    for step in STEPS {
        for plan in [FaultPlan::once, FaultPlan::for_good] {
            let mut call = 1;
            while run(step, plan(call, ErrorKind::Failed), false, &mut failed) {
                call += 1;
                assert!(call < 500, "{} never ends", step.0);
            }
        }
    }
    println!("{failed:?}");
    for call in ["copy", "fill", "map", "create_chunk", "record_event", "synchronize_event"] {
        assert!(failed.get(call).is_some_and(|&count| count > 0), "{call} never failed");
    }
}

#[test]
fn a_host_without_memory_to_pin_is_an_error_that_leaves_everything() {
    let mut failed = BTreeMap::new();
    for step in STEPS {
        for call in ["allocate_pinned", "register_host"] {
            let plan = FaultPlan::for_good(1, ErrorKind::OutOfMemory).only(call);
            run(step, plan, true, &mut failed);
        }
    }
    assert!(failed.values().sum::<u64>() > 5, "hardly anything was pinned: {failed:?}");
}
