//! Pinned and registered host memory, and the addresses by which the device reaches it.
//!
//! Kernels may use such an address. The library's copies and fills may not, unless the memory
//! has one address on both sides. So copies and fills ask here what is behind an address.

use std::sync::{Mutex, OnceLock};

use crate::acl::current::Current;
use crate::acl::failure::invalid;
use crate::acl::sys::{self, aclrtMallocAttrValue, aclrtMallocAttribute, aclrtMallocConfig};
use crate::acl::{pointer, size};
use crate::drop_failures;
use crate::error::DriverError;
use crate::extents::{Extent, Extents};
use crate::pages::{self, fork};
use crate::sync::lock;
use crate::types::{DevicePtr, HostMapping, HostPtr};

/// Pages of which the library wants whole ones.
const PAGE_BYTES: u64 = 4096;

/// The host memory that one driver knows.
#[derive(Debug, Default)]
pub(super) struct HostMemory {
    /// Whether the library gives memory with one address on both sides, once it was asked.
    gives_common_address: OnceLock<bool>,
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    /// By host address.
    pieces: Extents<Piece>,
    /// Host addresses of the pieces that have a device address, by that.
    by_device: Extents<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Where the library's allocation starts; `None` for registered memory.
    allocation: Option<u64>,
    /// Whether the library was asked for one address on both sides, and gave it.
    has_common_address: bool,
    /// Where the device sees it, once somebody has asked.
    device: Option<u64>,
    is_registered: bool,
}

/// What is behind a device address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Resolved {
    /// Memory that the library's copies and fills may touch.
    Device(u64),
    /// Host memory that only kernels may reach by its device address; this is its host address.
    Host(u64),
}

impl HostMemory {
    /// Whether the device can be made to see host memory, and for what. Only trying tells.
    pub(super) fn mapping(&self, now: &Current<'_>) -> HostMapping {
        let Ok(page) = self.allocate(now, PAGE_BYTES) else { return HostMapping::Nothing };
        let is_seen = self.device_pointer(now, page).is_ok();
        let has_common_address =
            lock(&self.tables).pieces.get(page.0).is_some_and(|it| it.held.has_common_address);
        // SAFETY: nobody else knows the memory.
        let is_freed = unsafe { self.free(now, page) }.is_ok();
        match (is_seen && is_freed, has_common_address) {
            (false, _) => HostMapping::Nothing,
            (true, false) => HostMapping::Kernels,
            (true, true) => HostMapping::AllocatedForAll,
        }
    }

    pub(super) fn allocate(
        &self,
        now: &Current<'_>,
        size_bytes: u64,
    ) -> Result<HostPtr, DriverError> {
        // Room for whole pages, so that all of it can be registered.
        let page_bytes = pages::page_bytes().max(PAGE_BYTES);
        let size_bytes =
            pages::rounded_up(size_bytes, page_bytes).map_err(|text| invalid(now.call, text))?;
        let (mut allocation, mut has_common_address) = self.allocate_either(now, size_bytes)?;
        if !allocation.is_multiple_of(page_bytes) {
            // The library promises no more than 64 bytes of alignment.
            // SAFETY: from just above; nobody knows it.
            unsafe { free_host(now, allocation) }?;
            (allocation, has_common_address) =
                self.allocate_either(now, size_bytes + page_bytes)?;
        }
        let start = allocation.next_multiple_of(page_bytes);
        let piece = Piece {
            allocation: Some(allocation),
            has_common_address,
            device: None,
            is_registered: false,
        };
        // Where the system refuses, children have what the library lets them have.
        let _ = fork::keep_from_children(start, size_bytes);
        lock(&self.tables).pieces.insert(start, size_bytes, piece);
        Ok(HostPtr(start))
    }

    /// Memory with one address on host and device, where the library gives such; whether it is.
    fn allocate_either(
        &self,
        now: &Current<'_>,
        size_bytes: u64,
    ) -> Result<(u64, bool), DriverError> {
        let allocate = match (self.gives_common_address.get(), now.api.aclrtMallocHostWithCfg) {
            (Some(true) | None, Some(allocate)) => allocate,
            (Some(false), _) | (_, None) => return Ok((allocate_plain(now, size_bytes)?, false)),
        };
        let mut attribute = aclrtMallocAttribute {
            attr: sys::ACL_RT_MEM_ATTR_VA_FLAG,
            value: aclrtMallocAttrValue { vaFlag: 1 },
        };
        let mut wishes = aclrtMallocConfig { attrs: &mut attribute, numAttrs: 1 };
        let mut start = std::ptr::null_mut();
        // SAFETY: the library writes one pointer and reads the wishes during the call.
        let code = unsafe { allocate(&mut start, size_bytes, &mut wishes) };
        match now.check("aclrtMallocHostWithCfg", code) {
            Ok(()) => {
                self.gives_common_address.get_or_init(|| true);
                Ok((start.expose_provenance() as u64, true))
            }
            // What it gave once it has to give again: callers were told.
            Err(error) if *self.gives_common_address.get_or_init(|| false) => Err(error),
            Err(_) => Ok((allocate_plain(now, size_bytes)?, false)),
        }
    }

