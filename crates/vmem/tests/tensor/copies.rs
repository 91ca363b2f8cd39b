//! Copies that the random programs are too small for: tiles, rows, all values of small types.

use half::{bf16, f16};
use vmem::devices::HostConfig;
use vmem::{Dtype, Element, Place, Scalar, TensorError};

use super::bench::Bench;

#[test]
fn a_large_transposed_copy_goes_by_small_stages() {
    let (rows, columns) = (300, 500);
    let bench = Bench::on(HostConfig::threads(16 << 20), 4 << 20);
    let values: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
    let expected: Vec<f64> =
        (0..columns).flat_map(|c| (0..rows).map(move |r| (r * columns + c) as f64)).collect();
    for stage_bytes in [16 << 10, 128 << 10, 4 << 20] {
        bench.device.set_stage_bytes(stage_bytes);
        let source = bench.device.from_slice(Place::Device, &[rows, columns], &values).unwrap();
        let target = bench.device.empty(&[columns, rows], Dtype::F64).unwrap();
        target.copy_(&source.transpose(0, 1).unwrap()).unwrap();
        assert_eq!(target.to_vec::<f64>().unwrap(), expected, "{stage_bytes}");
        // Into a transposed view, whose gaps belong to nobody else.
        target.zero_().unwrap();
        target.transpose(0, 1).unwrap().copy_(&source).unwrap();
        assert_eq!(target.to_vec::<f64>().unwrap(), expected, "{stage_bytes}");
    }
    bench.finish();
}

#[test]
fn elements_between_those_of_a_view_stay() {
    let bench = Bench::new(3, 1 << 20, 1 << 20);
    bench.device.set_stage_bytes(4096);
    for place in Place::ALL {
        let tensor = bench.device.from_slice(place, &[5000], &[7_i16; 5000]).unwrap();
        tensor.slice(0, 1, 5000, 2).unwrap().fill_(9).unwrap();
        let expected: Vec<i16> = (0..5000).map(|i| if i % 2 == 1 { 9 } else { 7 }).collect();
        assert_eq!(tensor.to_vec::<i16>().unwrap(), expected, "{place}");
    }
    bench.finish();
}

#[test]
fn an_arena_with_one_page_left_is_enough_for_a_copy() {
    let bench = Bench::new(4, 1 << 20, 64 << 10);
    let values: Vec<i64> = (0..8192).collect();
    let tensor = bench.device.from_slice(Place::Device, &[8192], &values).unwrap();
    let hog = bench.device.empty_in(Place::Swapped, &[60 << 10], Dtype::U8).unwrap();
    assert_eq!(tensor.to_vec::<i64>().unwrap(), values);
    let rest = bench.device.empty_in(Place::Away, &[1], Dtype::U8).unwrap();
    let error = tensor.to_vec::<i64>().unwrap_err();
    assert!(matches!(error, TensorError::Memory(_)), "{error}");
    drop((hog, rest));
    assert_eq!(tensor.to_vec::<i64>().unwrap(), values, "what failed has taken nothing");
    drop(tensor);
    bench.finish();
}

#[test]
fn long_rows_are_copied_by_the_driver_and_never_come_to_the_host() {
    let bench = Bench::new(5, 4 << 20, 1 << 20);
    let source = bench.device.empty(&[8, 4096], Dtype::F32).unwrap();
    source.fill_(1.5).unwrap();
    let target = bench.device.empty(&[8, 2048], Dtype::F32).unwrap();
    bench.device.synchronize().unwrap();
    let before = bench.host.ledger();
    target.copy_(&source.narrow(1, 1024, 2048).unwrap()).unwrap();
    target.try_clone().unwrap();
    bench.device.synchronize().unwrap();
    let after = bench.host.ledger();
    assert_eq!(after.copied_out_bytes, before.copied_out_bytes);
    assert_eq!(after.copied_in_bytes, before.copied_in_bytes);
    assert_eq!(target.to_vec::<f32>().unwrap(), vec![1.5; 8 * 2048]);
    drop((source, target));
    bench.finish();
}

#[test]
fn copies_between_two_devices_go_by_the_host() {
    let (here, there) = (Bench::new(6, 1 << 20, 1 << 20), Bench::new(7, 1 << 20, 1 << 20));
    for from in Place::ALL {
        for to in Place::ALL {
            let source = here.device.from_slice(from, &[3], &[1_i32, -2, 3]).unwrap();
            let target = there.device.empty_in(to, &[2, 3], Dtype::F16).unwrap();
            target.copy_(&source).unwrap();
            let expected = [1.0, -2.0, 3.0, 1.0, -2.0, 3.0].map(f16::from_f32);
            assert_eq!(target.to_vec::<f16>().unwrap(), expected);
        }
    }
    here.finish();
    there.finish();
}

#[test]
fn same_types_are_copied_bit_for_bit_and_values_that_are_not_numbers_survive() {
    let bench = Bench::new(8, 4 << 20, 4 << 20);
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let halves: Vec<f16> = all.iter().map(|&bits| f16::from_bits(bits)).collect();
    let bits = |values: Vec<f16>| values.into_iter().map(f16::to_bits).collect::<Vec<u16>>();
    for from in Place::ALL {
        let source = bench.device.from_slice(from, &[256, 256], &halves).unwrap();
        for to in Place::ALL {
            let target = bench.device.empty_in(to, &[256, 256], Dtype::F16).unwrap();
            let turned = target.transpose(0, 1).unwrap();
            turned.copy_(&source.transpose(0, 1).unwrap()).unwrap();
            assert_eq!(bits(target.to_vec().unwrap()), all, "{from} to {to}");
        }
        let wide = source.to_dtype(Dtype::F64).unwrap();
        assert_eq!(wide.place(), from);
        for (&half, wide) in halves.iter().zip(wide.to_vec::<f64>().unwrap()) {
            assert!(half.to_f64() == wide || half.is_nan() && wide.is_nan());
        }
    }
    bench.finish();
}

#[test]
fn scalars_convert_as_copies_do() {
    let bench = Bench::new(9, 1 << 20, 1 << 20);
    fn check<T: Element>(bench: &Bench, value: impl Into<Scalar> + Copy, expect: T) {
        for place in Place::ALL {
            let tensor = bench.device.empty_in(place, &[2, 2], T::DTYPE).unwrap();
            assert_eq!(tensor.fill_(value).unwrap().to_vec::<T>().unwrap(), [expect; 4]);
            let one = tensor.select(0, 1).unwrap().select(0, 0).unwrap();
            assert_eq!(one.item().unwrap(), expect.into());
        }
    }
    check(&bench, 2.75, 2_i32);
    check(&bench, -1, 255_u8);
    check(&bench, true, bf16::ONE);
    check(&bench, 0.5_f32, true);
    check(&bench, i64::MAX, -1_i8);
    let tensor = bench.device.from_slice(Place::Device, &[2], &[1.0_f32, 2.0]).unwrap();
    assert!(matches!(tensor.item(), Err(TensorError::ShapeMismatch { .. })));
    let error = tensor.to_vec::<f64>().unwrap_err();
    assert_eq!(error, TensorError::Dtype { is: Dtype::F32, asked: Dtype::F64 });
    drop(tensor);
    bench.finish();
}
