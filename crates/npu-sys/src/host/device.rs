//! [`Driver`] for the host device: checks, then hands over to memory and schedule.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use crate::driver::{Driver, HostFunction};
use crate::error::DriverError;
use crate::host::effect::{self, Effect, Task};
use crate::host::failure::{invalid, unsupported};
use crate::host::memory::Memory;
use crate::host::schedule::Work;
use crate::host::signal::Signal;
use crate::host::{Event, HostDriver};
use crate::host_function;
use crate::sync::lock;
use crate::types::{
    ChunkHandle, Copy, DeviceProperties, DevicePtr, EventHandle, EventKind, HostMapping, HostPtr,
    MemoryInfo, StreamHandle, VaRange,
};

/// Host functions run while their stream, in lockstep even the whole device, stands still. One
/// that submits or waits could wait for itself, as on real devices.
pub(super) fn refuse_host_function(call: &'static str) -> Result<(), DriverError> {
    if effect::in_host_function() {
        return Err(invalid(call, "a host function cannot submit work or wait for it"));
    }
    Ok(())
}

impl HostDriver {
    /// The start of each call on memory.
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.schedule.tick();
        lock(&self.memory)
    }

    /// The start of each call that takes addresses and memory apart.
    fn virtual_memory(&self, call: &'static str) -> Result<MutexGuard<'_, Memory>, DriverError> {
        if !self.config.has_virtual_memory {
            let text = "this device was set up without virtual memory: use allocate_device";
            return Err(unsupported(call, text));
        }
        Ok(self.memory())
    }

    /// The start of each call on streams.
    fn enter(&self, call: &'static str) -> Result<(), DriverError> {
        refuse_host_function(call)?;
        self.schedule.tick();
        Ok(())
    }

    /// Refuses a stream that is captured: what it is given now does not run.
    fn refuse_captured(&self, call: &'static str, stream: StreamHandle) -> Result<(), DriverError> {
        if lock(&self.captured).contains(&stream) {
            return Err(invalid(call, format!("{stream:?} is captured")));
        }
        Ok(())
    }

    fn submit(
        &self,
        call: &'static str,
        stream: StreamHandle,
        work: Work,
    ) -> Result<(), DriverError> {
        self.refuse_captured(call, stream)?;
        self.schedule.submit(call, stream, work)
    }

    /// What an event stands for; `None` if it was never recorded.
    fn latest(
        &self,
        call: &'static str,
        event: EventHandle,
    ) -> Result<Option<Arc<Signal>>, DriverError> {
        match lock(&self.events).by_handle.get(&event.0) {
            Some(event) => Ok(event.latest.clone()),
            None => Err(unknown_event(call, event)),
        }
    }

    /// When a timing event was complete.
    fn completed_us(&self, event: EventHandle) -> Result<f64, DriverError> {
        let call = "elapsed_us";
        let kind = lock(&self.events).by_handle.get(&event.0).map(|event| event.kind);
        if kind == Some(EventKind::Order) {
            return Err(invalid(call, format!("{event:?} is not for timing")));
        }
        let signal = self.latest(call, event)?;
        let complete = signal.filter(|signal| self.schedule.is_complete(signal));
        let at_us = complete.and_then(|signal| signal.at_us());
        at_us.ok_or_else(|| invalid(call, format!("{event:?} is not recorded and complete")))
    }
}

fn unknown_event(call: &'static str, event: EventHandle) -> DriverError {
    invalid(call, format!("{event:?} does not exist"))
}

impl Driver for HostDriver {
    fn properties(&self) -> DeviceProperties {
        DeviceProperties {
            name: "host".to_owned(),
            total_bytes: self.config.capacity_bytes,
            granularity_bytes: self.config.granularity_bytes,
            host_mapping: self.config.host_mapping,
            has_virtual_memory: self.config.has_virtual_memory,
            map_waits_for_copies: self.config.map_waits_for_copies,
            is_host_addressable: true,
            driver_version: env!("CARGO_PKG_VERSION").to_owned(),
            numa_node: None,
        }
    }

