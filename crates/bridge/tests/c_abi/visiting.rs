//! Visiting shows all memory that lives with its bytes, more of it than fits at once.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::rig::{
    BLOCK, MIB, OK, Rig, Turn, USAGE, assert_fails, assert_holds, check, describe_fault, free,
    make, smartswap_allocate_swapped, smartswap_free_swapped, smartswap_list, smartswap_step,
    smartswap_visit, stats,
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

/// What was listed: start, size in bytes, and whether it is on the device.
type Listed = Vec<(u64, u64, bool)>;

extern "C" fn note(listed: *mut c_void, start: *mut c_void, size_bytes: u64, is_resident: c_int) {
    // SAFETY: the caller passes its own list, which nobody else uses meanwhile.
    let listed = unsafe { &mut *listed.cast::<Listed>() };
    listed.push((start.addr() as u64, size_bytes, is_resident == 1));
}

#[test]
fn a_list_says_what_is_where_and_moves_nothing() {
    let rig = Rig::open(4 * MIB);
    let blocks: Vec<*mut c_void> = (0..7).map(|tag| make(BLOCK, tag)).collect();
    let swapped = smartswap_allocate_swapped(4096, 0);
    assert_eq!(smartswap_step(), OK);
    let before = stats();
    let mut listed = Listed::new();
    // SAFETY: `note` takes a pointer to such a list.
    assert_eq!(unsafe { smartswap_list(Some(note), (&raw mut listed).cast()) }, OK);
    assert_eq!(listed.len(), blocks.len() + 1);
    let resident_bytes: u64 = listed.iter().filter(|found| found.2).map(|found| found.1).sum();
    assert_eq!(resident_bytes, before.active.current);
    assert!(resident_bytes < 7 * BLOCK, "all of it fitted at once");
    assert!(listed.contains(&(swapped.addr() as u64, 4096, false)));
    assert_eq!(smartswap_step(), OK);
    assert_eq!(stats().swapped_in_bytes, before.swapped_in_bytes);
    // SAFETY: there is no lister to call.
    let none = unsafe { smartswap_list(None, ptr::null_mut()) };
    assert_fails(none, USAGE, "the lister is NULL");
    blocks.into_iter().for_each(free);
    assert_eq!(smartswap_free_swapped(swapped, 0), OK);
    rig.close();
}

#[test]
fn a_fault_is_described_where_memory_moves() {
    let rig = Rig::open(4 * MIB);
    let block = make(BLOCK, 1);
    let inside = block.wrapping_byte_add(100);
    let text = describe_fault(inside, 512).expect("it moves");
    assert!(
        text.starts_with("SmartSwap: something used byte 100 of a tensor of 1.0 MiB"),
        "{text}"
    );
    assert!(text.ends_with('\n'));
    assert_eq!(describe_fault(inside, 10).as_deref(), Some("SmartSwap"));
    let small = make(64, 2);
    for address in [small, ptr::null_mut(), block.wrapping_byte_add(BLOCK as usize)] {
        assert_eq!(describe_fault(address, 512), None);
    }
    assert_eq!(describe_fault(inside, 0), None);
    free(block);
    free(small);
    assert_eq!(describe_fault(inside, 512), None);
    rig.close();
    let _turn = Turn::take();
    assert_eq!(describe_fault(inside, 512), None);
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
