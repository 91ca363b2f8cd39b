//! The virtual clock of lockstep devices, to the exact microsecond, and their determinism.

use npu_sys::devices::{DeviceSpan, HostConfig, HostDriver, HostLink, SpanKind};
use npu_sys::{Driver, ErrorKind, EventKind, StreamHandle};

use super::{CAPACITY, HostRig, UNIT, in_mode};
use crate::rig::{Log, refused};

/// 1000, 500 and 250 bytes per microsecond.
const LINK: HostLink = HostLink {
    out_bytes_per_s: 1_000_000_000,
    in_bytes_per_s: 500_000_000,
    both_bytes_per_s: 250_000_000,
};

fn by_time(test: impl Fn(&HostRig<'_>)) {
    in_mode(HostConfig { link: Some(LINK), ..HostConfig::by_time(CAPACITY) }, test);
}

/// Spans as (kind, start, end), by start and then the longer one first.
fn times(mut spans: Vec<DeviceSpan>) -> Vec<(SpanKind, f64, f64)> {
    let key = |span: &DeviceSpan| (span.start_us, -span.end_us);
    spans.sort_by(|a, b| key(a).partial_cmp(&key(b)).unwrap());
    spans.iter().map(|span| (span.kind, span.start_us, span.end_us)).collect()
}

#[test]
fn the_host_clock_moves_only_when_the_host_waits() {
    by_time(|rig| {
        let stream = rig.stream();
        let start = rig.recorded(EventKind::Timing, stream);
        rig.run(stream, vec![], 70.0, |_| {});
        let middle = rig.recorded(EventKind::Timing, stream);
        rig.run(stream, vec![], 30.0, |_| {});
        let end = rig.recorded(EventKind::Timing, stream);
        assert_eq!(rig.host.now_us(), 0.0);
        assert!(rig.driver.query_event(start).unwrap());
        rig.host.advance(69.5).unwrap();
        assert!(!rig.driver.query_event(middle).unwrap());
        rig.host.advance(0.5).unwrap();
        assert!(rig.driver.query_event(middle).unwrap());
        assert!(!rig.driver.query_event(end).unwrap());
        assert_eq!(rig.host.now_us(), 70.0);
        rig.driver.synchronize_event(end).unwrap();
        assert_eq!(rig.host.now_us(), 100.0);
        // Waiting for what is long done costs nothing.
        rig.host.advance(10.0).unwrap();
        rig.driver.synchronize_event(middle).unwrap();
        rig.driver.synchronize_stream(stream).unwrap();
        assert_eq!(rig.host.now_us(), 110.0);
        assert_eq!(rig.driver.elapsed_us(start, end).unwrap(), 100.0);
        assert_eq!(rig.driver.elapsed_us(middle, end).unwrap(), 30.0);
        refused(rig.host.advance(-1.0), ErrorKind::Invalid);
        refused(rig.host.advance(f64::NAN), ErrorKind::Invalid);

        // Work does not begin before it was submitted.
        rig.host.start_timeline();
        rig.run(stream, vec![], 5.0, |_| {});
        rig.driver.synchronize_stream(stream).unwrap();
        assert_eq!(times(rig.host.take_timeline()), [(SpanKind::Compute, 110.0, 115.0)]);
        rig.destroy([stream], [start, middle, end]);
    });
}

#[test]
fn copies_in_one_direction_take_turns_and_both_directions_share() {
    by_time(|rig| {
        let size = UNIT;
        let buffers = [rig.buffer(size), rig.buffer(size)];
        let host = rig.pinned(&vec![0; size as usize]);
        let streams = [rig.stream(), rig.stream(), rig.stream()];
        let begin = |at_us: f64| {
            rig.host.synchronize().unwrap();
            rig.host.advance(at_us - rig.host.now_us()).unwrap();
            rig.host.start_timeline();
        };

        // Copies out of 10,000, 20,000 and 5,000 bytes: one after the other at 1000 bytes/us, in
        // the order in which they came.
        begin(0.0);
        rig.copy_out(buffers[0].start(), host, 10_000, streams[0]);
        rig.copy_out(buffers[1].start(), host.offset(20_000), 20_000, streams[1]);
        rig.copy_out(buffers[1].start(), host.offset(40_000), 5_000, streams[2]);
        rig.host.synchronize().unwrap();
        let expect = [
            (SpanKind::CopyOut, 0.0, 10.0),
            (SpanKind::CopyOut, 10.0, 30.0),
            (SpanKind::CopyOut, 30.0, 35.0),
        ];
        assert_eq!(times(rig.host.take_timeline()), expect);

        // 20,000 bytes out from 1000; after 10 us another 5,000 come in. Then 10,000 are left
        // out and both run at 250: in is done 20 us later, when 5,000 are left: 5 us more.
        begin(1000.0);
        rig.copy_out(buffers[0].start(), host, 20_000, streams[0]);
        rig.run(streams[1], vec![], 10.0, |_| {});
        rig.copy_in(host.offset(40_000), buffers[1].start(), 5_000, streams[1]);
        rig.host.synchronize().unwrap();
        let expect = [
            (SpanKind::CopyOut, 1000.0, 1035.0),
            (SpanKind::Compute, 1000.0, 1010.0),
            (SpanKind::CopyIn, 1010.0, 1030.0),
        ];
        assert_eq!(times(rig.host.take_timeline()), expect);

        // Compute goes on beside a copy, and a wait makes it later.
        begin(2000.0);
        let (work, copies) = (streams[0], streams[1]);
        rig.copy_in(host, buffers[0].start(), 10_000, copies);
        let arrived = rig.recorded(EventKind::Timing, copies);
        rig.run(work, vec![], 15.0, |_| {});
        rig.driver.wait_event(work, arrived).unwrap();
        rig.run(work, vec![], 4.0, |_| {});
        let end = rig.recorded(EventKind::Timing, work);
        rig.driver.synchronize_event(end).unwrap();
        assert_eq!(rig.driver.elapsed_us(arrived, end).unwrap(), 4.0);
        let expect = [
            (SpanKind::CopyIn, 2000.0, 2020.0),
            (SpanKind::Compute, 2000.0, 2015.0),
            (SpanKind::Compute, 2020.0, 2024.0),
        ];
        assert_eq!(times(rig.host.take_timeline()), expect);

        // Fills and copies inside the device take a known time too.
        begin(3000.0);
        rig.fill(buffers[0].start(), 50_000, 1, work).unwrap();
        rig.driver.synchronize_stream(work).unwrap();
        assert_eq!(rig.host.now_us(), 3000.0 + 0.05);
        rig.host.take_timeline();

        buffers.into_iter().for_each(|buffer| rig.drop_buffer(buffer));
        rig.free_pinned(host).unwrap();
        rig.destroy(streams, [arrived, end]);
    });
}

#[test]
fn effects_happen_in_the_order_of_completion() {
    by_time(|rig| {
        let streams = [rig.stream(), rig.stream(), rig.stream()];
        let log = Log::default();
        for (number, (&stream, cost_us)) in streams.iter().zip([30.0, 10.0, 20.0]).enumerate() {
            for _ in 0..2 {
                let log = log.clone();
                rig.run(stream, vec![], cost_us, move |_| log.add(number as u32));
            }
        }
        rig.host.advance(20.0).unwrap();
        assert_eq!(log.entries(), [1, 1, 2], "at 10, 20 and 20");
        rig.host.synchronize().unwrap();
        assert_eq!(log.entries(), [1, 1, 2, 0, 2, 0], "then at 30, 40 and 60");
        assert_eq!(rig.host.now_us(), 60.0);
        rig.destroy(streams, []);
    });
}

#[test]
fn a_timeline_names_its_work() {
    by_time(|rig| {
        let buffer = rig.buffer(UNIT);
        let stream = rig.stream();
        rig.fill(buffer.start(), 8, 1, stream).unwrap();
        rig.driver.synchronize_stream(stream).unwrap();
        assert!(rig.host.take_timeline().is_empty(), "nothing is kept without a start");
        rig.host.start_timeline();
        rig.fill(buffer.start().offset(4), 8, 1, stream).unwrap();
        rig.run(stream, vec![buffer.access(npu_sys::AccessMode::Read)], 2.0, |_| {});
        rig.driver.synchronize_stream(stream).unwrap();
        let spans = rig.host.take_timeline();
        let seen: Vec<_> = spans
            .iter()
            .map(|span| (span.stream, span.name, span.kind, span.address, span.size_bytes))
            .collect();
        let start = buffer.start();
        let expect = [
            (stream, "fill", SpanKind::Fill, Some(start.offset(4)), 8),
            (stream, "test", SpanKind::Compute, Some(start), UNIT),
        ];
        assert_eq!(seen, expect);
        rig.drop_buffer(buffer);
        rig.destroy([stream], []);
    });
}

/// A program on four streams with some order between them; returns what happened, in order.
fn story(seed: u64) -> Vec<(StreamHandle, u64, f64, f64)> {
    let config = HostConfig { link: Some(LINK), ..HostConfig::lockstep(CAPACITY, seed) };
    let driver = HostDriver::new(config).unwrap();
    let rig = HostRig::new(&driver);
    let buffers = [0, 1, 2, 3].map(|_| rig.buffer(UNIT));
    let host = rig.pinned(&vec![0; 4 * UNIT as usize]);
    let streams = [0, 1, 2, 3].map(|_| rig.stream());
    let event = driver.create_event(EventKind::Order).unwrap();
    driver.start_timeline();
    for round in 0..20 {
        for (index, (&buffer, &stream)) in buffers.iter().zip(&streams).enumerate() {
            let place = host.offset(index as u64 * UNIT);
            let size_bytes = 1000 + round * 4 + index as u64;
            rig.copy_in(place, buffer.start(), size_bytes, stream);
            rig.copy_out(buffer.start(), place, size_bytes, stream);
        }
        let turn = round as usize % 4;
        driver.record_event(event, streams[turn]).unwrap();
        driver.wait_event(streams[(turn + 1) % 4], event).unwrap();
    }
    driver.synchronize().unwrap();
    let spans = driver.take_timeline();
    spans.iter().map(|span| (span.stream, span.size_bytes, span.start_us, span.end_us)).collect()
}

#[test]
fn a_seed_is_one_order_and_other_seeds_are_others() {
    let stories: Vec<_> = (0..10).map(story).collect();
    for (seed, told) in stories.iter().enumerate() {
        assert_eq!(told.len(), 160);
        assert_eq!(told, &story(seed as u64));
        let others = stories.iter().filter(|other| *other == told).count();
        assert_eq!(others, 1, "seed {seed} tells the story of another seed");
    }
    let keeps_its_streams_in_order = |told: &Vec<(StreamHandle, u64, f64, f64)>| {
        (1..=4).all(|stream| {
            let own: Vec<_> = told.iter().filter(|span| span.0.0 == stream).collect();
            own.windows(2).all(|pair| pair[0].3 <= pair[1].2)
        })
    };
    assert!(stories.iter().all(keeps_its_streams_in_order));
}

#[test]
fn a_seeded_device_runs_far_ahead_and_far_behind() {
    // Two streams of 50 pieces each. Over the seeds, each must once be ahead of the other by 20.
    let mut most_ahead = [0_usize; 2];
    for seed in 0..100 {
        let told = lead(seed);
        most_ahead = [most_ahead[0].max(told[0]), most_ahead[1].max(told[1])];
    }
    assert!(most_ahead.iter().all(|&lead| lead >= 20), "{most_ahead:?}");
}

/// How many pieces each of two streams was ahead of the other at most.
fn lead(seed: u64) -> [usize; 2] {
    let driver = HostDriver::new(HostConfig::lockstep(CAPACITY, seed)).unwrap();
    let rig = HostRig::new(&driver);
    let streams = [rig.stream(), rig.stream()];
    driver.start_timeline();
    for _ in 0..50 {
        streams.into_iter().for_each(|stream| rig.run(stream, vec![], 1.0, |_| {}));
    }
    driver.synchronize().unwrap();
    let (mut done, mut most) = ([0_usize; 2], [0; 2]);
    for span in driver.take_timeline() {
        done[usize::from(span.stream == streams[1])] += 1;
        most = [
            most[0].max(done[0].saturating_sub(done[1])),
            most[1].max(done[1].saturating_sub(done[0])),
        ];
    }
    most
}
