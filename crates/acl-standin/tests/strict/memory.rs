//! Device memory, host memory, addresses: the happy path and each refusal.

use ascendcl::{AclrtMemAccessDesc, AclrtPhysicalMemProp, AclrtPtrAttributes, In, Opaque, Out};

use crate::rig::*;

#[test]
fn bytes_go_in_and_out_and_nothing_is_left() {
    in_all_modes(|| {
        let (start, handle) = (reserved(4 * UNIT), physical(UNIT));
        let middle = at(start, UNIT);
        ok!(aclrtMapMem(middle, UNIT, 0, handle, 0));
        let (stream, host) = (stream(), pinned(UNIT));
        let event = ex_event(SYNC);
        ok!(aclrtMemsetAsync(middle, UNIT, 0xA5, UNIT, stream));
        ok!(aclrtMemcpyAsync(host, UNIT, middle, UNIT, D2H, stream));
        ok!(aclrtRecordEvent(event, stream));
        ok!(aclrtSynchronizeEvent(event));
        assert!(bytes(host, UNIT).iter().all(|&byte| byte == 0xA5));
        write(host, &[1, 2, 3]);
        ok!(aclrtMemcpyAsync(at(middle, 10), 3, host, 3, H2D, stream));
        ok!(aclrtMemcpyAsync(at(host, 100), 16, at(middle, 8), 16, D2H, stream));
        ok!(aclrtSynchronizeStream(stream));
        assert_eq!(bytes(at(host, 100), 6), [0xA5, 0xA5, 1, 2, 3, 0xA5]);

        let now = ledger(0);
        assert_eq!(
            (now.chunk_bytes, now.chunk_count, now.mapped_bytes),
            (UNIT as u64, 1, UNIT as u64)
        );
        assert_eq!((now.reserved_bytes, now.pinned_bytes), (4 * UNIT as u64, UNIT as u64));
        assert_eq!((now.stream_count, now.event_count), (1, 1));
        assert_eq!((now.copied_in_bytes, now.copied_out_bytes), (3, UNIT as u64 + 16));
        ok!(aclrtDestroyEvent(event));
        ok!(aclrtUnmapMem(middle));
        ok!(aclrtFreePhysical(handle));
        ok!(aclrtReleaseMemAddress(start));
        ok!(aclrtFreeHost(host));
        ok!(aclrtDestroyStream(stream));
    });
}

#[test]
fn a_handle_is_the_same_bytes_at_all_its_addresses() {
    with(&[], || {
        let buffer = Buffer::new(UNIT);
        let second = reserved(UNIT);
        ok!(aclrtMapMem(second, UNIT, 0, buffer.handle, 0));
        ok!(aclrtMemset(buffer.start, UNIT, 7, 100));
        let mut host = [0_u8; 100];
        let host_at = host.as_mut_ptr().cast();
        ok!(aclrtMemcpy(host_at, 100, second, 100, D2H));
        assert_eq!(host, [7; 100]);
        refused!(PARAM, "mapped 2 times", aclrtFreePhysical(buffer.handle));
        ok!(aclrtUnmapMem(second));
        ok!(aclrtReleaseMemAddress(second));
        let mut retained = null();
        ok!(aclrtMemRetainAllocationHandle(buffer.start, Out::to(&mut retained)));
        assert_eq!(retained, buffer.handle);
        ok!(aclrtFreePhysical(retained));
        let mut property_back = AclrtPhysicalMemProp::default();
        ok!(aclrtMemGetAllocationPropertiesFromHandle(retained, Out::to(&mut property_back)));
        assert_eq!(property_back, property());
        buffer.free();
    });
}

#[test]
fn a_thread_needs_a_device() {
    with(&[], || {
        let buffer = Buffer::new(UNIT);
        let start = buffer.start.expose_provenance();
        std::thread::spawn(move || {
            let start: Opaque = std::ptr::with_exposed_provenance_mut(start);
            let (mut device, mut pointer) = (0, null());
            refused!(NO_DEVICE, "aclrtSetDevice", aclrtGetDevice(Out::to(&mut device)));
            refused!(NO_DEVICE, "no device", aclrtUnmapMem(start));
            refused!(NO_DEVICE, "no device", aclrtMallocHost(Out::to(&mut pointer), 1));
            refused!(NO_DEVICE, "no device", aclrtSynchronizeStream(null()));
            refused!(NO_DEVICE, "no device", aclrtFreeHost(start));
            refused!(107_001, "no device 1", aclrtSetDevice(1));
            refused!(107_001, "no device -1", aclrtSetDevice(-1));
            ok!(aclrtSetDevice(0));
            ok!(aclrtMemset(start, UNIT, 1, UNIT));
            // The text is this thread's own.
            assert_eq!(message(), "");
        })
        .join()
        .unwrap();
        buffer.free();
    });
}

