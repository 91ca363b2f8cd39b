//! Beginning, end, errors, and settings.

use ascendcl::Out;

use crate::rig::*;

#[test]
fn the_library_begins_once_and_ends_once() {
    let _turn = variables(&[]);
    acl!(aclFinalize());
    let mut count = 9;
    ok!(aclrtGetDeviceCount(Out::to(&mut count)));
    assert_eq!(count, 1, "known before the beginning");
    assert!([100_001, 100_037].contains(&acl!(aclrtSetDevice(0))));
    ok!(aclInit(std::ptr::null()));
    refused!(100_002, "already", aclInit(std::ptr::null()));
    ok!(aclrtGetDeviceCount(Out::to(&mut count)));
    assert_eq!(count, 1);
    ok!(aclrtSetDevice(0));
    let host = pinned(1);
    refused!(100_000, "pinned bytes", aclFinalize());
    ok!(aclrtFreeHost(host));
    let mut references = 7;
    ok!(aclFinalizeReference(Out::to(&mut references)));
    assert_eq!(references, 0);
    refused!(100_037, "already", aclFinalize());
    refused!(100_001, "aclInit", aclrtSetDevice(0));
}

#[test]
fn errors_are_kept_until_they_are_read() {
    with(&[], || {
        // The end of an earlier library may have left one.
        ascendcl::aclrtGetLastError(0);
        assert_eq!(ascendcl::aclrtPeekAtLastError(0), 0);
        assert_eq!(acl!(aclrtFree(null())), PARAM);
        assert_eq!(ascendcl::aclrtPeekAtLastError(0), PARAM);
        assert_eq!(ascendcl::aclrtGetLastError(0), PARAM);
        assert_eq!(ascendcl::aclrtGetLastError(0), 0);
        assert!(message().starts_with("aclrtFree: "));
        assert_eq!(message(), "");
        // SAFETY: the name is a string that stays.
        let name = unsafe { std::ffi::CStr::from_ptr(ascendcl::aclrtGetSocName()) };
        assert_eq!(name, c"SmartSwap stand-in");
        let (mut major, mut minor, mut patch) = (0, 0, 9);
        ok!(aclrtGetVersion(Out::to(&mut major), Out::to(&mut minor), Out::to(&mut patch)));
        assert_eq!((major, minor, patch), (1, 17, 0));
    });
}

#[test]
fn settings_are_read() {
    let settings = [
        ("ACL_STANDIN_DEVICES", "3"),
        ("ACL_STANDIN_MEMORY", "1GiB"),
        ("ACL_STANDIN_GRANULARITY", "4MiB"),
    ];
    with(&settings, || {
        let (mut count, mut bytes, mut status) = (0, 0, -1);
        ok!(aclrtGetDeviceCount(Out::to(&mut count)));
        ok!(aclrtGetDeviceInfo(2, 301, Out::to(&mut bytes)));
        ok!(aclrtQueryDeviceStatus(2, Out::to(&mut status)));
        assert_eq!((count, bytes, status), (3, 1 << 30, 0));
        assert_eq!(ledger(2).capacity_bytes, 1 << 30);
        Buffer::new(4 << 20).free();
        assert_eq!(ledger(0).chunk_bytes_peak, 4 << 20);
        ok!(standin_reset_peaks(0));
        assert_eq!(ledger(0).chunk_bytes_peak, 0);
    });
}

#[test]
fn bad_settings_say_how_to_mend_them() {
    let bad = [
        ("ACL_STANDIN_DEVICES", "0", "from 1 to 64"),
        ("ACL_STANDIN_DEVICES", "many", "from 1 to 64"),
        ("ACL_STANDIN_MEMORY", "lots", "24GiB"),
        ("ACL_STANDIN_MEMORY", "0", "must be more"),
        ("ACL_STANDIN_GRANULARITY", "3MiB", "power of two"),
        ("ACL_STANDIN_GRANULARITY", "1MiB", "at least a huge page"),
        ("ACL_STANDIN_LINK", "fast", "24GiB"),
        ("ACL_STANDIN_MODE", "seed:x", "seed:N"),
        ("ACL_STANDIN_MODE", "", "threads, by-time"),
        ("ACL_STANDIN_RESET", "on", "refuses or frees"),
        ("ACL_STANDIN_VMM", "no", "on or off"),
        ("ACL_STANDIN_VA_FLAG", "no", "on or off"),
        ("ACL_STANDIN_HOST_LIMIT", "-1", "24GiB"),
    ];
    for (name, value, expect) in bad {
        let _turn = variables(&[(name, value)]);
        acl!(aclFinalize());
        assert_eq!(acl!(aclInit(std::ptr::null())), 100_000, "{name}={value}");
        let text = message();
        assert!(text.contains(name) && text.contains(expect), "{text}");
    }
}
