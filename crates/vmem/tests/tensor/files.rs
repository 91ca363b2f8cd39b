//! Files: what is saved is loaded bit for bit, by this crate and by the format's own; what is
//! damaged is one clear error; a failed save leaves the old file.

use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use vmem::devices::FaultPlan;
use vmem::{Dtype, ErrorKind, FileProblem, Place, TensorError, TensorFile, load, save};

use super::bench::Bench;

fn problem(error: TensorError) -> FileProblem {
    match error {
        TensorError::File { problem, .. } => problem,
        other => panic!("{other}"),
    }
}

#[test]
fn tensors_of_every_place_and_type_come_back_in_every_place() {
    let bench = Bench::new(1, 4 << 20, 4 << 20);
    bench.device.set_stage_bytes(4096);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.safetensors");
    let mut saved = Vec::new();
    for (index, dtype) in Dtype::ALL.into_iter().enumerate() {
        let place = Place::ALL[index % 4];
        let tensor = bench.device.empty_in(place, &[3, 700], dtype).unwrap();
        let values: Vec<i64> = (0..2100).map(|i| i * 37 % 251 - 120).collect();
        let values = bench.device.from_slice(Place::Host, &[3, 700], &values).unwrap();
        tensor.copy_(&values).unwrap();
        saved.push((format!("{dtype} whole"), tensor.detach()));
        saved.push((format!("{dtype} turned"), tensor.transpose(0, 1).unwrap()));
        saved.push((format!("{dtype} none"), tensor.narrow(0, 1, 0).unwrap()));
        saved.push((format!("{dtype} one"), tensor.select(0, 2).unwrap().select(0, 5).unwrap()));
    }
    let list: Vec<_> = saved.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    save(&path, &list).unwrap();
    let bytes = fs::read(&path).unwrap();
    let theirs = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(theirs.len(), saved.len());
    for place in Place::ALL {
        let loaded = load(&path, &bench.device, place).unwrap();
        assert_eq!(loaded.len(), saved.len());
        for (name, tensor) in &saved {
            let ours = &loaded[name];
            assert_eq!((ours.shape(), ours.dtype()), (tensor.shape(), tensor.dtype()));
            assert_eq!(ours.place(), place);
            assert_eq!(ours.to_bytes().unwrap(), tensor.to_bytes().unwrap(), "{name}");
            let view = theirs.tensor(name).unwrap();
            assert_eq!(view.data(), tensor.to_bytes().unwrap(), "{name}");
            assert_eq!(view.shape(), tensor.shape());
        }
    }
    drop(list);
    drop(saved);
    bench.finish();
}

#[test]
fn a_checkpoint_is_loaded_over_tensors_that_stay_where_they_are() {
    let bench = Bench::new(2, 1 << 20, 1 << 20);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("states");
    let state =
        bench.device.from_slice(Place::Swapped, &[2, 2], &[1.5_f32, 2.0, 3.0, 4.0]).unwrap();
    save(&path, &[("exp_avg", &state)]).unwrap();
    let address = state.address();
    state.zero_().unwrap();
    let file = TensorFile::open(&path).unwrap();
    assert_eq!(file.names().collect::<Vec<_>>(), ["exp_avg"]);
    assert_eq!(file.describe("exp_avg").unwrap(), (Dtype::F32, &[2, 2][..]));
    file.load_into("exp_avg", &state).unwrap();
    assert_eq!(state.to_vec::<f32>().unwrap(), [1.5, 2.0, 3.0, 4.0]);
    assert_eq!((state.place(), state.address()), (Place::Swapped, address));
    let half = bench.device.empty(&[2, 2], Dtype::I8).unwrap();
    file.load_into("exp_avg", &half.transpose(0, 1).unwrap()).unwrap();
    assert_eq!(half.to_vec::<i8>().unwrap(), [1, 3, 2, 4], "converted, through a view");
    let error = file.load_into("exp_avg", &half.view(&[4]).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "shape [2, 2] does not fit [4]");
    drop((state, half));
    bench.finish();
}

