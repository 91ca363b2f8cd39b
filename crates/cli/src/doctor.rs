//! The command `doctor`: what this machine and its devices can do, in figures and in words.

use std::process::ExitCode;
use std::sync::Arc;

use adaptive::devices::{
    AclDriver, CudaDriver, HostConfig, HostDriver, HostMemory, OpenError, measure_link,
    measure_map, numa_nodes,
};
use adaptive::{Bytes, DeviceName, DeviceProperties, Driver};

use crate::args::DoctorArgs;
use crate::open::Accelerator;
use crate::train::say;

mod report;
mod software;
mod steps;

use report::{Device, DriverReport, LinkSpeed, Machine, MapCalls, Report};
use software::Software;

/// Copies are timed in pieces of this size: tensors that move are of its kind.
const PIECE_BYTES: u64 = 64 << 20;
/// Copies of a piece each way. They take under a second on any link worth using.
const COPIES: u32 = 12;
/// Times that each memory call is made.
const CALLS: u32 = 8;
/// Device memory that the measurements need, with room for the driver's own.
const ROOM_BYTES: u64 = 4 * PIECE_BYTES;

/// Runs the command. Exit code 1 says that the one device that was asked for does not do what it
/// must.
///
/// # Errors
/// If the output cannot be written. A device that is missing or broken is a finding, no error.
pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let drivers = match args.device {
        Some(name) => vec![one(name)],
        None => vec![host(), cuda(), acl()],
    };
    let report = Report {
        software: Software::read(),
        machine: machine(),
        drivers,
        is_of_one_device: args.device.is_some(),
    };
    let text = if args.json { report::json(&report)? + "\n" } else { report::text(&report) };
    say(&text)?;
    let is_ready = args.device.is_none() || report.drivers.iter().all(DriverReport::is_ready);
    Ok(if is_ready { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn machine() -> Machine {
    let memory = HostMemory::read();
    let nodes = numa_nodes().len();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Machine { memory, nodes, cores }
}

/// The embedded software device; it is always there.
fn host() -> DriverReport {
    let opened = HostDriver::new(HostConfig::threads(ROOM_BYTES));
    let device = opened.map(|driver| examine("host".to_owned(), driver));
    DriverReport::new("host", device.map(|device| vec![device]).map_err(OpenError::from))
}

/// One device, examined and tried.
fn one(name: DeviceName) -> DriverReport {
    let device = open(name).map(|(driver, accelerator)| {
        let mut device = examine(name.to_string(), Arc::clone(&driver));
        if device.is_ready() {
            device.note_steps(steps::run(name, &driver, accelerator.as_ref()));
        }
        device
    });
    DriverReport::new(name.kind(), device.map(|device| vec![device]))
}

fn open(name: DeviceName) -> Result<(Arc<dyn Driver>, Option<Accelerator>), OpenError> {
    let accelerator = Accelerator::open(name)?;
    let driver = match &accelerator {
        Some(accelerator) => accelerator.driver(),
        None => HostDriver::new(HostConfig::threads(ROOM_BYTES))?,
    };
    Ok((driver, accelerator))
}

fn cuda() -> DriverReport {
    let open = |index| CudaDriver::open(index).map(|driver| -> Arc<dyn Driver> { driver });
    DriverReport::new("cuda", devices("cuda", CudaDriver::device_count(), open))
}

fn acl() -> DriverReport {
    let open = |index| AclDriver::open(index).map(|driver| -> Arc<dyn Driver> { driver });
    DriverReport::new("acl", devices("acl", AclDriver::device_count(), open))
}

/// Examines all devices of one driver.
fn devices(
    kind: &str,
    count: Result<u32, OpenError>,
    open: impl Fn(u32) -> Result<Arc<dyn Driver>, OpenError>,
) -> Result<Vec<Device>, OpenError> {
    let examined = (0..count?).map(|index| {
        let name = format!("{kind}:{index}");
        match open(index) {
            Ok(driver) => examine(name, driver),
            Err(error) => Device::broken(name, error.to_string()),
        }
    });
    Ok(examined.collect())
}

/// Measures one device. What cannot be measured is left out, and the verdict says why.
fn examine(name: String, driver: Arc<dyn Driver>) -> Device {
    let properties = driver.properties();
    let mut device = Device::new(name, &properties);
    let findings = measure(&driver, &properties, &mut device);
    device.judge(findings.err());
    device
}

/// Fills in the figures; the error says what kept it from going on.
fn measure(
    driver: &Arc<dyn Driver>,
    properties: &DeviceProperties,
    device: &mut Device,
) -> Result<(), String> {
    let info = driver.memory_info().map_err(|error| error.to_string())?;
    device.free_bytes = Some(info.free_bytes);
    if !properties.has_virtual_memory {
        return Err(format!(
            "its driver {} cannot move memory under an address, so nothing can be swapped: \
             update it",
            properties.driver_version
        ));
    }
    if info.free_bytes < ROOM_BYTES {
        return Err(format!(
            "only {} of its memory are free; link and calls were not measured",
            Bytes(info.free_bytes)
        ));
    }
    let piece_bytes = PIECE_BYTES.next_multiple_of(properties.granularity_bytes);
    let costs = measure_map(driver, piece_bytes, CALLS).map_err(|error| error.to_string())?;
    device.map_calls = Some(MapCalls::new(piece_bytes, costs));
    let rates = measure_link(driver, piece_bytes, COPIES).map_err(|error| error.to_string())?;
    device.link = Some(LinkSpeed::new(rates));
    Ok(())
}
