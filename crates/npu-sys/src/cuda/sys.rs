//! The part of `libcuda.so.1` that the driver uses, under the vendor's names.
//!
//! Declared by hand from the vendor's documentation; `tests/abi.rs` compares every item with
//! bindings that were generated from the vendor's header.

#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use bytemuck::Zeroable;

use crate::load::vendor_functions;

/// An opaque object of the library, known by address.
macro_rules! opaque {
    ($($object:ident, $pointer:ident;)*) => { $(
        #[repr(C)]
        #[derive(Debug)]
        pub(crate) struct $object {
            _opaque: [u8; 0],
        }
        pub(crate) type $pointer = *mut $object;
    )* };
}

opaque! {
    CUctx_st, CUcontext;
    CUstream_st, CUstream;
    CUevent_st, CUevent;
    CUmod_st, CUmodule;
    CUfunc_st, CUfunction;
}

pub(crate) type CUdevice = c_int;
pub(crate) type CUdeviceptr = u64;
pub(crate) type CUmemGenericAllocationHandle = u64;
pub(crate) type CUhostFn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;

/// C enums. The library may return values that have no name here, so they are numbers.
macro_rules! c_enums {
    ($($name:ident { $($value_name:ident = $value:literal,)* })*) => {
        $(
            #[repr(transparent)]
            #[derive(Clone, Copy, PartialEq, Eq, Debug, Zeroable)]
            pub(crate) struct $name(pub(crate) c_uint);

            impl $name {
                $( pub(crate) const $value_name: $name = $name($value); )*
            }
        )*

        /// Each named value, with what the vendor's header says.
        #[cfg(test)]
        pub(crate) fn enum_values() -> Vec<(&'static str, c_uint, c_uint)> {
            use cudarc::driver::sys;

            use crate::cuda::tests::number;
            vec![$( $( (stringify!($value_name), $value, number(sys::$name::$value_name)), )* )*]
        }
    };
}

c_enums! {
    CUresult {
        CUDA_SUCCESS = 0,
        CUDA_ERROR_INVALID_VALUE = 1,
        CUDA_ERROR_OUT_OF_MEMORY = 2,
        CUDA_ERROR_DEINITIALIZED = 4,
        CUDA_ERROR_STUB_LIBRARY = 34,
        CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
        CUDA_ERROR_NO_DEVICE = 100,
        CUDA_ERROR_INVALID_DEVICE = 101,
        CUDA_ERROR_INVALID_CONTEXT = 201,
        CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
        CUDA_ERROR_ECC_UNCORRECTABLE = 214,
        CUDA_ERROR_INVALID_PTX = 218,
        CUDA_ERROR_NVLINK_UNCORRECTABLE = 220,
        CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
        CUDA_ERROR_CONTAINED = 226,
        CUDA_ERROR_INVALID_HANDLE = 400,
        CUDA_ERROR_NOT_FOUND = 500,
        CUDA_ERROR_NOT_READY = 600,
        CUDA_ERROR_ILLEGAL_ADDRESS = 700,
        CUDA_ERROR_LAUNCH_TIMEOUT = 702,
        CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
        CUDA_ERROR_ASSERT = 710,
        CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
        CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
        CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
        CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
        CUDA_ERROR_MISALIGNED_ADDRESS = 716,
        CUDA_ERROR_INVALID_ADDRESS_SPACE = 717,
        CUDA_ERROR_INVALID_PC = 718,
        CUDA_ERROR_LAUNCH_FAILED = 719,
        CUDA_ERROR_NOT_PERMITTED = 800,
        CUDA_ERROR_NOT_SUPPORTED = 801,
        CUDA_ERROR_SYSTEM_NOT_READY = 802,
        CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
    }
    CUdevice_attribute {
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
        CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY = 19,
        CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
    }
    CUmemAllocationType {
        CU_MEM_ALLOCATION_TYPE_PINNED = 1,
    }
    CUmemAllocationHandleType {
        CU_MEM_HANDLE_TYPE_NONE = 0,
    }
    CUmemLocationType {
        CU_MEM_LOCATION_TYPE_DEVICE = 1,
    }
    CUmemAccess_flags {
        CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
    }
    CUmemAllocationGranularity_flags {
        CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
    }
    CUstream_flags {
        CU_STREAM_NON_BLOCKING = 1,
    }
    CUstreamCaptureMode {
        CU_STREAM_CAPTURE_MODE_RELAXED = 2,
    }
    CUstreamCaptureStatus {
        CU_STREAM_CAPTURE_STATUS_NONE = 0,
    }
    CUevent_flags {
        CU_EVENT_DEFAULT = 0,
        CU_EVENT_DISABLE_TIMING = 2,
    }
}