#[test]
fn a_reset_ends_the_device_of_every_thread() {
    with(&[], || {
        let host = pinned(1);
        refused!(PARAM, "4096 pinned bytes", aclrtResetDevice(0));
        ok!(aclrtFreeHost(host));
        ok!(aclrtResetDevice(0));
        refused!(PARAM, "was not set", aclrtResetDevice(0));
        refused!(NO_DEVICE, "no device", aclrtSynchronizeDevice());
        ok!(aclrtSetDevice(0));
        ok!(aclrtSynchronizeDevice());
    });
}

#[test]
fn addresses_are_reserved_by_the_rules() {
    with(&[], || {
        let mut start = null();
        let here = std::ptr::without_provenance_mut(1 << 40);
        refused!(
            100_000,
            "virPtr is null",
            aclrtReserveMemAddress(Out::null(), UNIT, 0, null(), 1)
        );
        refused!(
            PARAM,
            "multiple of 2097152",
            aclrtReserveMemAddress(Out::to(&mut start), UNIT + 1, 0, null(), 1)
        );
        refused!(PARAM, "multiple", aclrtReserveMemAddress(Out::to(&mut start), 0, 0, null(), 1));
        refused!(
            PARAM,
            "alignment is 64",
            aclrtReserveMemAddress(Out::to(&mut start), UNIT, 64, null(), 1)
        );
        refused!(PARAM, "expectPtr", aclrtReserveMemAddress(Out::to(&mut start), UNIT, 0, here, 1));
        refused!(
            PARAM,
            "flags are 2",
            aclrtReserveMemAddress(Out::to(&mut start), UNIT, 0, null(), 2)
        );
        let start = reserved(2 * UNIT);
        refused!(PARAM, "not the start", aclrtReleaseMemAddress(at(start, UNIT)));
        let handle = physical(UNIT);
        ok!(aclrtMapMem(at(start, UNIT), UNIT, 0, handle, 0));
        refused!(PARAM, "still mapped", aclrtReleaseMemAddress(start));
        ok!(aclrtUnmapMem(at(start, UNIT)));
        ok!(aclrtReleaseMemAddress(start));
        refused!(PARAM, "not the start", aclrtReleaseMemAddress(start));
        ok!(aclrtFreePhysical(handle));
    });
}

#[test]
fn physical_memory_is_asked_for_by_the_rules() {
    with(&[("ACL_STANDIN_MEMORY", "8MiB"), ("ACL_STANDIN_DEVICES", "2")], || {
        let ask = |property: AclrtPhysicalMemProp, size: usize, flags: u64| {
            let mut handle = null();
            acl!(aclrtMallocPhysical(Out::to(&mut handle), size, In::from(&property), flags))
        };
        assert_eq!(ask(property(), UNIT + 4096, 0), PARAM);
        assert_eq!(ask(property(), 0, 0), PARAM);
        assert_eq!(ask(property(), UNIT, 1), PARAM);
        assert_eq!(ask(property(), 5 * UNIT, 0), OUT_OF_MEMORY);
        assert_eq!(ask(AclrtPhysicalMemProp { handle_type: 2, ..property() }, UNIT, 0), PARAM);
        assert_eq!(ask(AclrtPhysicalMemProp { allocation_type: 1, ..property() }, UNIT, 0), PARAM);
        assert_eq!(ask(AclrtPhysicalMemProp { reserve: 1, ..property() }, UNIT, 0), PARAM);
        assert_eq!(ask(AclrtPhysicalMemProp { mem_attr: 10, ..property() }, UNIT, 0), UNSUPPORTED);
        let mut elsewhere = property();
        elsewhere.location.kind = 4;
        assert_eq!(ask(elsewhere, UNIT, 0), UNSUPPORTED);
        elsewhere = property();
        elsewhere.location.id = 2;
        assert_eq!(ask(elsewhere, UNIT, 0), 107_001);
        assert_eq!(held(0).chunk_count, 0);

        let handles = [physical(3 * UNIT), physical(UNIT)];
        assert_eq!(ask(property(), UNIT, 0), OUT_OF_MEMORY);
        let (mut free, mut total) = (1, 1);
        ok!(aclrtGetMemInfo(1, Out::to(&mut free), Out::to(&mut total)));
        assert_eq!((free, total), (0, 4 * UNIT));
        refused!(107_016, "HBM", aclrtGetMemInfo(0, Out::to(&mut free), Out::to(&mut total)));
        for handle in handles {
            ok!(aclrtFreePhysical(handle));
            refused!(PARAM, "or freed", aclrtFreePhysical(handle));
        }
        let mut granularity = 0;
        let property = property();
        let asked = In::from(&property);
        ok!(aclrtMemGetAllocationGranularity(asked, 1, Out::to(&mut granularity)));
        assert_eq!(granularity, UNIT);
    });
}

