//! Operators: what they are refused for, and when what fails is told.

use std::ffi::CStr;

use ascendcl::{In, Opaque, Out};

use crate::rig::*;

const INVALID: i32 = 100_000;
const FLOAT: i32 = 0;
const ND: i32 = 2;

/// A described tensor of `count` floats.
struct Tensor {
    desc: Opaque,
    buffer: Opaque,
}

impl Tensor {
    fn new(start: Opaque, count: i64) -> Tensor {
        let desc = acl!(aclCreateTensorDesc(FLOAT, 1, In::from(&count), ND));
        let buffer = ascendcl::aclCreateDataBuffer(start, count as usize * 4);
        Tensor { desc, buffer }
    }

    fn free(self) {
        ascendcl::aclDestroyTensorDesc(self.desc);
        ok!(aclDestroyDataBuffer(self.buffer));
    }
}

/// Runs an operator of one input and one output.
fn run(name: &CStr, input: &Tensor, output: &Tensor, stream: Opaque) -> i32 {
    acl!(aclopCompileAndExecute(
        name.as_ptr(),
        1,
        In::from(&input.desc),
        In::from(&input.buffer),
        1,
        In::from(&output.desc),
        In::from(&output.buffer),
        null(),
        0,
        0,
        std::ptr::null(),
        stream,
    ))
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// Device memory that holds these numbers.
fn filled(values: &[f32]) -> Buffer {
    let (memory, host) = (Buffer::new(UNIT), pinned(values.len() * 4));
    write(host, &floats(values));
    ok!(aclrtMemcpy(memory.start, UNIT, host, values.len() * 4, H2D));
    ok!(aclrtFreeHost(host));
    memory
}

fn read(memory: &Buffer, count: usize) -> Vec<u8> {
    let host = pinned(count * 4);
    ok!(aclrtMemcpy(host, count * 4, memory.start, count * 4, D2H));
    let found = bytes(host, count * 4);
    ok!(aclrtFreeHost(host));
    found
}

#[test]
fn operators_run_in_stream_order_and_in_place() {
    in_all_modes(|| {
        let (stream, memory) = (stream(), filled(&[1.0, -2.0, 3.0]));
        let tensor = Tensor::new(memory.start, 3);
        for name in [c"Neg", c"Relu", c"Square", c"Sqrt", c"Neg"] {
            assert_eq!(run(name, &tensor, &tensor, stream), 0, "{}", message());
        }
        finish(stream);
        assert_eq!(read(&memory, 3), floats(&[-0.0, -2.0, -0.0]));
        tensor.free();
        memory.free();
    });
}

#[test]
fn operators_use_host_memory_that_has_one_address_for_both() {
    in_all_modes(|| {
        let (stream, memory, host) = (stream(), filled(&[0.0; 2]), shared());
        write(host, &floats(&[1.0, -2.0]));
        let (away, here) = (Tensor::new(host, 2), Tensor::new(memory.start, 2));
        assert_eq!(run(c"Neg", &away, &away, stream), 0, "{}", message());
        assert_eq!(run(c"Relu", &away, &here, stream), 0, "{}", message());
        finish(stream);
        assert_eq!(bytes(host, 8), floats(&[-1.0, 2.0]));
        assert_eq!(read(&memory, 2), floats(&[0.0, 2.0]));
        away.free();
        here.free();
        memory.free();
        ok!(aclrtFreeHost(host));
    });
}

#[test]
fn a_call_that_cannot_work_is_refused_at_once() {
    with(&[], || {
        let (stream, memory) = (stream(), filled(&[1.0; 4]));
        let (tensor, beyond) = (Tensor::new(memory.start, 4), at(memory.start, UNIT - 8));
        let refused_with = |words: &str, code: i32, due: i32| {
            let text = message();
            assert_eq!(code, due, "{text}");
            assert!(text.contains(words), "{text}");
        };
        let code = run(c"Frobnicate", &tensor, &tensor, stream);
        refused_with("no operator Frobnicate", code, UNSUPPORTED);
        let past = Tensor::new(beyond, 4);
        refused_with("not all mapped", run(c"Neg", &past, &tensor, stream), PARAM);
        past.free();
        let mut word = [0_u8; 16];
        let on_host = Tensor::new(word.as_mut_ptr().cast(), 4);
        refused_with("not on the device", run(c"Neg", &on_host, &tensor, stream), INVALID);
        on_host.free();
        let apart = pinned(16);
        let pinned = Tensor::new(apart, 4);
        refused_with("not on the device", run(c"Neg", &pinned, &tensor, stream), INVALID);
        pinned.free();
        ok!(aclrtFreeHost(apart));
        let odd = acl!(aclCreateTensorDesc(77, 1, In::from(&4), ND));
        let strange = Tensor { desc: odd, ..Tensor::new(memory.start, 4) };
        refused_with("type 77", run(c"Neg", &strange, &tensor, stream), UNSUPPORTED);
        strange.free();
        finish(stream);
        assert_eq!(read(&memory, 4), floats(&[1.0; 4]));
        tensor.free();
        memory.free();
    });
}

#[test]
fn what_fails_on_the_device_is_told_once_to_who_waits() {
    with(&[], || {
        let (stream, memory) = (stream(), filled(&[1.0; 4]));
        let (four, two) = (Tensor::new(memory.start, 4), Tensor::new(memory.start, 2));
        assert_eq!(run(c"Neg", &four, &two, stream), 0);
        refused!(INVALID, "operator Neg: output 0", aclrtSynchronizeStream(stream));
        assert_eq!(run(c"Neg", &four, &two, stream), 0);
        refused!(INVALID, "is of 2 elements, not 4", aclrtSynchronizeDevice());
        finish(stream);
        assert_eq!(read(&memory, 4), floats(&[1.0; 4]));
        four.free();
        two.free();
        memory.free();
    });
}

#[test]
fn what_was_destroyed_is_known_no_more() {
    with(&[], || {
        let (stream, memory) = (stream(), filled(&[1.0]));
        let tensor = Tensor::new(memory.start, 1);
        let gone = Tensor { desc: tensor.desc, buffer: tensor.buffer };
        tensor.free();
        assert_eq!(run(c"Neg", &gone, &gone, stream), INVALID);
        assert!(message().contains("description of a tensor, or destroyed"));
        refused!(INVALID, "data buffer, or destroyed", aclDestroyDataBuffer(gone.buffer));
        let attributes = ascendcl::aclopCreateAttr();
        ok!(aclopSetAttrInt(attributes, c"axis".as_ptr(), 1));
        ascendcl::aclopDestroyAttr(attributes);
        let name = c"axis".as_ptr();
        refused!(INVALID, "attributes, or destroyed", aclopSetAttrInt(attributes, name, 1));
        finish(stream);
        memory.free();
    });
}

#[test]
fn a_reset_that_frees_takes_all_that_is_held() {
    with(&[("ACL_STANDIN_RESET", "frees")], || {
        let (stream, memory) = (stream(), Buffer::new(UNIT));
        let (host, event) = (pinned(100), ex_event(SYNC));
        let mut direct = null();
        ok!(aclrtMalloc(Out::to(&mut direct), 100, 0));
        assert_eq!(ledger(0).chunk_count, 2);
        ok!(aclrtResetDevice(0));
        assert_eq!(held(0), Default::default());
        ok!(aclrtSetDevice(0));
        refused!(BAD_HANDLE, "destroyed", aclrtSynchronizeStream(stream));
        refused!(BAD_HANDLE, "destroyed", aclrtDestroyEvent(event));
        refused!(PARAM, "not the start of a mapping", aclrtUnmapMem(memory.start));
        refused!(PARAM, "not what", aclrtFree(direct));
        assert_eq!(acl!(aclrtFreeHost(host)), PARAM);
    });
}
