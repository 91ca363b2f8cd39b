//! Finding the library, starting it, and asking it what the device is.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, RwLock};

use bytemuck::Zeroable;

use crate::cuda::context::{Context, check};
use crate::cuda::copy::Turns;
use crate::cuda::handles::Handles;
use crate::cuda::sys::{
    Api, CUdevice, CUdevice_attribute, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationType, CUmemLocation, CUmemLocationType, CUresult,
};
use crate::cuda::virtual_memory::DeviceMemory;
use crate::cuda::{CudaDriver, failure};
use crate::error::{DriverError, ErrorKind, OpenError};
use crate::load::Library;
use crate::system::pci_numa_node;
use crate::table::Rules;
use crate::types::{DeviceProperties, HostMapping};

/// Names another file to be opened in place of the system's.
const LIBRARY_VARIABLE: &str = "SMARTSWAP_CUDA_LIBRARY";
/// Where the loader may find it, and where WSL has it.
const CANDIDATES: [&str; 2] = ["libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"];
const HINT: &str = "install the NVIDIA driver, or name the file in SMARTSWAP_CUDA_LIBRARY";

/// Granularity of plain allocations where there is no virtual memory: the pages that the driver
/// takes from the device.
const PLAIN_GRANULARITY_BYTES: u64 = 2 << 20;
/// Longest names that the library is asked for, with the final zero.
const NAME_BYTES: usize = 256;

impl CudaDriver {
    /// Opens a device.
    ///
    /// The library is the file that `SMARTSWAP_CUDA_LIBRARY` names, else the system's
    /// `libcuda.so.1`. `CUDA_VISIBLE_DEVICES` counts: `index` is a place among visible devices.
    ///
    /// # Errors
    /// [`OpenError`] says what was tried: no library, a wrong file, a library that is too old,
    /// no such device, or a driver that does not start.
    pub fn open(index: u32) -> Result<Arc<CudaDriver>, OpenError> {
        CudaDriver::open_with(load()?, index)
    }

    /// As [`open`](CudaDriver::open), with the library in this file, whatever the environment
    /// says.
    ///
    /// # Errors
    /// As for `open`.
    ///
    /// # Safety
    /// The file is NVIDIA's library, or one whose functions do what NVIDIA's do.
    pub unsafe fn open_from(library: &Path, index: u32) -> Result<Arc<CudaDriver>, OpenError> {
        // SAFETY: the caller's promise.
        CudaDriver::open_with(unsafe { load_from(library) }?, index)
    }

    /// The number of devices that [`open`](CudaDriver::open) can open.
    ///
    /// # Errors
    /// As for `open`. No device is no error: the number is 0.
    pub fn device_count() -> Result<u32, OpenError> {
        Ok(count_devices(&load()?)?)
    }

    fn open_with(api: Api, index: u32) -> Result<Arc<CudaDriver>, OpenError> {
        let count = count_devices(&api)?;
        if index >= count {
            return Err(OpenError::NoDevice { name: "CUDA", index, count });
        }
        let device = device(&api, index)?;
        let lack = lack_of_virtual_memory(&api, device)?;
        let context = Arc::new(Context::retain(api, device)?);
        let properties = {
            let _current = context.enter("open")?;
            properties(&api, device, lack.is_none())?
        };
        let granularity_bytes = properties.granularity_bytes;
        let rules = Rules { granularity_bytes, invalid_code: failure::INVALID };
        Ok(Arc::new(CudaDriver {
            context,
            properties,
            lack,
            streams: Handles::new("stream"),
            events: Handles::new("event"),
            turns: Turns::default(),
            rules,
            device_memory: Mutex::new(DeviceMemory::new(rules)),
            pinned_memory: RwLock::default(),
            failed: Arc::default(),
        }))
    }
}

/// Opens the library that the environment names, or the system's.
pub(super) fn load() -> Result<Api, OpenError> {
    let named = std::env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty());
    let candidates: Vec<&OsStr> = match &named {
        Some(path) => vec![path],
        None => CANDIDATES.iter().map(OsStr::new).collect(),
    };
    // SAFETY: the vendor's names. Who sets a process's environment decides what code it loads, as
    // with the loader's own variables.
    unsafe { load_first(&candidates) }
}

