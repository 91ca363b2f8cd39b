//! What frameworks call for logs, profiles and dumps, and to load kernels of their own.

use std::ffi::c_char;

use crate::abi::{Opaque, Out};
use crate::entry::exports;
use crate::failure::{RT_FEATURE_NOT_SUPPORT, refuse};

const CORES: i64 = 20;
const L2_BYTES: i64 = 192 << 20;

/// A line for the device's log, which is not kept. What comes behind the format is not read.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // The library's own name.
pub extern "C" fn aclAppLog(
    _level: i32,
    _function: *const c_char,
    _file: *const c_char,
    _line: u32,
    _format: *const c_char,
) {
}

/// The profiler's clock, which stands still: nothing is profiled.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // The library's own name.
pub extern "C" fn MsprofSysCycleTime() -> u64 {
    0
}

/// The profiler's number of a text.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // The library's own name.
pub extern "C" fn MsprofGetHashId(_text: *const c_char, _length: usize) -> u64 {
    0
}

exports! {
    /// Notes a call for the profiler, which is off.
    fn MsprofReportApi(_is_aging: u32, _api: Opaque) {
        Ok(())
    }

    /// Notes facts for the profiler, which is off.
    fn MsprofReportCompactInfo(_is_aging: u32, _facts: Opaque, _length: u32) {
        Ok(())
    }

    /// Notes more facts for the profiler, which is off.
    fn MsprofReportAdditionalInfo(_is_aging: u32, _facts: Opaque, _length: u32) {
        Ok(())
    }

    /// Whom the profiler is to tell when it begins, which it never does.
    fn MsprofRegisterCallback(_module: u32, _callback: Opaque) {
        Ok(())
    }

    /// Begins dumps of operators. None are written.
    fn aclmdlInitDump() {
        Ok(())
    }

    /// What to dump. Nothing is written.
    fn aclmdlSetDump(_path: *const c_char) {
        Ok(())
    }

    /// Ends dumps.
    fn aclmdlFinalizeDump() {
        Ok(())
    }

    /// One fact about a device's hardware.
    fn aclGetDeviceCapability(_device: u32, fact: i32, value: Out<i64>) {
        value.check("value")?;
        match fact {
            0 | 1 => value.put(CORES),
            2 => value.put(L2_BYTES),
            _ => return refuse(RT_FEATURE_NOT_SUPPORT, format!("fact {fact}")),
        }
        Ok(())
    }

    /// Loads machine code for the device, which has none.
    fn rtDevBinaryRegister(_binary: Opaque, _handle: Opaque) {
        refuse(RT_FEATURE_NOT_SUPPORT, "kernels in machine code")
    }

    /// Names a kernel in machine code.
    fn rtFunctionRegister(
        _binary: Opaque, _stub: Opaque, _name: *const c_char, _symbol: Opaque, _mode: u32,
    ) {
        refuse(RT_FEATURE_NOT_SUPPORT, "kernels in machine code")
    }

    /// Runs a kernel in machine code.
    fn rtKernelLaunch(
        _stub: Opaque, _blocks: u32, _arguments: Opaque, _length: u32, _memory: Opaque,
        _stream: Opaque,
    ) {
        refuse(RT_FEATURE_NOT_SUPPORT, "kernels in machine code")
    }

    /// What happens on overflow: numbers become infinite, which is mode 1.
    fn aclrtSetDeviceSatMode(_mode: i32) {
        Ok(())
    }

    /// An option of the compiler of operators, which has none.
    fn aclSetCompileopt(_option: i32, _value: *const c_char) {
        Ok(())
    }

    /// How long an operator may take: as long as it needs.
    fn aclrtSetOpExecuteTimeOut(_seconds: u32) {
        Ok(())
    }

    /// How long a stream may wait for an event: as long as it needs.
    fn aclrtSetOpWaitTimeout(_seconds: u32) {
        Ok(())
    }
}
