//! Training-like steps in far less memory than they use: plans come and go, bytes stay right.

use std::collections::BTreeSet;
use std::ffi::{CString, c_void};
use std::os::unix::fs::{FileTypeExt, symlink};
use std::process::Command;

use super::rig::{
    BLOCK, MIB, OK, READ, READ_WRITE, Rig, Settings, WRITE, assert_holds, begin, check,
    default_settings, fill, free, last_error, make, smartswap_allocate, smartswap_end,
    smartswap_touch, stats, step,
};

const LAYERS: u64 = 12;

/// Weights and what they were updated to.
struct Model {
    weights: Vec<(*mut c_void, u64)>,
}

fn touch(memory: *mut c_void, access: i32) {
    assert_eq!(smartswap_touch(memory, access), OK, "{}", last_error());
}

impl Model {
    fn new() -> Model {
        Model { weights: (0..LAYERS).map(|tag| (make(BLOCK, tag), tag)).collect() }
    }

    /// Activations forward, back over them, weights changed on the way.
    fn train(&mut self, number: u64) {
        let mut activations = Vec::new();
        for &(weight, tag) in &self.weights {
            assert_eq!(begin("forward"), OK, "{}", last_error());
            touch(weight, READ);
            let made = smartswap_allocate(BLOCK, 0);
            assert!(!made.is_null(), "{}", last_error());
            touch(made, WRITE);
            assert_holds(weight, BLOCK, tag);
            fill(made, BLOCK, tag ^ number << 32);
            assert_eq!(smartswap_end(), OK);
            activations.push(made);
        }
        for (weight, tag) in self.weights.iter_mut().rev() {
            let activation = activations.pop().expect("one a layer");
            assert_eq!(begin("backward"), OK, "{}", last_error());
            touch(activation, READ);
            touch(*weight, READ_WRITE);
            assert_holds(activation, BLOCK, *tag ^ number << 32);
            assert_holds(*weight, BLOCK, *tag);
            *tag += 1000;
            fill(*weight, BLOCK, *tag);
            assert_eq!(smartswap_end(), OK);
            free(activation);
        }
        step();
    }

    fn end(self) {
        for (weight, tag) in self.weights {
            check(weight, BLOCK, tag);
            free(weight);
        }
    }
}

/// Trains under a strategy at a third of what is needed, and returns the stages that it was in.
fn train(settings: Settings, steps: u64) -> BTreeSet<u32> {
    let rig = Rig::with(Settings { memory_bytes: 8 * MIB, ..settings });
    let mut model = Model::new();
    let mut stages = BTreeSet::new();
    for number in 0..steps {
        model.train(number);
        stages.insert(stats().stage);
        rig.check_cap();
    }
    let now = stats();
    assert_eq!(now.steps, steps);
    assert!(now.swapped_out_bytes > 4 * steps * BLOCK, "{now:?}");
    assert!(now.swapped_in_bytes > 4 * steps * BLOCK, "{now:?}");
    assert!(now.allocated.peak > 2 * rig.limit_bytes, "{now:?}");
    model.end();
    rig.close();
    stages
}

#[test]
fn bytes_are_right_in_every_stage() {
    let stages = train(default_settings(), 24);
    assert_eq!(stages.into_iter().collect::<Vec<_>>(), [0, 1, 2], "it came to rest");
}

#[test]
fn bytes_are_right_under_every_strategy_and_preference() {
    for strategy in [c"joint", c"swap", c"recompute", c"keep", c"smartswap"] {
        train(Settings { strategy: strategy.as_ptr(), ..default_settings() }, 7);
    }
    train(Settings { prefer: c"memory".as_ptr(), ..default_settings() }, 7);
}

#[test]
fn engines_can_follow_each_other() {
    for _ in 0..3 {
        train(default_settings(), 3);
    }
}

#[test]
fn the_trace_of_a_recorded_step_is_saved_where_it_was_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.json.gz");
    let text = std::ffi::CString::new(path.to_str().expect("UTF-8")).expect("no zero inside");
    train(Settings { record_file: text.as_ptr(), ..default_settings() }, 4);
    assert!(path.metadata().expect("it was saved").len() > 100);
}

/// Set in the child process below: where it saves its recorded steps.
const RECORD_TO: &str = "SMARTSWAP_TEST_RECORD_TO";

/// Run as a child, so that its standard error output can be read.
#[test]
fn a_record_that_cannot_be_saved_is_told_once_and_training_goes_on() {
    if let Some(path) = std::env::var_os(RECORD_TO) {
        let text = CString::new(path.into_encoded_bytes()).expect("no zero inside");
        train(Settings { record_file: text.as_ptr(), ..default_settings() }, 8);
        return;
    }
    let name = "c_abi::pressure::a_record_that_cannot_be_saved_is_told_once_and_training_goes_on";
    let folder = tempfile::tempdir().expect("a folder");
    let [full, missing] = ["full", "none/trace.json"].map(|name| folder.path().join(name));
    // By a link, so that a mistake cannot harm the system's own device.
    symlink("/dev/full", &full).expect("a link");
    for (path, why) in [(&full, "No space left"), (&missing, "No such file")] {
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        child.args(["--exact", name, "--nocapture"]).env(RECORD_TO, path);
        let ended = child.output().expect("it runs");
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{errors}");
        let told: Vec<&str> = errors.lines().filter(|line| line.contains("SmartSwap")).collect();
        assert_eq!(told.len(), 1, "{errors}");
        assert!(told[0].contains(why) && told[0].contains("not saved"), "{errors}");
    }
    let full = full.metadata().expect("it is still there");
    assert!(full.file_type().is_char_device(), "{full:?}");
}
