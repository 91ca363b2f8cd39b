//! Kernels: from a PTX text to a launch.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::cuda::CudaDriver;
use crate::cuda::failure::invalid;
use crate::cuda::sys::{CUfunction, CUmodule};
use crate::drop_failures;
use crate::error::DriverError;
use crate::types::StreamHandle;

/// A PTX text, compiled for the device by the driver.
#[derive(Debug)]
pub(super) struct Module {
    driver: Arc<CudaDriver>,
    /// The address of the library's object.
    object: usize,
}

/// A function of a module.
#[derive(Debug)]
pub(super) struct Kernel {
    module: Arc<Module>,
    /// The address of the library's object.
    object: usize,
}

impl Module {
    /// Compiles a text. Takes some milliseconds, or less if the driver has it in its cache.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for a text that the driver's compiler refuses,
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for one that is too new for it.
    pub(super) fn load(driver: &Arc<CudaDriver>, ptx: &str) -> Result<Arc<Module>, DriverError> {
        let call = "load_module";
        let text = terminated(call, ptx)?;
        let cuda = driver.context.enter(call)?;
        let mut module: CUmodule = std::ptr::null_mut();
        let load = cuda.api().cuModuleLoadData;
        // SAFETY: it writes one pointer, and reads `text` up to its final zero.
        let code = unsafe { load(&raw mut module, text.as_ptr().cast()) };
        cuda.check(code)?;
        Ok(Arc::new(Module { driver: Arc::clone(driver), object: module.expose_provenance() }))
    }

    /// Takes one of its entry functions.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if there is none of that name.
    pub(super) fn kernel(self: &Arc<Module>, name: &str) -> Result<Kernel, DriverError> {
        let call = "find_kernel";
        let name = terminated(call, name)?;
        let cuda = self.driver.context.enter(call)?;
        let mut function: CUfunction = std::ptr::null_mut();
        let find = cuda.api().cuModuleGetFunction;
        // SAFETY: it writes one pointer and reads `name`; the module is loaded until `drop`.
        let code = unsafe { find(&raw mut function, self.object(), name.as_ptr()) };
        cuda.check(code)?;
        Ok(Kernel { module: Arc::clone(self), object: function.expose_provenance() })
    }

    /// # Safety
    /// Nobody uses it any more.
    unsafe fn unload(&mut self) -> Result<(), DriverError> {
        let cuda = self.driver.context.enter("drop")?;
        // SAFETY: no argument. After it no launch is left.
        cuda.check(unsafe { (cuda.api().cuCtxSynchronize)() })?;
        // SAFETY: loaded by `load`; the caller promises the rest.
        cuda.check(unsafe { (cuda.api().cuModuleUnload)(self.object()) })
    }

    fn object(&self) -> CUmodule {
        std::ptr::with_exposed_provenance_mut(self.object)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // Inside a host function, or on a lost device, it stays.
        // SAFETY: this is the module's end.
        drop_failures::note(unsafe { self.unload() });
    }
}

fn terminated(call: &'static str, text: &str) -> Result<CString, DriverError> {
    CString::new(text).map_err(|_| invalid(call, "the text has a zero byte"))
}

/// Shape of a launch, in one dimension.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) block_count: u32,
    pub(super) block_threads: u32,
}

impl Kernel {
    /// Submits a launch.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for a stream that does not exist, or a shape that
    /// the device cannot run.
    ///
    /// # Safety
    /// `arguments` are as many as the function has, all of 8 bytes. What it does with them is
    /// sound until it has run, and no unordered work conflicts with it.
    pub(super) unsafe fn launch(
        &self,
        shape: Shape,
        arguments: &[u64],
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let call = "launch_kernel";
        let driver = &self.module.driver;
        let stream = driver.streams.get(call, stream.0)?;
        let cuda = driver.context.enter(call)?;
        let function: CUfunction = std::ptr::with_exposed_provenance_mut(self.object);
        let mut places: SmallVec<[*mut c_void; 8]> = arguments
            .iter()
            .map(|argument| std::ptr::from_ref(argument).cast_mut().cast())
            .collect();
        let launch = cuda.api().cuLaunchKernel;
        let Shape { block_count, block_threads } = shape;
        // SAFETY: function and stream are alive; the library copies the arguments, without
        // changing them, before it returns. The caller promises the rest.
        let code = unsafe {
            launch(
                function,
                block_count,
                1,
                1,
                block_threads,
                1,
                1,
                0,
                stream.stream(),
                places.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        cuda.check(code)
    }
}