/// Opens the library in this file.
///
/// # Safety
/// It is NVIDIA's, or does what NVIDIA's does.
pub(super) unsafe fn load_from(library: &Path) -> Result<Api, OpenError> {
    // SAFETY: the caller's promise.
    unsafe { load_first(&[library.as_os_str()]) }
}

/// # Safety
/// As for `load_from`, of each file.
unsafe fn load_first(candidates: &[&OsStr]) -> Result<Api, OpenError> {
    // SAFETY: the caller's promise.
    Api::load(&unsafe { Library::open("libcuda.so.1", HINT, candidates) }?)
}

/// Starts the library and counts its devices.
pub(super) fn count_devices(api: &Api) -> Result<u32, DriverError> {
    let call = "open";
    // SAFETY: the only flag there is is 0; it may be called any number of times.
    let code = unsafe { (api.cuInit)(0) };
    if code == CUresult::CUDA_ERROR_NO_DEVICE {
        return Ok(0);
    }
    check(api, call, code)?;
    let mut count = 0;
    // SAFETY: it writes one number.
    let code = unsafe { (api.cuDeviceGetCount)(&raw mut count) };
    check(api, call, code)?;
    Ok(u32::try_from(count).unwrap_or(0))
}

/// The device of that number, which is less than the count.
pub(super) fn device(api: &Api, index: u32) -> Result<CUdevice, DriverError> {
    let mut device = 0;
    let index = c_int::try_from(index).unwrap_or(c_int::MAX);
    // SAFETY: it writes one number.
    let code = unsafe { (api.cuDeviceGet)(&raw mut device, index) };
    check(api, "open", code)?;
    Ok(device)
}

/// One of the device's numbers.
pub(super) fn attribute(
    api: &Api,
    device: CUdevice,
    attribute: CUdevice_attribute,
) -> Result<c_int, DriverError> {
    let mut value = 0;
    // SAFETY: it writes one number.
    let code = unsafe { (api.cuDeviceGetAttribute)(&raw mut value, attribute, device) };
    check(api, "open", code)?;
    Ok(value)
}

/// What chunks are asked for: device memory, without wishes.
pub(super) fn chunk_prop(device: CUdevice) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: CUmemLocation {
            type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: device,
        },
        ..CUmemAllocationProp::zeroed()
    }
}

/// Why the driver or the device has no virtual memory; `None` if it has.
pub(super) fn lack_of_virtual_memory(
    api: &Api,
    device: CUdevice,
) -> Result<Option<String>, DriverError> {
    let functions = [
        ("cuMemGetAllocationGranularity", api.cuMemGetAllocationGranularity.is_some()),
        ("cuMemAddressReserve", api.cuMemAddressReserve.is_some()),
        ("cuMemAddressFree", api.cuMemAddressFree.is_some()),
        ("cuMemCreate", api.cuMemCreate.is_some()),
        ("cuMemRelease", api.cuMemRelease.is_some()),
        ("cuMemMap", api.cuMemMap.is_some()),
        ("cuMemUnmap", api.cuMemUnmap.is_some()),
        ("cuMemSetAccess", api.cuMemSetAccess.is_some()),
    ];
    if let Some((missing, _)) = functions.iter().find(|(_, is_there)| !is_there) {
        return Ok(Some(format!("this driver has no {missing}: {VIRTUAL_MEMORY_SINCE}")));
    }
    let question = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    match attribute(api, device, question) {
        Ok(0) => Ok(Some("this device has no virtual memory management".to_owned())),
        Ok(_) => Ok(None),
        // A driver that does not know the question has not what it asks for.
        Err(error) if error.kind == ErrorKind::Invalid => {
            Ok(Some(format!("this driver has no virtual memory: {VIRTUAL_MEMORY_SINCE}")))
        }
        Err(error) => Err(error),
    }
}

/// Which driver has the functions for virtual memory.
pub(super) const VIRTUAL_MEMORY_SINCE: &str = "it needs CUDA 10.2 / driver 440 or newer";

