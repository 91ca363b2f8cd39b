//! Collectives of HCCL with one rank: copies in stream order, which a test can hold up.

use std::ffi::c_char;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use npu_sys::{Driver, HostFunction};

use crate::abi::{Opaque, Out, address, pointer};
use crate::addresses::MemoryKind;
use crate::entry::exports;
use crate::failure::{INVALID_PARAM, Outcome, RT_FEATURE_NOT_SUPPORT, refuse};
use crate::runtime;
use crate::tables::{Token, token};

/// Bytes of an element of each HCCL type, by its number: int8, int16, int32, fp16, fp32, int64,
/// uint64, uint8, uint16, uint32, fp64, bfp16.
const ELEMENT_BYTES: [u64; 12] = [1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2];

/// Whether collectives wait on their streams, and who is told when they may go on.
static IS_HELD: Mutex<bool> = Mutex::new(false);
static LET_GO: Condvar = Condvar::new();

fn is_held() -> MutexGuard<'static, bool> {
    IS_HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a collective to its stream. Its memory must be there now, and until it is complete.
fn collective(from: Opaque, to: Opaque, count: u64, data_type: i32, stream: Opaque) -> Outcome {
    let scope = runtime::enter()?;
    let element = usize::try_from(data_type).ok().and_then(|number| ELEMENT_BYTES.get(number));
    let Some(size_bytes) = element.and_then(|bytes| count.checked_mul(*bytes)) else {
        return refuse(INVALID_PARAM, format!("{count} elements of HCCL type {data_type}"));
    };
    let mut tables = scope.tables();
    let (from, to) = (address(from), address(to));
    for start in [from, to] {
        if tables.memory_kind(&scope, start, size_bytes)? != MemoryKind::Device {
            return refuse(INVALID_PARAM, format!("{start:#x} is not on the device"));
        }
    }
    let token = tables.stream_token(&scope, address(stream) as Token)?;
    let body = move |_: &npu_sys::Operands<'_>| {
        drop(LET_GO.wait_while(is_held(), |is_held| *is_held));
        let (from, to) = (pointer(from).cast::<u8>(), pointer(to).cast::<u8>());
        // In place, too, each byte is read and written.
        // SAFETY: the caller keeps the place until the collective is complete; see `exports!`.
        let sent = unsafe { std::slice::from_raw_parts(from, size_bytes as usize) }.to_vec();
        // SAFETY: as above, and the bytes are the library's own copy.
        unsafe { to.copy_from_nonoverlapping(sent.as_ptr(), sent.len()) };
    };
    let body = Box::new(body);
    let function = HostFunction { name: "collective", accesses: Vec::new(), cost_us: 0.0, body };
    // SAFETY: the function declares no accesses.
    tables.submit(token, |stream| unsafe { scope.driver().launch_host(function, stream) })
}

exports! {
    /// What ranks meet by. One rank meets nobody, so nothing is written.
    fn HcclGetRootInfo(root_info: Opaque) {
        match root_info.is_null() {
            true => refuse(INVALID_PARAM, "rootInfo is null"),
            false => Ok(()),
        }
    }

    /// Joins a group of ranks, which must be one.
    fn HcclCommInitRootInfoConfig(
        rank_count: u32, _root_info: *const c_char, _rank: u32, _config: Opaque, comm: Out<Opaque>,
    ) {
        comm.check("comm")?;
        if rank_count != 1 {
            return refuse(RT_FEATURE_NOT_SUPPORT, format!("collectives of {rank_count} ranks"));
        }
        comm.put(pointer(token() as u64));
        Ok(())
    }

    /// Leaves a group.
    fn HcclCommDestroy(_comm: Opaque) {
        Ok(())
    }

    /// What went wrong in a group since the last time: nothing.
    fn HcclGetCommAsyncError(_comm: Opaque, error: Out<i32>) {
        error.check("asyncError")?;
        error.put(0);
        Ok(())
    }

    /// Reduces over all ranks: one's own numbers.
    fn HcclAllReduce(
        from: Opaque, to: Opaque, count: u64, data_type: i32, _operation: i32, _comm: Opaque,
        stream: Opaque,
    ) {
        collective(from, to, count, data_type, stream)
    }

    /// Sends from one rank to all, in place.
    fn HcclBroadcast(
        memory: Opaque, count: u64, data_type: i32, _root: u32, _comm: Opaque, stream: Opaque,
    ) {
        collective(memory, memory, count, data_type, stream)
    }

    /// Collects from all ranks.
    fn HcclAllGather(
        from: Opaque, to: Opaque, count: u64, data_type: i32, _comm: Opaque, stream: Opaque,
    ) {
        collective(from, to, count, data_type, stream)
    }

    /// Holds up all collectives on their streams, or lets them go on. Not a function of HCCL.
    fn standin_hold_collectives(holds: i32) {
        *is_held() = holds != 0;
        LET_GO.notify_all();
        Ok(())
    }
}
