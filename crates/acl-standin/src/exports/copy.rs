//! Copies and fills.

use npu_sys::{Copy, DevicePtr, Driver, HostFunction, HostPtr};

use crate::abi::{Opaque, address, pointer};
use crate::addresses::{Direction, MemoryKind};
use crate::entry::exports;
use crate::failure::{
    INVALID_PARAM, Outcome, RT_ADDR_UNALIGNED, RT_FEATURE_NOT_SUPPORT, RT_PARAM_INVALID, refuse,
};
use crate::runtime::{self, Scope};
use crate::tables::{Tables, Token};

/// Addresses of copies inside the device are multiples of this on a stream.
const WITHIN_ALIGN_BYTES: u64 = 64;

/// A copy whose addresses were checked.
#[derive(Clone, Copy, Debug)]
struct Checked {
    to: u64,
    from: u64,
    size_bytes: u64,
    direction: Direction,
    /// Host memory takes part that is not pinned.
    is_pageable: bool,
}

impl Checked {
    fn new(
        (tables, scope): (&Tables, &Scope),
        (to, to_bytes_max): (Opaque, usize),
        (from, size): (Opaque, usize),
        kind: i32,
    ) -> Outcome<Checked> {
        if size == 0 || to_bytes_max < size {
            let text = format!("{size} bytes do not go into destMax of {to_bytes_max} bytes");
            return refuse(INVALID_PARAM, text);
        }
        let (to, from, size_bytes) = (address(to), address(from), size as u64);
        let to_kind = tables.memory_kind(scope, to, size_bytes)?;
        let from_kind = tables.memory_kind(scope, from, size_bytes)?;
        let direction = Direction::of(kind, to_kind, from_kind)?;
        if to.abs_diff(from) < size_bytes {
            return refuse(RT_PARAM_INVALID, format!("{to:#x} and {from:#x} overlap"));
        }
        let is_pageable = to_kind == MemoryKind::Pageable || from_kind == MemoryKind::Pageable;
        Ok(Checked { to, from, size_bytes, direction, is_pageable })
    }

    /// The copy as the host driver knows it. `None` if it does not know the host memory.
    fn known(self) -> Option<Copy> {
        let Checked { to, from, size_bytes, direction, is_pageable } = self;
        let device = (DevicePtr(from), DevicePtr(to));
        let host = (HostPtr(from), HostPtr(to));
        match direction {
            _ if is_pageable => None,
            Direction::HostToHost => None,
            Direction::HostToDevice => {
                Some(Copy::HostToDevice { source: host.0, target: device.1, size_bytes })
            }
            Direction::DeviceToHost => {
                Some(Copy::DeviceToHost { source: device.0, target: host.1, size_bytes })
            }
            Direction::DeviceToDevice => {
                Some(Copy::DeviceToDevice { source: device.0, target: device.1, size_bytes })
            }
        }
    }

    /// The copy as a function.
    fn function(self) -> HostFunction {
        work("copy", move || {
            let (to, from) = (pointer(self.to).cast::<u8>(), pointer(self.from).cast::<u8>());
            // SAFETY: the caller keeps both places until the copy is complete; see `exports!`.
            // That they do not overlap was checked.
            unsafe { to.copy_from_nonoverlapping(from, self.size_bytes as usize) };
        })
    }
}