/// Asks for all facts. The primary context must be current.
pub(super) fn properties(
    api: &Api,
    device: CUdevice,
    has_virtual_memory: bool,
) -> Result<DeviceProperties, DriverError> {
    let call = "open";
    let mut total = 0;
    // SAFETY: it writes one number.
    let code = unsafe { (api.cuDeviceTotalMem_v2)(&raw mut total, device) };
    check(api, call, code)?;
    let name = text(api, |buffer, length| {
        // SAFETY: it writes at most `length` bytes with the final zero; `text` has them.
        unsafe { (api.cuDeviceGetName)(buffer, length, device) }
    })?;
    let bus_id = text(api, |buffer, length| {
        // SAFETY: as for the name.
        unsafe { (api.cuDeviceGetPCIBusId)(buffer, length, device) }
    })?;
    let can_map = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY;
    Ok(DeviceProperties {
        name,
        total_bytes: total as u64,
        granularity_bytes: granularity_bytes(api, device, has_virtual_memory)?,
        // With unified addressing, which all devices have that PyTorch still serves.
        host_mapping: match attribute(api, device, can_map)? {
            0 => HostMapping::Nothing,
            _ => HostMapping::AllForAll,
        },
        has_virtual_memory,
        // Seen on an H200: 1.0 ms while a copy to the host runs, 43 us otherwise.
        map_waits_for_copies: true,
        is_host_addressable: false,
        driver_version: version(api)?,
        numa_node: pci_numa_node(&bus_id),
    })
}

/// The smallest unit of chunks. The recommended one may be larger, for speed alone; sizes are
/// up to the pool, and with the smallest it wastes least.
fn granularity_bytes(
    api: &Api,
    device: CUdevice,
    has_virtual_memory: bool,
) -> Result<u64, DriverError> {
    let Some(ask) = api.cuMemGetAllocationGranularity.filter(|_| has_virtual_memory) else {
        return Ok(PLAIN_GRANULARITY_BYTES);
    };
    let prop = chunk_prop(device);
    let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let mut granularity = 0;
    // SAFETY: it reads `prop` and writes one number.
    let code = unsafe { ask(&raw mut granularity, &raw const prop, minimum) };
    check(api, "open", code)?;
    Ok(granularity as u64)
}

/// A text that the library writes into a buffer.
fn text(
    api: &Api,
    write: impl FnOnce(*mut c_char, c_int) -> CUresult,
) -> Result<String, DriverError> {
    let mut bytes = [0_u8; NAME_BYTES];
    check(api, "open", write(bytes.as_mut_ptr().cast(), NAME_BYTES as c_int))?;
    let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

/// The newest CUDA that the driver knows, and the driver's own version if the system tells.
fn version(api: &Api) -> Result<String, DriverError> {
    let mut version = 0;
    // SAFETY: it writes one number.
    let code = unsafe { (api.cuDriverGetVersion)(&raw mut version) };
    check(api, "open", code)?;
    let cuda = cuda_version(version);
    Ok(match module_version() {
        Some(module) => format!("{cuda} (driver {module})"),
        None => cuda,
    })
}

fn cuda_version(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// The version of the kernel module.
fn module_version() -> Option<String> {
    if let Ok(text) = fs::read_to_string("/sys/module/nvidia/version") {
        return Some(text.trim().to_owned());
    }
    version_in(&fs::read_to_string("/proc/driver/nvidia/version").ok()?)
}

/// The first word of the text's first line that is a version: numbers with points between.
fn version_in(text: &str) -> Option<String> {
    let is_version =
        |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_people_write_them() {
        assert_eq!(cuda_version(13_000), "13.0");
        assert_eq!(cuda_version(12_080), "12.8");
        assert_eq!(cuda_version(10_020), "10.2");
        let check = |text: &str, expect: Option<&str>| {
            assert_eq!(version_in(text).as_deref(), expect, "{text}");
        };
        let line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82.01  Wed Oct 27 2021";
        check(line, Some("470.82.01"));
        let line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159  Release";
        check(&format!("{line}\nGCC version:  gcc version 13.2.0"), Some("580.159"));
        check("no version\nGCC version 13.2.0", None);
        check("", None);
    }
}
