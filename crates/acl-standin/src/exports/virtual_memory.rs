//! Addresses, physical memory, and one behind the other.

use npu_sys::{DevicePtr, Driver, VaRange};

use crate::abi::{
    AclrtMemAccessDesc, AclrtMemLocation, AclrtPhysicalMemProp, HBM_MEM_HUGE, HBM_MEM_NORMAL, In,
    LOCATION_DEVICE, Opaque, Out, address, pointer,
};
use crate::entry::exports;
use crate::failure::{
    INVALID_PARAM, Outcome, RT_FEATURE_NOT_SUPPORT, RT_PARAM_INVALID, expect, refuse,
};
use crate::runtime::{self, Runtime};
use crate::tables::{Mapping, Physical, Range, Token, token};

const FLAG_HUGE_PAGES: u64 = 1;
const ACCESS_READ_WRITE: u64 = 3;
const NO_SHARING: &str = "no process sees another's memory";

/// Checks what memory is asked for, and returns the device.
fn check_property(runtime: &Runtime, property: AclrtPhysicalMemProp) -> Outcome<usize> {
    expect("prop->handleType", property.handle_type, 0)?;
    expect("prop->allocationType", property.allocation_type, 0)?;
    expect("prop->reserve", property.reserve, 0)?;
    if property.location.kind != LOCATION_DEVICE {
        let text = format!("physical memory at a location of type {}", property.location.kind);
        return refuse(RT_FEATURE_NOT_SUPPORT, text);
    }
    if ![HBM_MEM_HUGE, HBM_MEM_NORMAL].contains(&property.mem_attr) {
        let text = format!("physical memory with attribute {}", property.mem_attr);
        return refuse(RT_FEATURE_NOT_SUPPORT, text);
    }
    runtime.device(i64::from(property.location.id))
}

fn check_size(runtime: &Runtime, size: usize) -> Outcome<u64> {
    let granularity = runtime.settings.device.granularity_bytes;
    let size = size as u64;
    if size == 0 || !size.is_multiple_of(granularity) {
        let text = format!("{size} bytes is not a positive multiple of {granularity}");
        return refuse(RT_PARAM_INVALID, text);
    }
    Ok(size)
}

fn check_supported(runtime: &Runtime) -> Outcome {
    if !runtime.settings.has_virtual_memory {
        return refuse(RT_FEATURE_NOT_SUPPORT, "ACL_STANDIN_VMM is off");
    }
    Ok(())
}