/// A file with this header and as many bytes of elements.
fn write(path: &Path, header: &str, data_bytes: usize) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data_bytes, 0);
    fs::write(path, bytes).unwrap();
}

#[test]
fn bad_files_are_one_clear_error() {
    let bench = Bench::new(3, 1 << 20, 1 << 20);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let check = |expect: &str| {
        let error = load(&path, &bench.device, Place::Swapped).expect_err(expect).to_string();
        let own = format!("{}: {expect}", path.display());
        assert!(error.starts_with(&own), "{error}\ninstead of\n{own}");
    };
    check("cannot open: No such file or directory");
    fs::write(&path, b"short").unwrap();
    check("not a safetensors file: it has only 5 bytes");
    fs::write(&path, b"PK\x03\x04 some other kind of file").unwrap();
    check("not a safetensors file: it begins with a header length of ");
    let good = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    write(&path, good, 8);
    assert_eq!(load(&path, &bench.device, Place::Host).unwrap()["a"].shape(), [2]);
    let whole = fs::read(&path).unwrap();
    for length in 8..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        check(&format!("has {length} bytes, but its header speaks of "));
    }
    write(&path, good, 9);
    check("has 71 bytes, but its header speaks of 70");
    for (header, data_bytes) in [
        ("{\"a\":", 0),
        ("[]", 0),
        ("\u{1}\u{2}", 0),
        (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#, 4),
        (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}"#, 16),
        (r#"{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}"#, 8),
        (r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}"#, 8),
    ] {
        write(&path, header, data_bytes);
        check("not a safetensors file: ");
    }
    for dtype in ["F8_E4M3", "U16", "F128"] {
        let header = format!(r#"{{"a":{{"dtype":"{dtype}","shape":[16],"data_offsets":[0,16]}}}}"#);
        write(&path, &header, if dtype == "U16" { 32 } else { 16 });
        if dtype == "U16" {
            write(&path, &header.replace("[0,16]", "[0,32]"), 32);
        }
        check(&format!("tensor 'a' has elements of type {dtype}, which is not supported"));
    }
    write(&path, good, 8);
    let file = TensorFile::open(&path).unwrap();
    let error = file.load("b", &bench.device, Place::Device).unwrap_err();
    assert_eq!(error.to_string(), format!("{}: has no tensor 'b'; it has 'a'", path.display()));
    bench.finish();
}

#[test]
fn a_file_is_written_whole_or_not_at_all() {
    let bench = Bench::new(4, 1 << 20, 1 << 20);
    bench.device.set_stage_bytes(4096);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("states");
    let tensor = bench.device.empty(&[20_000], Dtype::U8).unwrap();
    tensor.fill_(5).unwrap();
    save(&path, &[("old", &tensor)]).unwrap();
    let old = fs::read(&path).unwrap();
    bench.fault.arm(FaultPlan::once(3, ErrorKind::Failed).only("copy"));
    let error = save(&path, &[("new", &tensor)]).unwrap_err();
    bench.fault.disarm();
    assert!(matches!(error, TensorError::Driver(_)), "{error}");
    assert_eq!(fs::read(&path).unwrap(), old);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    let bad = |names: &[(&str, &vmem::SwapTensor)]| problem(save(&path, names).unwrap_err());
    assert!(matches!(bad(&[("a", &tensor), ("a", &tensor)]), FileProblem::BadName { .. }));
    assert!(matches!(bad(&[("__metadata__", &tensor)]), FileProblem::BadName { .. }));
    assert_eq!(fs::read(&path).unwrap(), old);
    let nowhere = folder.path().join("no").join("such");
    let error = save(&nowhere, &[("a", &tensor)]).unwrap_err();
    assert!(matches!(problem(error), FileProblem::System { .. }));
    save(&path, &[]).unwrap();
    assert!(load(&path, &bench.device, Place::Device).unwrap().is_empty());
    drop(tensor);
    bench.finish();
}
