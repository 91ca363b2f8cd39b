//! The memory that a host function declared, handed to it as typed slices.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use bytemuck::{AnyBitPattern, NoUninit};

use crate::types::{Access, AccessMode};

/// The declared accesses of one running [`HostFunction`](crate::HostFunction), by position.
pub struct Operands<'a> {
    accesses: &'a [Access],
    taken: Vec<Cell<bool>>,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Operands<'a> {
    /// Wraps the accesses for the time of one call.
    ///
    /// # Safety
    /// For `'a`, the host can dereference each access, accesses that write overlap no other
    /// access, and nobody else uses the bytes of any in conflict.
    pub unsafe fn new(accesses: &'a [Access]) -> Operands<'a> {
        let taken = accesses.iter().map(|_| Cell::new(false)).collect();
        Operands { accesses, taken, memory: PhantomData }
    }

    /// Number of declared accesses.
    pub fn count(&self) -> usize {
        self.accesses.len()
    }

    /// The elements of a read access.
    ///
    /// # Panics
    /// If `index` is not a [`Read`](AccessMode::Read) access of whole, aligned elements.
    pub fn read<T: AnyBitPattern>(&self, index: usize) -> &'a [T] {
        let access = self.accesses[index];
        assert_eq!(access.mode, AccessMode::Read, "operand {index} was declared {:?}", access.mode);
        let count = elements::<T>(access, index);
        let start = std::ptr::with_exposed_provenance::<T>(address(access));
        // SAFETY: `new` promises that the bytes are valid and not written during `'a`; `elements`
        // checked length and alignment; any bit pattern is a `T`.
        unsafe { std::slice::from_raw_parts(start, count) }
    }

    /// The elements of an access that writes. Each can be taken once.
    ///
    /// # Panics
    /// If `index` is a [`Read`](AccessMode::Read) access, was taken already, or does not hold
    /// whole, aligned elements.
    #[allow(clippy::mut_from_ref)] // Disjoint by the contract of `new`, single by `taken`.
    pub fn write<T: AnyBitPattern + NoUninit>(&self, index: usize) -> &'a mut [T] {
        let access = self.accesses[index];
        assert!(access.mode.writes(), "operand {index} was declared read-only");
        assert!(!self.taken[index].replace(true), "operand {index} was taken already");
        let count = elements::<T>(access, index);
        let start = std::ptr::with_exposed_provenance_mut::<T>(address(access));
        // SAFETY: `new` promises that the bytes are valid and overlap no other access; `taken`
        // makes this the only slice of them; `elements` checked length and alignment.
        unsafe { std::slice::from_raw_parts_mut(start, count) }
    }
}

fn address(access: Access) -> usize {
    usize::try_from(access.start.0).expect("device addresses fit the host's on the host driver")
}

fn elements<T>(access: Access, index: usize) -> usize {
    let size_bytes = usize::try_from(access.size_bytes).expect("checked when it was mapped");
    assert_eq!(size_bytes % size_of::<T>(), 0, "operand {index} is not whole elements");
    assert_eq!(address(access) % align_of::<T>(), 0, "operand {index} is not aligned");
    size_bytes / size_of::<T>()
}

impl fmt::Debug for Operands<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.accesses).finish()
    }
}
