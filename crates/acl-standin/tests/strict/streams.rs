//! Streams, contexts, host functions and callbacks.

use std::ffi::c_void;
use std::sync::Mutex;

use ascendcl::{Opaque, Out};

use crate::rig::*;

static RAN: Mutex<Vec<usize>> = Mutex::new(Vec::new());

unsafe extern "C" fn note(argument: *mut c_void) {
    RAN.lock().unwrap().push(argument.addr());
}

unsafe extern "C" fn call_back_in(_: *mut c_void) {
    let code = acl!(aclrtSynchronizeDevice());
    RAN.lock().unwrap().push(code as usize);
}

fn number(number: usize) -> Opaque {
    std::ptr::without_provenance_mut(number)
}

fn ran() -> Vec<usize> {
    std::mem::take(&mut *RAN.lock().unwrap())
}

#[test]
fn host_functions_run_in_order_and_may_not_call_back() {
    in_all_modes(|| {
        ran();
        let stream = stream();
        for index in 1..5 {
            ok!(aclrtLaunchHostFunc(stream, Some(note), number(index)));
        }
        ok!(aclrtLaunchHostFunc(stream, Some(call_back_in), null()));
        refused!(100_000, "null", aclrtLaunchHostFunc(stream, None, null()));
        finish(stream);
        assert_eq!(ran(), [1, 2, 3, 4, NO_DEVICE as usize]);
    });
}

#[test]
fn a_stream_is_destroyed_when_the_host_has_seen_its_end() {
    in_all_modes(|| {
        let (stream, event) = (stream(), ex_event(SYNC));
        ok!(aclrtLaunchHostFunc(stream, Some(note), null()));
        refused!(PARAM, "synchronize first", aclrtDestroyStream(stream));
        refused!(PARAM, "synchronize first", aclrtDestroyStreamForce(stream));
        ok!(aclrtRecordEvent(event, stream));
        ok!(aclrtSynchronizeEvent(event));
        ok!(aclrtLaunchHostFunc(stream, Some(note), null()));
        refused!(PARAM, "synchronize first", aclrtDestroyStream(stream));
        ok!(aclrtSynchronizeDevice());
        ok!(aclrtDestroyStream(stream));
        refused!(BAD_HANDLE, "destroyed", aclrtSynchronizeStream(stream));
        refused!(PARAM, "default", aclrtDestroyStream(null()));
        ok!(aclrtDestroyEvent(event));
        ran();
    });
}

#[test]
fn a_query_tells_work_from_none() {
    with(&[], || {
        let mut stream = null();
        refused!(PARAM, "0..=7", aclrtCreateStreamWithConfig(Out::to(&mut stream), 8, 0));
        let out = Out::to(&mut stream);
        refused!(UNSUPPORTED, "0x20", aclrtCreateStreamWithConfig(out, 0, 0x20));
        ok!(aclrtCreateStreamWithConfig(Out::to(&mut stream), 7, 3));
        let hold = Hold::on(stream);
        let mut status = -1;
        ok!(aclrtStreamQuery(stream, Out::to(&mut status)));
        assert_eq!(status, 1);
        hold.release();
        ok!(aclrtSynchronizeStream(stream));
        ok!(aclrtStreamQuery(stream, Out::to(&mut status)));
        assert_eq!(status, 0);
        ok!(aclrtSetStreamFailureMode(stream, 1));
        refused!(PARAM, "mode 2", aclrtSetStreamFailureMode(stream, 2));
        ok!(aclrtDestroyStream(stream));
    });
}

#[test]
fn streams_and_events_stay_in_their_context() {
    with(&[("ACL_STANDIN_DEVICES", "2")], || {
        let (stream, event) = (stream(), ex_event(SYNC));
        let mut default = null();
        ok!(aclrtGetCurrentContext(Out::to(&mut default)));
        ok!(aclrtSetDevice(1));
        refused!(OTHER_CONTEXT, "context", aclrtSynchronizeStream(stream));
        refused!(OTHER_CONTEXT, "context", aclrtRecordEvent(event, null()));
        let mut made = null();
        ok!(aclrtCreateContext(Out::to(&mut made), 0));
        refused!(OTHER_CONTEXT, "context", aclrtSynchronizeStream(stream));
        let inner = crate::rig::stream();
        refused!(PARAM, "still has", aclrtDestroyContext(made));
        ok!(aclrtDestroyStream(inner));
        ok!(aclrtDestroyContext(made));
        refused!(NO_DEVICE, "no device", aclrtSynchronizeStream(null()));
        refused!(PARAM, "not a context", aclrtSetCurrentContext(made));
        ok!(aclrtSetCurrentContext(default));
        refused!(PARAM, "not a context that was created", aclrtDestroyContext(default));
        finish(stream);
        ok!(aclrtDestroyEvent(event));
        assert_eq!(held(1).stream_count, 0);
    });
}

#[test]
fn callbacks_run_on_the_thread_that_subscribed() {
    with(&[], || {
        ran();
        let stream = stream();
        let launch = |block| acl!(aclrtLaunchCallback(Some(note), number(7), block, stream));
        assert_eq!(launch(1), PARAM, "nobody subscribed");
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: it has no conditions.
            tell.send(unsafe { pthread_self() }).unwrap();
            while ended.try_recv().is_err() {
                let code = acl!(aclrtProcessReport(1));
                assert!(code == 0 || code == 107_019 || code == PARAM, "{code}");
            }
        });
        let runner = told.recv().unwrap();
        ok!(aclrtSubscribeReport(runner, stream));
        refused!(PARAM, "already", aclrtSubscribeReport(runner, stream));
        assert_eq!(launch(2), PARAM);
        assert_eq!(launch(1), 0);
        ok!(aclrtLaunchHostFunc(stream, Some(note), number(8)));
        ok!(aclrtSynchronizeStream(stream));
        assert_eq!(ran(), [7, 8], "a callback that blocks holds its stream");
        refused!(PARAM, "callbacks", aclrtDestroyStream(stream));
        ok!(aclrtUnSubscribeReport(runner, stream));
        refused!(PARAM, "not subscribed", aclrtUnSubscribeReport(runner, stream));
        end.send(()).unwrap();
        thread.join().unwrap();
        ok!(aclrtDestroyStream(stream));
    });
}

unsafe extern "C" {
    fn pthread_self() -> u64;
}
