//! How tensors are printed, in every place, without being moved.

use half::bf16;
use vmem::{Dtype, Place};

use super::bench::Bench;

#[test]
fn values_are_printed_wherever_they_are() {
    let bench = Bench::new(1, 1 << 20, 1 << 20);
    for place in Place::ALL {
        let values = [1.0_f32, -2.5, f32::NAN, f32::INFINITY, 0.1, 1e-9];
        let tensor = bench.device.from_slice(place, &[2, 3], &values).unwrap();
        let before = bench.host.ledger();
        assert_eq!(
            format!("{tensor:?}"),
            format!("SwapTensor(f32, [2, 3], {place}, [[1.0, -2.5, NaN],\n [inf, 0.1, 1e-9]])")
        );
        assert_eq!(
            format!("{:?}", tensor.select(1, 1).unwrap()),
            format!("SwapTensor(f32, [2], {place}, [-2.5, 0.1])")
        );
        assert_eq!(tensor.place(), place);
        assert_eq!(bench.host.ledger().chunk_bytes, before.chunk_bytes);
    }
    bench.finish();
}

#[test]
fn every_type_prints_its_own_values() {
    let bench = Bench::new(2, 1 << 20, 1 << 20);
    let expected = ["1.0", "1.0", "1.0", "1.0", "1", "1", "1", "1", "1", "true"];
    for (dtype, expected) in Dtype::ALL.into_iter().zip(expected) {
        let tensor = bench.device.empty(&[], dtype).unwrap();
        tensor.fill_(true).unwrap();
        assert_eq!(format!("{tensor:?}"), format!("SwapTensor({dtype}, [], device, {expected})"));
    }
    let tenth = bench.device.from_slice(Place::Away, &[1], &[bf16::from_f32(0.1)]).unwrap();
    assert_eq!(format!("{tenth:?}"), "SwapTensor(bf16, [1], away, [0.100097656])");
    let empty = bench.device.empty(&[2, 0], Dtype::I8).unwrap();
    assert_eq!(format!("{empty:?}"), "SwapTensor(i8, [2, 0], device, [[],\n []])");
    drop((tenth, empty));
    bench.finish();
}

#[test]
fn large_tensors_are_printed_by_their_edges() {
    let bench = Bench::new(3, 1 << 20, 1 << 20);
    let values: Vec<i32> = (0..8 * 200).collect();
    let tensor = bench.device.from_slice(Place::Swapped, &[8, 200], &values).unwrap();
    let expected = "\
SwapTensor(i32, [8, 200], swapped, [[0, 1, 2, ..., 197, 198, 199],
 [200, 201, 202, ..., 397, 398, 399],
 [400, 401, 402, ..., 597, 598, 599],
 ...,
 [1000, 1001, 1002, ..., 1197, 1198, 1199],
 [1200, 1201, 1202, ..., 1397, 1398, 1399],
 [1400, 1401, 1402, ..., 1597, 1598, 1599]])";
    assert_eq!(format!("{tensor:?}"), expected);
    let wide = tensor.select(0, 7).unwrap().expand(&[4, 2, 200]).unwrap();
    let shown = format!("{wide:?}");
    assert_eq!(shown.matches("[1400, 1401, 1402, ..., 1597, 1598, 1599]").count(), 8, "{shown}");
    assert_eq!(shown.matches(",\n [[").count(), 3, "{shown}");
    drop((tensor, wide));
    bench.finish();
}

#[test]
fn a_tensor_that_cannot_be_read_says_so() {
    let bench = Bench::new(4, 1 << 20, 1 << 20);
    let tensor = bench.device.from_slice(Place::Device, &[2], &[1_u8, 2]).unwrap();
    let plan = vmem::devices::FaultPlan::for_good(1, vmem::ErrorKind::Failed).only("copy");
    bench.fault.arm(plan);
    let shown = format!("{tensor:?}");
    bench.fault.disarm();
    assert!(shown.starts_with("SwapTensor(u8, [2], device, unreadable: "), "{shown}");
    assert_eq!(format!("{tensor:?}"), "SwapTensor(u8, [2], device, [1, 2])");
    drop(tensor);
    bench.finish();
}
