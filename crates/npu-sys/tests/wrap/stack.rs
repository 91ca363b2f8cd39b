//! Stacks of wrappers: each does its part in any order, and a refused call goes no deeper.

use std::sync::Arc;

use npu_sys::devices::{CheckConfig, CheckDriver, FaultDriver, FaultPlan, RecordDriver};
use npu_sys::{Driver, ErrorKind, EventKind, StreamHandle, VaRange};

use super::fake::FakeDriver;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layer {
    Fault,
    Check,
    Record,
}

use Layer::{Check, Fault, Record};

/// All three wrappers over a fake; `order` names them from the outermost inwards.
struct Stack {
    order: [Layer; 3],
    top: Arc<dyn Driver>,
    fake: Arc<FakeDriver>,
    fault: Arc<FaultDriver>,
    check: Arc<CheckDriver>,
    record: Arc<RecordDriver>,
}

impl Stack {
    fn new(order: [Layer; 3]) -> Stack {
        let fake = Arc::new(FakeDriver::default());
        let mut top: Arc<dyn Driver> = Arc::clone(&fake) as Arc<dyn Driver>;
        let (mut fault, mut check, mut record) = (None, None, None);
        for layer in order.into_iter().rev() {
            top = match layer {
                Fault => Arc::clone(fault.insert(Arc::new(FaultDriver::new(top)))) as _,
                Check => {
                    let driver = CheckDriver::new(top, CheckConfig::ORDER);
                    Arc::clone(check.insert(Arc::new(driver))) as _
                }
                Record => Arc::clone(record.insert(Arc::new(RecordDriver::new(top)))) as _,
            };
        }
        let (fault, check, record) = (fault.unwrap(), check.unwrap(), record.unwrap());
        Stack { order, top, fake, fault, check, record }
    }

    fn is_above(&self, upper: Layer, lower: Layer) -> bool {
        let place = |layer| self.order.iter().position(|&other| other == layer);
        place(upper) < place(lower)
    }

    fn buffer(&self) -> VaRange {
        let range = self.top.reserve(64).unwrap();
        let chunk = self.top.create_chunk(64).unwrap();
        self.top.map(range, chunk).unwrap();
        self.top.set_access(range).unwrap();
        range
    }

    fn write(&self, range: VaRange, stream: StreamHandle) -> Option<ErrorKind> {
        // SAFETY: the driver at the bottom touches no memory.
        unsafe { self.top.fill(range.start, 64, 7, stream) }.err().map(|error| error.kind)
    }
}

fn stacks() -> impl Iterator<Item = Stack> {
    let orders = [
        [Fault, Check, Record],
        [Fault, Record, Check],
        [Check, Fault, Record],
        [Check, Record, Fault],
        [Record, Fault, Check],
        [Record, Check, Fault],
    ];
    orders.into_iter().map(Stack::new)
}

#[test]
fn an_ordered_script_passes_through_all_layers() {
    for stack in stacks() {
        let buffer = stack.buffer();
        let streams = [(); 2].map(|()| stack.top.create_stream().unwrap());
        let event = stack.top.create_event(EventKind::Order).unwrap();
        assert_eq!(stack.write(buffer, streams[0]), None);
        stack.top.record_event(event, streams[0]).unwrap();
        stack.top.wait_event(streams[1], event).unwrap();
        assert_eq!(stack.write(buffer, streams[1]), None);

        assert!(stack.top.wants_accesses(), "the checker wants them, wherever it is");
        assert_eq!(stack.top.properties(), stack.fake.properties());
        let totals = (stack.fault.calls(), stack.record.total(), stack.fake.total());
        assert_eq!(totals, (11, 11, 11), "{:?}", stack.order);
        assert_eq!((stack.check.accesses_checked(), stack.check.violation_count()), (2, 0));
    }
}

#[test]
fn what_the_checker_refuses_goes_no_deeper() {
    for stack in stacks() {
        let buffer = stack.buffer();
        let streams = [(); 2].map(|()| stack.top.create_stream().unwrap());
        assert_eq!(stack.write(buffer, streams[0]), None);
        assert_eq!(stack.write(buffer, streams[1]), Some(ErrorKind::Race));

        let seen = |layer| if stack.is_above(layer, Check) { 2 } else { 1 };
        assert_eq!(stack.record.count("fill"), seen(Record), "{:?}", stack.order);
        assert_eq!(stack.fault.calls_by_name()["fill"], seen(Fault), "{:?}", stack.order);
        assert_eq!(stack.fake.count("fill"), 1);
    }
}

#[test]
fn an_injected_fault_goes_no_deeper_and_is_not_noted() {
    for stack in stacks() {
        let buffer = stack.buffer();
        let streams = [(); 2].map(|()| stack.top.create_stream().unwrap());
        stack.fault.arm(FaultPlan::once(1, ErrorKind::Failed).only("fill"));
        assert_eq!(stack.write(buffer, streams[0]), Some(ErrorKind::Failed));
        assert_eq!(stack.write(buffer, streams[1]), None, "the first write never happened");

        let seen = |layer| if stack.is_above(layer, Fault) { 2 } else { 1 };
        assert_eq!(stack.record.count("fill"), seen(Record), "{:?}", stack.order);
        assert_eq!(stack.check.accesses_checked(), seen(Check), "{:?}", stack.order);
        assert_eq!((stack.fake.count("fill"), stack.fault.injected()), (1, 1));
    }
}
