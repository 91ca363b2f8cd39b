//! Threads: each has its ops and its errors, and all share the memory.

use std::ffi::c_void;
use std::sync::Barrier;
use std::thread;

use super::rig::{
    BLOCK, MIB, OK, Rig, USAGE, assert_fails, begin, check, free, last_error, make,
    smartswap_depth, smartswap_end, smartswap_free, smartswap_moves, smartswap_trim, stats, step,
};

/// An address that can be sent.
#[derive(Clone, Copy)]
struct Sent(usize);

impl Sent {
    fn of(memory: *mut c_void) -> Sent {
        Sent(memory.expose_provenance())
    }

    fn memory(self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.0)
    }
}

#[test]
fn an_op_belongs_to_the_thread_that_began_it() {
    let rig = Rig::open(16 * MIB);
    assert_eq!(begin("mine"), OK);
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(smartswap_depth(), 0);
            assert_fails(smartswap_end(), USAGE, "end without begin");
            assert_eq!(begin("theirs"), OK);
            assert_eq!(begin("inside"), OK);
            assert_eq!(smartswap_depth(), 2);
            // It ends in the middle of its ops, which lets their memory go.
        });
    });
    assert_eq!((smartswap_depth(), last_error()), (1, String::new()), "errors do not travel");
    assert_eq!(smartswap_end(), OK);
    rig.close();
}

#[test]
fn threads_share_a_small_memory_and_keep_their_bytes() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 20;
    let rig = Rig::open(8 * MIB);
    let start = Barrier::new(THREADS as usize);
    let left: Vec<_> = thread::scope(|scope| {
        let start = &start;
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                scope.spawn(move || {
                    let tag = |index: u64| number * 1000 + index;
                    let blocks: Vec<_> =
                        (0..5).map(|index| Sent::of(make(BLOCK, tag(index)))).collect();
                    for _ in 0..ROUNDS {
                        start.wait();
                        for (index, block) in (0..).zip(&blocks) {
                            check(block.memory(), BLOCK, tag(index));
                        }
                        let short = make(BLOCK / 2, tag(99));
                        check(short, BLOCK / 2, tag(99));
                        free(short);
                    }
                    (number, blocks)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("it ends well")).collect()
    });
    step();
    let now = stats();
    // Of twenty blocks eight fit, so twelve or more come back in each round.
    assert!(now.swapped_in_bytes >= 12 * ROUNDS * BLOCK, "{now:?}");
    rig.check_cap();
    // What one thread made another may use and free.
    for (number, blocks) in left {
        for (index, block) in (0..).zip(blocks) {
            check(block.memory(), BLOCK, number * 1000 + index);
            free(block.memory());
        }
    }
    rig.close();
}

#[test]
fn memory_can_be_freed_while_a_thread_ends() {
    thread_local! {
        static LAST: std::cell::Cell<Option<Freed>> = const { std::cell::Cell::new(None) };
    }
    struct Freed(Sent);
    impl Drop for Freed {
        fn drop(&mut self) {
            assert_eq!(smartswap_free(self.0.memory()), OK);
        }
    }
    let rig = Rig::open(8 * MIB);
    thread::scope(|scope| {
        let ends = scope.spawn(|| {
            // Made before the engine's own part of the thread, so it goes after that.
            LAST.set(None);
            LAST.set(Some(Freed(Sent::of(make(BLOCK, 1)))));
        });
        // Only this waits for what the thread leaves behind.
        ends.join().expect("it ends well");
    });
    assert_eq!(stats().requested.current, 0);
    assert_eq!(smartswap_trim(), OK);
    rig.close();
}

#[test]
fn a_thread_that_knew_an_earlier_engine_knows_the_next_one() {
    let rig = Rig::open(4 * MIB);
    free(make(BLOCK, 1));
    rig.close();
    let rig = Rig::open(4 * MIB);
    let others = thread::scope(|scope| {
        scope.spawn(|| (0..6).map(|tag| Sent::of(make(BLOCK, tag))).collect::<Vec<_>>()).join()
    });
    // This thread's part is of the earlier engine until now.
    for block in others.expect("it does not panic") {
        assert_eq!(smartswap_moves(block.memory()), 1);
        free(block.memory());
    }
    rig.close();
}
