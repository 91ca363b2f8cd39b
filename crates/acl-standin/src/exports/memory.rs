//! Device memory with an address, and host memory.

use npu_sys::{Driver, HostPtr};

use crate::abi::{
    AclrtMallocConfig, AclrtMemLocation, AclrtPtrAttributes, HBM_MEM, HBM_MEM_HUGE, HBM_MEM_NORMAL,
    In, LOCATION_DEVICE, LOCATION_HOST, LOCATION_UNREGISTERED, Opaque, Out, address, pointer,
};
use crate::addresses::MemoryKind;
use crate::alias::{self, Alias};
use crate::entry::exports;
use crate::failure::{
    Failure, INVALID_PARAM, Outcome, RT_ADDR_UNALIGNED, RT_FEATURE_NOT_SUPPORT,
    RT_HOST_MEMORY_ALREADY_REGISTERED, RT_HOST_MEMORY_NOT_REGISTERED, RT_INTERNAL_ERROR,
    RT_INVALID_MALLOC_TYPE, RT_INVALID_MEMORY_TYPE, RT_PARAM_INVALID, expect, refuse,
};
use crate::runtime::{self, Scope};
use crate::tables::{Allocation, HostMemory, Registered, Tables};

/// The library rounds sizes up to this.
const ALIGN_BYTES: u64 = 32;
const PAGE_BYTES: u64 = 4096;
/// The last policy without pages of 1 GiB, and the bits that may be added to a policy.
const POLICY_LAST: i32 = 5;
const POLICY_BITS: i32 = 0x0100 | 0x1000 | 0x10_0000;
const ATTRIBUTE_MODULE_ID: i32 = 1;
const ATTRIBUTE_DEVICE_ID: i32 = 2;
const ATTRIBUTE_VA_FLAG: i32 = 3;
const REGISTER_MAPPED: u32 = 0x2;
const REGISTER_PINNED: u32 = 0x1000_0000;

/// Takes device memory and shows it at an address.
fn allocate(out: Out<Opaque>, size: usize, policy: i32, pad_bytes: u64) -> Outcome {
    out.check("devPtr")?;
    let scope = runtime::enter()?;
    if !(0..=POLICY_LAST).contains(&(policy & !POLICY_BITS)) {
        return refuse(RT_INVALID_MALLOC_TYPE, format!("policy {policy:#x}"));
    }
    let granularity = scope.runtime.settings.device.granularity_bytes;
    let asked_bytes = size as u64;
    let size_bytes = asked_bytes
        .checked_next_multiple_of(ALIGN_BYTES)
        .and_then(|size| size.checked_add(pad_bytes)?.checked_next_multiple_of(granularity));
    let Some(size_bytes) = size_bytes.filter(|_| size > 0) else {
        return refuse(INVALID_PARAM, format!("a size of {size} bytes"));
    };
    let mut tables = scope.tables();
    let driver = scope.driver();
    let chunk = driver.create_chunk(size_bytes)?;
    let range = match driver.reserve(size_bytes) {
        Ok(range) => range,
        Err(error) => {
            driver.release_chunk(chunk)?;
            return Err(error.into());
        }
    };
    driver.map(range, chunk)?;
    driver.set_access(range)?;
    let allocation = Allocation { device: scope.device, asked_bytes, range, chunk };
    tables.allocations.insert(range.start.0, allocation);
    out.put(pointer(range.start.0));
    Ok(())
}

fn free(start: Opaque) -> Outcome {
    let scope = runtime::enter()?;
    let mut tables = scope.tables();
    let start = address(start);
    let Some(&Allocation { device, range, chunk, .. }) = tables.allocations.get(&start) else {
        return refuse(RT_PARAM_INVALID, format!("{start:#x} is not what aclrtMalloc returned"));
    };
    expect("the memory's device", device, scope.device)?;
    let driver = scope.driver();
    // SAFETY: the caller says that no work uses the memory; see `exports!`.
    unsafe { driver.unmap(range) }?;
    driver.free_range(range)?;
    driver.release_chunk(chunk)?;
    tables.allocations.remove(&start);
    Ok(())
}