    /// # Safety
    /// As for [`Driver::free_pinned`](crate::Driver::free_pinned).
    pub(super) unsafe fn free(&self, now: &Current<'_>, start: HostPtr) -> Result<(), DriverError> {
        let mut tables = lock(&self.tables);
        let found = tables.pieces.get(start.0).copied();
        let found = found.and_then(|found| Some((found, found.held.allocation?)));
        let Some((Extent { size_bytes, held: piece }, allocation)) = found else {
            return Err(invalid(now.call, format!("{start:?} was not allocated")));
        };
        if piece.is_registered {
            // SAFETY: ours, and the caller promises that nothing uses it.
            unsafe { unregister(now, start) }?;
            tables.forget_device(start);
        }
        // The library may give these pages to others, whose children may read them.
        let _ = fork::give_to_children(start.0, size_bytes);
        // SAFETY: as above.
        unsafe { free_host(now, allocation) }.inspect_err(|_| {
            let _ = fork::keep_from_children(start.0, size_bytes);
        })?;
        tables.forget_device(start);
        tables.pieces.remove(start.0);
        Ok(())
    }

    /// # Safety
    /// As for [`Driver::register_host`](crate::Driver::register_host).
    pub(super) unsafe fn register(
        &self,
        now: &Current<'_>,
        start: HostPtr,
        size_bytes: u64,
    ) -> Result<(), DriverError> {
        pages::check_whole(start, size_bytes, PAGE_BYTES)
            .map_err(|text| invalid(now.call, text))?;
        let mut tables = lock(&self.tables);
        if tables.pieces.overlap(start.0, size_bytes).is_some() {
            let text = format!("{start:?} + {size_bytes} bytes is known already");
            return Err(invalid(now.call, text));
        }
        // SAFETY: whole pages, which their owner promises to keep.
        let device = unsafe { register(now, start, size_bytes) }?;
        let piece = Piece {
            allocation: None,
            has_common_address: false,
            device: Some(device),
            is_registered: true,
        };
        tables.pieces.insert(start.0, size_bytes, piece);
        tables.by_device.insert(device, size_bytes, start.0);
        Ok(())
    }

    /// # Safety
    /// As for [`Driver::unregister_host`](crate::Driver::unregister_host).
    pub(super) unsafe fn unregister(
        &self,
        now: &Current<'_>,
        start: HostPtr,
    ) -> Result<(), DriverError> {
        let mut tables = lock(&self.tables);
        match tables.pieces.get(start.0) {
            Some(piece) if piece.held.allocation.is_none() => {}
            _ => return Err(invalid(now.call, format!("{start:?} is not registered"))),
        }
        // SAFETY: registered, and the caller promises that nothing uses it.
        unsafe { unregister(now, start) }?;
        tables.forget_device(start);
        tables.pieces.remove(start.0);
        Ok(())
    }

    /// The address by which kernels reach a host address. Pinned memory gets one when it is
    /// asked for the first time.
    pub(super) fn device_pointer(
        &self,
        now: &Current<'_>,
        start: HostPtr,
    ) -> Result<DevicePtr, DriverError> {
        let mut tables = lock(&self.tables);
        let Some((first, &Extent { size_bytes, held: piece })) = tables.pieces.holder(start.0, 1)
        else {
            return Err(invalid(now.call, format!("{start:?} is not pinned")));
        };
        let device = match piece.device {
            Some(device) => device,
            None => {
                // SAFETY: a piece of whole pages, which is unregistered before it goes.
                let registered = unsafe { register(now, HostPtr(first), size_bytes) };
                let is_registered = registered.is_ok();
                let device = match registered {
                    Ok(device) => device,
                    // One address for both: some versions show it to the device as soon as it is
                    // allocated, and those without the function have no other way.
                    Err(error) if piece.has_common_address && is_needless(now, &error) => first,
                    Err(error) => return Err(error),
                };
                let has_common_address = piece.has_common_address && device == first;
                let seen = Some(device);
                let known = Piece { device: seen, is_registered, has_common_address, ..piece };
                tables.pieces.insert(first, size_bytes, known);
                tables.by_device.insert(device, size_bytes, first);
                device
            }
        };
        Ok(DevicePtr(device + (start.0 - first)))
    }

