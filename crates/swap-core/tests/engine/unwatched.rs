//! Ops that nobody tells of: while the engine is not watched, and once it is again.

use swap_core::{Access, AccessMode, BlockId, Driver, HostFunction, Residency, StreamHandle};

use super::lab::{BLOCK, Lab, read};
use super::world::word;

/// Work on `stream` that no op tells of: it leaves `block` with pattern `tag`.
fn write_unwatched(lab: &Lab, stream: StreamHandle, block: BlockId, tag: u64) {
    let start = lab.engine.address(block).expect("lives");
    let access = Access { start, size_bytes: BLOCK, mode: AccessMode::Write };
    let function = HostFunction {
        name: "unwatched",
        accesses: vec![access],
        cost_us: 500.0,
        body: Box::new(move |given| {
            for (at, is) in given.write::<u64>(0).iter_mut().enumerate() {
                *is = word(tag, at);
            }
        }),
    };
    // SAFETY: nothing leaves while ops are not told of, so the block is there and mapped.
    unsafe { lab.check.launch_host(function, stream) }.expect("launches");
}

#[test]
fn what_nobody_told_of_is_waited_for_and_its_bytes_are_kept() {
    let mut lab = Lab::new(3 * BLOCK);
    let side = lab.check_stream();
    let compute = lab.engine.stream_handles().expect("handles")[0];
    let blocks = [lab.make(1), lab.make(2), lab.make(3)];
    // One that left and came back has a copy on the host, and another a way to be made again.
    lab.swap_out(blocks[0]);
    lab.op(&[read(blocks[0], 1)]).expect("reads");
    lab.engine.free(blocks[2]).expect("lives");
    let derived = lab.derive(&[read(blocks[1], 2)], 4);
    lab.engine.synchronize().expect("works");
    lab.engine.set_watched(false).expect("open");
    // Two streams, one after the other for each block. One block is freed meanwhile.
    write_unwatched(&lab, compute, blocks[0], 11);
    write_unwatched(&lab, side.0, blocks[1], 12);
    write_unwatched(&lab, compute, derived, 14);
    lab.engine.free(blocks[1]).expect("lives");
    // Its memory goes to another stream, which waits for the work.
    let reused = lab.try_make(BLOCK, 5).expect("there is room");
    write_unwatched(&lab, compute, reused, 15);
    lab.engine.set_watched(true).expect("open");
    // Now all of them have to leave, with what was written last.
    let others: Vec<_> =
        (100..107).map(|tag| lab.try_make(BLOCK, tag).expect("there is room")).collect();
    for (block, tag) in [(blocks[0], 11), (derived, 14), (reused, 15)] {
        assert_ne!(lab.state(block), Residency::Resident);
        lab.op(&[read(block, tag)]).expect("reads");
    }
    for (block, tag) in others.into_iter().zip(100..) {
        lab.op(&[read(block, tag)]).expect("reads");
    }
    lab.errors();
    lab.close_with(side.0);
}
