//! Functions, types and constants of `libascendcl.so`, under the vendor's names.
//!
//! `cargo xtask acl-headers` reads this file and holds all of it to the vendor's headers, so it
//! stays in this plain form: one item a line, or one field a line.
#![allow(non_camel_case_types, non_snake_case)]

use std::ffi::{c_char, c_int, c_void};

use crate::load::vendor_functions;

pub(super) type aclError = c_int;
pub(super) type aclrtMemMallocPolicy = c_int;
pub(super) type aclrtMemcpyKind = c_int;
pub(super) type aclrtMemAttr = c_int;
pub(super) type aclrtMemHandleType = c_int;
pub(super) type aclrtMemAllocationType = c_int;
pub(super) type aclrtMemLocationType = c_int;
pub(super) type aclrtMemGranularityOptions = c_int;
pub(super) type aclrtHostRegisterType = c_int;
pub(super) type aclrtMallocAttrType = c_int;
pub(super) type aclrtEventRecordedStatus = c_int;
pub(super) type aclrtEventWaitStatus = c_int;
pub(super) type aclrtStreamStatus = c_int;
pub(super) type aclrtCallbackBlockType = c_int;
pub(super) type aclCANNPackageName = c_int;
pub(super) type aclrtHostFunc = Option<unsafe extern "C" fn(*mut c_void)>;
pub(super) type aclrtCallback = Option<unsafe extern "C" fn(*mut c_void)>;

/// Declares the vendor's opaque handles.
macro_rules! handles {
    ($($name:ident)*) => { $(
        /// A handle of the vendor's, which means something to its library alone.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(transparent)]
        pub(crate) struct $name(pub(super) *mut c_void);

        impl $name {
            /// What a call that creates one overwrites.
            pub(super) const NULL: $name = $name(std::ptr::null_mut());
        }

        // SAFETY: the vendor lets every thread of the process use a handle; here nobody looks
        // behind it.
        unsafe impl Send for $name {}
        // SAFETY: as for `Send`.
        unsafe impl Sync for $name {}
    )* };
}
handles!(aclrtStream aclrtEvent aclrtDrvMemHandle);

pub(super) const ACL_SUCCESS: aclError = 0;
pub(super) const ACL_ERROR_INVALID_PARAM: aclError = 100000;
pub(super) const ACL_ERROR_REPEAT_INITIALIZE: aclError = 100002;
pub(super) const ACL_ERROR_WAIT_CALLBACK_TIMEOUT: aclError = 100036;
pub(super) const ACL_ERROR_COMPILING_STUB_MODE: aclError = 100039;
pub(super) const ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL: aclError = 107007;
pub(super) const ACL_ERROR_BAD_ALLOC: aclError = 200000;
pub(super) const ACL_ERROR_API_NOT_SUPPORT: aclError = 200001;
pub(super) const ACL_ERROR_FEATURE_UNSUPPORTED: aclError = 200006;
pub(super) const ACL_ERROR_FAILURE: aclError = 500001;
pub(super) const ACL_ERROR_RT_WAIT_TIMEOUT: aclError = 107019;
pub(super) const ACL_ERROR_RT_TASK_TIMEOUT: aclError = 107020;
pub(super) const ACL_ERROR_RT_DEVICE_TASK_ABORT: aclError = 107022;
pub(super) const ACL_ERROR_RT_STREAM_ABORT: aclError = 107023;
pub(super) const ACL_ERROR_RT_FEATURE_NOT_SUPPORT: aclError = 207000;
pub(super) const ACL_ERROR_RT_MEMORY_ALLOCATION: aclError = 207001;
pub(super) const ACL_ERROR_RT_DEVICE_OOM: aclError = 207018;
pub(super) const ACL_ERROR_RT_LOST_HEARTBEAT: aclError = 507010;
pub(super) const ACL_ERROR_RT_REPORT_TIMEOUT: aclError = 507012;
pub(super) const ACL_ERROR_RT_DEVICE_MEM_ERROR: aclError = 507053;
pub(super) const ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR: aclError = 507054;
pub(super) const ACL_ERROR_RT_SUSPECT_DEVICE_MEM_ERROR: aclError = 507055;
pub(super) const ACL_ERROR_RT_LINK_ERROR: aclError = 507056;
pub(super) const ACL_ERROR_RT_SUSPECT_REMOTE_ERROR: aclError = 507057;
pub(super) const ACL_ERROR_RT_SOCKET_CLOSE: aclError = 507901;
pub(super) const ACL_ERROR_HOST_MEMORY_ALREADY_REGISTERED: aclError = 507910;