#[test]
fn mapping_takes_whole_handles_and_unmapping_starts() {
    with(&[("ACL_STANDIN_DEVICES", "2")], || {
        let (start, handle) = (reserved(4 * UNIT), physical(2 * UNIT));
        refused!(PARAM, "offset is", aclrtMapMem(start, UNIT, UNIT, handle, 0));
        refused!(PARAM, "size", aclrtMapMem(start, UNIT, 0, handle, 0));
        refused!(PARAM, "flags", aclrtMapMem(start, 2 * UNIT, 0, handle, 1));
        refused!(PARAM, "aligned", aclrtMapMem(at(start, 4096), 2 * UNIT, 0, handle, 0));
        refused!(PARAM, "reserved", aclrtMapMem(at(start, 3 * UNIT), 2 * UNIT, 0, handle, 0));
        ok!(aclrtMapMem(at(start, UNIT), 2 * UNIT, 0, handle, 0));
        refused!(PARAM, "already", aclrtMapMem(start, 2 * UNIT, 0, handle, 0));
        refused!(PARAM, "not the start of a mapping", aclrtUnmapMem(start));
        refused!(PARAM, "not the start of a mapping", aclrtUnmapMem(at(start, 2 * UNIT)));

        let mut access = AclrtMemAccessDesc { flags: 3, ..AclrtMemAccessDesc::default() };
        access.location = property().location;
        let mapped = at(start, UNIT);
        let (one, size) = (In::from(&access), 2 * UNIT);
        refused!(PARAM, "owns the memory", aclrtMemSetAccess(mapped, size, one, 1));
        access.location.id = 1;
        let one = In::from(&access);
        refused!(UNSUPPORTED, "reaches", aclrtMemSetAccess(mapped, size, one, 1));

        ok!(aclrtSetDevice(1));
        refused!(PARAM, "device is 0", aclrtUnmapMem(mapped));
        refused!(PARAM, "on device 0", aclrtMemset(mapped, 1, 0, 1));
        ok!(aclrtSetDevice(0));
        ok!(aclrtUnmapMem(mapped));
        refused!(PARAM, "not the start", aclrtUnmapMem(mapped));
        ok!(aclrtFreePhysical(handle));
        ok!(aclrtReleaseMemAddress(start));
    });
}

#[test]
fn device_memory_is_freed_once_by_its_start() {
    with(&[("ACL_STANDIN_MEMORY", "8MiB")], || {
        let mut start = null();
        refused!(100_000, "0 bytes", aclrtMalloc(Out::to(&mut start), 0, 0));
        refused!(107_018, "policy", aclrtMalloc(Out::to(&mut start), 1, 6));
        refused!(OUT_OF_MEMORY, "asked", aclrtMalloc(Out::to(&mut start), 4 * UNIT, 0));
        ok!(aclrtMallocAlign32(Out::to(&mut start), 4 * UNIT, 0));
        ok!(aclrtFree(start));
        ok!(aclrtMalloc(Out::to(&mut start), 100, 0x1000));
        ok!(aclrtMemset(start, 100, 3, 100));
        refused!(PARAM, "past the 100 bytes", aclrtMemset(start, 101, 3, 101));
        let (mut base, mut size) = (null(), 0);
        let within = at(start, 50);
        ok!(aclrtMemGetAddressRange(within, Out::to(&mut base), Out::to(&mut size)));
        assert_eq!((base, size), (start, 100));
        refused!(PARAM, "not what aclrtMalloc", aclrtFree(within));
        ok!(aclrtFree(start));
        refused!(PARAM, "not what aclrtMalloc", aclrtFree(start));
    });
}

