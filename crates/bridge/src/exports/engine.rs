//! Opening and closing the engine, and the settings as C writes them.

use std::ffi::{CStr, c_char, c_int};
use std::path::{Path, PathBuf};

use adaptive::{Named, Settings as FileSettings};

use crate::context;
use crate::failure::{Failure, code, guard, last_text, text_of};
use crate::settings::Wishes;

/// The version of the interface: `SMARTSWAP_ABI_VERSION`.
const ABI_VERSION: u32 = 6;

/// `smartswap_settings`.
#[derive(Debug)]
#[repr(C)]
pub struct SmartswapSettings {
    struct_size: u32,
    device: *const c_char,
    memory_bytes: u64,
    host_memory_bytes: u64,
    min_block_bytes: u64,
    compute_stream: u64,
    prefer: *const c_char,
    strategy: *const c_char,
    config_file: *const c_char,
    record_file: *const c_char,
}

const STRUCT_SIZE: u32 = size_of::<SmartswapSettings>() as u32;

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_abi_version() -> u32 {
    ABI_VERSION
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_last_error() -> *const c_char {
    last_text()
}

/// See `smartswap.h`.
///
/// # Safety
/// `settings` is null or points to memory for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smartswap_default_settings(settings: *mut SmartswapSettings) {
    let defaults = SmartswapSettings {
        struct_size: STRUCT_SIZE,
        device: c"host".as_ptr(),
        memory_bytes: 0,
        host_memory_bytes: 0,
        min_block_bytes: 0,
        compute_stream: 0,
        prefer: std::ptr::null(),
        strategy: std::ptr::null(),
        config_file: std::ptr::null(),
        record_file: std::ptr::null(),
    };
    if !settings.is_null() {
        // SAFETY: the caller promises memory for one.
        unsafe { settings.write(defaults) };
    }
}

/// See `smartswap.h`.
///
/// # Safety
/// `settings` is null or points to one, whose texts are null or end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smartswap_open(settings: *const SmartswapSettings) -> c_int {
    code(|| {
        // SAFETY: the caller promises null or a pointer to one that nobody changes meanwhile.
        let settings = unsafe { settings.as_ref() };
        let settings = settings.ok_or_else(|| Failure::usage("settings is NULL"))?;
        context::open(&wishes(settings)?)
    })
}

fn wishes(settings: &SmartswapSettings) -> Result<Wishes, Failure> {
    if settings.struct_size != STRUCT_SIZE {
        return Err(Failure::usage(
            "struct_size is not sizeof(smartswap_settings): start from \
             smartswap_default_settings, with the header that came with the library",
        ));
    }
    let given = |bytes: u64| (bytes > 0).then_some(bytes);
    let device = text(settings.device, "device")?.unwrap_or("host");
    let config_file = text(settings.config_file, "config_file")?;
    let file = config_file.map(|path| FileSettings::load(Path::new(path))).transpose()?;
    Ok(Wishes {
        device: device.parse().map_err(Failure::settings)?,
        memory_bytes: given(settings.memory_bytes),
        host_memory_bytes: given(settings.host_memory_bytes),
        min_block_bytes: given(settings.min_block_bytes),
        compute_stream: settings.compute_stream,
        prefer: choice(settings.prefer, "prefer")?,
        strategy: choice(settings.strategy, "strategy")?,
        file: file.unwrap_or_default(),
        record_file: text(settings.record_file, "record_file")?.map(PathBuf::from),
    })
}

/// A value of the settings by its name.
fn choice<T: Named>(pointer: *const c_char, what: &str) -> Result<Option<T>, Failure> {
    let Some(name) = text(pointer, what)? else { return Ok(None) };
    let refuse = |names| Failure::settings(format!("{what} is {names}, not '{name}'"));
    T::named(name).map(Some).map_err(refuse)
}

/// A text of the settings, which live as long as the call.
fn text<'a>(pointer: *const c_char, what: &str) -> Result<Option<&'a str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, so the caller of the exported function promises a zero at the end.
    text_of(Some(unsafe { CStr::from_ptr(pointer) }), what)
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_close() -> c_int {
    code(context::close)
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_is_open() -> c_int {
    c_int::from(context::is_open())
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_compute_stream() -> u64 {
    guard(|| Ok(context::current()?.compute_stream)).unwrap_or(0)
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_bring_home() -> c_int {
    code(|| context::current()?.bring_home())
}
