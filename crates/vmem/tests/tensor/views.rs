//! Views: what they refuse, what they keep alive, and whose address they have.

use vmem::{Dtype, Place, TensorError};

use super::bench::Bench;

#[test]
fn views_of_swap_tensors_are_swap_tensors() {
    let bench = Bench::new(1, 1 << 20, 1 << 20);
    let device = &bench.device;
    let swapped = device.empty_with_swapped_memory(&[4, 6], Dtype::F32).unwrap();
    swapped.zero_().unwrap();
    let plain = device.empty(&[4, 6], Dtype::F32).unwrap();
    for (tensor, expected) in [(&swapped, true), (&plain, false)] {
        let views = [
            tensor.detach(),
            tensor.narrow(0, 3, 1).unwrap(),
            tensor.narrow(1, 6, 0).unwrap(),
            tensor.slice(1, 1, 6, 2).unwrap(),
            tensor.select(1, 5).unwrap().select(0, 3).unwrap(),
            tensor.transpose(0, 1).unwrap(),
            tensor.view(&[24]).unwrap(),
            tensor.select(0, 0).unwrap().expand(&[9, 6]).unwrap(),
            tensor.try_clone().unwrap(),
        ];
        for view in views {
            assert_eq!(device.is_swap_tensor(&view), expected, "{view:?}");
            assert_eq!(view.place() == Place::Swapped, expected);
        }
    }
    let last = swapped.select(0, 3).unwrap().address().unwrap();
    assert!(device.is_swapped(last.offset(5 * 4)), "asked by any address inside");
    assert!(!swapped.cpu().unwrap().is_swap_tensor());
    assert!(!swapped.npu().unwrap().is_swap_tensor(), "a copy in device memory");
    assert!(!device.is_swapped(plain.address().unwrap()));
    let start = swapped.address().unwrap();
    drop(swapped);
    assert!(!device.is_swapped(start), "nobody's memory now");
    drop(plain);
    bench.finish();
}

#[test]
fn a_view_keeps_the_memory_alive() {
    let bench = Bench::new(2, 1 << 20, 1 << 20);
    for place in Place::ALL {
        let tensor = bench.device.from_slice(place, &[2, 2], &[1_u8, 2, 3, 4]).unwrap();
        let view = tensor.select(1, 1).unwrap();
        drop(tensor);
        let other = bench.device.from_slice(place, &[2, 2], &[9_u8; 4]).unwrap();
        assert_eq!(view.to_vec::<u8>().unwrap(), [2, 4]);
        drop(other);
    }
    bench.finish();
}

#[test]
fn a_move_takes_all_views_along() {
    let bench = Bench::new(3, 1 << 20, 1 << 20);
    let values: Vec<f32> = (0..2048).map(|i| i as f32).collect();
    let tensor = bench.device.from_slice(Place::Device, &[2048], &values).unwrap();
    let view = tensor.narrow(0, 100, 3).unwrap();
    let address = view.address();
    assert!(tensor.swap_out().unwrap());
    assert_eq!((view.place(), view.address()), (Place::Away, None));
    view.fill_(-1.0).unwrap();
    assert_eq!(
        tensor.narrow(0, 99, 5).unwrap().to_vec::<f32>().unwrap(),
        [99.0, -1.0, -1.0, -1.0, 103.0]
    );
    assert!(view.swap_in().unwrap());
    assert_eq!((tensor.place(), view.address()), (Place::Device, address));
    assert_eq!(view.to_vec::<f32>().unwrap(), [-1.0; 3]);
    let small = bench.device.from_slice(Place::Device, &[1], &[1.0_f32]).unwrap();
    assert!(!small.swap_out().unwrap(), "below the threshold");
    assert_eq!(small.place(), Place::Device);
    drop((tensor, view, small));
    bench.finish();
}

#[test]
fn strides_and_offsets_are_as_in_pytorch() {
    let bench = Bench::new(4, 1 << 20, 1 << 20);
    let tensor = bench.device.empty(&[2, 3, 4], Dtype::I8).unwrap();
    tensor.zero_().unwrap();
    assert_eq!(tensor.strides(), [12, 4, 1]);
    let view = tensor.slice(1, 1, 3, 2).unwrap();
    assert_eq!(
        (view.shape(), view.strides(), view.storage_offset()),
        (&[2, 1, 4][..], &[12, 8, 1][..], 4)
    );
    let turned = tensor.permute(&[2, 0, 1]).unwrap();
    assert_eq!((turned.shape(), turned.strides()), (&[4, 2, 3][..], &[1, 12, 4][..]));
    assert_eq!(turned.view(&[4, 6]).unwrap().strides(), [1, 4]);
    assert!(matches!(turned.view(&[8, 3]), Err(TensorError::NotViewable { .. })));
    assert_eq!(turned.reshape(&[8, 3]).unwrap().strides(), [3, 1]);
    let row = tensor.select(0, 1).unwrap().select(0, 2).unwrap();
    assert_eq!((row.storage_offset(), row.expand(&[5, 4]).unwrap().strides()), (20, &[0, 1][..]));
    drop((tensor, view, turned, row));
    bench.finish();
}

#[test]
fn what_cannot_be_is_one_clear_error() {
    let bench = Bench::new(5, 1 << 20, 1 << 20);
    let tensor = bench.device.empty(&[2, 3], Dtype::F32).unwrap();
    let check = |result: Result<vmem::SwapTensor, TensorError>, expect: &str| {
        assert_eq!(result.expect_err(expect).to_string(), expect);
    };
    check(tensor.narrow(1, 2, 2), "elements 2..2+2 are out of bounds: dimension 1 has 3");
    check(tensor.select(0, 2), "elements 2..2+1 are out of bounds: dimension 0 has 2");
    check(tensor.narrow(2, 0, 0), "dimension 2 does not exist: the tensor has 2, counted from 0");
    check(
        tensor.narrow(0, usize::MAX, 2),
        &format!("elements {0}..{0}+2 are out of bounds: dimension 0 has 2", usize::MAX),
    );
    check(tensor.transpose(0, 2), "dimension 2 does not exist: the tensor has 2, counted from 0");
    check(tensor.permute(&[0, 0]), "[0, 0] does not name each of 2 dimensions once");
    check(tensor.slice(0, 0, 2, 0), "a slice has a step of 0");
    check(tensor.slice(0, 2, 1, 1), "the slice 2..1 ends before it starts");
    check(tensor.view(&[4]), "shape [2, 3] does not fit [4]");
    check(tensor.view(&[usize::MAX, 2]), &format!("[{}, 2] is too large", usize::MAX));
    check(tensor.expand(&[2, 4]), "shape [2, 3] does not fit [2, 4]");
    check(tensor.expand(&[3]), "shape [2, 3] does not fit [3]");
    check(
        bench.device.empty(&[1 << 40, 1 << 40], Dtype::U8),
        "[1099511627776, 1099511627776] is too large",
    );
    check(bench.device.from_slice(Place::Host, &[3], &[1_u8]), "shape [1] does not fit [3]");
    let repeated = tensor.select(0, 0).unwrap().expand(&[2, 3]).unwrap();
    let written = repeated.zero_().map(vmem::SwapTensor::detach);
    check(
        written,
        "the tensor of shape [2, 3] repeats elements (it was expanded), so it is read-only",
    );
    let full = bench.device.empty(&[1 << 30], Dtype::U8);
    assert!(matches!(full, Err(TensorError::Memory(_))));
    drop((tensor, repeated));
    bench.finish();
}