/// Work for a stream that needs no declared memory.
fn work(name: &'static str, body: impl FnOnce() + Send + 'static) -> HostFunction {
    let body = Box::new(move |_: &npu_sys::Operands<'_>| body());
    HostFunction { name, accesses: Vec::new(), cost_us: 0.0, body }
}

/// Runs work now and waits for it.
fn run_now(scope: &Scope, function: HostFunction) -> Outcome {
    let stream = scope.copy_stream();
    // SAFETY: the function declares no accesses.
    unsafe { scope.driver().launch_host(function, stream) }?;
    Ok(scope.driver().synchronize_stream(stream)?)
}

/// Gives a copy to a stream. Memory that is not pinned makes it wait.
fn copy_on(
    (to, to_bytes_max): (Opaque, usize),
    (from, size): (Opaque, usize),
    kind: i32,
    stream: Opaque,
) -> Outcome {
    let scope = runtime::enter()?;
    let mut tables = scope.tables();
    let token = tables.stream_token(&scope, address(stream) as Token)?;
    let copy = Checked::new((&tables, &scope), (to, to_bytes_max), (from, size), kind)?;
    let Checked { to, from, direction, .. } = copy;
    if direction == Direction::HostToHost {
        return refuse(RT_FEATURE_NOT_SUPPORT, "copies from host to host on a stream");
    }
    let is_aligned =
        to.is_multiple_of(WITHIN_ALIGN_BYTES) && from.is_multiple_of(WITHIN_ALIGN_BYTES);
    if direction == Direction::DeviceToDevice && !is_aligned {
        let text = format!(
            "a copy inside the device to {to:#x} from {from:#x}: both must be multiples of \
             {WITHIN_ALIGN_BYTES}"
        );
        return refuse(RT_ADDR_UNALIGNED, text);
    }
    let driver = scope.driver();
    if let Some(copy) = copy.known() {
        // SAFETY: the caller keeps both places until the copy is complete; see `exports!`.
        return tables.submit(token, |stream| unsafe { driver.copy(copy, stream) });
    }
    // SAFETY: the function declares no accesses.
    tables.submit(token, |stream| unsafe { driver.launch_host(copy.function(), stream) })?;
    drop(tables);
    super::stream::synchronize(&scope, token)
}

/// Checks a fill, and says what memory it is.
fn check_fill(
    (tables, scope): (&Tables, &Scope),
    start: Opaque,
    size_max: usize,
    value: i32,
    size: usize,
) -> Outcome<(MemoryKind, u8)> {
    if size == 0 || size_max < size {
        let text = format!("{size} bytes do not go into maxCount of {size_max} bytes");
        return refuse(INVALID_PARAM, text);
    }
    let Ok(value) = u8::try_from(value) else {
        return refuse(RT_PARAM_INVALID, format!("{value} is not the value of a byte"));
    };
    let kind = tables.memory_kind(scope, address(start), size as u64)?;
    Ok((kind, value))
}

exports! {
    /// Copies now.
    fn aclrtMemcpy(to: Opaque, to_bytes_max: usize, from: Opaque, size: usize, kind: i32) {
        let scope = runtime::enter()?;
        let tables = scope.tables();
        let copy = Checked::new((&tables, &scope), (to, to_bytes_max), (from, size), kind)?;
        drop(tables);
        let Some(known) = copy.known() else { return run_now(&scope, copy.function()) };
        let stream = scope.copy_stream();
        // SAFETY: the caller keeps both places for the call; see `exports!`.
        unsafe { scope.driver().copy(known, stream) }?;
        Ok(scope.driver().synchronize_stream(stream)?)
    }

    /// Copies in stream order.
    fn aclrtMemcpyAsync(
        to: Opaque, to_bytes_max: usize, from: Opaque, size: usize, kind: i32, stream: Opaque,
    ) {
        copy_on((to, to_bytes_max), (from, size), kind, stream)
    }

    /// Copies in stream order, or waits if host memory is not pinned.
    fn aclrtMemcpyAsyncWithCondition(
        to: Opaque, to_bytes_max: usize, from: Opaque, size: usize, kind: i32, stream: Opaque,
    ) {
        copy_on((to, to_bytes_max), (from, size), kind, stream)
    }

    /// Sets bytes of host or device memory now.
    fn aclrtMemset(start: Opaque, size_max: usize, value: i32, size: usize) {
        let scope = runtime::enter()?;
        let tables = scope.tables();
        let (_, value) = check_fill((&tables, &scope), start, size_max, value, size)?;
        drop(tables);
        let start = address(start);
        run_now(&scope, work("set", move || {
            // SAFETY: the caller keeps the memory for the call; see `exports!`.
            unsafe { pointer(start).cast::<u8>().write_bytes(value, size) };
        }))
    }

    /// Sets bytes of device or pinned memory in stream order.
    fn aclrtMemsetAsync(start: Opaque, size_max: usize, value: i32, size: usize, stream: Opaque) {
        let scope = runtime::enter()?;
        let mut tables = scope.tables();
        let token = tables.stream_token(&scope, address(stream) as Token)?;
        let (kind, value) = check_fill((&tables, &scope), start, size_max, value, size)?;
        if kind == MemoryKind::Pageable {
            return refuse(RT_PARAM_INVALID, "a fill of memory that is not pinned, on a stream");
        }
        let target = DevicePtr(address(start));
        tables.submit(token, |stream| {
            // SAFETY: the caller keeps the memory until the fill is complete; see `exports!`.
            unsafe { scope.driver().fill(target, size as u64, value, stream) }
        })
    }
}
