//! Calls from many threads at once.

use std::thread;

use npu_sys::EventKind;

use crate::drivers::on_all_drivers;
use crate::rig::Log;

#[test]
fn many_threads_may_call_at_once() {
    on_all_drivers(|rig| {
        let log = Log::default();
        thread::scope(|scope| {
            for caller in 0..4_u32 {
                let log = log.clone();
                scope.spawn(move || {
                    let stream = rig.stream();
                    for round in 0..25 {
                        let buffer = rig.buffer(rig.unit);
                        let value = (caller * 25 + round) as u8;
                        rig.fill(buffer.start(), rig.unit, value, stream).unwrap();
                        let event = rig.recorded(EventKind::Order, stream);
                        rig.driver.synchronize_event(event).unwrap();
                        assert_eq!(rig.device_bytes(buffer.start(), 4), [value; 4]);
                        rig.drop_buffer(buffer);
                        rig.destroy([], [event]);
                        log.add(u32::from(value));
                    }
                    rig.destroy([stream], []);
                });
            }
        });
        assert_eq!(log.set().len(), 100);
    });
}
