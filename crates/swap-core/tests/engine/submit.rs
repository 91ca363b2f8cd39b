//! Work that callers submit by themselves is ordered and told to the checker like any other.

use swap_core::devices::HostConfig;
use swap_core::{Access, AccessMode, Driver, DriverError, Error, ErrorKind};

use super::lab::{BLOCK, ENOUGH, Lab, OP};

#[test]
fn submitted_work_gets_its_blocks_and_counts_as_their_use() {
    let mut lab = Lab::with(ENOUGH, ENOUGH, HostConfig::by_time(2 * ENOUGH));
    let side = lab.check_stream();
    let block = lab.make(1);
    lab.order(side.0);
    lab.ops.begin_on(OP, side.1).expect("begins");
    let start = lab.ops.touch(block, AccessMode::ReadWrite).expect("touches");
    let mut given = Vec::new();
    lab.ops
        .submit(|stream, accesses| {
            given.push((stream, accesses.to_vec()));
            Ok(())
        })
        .expect("submits");
    lab.ops.end().expect("ends");
    let access = Access { start, size_bytes: BLOCK, mode: AccessMode::ReadWrite };
    assert_eq!(given, [(side.0, vec![access])]);

    // Nothing orders the compute stream behind that work, and the checker knows of it.
    let compute = lab.engine.stream_handles().expect("handles")[0];
    let race = lab.check.note_access(compute, &[access]).expect_err("is unordered");
    assert_eq!(race.kind, ErrorKind::Race);
    assert_eq!(lab.check.violations().len(), 1);
}

#[test]
fn an_error_of_submitted_work_comes_back_and_needs_an_op() {
    let mut lab = Lab::new(ENOUGH);
    let failure = DriverError {
        call: "launch",
        code: 7,
        text: "no such kernel".into(),
        kind: ErrorKind::Failed,
    };
    let refused = lab.ops.submit(|_, _| Ok(()));
    assert!(matches!(refused, Err(Error::Usage(_))), "{refused:?}");
    lab.ops.begin(OP).expect("begins");
    let returned = lab.ops.submit(|_, _| Err(failure.clone()));
    assert_eq!(returned, Err(failure.into()));
    lab.ops.end().expect("ends");
    lab.finish();
}