pub(super) const ACL_MEM_MALLOC_HUGE_FIRST: aclrtMemMallocPolicy = 0;
pub(super) const ACL_MEMCPY_HOST_TO_DEVICE: aclrtMemcpyKind = 1;
pub(super) const ACL_MEMCPY_DEVICE_TO_HOST: aclrtMemcpyKind = 2;
pub(super) const ACL_MEMCPY_DEVICE_TO_DEVICE: aclrtMemcpyKind = 3;
pub(super) const ACL_HBM_MEM: aclrtMemAttr = 1;
pub(super) const ACL_HBM_MEM_HUGE: aclrtMemAttr = 4;
pub(super) const ACL_MEM_HANDLE_TYPE_NONE: aclrtMemHandleType = 0;
pub(super) const ACL_MEM_ALLOCATION_TYPE_PINNED: aclrtMemAllocationType = 0;
pub(super) const ACL_MEM_LOCATION_TYPE_DEVICE: aclrtMemLocationType = 1;
pub(super) const ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM: aclrtMemGranularityOptions = 0;
pub(super) const ACL_HOST_REGISTER_MAPPED: aclrtHostRegisterType = 0;
pub(super) const ACL_RT_MEM_ATTR_VA_FLAG: aclrtMallocAttrType = 3;
pub(super) const ACL_EVENT_RECORDED_STATUS_COMPLETE: aclrtEventRecordedStatus = 1;
pub(super) const ACL_EVENT_WAIT_STATUS_COMPLETE: aclrtEventWaitStatus = 0;
pub(super) const ACL_STREAM_STATUS_COMPLETE: aclrtStreamStatus = 0;
pub(super) const ACL_CALLBACK_BLOCK: aclrtCallbackBlockType = 1;
pub(super) const ACL_PKG_NAME_CANN: aclCANNPackageName = 0;
pub(super) const ACL_EVENT_SYNC: u32 = 0x1;
pub(super) const ACL_EVENT_TIME_LINE: u32 = 0x8;
pub(super) const ACL_STREAM_FAST_LAUNCH: u32 = 0x1;
pub(super) const ACL_STREAM_FAST_SYNC: u32 = 0x2;

/// Addresses for huge pages; the vendor gives the number no name.
pub(super) const RESERVE_HUGE_PAGES: u64 = 1;

/// Where memory is.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct aclrtMemLocation {
    pub(super) id: u32,
    pub(super) r#type: aclrtMemLocationType,
}

/// What physical memory is asked for.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct aclrtPhysicalMemProp {
    pub(super) handleType: aclrtMemHandleType,
    pub(super) allocationType: aclrtMemAllocationType,
    pub(super) memAttr: aclrtMemAttr,
    pub(super) location: aclrtMemLocation,
    pub(super) reserve: u64,
}

/// What an attribute of host memory is set to, by its kind.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union aclrtMallocAttrValue {
    pub(super) vaFlag: u32,
    pub(super) rsv: [u8; 8],
}

/// One wish for host memory.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct aclrtMallocAttribute {
    pub(super) attr: aclrtMallocAttrType,
    pub(super) value: aclrtMallocAttrValue,
}

/// All wishes for host memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct aclrtMallocConfig {
    pub(super) attrs: *mut aclrtMallocAttribute,
    pub(super) numAttrs: usize,
}

/// A package's version, as texts that end in a zero.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct aclCANNPackageVersion {
    pub(super) version: [c_char; 128],
    pub(super) majorVersion: [c_char; 64],
    pub(super) minorVersion: [c_char; 64],
    pub(super) releaseVersion: [c_char; 64],
    pub(super) patchVersion: [c_char; 64],
    pub(super) reserved: [c_char; 128],
}

