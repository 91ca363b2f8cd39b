//! What crosses the C boundary: pointers, structs and numbers of the reference.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;

use crate::failure::{Failure, INVALID_PARAM, Outcome};

/// An opaque handle or an address.
pub type Opaque = *mut c_void;

/// A host function or callback.
pub type Function = Option<unsafe extern "C" fn(*mut c_void)>;

/// A C pointer to which a function writes one result.
///
/// Made by a C caller, or from a reference: it is null or good for one write.
#[repr(transparent)]
pub struct Out<'a, T>(*mut T, PhantomData<&'a mut T>);

impl<'a, T> Out<'a, T> {
    /// A pointer to `value`.
    pub fn to(value: &'a mut T) -> Out<'a, T> {
        Out(value, PhantomData)
    }

    /// The null pointer.
    pub fn null() -> Out<'a, T> {
        Out(std::ptr::null_mut(), PhantomData)
    }

    /// Refuses null, before anything changes.
    pub(crate) fn check(&self, name: &str) -> Outcome {
        match self.0.is_null() {
            true => Err(Failure::new(INVALID_PARAM, format!("{name} is null"))),
            false => Ok(()),
        }
    }

    pub(crate) fn put(self, value: T) {
        assert!(!self.0.is_null(), "checked when the call began");
        // SAFETY: not null, so good for one write: see the type.
        unsafe { self.0.write(value) };
    }
}

impl<T> fmt::Debug for Out<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// A C pointer from which a function reads one value, or several in a row.
///
/// Made by a C caller, or from a reference: it is null or good for what is read.
#[repr(transparent)]
pub struct In<'a, T>(*const T, PhantomData<&'a T>);

impl<'a, T: Copy> In<'a, T> {
    /// A pointer to `value`.
    pub fn from(value: &'a T) -> In<'a, T> {
        In(value, PhantomData)
    }

    /// The null pointer.
    pub fn null() -> In<'a, T> {
        In(std::ptr::null(), PhantomData)
    }

    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn get(&self, name: &str) -> Outcome<T> {
        if self.0.is_null() {
            return Err(Failure::new(INVALID_PARAM, format!("{name} is null")));
        }
        // SAFETY: not null, so good for a read: see the type.
        Ok(unsafe { self.0.read() })
    }

    /// The `count` values in a row.
    pub(crate) fn get_all(&self, name: &str, count: usize) -> Outcome<Vec<T>> {
        if self.0.is_null() {
            return Err(Failure::new(INVALID_PARAM, format!("{name} is null")));
        }
        // SAFETY: not null, so good for the values that the caller counts: see the type.
        Ok(unsafe { std::slice::from_raw_parts(self.0, count) }.to_vec())
    }
}

impl<T> fmt::Debug for In<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// Which memory: a device's, a host node's.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AclrtMemLocation {
    /// Number of the device or node.
    pub id: u32,
    /// HOST 0, DEVICE 1, UNREGISTERED 2, HOST_NUMA 4.
    pub kind: i32,
}

/// What physical memory is asked for.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AclrtPhysicalMemProp {
    /// NONE 0, POSIX 2.
    pub handle_type: i32,
    /// PINNED 0.
    pub allocation_type: i32,
    /// HBM_HUGE 4 and others.
    pub mem_attr: i32,
    /// Where.
    pub location: AclrtMemLocation,
    /// 0.
    pub reserve: u64,
}

/// Who may access mapped memory.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AclrtMemAccessDesc {
    /// NONE 0, READ 1, READWRITE 3.
    pub flags: i32,
    /// Who.
    pub location: AclrtMemLocation,
    /// Reserved.
    pub rsv: [u8; 12],
}

/// What an address is.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AclrtPtrAttributes {
    /// Where.
    pub location: AclrtMemLocation,
    /// Bytes of a page.
    pub page_size: u32,
    /// Reserved.
    pub rsv: [u32; 4],
}

/// One attribute of an allocation. The value is a union of 8 bytes, read here as 32 bits.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AclrtMallocAttribute {
    /// RSV 0, MODULE_ID 1, DEVICE_ID 2, VA_FLAG 3.
    pub attr: i32,
    /// The value, and the union's other half.
    pub value: [u32; 2],
}

/// Attributes of an allocation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AclrtMallocConfig {
    /// The attributes.
    pub attrs: *const AclrtMallocAttribute,
    /// How many.
    pub num_attrs: usize,
}

impl AclrtMallocConfig {
    pub(crate) fn attributes(self) -> Outcome<Vec<AclrtMallocAttribute>> {
        match self.num_attrs {
            0 => Ok(Vec::new()),
            count => In(self.attrs, PhantomData).get_all("cfg->attrs", count),
        }
    }
}

const _: () = {
    assert!(size_of::<AclrtPhysicalMemProp>() == 32);
    assert!(size_of::<AclrtMemAccessDesc>() == 24);
    assert!(size_of::<AclrtPtrAttributes>() == 28);
    assert!(size_of::<AclrtMallocAttribute>() == 12);
    assert!(size_of::<AclrtMallocConfig>() == 16);
};

pub(crate) const LOCATION_HOST: i32 = 0;
pub(crate) const LOCATION_DEVICE: i32 = 1;
pub(crate) const LOCATION_UNREGISTERED: i32 = 2;

pub(crate) const HBM_MEM: i32 = 1;
pub(crate) const HBM_MEM_HUGE: i32 = 4;
pub(crate) const HBM_MEM_NORMAL: i32 = 5;

pub(crate) const EVENT_SYNC: u32 = 0x1;
pub(crate) const EVENT_CAPTURE_STREAM_PROGRESS: u32 = 0x2;
pub(crate) const EVENT_TIME_LINE: u32 = 0x8;

/// The address that a pointer holds. What is there belongs to the caller.
pub(crate) fn address(pointer: *const c_void) -> u64 {
    pointer.expose_provenance() as u64
}

/// A pointer to give to the caller.
pub(crate) fn pointer(address: u64) -> Opaque {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
