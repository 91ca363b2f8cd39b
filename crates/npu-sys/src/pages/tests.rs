//! Sizes, alignment, and what is refused.

use super::*;

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
