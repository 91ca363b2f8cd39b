//! Device memory: addresses, chunks, and one behind the other.

use crate::cuda::CudaDriver;
use crate::cuda::device::length;
use crate::cuda::failure::{need, out_of_memory};
use crate::cuda::open::{VIRTUAL_MEMORY_SINCE, chunk_prop};
use crate::cuda::sys::{CUmemAccess_flags, CUmemAccessDesc, CUmemGenericAllocationHandle};
use crate::error::DriverError;
use crate::table::DeviceTable;
use crate::types::{Bytes, ChunkHandle, DevicePtr, VaRange};

/// Ranges, chunks with the library's handles, and what is mapped where.
pub(super) type DeviceMemory = DeviceTable<(), CUmemGenericAllocationHandle, ()>;

/// The start of each call on virtual memory.
fn check_virtual(driver: &CudaDriver, call: &'static str) -> Result<(), DriverError> {
    match &driver.lack {
        None => Ok(()),
        Some(text) => Err(DriverError::unsupported(call, text.clone())),
    }
}

/// The end of each check of an amount of physical memory.
fn check_amount(
    driver: &CudaDriver,
    call: &'static str,
    size_bytes: u64,
) -> Result<usize, DriverError> {
    driver.rules.check_size(call, size_bytes)?;
    if size_bytes > driver.properties.total_bytes {
        let (asked, all) = (Bytes(size_bytes), Bytes(driver.properties.total_bytes));
        return Err(out_of_memory(call, format!("asked for {asked}, the device has {all}")));
    }
    length(call, size_bytes)
}

pub(super) fn reserve(driver: &CudaDriver, size_bytes: u64) -> Result<VaRange, DriverError> {
    let call = "reserve";
    check_virtual(driver, call)?;
    driver.rules.check_size(call, size_bytes)?;
    let size = length(call, size_bytes)?;
    let cuda = driver.context.enter(call)?;
    let reserve = cuda.api().cuMemAddressReserve;
    let reserve = need(call, reserve, "cuMemAddressReserve", VIRTUAL_MEMORY_SINCE)?;
    let mut memory = driver.device_memory();
    let mut start = 0;
    // SAFETY: it writes one number. Alignment 0 is that of the granularity, 0 no wish for an
    // address, and there are no flags.
    let code = unsafe { reserve(&raw mut start, size, 0, 0, 0) };
    cuda.check(code)?;
    let range = VaRange { start: DevicePtr(start), size_bytes };
    memory.reserved(range, ());
    Ok(range)
}

pub(super) fn free_range(driver: &CudaDriver, range: VaRange) -> Result<(), DriverError> {
    let call = "free_range";
    check_virtual(driver, call)?;
    let cuda = driver.context.enter(call)?;
    let free = cuda.api().cuMemAddressFree;
    let free = need(call, free, "cuMemAddressFree", VIRTUAL_MEMORY_SINCE)?;
    let size = length(call, range.size_bytes)?;
    let mut memory = driver.device_memory();
    memory.check_free_range(range)?;
    // SAFETY: a whole range that `reserve` gave, with nothing mapped: just checked.
    let code = unsafe { free(range.start.0, size) };
    cuda.check(code)?;
    memory.freed(range);
    Ok(())
}

pub(super) fn create_chunk(
    driver: &CudaDriver,
    size_bytes: u64,
) -> Result<ChunkHandle, DriverError> {
    let call = "create_chunk";
    check_virtual(driver, call)?;
    let size = check_amount(driver, call, size_bytes)?;
    let cuda = driver.context.enter(call)?;
    let create = need(call, cuda.api().cuMemCreate, "cuMemCreate", VIRTUAL_MEMORY_SINCE)?;
    let prop = chunk_prop(driver.context.device());
    let mut memory = driver.device_memory();
    let mut handle = 0;
    // SAFETY: it reads `prop` and writes one number.
    let code = unsafe { create(&raw mut handle, size, &raw const prop, 0) };
    cuda.check(code)?;
    Ok(memory.created(size_bytes, handle))
}

