//! Waits and marks of streams: how many there are, which are timed, and what a failure leaves.
//!
//! A device in a random order has not always done what was submitted, so each test asks many.

use std::sync::Arc;

use vmem::devices::{FaultDriver, FaultPlan, HostConfig, HostDriver};
use vmem::{ErrorKind, Point, Site, StreamId, Streams, Uses};

const SEEDS: u64 = 60;

struct Bench {
    host: Arc<HostDriver>,
    fault: Arc<FaultDriver>,
    streams: Streams,
    /// Two streams for which waits are timed, and one for which they are not.
    copies: [StreamId; 2],
    compute: StreamId,
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let host = HostDriver::new(HostConfig::lockstep(1 << 20, seed)).expect("opens");
        let fault = Arc::new(FaultDriver::new(host.clone()));
        let mut streams = Streams::new(fault.clone());
        let [first, second, compute] = [(); 3].map(|()| streams.create().expect("a stream"));
        streams.measure_waits_for(first);
        streams.measure_waits_for(second);
        Bench { host, fault, streams, copies: [first, second], compute }
    }

    fn calls(&self, name: &str) -> u64 {
        self.fault.calls_by_name().get(name).copied().unwrap_or(0)
    }

    /// A piece of work of the first copy stream; `None` if the device is done with it already.
    fn unfinished(&mut self) -> Option<Point> {
        let point = self.streams.advance(self.copies[0]);
        let is_done = self.streams.has_completed(point).expect("asks");
        (!is_done).then_some(point)
    }

    fn close(self) {
        let Bench { host, streams, .. } = self;
        drop(streams);
        assert!(host.ledger().is_empty(), "{:?}", host.ledger());
    }
}

/// Runs a test on devices of many seeds; some of them must have been of use.
fn on_many(test: impl Fn(&mut Bench) -> bool) {
    let useful = (0..SEEDS).filter(|&seed| {
        let mut bench = Bench::new(seed);
        let was_useful = test(&mut bench);
        bench.close();
        was_useful
    });
    assert!(useful.count() > 3);
}

#[test]
fn a_wait_that_fails_keeps_no_event() {
    on_many(|bench| {
        let point = bench.streams.advance(bench.copies[0]);
        bench.fault.arm(FaultPlan::once(1, ErrorKind::Failed).only("wait_event"));
        let waited = bench.streams.order_after(bench.compute, point, Site::TouchAfterArrival);
        assert_eq!(waited.is_err(), bench.fault.injected() == 1);
        assert!(waited.is_ok() || !bench.streams.is_ordered(bench.compute, point));
        assert!(bench.streams.take_stalls().is_empty() || waited.is_ok());
        waited.is_err()
    });
}

#[test]
fn only_waits_of_compute_for_copies_are_timed() {
    on_many(|bench| {
        let Some(point) = bench.unfinished() else { return false };
        bench.streams.order_after(bench.copies[1], point, Site::CopyInAfterCopyOut).expect("waits");
        assert!(bench.streams.take_stalls().is_empty(), "a copy that waits for a copy");
        bench.streams.order_after(bench.compute, point, Site::TouchAfterArrival).expect("waits");
        let stalls = bench.streams.take_stalls();
        for stall in &stalls {
            bench.streams.recycle_timer(stall.start);
            bench.streams.recycle_timer(stall.end);
        }
        // It may have ended meanwhile.
        stalls.len() == 1
    });
}

#[test]
fn the_waits_of_the_host_are_counted() {
    on_many(|bench| {
        let Some(point) = bench.unfinished() else { return false };
        let before = bench.calls("synchronize_event");
        bench.streams.wait_host(&Uses::of(point), Site::ReleaseAfterUse).expect("waits");
        let waits = bench.calls("synchronize_event") - before;
        assert_eq!(bench.streams.host_waits().min(1), bench.streams.host_waits());
        assert!(bench.streams.host_waits() >= waits, "each wait counts");
        let counted = bench.streams.host_waits();
        bench.streams.wait_host(&Uses::of(point), Site::ReleaseAfterUse).expect("is complete");
        assert_eq!(bench.streams.host_waits(), counted, "there was nothing to wait for");
        waits == 1
    });
}

#[test]
fn a_mark_takes_an_event_only_where_there_is_new_work() {
    on_many(|bench| {
        let stream = bench.compute;
        bench.streams.mark(stream).expect("marks");
        assert_eq!(bench.calls("record_event"), 0, "no work, no event");
        let point = bench.streams.advance(stream);
        for _ in 0..3 {
            bench.streams.mark(stream).expect("marks");
            assert_eq!(bench.calls("record_event"), 1);
        }
        bench.streams.wait_host(&Uses::of(point), Site::ReleaseAfterUse).expect("waits");
        bench.streams.mark(stream).expect("marks");
        bench.calls("record_event") == 1
    });
}

#[test]
fn nothing_waits_for_a_stream_that_somebody_captures() {
    on_many(|bench| {
        let (captured, other) = (bench.compute, bench.copies[0]);
        let handle = bench.streams.handle(captured);
        let work = bench.streams.advance(captured);
        bench.streams.capture_begins().expect("all is complete");
        let records = bench.calls("record_event");
        bench.host.set_captured(handle, true);
        // As where a block is freed of whose uses nobody tells: the next user waits for all.
        let later = bench.streams.advance(captured);
        for point in [work, later] {
            assert_eq!(bench.streams.has_completed(point), Ok(true));
            bench.streams.order_after(other, point, Site::CopyOutAfterUse).expect("no wait");
            bench.streams.wait_host(&Uses::of(point), Site::CopyOutAfterUse).expect("no wait");
        }
        bench.streams.mark(captured).expect("no mark");
        bench.streams.synchronize().expect("of the others");
        assert_eq!(bench.calls("record_event"), records);
        // Of other streams there is what there was.
        let Some(point) = bench.unfinished() else {
            bench.host.set_captured(handle, false);
            return false;
        };
        bench.streams.wait_host(&Uses::of(point), Site::CopyOutAfterUse).expect("waits");
        bench.host.set_captured(handle, false);
        bench.streams.capture_ended();
        let next = bench.streams.advance(captured);
        let asked = bench.calls("is_captured");
        bench.streams.order_after(other, next, Site::CopyOutAfterUse).expect("waits");
        assert!(bench.calls("record_event") > records + 1);
        assert_eq!(bench.calls("is_captured"), asked, "nobody captures, so nobody asks");
        true
    });
}
