//! Opens a vendor's library at run time and takes its functions by name.
//!
//! A missing library or function is a typed error, never a panic and never a link dependency.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
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
    pub(crate) fn open(
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
            // SAFETY: loading runs the library's initialisers; the caller names a vendor's
            // library, whose initialisers may run at any time in any process.
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

    /// Where it was found, or the name under which the loader found it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
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

/// Bytes of an ELF header up to and with the machine.
const HEADER_BYTES: usize = 20;

/// Says what is wrong with a file in better words than the loader has.
fn check_file(path: &Path) -> Result<(), OpenError> {
    let refuse =
        |why: String| Err(OpenError::NotALibrary { path: path.display().to_string(), why });
    let mut header = [0; HEADER_BYTES];
    match File::open(path).and_then(|mut file| file.read_exact(&mut header)) {
        Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => {
            return refuse(error.to_string());
        }
        result => {
            if result.is_err() || header[..4] != *b"\x7fELF" {
                return refuse("it is not an ELF file".to_owned());
            }
        }
    }
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
    Ok(())
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
            /// [`MissingSymbol`](crate::OpenError::MissingSymbol) for a required one.
            pub(crate) fn load(
                library: &$crate::load::Library,
            ) -> Result<Api, $crate::error::OpenError> {
                Ok(Api { $(
                    // SAFETY: the signature is the vendor's, as the tests of the ABI check.
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
