//! What the reset of a device takes with it, where `ACL_STANDIN_RESET` lets it.

use npu_sys::devices::HostDriver;
use npu_sys::{DevicePtr, Driver, HostPtr, VaRange};

use crate::failure::Outcome;
use crate::tables::Tables;

/// Takes the entries of one device out of a table.
macro_rules! take {
    ($table:expr, $device:expr) => {
        $table.extract_if(.., |_, entry| entry.device == $device).collect::<Vec<_>>()
    };
}

/// Gives back all that a device holds. Whoever uses it later finds nothing there.
pub(crate) fn give_back(tables: &mut Tables, device: usize, driver: &HostDriver) -> Outcome {
    driver.synchronize()?;
    for (_, event) in take!(tables.events, device) {
        for wait in event.waits {
            driver.destroy_event(wait.mark)?;
        }
        driver.destroy_event(event.handle)?;
    }
    tables.devices[device].marks = 0;
    let default_stream = tables.devices[device].streams.map(|(token, _)| token);
    let made = |token: &usize| Some(*token) != default_stream;
    let streams = tables
        .streams
        .extract_if(.., |token, stream| stream.device == device && made(token))
        .collect::<Vec<_>>();
    for (_, stream) in streams {
        driver.destroy_stream(stream.handle)?;
    }
    tables.contexts.retain(|_, context| context.device != device || context.is_default);
    for (start, mapping) in take!(tables.mappings, device) {
        let range = VaRange { start: DevicePtr(start), size_bytes: mapping.size_bytes };
        // SAFETY: the device has no work left, and is told to end.
        unsafe { driver.unmap(range) }?;
    }
    for (_, allocation) in take!(tables.allocations, device) {
        // SAFETY: as above.
        unsafe { driver.unmap(allocation.range) }?;
        driver.free_range(allocation.range)?;
        driver.release_chunk(allocation.chunk)?;
    }
    for (_, range) in take!(tables.ranges, device) {
        driver.free_range(range.range)?;
    }
    for (_, physical) in take!(tables.physical, device) {
        driver.release_chunk(physical.chunk)?;
    }
    for (start, registered) in take!(tables.registered, device) {
        if !registered.is_pinned_already {
            // SAFETY: as above.
            unsafe { driver.unregister_host(HostPtr(start)) }?;
        }
    }
    for (start, _) in take!(tables.host, device) {
        // SAFETY: as above.
        unsafe { driver.free_pinned(HostPtr(start)) }?;
    }
    Ok(())
}
