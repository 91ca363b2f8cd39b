//! A region of pinned host memory: one piece as far as the driver is concerned.

use npu_sys::{Driver, DriverError, ErrorKind, HostPages, HostPtr, PagesError, Touching};

/// How regions are pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pinning {
    /// Who touches their pages first.
    pub(super) touching: Touching,
    /// Whether the driver pins memory that is ours. If not, it allocates pinned memory itself,
    /// which is slower.
    pub(super) registers: bool,
}

/// Why a region could not be pinned.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum PinError {
    #[error(transparent)]
    Pages(#[from] PagesError),
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl PinError {
    /// Whether less memory might have been pinned.
    pub(super) fn is_short(&self) -> bool {
        match self {
            PinError::Pages(_) => true,
            PinError::Driver(error) => error.kind == ErrorKind::OutOfMemory,
        }
    }
}

/// Pinned host memory. One that is dropped without [`unpin`](Region::unpin) stays pinned, for the
/// device may still use it.
#[derive(Debug)]
pub(super) struct Region {
    start: HostPtr,
    size_bytes: u64,
    /// `None` if the driver allocated it, and once it is unpinned.
    pages: Option<HostPages>,
    registered: bool,
}

/// Memory that needs one call of the driver more to be pinned, if that.
#[derive(Debug)]
pub(super) enum Ready {
    /// Ours, so many bytes that the driver does not know of yet.
    Touched(HostPages, u64),
    /// The driver's own.
    Allocated(Region),
}

impl Ready {
    /// Takes `size_bytes`, a multiple of the page size, and touches them.
    pub(super) fn make(
        driver: &dyn Driver,
        size_bytes: u64,
        pinning: Pinning,
    ) -> Result<Ready, PinError> {
        if pinning.registers {
            let pages = HostPages::new(size_bytes, pinning.touching)?;
            return Ok(Ready::Touched(pages, size_bytes));
        }
        Ok(Ready::Allocated(Region::allocate(driver, size_bytes)?))
    }

    /// Has the driver pin it, which holds up its other calls.
    pub(super) fn pin(self, driver: &dyn Driver) -> Result<Region, PinError> {
        let (pages, size_bytes) = match self {
            Ready::Touched(pages, size_bytes) => (pages, size_bytes),
            Ready::Allocated(region) => return Ok(region),
        };
        let start = pages.start();
        // SAFETY: the region keeps the pages until they are unregistered, or for good.
        match unsafe { driver.register_host(start, pages.size_bytes()) } {
            Ok(()) => Ok(Region { start, size_bytes, pages: Some(pages), registered: true }),
            Err(error) if error.kind == ErrorKind::Unsupported => {
                drop(pages);
                Ok(Region::allocate(driver, size_bytes)?)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Gives it back. Nobody has used it.
    pub(super) fn discard(self, driver: &dyn Driver) -> Result<(), DriverError> {
        match self {
            Ready::Touched(..) => Ok(()),
            // SAFETY: no slot of it was given out.
            Ready::Allocated(mut region) => unsafe { region.unpin(driver) },
        }
    }
}

impl Region {
    /// Pins `size_bytes`, a multiple of the page size.
    pub(super) fn pin(
        driver: &dyn Driver,
        size_bytes: u64,
        pinning: Pinning,
    ) -> Result<Region, PinError> {
        Ready::make(driver, size_bytes, pinning)?.pin(driver)
    }

    fn allocate(driver: &dyn Driver, size_bytes: u64) -> Result<Region, DriverError> {
        let start = driver.allocate_pinned(size_bytes)?;
        Ok(Region { start, size_bytes, pages: None, registered: false })
    }

    /// Gives the memory back.
    ///
    /// # Safety
    /// Work of the device that uses it is complete, and no reference to it is left.
    pub(super) unsafe fn unpin(&mut self, driver: &dyn Driver) -> Result<(), DriverError> {
        if self.registered {
            // SAFETY: the caller promises it.
            unsafe { driver.unregister_host(self.start) }?;
        } else {
            // SAFETY: as above.
            unsafe { driver.free_pinned(self.start) }?;
        }
        self.pages = None;
        Ok(())
    }

    pub(super) fn start(&self) -> HostPtr {
        self.start
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Whether it is memory of ours that the driver pinned.
    pub(super) fn is_registered(&self) -> bool {
        self.registered
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // The driver still holds these: unmapping them would pull them from under a copy.
        std::mem::forget(self.pages.take());
    }
}