/// Whole pages inside a vector, and the vector.
fn foreign(size: usize) -> (Vec<u8>, Opaque) {
    let mut owner = vec![9_u8; size + 4096];
    let start = owner.as_mut_ptr();
    let offset = start.align_offset(4096);
    (owner, start.wrapping_add(offset).cast())
}

#[test]
fn registered_memory_has_a_second_address() {
    with(&[], || {
        let size = 1 << 20;
        let (_owner, host) = foreign(size);
        let mut device = null();
        ok!(aclrtHostRegister(host, size as u64, 0, Out::to(&mut device)));
        assert_ne!(device, host, "the same address");
        assert_eq!(bytes(host, size), vec![9; size]);
        write(at(host, 5000), &[1, 2, 3]);
        assert_eq!(bytes(at(device, 4999), 5), [9, 1, 2, 3, 9]);
        let mut again = null();
        ok!(aclrtHostGetDevicePointer(host, Out::to(&mut again), 0));
        assert_eq!(again, device);

        let buffer = Buffer::new(UNIT);
        ok!(aclrtMemcpy(buffer.start, UNIT, host, size, H2D));
        let (to, stream) = (buffer.start, stream());
        refused!(PARAM, "VA flag", aclrtMemcpy(to, UNIT, device, 64, H2D));
        refused!(PARAM, "VA flag", aclrtMemcpyAsync(to, UNIT, device, 64, D2D, stream));
        refused!(PARAM, "VA flag", aclrtMemsetAsync(device, 1, 0, 1, stream));
        refused!(PARAM, "VA flag", aclrtMemset(at(device, size - 1), 1, 0, 1));
        refused!(PARAM, "flag is 1", aclrtHostGetDevicePointer(host, Out::to(&mut again), 1));
        refused!(507_911, "start", aclrtHostGetDevicePointer(device, Out::to(&mut again), 0));
        refused!(507_911, "host address", aclrtHostUnregister(device));
        refused!(507_910, "overlaps", aclrtHostRegister(host, 1, 0, Out::to(&mut again)));
        assert_eq!(held(0).registered_bytes, size as u64);
        ok!(aclrtHostUnregister(host));
        refused!(507_911, "host address", aclrtHostUnregister(host));
        assert_eq!(bytes(at(host, 4999), 5), [9, 1, 2, 3, 9]);
        // It is shared memory now, and stays the caller's.
        ok!(aclrtHostRegister(host, 4096, 0, Out::to(&mut device)));
        assert_eq!(bytes(device, 4096), vec![9; 4096]);
        ok!(aclrtHostUnregister(host));
        finish(stream);
        buffer.free();
    });
}

#[test]
fn registering_asks_for_whole_memory() {
    with(&[("ACL_STANDIN_HOST_LIMIT", "64KiB")], || {
        let (_owner, host) = foreign(1 << 20);
        let mut device = null();
        let out = || Out::null();
        refused!(100_000, "devPtr is null", aclrtHostRegister(host, 4096, 0, out()));
        let odd = at(host, 64);
        refused!(107_008, "4096", aclrtHostRegister(odd, 4096, 0, Out::to(&mut device)));
        refused!(100_000, "no memory", aclrtHostRegister(host, 0, 0, Out::to(&mut device)));
        refused!(UNSUPPORTED, "type 4", aclrtHostRegister(host, 4096, 4, Out::to(&mut device)));
        refused!(OUT_OF_MEMORY, "", aclrtHostRegister(host, 1 << 20, 0, Out::to(&mut device)));
        let nowhere = std::ptr::without_provenance_mut(4096);
        refused!(
            PARAM,
            "not all mapped",
            aclrtHostRegister(nowhere, 4096, 0, Out::to(&mut device))
        );
        let start = reserved(UNIT);
        refused!(PARAM, "not host", aclrtHostRegister(start, 4096, 0, Out::to(&mut device)));
        ok!(aclrtReleaseMemAddress(start));
        assert_eq!(held(0).registered_bytes, 0);

        ok!(aclrtHostRegisterV2(host, 4096, 0x1000_0000));
        refused!(PARAM, "MAPPED", aclrtHostGetDevicePointer(host, Out::to(&mut device), 0));
        ok!(aclrtHostUnregister(host));
        ok!(aclrtHostRegisterV2(host, 4096, 0x1000_0002));
        ok!(aclrtHostGetDevicePointer(host, Out::to(&mut device), 0));
        ok!(aclrtHostUnregister(host));
        refused!(UNSUPPORTED, "flags 0x8", aclrtHostRegisterV2(host, 4096, 8));
    });
}