/// Named numbers of the header.
macro_rules! defines {
    ($($name:ident = $value:literal;)*) => {
        $( pub(crate) const $name: c_uint = $value; )*

        /// Each number, with what the vendor's header says.
        #[cfg(test)]
        pub(crate) fn defined_values() -> Vec<(&'static str, c_uint, c_uint)> {
            vec![$( (stringify!($name), $value, cudarc::driver::sys::$name), )*]
        }
    };
}

defines! {
    CU_MEMHOSTALLOC_PORTABLE = 1;
    CU_MEMHOSTALLOC_DEVICEMAP = 2;
    CU_MEMHOSTREGISTER_PORTABLE = 1;
    CU_MEMHOSTREGISTER_DEVICEMAP = 2;
}

/// Where physical memory is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Zeroable)]
pub(crate) struct CUmemLocation {
    pub(crate) type_: CUmemLocationType,
    pub(crate) id: c_int,
}

/// Special wishes for physical memory; zeros are none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Zeroable)]
#[allow(non_snake_case)]
pub(crate) struct CUmemAllocationPropFlags {
    pub(crate) compressionType: u8,
    pub(crate) gpuDirectRDMACapable: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

/// What physical memory is asked for.
#[repr(C)]
#[derive(Clone, Copy, Debug, Zeroable)]
#[allow(non_snake_case)]
pub(crate) struct CUmemAllocationProp {
    pub(crate) type_: CUmemAllocationType,
    pub(crate) requestedHandleTypes: CUmemAllocationHandleType,
    pub(crate) location: CUmemLocation,
    pub(crate) win32HandleMetaData: *mut c_void,
    pub(crate) allocFlags: CUmemAllocationPropFlags,
}

/// Who may use mapped memory, and how.
#[repr(C)]
#[derive(Clone, Copy, Debug, Zeroable)]
pub(crate) struct CUmemAccessDesc {
    pub(crate) location: CUmemLocation,
    pub(crate) flags: CUmemAccess_flags,
}

const _: () = assert!(size_of::<CUmemAllocationProp>() == 32);
const _: () = assert!(size_of::<CUmemAccessDesc>() == 12);

vendor_functions! {
    required fn cuInit(flags: c_uint) -> CUresult = "cuInit";
    required fn cuDriverGetVersion(version: *mut c_int) -> CUresult = "cuDriverGetVersion";
    required fn cuGetErrorName(error: CUresult, name: *mut *const c_char) -> CUresult
        = "cuGetErrorName";
    required fn cuGetErrorString(error: CUresult, text: *mut *const c_char) -> CUresult
        = "cuGetErrorString";

    required fn cuDeviceGetCount(count: *mut c_int) -> CUresult = "cuDeviceGetCount";
    required fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> CUresult = "cuDeviceGet";
    required fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice) -> CUresult
        = "cuDeviceGetName";
    required fn cuDeviceGetAttribute(
        value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice,
    ) -> CUresult = "cuDeviceGetAttribute";
    required fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) -> CUresult
        = "cuDeviceTotalMem_v2";
    required fn cuDeviceGetPCIBusId(id: *mut c_char, length: c_int, device: CUdevice) -> CUresult
        = "cuDeviceGetPCIBusId";

    required fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) -> CUresult
        = "cuDevicePrimaryCtxRetain";
    // CUDA 11.0. The unversioned one of older drivers resets what others still use.
    optional fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> CUresult
        = "cuDevicePrimaryCtxRelease_v2";
    required fn cuCtxGetCurrent(context: *mut CUcontext) -> CUresult = "cuCtxGetCurrent";
    required fn cuCtxSetCurrent(context: CUcontext) -> CUresult = "cuCtxSetCurrent";
    required fn cuCtxSynchronize() -> CUresult = "cuCtxSynchronize";

    required fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult
        = "cuMemGetInfo_v2";
    required fn cuMemAlloc_v2(start: *mut CUdeviceptr, size: usize) -> CUresult = "cuMemAlloc_v2";
    required fn cuMemFree_v2(start: CUdeviceptr) -> CUresult = "cuMemFree_v2";

    // CUDA 10.2.
    optional fn cuMemGetAllocationGranularity(
        granularity: *mut usize,
        prop: *const CUmemAllocationProp,
        option: CUmemAllocationGranularity_flags,
    ) -> CUresult = "cuMemGetAllocationGranularity";
    optional fn cuMemAddressReserve(
        start: *mut CUdeviceptr, size: usize, alignment: usize, wish: CUdeviceptr, flags: u64,
    ) -> CUresult = "cuMemAddressReserve";
    optional fn cuMemAddressFree(start: CUdeviceptr, size: usize) -> CUresult
        = "cuMemAddressFree";
    optional fn cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle,
        size: usize,
        prop: *const CUmemAllocationProp,
        flags: u64,
    ) -> CUresult = "cuMemCreate";
    optional fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult = "cuMemRelease";
    optional fn cuMemMap(
        start: CUdeviceptr,
        size: usize,
        offset: usize,
        handle: CUmemGenericAllocationHandle,
        flags: u64,
    ) -> CUresult = "cuMemMap";
    optional fn cuMemUnmap(start: CUdeviceptr, size: usize) -> CUresult = "cuMemUnmap";
    optional fn cuMemSetAccess(
        start: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize,
    ) -> CUresult = "cuMemSetAccess";

    required fn cuMemHostAlloc(start: *mut *mut c_void, size: usize, flags: c_uint) -> CUresult
        = "cuMemHostAlloc";
    required fn cuMemFreeHost(start: *mut c_void) -> CUresult = "cuMemFreeHost";
    required fn cuMemHostRegister_v2(start: *mut c_void, size: usize, flags: c_uint) -> CUresult
        = "cuMemHostRegister_v2";
    required fn cuMemHostUnregister(start: *mut c_void) -> CUresult = "cuMemHostUnregister";
    required fn cuMemHostGetDevicePointer_v2(
        device: *mut CUdeviceptr, host: *mut c_void, flags: c_uint,
    ) -> CUresult = "cuMemHostGetDevicePointer_v2";

    required fn cuMemcpyHtoDAsync_v2(
        target: CUdeviceptr, source: *const c_void, size: usize, stream: CUstream,
    ) -> CUresult = "cuMemcpyHtoDAsync_v2";
    required fn cuMemcpyDtoHAsync_v2(
        target: *mut c_void, source: CUdeviceptr, size: usize, stream: CUstream,
    ) -> CUresult = "cuMemcpyDtoHAsync_v2";
    required fn cuMemcpyDtoDAsync_v2(
        target: CUdeviceptr, source: CUdeviceptr, size: usize, stream: CUstream,
    ) -> CUresult = "cuMemcpyDtoDAsync_v2";
    required fn cuMemsetD8Async(
        target: CUdeviceptr, value: u8, count: usize, stream: CUstream,
    ) -> CUresult = "cuMemsetD8Async";

    required fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) -> CUresult
        = "cuStreamCreate";
    required fn cuStreamDestroy_v2(stream: CUstream) -> CUresult = "cuStreamDestroy_v2";
    required fn cuStreamSynchronize(stream: CUstream) -> CUresult = "cuStreamSynchronize";
    // CUDA 10.0 and 10.1.
    optional fn cuStreamIsCapturing(
        stream: CUstream, status: *mut CUstreamCaptureStatus,
    ) -> CUresult = "cuStreamIsCapturing";
    optional fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) -> CUresult
        = "cuThreadExchangeStreamCaptureMode";
    required fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) -> CUresult
        = "cuStreamWaitEvent";
    required fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> CUresult = "cuEventCreate";
    required fn cuEventDestroy_v2(event: CUevent) -> CUresult = "cuEventDestroy_v2";
    required fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult = "cuEventRecord";
    required fn cuEventQuery(event: CUevent) -> CUresult = "cuEventQuery";
    required fn cuEventSynchronize(event: CUevent) -> CUresult = "cuEventSynchronize";
    required fn cuEventElapsedTime(
        milliseconds: *mut f32, start: CUevent, end: CUevent,
    ) -> CUresult = "cuEventElapsedTime";

    // CUDA 10.0.
    optional fn cuLaunchHostFunc(
        stream: CUstream, function: CUhostFn, user_data: *mut c_void,
    ) -> CUresult = "cuLaunchHostFunc";
    required fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult
        = "cuModuleLoadData";
    required fn cuModuleUnload(module: CUmodule) -> CUresult = "cuModuleUnload";
    required fn cuModuleGetFunction(
        function: *mut CUfunction, module: CUmodule, name: *const c_char,
    ) -> CUresult = "cuModuleGetFunction";
    required fn cuLaunchKernel(
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: CUstream,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> CUresult = "cuLaunchKernel";
}
