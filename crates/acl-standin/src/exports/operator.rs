//! Operators, in stream order.

use std::ffi::c_char;
use std::sync::Arc;

use npu_sys::{Driver, HostFunction};

use super::attribute::{ATTRIBUTES, text};
use super::descriptor::{BUFFERS, DataBuffer, TENSORS, TensorDesc};
use crate::abi::{In, Opaque, address, pointer};
use crate::entry::{self, exports};
use crate::failure::{INTERNAL_ERROR, INVALID_PARAM, Outcome, refuse};
use crate::ops::{self, Call, DataType, Elements, Operand};
use crate::runtime::{self, Runtime, Scope};
use crate::tables::{Tables, Token};

/// The operator that writes a view: of its target only the view's elements have to be there.
const WRITES_VIEW: &str = "ViewCopy";

fn operand(desc: &TensorDesc, buffer: DataBuffer) -> Outcome<Operand> {
    let data_type = DataType::of(desc.data_type)?;
    let dims: Result<Vec<usize>, _> = desc.dims.iter().map(|&dim| dim.try_into()).collect();
    let Ok(dims) = dims else {
        return refuse(INVALID_PARAM, format!("one of the dimensions {:?}", desc.dims));
    };
    let place = match desc.is_on_host {
        false => Elements::Device(buffer.address),
        true => {
            let bytes = pointer(buffer.address).cast::<u8>().cast_const();
            let size_bytes = buffer.size_bytes as usize;
            // SAFETY: the caller says that so much host memory is there; see `exports!`.
            Elements::Host(unsafe { std::slice::from_raw_parts(bytes, size_bytes) }.to_vec())
        }
    };
    let operand = Operand { data_type, dims, place };
    let needed_bytes = operand.size_bytes() as u64;
    if needed_bytes > buffer.size_bytes {
        let text = format!("{needed_bytes} bytes in a buffer of {}", buffer.size_bytes);
        return refuse(INVALID_PARAM, text);
    }
    Ok(operand)
}

fn operands(count: i32, descs: In<Opaque>, buffers: In<Opaque>) -> Outcome<Vec<Operand>> {
    let count = match usize::try_from(count) {
        Ok(0) => return Ok(Vec::new()),
        Ok(count) => count,
        Err(_) => return refuse(INVALID_PARAM, format!("{count} operands")),
    };
    let pairs = descs.get_all("desc", count)?.into_iter().zip(buffers.get_all("data", count)?);
    let made = pairs.map(|(desc, buffer)| {
        operand(&TENSORS.with(desc, |desc| desc.clone())?, BUFFERS.with(buffer, |buffer| *buffer)?)
    });
    made.collect()
}

/// Refuses operands that are not on the scope's device now.
fn check_places(tables: &Tables, scope: &Scope, call: &Call) -> Outcome {
    let operands = call.inputs.iter().chain(&call.outputs);
    for operand in operands.filter(|operand| operand.size_bytes() > 0) {
        let Elements::Device(start) = operand.place else { continue };
        let size_bytes = match call.name == WRITES_VIEW {
            true => operand.data_type.size_bytes(),
            false => operand.size_bytes(),
        };
        if !tables.memory_kind(scope, start, size_bytes as u64)?.is_device() {
            let text = format!("operator {}: {start:#x} is not on the device", call.name);
            return refuse(INVALID_PARAM, text);
        }
    }
    Ok(())
}

/// Runs a call on the stream's thread. What fails there is told when the host waits for it.
fn run(call: &Call, runtime: &Runtime, device: usize) {
    let mut outcome = refuse(INTERNAL_ERROR, format!("operator {} panicked", call.name));
    entry::as_function(|| {
        entry::guard((), || {
            // SAFETY: the caller keeps the memory until the work is complete; see `exports!`.
            outcome = unsafe { ops::run(call) };
        });
    });
    if let Err(failure) = outcome {
        runtime.note_failure(device, failure);
    }
}

exports! {
    /// Runs an operator in stream order.
    fn aclopCompileAndExecute(
        name: *const c_char,
        input_count: i32, input_descs: In<Opaque>, inputs: In<Opaque>,
        output_count: i32, output_descs: In<Opaque>, outputs: In<Opaque>,
        attributes: Opaque, _engine: i32, _compile: i32, _path: *const c_char, stream: Opaque,
    ) {
        let scope = runtime::enter()?;
        let call = Call {
            name: text("opType", name)?,
            inputs: operands(input_count, input_descs, inputs)?,
            outputs: operands(output_count, output_descs, outputs)?,
            attributes: match attributes.is_null() {
                true => Default::default(),
                false => ATTRIBUTES.with(attributes, |attributes| attributes.clone())?,
            },
        };
        ops::check(&call)?;
        let mut tables = scope.tables();
        check_places(&tables, &scope, &call)?;
        let token = tables.stream_token(&scope, address(stream) as Token)?;
        let (runtime, device) = (Arc::clone(&scope.runtime), scope.device);
        let function = HostFunction {
            name: "operator",
            accesses: Vec::new(),
            cost_us: 0.0,
            body: Box::new(move |_| run(&call, &runtime, device)),
        };
        // SAFETY: the function declares no accesses.
        tables.submit(token, |stream| unsafe { scope.driver().launch_host(function, stream) })
    }
}
