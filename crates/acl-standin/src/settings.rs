//! The settings of the stand-in, from environment variables.

use std::ffi::OsString;

use npu_sys::Bytes;
use npu_sys::devices::{HostConfig, HostLink, Mode, Order};

use crate::failure::{Failure, INVALID_PARAM, Outcome, refuse};

/// Work that a stream holds: more than anybody submits, so that no call waits for a place while
/// it holds the library's lock.
const QUEUE_DEPTH: usize = 1 << 20;
/// The least that addresses for huge pages come in.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// More devices than any host has.
const DEVICES_MAX: u64 = 64;

/// How the devices are.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) device_count: usize,
    pub(crate) device: HostConfig,
    pub(crate) has_virtual_memory: bool,
    pub(crate) has_va_flag: bool,
    /// Whether the reset of a device frees what it holds, or is refused.
    pub(crate) reset_frees: bool,
}

impl Settings {
    /// Reads the settings with `read`, which gives a variable's value.
    pub(crate) fn read(read: impl Fn(&str) -> Option<OsString>) -> Outcome<Settings> {
        let text = |name: &'static str| match read(name).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(text)) => Ok(Some(text)),
            Some(Err(_)) => refuse(INVALID_PARAM, format!("{name} is not UTF-8")),
        };
        let size = |name: &'static str, suffix: &str| match text(name)? {
            None => Ok(None),
            Some(value) => {
                let Bytes(bytes) = value
                    .strip_suffix(suffix)
                    .unwrap_or(&value)
                    .parse()
                    .map_err(|error| Failure::new(INVALID_PARAM, format!("{name}: {error}")))?;
                match bytes {
                    0 => refuse(INVALID_PARAM, format!("{name} is 0: it must be more")),
                    _ => Ok(Some(bytes)),
                }
            }
        };
        let switch = |name: &'static str| match text(name)?.as_deref() {
            None | Some("on") => Ok(true),
            Some("off") => Ok(false),
            Some(other) => refuse(INVALID_PARAM, format!("{name} is '{other}': write on or off")),
        };
        let reset_frees = match text("ACL_STANDIN_RESET")?.as_deref() {
            None | Some("refuses") => false,
            Some("frees") => true,
            Some(other) => {
                let text = format!("ACL_STANDIN_RESET is '{other}': write refuses or frees");
                return refuse(INVALID_PARAM, text);
            }
        };
        let granularity_bytes = size("ACL_STANDIN_GRANULARITY", "")?.unwrap_or(HUGE_PAGE_BYTES);
        if !granularity_bytes.is_power_of_two() || granularity_bytes < HUGE_PAGE_BYTES {
            let text = format!(
                "ACL_STANDIN_GRANULARITY is {granularity_bytes}: it must be a power of two of at \
                 least a huge page of {HUGE_PAGE_BYTES} bytes"
            );
            return refuse(INVALID_PARAM, text);
        }
        let capacity_bytes = size("ACL_STANDIN_MEMORY", "")?.unwrap_or(64 << 30);
        let device = HostConfig {
            capacity_bytes,
            granularity_bytes,
            host_limit_bytes: size("ACL_STANDIN_HOST_LIMIT", "")?,
            link: size("ACL_STANDIN_LINK", "/s")?.map(HostLink::duplex),
            queue_depth: QUEUE_DEPTH,
            mode: mode(text("ACL_STANDIN_MODE")?.as_deref())?,
            ..HostConfig::threads(capacity_bytes)
        };
        Ok(Settings {
            device_count: device_count(text("ACL_STANDIN_DEVICES")?.as_deref())?,
            device,
            has_virtual_memory: switch("ACL_STANDIN_VMM")?,
            has_va_flag: switch("ACL_STANDIN_VA_FLAG")?,
            reset_frees,
        })
    }
}

fn mode(text: Option<&str>) -> Outcome<Mode> {
    match text {
        None | Some("threads") => return Ok(Mode::Threads),
        Some("by-time") => return Ok(Mode::Lockstep(Order::ByTime)),
        Some(_) => {}
    }
    let text = text.unwrap_or_default();
    match text.strip_prefix("seed:").map(str::parse) {
        Some(Ok(seed)) => Ok(Mode::Lockstep(Order::Seeded(seed))),
        _ => refuse(
            INVALID_PARAM,
            format!("ACL_STANDIN_MODE is '{text}': write threads, by-time or seed:N"),
        ),
    }
}

fn device_count(text: Option<&str>) -> Outcome<usize> {
    let Some(text) = text else { return Ok(1) };
    match text.parse::<u64>() {
        Ok(count) if (1..=DEVICES_MAX).contains(&count) => Ok(count as usize),
        _ => refuse(
            INVALID_PARAM,
            format!("ACL_STANDIN_DEVICES is '{text}': write a number from 1 to {DEVICES_MAX}"),
        ),
    }
}
