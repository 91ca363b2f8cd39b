//! Threads, full queues, the end of a driver, and host functions that call it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;

use npu_sys::devices::{HostConfig, HostDriver, HostLink, SpanKind};
use npu_sys::{DeviceProperties, Driver, ErrorKind, EventKind};

use super::{CAPACITY, HostRig, UNIT, configs, in_mode};
use crate::rig::{Log, refused};

#[test]
fn host_functions_may_not_wait_for_their_own_device() {
    for config in configs() {
        let driver = HostDriver::new(config).unwrap();
        let rig = HostRig::new(&driver);
        let stream = rig.stream();
        let event = rig.recorded(EventKind::Timing, stream);
        let inner = Arc::downgrade(&driver);
        let seen = Arc::new(Mutex::new(None));
        let told = Arc::clone(&seen);
        rig.run(stream, vec![], 1.0, move |_| {
            let driver = inner.upgrade().unwrap();
            refused(driver.synchronize_stream(stream), ErrorKind::Invalid);
            refused(driver.synchronize_event(event), ErrorKind::Invalid);
            refused(driver.record_event(event, stream), ErrorKind::Invalid);
            refused(driver.create_stream(), ErrorKind::Invalid);
            refused(driver.synchronize(), ErrorKind::Invalid);
            // Looking is free.
            let free_bytes = driver.memory_info().unwrap().free_bytes;
            *told.lock().unwrap() = Some((free_bytes, driver.ledger().stream_count));
            assert!(driver.now_us() >= 0.0);
        });
        driver.synchronize_stream(stream).unwrap();
        assert_eq!(*seen.lock().unwrap(), Some((CAPACITY, 1)));
        rig.destroy([stream], [event]);
        assert!(driver.ledger().is_empty());
    }
}

#[test]
fn work_that_runs_is_not_complete_though_the_queue_is_empty() {
    in_mode(HostConfig::threads(CAPACITY), |rig| {
        let stream = rig.stream();
        let (begin, begun) = channel();
        let (go, going) = channel::<()>();
        rig.run(stream, vec![], 0.0, move |_| {
            begin.send(()).unwrap();
            going.recv().unwrap();
        });
        begun.recv().unwrap();
        let event = rig.recorded(EventKind::Order, stream);
        assert!(!rig.driver.query_event(event).unwrap());
        go.send(()).unwrap();
        rig.driver.synchronize_event(event).unwrap();
        rig.destroy([stream], [event]);
    });
}

#[test]
fn a_full_queue_blocks_the_submission() {
    let depth = 3;
    in_mode(HostConfig { queue_depth: depth, ..HostConfig::threads(CAPACITY) }, |rig| {
        let stream = rig.stream();
        let hold = rig.hold(stream);
        let submitted = AtomicU64::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20 {
                    rig.run(stream, vec![], 0.0, |_| {});
                    submitted.fetch_add(1, Ordering::SeqCst);
                }
            });
            // The held function may still be in the queue or have left it.
            while submitted.load(Ordering::SeqCst) < depth as u64 - 1 {
                thread::yield_now();
            }
            for _ in 0..1000 {
                thread::yield_now();
                assert!(submitted.load(Ordering::SeqCst) <= depth as u64);
            }
            hold.release();
        });
        assert_eq!(submitted.load(Ordering::SeqCst), 20);
        rig.driver.synchronize_stream(stream).unwrap();
        rig.destroy([stream], []);
    });
}