impl aclCANNPackageVersion {
    /// What a call that asks for it overwrites.
    pub(super) const EMPTY: aclCANNPackageVersion = aclCANNPackageVersion {
        version: [0; 128],
        majorVersion: [0; 64],
        minorVersion: [0; 64],
        releaseVersion: [0; 64],
        patchVersion: [0; 64],
        reserved: [0; 128],
    };
}

const _: () = assert!(size_of::<aclrtMemLocation>() == 8);
const _: () = assert!(size_of::<aclrtPhysicalMemProp>() == 32);
const _: () = assert!(size_of::<aclrtMallocAttrValue>() == 8);
const _: () = assert!(size_of::<aclrtMallocAttribute>() == 12);
const _: () = assert!(size_of::<aclrtMallocConfig>() == 16);
const _: () = assert!(size_of::<aclCANNPackageVersion>() == 512);

// Required is what every version has that the driver cannot do without. All else is optional:
// what some versions lack, what only tells more, and what only devices with virtual memory need.
vendor_functions! {
    required fn aclInit(configPath: *const c_char) -> aclError = "aclInit";
    required fn aclGetRecentErrMsg() -> *const c_char = "aclGetRecentErrMsg";
    optional fn aclrtGetVersion(major: *mut i32, minor: *mut i32, patch: *mut i32) -> aclError
        = "aclrtGetVersion";
    optional fn aclsysGetCANNVersion(
        name: aclCANNPackageName,
        version: *mut aclCANNPackageVersion,
    ) -> aclError = "aclsysGetCANNVersion";
    required fn aclrtGetSocName() -> *const c_char = "aclrtGetSocName";

    required fn aclrtGetDeviceCount(count: *mut u32) -> aclError = "aclrtGetDeviceCount";
    required fn aclrtSetDevice(deviceId: i32) -> aclError = "aclrtSetDevice";
    required fn aclrtGetDevice(deviceId: *mut i32) -> aclError = "aclrtGetDevice";
    required fn aclrtGetMemInfo(
        attr: aclrtMemAttr,
        free: *mut usize,
        total: *mut usize,
    ) -> aclError = "aclrtGetMemInfo";

    required fn aclrtMalloc(
        devPtr: *mut *mut c_void,
        size: usize,
        policy: aclrtMemMallocPolicy,
    ) -> aclError = "aclrtMalloc";
    optional fn aclrtMallocAlign32(
        devPtr: *mut *mut c_void,
        size: usize,
        policy: aclrtMemMallocPolicy,
    ) -> aclError = "aclrtMallocAlign32";
    required fn aclrtFree(devPtr: *mut c_void) -> aclError = "aclrtFree";
    required fn aclrtMallocHost(hostPtr: *mut *mut c_void, size: usize) -> aclError
        = "aclrtMallocHost";
    optional fn aclrtMallocHostWithCfg(
        ptr: *mut *mut c_void,
        size: u64,
        cfg: *mut aclrtMallocConfig,
    ) -> aclError = "aclrtMallocHostWithCfg";
    required fn aclrtFreeHost(hostPtr: *mut c_void) -> aclError = "aclrtFreeHost";
    optional fn aclrtHostRegister(
        ptr: *mut c_void,
        size: u64,
        type_: aclrtHostRegisterType,
        devPtr: *mut *mut c_void,
    ) -> aclError = "aclrtHostRegister";
    optional fn aclrtHostUnregister(ptr: *mut c_void) -> aclError = "aclrtHostUnregister";

    optional fn aclrtReserveMemAddress(
        virPtr: *mut *mut c_void,
        size: usize,
        alignment: usize,
        expectPtr: *mut c_void,
        flags: u64,
    ) -> aclError = "aclrtReserveMemAddress";
    optional fn aclrtReleaseMemAddress(virPtr: *mut c_void) -> aclError
        = "aclrtReleaseMemAddress";
    optional fn aclrtMallocPhysical(
        handle: *mut aclrtDrvMemHandle,
        size: usize,
        prop: *const aclrtPhysicalMemProp,
        flags: u64,
    ) -> aclError = "aclrtMallocPhysical";
    optional fn aclrtFreePhysical(handle: aclrtDrvMemHandle) -> aclError = "aclrtFreePhysical";
    optional fn aclrtMapMem(
        virPtr: *mut c_void,
        size: usize,
        offset: usize,
        handle: aclrtDrvMemHandle,
        flags: u64,
    ) -> aclError = "aclrtMapMem";
    optional fn aclrtUnmapMem(virPtr: *mut c_void) -> aclError = "aclrtUnmapMem";
    optional fn aclrtMemGetAllocationGranularity(
        prop: *mut aclrtPhysicalMemProp,
        option: aclrtMemGranularityOptions,
        granularity: *mut usize,
    ) -> aclError = "aclrtMemGetAllocationGranularity";

    required fn aclrtMemcpyAsync(
        dst: *mut c_void,
        destMax: usize,
        src: *const c_void,
        count: usize,
        kind: aclrtMemcpyKind,
        stream: aclrtStream,
    ) -> aclError = "aclrtMemcpyAsync";
    required fn aclrtMemsetAsync(
        devPtr: *mut c_void,
        maxCount: usize,
        value: i32,
        count: usize,
        stream: aclrtStream,
    ) -> aclError = "aclrtMemsetAsync";

    required fn aclrtCreateStreamWithConfig(
        stream: *mut aclrtStream,
        priority: u32,
        flag: u32,
    ) -> aclError = "aclrtCreateStreamWithConfig";
    required fn aclrtDestroyStream(stream: aclrtStream) -> aclError = "aclrtDestroyStream";
    required fn aclrtSynchronizeStream(stream: aclrtStream) -> aclError
        = "aclrtSynchronizeStream";
    required fn aclrtStreamQuery(stream: aclrtStream, status: *mut aclrtStreamStatus) -> aclError
        = "aclrtStreamQuery";
    required fn aclrtStreamWaitEvent(stream: aclrtStream, event: aclrtEvent) -> aclError
        = "aclrtStreamWaitEvent";

    optional fn aclrtCreateEventExWithFlag(event: *mut aclrtEvent, flag: u32) -> aclError
        = "aclrtCreateEventExWithFlag";
    required fn aclrtCreateEventWithFlag(event: *mut aclrtEvent, flag: u32) -> aclError
        = "aclrtCreateEventWithFlag";
    required fn aclrtDestroyEvent(event: aclrtEvent) -> aclError = "aclrtDestroyEvent";
    required fn aclrtRecordEvent(event: aclrtEvent, stream: aclrtStream) -> aclError
        = "aclrtRecordEvent";
    required fn aclrtResetEvent(event: aclrtEvent, stream: aclrtStream) -> aclError
        = "aclrtResetEvent";
    required fn aclrtQueryEventStatus(
        event: aclrtEvent,
        status: *mut aclrtEventRecordedStatus,
    ) -> aclError = "aclrtQueryEventStatus";
    required fn aclrtQueryEventWaitStatus(
        event: aclrtEvent,
        status: *mut aclrtEventWaitStatus,
    ) -> aclError = "aclrtQueryEventWaitStatus";
    required fn aclrtSynchronizeEvent(event: aclrtEvent) -> aclError = "aclrtSynchronizeEvent";
    required fn aclrtEventElapsedTime(
        ms: *mut f32,
        startEvent: aclrtEvent,
        endEvent: aclrtEvent,
    ) -> aclError = "aclrtEventElapsedTime";

    optional fn aclrtLaunchHostFunc(
        stream: aclrtStream,
        fn_: aclrtHostFunc,
        args: *mut c_void,
    ) -> aclError = "aclrtLaunchHostFunc";
    required fn aclrtLaunchCallback(
        fn_: aclrtCallback,
        userData: *mut c_void,
        blockType: aclrtCallbackBlockType,
        stream: aclrtStream,
    ) -> aclError = "aclrtLaunchCallback";
    required fn aclrtSubscribeReport(threadId: u64, stream: aclrtStream) -> aclError
        = "aclrtSubscribeReport";
    required fn aclrtProcessReport(timeout: i32) -> aclError = "aclrtProcessReport";
    required fn aclrtUnSubscribeReport(threadId: u64, stream: aclrtStream) -> aclError
        = "aclrtUnSubscribeReport";
}
