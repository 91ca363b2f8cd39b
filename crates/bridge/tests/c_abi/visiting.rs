//! Visiting shows all memory that lives with its bytes, more of it than fits at once.

use std::ffi::c_void;
use std::ptr;

use super::rig::{
    BLOCK, MIB, OK, Rig, Turn, USAGE, assert_fails, assert_holds, check, free, make,
    smartswap_allocate_swapped, smartswap_free_swapped, smartswap_step, smartswap_visit, stats,
};

/// What was visited: start, size in bytes, and the words in it.
type Seen = Vec<(u64, u64, Vec<u64>)>;

extern "C" fn see(seen: *mut c_void, start: *mut c_void, size_bytes: u64) {
    let mut words = vec![0; size_bytes as usize / 8];
    // SAFETY: the memory is on the device while this runs, and `words` is no larger.
    unsafe { ptr::copy_nonoverlapping(start.cast::<u64>(), words.as_mut_ptr(), words.len()) };
    // SAFETY: `visit` passes its own list, which nobody else uses meanwhile.
    let seen = unsafe { &mut *seen.cast::<Seen>() };
    seen.push((start.addr() as u64, size_bytes, words));
}

fn visit() -> Seen {
    let mut seen = Seen::new();
    // SAFETY: `see` takes a pointer to such a list and only reads what it is called with.
    assert_eq!(unsafe { smartswap_visit(Some(see), (&raw mut seen).cast()) }, OK);
    seen
}

#[test]
fn all_memory_is_shown_with_its_bytes() {
    let rig = Rig::open(4 * MIB);
    assert!(visit().is_empty());
    let sizes = [BLOCK, 4096, BLOCK, BLOCK, 24, BLOCK, BLOCK, BLOCK, 80];
    let mut blocks: Vec<(*mut c_void, u64, u64)> =
        (7..).zip(sizes).map(|(tag, size)| (make(size, tag), size, tag)).collect();
    assert_eq!(smartswap_step(), OK);
    let seen = visit();
    blocks.sort_by_key(|block| block.0.addr());
    assert_eq!(seen.len(), blocks.len());
    for ((start, size_bytes, words), block) in seen.iter().zip(&blocks) {
        assert_eq!((*start, *size_bytes), (block.0.addr() as u64, block.1));
        assert_holds(words.as_ptr().cast(), *size_bytes, block.2);
    }
    rig.check_cap();
    for &(memory, size_bytes, tag) in &blocks {
        check(memory, size_bytes, tag);
        free(memory);
    }
    assert_eq!(smartswap_step(), OK);
    assert!(stats().swapped_in_bytes > 0, "all of it fitted at once");
    rig.close();
}

#[test]
fn swapped_memory_is_shown_among_the_rest() {
    let rig = Rig::open(4 * MIB);
    let (block, swapped) = (make(BLOCK, 7), smartswap_allocate_swapped(4096, 0));
    // SAFETY: fresh memory of that length on the host device.
    unsafe { swapped.cast::<u64>().write(20) };
    let seen = visit();
    let found = |memory: *mut c_void| {
        let at = |seen: &&(u64, u64, Vec<u64>)| seen.0 == memory.addr() as u64;
        seen.iter().find(at).expect("it lives")
    };
    assert_eq!(seen.len(), 2);
    assert!(seen[0].0 < seen[1].0, "by address");
    assert_eq!((found(swapped).1, found(swapped).2[0], found(block).1), (4096, 20, BLOCK));
    free(block);
    assert_eq!(smartswap_free_swapped(swapped, 0), OK);
    rig.close();
}

#[test]
fn a_visit_needs_a_visitor_and_an_engine() {
    let rig = Rig::open(4 * MIB);
    // SAFETY: there is no visitor to call.
    let none = unsafe { smartswap_visit(None, ptr::null_mut()) };
    assert_fails(none, USAGE, "the visitor is NULL");
    rig.close();
    let _turn = Turn::take();
    // SAFETY: nothing lives, so nobody is called.
    assert_fails(unsafe { smartswap_visit(Some(see), ptr::null_mut()) }, USAGE, "not open");
}