#[test]
fn a_driver_ends_with_work_left_even_on_its_own_worker() {
    // Dropped by the host while a function runs and others wait.
    let driver = HostDriver::new(HostConfig::threads(CAPACITY)).unwrap();
    let rig = HostRig::new(&driver);
    let stream = rig.stream();
    let hold = rig.hold(stream);
    let log = Log::default();
    for number in 0..10 {
        let log = log.clone();
        rig.run(stream, vec![], 0.0, move |_| log.add(number));
    }
    hold.release();
    drop(driver);
    let ran = log.entries();
    assert_eq!(ran, (0..ran.len() as u32).collect::<Vec<_>>(), "a prefix ran, in order");

    // Dropped by a function that holds the last handle.
    let driver = HostDriver::new(HostConfig::threads(CAPACITY)).unwrap();
    let rig = HostRig::new(&driver);
    let stream = rig.stream();
    let own: Arc<dyn Driver> = driver.clone();
    let (go, going) = channel();
    let (tell, told) = channel::<DeviceProperties>();
    rig.run(stream, vec![], 0.0, move |_| {
        going.recv().unwrap();
        let properties = own.properties();
        drop(own);
        tell.send(properties).unwrap();
    });
    drop(driver);
    go.send(()).unwrap();
    assert_eq!(told.recv().unwrap().total_bytes, CAPACITY);
}

#[test]
fn copies_on_threads_take_at_least_the_time_of_the_link() {
    let link = HostLink {
        out_bytes_per_s: 200_000_000,
        in_bytes_per_s: 100_000_000,
        both_bytes_per_s: 50_000_000,
    };
    let config = HostConfig { link: Some(link), ..HostConfig::threads(CAPACITY) };
    in_mode(config, |rig| {
        let size_bytes = 8 * UNIT;
        let buffers = [rig.buffer(size_bytes), rig.buffer(size_bytes)];
        let host = [0, 1].map(|_| rig.pinned(&vec![1; size_bytes as usize]));
        let streams = [rig.stream(), rig.stream()];
        rig.host.start_timeline();
        let before_us = rig.host.now_us();
        for _ in 0..2 {
            for ((&buffer, &host), &stream) in buffers.iter().zip(&host).zip(&streams) {
                rig.copy_out(buffer.start(), host, size_bytes, stream);
            }
        }
        rig.host.synchronize().unwrap();
        let alone_us = size_bytes as f64 / 200.0;
        assert!(rig.host.now_us() - before_us >= 4.0 * alone_us);
        let mut spans = rig.host.take_timeline();
        spans.sort_by(|a, b| a.start_us.total_cmp(&b.start_us));
        assert_eq!(spans.len(), 4);
        for span in &spans {
            assert_eq!((span.kind, span.size_bytes), (SpanKind::CopyOut, size_bytes));
            assert!(span.end_us - span.start_us >= alone_us - 1e-6);
        }
        // One at a time, though they come from two streams.
        assert!(spans.windows(2).all(|pair| pair[0].end_us <= pair[1].start_us));

        // One copy each way: whatever overlaps, no more than the link can do was moved.
        rig.host.start_timeline();
        rig.copy_out(buffers[0].start(), host[0], size_bytes, streams[0]);
        rig.copy_in(host[1], buffers[1].start(), size_bytes, streams[1]);
        rig.host.synchronize().unwrap();
        let spans = rig.host.take_timeline();
        let start_us = spans.iter().map(|span| span.start_us).fold(f64::INFINITY, f64::min);
        let end_us = spans.iter().map(|span| span.end_us).fold(0.0, f64::max);
        let shared_us = {
            let latest = spans.iter().map(|span| span.start_us).fold(0.0, f64::max);
            let first = spans.iter().map(|span| span.end_us).fold(f64::INFINITY, f64::min);
            (first - latest).max(0.0)
        };
        // At least as long as the slower copy alone, and more by what the sharing cost.
        let most_bytes = (end_us - start_us - shared_us) * 200.0 + shared_us * 100.0;
        assert!(most_bytes >= 2.0 * size_bytes as f64 * (1.0 - 1e-9));

        refused(rig.host.advance(1.0), ErrorKind::Unsupported);
        buffers.into_iter().for_each(|buffer| rig.drop_buffer(buffer));
        host.into_iter().for_each(|start| rig.free_pinned(start).unwrap());
        rig.destroy(streams, []);
    });
}