    /// Checks that the bytes are in one piece of pinned or registered memory: with any other the
    /// library copies at once instead of in stream order.
    pub(super) fn check(
        &self,
        now: &Current<'_>,
        start: HostPtr,
        size_bytes: u64,
    ) -> Result<(), DriverError> {
        match lock(&self.tables).pieces.holder(start.0, size_bytes) {
            Some(_) => Ok(()),
            None => {
                let text = format!("{start:?} + {size_bytes} bytes is not pinned");
                Err(invalid(now.call, text))
            }
        }
    }

    /// What is behind the bytes at a device address.
    pub(super) fn resolve(
        &self,
        now: &Current<'_>,
        start: DevicePtr,
        size_bytes: u64,
    ) -> Result<Resolved, DriverError> {
        let tables = lock(&self.tables);
        let Some((device, &Extent { held: first, .. })) = tables.by_device.holder(start.0, 1)
        else {
            return Ok(Resolved::Device(start.0));
        };
        if tables.by_device.holder(start.0, size_bytes).is_none() {
            let text = format!("{start:?} + {size_bytes} bytes leaves mapped host memory");
            return Err(invalid(now.call, text));
        }
        let piece = tables.pieces.get(first).expect("it loses its device address before it goes");
        match piece.held.has_common_address {
            true => Ok(Resolved::Device(start.0)),
            false => Ok(Resolved::Host(first + (start.0 - device))),
        }
    }

    /// Gives everything back, as far as the device still answers.
    ///
    /// # Safety
    /// All work that uses any of it has completed, and none is submitted any more.
    pub(super) unsafe fn free_all(&self, now: &Current<'_>) {
        let pieces = Vec::from_iter(
            lock(&self.tables).pieces.iter().map(|(at, it)| (at, it.held.allocation.is_some())),
        );
        for (start, is_allocated) in pieces {
            let given = match is_allocated {
                // SAFETY: the caller's promise.
                true => unsafe { self.free(now, HostPtr(start)) },
                // SAFETY: the caller's promise.
                false => unsafe { self.unregister(now, HostPtr(start)) },
            };
            drop_failures::note(given);
        }
    }
}

impl Tables {
    fn forget_device(&mut self, start: HostPtr) {
        let Some(Extent { held: piece, .. }) = self.pieces.get_mut(start.0) else { return };
        piece.is_registered = false;
        if let Some(device) = piece.device.take() {
            self.by_device.remove(device);
        }
    }
}

/// Pinned memory, aligned to no more than 64 bytes.
pub(super) fn allocate_plain(now: &Current<'_>, size_bytes: u64) -> Result<u64, DriverError> {
    let mut start = std::ptr::null_mut();
    // SAFETY: the library writes one pointer.
    let code = unsafe { (now.api.aclrtMallocHost)(&mut start, size(size_bytes)) };
    now.check("aclrtMallocHost", code)?;
    Ok(start.expose_provenance() as u64)
}

/// Frees pinned memory.
///
/// # Safety
/// The library allocated it and has not freed it, and nothing uses it.
pub(super) unsafe fn free_host(now: &Current<'_>, allocation: u64) -> Result<(), DriverError> {
    // SAFETY: the caller's promise.
    let code = unsafe { (now.api.aclrtFreeHost)(pointer(allocation)) };
    now.check("aclrtFreeHost", code)
}

/// Whether memory with one address for host and device may do without the registration that
/// failed.
fn is_needless(now: &Current<'_>, error: &DriverError) -> bool {
    now.api.aclrtHostRegister.is_none()
        || error.code == i64::from(sys::ACL_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
}

/// Shows host memory to the device.
///
/// # Safety
/// It is whole pages, which stay until `unregister`.
unsafe fn register(now: &Current<'_>, start: HostPtr, size_bytes: u64) -> Result<u64, DriverError> {
    let symbol = "aclrtHostRegister";
    let register = now.need(symbol, now.api.aclrtHostRegister)?;
    // What cannot be undone is not begun.
    now.need("aclrtHostUnregister", now.api.aclrtHostUnregister)?;
    let mut device = std::ptr::null_mut();
    let kind = sys::ACL_HOST_REGISTER_MAPPED;
    // SAFETY: the caller's promise; the library writes one pointer.
    let code = unsafe { register(pointer(start.0), size_bytes, kind, &mut device) };
    now.check(symbol, code)?;
    Ok(device.expose_provenance() as u64)
}

/// # Safety
/// It is the start of registered memory, which the device does not use any more.
unsafe fn unregister(now: &Current<'_>, start: HostPtr) -> Result<(), DriverError> {
    let symbol = "aclrtHostUnregister";
    let unregister = now.need(symbol, now.api.aclrtHostUnregister)?;
    // SAFETY: the caller's promise.
    let code = unsafe { unregister(pointer(start.0)) };
    now.check(symbol, code)
}
