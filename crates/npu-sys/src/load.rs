//! Opens a vendor's library at run time and takes its functions by name.
//!
//! A missing library or function is a typed error, never a panic and never a link dependency.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::error::OpenError;

/// An open library. It stays loaded until the process ends: vendors' libraries keep threads and
/// exit handlers, which must not lose their code.
#[derive(Debug)]
pub(crate) struct Library {
    inner: &'static libloading::Library,
    path: PathBuf,
}

impl Library {
    /// Opens the first of `candidates` that is there: paths, or names that the system's loader
    /// looks for.
    ///
    /// # Errors
    /// [`NoLibrary`](OpenError::NoLibrary), [`NotALibrary`](OpenError::NotALibrary).
    ///
    /// # Safety
    /// Each of `candidates` that is a library may run its initialisers in this process, and its
    /// functions are those of the vendor's library `name`.
    pub(crate) unsafe fn open(
        name: &'static str,
        hint: &'static str,
        candidates: &[&OsStr],
    ) -> Result<Library, OpenError> {
        let mut tried = Vec::new();
        for &candidate in candidates {
            let path = Path::new(candidate);
            let names_a_file = path.components().count() > 1;
            if names_a_file && path.exists() {
                check_file(path)?;
            }
            // SAFETY: loading runs the library's initialisers; the caller promises that they may.
            match unsafe { libloading::Library::new(candidate) } {
                Ok(library) => {
                    return Ok(Library {
                        inner: Box::leak(Box::new(library)),
                        path: path.to_owned(),
                    });
                }
                Err(error) if names_a_file && path.exists() => {
                    let why = describe(&error);
                    return Err(OpenError::NotALibrary { path: path.display().to_string(), why });
                }
                Err(error) => tried.push(format!("{}: {}", path.display(), describe(&error))),
            }
        }
        Err(OpenError::NoLibrary { name, tried: tried.join("; "), hint })
    }

    /// The function `symbol`; `None` if the library lacks it.
    ///
    /// # Safety
    /// `F` is a function pointer of the C signature that the library gives the function.
    pub(crate) unsafe fn optional<F: Copy>(&self, symbol: &'static str) -> Option<F> {
        // SAFETY: the caller's promise; the library is never unloaded, so the pointer stays good.
        unsafe { self.inner.get::<F>(symbol) }.ok().map(|found| *found)
    }

    /// The function `symbol`.
    ///
    /// # Errors
    /// [`MissingSymbol`](OpenError::MissingSymbol).
    ///
    /// # Safety
    /// As for [`optional`](Library::optional).
    pub(crate) unsafe fn required<F: Copy>(&self, symbol: &'static str) -> Result<F, OpenError> {
        // SAFETY: the caller's promise.
        unsafe { self.optional(symbol) }.ok_or_else(|| OpenError::MissingSymbol {
            path: self.path.display().to_string(),
            symbol,
        })
    }
}

/// The loader's own words, without what the caller says already.
fn describe(error: &libloading::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        text = inner.to_string();
        source = inner.source();
    }
    text
}

/// Bytes of an ELF header of 64 bits.
const HEADER_BYTES: usize = 64;

/// Says what is wrong with a file in better words than the loader has. Of a file that is cut off
/// the loader says nothing at all: the process would die of it.
fn check_file(path: &Path) -> Result<(), OpenError> {
    let refuse =
        |why: String| Err(OpenError::NotALibrary { path: path.display().to_string(), why });
    let (header, size_bytes) = match read_header(path) {
        Ok(read) => read,
        Err(error) => return refuse(error.to_string()),
    };
    if !header.starts_with(b"\x7fELF") {
        return refuse("it is not an ELF file".to_owned());
    }
    let Ok(header) = <[u8; HEADER_BYTES]>::try_from(header) else {
        return refuse(format!("it is cut off after {size_bytes} bytes"));
    };
    let machine = u16::from_le_bytes([header[18], header[19]]);
    let Some((name, ours)) = this_machine() else { return Ok(()) };
    if machine != ours {
        let theirs = match machine {
            62 => "x86_64".to_owned(),
            183 => "aarch64".to_owned(),
            other => format!("ELF machine {other}"),
        };
        return refuse(format!("it is for {theirs}, this process is {name}"));
    }
    match end_of_segments(path, &header) {
        Ok(end) if end > size_bytes => {
            refuse(format!("it is cut off: {size_bytes} bytes are there of at least {end}"))
        }
        // What cannot be read here the loader cannot read either, and it says so.
        _ => Ok(()),
    }
}

