//! The symbols for pluggable allocators, called as the frameworks do.

use std::ptr;

use super::rig::{
    BLOCK, MIB, OK, READ, Rig, assert_holds, base_alloc, begin, fill, last_error, smartswap_delete,
    smartswap_end, smartswap_init, smartswap_malloc, smartswap_memory_fraction,
    smartswap_record_stream, smartswap_reset, smartswap_reset_peak_status, smartswap_touch, stats,
};

#[test]
fn a_frameworks_allocator_lives_on_them() {
    let rig = Rig::open(4 * MIB);
    smartswap_init(1);
    let blocks: Vec<_> = (0..8)
        .map(|tag| {
            assert_eq!(begin("framework"), OK);
            let memory = smartswap_malloc(BLOCK as usize, 0, ptr::null_mut());
            assert!(!memory.is_null(), "{}", last_error());
            assert_eq!(smartswap_touch(memory, 3), OK);
            fill(memory, BLOCK, tag);
            assert_eq!(smartswap_end(), OK);
            memory
        })
        .collect();
    for (tag, &memory) in blocks.iter().enumerate() {
        let mut size_bytes = 0;
        let inside = memory.wrapping_byte_add(4096);
        assert_eq!(base_alloc(inside, Some(&mut size_bytes)), memory);
        assert_eq!(size_bytes as u64, BLOCK);
        smartswap_record_stream(memory, ptr::null_mut());
        assert_eq!(begin("framework"), OK);
        assert_eq!(smartswap_touch(memory, READ), OK);
        assert_holds(memory, BLOCK, tag as u64);
        assert_eq!(smartswap_end(), OK);
    }
    assert!(stats().requested.peak >= 8 * BLOCK);
    for memory in blocks {
        smartswap_delete(memory, BLOCK as usize, 0, ptr::null_mut());
    }
    smartswap_reset();
    assert_eq!(stats().reserved.current, 0, "empty_cache gave it all back");
    smartswap_reset_peak_status(0);
    assert_eq!(stats().requested.peak, 0);
    rig.close();
}

#[test]
fn what_they_cannot_do_they_say() {
    let rig = Rig::open(4 * MIB);
    assert!(smartswap_malloc(0, 0, ptr::null_mut()).is_null(), "no bytes, no memory");
    smartswap_delete(ptr::null_mut(), 0, 0, ptr::null_mut());
    assert!(smartswap_malloc(64 * MIB as usize, 0, ptr::null_mut()).is_null());
    assert!(last_error().contains("64.0 MiB asked for"), "{}", last_error());
    smartswap_memory_fraction(0.5, 0);
    assert!(last_error().contains("a memory fraction is not taken"), "{}", last_error());
    let foreign = ptr::from_ref(&0u64).cast_mut().cast();
    let mut size_bytes = 7;
    assert!(base_alloc(foreign, Some(&mut size_bytes)).is_null());
    assert_eq!(size_bytes, 7, "nothing was written");
    smartswap_record_stream(foreign, ptr::null_mut());
    assert!(last_error().contains("lies in no live allocation"), "{}", last_error());
    smartswap_delete(foreign, 8, 0, ptr::null_mut());
    assert!(last_error().contains("is not a live allocation"), "{}", last_error());
    smartswap_record_stream(ptr::null_mut(), ptr::null_mut());
    rig.close();
}
