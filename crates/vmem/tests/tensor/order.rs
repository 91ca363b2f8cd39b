//! Order: on the stream, between streams, and with the host, which waits for what it needs only.

use vmem::devices::{HostConfig, HostLink};
use vmem::{Access, AccessMode, Driver, Dtype, HostFunction, Place, StreamHandle, SwapTensor};

use super::bench::Bench;

/// Submits a kernel that adds one to each byte of the tensor.
fn add_one(bench: &Bench, tensor: &SwapTensor, stream: StreamHandle, cost_us: f64) {
    let start = tensor.address().expect("the device reaches it");
    let size_bytes = tensor.size_bytes() as u64;
    let function = HostFunction {
        name: "add one",
        accesses: vec![Access { start, size_bytes, mode: AccessMode::ReadWrite }],
        cost_us,
        body: Box::new(|operands| {
            operands.write::<u8>(0).iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
        }),
    };
    // SAFETY: the tensor is contiguous and lives; its callers order `stream` before and
    // record the use afterwards, so that nothing else touches the bytes meanwhile.
    unsafe { bench.check.launch_host(function, stream) }.expect("launches");
}

#[test]
fn work_of_others_comes_before_whatever_is_done_next() {
    for seed in 0..40 {
        let bench = Bench::new(seed, 1 << 20, 1 << 20);
        let other = bench.check.create_stream().unwrap();
        for place in [Place::Device, Place::Swapped] {
            let tensor = bench.device.from_slice(place, &[8000], &[7_u8; 8000]).unwrap();
            let next = |tensor: &SwapTensor| {
                bench.device.order_stream(other).unwrap();
                add_one(&bench, tensor, other, 1000.0);
                tensor.record_use(other);
            };
            next(&tensor);
            assert_eq!(tensor.narrow(0, 5, 2).unwrap().to_vec::<u8>().unwrap(), [8, 8]);
            next(&tensor);
            let copy = tensor.try_clone().unwrap();
            next(&tensor);
            assert_eq!(copy.to_vec::<u8>().unwrap(), [9; 8000]);
            tensor.slice(0, 0, 8000, 2).unwrap().zero_().unwrap();
            next(&tensor);
            assert_eq!(tensor.narrow(0, 0, 2).unwrap().to_vec::<u8>().unwrap(), [1, 11]);
            if tensor.swap_out().unwrap() {
                assert_eq!(tensor.narrow(0, 0, 2).unwrap().to_vec::<u8>().unwrap(), [1, 11]);
                tensor.swap_in().unwrap();
            }
            next(&tensor);
            // Freed while the work runs: the next owner waits.
            drop(tensor);
            let heir = bench.device.empty_in(place, &[8000], Dtype::U8).unwrap();
            heir.fill_(3).unwrap();
            assert_eq!(heir.to_vec::<u8>().unwrap(), [3; 8000]);
        }
        bench.finish_after(|check| check.destroy_stream(other).unwrap());
    }
}

/// A device on a virtual clock, with a link of a byte a nanosecond.
fn timed() -> Bench {
    let link = Some(HostLink::duplex(1_000_000_000));
    Bench::on(HostConfig { link, ..HostConfig::by_time(16 << 20) }, 16 << 20)
}

#[test]
fn a_read_waits_for_its_own_tensor_and_not_for_later_work() {
    let bench = timed();
    let stream = bench.device.stream();
    let first = bench.device.empty(&[100_000], Dtype::U8).unwrap();
    first.fill_(1).unwrap();
    let swapped = bench.device.empty_with_swapped_memory(&[100_000], Dtype::U8).unwrap();
    swapped.copy_(&first).unwrap();
    let second = bench.device.empty(&[100_000], Dtype::U8).unwrap();
    second.fill_(2).unwrap();
    add_one(&bench, &second, stream, 1e9);
    second.record_use(stream);
    assert_eq!(swapped.to_vec::<u8>().unwrap(), [1; 100_000]);
    assert!(bench.host.now_us() < 1e6, "{} us", bench.host.now_us());
    assert_eq!(second.to_vec::<u8>().unwrap(), [3; 100_000]);
    assert!(bench.host.now_us() > 1e9, "{} us", bench.host.now_us());
    drop((first, swapped, second));
    bench.finish();
}

#[test]
fn moves_copies_and_frees_do_not_wait() {
    let bench = timed();
    let tensor = bench.device.empty(&[1 << 20], Dtype::F32).unwrap();
    let others: Vec<SwapTensor> = Place::ALL[..3]
        .iter()
        .map(|&place| bench.device.empty_in(place, &[1 << 20], Dtype::F32).unwrap())
        .collect();
    let waits = bench.device.inspect(|memory| memory.streams.host_waits());
    tensor.zero_().unwrap();
    for other in &others {
        other.copy_(&tensor).unwrap();
        tensor.copy_(other).unwrap();
    }
    assert!(others[0].swap_out().unwrap());
    others[2].try_clone().unwrap();
    let view = tensor.narrow(0, 5, 1000).unwrap();
    view.fill_(0).unwrap();
    drop((view, others, tensor));
    bench.device.empty(&[1 << 20], Dtype::F32).unwrap();
    bench.device.empty_with_swapped_memory(&[1 << 20], Dtype::F32).unwrap();
    assert_eq!(bench.device.inspect(|memory| memory.streams.host_waits()), waits);
    assert!(bench.host.now_us() < 1.0, "{} us", bench.host.now_us());
    bench.device.synchronize().unwrap();
    assert!(bench.host.now_us() > 1000.0, "there was work: {} us", bench.host.now_us());
    bench.finish();
}
