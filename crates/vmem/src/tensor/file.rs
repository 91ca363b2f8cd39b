//! Tensors in files, in the safetensors format.
//!
//! Both ways go piece by piece: whatever the size of a tensor and its place, the host holds one
//! piece of it, and the device nothing but the tensor. A file is written whole or not at all.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::Dtype as FileDtype;
use safetensors::tensor::{Metadata, TensorInfo};

use crate::saving::{SaveError, save_file};
use crate::tensor::dtype::Dtype;
use crate::tensor::error::{FileProblem, TensorError};
use crate::tensor::{Place, SwapTensor, TensorDevice};

// The format is little-endian, and pieces are written as they lie in memory.
const _: () = assert!(cfg!(target_endian = "little"), "safetensors files need a swap of bytes");

/// The longest header that the format allows.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Bytes of the header's length, and what the header is padded to.
const LENGTH_BYTES: u64 = 8;

/// The format's own word in the place of a name.
const RESERVED_NAME: &str = "__metadata__";

/// Writes tensors of any place to a safetensors file: all of them, or the file is as before.
///
/// # Errors
/// [`File`](TensorError::File) if the names cannot be written or the system fails; if the driver
/// fails.
pub fn save(path: &Path, tensors: &[(&str, &SwapTensor)]) -> Result<(), TensorError> {
    let problem = |problem| TensorError::File { path: path.to_owned(), problem };
    // Wide elements first keeps all of them aligned in the file.
    let mut order: Vec<&(&str, &SwapTensor)> = tensors.iter().collect();
    order.sort_by_key(|(name, tensor)| (std::cmp::Reverse(tensor.dtype().size_bytes()), *name));
    let header = header(&order).map_err(problem)?;
    save_file(path, |write| {
        write(&header)?;
        for (_, tensor) in order {
            for_each_piece(tensor, &mut |piece| Ok(write(&piece.to_bytes()?)?))?;
        }
        Ok(())
    })
}

impl From<SaveError> for TensorError {
    fn from(error: SaveError) -> TensorError {
        let (path, problem) = match error {
            SaveError::Io { path, doing, source } => (path, FileProblem::system(doing, &source)),
            SaveError::NoFileName(path) => {
                (path, FileProblem::Place { why: "this is not a file name".to_owned() })
            }
            SaveError::NoFile { path, kind } => {
                (path, FileProblem::Place { why: format!("{kind} is not replaced by a file") })
            }
        };
        TensorError::File { path, problem }
    }
}

/// The length and the header itself.
fn header(tensors: &[&(&str, &SwapTensor)]) -> Result<Vec<u8>, FileProblem> {
    let mut names: Vec<&str> = tensors.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    let bad_name = |name: &str, why| FileProblem::BadName { name: name.to_owned(), why };
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(bad_name(pair[0], "two tensors have this name"));
    }
    if names.contains(&RESERVED_NAME) {
        return Err(bad_name(RESERVED_NAME, "the format keeps the name for itself"));
    }
    let mut infos = Vec::with_capacity(tensors.len());
    let mut end = 0;
    for (name, tensor) in tensors {
        let start = end;
        end += tensor.size_bytes();
        let dtype = file_dtype(tensor.dtype());
        let shape = tensor.shape().to_vec();
        infos.push(((*name).to_owned(), TensorInfo { dtype, shape, data_offsets: (start, end) }));
    }
    let not = |why: String| FileProblem::NotSafetensors { why };
    let metadata = Metadata::new(None, infos).map_err(|error| not(error.to_string()))?;
    let mut text = serde_json::to_vec(&metadata).map_err(|error| not(error.to_string()))?;
    text.resize(text.len().next_multiple_of(LENGTH_BYTES as usize), b' ');
    if text.len() as u64 > HEADER_BYTES_MAX {
        return Err(not(format!("{} names make too long a header", tensors.len())));
    }
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.append(&mut text);
    Ok(header)
}