pub(super) fn release_chunk(driver: &CudaDriver, chunk: ChunkHandle) -> Result<(), DriverError> {
    let call = "release_chunk";
    check_virtual(driver, call)?;
    let cuda = driver.context.enter(call)?;
    let release = need(call, cuda.api().cuMemRelease, "cuMemRelease", VIRTUAL_MEMORY_SINCE)?;
    let mut memory = driver.device_memory();
    let handle = memory.check_release(chunk)?.held;
    // SAFETY: a handle that `create_chunk` got, not yet released: just checked.
    let code = unsafe { release(handle) };
    cuda.check(code)?;
    memory.released(chunk);
    Ok(())
}

pub(super) fn map(
    driver: &CudaDriver,
    range: VaRange,
    chunk: ChunkHandle,
) -> Result<(), DriverError> {
    let call = "map";
    check_virtual(driver, call)?;
    let cuda = driver.context.enter(call)?;
    let map = need(call, cuda.api().cuMemMap, "cuMemMap", VIRTUAL_MEMORY_SINCE)?;
    let mut memory = driver.device_memory();
    let handle = *memory.check_map(range, chunk)?;
    let size = length(call, range.size_bytes)?;
    // SAFETY: reserved addresses with nothing behind them, and a chunk of just that size:
    // just checked. The offset must be 0, and there are no flags.
    let code = unsafe { map(range.start.0, size, 0, handle, 0) };
    cuda.check(code)?;
    memory.mapped(range, chunk, ());
    Ok(())
}

pub(super) fn set_access(driver: &CudaDriver, range: VaRange) -> Result<(), DriverError> {
    let call = "set_access";
    check_virtual(driver, call)?;
    let cuda = driver.context.enter(call)?;
    let set = need(call, cuda.api().cuMemSetAccess, "cuMemSetAccess", VIRTUAL_MEMORY_SINCE)?;
    let access = CUmemAccessDesc {
        location: chunk_prop(driver.context.device()).location,
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    let memory = driver.device_memory();
    memory.check_access(range)?;
    let size = length(call, range.size_bytes)?;
    // SAFETY: whole mappings, just checked; it reads one `access`.
    let code = unsafe { set(range.start.0, size, &raw const access, 1) };
    cuda.check(code)
}

/// # Safety
/// As [`Driver::unmap`](crate::Driver::unmap).
pub(super) unsafe fn unmap(driver: &CudaDriver, range: VaRange) -> Result<(), DriverError> {
    let call = "unmap";
    check_virtual(driver, call)?;
    let cuda = driver.context.enter(call)?;
    let unmap = need(call, cuda.api().cuMemUnmap, "cuMemUnmap", VIRTUAL_MEMORY_SINCE)?;
    let size = length(call, range.size_bytes)?;
    let mut memory = driver.device_memory();
    memory.check_unmap(range)?;
    // SAFETY: one whole mapping, just checked; the caller promises that no work uses it.
    let code = unsafe { unmap(range.start.0, size) };
    cuda.check(code)?;
    memory.unmapped(range);
    Ok(())
}

pub(super) fn allocate_device(
    driver: &CudaDriver,
    size_bytes: u64,
) -> Result<DevicePtr, DriverError> {
    let call = "allocate_device";
    let size = check_amount(driver, call, size_bytes)?;
    let cuda = driver.context.enter(call)?;
    let mut start = 0;
    // SAFETY: it writes one number.
    let code = unsafe { (cuda.api().cuMemAlloc_v2)(&raw mut start, size) };
    cuda.check(code)?;
    driver.device_memory().allocations.insert(start, size_bytes, ());
    Ok(DevicePtr(start))
}

/// # Safety
/// As [`Driver::free_device`](crate::Driver::free_device).
pub(super) unsafe fn free_device(driver: &CudaDriver, start: DevicePtr) -> Result<(), DriverError> {
    let call = "free_device";
    let cuda = driver.context.enter(call)?;
    // Not locked meanwhile: unlike the calls above it waits for the device.
    let size_bytes = {
        let mut memory = driver.device_memory();
        let size_bytes = memory.check_free_device(start)?;
        memory.allocations.remove(start.0);
        size_bytes
    };
    // SAFETY: `allocate_device` gave it, and it was taken from the table, so it is freed
    // once; the caller promises that no work uses it.
    let code = unsafe { (cuda.api().cuMemFree_v2)(start.0) };
    cuda.check(code).inspect_err(|_| {
        driver.device_memory().allocations.insert(start.0, size_bytes, ());
    })
}
