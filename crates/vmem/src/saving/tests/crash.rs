//! A save that is cut short, by an error, a kill or a loss of power, at every one of its calls.

use super::model::{Model, Trouble};
use super::*;

const PATH: &str = "/plans/plan.json";
const LEFTOVER: &str = "/plans/.plan.json.4294967295.x.tmp";
const ENOSPC: i32 = 28;
const EIO: i32 = 5;

/// What the file held before, and what it is to hold: more than one write takes.
const OLD: &[u8] = &[1; 500];
const NEW: &[u8] = &[2; 700];

fn disk(trouble: Trouble) -> Model {
    let mut model = Model::with(Path::new(PATH), OLD);
    model.trouble = trouble;
    model
}

/// Saves in two pieces.
fn save_new(model: &mut Model) -> Result<(), SaveError> {
    store::save(model, Path::new(PATH), |write| {
        write(&NEW[..300])?;
        write(&NEW[300..])
    })
}

/// The number of calls of a save that goes well.
fn calls() -> u32 {
    let mut model = disk(Trouble::None);
    save_new(&mut model).expect("nothing fails");
    assert_eq!(model.seen(Path::new(PATH)), Some(NEW));
    assert_eq!(model.file_count(), 1);
    model.calls
}

fn is_old_or_new(bytes: Option<&[u8]>) -> bool {
    bytes == Some(OLD) || bytes == Some(NEW)
}

/// Outcomes of a loss of power that are neither the old file nor the new one.
fn torn(model: &Model) -> usize {
    let outcomes = model.after_power_loss(Path::new(PATH));
    outcomes.iter().filter(|bytes| !is_old_or_new(bytes.as_deref())).count()
}

#[test]
fn a_kill_or_power_loss_at_any_call_leaves_the_old_or_the_new_file() {
    let (mut old, mut new) = (0, 0);
    for stop in 0..=calls() {
        let mut model = disk(Trouble::StopBefore(stop));
        let saved = save_new(&mut model);
        assert_eq!(saved.is_ok(), stop == calls());
        assert!(is_old_or_new(model.seen(Path::new(PATH))), "killed before call {stop}");
        assert_eq!(torn(&model), 0, "power lost before call {stop}");
        match model.seen(Path::new(PATH)) == Some(OLD) {
            true => old += 1,
            false => new += 1,
        }
    }
    assert!(old >= 5 && new >= 2, "{old} old, {new} new");
}

#[test]
fn a_failing_call_leaves_the_old_or_the_new_file_and_nothing_else() {
    let mut failed = 0;
    for code in [ENOSPC, EIO] {
        for call in 0..calls() {
            let mut model = disk(Trouble::FailOnce(call, code));
            match save_new(&mut model) {
                Err(SaveError::Io { source, .. }) => {
                    assert_eq!(source.raw_os_error(), Some(code));
                    failed += 1;
                }
                // Only looking for leftovers may fail without a word.
                Ok(()) => assert_eq!(call, 0),
                other => panic!("{other:?}"),
            }
            assert!(is_old_or_new(model.seen(Path::new(PATH))), "call {call} failed");
            assert_eq!(model.file_count(), 1, "call {call} failed");
            assert_eq!(torn(&model), 0, "call {call} failed, then power was lost");
        }
    }
    assert_eq!(failed, 2 * (calls() - 1));
}

#[test]
fn a_finished_save_survives_a_loss_of_power() {
    let lost = |trouble| {
        let mut model = disk(trouble);
        save_new(&mut model).expect("nothing fails");
        let outcomes = model.after_power_loss(Path::new(PATH));
        outcomes.iter().any(|bytes| bytes.as_deref() != Some(NEW))
    };
    assert!(!lost(Trouble::None));
    assert!(lost(Trouble::NoFolderSync), "the model misses a forgotten sync of the folder");
}

#[test]
fn a_forgotten_sync_is_caught() {
    let mut model = disk(Trouble::NoSync);
    save_new(&mut model).expect("nothing fails");
    assert!(torn(&model) > 0, "the model misses a forgotten sync");
}

#[test]
fn a_killed_save_is_tidied_up_by_the_next_one() {
    let mut model = Model::with(Path::new(LEFTOVER), b"half");
    save_new(&mut model).expect("nothing fails");
    assert_eq!(model.file_count(), 1);
    // Killed before its rename, a save leaves a file behind that is its own while it lives.
    let mut model = disk(Trouble::StopBefore(calls() - 2));
    save_new(&mut model).expect_err("it was killed");
    assert_eq!(model.file_count(), 2);
    model.trouble = Trouble::None;
    save_new(&mut model).expect("nothing fails");
    assert_eq!(model.file_count(), 2, "this process lives");
    model.lives = false;
    save_new(&mut model).expect("nothing fails");
    assert_eq!(model.file_count(), 1);
}
