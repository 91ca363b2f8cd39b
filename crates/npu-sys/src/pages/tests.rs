//! Sizes, alignment, what is refused, and what forked children get.

use super::*;

use self::forked::{Forked, signal_of_child};

#[path = "../../forked.rs"]
mod forked;

#[test]
fn memory_has_the_asked_size_in_whole_pages_and_starts_aligned() {
    let page = rustix::param::page_size() as u64;
    for (asked, align) in [(1, page), (page, page), (65_536, page), (LARGE_BYTES - 1, page)] {
        let pages = HostPages::new(asked, Touching::default()).expect("there is memory");
        assert_eq!(pages.kind(), PageKind::Small);
        assert_eq!(pages.size_bytes(), asked.next_multiple_of(page));
        assert!(pages.start().0.is_multiple_of(align));
    }
    for asked in [LARGE_BYTES, 3 * LARGE_BYTES + page, 70 << 20] {
        let pages = HostPages::new(asked, Touching::default()).expect("there is memory");
        assert_eq!(pages.size_bytes(), asked, "exact, whatever the page size");
        assert!(pages.start().0.is_multiple_of(LARGE_BYTES));
    }
}

#[test]
fn sizes_beyond_reason_are_errors_and_not_crashes() {
    let new = |size_bytes| HostPages::new(size_bytes, Touching::default());
    assert_eq!(new(0).unwrap_err(), PagesError::BadSize { size_bytes: 0 });
    assert_eq!(new(u64::MAX).unwrap_err(), PagesError::BadSize { size_bytes: u64::MAX });
    // More addresses than a process has.
    let error = new(1 << 60).unwrap_err();
    assert!(
        matches!(error, PagesError::System { call: "mmap", .. } | PagesError::GroupFull { .. }),
        "{error}"
    );
}

#[test]
fn reserved_pages_are_used_only_if_they_are_there_and_fit() {
    let mut memory = HostMemory::default();
    assert!(HostPages::reserved(4 << 20, &memory).is_none(), "there are none");
    memory.huge.page_bytes = Some(2 << 20);
    memory.huge.reserved_free_bytes = 2 << 20;
    assert!(HostPages::reserved(4 << 20, &memory).is_none(), "there are too few");
    memory.huge.reserved_free_bytes = 8 << 20;
    assert!(HostPages::reserved(3 << 20, &memory).is_none(), "half a page would be wasted");
}

/// Maps ordinary memory at addresses that are free; false if somebody else has them already.
fn map_at(start: HostPtr, size_bytes: u64) -> bool {
    let address = std::ptr::with_exposed_provenance_mut(start.0 as usize);
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: nothing that is mapped there is replaced.
    unsafe { mm::mmap_anonymous(address, size_bytes as usize, access, flags) }.is_ok()
}

#[test]
fn a_child_that_drops_its_copy_of_the_value_unmaps_nothing_of_its_own() {
    let pages = HostPages::new(3 * 4096, Touching::default()).expect("there is memory");
    let (start, size_bytes) = (pages.start(), pages.size_bytes());
    let touch = std::ptr::with_exposed_provenance_mut::<u8>(start.0 as usize);
    let signal = signal_of_child(move || {
        if map_at(start, size_bytes) {
            drop(pages);
            // SAFETY: the memory that was mapped just now.
            unsafe { touch.write_volatile(1) };
        } else {
            std::process::abort();
        }
    });
    assert_eq!(signal, None);
}

#[test]
fn children_get_what_is_mapped_later_where_pages_were() {
    // Another test may be faster to take the addresses.
    let reused = (0..1000).any(|_| {
        let pages = HostPages::new(3 * 4096, Touching::default()).expect("there is memory");
        let (start, size_bytes) = (pages.start(), pages.size_bytes());
        assert_eq!(Forked::new().inherited_bytes(start.0, size_bytes), 0);
        drop(pages);
        let mapped = map_at(start, size_bytes);
        if mapped {
            assert_eq!(Forked::new().inherited_bytes(start.0, size_bytes), size_bytes);
            release(start.0 as usize, size_bytes as usize);
        }
        mapped
    });
    assert!(reused);
}

#[test]
fn pinned_memory_is_whole_pages() {
    assert_eq!(rounded_up(1, 4096), Ok(4096));
    assert_eq!(rounded_up(8192, 4096), Ok(8192));
    for size_bytes in [0, u64::MAX, u64::MAX - 4096] {
        let text = rounded_up(size_bytes, 4096).unwrap_err();
        assert_eq!(text, format!("{size_bytes} bytes cannot be pinned"));
    }
    let check = |start, size_bytes| check_whole(HostPtr(start), size_bytes, 4096);
    check(4096, 8192).unwrap();
    let last = u64::MAX - 4095;
    for (start, size_bytes) in [(0, 4096), (4096, 0), (4097, 4096), (4096, 4097), (last, 4096)] {
        assert!(check(start, size_bytes).unwrap_err().ends_with("bytes is not whole pages"));
    }
}