#[test]
fn pinned_memory_is_the_devices_only_when_registered_or_shared() {
    with(&[], || {
        let host = pinned(10_000);
        let mut device = null();
        refused!(507_911, "registered", aclrtHostGetDevicePointer(host, Out::to(&mut device), 0));
        write(host, &[5; 10_000]);
        ok!(aclrtHostRegister(at(host, 4096), 4096, 0, Out::to(&mut device)));
        assert_ne!(device, at(host, 4096));
        assert_eq!(bytes(device, 4096), [5; 4096]);
        assert_eq!(held(0).registered_bytes, 0, "pinned bytes count once");
        refused!(PARAM, "still registered", aclrtFreeHost(host));
        refused!(PARAM, "VA flag", aclrtMemset(device, 1, 0, 1));
        ok!(aclrtHostUnregister(at(host, 4096)));
        refused!(PARAM, "not what aclrtMallocHost", aclrtFreeHost(at(host, 4096)));
        refused!(PARAM, "goes 1 bytes past", aclrtMemset(host, 10_001, 0, 10_001));
        ok!(aclrtFreeHost(host));
        refused!(PARAM, "not what aclrtMallocHost", aclrtFreeHost(host));
        refused!(100_000, "0 bytes", aclrtMallocHost(Out::to(&mut device), 0));

        let shared = shared();
        let buffer = Buffer::new(UNIT);
        ok!(aclrtMemset(buffer.start, UNIT, 4, UNIT));
        ok!(aclrtMemcpyAsync(shared, 4096, buffer.start, 4096, D2D, null()));
        ok!(aclrtMemcpyAsync(at(buffer.start, 64), 64, shared, 64, H2D, null()));
        ok!(aclrtSynchronizeStream(null()));
        assert_eq!(bytes(shared, 4096), [4; 4096]);
        refused!(507_910, "VA flag", aclrtHostRegister(shared, 1, 0, Out::to(&mut device)));
        ok!(aclrtFreeHost(shared));
        buffer.free();
    });
}

#[test]
fn the_va_flag_can_be_missing() {
    with(&[("ACL_STANDIN_VA_FLAG", "off")], || {
        assert_eq!(configured(3, 1).0, UNSUPPORTED);
        assert_eq!(configured(3, 2).0, PARAM);
        assert_eq!(configured(9, 0).0, PARAM);
        let (code, plain) = configured(3, 0);
        assert_eq!(code, 0);
        let mut attributes = AclrtPtrAttributes::default();
        ok!(aclrtPointerGetAttributes(plain, Out::to(&mut attributes)));
        assert_eq!(attributes.location.kind, 0);
        ok!(aclrtFreeHost(plain));
    });
}

#[test]
fn virtual_memory_can_be_missing() {
    with(&[("ACL_STANDIN_VMM", "off")], || {
        let mut start = null();
        let out = Out::to(&mut start);
        refused!(UNSUPPORTED, "VMM", aclrtReserveMemAddress(out, UNIT, 0, null(), 1));
        let (out, property) = (Out::to(&mut start), property());
        refused!(UNSUPPORTED, "VMM", aclrtMallocPhysical(out, UNIT, In::from(&property), 0));
        ok!(aclrtMalloc(Out::to(&mut start), UNIT, 0));
        ok!(aclrtFree(start));
    });
}