fn allocate_host(out: Out<Opaque>, asked_bytes: u64, is_shared: bool) -> Outcome {
    out.check("hostPtr")?;
    let scope = runtime::enter()?;
    if asked_bytes == 0 {
        return refuse(INVALID_PARAM, "a size of 0 bytes");
    }
    if is_shared && !scope.runtime.settings.has_va_flag {
        return refuse(RT_FEATURE_NOT_SUPPORT, "ACL_STANDIN_VA_FLAG is off");
    }
    let mut tables = scope.tables();
    let start = scope.driver().allocate_pinned(asked_bytes)?;
    let size_bytes = asked_bytes.next_multiple_of(rustix::param::page_size() as u64);
    // From the beginning, so that registering it later need not touch memory that is in use.
    if let Err(errno) = alias::make_shareable(start.0, size_bytes, false) {
        // SAFETY: allocated just now, so nothing uses it.
        unsafe { scope.driver().free_pinned(start) }?;
        return refuse(RT_INTERNAL_ERROR, format!("no shared memory: {errno}"));
    }
    let device = scope.device;
    tables.host.insert(start.0, HostMemory { device, asked_bytes, size_bytes, is_shared });
    out.put(pointer(start.0));
    Ok(())
}

/// Where registered memory lies.
enum Ground {
    /// In memory of `aclrtMallocHost`.
    Pinned,
    /// In memory that the caller got elsewhere.
    Foreign,
}

fn ground(tables: &Tables, scope: &Scope, start: u64, size_bytes: u64) -> Outcome<Ground> {
    let end = start + size_bytes;
    let overlaps = |from: u64, size: u64| from < end && start < from + size;
    if let Some((at, _)) = tables.registered.iter().find(|(at, r)| overlaps(**at, r.size_bytes)) {
        let text = format!("{start:#x} + {size_bytes} overlaps the registration at {at:#x}");
        return refuse(RT_HOST_MEMORY_ALREADY_REGISTERED, text);
    }
    let is_device = tables.ranges.values().any(|r| overlaps(r.range.start.0, r.range.size_bytes))
        || tables.allocations.values().any(|a| overlaps(a.range.start.0, a.range.size_bytes));
    let aliases = tables.registered.values().filter_map(|r| Some((r.alias.as_ref()?, r)));
    let is_alias = aliases.into_iter().any(|(alias, r)| overlaps(alias.start(), r.size_bytes));
    if is_device || is_alias {
        return refuse(RT_PARAM_INVALID, format!("{start:#x} is not host memory"));
    }
    match tables.host.iter().find(|(at, host)| overlaps(**at, host.size_bytes)) {
        None => Ok(Ground::Foreign),
        Some((_, host)) if host.is_shared => {
            refuse(RT_HOST_MEMORY_ALREADY_REGISTERED, "memory with the VA flag is mapped already")
        }
        Some((at, host)) if start < *at || end > at + host.size_bytes => {
            refuse(RT_PARAM_INVALID, format!("{start:#x} + {size_bytes} is in part pinned memory"))
        }
        Some((_, host)) => {
            expect("the memory's device", host.device, scope.device)?;
            Ok(Ground::Pinned)
        }
    }
}

/// Registers host memory and returns the device's address of it.
fn register(start: Opaque, size: u64, is_mapped: bool) -> Outcome<u64> {
    let scope = runtime::enter()?;
    let start = address(start);
    if start == 0 || size == 0 {
        return refuse(INVALID_PARAM, format!("{start:#x} + {size} is no memory"));
    }
    if !start.is_multiple_of(PAGE_BYTES) {
        let text = format!("{start:#x} is not a multiple of {PAGE_BYTES}");
        return refuse(RT_ADDR_UNALIGNED, text);
    }
    let size_bytes = size.checked_next_multiple_of(rustix::param::page_size() as u64);
    let Some(size_bytes) = size_bytes.filter(|size| start.checked_add(*size).is_some()) else {
        return refuse(INVALID_PARAM, format!("{start:#x} + {size} is no memory"));
    };
    let mut tables = scope.tables();
    let is_pinned_already = match ground(&tables, &scope, start, size_bytes)? {
        Ground::Pinned => true,
        Ground::Foreign => {
            // SAFETY: the caller keeps the memory until it is unregistered; see `exports!`.
            unsafe { scope.driver().register_host(HostPtr(start), size_bytes) }?;
            false
        }
    };
    let Some(alias) = Alias::of(start, size_bytes) else {
        if !is_pinned_already {
            // SAFETY: registered just now, so nothing uses it.
            unsafe { scope.driver().unregister_host(HostPtr(start)) }?;
        }
        return refuse(RT_PARAM_INVALID, format!("{start:#x} + {size} is not all mapped memory"));
    };
    let on_device = alias.start();
    let alias = is_mapped.then_some(alias);
    let device = scope.device;
    tables.registered.insert(start, Registered { device, size_bytes, alias, is_pinned_already });
    Ok(on_device)
}

