//! Compares `sys.rs` with bindings that were generated from the vendor's header.

use std::any::type_name;
use std::collections::BTreeSet;
use std::mem::offset_of;

use bytemuck::Zeroable;
use cudarc::driver::sys as vendor;

use crate::cuda::sys::{
    self, Api, CUmemAccessDesc, CUmemAllocationProp, CUmemAllocationPropFlags, CUmemLocation,
};

/// The number behind a C enum of the generated bindings, which makes some of them Rust enums and
/// some structs.
pub(in crate::cuda) fn number<T: Copy>(value: T) -> u32 {
    assert_eq!((size_of::<T>(), align_of::<T>()), (4, 4));
    // SAFETY: four bytes without padding, as all C enums have here.
    unsafe { std::mem::transmute_copy(&value) }
}

#[test]
fn named_numbers_are_the_vendors() {
    let values = [sys::enum_values(), sys::defined_values()].concat();
    assert!(values.len() > 40, "only {} values", values.len());
    for (name, ours, expect) in values {
        assert_eq!(ours, expect, "{name}");
    }
}

/// Compares size, alignment, and the place and size of each field. The pattern fails to compile
/// if a field of ours is not listed.
macro_rules! same_layout {
    ($ours:ident, $vendors:ident, { $($field:ident),* }) => {
        assert_eq!(size_of::<$ours>(), size_of::<vendor::$vendors>(), stringify!($ours));
        assert_eq!(align_of::<$ours>(), align_of::<vendor::$vendors>(), stringify!($ours));
        // SAFETY: plain numbers and pointers, for which zeros are valid.
        let theirs: vendor::$vendors = unsafe { std::mem::zeroed() };
        let $ours { $($field),* } = $ours::zeroed();
        $(
            let place = concat!(stringify!($ours), ".", stringify!($field));
            assert_eq!(offset_of!($ours, $field), offset_of!(vendor::$vendors, $field), "{place}");
            assert_eq!(size_of_val(&$field), size_of_val(&theirs.$field), "{place}");
        )*
    };
}

#[test]
#[allow(non_snake_case)] // Fields have the vendor's names.
fn structs_have_the_vendors_layout() {
    same_layout!(CUmemLocation, CUmemLocation, { type_, id });
    same_layout!(CUmemAccessDesc, CUmemAccessDesc, { location, flags });
    same_layout!(CUmemAllocationProp, CUmemAllocationProp, {
        type_, requestedHandleTypes, location, win32HandleMetaData, allocFlags
    });
    same_layout!(CUmemAllocationPropFlags, CUmemAllocationProp_st__bindgen_ty_1, {
        compressionType, gpuDirectRDMACapable, usage, reserved
    });
}

/// A function's argument types and its result, as a text.
trait Signature {
    fn text() -> String;
}

macro_rules! signatures {
    ($( ($($argument:ident),*) )*) => { $(
        impl<$($argument,)* R> Signature for unsafe extern "C" fn($($argument),*) -> R {
            fn text() -> String {
                let arguments: Vec<String> = vec![$( plain(type_name::<$argument>()) ),*];
                format!("({}) -> {}", arguments.join(", "), plain(type_name::<R>()))
            }
        }

        // The generated bindings wrap each function in one of Rust's own.
        impl<$($argument,)* R> Signature for unsafe fn($($argument),*) -> R {
            fn text() -> String {
                <unsafe extern "C" fn($($argument),*) -> R as Signature>::text()
            }
        }
    )* };
}

signatures! {
    () (A) (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) (A, B, C, D, E, F) (A, B, C, D, E, F, G)
    (A, B, C, D, E, F, G, H) (A, B, C, D, E, F, G, H, I) (A, B, C, D, E, F, G, H, I, J)
    (A, B, C, D, E, F, G, H, I, J, K)
}

impl<F: Signature> Signature for Option<F> {
    fn text() -> String {
        F::text()
    }
}

