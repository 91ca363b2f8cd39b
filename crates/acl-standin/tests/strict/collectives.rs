//! Collectives of one rank.

use ascendcl::Out;

use crate::rig::*;

const FP32: i32 = 4;

#[test]
fn one_rank_gets_its_own_numbers_when_the_collective_is_let_go() {
    with(&[], || {
        let (from, to, stream) = (Buffer::new(UNIT), Buffer::new(UNIT), stream());
        let mut comm = null();
        let comm_out = Out::to(&mut comm);
        ok!(HcclCommInitRootInfoConfig(1, std::ptr::null(), 0, null(), comm_out));
        ok!(aclrtMemset(from.start, 64, 7, 64));
        ok!(aclrtMemset(to.start, 64, 1, 64));
        ok!(standin_hold_collectives(1));
        ok!(HcclAllGather(from.start, to.start, 16, FP32, comm, stream));
        ok!(HcclAllReduce(to.start, to.start, 16, FP32, 0, comm, stream));
        ok!(HcclBroadcast(to.start, 16, FP32, 0, comm, stream));
        let event = ex_event(SYNC);
        ok!(aclrtRecordEvent(event, stream));
        let mut status = -1;
        ok!(aclrtQueryEventStatus(event, Out::to(&mut status)));
        assert_eq!(status, 0, "nothing is done while collectives are held");
        // What is sent is read when the collective runs.
        ok!(aclrtMemset(from.start, 64, 9, 64));
        ok!(standin_hold_collectives(0));
        finish(stream);
        assert_eq!(bytes(to.start, 65)[..64], [9; 64]);
        ok!(aclrtDestroyEvent(event));
        ok!(HcclCommDestroy(comm));
        from.free();
        to.free();
    });
}

#[test]
fn what_no_collective_can_use_is_refused() {
    with(&[], || {
        let (buffer, stream, host) = (Buffer::new(UNIT), stream(), pinned(4096));
        let device = buffer.start;
        let mut comm = null();
        let (nobody, comm_out) = (std::ptr::null(), Out::to(&mut comm));
        refused!(
            UNSUPPORTED,
            "2 ranks",
            HcclCommInitRootInfoConfig(2, nobody, 0, null(), comm_out)
        );
        refused!(100_000, "null", HcclCommInitRootInfoConfig(1, nobody, 0, null(), Out::null()));
        refused!(100_000, "null", HcclGetRootInfo(null()));
        refused!(
            100_000,
            "not on the device",
            HcclAllGather(host, device, 16, FP32, null(), stream)
        );
        refused!(
            PARAM,
            "not all mapped",
            HcclBroadcast(device, UNIT as u64, FP32, 0, null(), stream)
        );
        refused!(100_000, "type 12", HcclBroadcast(device, 1, 12, 0, null(), stream));
        refused!(100_000, "elements", HcclBroadcast(device, u64::MAX, FP32, 0, null(), stream));
        let mut error = -1;
        ok!(HcclGetCommAsyncError(null(), Out::to(&mut error)));
        assert_eq!(error, 0);
        finish(stream);
        ok!(aclrtFreeHost(host));
        buffer.free();
    });
}
