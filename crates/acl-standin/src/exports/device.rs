//! Devices and contexts.

use npu_sys::Driver;

use crate::abi::{Opaque, Out, address, pointer};
use crate::entry::exports;
use crate::failure::{INVALID_PARAM, RT_FEATURE_NOT_SUPPORT, RT_PARAM_INVALID, refuse};
use crate::runtime;
use crate::tables::{Context, Token, token};

const RUN_MODE_HOST: i32 = 1;
const DEVICE_STATUS_NORMAL: i32 = 0;
const TOTAL_GLOBAL_MEM_SIZE: i32 = 301;
const PRIORITY_LEAST: i32 = 7;
const PRIORITY_GREATEST: i32 = 0;

/// Checks a device given as a signed number.
fn check_device(id: i32) -> crate::failure::Outcome<usize> {
    runtime::runtime()?.device(i64::from(id))
}

exports! {
    /// Number of devices.
    fn aclrtGetDeviceCount(count: Out<u32>) {
        count.check("count")?;
        count.put(runtime::device_count()? as u32);
        Ok(())
    }

    /// Makes a device the thread's own.
    fn aclrtSetDevice(device: i32) {
        let runtime = runtime::runtime()?;
        runtime.set_device(runtime.device(i64::from(device))?)
    }

    /// The thread's device.
    fn aclrtGetDevice(device: Out<i32>) {
        device.check("deviceId")?;
        device.put(runtime::enter()?.device as i32);
        Ok(())
    }

    /// Ends the use of a device. Everything of it must have been given back.
    fn aclrtResetDevice(device: i32) {
        let runtime = runtime::runtime()?;
        runtime.reset_device(runtime.device(i64::from(device))?)
    }

    /// Where the program runs: on the host.
    fn aclrtGetRunMode(mode: Out<i32>) {
        mode.check("runMode")?;
        mode.put(RUN_MODE_HOST);
        Ok(())
    }

    /// Waits for all work of the thread's device.
    fn aclrtSynchronizeDevice() {
        let scope = runtime::enter()?;
        let submitted: Vec<(Token, u64)> = {
            let tables = scope.tables();
            let own = tables.streams.iter().filter(|(_, stream)| stream.device == scope.device);
            own.map(|(&token, stream)| (token, stream.submitted)).collect()
        };
        scope.driver().synchronize()?;
        let mut tables = scope.tables();
        submitted.into_iter().for_each(|(token, count)| tables.see(token, count));
        scope.runtime.tell_failure(scope.device)
    }

    /// Makes a context of a device, and the thread's own.
    fn aclrtCreateContext(context: Out<Opaque>, device: i32) {
        context.check("context")?;
        let runtime = runtime::runtime()?;
        let device = runtime.device(i64::from(device))?;
        runtime.set_device(device)?;
        let mut tables = runtime.tables();
        let token = token();
        tables.contexts.insert(token, Context { device, is_default: false });
        runtime::set_current(Some(token));
        context.put(pointer(token as u64));
        Ok(())
    }

    /// Ends a context. Its streams and events must be destroyed.
    fn aclrtDestroyContext(context: Opaque) {
        let runtime = runtime::runtime()?;
        let token = address(context) as Token;
        let mut tables = runtime.tables();
        match tables.contexts.get(&token) {
            Some(found) if !found.is_default => {}
            _ => return refuse(RT_PARAM_INVALID, "not a context that was created"),
        }
        let is_used = tables.streams.values().any(|stream| stream.context == token)
            || tables.events.values().any(|event| event.context == token);
        if is_used {
            return refuse(RT_PARAM_INVALID, "the context still has streams or events");
        }
        tables.contexts.remove(&token);
        if runtime::current() == Some(token) {
            runtime::set_current(None);
        }
        Ok(())
    }

    /// Makes a context the thread's own.
    fn aclrtSetCurrentContext(context: Opaque) {
        let runtime = runtime::runtime()?;
        let token = address(context) as Token;
        if !runtime.tables().contexts.contains_key(&token) {
            return refuse(RT_PARAM_INVALID, "not a context, or destroyed");
        }
        runtime::set_current(Some(token));
        Ok(())
    }

    /// The thread's context.
    fn aclrtGetCurrentContext(context: Out<Opaque>) {
        context.check("context")?;
        context.put(pointer(runtime::enter()?.context as u64));
        Ok(())
    }

    /// One fact about a device. Only its memory is known.
    fn aclrtGetDeviceInfo(device: u32, attribute: i32, value: Out<i64>) {
        value.check("value")?;
        let runtime = runtime::runtime()?;
        let device = runtime.device(i64::from(device))?;
        if attribute != TOTAL_GLOBAL_MEM_SIZE {
            return refuse(RT_FEATURE_NOT_SUPPORT, format!("attribute {attribute}"));
        }
        value.put(runtime.drivers[device].properties().total_bytes as i64);
        Ok(())
    }

    /// 16 bytes that tell devices apart.
    fn aclrtDeviceGetUuid(device: i32, uuid: Out<[u8; 16]>) {
        uuid.check("uuid")?;
        let device = check_device(device)?;
        let mut bytes = *b"acl-standin    0";
        bytes[15] = device as u8;
        uuid.put(bytes);
        Ok(())
    }

    /// Whether one device reaches another's memory: never.
    fn aclrtDeviceCanAccessPeer(can_access: Out<i32>, device: i32, peer: i32) {
        can_access.check("canAccessPeer")?;
        check_device(device)?;
        check_device(peer)?;
        can_access.put(0);
        Ok(())
    }

    /// Lets the device reach another's memory: it cannot.
    fn aclrtDeviceEnablePeerAccess(peer: i32, flags: u32) {
        runtime::enter()?;
        check_device(peer)?;
        if flags != 0 {
            return refuse(INVALID_PARAM, format!("flags are {flags}, not 0"));
        }
        refuse(RT_FEATURE_NOT_SUPPORT, "no device reaches another's memory")
    }

    /// The number of a device without the remapping of visible devices.
    fn aclrtGetPhyDevIdByLogicDevId(device: i32, physical: Out<i32>) {
        physical.check("phyDevId")?;
        physical.put(check_device(device)? as i32);
        Ok(())
    }

    /// Whether a device works.
    fn aclrtQueryDeviceStatus(device: i32, status: Out<i32>) {
        status.check("deviceStatus")?;
        check_device(device)?;
        status.put(DEVICE_STATUS_NORMAL);
        Ok(())
    }

    /// The number of this process, as the device's owner sees it.
    fn aclrtDeviceGetBareTgid(process: Out<i32>) {
        process.check("pid")?;
        process.put(std::process::id() as i32);
        Ok(())
    }

    /// Priorities that a stream can have.
    fn aclrtDeviceGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        least.check("leastPriority")?;
        greatest.check("greatestPriority")?;
        runtime::enter()?;
        least.put(PRIORITY_LEAST);
        greatest.put(PRIORITY_GREATEST);
        Ok(())
    }
}