    fn now_us(&self) -> f64 {
        HostDriver::now_us(self)
    }

    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        let free_bytes = self.memory().free_bytes();
        Ok(MemoryInfo { free_bytes, total_bytes: self.config.capacity_bytes })
    }

    fn reserve(&self, size_bytes: u64) -> Result<VaRange, DriverError> {
        self.virtual_memory("reserve")?.reserve(size_bytes)
    }

    fn free_range(&self, range: VaRange) -> Result<(), DriverError> {
        self.virtual_memory("free_range")?.free_range(range)
    }

    fn create_chunk(&self, size_bytes: u64) -> Result<ChunkHandle, DriverError> {
        self.virtual_memory("create_chunk")?.create_chunk(size_bytes)
    }

    fn release_chunk(&self, chunk: ChunkHandle) -> Result<(), DriverError> {
        self.virtual_memory("release_chunk")?.release_chunk(chunk)
    }

    fn map(&self, range: VaRange, chunk: ChunkHandle) -> Result<(), DriverError> {
        self.virtual_memory("map")?.map(range, chunk)
    }

    fn set_access(&self, range: VaRange) -> Result<(), DriverError> {
        self.virtual_memory("set_access")?.set_access(range)
    }

    unsafe fn unmap(&self, range: VaRange) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        unsafe { self.virtual_memory("unmap")?.unmap(range) }
    }

    fn allocate_device(&self, size_bytes: u64) -> Result<DevicePtr, DriverError> {
        self.memory().allocate_device(size_bytes)
    }

    unsafe fn free_device(&self, start: DevicePtr) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        unsafe { self.memory().free_device(start) }
    }

    fn allocate_pinned(&self, size_bytes: u64) -> Result<HostPtr, DriverError> {
        self.memory().allocate_pinned(size_bytes)
    }

    unsafe fn free_pinned(&self, start: HostPtr) -> Result<(), DriverError> {
        self.memory().free_pinned(start)
    }

    unsafe fn register_host(&self, start: HostPtr, size_bytes: u64) -> Result<(), DriverError> {
        self.memory().register_host(start, size_bytes)
    }

    unsafe fn unregister_host(&self, start: HostPtr) -> Result<(), DriverError> {
        self.memory().unregister_host(start)
    }

    fn device_pointer(&self, start: HostPtr) -> Result<DevicePtr, DriverError> {
        let call = "device_pointer";
        if self.config.host_mapping == HostMapping::Nothing {
            return Err(unsupported(call, "this device was set up without mapped host memory"));
        }
        self.memory().check_host(call, start, 1)?;
        Ok(DevicePtr(start.0))
    }

    fn create_stream(&self) -> Result<StreamHandle, DriverError> {
        self.enter("create_stream")?;
        let stream = self.schedule.open()?;
        self.stream_count.fetch_add(1, Ordering::Relaxed);
        Ok(stream)
    }

    fn destroy_stream(&self, stream: StreamHandle) -> Result<(), DriverError> {
        self.enter("destroy_stream")?;
        self.schedule.close(stream)?;
        self.stream_count.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    fn synchronize_stream(&self, stream: StreamHandle) -> Result<(), DriverError> {
        let call = "synchronize_stream";
        self.enter(call)?;
        self.refuse_captured(call, stream)?;
        self.schedule.drain(call, stream)?;
        self.journal.check(call)
    }

    fn is_captured(&self, stream: StreamHandle) -> Result<bool, DriverError> {
        self.schedule.check("is_captured", stream)?;
        Ok(lock(&self.captured).contains(&stream))
    }

    fn create_event(&self, kind: EventKind) -> Result<EventHandle, DriverError> {
        self.schedule.tick();
        let mut events = lock(&self.events);
        events.count_ever += 1;
        let handle = events.count_ever;
        events.by_handle.insert(handle, Event { kind, latest: None });
        Ok(EventHandle(handle))
    }

    fn destroy_event(&self, event: EventHandle) -> Result<(), DriverError> {
        self.schedule.tick();
        match lock(&self.events).by_handle.remove(&event.0) {
            Some(_) => Ok(()),
            None => Err(unknown_event("destroy_event", event)),
        }
    }

    fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<(), DriverError> {
        let call = "record_event";
        self.enter(call)?;
        self.latest(call, event)?;
        let signal = Arc::new(Signal::new());
        self.submit(call, stream, Work::Mark(Arc::clone(&signal)))?;
        match lock(&self.events).by_handle.get_mut(&event.0) {
            Some(event) => event.latest = Some(signal),
            None => return Err(unknown_event(call, event)),
        }
        Ok(())
    }

    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverError> {
        let call = "wait_event";
        self.enter(call)?;
        match self.latest(call, event)? {
            Some(signal) => self.submit(call, stream, Work::Wait(signal)),
            // Never recorded: there is nothing to wait for, but the stream must exist.
            None => self.schedule.check(call, stream),
        }
    }

    fn query_event(&self, event: EventHandle) -> Result<bool, DriverError> {
        let call = "query_event";
        self.enter(call)?;
        self.journal.check(call)?;
        let latest = self.latest(call, event)?;
        Ok(latest.is_none_or(|signal| self.schedule.is_complete(&signal)))
    }

    fn synchronize_event(&self, event: EventHandle) -> Result<(), DriverError> {
        let call = "synchronize_event";
        self.enter(call)?;
        if let Some(signal) = self.latest(call, event)? {
            self.schedule.wait(call, &signal)?;
        }
        self.journal.check(call)
    }

    fn elapsed_us(&self, start: EventHandle, end: EventHandle) -> Result<f64, DriverError> {
        self.enter("elapsed_us")?;
        self.journal.check("elapsed_us")?;
        Ok(self.completed_us(end)? - self.completed_us(start)?)
    }

    unsafe fn copy(&self, copy: Copy, stream: StreamHandle) -> Result<(), DriverError> {
        let call = "copy";
        self.enter(call)?;
        copy.check().map_err(|text| invalid(call, text))?;
        let size_bytes = copy.size_bytes();
        let memory = lock(&self.memory);
        match copy {
            Copy::DeviceToHost { source, target, .. } => {
                memory.check_device(call, source, size_bytes)?;
                memory.check_host(call, target, size_bytes)?;
            }
            Copy::HostToDevice { source, target, .. } => {
                memory.check_host(call, source, size_bytes)?;
                memory.check_device(call, target, size_bytes)?;
            }
            Copy::DeviceToDevice { source, target, .. } => {
                memory.check_device(call, source, size_bytes)?;
                memory.check_device(call, target, size_bytes)?;
            }
        }
        drop(memory);
        // SAFETY: the caller promises it; that the places do not overlap was checked.
        let effect = unsafe { Effect::new(Task::Copy(copy)) };
        self.submit(call, stream, Work::Effect(effect))
    }

    unsafe fn fill(
        &self,
        target: DevicePtr,
        size_bytes: u64,
        value: u8,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let call = "fill";
        self.enter(call)?;
        if size_bytes == 0 {
            return Err(invalid(call, "0 bytes"));
        }
        lock(&self.memory).check_device(call, target, size_bytes)?;
        // SAFETY: the caller promises it.
        let effect = unsafe { Effect::new(Task::Fill { target, size_bytes, value }) };
        self.submit(call, stream, Work::Effect(effect))
    }

    unsafe fn launch_host(
        &self,
        function: HostFunction,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let call = "launch_host";
        self.enter(call)?;
        host_function::check(&function).map_err(|text| invalid(call, text))?;
        let memory = lock(&self.memory);
        for access in &function.accesses {
            memory.check_device(call, access.start, access.size_bytes)?;
        }
        drop(memory);
        // SAFETY: the caller promises it; that writes overlap nothing was checked as well.
        let effect = unsafe { Effect::new(Task::Function(function)) };
        self.submit(call, stream, Work::Effect(effect))
    }
}