/// Calls `visit` with views that together are the tensor, in order, each of consecutive elements
/// and no more than a stage.
fn for_each_piece(
    tensor: &SwapTensor,
    visit: &mut dyn FnMut(&SwapTensor) -> Result<(), TensorError>,
) -> Result<(), TensorError> {
    let cut = tensor.shape().iter().position(|&size| size > 1);
    match cut {
        Some(dim) if tensor.size_bytes() > tensor.device().stage_bytes() => {
            let size = tensor.shape()[dim];
            for_each_piece(&tensor.narrow(dim, 0, size / 2)?, visit)?;
            for_each_piece(&tensor.narrow(dim, size / 2, size - size / 2)?, visit)
        }
        _ => visit(tensor),
    }
}

/// A safetensors file whose header has been read and found right.
#[derive(Debug)]
pub struct TensorFile {
    file: File,
    path: PathBuf,
    entries: BTreeMap<String, TensorInfo>,
    /// Where the elements begin.
    data_start: u64,
}

impl TensorFile {
    /// Opens a file and checks its header and length. No tensor is read.
    ///
    /// # Errors
    /// [`File`](TensorError::File) if it cannot be read, is not a safetensors file, or is cut
    /// short.
    pub fn open(path: &Path) -> Result<TensorFile, TensorError> {
        let opened = File::open(path)
            .map_err(|error| FileProblem::system("open", &error))
            .and_then(|file| read_header(&file).map(|header| (file, header)));
        match opened {
            Ok((file, (entries, data_start))) => {
                Ok(TensorFile { file, path: path.to_owned(), entries, data_start })
            }
            Err(problem) => Err(TensorError::File { path: path.to_owned(), problem }),
        }
    }

    /// The names of the tensors, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Type and shape of a tensor.
    ///
    /// # Errors
    /// [`File`](TensorError::File) if it is not there or of a type that is not known here.
    pub fn describe(&self, name: &str) -> Result<(Dtype, &[usize]), TensorError> {
        let info = self.entry(name)?;
        let unknown =
            || FileProblem::UnknownDtype { name: name.to_owned(), dtype: info.dtype.to_string() };
        let dtype = own_dtype(info.dtype).ok_or_else(|| self.problem(unknown()))?;
        Ok((dtype, &info.shape))
    }

    /// Reads a tensor into new memory in `place`, piece by piece.
    ///
    /// # Errors
    /// As [`describe`](TensorFile::describe); if there is no memory, or the system or the driver
    /// fails.
    pub fn load(
        &self,
        name: &str,
        device: &TensorDevice,
        place: Place,
    ) -> Result<SwapTensor, TensorError> {
        let (dtype, shape) = self.describe(name)?;
        let tensor = device.empty_in(place, shape, dtype)?;
        self.load_into(name, &tensor)?;
        Ok(tensor)
    }

    /// Reads a tensor over the elements of one of the same shape, which stays where it is.
    /// Elements of another type are converted.
    ///
    /// # Errors
    /// As [`load`](TensorFile::load); [`ShapeMismatch`](TensorError::ShapeMismatch). After a
    /// failure of the system or the driver the tensor may be read in part.
    pub fn load_into(&self, name: &str, tensor: &SwapTensor) -> Result<(), TensorError> {
        let (dtype, shape) = self.describe(name)?;
        if shape != tensor.shape() {
            let source_shape = shape.to_vec();
            return Err(TensorError::ShapeMismatch {
                target: tensor.shape().to_vec(),
                source_shape,
            });
        }
        let mut at = self.data_start + self.entry(name)?.data_offsets.0 as u64;
        for_each_piece(tensor, &mut |piece| {
            let mut bytes = vec![0; piece.element_count() * dtype.size_bytes()];
            let read = self.file.read_exact_at(&mut bytes, at);
            read.map_err(|error| self.problem(FileProblem::system("read", &error)))?;
            at += bytes.len() as u64;
            let read = SwapTensor::from_bytes(piece.device(), piece.shape(), dtype, bytes)?;
            piece.copy_(&read).map(|_| ())
        })
    }

