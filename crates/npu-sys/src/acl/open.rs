//! Opening the library and a device, and giving all of it back.

use std::env;
use std::ffi::{CStr, OsString};
use std::path::Path;
use std::sync::Arc;

use crate::acl::current::{Current, Device, recent_text};
use crate::acl::events::Events;
use crate::acl::host::HostMemory;
use crate::acl::memory::DeviceMemory;
use crate::acl::reports::Reports;
use crate::acl::streams::Streams;
use crate::acl::sys::{self, Api, aclCANNPackageVersion, aclError};
use crate::acl::{AclDriver, State, failure, function};
use crate::drop_failures;
use crate::error::{DriverError, ErrorKind, OpenError};
use crate::load::Library;
use crate::types::{DeviceProperties, MemoryInfo};

const NAME: &str = "libascendcl.so";
const VARIABLE: &str = "SMARTSWAP_ACL_LIBRARY";
const HINT: &str = "install CANN and run `source .../set_env.sh` of it, which puts its libraries \
                    on the loader's path, or name the file in SMARTSWAP_ACL_LIBRARY";

/// The device name by which the stand-in library of the tests says that the host can address
/// its memory. No call of the vendor's tells that.
const STAND_IN: &str = "SmartSwap stand-in";

impl AclDriver {
    /// Opens device `index`, counted from 0 among those that the process may see.
    ///
    /// The library is the file that `SMARTSWAP_ACL_LIBRARY` names, else `libascendcl.so` where the
    /// system's loader finds it.
    ///
    /// # Errors
    /// No library, a wrong one or one without a needed function, no such device, or a failure of
    /// the device.
    pub fn open(index: u32) -> Result<Arc<AclDriver>, OpenError> {
        AclDriver::open_with(load()?, index)
    }

    /// As [`open`](AclDriver::open), with the library in this file, whatever the environment says.
    ///
    /// # Errors
    /// As for `open`.
    ///
    /// # Safety
    /// The file is Ascend's library, or one whose functions do what Ascend's do.
    pub unsafe fn open_from(library: &Path, index: u32) -> Result<Arc<AclDriver>, OpenError> {
        // SAFETY: the caller's promise.
        AclDriver::open_with(unsafe { load_from(library) }?, index)
    }

    fn open_with(api: Api, index: u32) -> Result<Arc<AclDriver>, OpenError> {
        Ok(Arc::new(AclDriver { state: Arc::new(open(api, index)?) }))
    }

    /// The number of devices that [`open`](AclDriver::open) can open.
    ///
    /// # Errors
    /// As for `open`, without those of a device.
    pub fn device_count() -> Result<u32, OpenError> {
        device_count(&load()?)
    }
}

/// Loads the library that the environment names, or the system's, and starts it.
pub(super) fn load() -> Result<Api, OpenError> {
    let named = env::var_os(VARIABLE).filter(|value| !value.is_empty());
    let library = named.unwrap_or_else(|| OsString::from(NAME));
    // SAFETY: the vendor's name. Who sets a process's environment decides what code it loads, as
    // with the loader's own variables.
    unsafe { load_from(Path::new(&library)) }
}

/// Loads the library in this file and starts it.
///
/// # Safety
/// It is Ascend's, or does what Ascend's does.
pub(super) unsafe fn load_from(library: &Path) -> Result<Api, OpenError> {
    // SAFETY: the caller's promise.
    let library = unsafe { Library::open(NAME, HINT, &[library.as_os_str()]) }?;
    let api = Api::load(&library)?;
    // SAFETY: without a file of settings the library takes its own.
    let code = unsafe { (api.aclInit)(std::ptr::null()) };
    // Somebody else in the process may have done it.
    if code != sys::ACL_ERROR_REPEAT_INITIALIZE {
        check(&api, "aclInit", code)?;
    }
    Ok(api)
}

fn check(api: &Api, symbol: &'static str, code: aclError) -> Result<(), DriverError> {
    match code {
        sys::ACL_SUCCESS => Ok(()),
        code => Err(failure::error("open", symbol, code, &recent_text(api))),
    }
}

pub(super) fn device_count(api: &Api) -> Result<u32, OpenError> {
    let mut count = 0;
    // SAFETY: the library writes one number.
    let code = unsafe { (api.aclrtGetDeviceCount)(&mut count) };
    check(api, "aclrtGetDeviceCount", code)?;
    Ok(count)
}

