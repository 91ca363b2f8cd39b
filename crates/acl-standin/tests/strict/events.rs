//! Events of both kinds.

use ascendcl::{Opaque, Out};

use crate::rig::*;

/// What the three queries say of an event; -1 for a refusal.
fn queries(event: Opaque) -> [i32; 3] {
    let mut status = [-1; 3];
    let [recorded, plain, waited] = &mut status;
    acl!(aclrtQueryEventStatus(event, Out::to(recorded)));
    acl!(aclrtQueryEvent(event, Out::to(plain)));
    acl!(aclrtQueryEventWaitStatus(event, Out::to(waited)));
    status
}

#[test]
fn the_queries_count_in_opposite_ways() {
    with(&[], || {
        let (event, first, second) = (old_event(), stream(), stream());
        assert_eq!(queries(event), [0, 1, 0], "never recorded");
        let hold = Hold::on(first);
        ok!(aclrtRecordEvent(event, first));
        ok!(aclrtStreamWaitEvent(second, event));
        assert_eq!(queries(event), [0, 1, 1], "under way");
        hold.release();
        ok!(aclrtSynchronizeEvent(event));
        ok!(aclrtSynchronizeStream(second));
        assert_eq!(queries(event), [1, 0, 0], "complete");
        assert_eq!(held(0).event_count, 1);
        ok!(aclrtDestroyEvent(event));
        refused!(BAD_HANDLE, "destroyed", aclrtDestroyEvent(event));
        finish(first);
        finish(second);
        let event = ex_event(SYNC);
        assert_eq!(queries(event), [0, 1, -1], "Ex events have no status of waits");
        ok!(aclrtDestroyEvent(event));
    });
}

#[test]
fn only_recorded_events_are_waited_for() {
    in_all_modes(|| {
        for event in [old_event(), ex_event(SYNC)] {
            refused!(PARAM, "not recorded", aclrtStreamWaitEvent(null(), event));
            refused!(PARAM, "not recorded", aclrtSynchronizeEvent(event));
            refused!(PARAM, "not recorded", aclrtSynchronizeEventWithTimeout(event, 1));
            ok!(aclrtRecordEvent(event, null()));
            ok!(aclrtStreamWaitEvent(null(), event));
            ok!(aclrtSynchronizeEventWithTimeout(event, 100_000));
            ok!(aclrtSynchronizeStream(null()));
            ok!(aclrtDestroyEvent(event));
        }
        let event = ex_event(TIME_LINE);
        ok!(aclrtRecordEvent(event, null()));
        refused!(PARAM, "SYNC", aclrtStreamWaitEvent(null(), event));
        ok!(aclrtDestroyEvent(event));
        let mut event = null();
        refused!(PARAM, "flags 0", aclrtCreateEventExWithFlag(Out::to(&mut event), 0));
        refused!(UNSUPPORTED, "0x40", aclrtCreateEventWithFlag(Out::to(&mut event), 0x40));
    });
}

#[test]
fn old_events_are_reset_between_waits_and_the_next_record() {
    with(&[], || {
        let (event, first, second) = (old_event(), stream(), stream());
        ok!(aclrtRecordEvent(event, first));
        ok!(aclrtRecordEvent(event, first));
        let hold = Hold::on(second);
        ok!(aclrtStreamWaitEvent(second, event));
        refused!(PARAM, "reset it before", aclrtRecordEvent(event, first));
        refused!(PARAM, "1 waits", aclrtResetEvent(event, first));
        refused!(PARAM, "1 waits", aclrtDestroyEvent(event));
        // Behind the wait in its own stream the reset is in order.
        ok!(aclrtResetEvent(event, second));
        refused!(PARAM, "not recorded", aclrtStreamWaitEvent(second, event));
        ok!(aclrtRecordEvent(event, first));
        ok!(aclrtStreamWaitEvent(second, event));
        hold.release();
        ok!(aclrtSynchronizeStream(second));
        ok!(aclrtResetEvent(event, first));
        ok!(aclrtDestroyEvent(event));
        finish(first);
        finish(second);
    });
}

#[test]
fn ex_events_are_recorded_and_destroyed_freely() {
    with(&[], || {
        let (event, first, second) = (ex_event(SYNC | TIME_LINE), stream(), stream());
        let hold = Hold::on(first);
        ok!(aclrtRecordEvent(event, first));
        ok!(aclrtStreamWaitEvent(second, event));
        ok!(aclrtRecordEvent(event, first));
        refused!(PARAM, "Ex event", aclrtResetEvent(event, second));
        ok!(aclrtDestroyEvent(event));
        let mut status = -1;
        ok!(aclrtStreamQuery(second, Out::to(&mut status)));
        assert_eq!(status, 1, "the wait outlives the event");
        hold.release();
        finish(first);
        finish(second);
    });
}

#[test]
fn times_need_timing_events_that_are_complete() {
    with(&[], || {
        let (start, end, plain) = (ex_event(TIME_LINE), ex_event(TIME_LINE), ex_event(SYNC));
        let mut ms = -1.0;
        let stream = stream();
        let (never, late) = ("not recorded", "not complete");
        let mut times = |from, to, words: &str| {
            let code = acl!(aclrtEventElapsedTime(Out::to(&mut ms), from, to));
            let text = message();
            assert_eq!(code == 0, words.is_empty(), "{text}");
            assert!(code == 0 || code == 107_006, "{code}");
            assert!(text.contains(words), "{text}");
            ms
        };
        times(start, end, never);
        ok!(aclrtRecordEvent(start, stream));
        ok!(aclrtSynchronizeStream(stream));
        let hold = Hold::on(stream);
        ok!(aclrtRecordEvent(end, stream));
        ok!(aclrtRecordEvent(plain, stream));
        times(start, end, late);
        refused!(507_047, "1 ms", aclrtSynchronizeEventWithTimeout(end, 1));
        refused!(507_046, "1 ms", aclrtSynchronizeStreamWithTimeout(stream, 1));
        hold.release();
        ok!(aclrtSynchronizeStreamWithTimeout(stream, 100_000));
        times(start, plain, "TIME_LINE");
        assert!(times(start, end, "") >= 0.0);
        let code = acl!(aclrtEventElapsedTime(Out::to(&mut ms), end, start));
        assert_eq!(code, 107_007, "{}", message());
        for event in [start, end, plain] {
            ok!(aclrtDestroyEvent(event));
        }
        finish(stream);
    });
}