exports! {
    /// Reserves addresses.
    fn aclrtReserveMemAddress(
        out: Out<Opaque>, size: usize, alignment: usize, expected: Opaque, flags: u64,
    ) {
        out.check("virPtr")?;
        let scope = runtime::enter()?;
        check_supported(&scope.runtime)?;
        expect("alignment", alignment, 0)?;
        expect("expectPtr", address(expected), 0)?;
        if flags > FLAG_HUGE_PAGES {
            return refuse(RT_PARAM_INVALID, format!("flags are {flags}, not 0 or 1"));
        }
        let size_bytes = check_size(&scope.runtime, size)?;
        let mut tables = scope.tables();
        let range = scope.driver().reserve(size_bytes)?;
        tables.ranges.insert(range.start.0, Range { device: scope.device, range });
        out.put(pointer(range.start.0));
        Ok(())
    }

    /// Gives addresses back.
    fn aclrtReleaseMemAddress(start: Opaque) {
        let scope = runtime::enter()?;
        let mut tables = scope.tables();
        let start = address(start);
        let Some(&Range { device, range }) = tables.ranges.get(&start) else {
            let text = format!("{start:#x} is not the start of a reservation");
            return refuse(RT_PARAM_INVALID, text);
        };
        expect("the address's device", device, scope.device)?;
        if let Some((at, _)) = tables.mappings.range(start..range.end().0).next() {
            return refuse(RT_PARAM_INVALID, format!("{at:#x} is still mapped"));
        }
        scope.driver().free_range(range)?;
        tables.ranges.remove(&start);
        Ok(())
    }

    /// Takes physical memory.
    fn aclrtMallocPhysical(
        out: Out<Opaque>, size: usize, property: In<AclrtPhysicalMemProp>, flags: u64,
    ) {
        out.check("handle")?;
        let scope = runtime::enter()?;
        check_supported(&scope.runtime)?;
        let property = property.get("prop")?;
        let device = check_property(&scope.runtime, property)?;
        expect("flags", flags, 0)?;
        let size_bytes = check_size(&scope.runtime, size)?;
        let mut tables = scope.tables();
        let chunk = scope.runtime.drivers[device].create_chunk(size_bytes)?;
        let token = token();
        let physical = Physical {
            device, chunk, size_bytes, mapping_count: 0, reference_count: 1,
            mem_attr: property.mem_attr,
        };
        tables.physical.insert(token, physical);
        out.put(pointer(token as u64));
        Ok(())
    }

    /// Gives physical memory back. It must not be mapped.
    fn aclrtFreePhysical(handle: Opaque) {
        let scope = runtime::enter()?;
        let mut tables = scope.tables();
        let token = address(handle) as Token;
        let physical = tables.physical(token)?;
        if physical.reference_count > 1 {
            physical.reference_count -= 1;
            return Ok(());
        }
        if physical.mapping_count > 0 {
            let text = format!("{token:#x} is mapped {} times", physical.mapping_count);
            return refuse(RT_PARAM_INVALID, text);
        }
        let (device, chunk) = (physical.device, physical.chunk);
        scope.runtime.drivers[device].release_chunk(chunk)?;
        tables.physical.remove(&token);
        Ok(())
    }

    /// Puts a whole handle behind addresses, which the device may then use.
    fn aclrtMapMem(start: Opaque, size: usize, offset: usize, handle: Opaque, flags: u64) {
        let scope = runtime::enter()?;
        expect("offset", offset, 0)?;
        expect("flags", flags, 0)?;
        let size_bytes = check_size(&scope.runtime, size)?;
        let token = address(handle) as Token;
        let mut tables = scope.tables();
        let physical = tables.physical(token)?;
        expect("size, against the handle's,", size_bytes, physical.size_bytes)?;
        let (device, chunk) = (physical.device, physical.chunk);
        expect("the handle's device", device, scope.device)?;
        let range = VaRange { start: DevicePtr(address(start)), size_bytes };
        let driver = scope.driver();
        driver.map(range, chunk)?;
        if let Err(error) = driver.set_access(range) {
            // SAFETY: mapped just now, so nothing uses it.
            unsafe { driver.unmap(range) }?;
            return Err(error.into());
        }
        tables.physical(token)?.mapping_count += 1;
        tables.mappings.insert(range.start.0, Mapping { device, size_bytes, physical: token });
        Ok(())
    }

    /// Takes the memory from behind addresses: one whole mapping, by its start.
    fn aclrtUnmapMem(start: Opaque) {
        let scope = runtime::enter()?;
        let mut tables = scope.tables();
        let start = address(start);
        let Some(&Mapping { device, size_bytes, physical }) = tables.mappings.get(&start) else {
            return refuse(RT_PARAM_INVALID, format!("{start:#x} is not the start of a mapping"));
        };
        expect("the mapping's device", device, scope.device)?;
        let range = VaRange { start: DevicePtr(start), size_bytes };
        // SAFETY: the caller says that no work uses the addresses; see `exports!`.
        unsafe { scope.driver().unmap(range) }?;
        tables.mappings.remove(&start);
        tables.physical(physical)?.mapping_count -= 1;
        Ok(())
    }

    /// Multiples in which physical memory comes.
    fn aclrtMemGetAllocationGranularity(
        property: In<AclrtPhysicalMemProp>, option: i32, granularity: Out<usize>,
    ) {
        granularity.check("granularity")?;
        let runtime = runtime::enter()?.runtime;
        check_property(&runtime, property.get("prop")?)?;
        if !(0..=1).contains(&option) {
            return refuse(RT_PARAM_INVALID, format!("option is {option}, not 0 or 1"));
        }
        granularity.put(runtime.settings.device.granularity_bytes as usize);
        Ok(())
    }

    /// Lets another device use mapped memory. The owner may without, and none else can here.
    fn aclrtMemSetAccess(
        start: Opaque, size: usize, access: In<AclrtMemAccessDesc>, count: usize,
    ) {
        let scope = runtime::enter()?;
        check_size(&scope.runtime, size)?;
        let owner = scope.tables().mappings.get(&address(start)).map(|mapping| mapping.device);
        let Some(owner) = owner else {
            return refuse(RT_PARAM_INVALID, "not the start of a mapping");
        };
        let accesses = access.get_all("desc", count)?;
        for access in &accesses {
            if scope.runtime.device(i64::from(access.location.id))? == owner {
                let text = format!("device {owner} owns the memory and has access already");
                return refuse(RT_PARAM_INVALID, text);
            }
        }
        match accesses.len() {
            0 => refuse(INVALID_PARAM, "count is 0"),
            _ => refuse(RT_FEATURE_NOT_SUPPORT, "no device reaches another's memory"),
        }
    }

    /// What a device may do with mapped memory.
    fn aclrtMemGetAccess(start: Opaque, location: In<AclrtMemLocation>, flags: Out<u64>) {
        flags.check("flag")?;
        let scope = runtime::enter()?;
        let location = location.get("location")?;
        let device = scope.runtime.device(i64::from(location.id))?;
        match scope.tables().mappings.get(&address(start)) {
            None => refuse(RT_PARAM_INVALID, "not the start of a mapping"),
            Some(mapping) => {
                flags.put(if mapping.device == device { ACCESS_READ_WRITE } else { 0 });
                Ok(())
            }
        }
    }

    /// The handle behind an address, which must be freed once more.
    fn aclrtMemRetainAllocationHandle(start: Opaque, handle: Out<Opaque>) {
        handle.check("handle")?;
        let scope = runtime::enter()?;
        let mut tables = scope.tables();
        let Some(&Mapping { physical, .. }) = tables.mappings.get(&address(start)) else {
            return refuse(RT_PARAM_INVALID, "not the start of a mapping");
        };
        tables.physical(physical)?.reference_count += 1;
        handle.put(pointer(physical as u64));
        Ok(())
    }

    /// Shows physical memory to another process: it cannot be.
    fn aclrtMemExportToShareableHandle(
        handle: Opaque, _kind: i32, _flags: u64, _shareable: Out<u64>,
    ) {
        runtime::enter()?.tables().physical(address(handle) as Token)?;
        refuse(RT_FEATURE_NOT_SUPPORT, NO_SHARING)
    }

    /// Takes physical memory that another process shows.
    fn aclrtMemImportFromShareableHandle(_shareable: u64, _device: i32, _handle: Out<Opaque>) {
        runtime::enter()?;
        refuse(RT_FEATURE_NOT_SUPPORT, NO_SHARING)
    }

    /// Which processes may take memory that this one shows.
    fn aclrtMemSetPidToShareableHandle(_shareable: u64, _processes: In<i32>, _count: usize) {
        runtime::enter()?;
        refuse(RT_FEATURE_NOT_SUPPORT, NO_SHARING)
    }

    /// What a handle was asked for as.
    fn aclrtMemGetAllocationPropertiesFromHandle(
        handle: Opaque, property: Out<AclrtPhysicalMemProp>,
    ) {
        property.check("prop")?;
        let scope = runtime::enter()?;
        let mut tables = scope.tables();
        let physical = tables.physical(address(handle) as Token)?;
        property.put(AclrtPhysicalMemProp {
            mem_attr: physical.mem_attr,
            location: AclrtMemLocation { id: physical.device as u32, kind: LOCATION_DEVICE },
            ..AclrtPhysicalMemProp::default()
        });
        Ok(())
    }
}