/// A type's name without paths, and without the suffixes that the header gives to tags.
fn plain(name: &str) -> String {
    let words = name.split_inclusive(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
    let mut text = String::new();
    for word in words {
        let end = word.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
        let (word, rest) = word.split_at(end.unwrap_or(word.len()));
        let last = word.rsplit("::").next().unwrap();
        let bare = last.strip_suffix("_st").or(last.strip_suffix("_enum")).unwrap_or(last);
        text += if bare == "cudaError" { "CUresult" } else { bare };
        text += rest;
    }
    text
}

#[test]
fn names_are_compared_without_paths() {
    assert_eq!(plain("*mut npu_sys::cuda::sys::CUstream_st"), "*mut CUstream");
    assert_eq!(plain("*const cudarc::driver::sys::CUmemAccessDesc_st"), "*const CUmemAccessDesc");
    assert_eq!(plain("cudarc::driver::sys::cudaError_enum"), "CUresult");
    assert_eq!(plain("*mut *mut core::ffi::c_void"), "*mut *mut c_void");
    assert_ne!(plain("*mut i32"), plain("*mut u32"));
}

fn text_of_field<F: Signature>(_: fn(&Api) -> F) -> String {
    F::text()
}

fn text_of<F: Signature>(_: F) -> String {
    F::text()
}

/// Compares the type of each field of `Api` with the generated function of that name.
macro_rules! compared {
    ($( $name:ident($($argument:ty),*); )*) => {
        vec![$( (
            stringify!($name),
            text_of_field(|api: &Api| api.$name),
            text_of(vendor::$name as unsafe fn($($argument),*) -> _),
        ), )*]
    };
}

#[test]
fn functions_have_the_vendors_signatures() {
    let mut functions = compared! {
        cuInit(_);
        cuDriverGetVersion(_);
        cuGetErrorName(_, _);
        cuGetErrorString(_, _);
        cuDeviceGetCount(_);
        cuDeviceGet(_, _);
        cuDeviceGetName(_, _, _);
        cuDeviceGetAttribute(_, _, _);
        cuDeviceTotalMem_v2(_, _);
        cuDeviceGetPCIBusId(_, _, _);
        cuDevicePrimaryCtxRetain(_, _);
        cuDevicePrimaryCtxRelease_v2(_);
        cuCtxGetCurrent(_);
        cuCtxSetCurrent(_);
        cuCtxSynchronize();
        cuMemGetInfo_v2(_, _);
        cuMemAlloc_v2(_, _);
        cuMemFree_v2(_);
        cuMemGetAllocationGranularity(_, _, _);
        cuMemAddressReserve(_, _, _, _, _);
        cuMemAddressFree(_, _);
        cuMemCreate(_, _, _, _);
        cuMemRelease(_);
        cuMemMap(_, _, _, _, _);
        cuMemUnmap(_, _);
        cuMemSetAccess(_, _, _, _);
        cuMemHostAlloc(_, _, _);
        cuMemFreeHost(_);
        cuMemHostRegister_v2(_, _, _);
        cuMemHostUnregister(_);
        cuMemHostGetDevicePointer_v2(_, _, _);
        cuMemcpyHtoDAsync_v2(_, _, _, _);
        cuMemcpyDtoHAsync_v2(_, _, _, _);
        cuMemcpyDtoDAsync_v2(_, _, _, _);
        cuMemsetD8Async(_, _, _, _);
        cuStreamCreate(_, _);
        cuStreamDestroy_v2(_);
        cuStreamSynchronize(_);
        cuStreamIsCapturing(_, _);
        cuThreadExchangeStreamCaptureMode(_);
        cuStreamWaitEvent(_, _, _);
        cuEventCreate(_, _);
        cuEventDestroy_v2(_);
        cuEventRecord(_, _);
        cuEventQuery(_);
        cuEventSynchronize(_);
        cuLaunchHostFunc(_, _, _);
        cuModuleLoadData(_, _);
        cuModuleUnload(_);
        cuModuleGetFunction(_, _, _);
        cuLaunchKernel(_, _, _, _, _, _, _, _, _, _, _);
    };
    // The header of CUDA 13 has only the second version, of the same form; old drivers only the
    // first.
    functions.push((
        "cuEventElapsedTime",
        text_of_field(|api: &Api| api.cuEventElapsedTime),
        text_of(vendor::cuEventElapsedTime_v2 as unsafe fn(_, _, _) -> _),
    ));
    for (name, ours, expect) in &functions {
        assert_eq!(ours, expect, "{name}");
        assert!(ours.ends_with("-> CUresult"), "{name} {ours}");
    }
    let compared: BTreeSet<&str> = functions.iter().map(|(name, ..)| *name).collect();
    let taken: BTreeSet<&str> = Api::SYMBOLS.iter().map(|(symbol, _)| *symbol).collect();
    assert_eq!(compared, taken, "each function that is taken from the library is compared");
    assert_eq!(taken.len(), Api::SYMBOLS.len(), "each is taken once");
}

#[test]
fn only_what_old_drivers_lack_is_optional() {
    let optional: Vec<&str> =
        Api::SYMBOLS.iter().filter(|(_, optional)| *optional).map(|(name, _)| *name).collect();
    let expect = [
        "cuDevicePrimaryCtxRelease_v2",
        "cuMemGetAllocationGranularity",
        "cuMemAddressReserve",
        "cuMemAddressFree",
        "cuMemCreate",
        "cuMemRelease",
        "cuMemMap",
        "cuMemUnmap",
        "cuMemSetAccess",
        "cuStreamIsCapturing",
        "cuThreadExchangeStreamCaptureMode",
        "cuLaunchHostFunc",
    ];
    assert_eq!(optional, expect);
}