exports! {
    /// Takes device memory.
    fn aclrtMalloc(out: Out<Opaque>, size: usize, policy: i32) {
        allocate(out, size, policy, ALIGN_BYTES)
    }

    /// Takes device memory without the pad.
    fn aclrtMallocAlign32(out: Out<Opaque>, size: usize, policy: i32) {
        allocate(out, size, policy, 0)
    }

    /// Gives device memory back.
    fn aclrtFree(start: Opaque) {
        free(start)
    }

    /// Takes pinned host memory, which the device cannot address.
    fn aclrtMallocHost(out: Out<Opaque>, size: usize) {
        allocate_host(out, size as u64, false)
    }

    /// Takes pinned host memory; with the VA flag the device uses the same address.
    fn aclrtMallocHostWithCfg(out: Out<Opaque>, size: u64, config: In<AclrtMallocConfig>) {
        let attributes = match config.is_null() {
            true => Vec::new(),
            false => config.get("cfg")?.attributes()?,
        };
        let mut is_shared = false;
        for attribute in attributes {
            match (attribute.attr, attribute.value[0]) {
                (ATTRIBUTE_MODULE_ID | ATTRIBUTE_DEVICE_ID, _) => {}
                (ATTRIBUTE_VA_FLAG, value @ 0..=1) => is_shared = value == 1,
                (attr, value) => {
                    let text = format!("attribute {attr} with value {value}");
                    return refuse(RT_PARAM_INVALID, text);
                }
            }
        }
        allocate_host(out, size, is_shared)
    }

    /// Gives pinned host memory back. No part of it may be registered.
    fn aclrtFreeHost(start: Opaque) {
        let scope = runtime::enter()?;
        let mut tables = scope.tables();
        let start = address(start);
        let Some(&HostMemory { device, size_bytes, .. }) = tables.host.get(&start) else {
            let text = format!("{start:#x} is not what aclrtMallocHost returned");
            return refuse(RT_PARAM_INVALID, text);
        };
        expect("the memory's device", device, scope.device)?;
        if let Some((at, _)) = tables.registered.range(start..start + size_bytes).next() {
            return refuse(RT_PARAM_INVALID, format!("{at:#x} is still registered"));
        }
        // SAFETY: the caller says that no work uses the memory; see `exports!`.
        unsafe { scope.driver().free_pinned(HostPtr(start)) }?;
        tables.host.remove(&start);
        Ok(())
    }

    /// Pins host memory and shows it to the device.
    fn aclrtHostRegister(start: Opaque, size: u64, kind: i32, on_device: Out<Opaque>) {
        on_device.check("devPtr")?;
        if kind != 0 {
            return refuse(RT_FEATURE_NOT_SUPPORT, format!("registration of type {kind}"));
        }
        on_device.put(pointer(register(start, size, true)?));
        Ok(())
    }

    /// Pins host memory; with the flag MAPPED it shows it to the device.
    fn aclrtHostRegisterV2(start: Opaque, size: u64, flags: u32) {
        if flags == 0 || flags & !(REGISTER_MAPPED | REGISTER_PINNED) != 0 {
            return refuse(RT_FEATURE_NOT_SUPPORT, format!("registration with flags {flags:#x}"));
        }
        register(start, size, flags & REGISTER_MAPPED != 0).map(drop)
    }

    /// The device's address of registered memory, which is given by its start.
    fn aclrtHostGetDevicePointer(start: Opaque, on_device: Out<Opaque>, flags: u32) {
        on_device.check("pDevice")?;
        let scope = runtime::enter()?;
        expect("flag", flags, 0)?;
        let start = address(start);
        let tables = scope.tables();
        let Some(registered) = tables.registered.get(&start) else {
            let text = format!("{start:#x} is not the start of registered memory");
            return refuse(RT_HOST_MEMORY_NOT_REGISTERED, text);
        };
        expect("the memory's device", registered.device, scope.device)?;
        let alias = registered.alias.as_ref().ok_or_else(|| {
            Failure::new(RT_PARAM_INVALID, "registered without the flag MAPPED")
        })?;
        on_device.put(pointer(alias.start()));
        Ok(())
    }

    /// Ends a registration, which is given by its host address.
    fn aclrtHostUnregister(start: Opaque) {
        let scope = runtime::enter()?;
        let mut tables = scope.tables();
        let start = address(start);
        let Some(registered) = tables.registered.get(&start) else {
            let text = format!("{start:#x} is not the host address of registered memory");
            return refuse(RT_HOST_MEMORY_NOT_REGISTERED, text);
        };
        expect("the memory's device", registered.device, scope.device)?;
        if !registered.is_pinned_already {
            // SAFETY: the caller says that no work uses the memory; see `exports!`.
            unsafe { scope.driver().unregister_host(HostPtr(start)) }?;
        }
        tables.registered.remove(&start);
        Ok(())
    }

    /// What an address is.
    fn aclrtPointerGetAttributes(start: Opaque, attributes: Out<AclrtPtrAttributes>) {
        attributes.check("attributes")?;
        let scope = runtime::enter()?;
        let kind = match scope.tables().memory_kind(&scope, address(start), 1)? {
            MemoryKind::Device => LOCATION_DEVICE,
            MemoryKind::Shared | MemoryKind::Pinned => LOCATION_HOST,
            MemoryKind::Pageable => LOCATION_UNREGISTERED,
        };
        attributes.put(AclrtPtrAttributes {
            location: AclrtMemLocation { id: scope.device as u32, kind },
            page_size: scope.runtime.settings.device.granularity_bytes as u32,
            rsv: [0; 4],
        });
        Ok(())
    }

    /// Free and total bytes of the thread's device.
    fn aclrtGetMemInfo(attribute: i32, free: Out<usize>, total: Out<usize>) {
        free.check("free")?;
        total.check("total")?;
        let scope = runtime::enter()?;
        if ![HBM_MEM, HBM_MEM_HUGE, HBM_MEM_NORMAL].contains(&attribute) {
            let text = format!("memory of attribute {attribute}: this device has HBM");
            return refuse(RT_INVALID_MEMORY_TYPE, text);
        }
        let info = scope.driver().memory_info()?;
        free.put(info.free_bytes as usize);
        total.put(info.total_bytes as usize);
        Ok(())
    }

    /// Base and size of the allocation that holds a device address.
    fn aclrtMemGetAddressRange(within: Opaque, base: Out<Opaque>, size: Out<usize>) {
        base.check("pbase")?;
        size.check("psize")?;
        let scope = runtime::enter()?;
        let tables = scope.tables();
        let within = address(within);
        let allocation = tables.allocations.range(..=within).next_back();
        let mapping = tables.mappings.range(..=within).next_back();
        let allocation = allocation.map(|(&at, a)| (at, a.asked_bytes));
        let mapping = mapping.map(|(&at, m)| (at, m.size_bytes));
        let holds = |&(at, size): &(u64, u64)| within - at < size;
        match allocation.filter(holds).or(mapping.filter(holds)) {
            None => refuse(RT_PARAM_INVALID, format!("{within:#x} is not device memory")),
            Some((at, size_bytes)) => {
                base.put(pointer(at));
                size.put(size_bytes as usize);
                Ok(())
            }
        }
    }
}
