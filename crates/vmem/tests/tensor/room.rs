//! Room: nothing but the tensors that are asked for ever takes device memory.

use vmem::devices::HostConfig;
use vmem::{Dtype, Place, SwapTensor, TensorError, load, save};

use super::bench::{Bench, SEGMENT};

const MIB: usize = 1 << 20;

/// A device that is full of one tensor.
fn full() -> (Bench, SwapTensor) {
    let bench = Bench::on(HostConfig::threads(MIB as u64), 8 * MIB as u64);
    let filler = bench.device.empty(&[MIB], Dtype::U8).unwrap();
    filler.fill_(0xAB).unwrap();
    assert!(matches!(bench.device.empty(&[1], Dtype::U8), Err(TensorError::Memory(_))));
    (bench, filler)
}

#[test]
fn all_that_is_done_to_tensors_elsewhere_works_while_the_device_is_full() {
    let (bench, filler) = full();
    let device = &bench.device;
    let values: Vec<f32> = (0..MIB / 4).map(|i| i as f32).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("states.safetensors");
    for place in [Place::Swapped, Place::Away, Place::Host] {
        let tensor = device.from_slice(place, &[512, 512], &values).unwrap();
        assert_eq!(tensor.cpu().unwrap().to_vec::<f32>().unwrap(), values);
        let copy = tensor.try_clone().unwrap();
        assert_eq!(copy.place(), place);
        copy.copy_(&tensor.transpose(0, 1).unwrap()).unwrap();
        copy.to_dtype(Dtype::F16).unwrap();
        copy.fill_(0.1).unwrap().zero_().unwrap();
        assert!(format!("{tensor:?}").contains("..."));
        save(&path, &[("exp_avg", &tensor), ("rows", &tensor.slice(0, 0, 512, 2).unwrap())])
            .unwrap();
        let loaded = load(&path, device, place).unwrap();
        assert_eq!(loaded["exp_avg"].place(), place);
        assert_eq!(loaded["exp_avg"].to_vec::<f32>().unwrap(), values);
        assert!(matches!(tensor.npu(), Err(TensorError::Memory(_))), "no room for a copy");
        assert_eq!(tensor.place(), place);
    }
    assert_eq!(bench.host.ledger().chunk_bytes_peak, MIB as u64);
    assert_eq!(filler.to_vec::<u8>().unwrap(), vec![0xAB; MIB]);
    drop(filler);
    bench.finish();
}

#[test]
fn saving_and_loading_on_the_device_takes_no_more_than_the_tensors() {
    let bench = Bench::on(HostConfig::threads(MIB as u64 + SEGMENT), MIB as u64);
    bench.device.set_stage_bytes(64 << 10);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("states.safetensors");
    let values: Vec<i32> = (0..MIB as i32 / 4).collect();
    let tensor = bench.device.from_slice(Place::Device, &[MIB / 4], &values).unwrap();
    bench.host.reset_peaks();
    save(&path, &[("all", &tensor), ("odd", &tensor.slice(0, 1, MIB / 4, 2).unwrap())]).unwrap();
    tensor.cpu().unwrap();
    assert_eq!(bench.host.ledger().chunk_bytes_peak, MIB as u64);
    assert!(
        bench.host.ledger().pinned_bytes_peak + bench.host.ledger().registered_bytes <= 256 << 10
    );
    drop(tensor);
    let tensor =
        vmem::TensorFile::open(&path).unwrap().load("all", &bench.device, Place::Device).unwrap();
    assert_eq!(bench.host.ledger().chunk_bytes_peak, MIB as u64);
    assert_eq!(tensor.to_vec::<i32>().unwrap(), values);
    drop(tensor);
    bench.finish();
}

#[test]
fn tensors_take_turns_in_a_device_that_holds_one() {
    let bench = Bench::new(11, MIB as u64, 8 * MIB as u64);
    let mut tensors = Vec::new();
    for value in 0..4 {
        let tensor = bench.device.empty(&[MIB], Dtype::U8).unwrap();
        tensor.fill_(value).unwrap();
        assert!(tensor.swap_out().unwrap());
        tensors.push((tensor, value));
    }
    for (tensor, value) in tensors.iter().chain(&tensors) {
        assert!(tensor.swap_in().unwrap());
        assert_eq!(tensor.to_vec::<u8>().unwrap(), vec![*value as u8; MIB]);
        assert!(tensor.swap_out().unwrap());
    }
    assert_eq!(bench.host.ledger().chunk_bytes_peak, MIB as u64);
    drop(tensors);
    bench.finish();
}

#[test]
fn a_spent_budget_of_swapped_memory_is_an_error_and_what_is_freed_can_be_taken_again() {
    let bench = Bench::new(12, MIB as u64, MIB as u64);
    for _ in 0..3 {
        let first = bench.device.empty_with_swapped_memory(&[MIB / 2], Dtype::U8).unwrap();
        let second = bench.device.empty_with_swapped_memory(&[MIB / 2], Dtype::U8).unwrap();
        let third = bench.device.empty_with_swapped_memory(&[1], Dtype::U8);
        assert!(matches!(third, Err(TensorError::Memory(_))), "{third:?}");
        drop((first, second));
    }
    bench.finish();
}