    fn entry(&self, name: &str) -> Result<&TensorInfo, TensorError> {
        self.entries.get(name).ok_or_else(|| {
            let has = self.entries.keys().cloned().collect();
            self.problem(FileProblem::NameMissing { name: name.to_owned(), has })
        })
    }

    fn problem(&self, problem: FileProblem) -> TensorError {
        TensorError::File { path: self.path.clone(), problem }
    }
}

/// Reads all tensors of a safetensors file into new memory in `place`.
///
/// # Errors
/// As [`TensorFile::open`] and [`TensorFile::load`].
pub fn load(
    path: &Path,
    device: &TensorDevice,
    place: Place,
) -> Result<BTreeMap<String, SwapTensor>, TensorError> {
    let file = TensorFile::open(path)?;
    let load = |name: &str| Ok((name.to_owned(), file.load(name, device, place)?));
    file.names().map(load).collect()
}

type Header = (BTreeMap<String, TensorInfo>, u64);

fn read_header(file: &File) -> Result<Header, FileProblem> {
    let not = |why: String| FileProblem::NotSafetensors { why };
    let system = |error: io::Error| FileProblem::system("read", &error);
    let has_bytes = file.metadata().map_err(system)?.len();
    let mut length = [0; LENGTH_BYTES as usize];
    if has_bytes < LENGTH_BYTES {
        return Err(not(format!("it has only {has_bytes} bytes")));
    }
    file.read_exact_at(&mut length, 0).map_err(system)?;
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes > HEADER_BYTES_MAX {
        return Err(not(format!("it begins with a header length of {header_bytes} bytes")));
    }
    let data_start = LENGTH_BYTES + header_bytes;
    if data_start > has_bytes {
        return Err(FileProblem::WrongLength { has_bytes, expected_bytes: data_start });
    }
    let mut text = vec![0; header_bytes as usize];
    file.read_exact_at(&mut text, LENGTH_BYTES).map_err(system)?;
    let metadata: Metadata = serde_json::from_slice(&text)
        .map_err(|error| unknown_dtype(&text).unwrap_or_else(|| not(error.to_string())))?;
    let expected_bytes = data_start + metadata.data_len() as u64;
    if expected_bytes != has_bytes {
        return Err(FileProblem::WrongLength { has_bytes, expected_bytes });
    }
    let info = |name: String| metadata.info(&name).cloned().map(|info| (name, info));
    Ok((metadata.offset_keys().into_iter().filter_map(info).collect(), data_start))
}

/// Whether a header that could not be read names a type that the format does not know.
fn unknown_dtype(text: &[u8]) -> Option<FileProblem> {
    let header: BTreeMap<String, serde_json::Value> = serde_json::from_slice(text).ok()?;
    header.into_iter().find_map(|(name, info)| {
        let dtype = info.get("dtype")?.clone();
        let shown = dtype.as_str()?.to_owned();
        let is_known = serde_json::from_value::<FileDtype>(dtype).is_ok();
        (!is_known).then_some(FileProblem::UnknownDtype { name, dtype: shown })
    })
}

impl FileProblem {
    fn system(action: &'static str, error: &io::Error) -> FileProblem {
        FileProblem::System { action, text: error.to_string() }
    }
}

fn file_dtype(dtype: Dtype) -> FileDtype {
    match dtype {
        Dtype::F64 => FileDtype::F64,
        Dtype::F32 => FileDtype::F32,
        Dtype::F16 => FileDtype::F16,
        Dtype::BF16 => FileDtype::BF16,
        Dtype::I64 => FileDtype::I64,
        Dtype::I32 => FileDtype::I32,
        Dtype::I16 => FileDtype::I16,
        Dtype::I8 => FileDtype::I8,
        Dtype::U8 => FileDtype::U8,
        Dtype::Bool => FileDtype::BOOL,
    }
}

fn own_dtype(dtype: FileDtype) -> Option<Dtype> {
    Dtype::ALL.into_iter().find(|&own| file_dtype(own) == dtype)
}