/// The first bytes of a file, at most [`HEADER_BYTES`], and how long it is.
fn read_header(path: &Path) -> io::Result<(Vec<u8>, u64)> {
    let file = File::open(path)?;
    let size_bytes = file.metadata()?.len();
    let mut header = Vec::new();
    file.take(HEADER_BYTES as u64).read_to_end(&mut header)?;
    Ok((header, size_bytes))
}

/// The length that a library must have for all that is loaded of it, by its program headers.
fn end_of_segments(path: &Path, header: &[u8; HEADER_BYTES]) -> io::Result<u64> {
    let number = |bytes: &[u8], at: usize, count: usize| {
        let mut whole = [0; 8];
        whole[..count].copy_from_slice(&bytes[at..at + count]);
        u64::from_le_bytes(whole)
    };
    let (start, each, count) =
        (number(header, 32, 8), number(header, 54, 2), number(header, 56, 2));
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(start))?;
    let mut table = Vec::new();
    file.take(each * count).read_to_end(&mut table)?;
    // A table that is cut off itself ends behind the file.
    let mut end = start.saturating_add(each * count);
    for entry in table.chunks_exact(usize::from(header[54]).max(40)) {
        end = end.max(number(entry, 8, 8).saturating_add(number(entry, 32, 8)));
    }
    Ok(end)
}

/// This process's architecture and its number in ELF headers.
fn this_machine() -> Option<(&'static str, u16)> {
    match std::env::consts::ARCH {
        name @ "x86_64" => Some((name, 62)),
        name @ "aarch64" => Some((name, 183)),
        _ => None,
    }
}

/// Declares the functions that a driver takes from its library: a struct `Api` of function
/// pointers under the vendor's names, its loader, and the list of names.
///
/// ```text
/// vendor_functions! {
///     required fn cuInit(flags: c_uint) -> CUresult = "cuInit";
///     optional fn cuMemCreate(...) -> CUresult = "cuMemCreate";
/// }
/// ```
///
/// A required function is a plain pointer, an optional one an `Option`.
macro_rules! vendor_functions {
    ($( $need:ident fn $name:ident ( $($argument:ident : $type:ty),* $(,)? )
        $(-> $result:ty)? = $symbol:literal; )*) => {
        /// The library's functions, under the vendor's names.
        #[allow(non_snake_case)]
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct Api {
            $( pub(crate) $name: $crate::load::vendor_functions!(
                @field $need unsafe extern "C" fn($($argument: $type),*) $(-> $result)?), )*
        }

        impl Api {
            /// Names of all functions, and whether the driver can do without.
            #[allow(dead_code)] // Tests walk it.
            pub(crate) const SYMBOLS: &[(&str, bool)] = &[
                $( ($symbol, $crate::load::vendor_functions!(@optional $need)), )*
            ];

            /// Takes all functions from the library.
            ///
            /// # Errors
            /// [`MissingSymbol`](crate::devices::OpenError::MissingSymbol) for a required one.
            pub(crate) fn load(
                library: &$crate::load::Library,
            ) -> Result<Api, $crate::error::OpenError> {
                Ok(Api { $(
                    // SAFETY: the signature is the vendor's, as the tests of the ABI check; that
                    // the library is the vendor's was promised when it was opened.
                    $name: unsafe {
                        $crate::load::vendor_functions!(@take $need library, $symbol)
                    },
                )* })
            }
        }
    };
    (@field required $type:ty) => { $type };
    (@field optional $type:ty) => { Option<$type> };
    (@optional required) => { false };
    (@optional optional) => { true };
    (@take required $library:ident, $symbol:literal) => { $library.required($symbol)? };
    (@take optional $library:ident, $symbol:literal) => { $library.optional($symbol) };
}
pub(crate) use vendor_functions;