pub(super) fn open(api: Api, index: u32) -> Result<State, OpenError> {
    let count = device_count(&api)?;
    let number = i32::try_from(index).ok().filter(|_| index < count);
    let Some(number) = number else {
        return Err(OpenError::NoDevice { name: NAME, index, count });
    };
    let device = Arc::new(Device { api, index: number });
    let now = device.enter("open")?;
    let memory = DeviceMemory::new(&now);
    let host = HostMemory::default();
    let name = device_name(&now);
    let no_virtual_memory = probe(&now, &memory)?;
    let properties = DeviceProperties {
        total_bytes: memory_info(&now)?.total_bytes,
        granularity_bytes: memory.granularity_bytes(),
        host_mapping: host.mapping(&now),
        has_virtual_memory: no_virtual_memory.is_none(),
        map_waits_for_copies: false,
        is_host_addressable: name == STAND_IN,
        driver_version: version(&now),
        // The library does not tell the device's place on the bus in all its versions.
        numa_node: None,
        name,
    };
    drop(now);
    Ok(State {
        reports: Reports::new(Arc::clone(&device)),
        device,
        properties,
        no_virtual_memory,
        memory,
        host,
        streams: Streams::default(),
        events: Events::default(),
        failure: Arc::default(),
    })
}

/// Why the device has no virtual memory; `None` if it has.
///
/// # Errors
/// A device that could not be asked.
fn probe(now: &Current<'_>, memory: &DeviceMemory) -> Result<Option<DriverError>, DriverError> {
    match memory.probe(now) {
        Some(error) if error.kind != ErrorKind::Unsupported => Err(error),
        answer => Ok(answer),
    }
}

pub(super) fn memory_info(now: &Current<'_>) -> Result<MemoryInfo, DriverError> {
    let [mut free, mut total] = [0, 0];
    // SAFETY: the library writes two numbers.
    let code = unsafe { (now.api.aclrtGetMemInfo)(sys::ACL_HBM_MEM, &mut free, &mut total) };
    now.check("aclrtGetMemInfo", code)?;
    Ok(MemoryInfo { free_bytes: free as u64, total_bytes: total as u64 })
}

fn device_name(now: &Current<'_>) -> String {
    // SAFETY: it takes nothing.
    let name = unsafe { (now.api.aclrtGetSocName)() };
    if name.is_null() {
        return "Ascend".to_owned();
    }
    // SAFETY: a text of the library's that ends in a zero and stays.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// Versions of the runtime and of the packages around it, where they can be asked for.
fn version(now: &Current<'_>) -> String {
    let mut parts = Vec::new();
    if let Some(ask) = now.api.aclrtGetVersion {
        let [mut major, mut minor, mut patch] = [0, 0, 0];
        // SAFETY: the library writes three numbers.
        if unsafe { ask(&mut major, &mut minor, &mut patch) } == sys::ACL_SUCCESS {
            parts.push(format!("runtime {major}.{minor}.{patch}"));
        }
    }
    if let Some(ask) = now.api.aclsysGetCANNVersion {
        let mut version = aclCANNPackageVersion::EMPTY;
        // SAFETY: the library fills a structure of its own type.
        if unsafe { ask(sys::ACL_PKG_NAME_CANN, &mut version) } == sys::ACL_SUCCESS {
            let bytes = version.version.map(|letter| letter.to_ne_bytes()[0]);
            if let Ok(text) = CStr::from_bytes_until_nul(&bytes)
                && !text.is_empty()
            {
                parts.push(format!("CANN {}", text.to_string_lossy()));
            }
        }
    }
    match parts.is_empty() {
        true => "unknown".to_owned(),
        false => parts.join(", "),
    }
}

impl State {
    /// Waits for all work and gives everything back.
    ///
    /// # Safety
    /// The driver is gone, and with it all callers.
    pub(super) unsafe fn close(&self) {
        match self.device.enter("drop") {
            Ok(now) => {
                // SAFETY: the caller's promise.
                unsafe { self.streams.destroy_all(&now, &self.reports) };
                // SAFETY: the caller's promise; the streams are gone.
                unsafe { self.events.destroy_all(&now) };
                // SAFETY: all streams are synchronized and gone, and all callers.
                unsafe { self.host.free_all(&now) };
                // SAFETY: as for the host's memory.
                unsafe { self.memory.free_all(&now) };
            }
            // A device that is lost has nothing to give back.
            Err(error) => drop_failures::note::<()>(Err(error)),
        }
        self.reports.end();
    }
}

impl Drop for AclDriver {
    fn drop(&mut self) {
        let state = Arc::clone(&self.state);
        // The stream of a host function can be waited for only after the function.
        // SAFETY: this is the end of the driver.
        function::outside(move || unsafe { state.close() });
    }
}
