//! The work of streams, and running it.

use std::cell::Cell;

use crate::driver::{HostFunction, Operands};
use crate::host::timeline::{DeviceSpan, SpanKind};
use crate::host_function;
use crate::types::{Copy, DevicePtr, StreamHandle};

/// What is to be done.
#[derive(Debug)]
pub(super) enum Task {
    Copy(Copy),
    Fill { target: DevicePtr, size_bytes: u64, value: u8 },
    Function(HostFunction),
}

/// A task that may be run.
#[derive(Debug)]
pub(super) struct Effect(Task);

/// One of the two directions of the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Out,
    In,
}

thread_local! {
    static IN_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is inside a host function.
pub(super) fn in_host_function() -> bool {
    IN_FUNCTION.get()
}

impl Effect {
    /// Makes a task runnable.
    ///
    /// # Safety
    /// Until it has run, or is dropped, the addresses of `task` are valid and dereferenceable,
    /// accesses of a function that write overlap no other of its accesses, and nothing
    /// unordered with the effect uses the same bytes in conflict.
    pub(super) unsafe fn new(task: Task) -> Effect {
        Effect(task)
    }

    pub(super) fn task(&self) -> &Task {
        &self.0
    }

    /// Does it. A panic in a host function comes back as its text.
    pub(super) fn run(self) -> Result<(), String> {
        match self.0 {
            Task::Copy(copy) => {
                let (source, target) = match copy {
                    Copy::DeviceToHost { source, target, .. } => (source.0, target.0),
                    Copy::HostToDevice { source, target, .. } => (source.0, target.0),
                    Copy::DeviceToDevice { source, target, .. } => (source.0, target.0),
                };
                let size = host_size(copy.size_bytes());
                // SAFETY: `new` promises both places; submission checked that they do not overlap.
                unsafe { std::ptr::copy_nonoverlapping(pointer(source), pointer(target), size) };
                Ok(())
            }
            Task::Fill { target, size_bytes, value } => {
                // SAFETY: `new` promises the place.
                unsafe { pointer(target.0).write_bytes(value, host_size(size_bytes)) };
                Ok(())
            }
            Task::Function(HostFunction { name, accesses, body, .. }) => {
                // SAFETY: `new` promises exactly this of the function's accesses.
                let operands = unsafe { Operands::new(&accesses) };
                host_function::run(name, &IN_FUNCTION, || body(&operands))
            }
        }
    }
}

fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(host_size(address))
}

fn host_size(value: u64) -> usize {
    usize::try_from(value).expect("submission checked that the bytes are the process's own")
}

impl Task {
    /// The direction of the link that the task uses, and how much.
    pub(super) fn transfer(&self) -> Option<(Direction, u64)> {
        match *self {
            Task::Copy(Copy::DeviceToHost { size_bytes, .. }) => Some((Direction::Out, size_bytes)),
            Task::Copy(Copy::HostToDevice { size_bytes, .. }) => Some((Direction::In, size_bytes)),
            Task::Copy(Copy::DeviceToDevice { .. }) | Task::Fill { .. } | Task::Function(_) => None,
        }
    }

    /// How a timeline shows the task when it ran from `start_us` to `end_us`.
    pub(super) fn span(&self, stream: StreamHandle, start_us: f64, end_us: f64) -> DeviceSpan {
        let (kind, name, address, size_bytes) = match *self {
            Task::Copy(copy) => {
                let (kind, name, address) = match copy {
                    Copy::DeviceToHost { source, .. } => (SpanKind::CopyOut, "copy out", source),
                    Copy::HostToDevice { target, .. } => (SpanKind::CopyIn, "copy in", target),
                    Copy::DeviceToDevice { target, .. } => {
                        (SpanKind::CopyWithin, "copy within", target)
                    }
                };
                (kind, name, Some(address), copy.size_bytes())
            }
            Task::Fill { target, size_bytes, .. } => {
                (SpanKind::Fill, "fill", Some(target), size_bytes)
            }
            Task::Function(ref function) => {
                let size_bytes = function.accesses.iter().map(|access| access.size_bytes).sum();
                let address = function.accesses.first().map(|access| access.start);
                (SpanKind::Compute, function.name, address, size_bytes)
            }
        };
        DeviceSpan { stream, kind, name, address, size_bytes, start_us, end_us }
    }
}
