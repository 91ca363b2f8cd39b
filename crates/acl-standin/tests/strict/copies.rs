//! Copies and fills.

use ascendcl::Out;

use crate::rig::*;

#[test]
fn kinds_must_say_where_the_memory_is() {
    with(&[], || {
        let buffer = Buffer::new(UNIT);
        let (device, host) = (buffer.start, pinned(4096));
        let mut own = vec![0_u8; 4096];
        let pageable = own.as_mut_ptr().cast();
        let places = [(device, true), (host, false), (pageable, false)];
        let mut allowed = 0;
        for (to, to_device) in places {
            for (from, from_device) in places {
                // Two pieces of the same memory may not overlap.
                let from = at(from, 1024);
                let due = i32::from(to_device) + 2 * i32::from(from_device);
                for kind in [H2H, H2D, D2H, D2D] {
                    let code = acl!(aclrtMemcpy(to, 512, from, 512, kind));
                    let expect = if kind == due { 0 } else { PARAM };
                    assert_eq!(code, expect, "{kind} for {due}: {}", message());
                    allowed += usize::from(code == 0);
                }
                ok!(aclrtMemcpy(to, 512, from, 512, 4));
            }
        }
        assert_eq!(allowed, 9);
        refused!(PARAM, "not a kind", aclrtMemcpy(host, 1, device, 1, 8));
        ok!(aclrtFreeHost(host));
        buffer.free();
    });
}

#[test]
fn sizes_and_addresses_are_checked() {
    with(&[], || {
        let buffer = Buffer::new(UNIT);
        let (device, host) = (buffer.start, pinned(4096));
        refused!(100_000, "destMax", aclrtMemcpy(device, 99, host, 100, H2D));
        refused!(100_000, "destMax", aclrtMemcpyAsync(device, 99, host, 100, H2D, null()));
        refused!(100_000, "0 bytes", aclrtMemcpy(device, 99, host, 0, H2D));
        refused!(100_000, "no address", aclrtMemcpy(null(), 1, host, 1, H2D));
        refused!(PARAM, "past its memory", aclrtMemcpy(device, 4097, host, 4097, H2D));
        refused!(PARAM, "not all mapped", aclrtMemcpy(at(device, UNIT - 1), 2, host, 2, H2D));
        refused!(PARAM, "overlap", aclrtMemcpy(device, 128, at(device, 64), 128, D2D));
        refused!(100_000, "maxCount", aclrtMemset(device, 1, 0, 2));
        refused!(PARAM, "value of a byte", aclrtMemset(device, 1, 256, 1));
        refused!(PARAM, "value of a byte", aclrtMemsetAsync(device, 1, -1, 1, null()));
        refused!(PARAM, "not all mapped", aclrtMemset(device, UNIT + 1, 0, UNIT + 1));
        ok!(aclrtFreeHost(host));
        buffer.free();
    });
}

#[test]
fn streams_have_rules_of_their_own() {
    in_all_modes(|| {
        let buffer = Buffer::new(UNIT);
        let (device, host, stream) = (buffer.start, pinned(4096), stream());
        let (a, b) = (at(device, 4096), at(device, 64));
        refused!(UNSUPPORTED, "host", aclrtMemcpyAsync(host, 9, at(host, 9), 9, H2H, stream));
        refused!(107_008, "64", aclrtMemcpyAsync(a, 64, at(device, 1), 64, D2D, stream));
        refused!(107_008, "64", aclrtMemcpyAsync(at(a, 32), 64, b, 64, D2D, stream));
        ok!(aclrtMemcpyAsync(a, 64, b, 64, D2D, stream));
        ok!(aclrtMemsetAsync(host, 4096, 6, 4096, stream));
        ok!(aclrtMemcpyAsync(device, 10, host, 10, H2D, stream));
        // Memory that is not pinned makes the call wait.
        let mut own = [0_u8; 10];
        let pageable = own.as_mut_ptr().cast();
        ok!(aclrtMemcpyAsync(pageable, 10, device, 10, D2H, stream));
        assert_eq!(own, [6; 10]);
        let pageable = own.as_mut_ptr().cast();
        refused!(PARAM, "pinned", aclrtMemsetAsync(pageable, 10, 0, 10, stream));
        refused!(BAD_HANDLE, "not a stream", aclrtMemsetAsync(device, 1, 0, 1, at(stream, 4)));
        finish(stream);
        refused!(BAD_HANDLE, "destroyed", aclrtMemsetAsync(device, 1, 0, 1, stream));
        ok!(aclrtFreeHost(host));
        buffer.free();
    });
}

#[test]
fn a_slow_link_slows_copies() {
    with(&[("ACL_STANDIN_MODE", "by-time"), ("ACL_STANDIN_LINK", "1GB/s")], || {
        let buffer = Buffer::new(UNIT);
        let (host, stream) = (pinned(UNIT), stream());
        let (start, end) = (ex_event(TIME_LINE), ex_event(TIME_LINE));
        ok!(aclrtRecordEvent(start, stream));
        ok!(aclrtMemcpyAsync(buffer.start, UNIT, host, UNIT, H2D, stream));
        ok!(aclrtRecordEvent(end, stream));
        ok!(aclrtSynchronizeStream(stream));
        let mut ms = 0.0;
        ok!(aclrtEventElapsedTime(Out::to(&mut ms), start, end));
        assert!((ms - 2.097).abs() < 0.001, "{ms}");
        for event in [start, end] {
            ok!(aclrtDestroyEvent(event));
        }
        finish(stream);
        ok!(aclrtFreeHost(host));
        buffer.free();
    });
}
