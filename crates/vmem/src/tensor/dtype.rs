//! Types of elements, and the conversions between them.
//!
//! Conversions are the same wherever the bytes are, because they all happen here: a float becomes
//! an integer by dropping its fraction (not a number becomes 0) and then, like any wider integer,
//! keeps its low bits; anything but zero is true; `f16` and `bf16` go by `f32`.

use std::fmt;

use half::{bf16, f16};

/// The type of a tensor's elements.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Dtype {
    /// 64-bit float.
    F64,
    /// 32-bit float.
    F32,
    /// 16-bit float of IEEE 754.
    F16,
    /// 16-bit float with the exponent of `f32`.
    BF16,
    /// 64-bit signed integer.
    I64,
    /// 32-bit signed integer.
    I32,
    /// 16-bit signed integer.
    I16,
    /// 8-bit signed integer.
    I8,
    /// 8-bit unsigned integer.
    U8,
    /// A byte that is 0 for false; any other is true.
    Bool,
}

impl Dtype {
    /// All types.
    pub const ALL: [Dtype; 10] = [
        Dtype::F64,
        Dtype::F32,
        Dtype::F16,
        Dtype::BF16,
        Dtype::I64,
        Dtype::I32,
        Dtype::I16,
        Dtype::I8,
        Dtype::U8,
        Dtype::Bool,
    ];

    /// Bytes of one element.
    pub fn size_bytes(self) -> usize {
        match self {
            Dtype::F64 | Dtype::I64 => 8,
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::F16 | Dtype::BF16 | Dtype::I16 => 2,
            Dtype::I8 | Dtype::U8 | Dtype::Bool => 1,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dtype::F64 => "f64",
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::BF16 => "bf16",
            Dtype::I64 => "i64",
            Dtype::I32 => "i32",
            Dtype::I16 => "i16",
            Dtype::I8 => "i8",
            Dtype::U8 => "u8",
            Dtype::Bool => "bool",
        })
    }
}

/// One element's value, whatever its type.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scalar {
    /// Of a float type; exact.
    Float(f64),
    /// Of an integer type.
    Int(i64),
    /// A truth value.
    Bool(bool),
}

macro_rules! scalar_from {
    ($($type:ty => $variant:ident),*) => {
        $(impl From<$type> for Scalar {
            fn from(value: $type) -> Scalar {
                Scalar::$variant(value.into())
            }
        })*
    };
}
scalar_from!(f64 => Float, f32 => Float, f16 => Float, bf16 => Float);
scalar_from!(i64 => Int, i32 => Int, i16 => Int, i8 => Int, u8 => Int, bool => Bool);

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that is the element of some [`Dtype`].
pub trait Element: Copy + PartialEq + fmt::Debug + Into<Scalar> + sealed::Sealed + 'static {
    /// The type's name.
    const DTYPE: Dtype;

    #[doc(hidden)]
    fn get(bytes: &[u8]) -> Self;
    #[doc(hidden)]
    fn put(self, bytes: &mut [u8]);
    #[doc(hidden)]
    fn to_f64(self) -> f64;
    #[doc(hidden)]
    fn to_f32(self) -> f32;
    #[doc(hidden)]
    fn to_i64(self) -> i64;
    #[doc(hidden)]
    fn is_true(self) -> bool;
    #[doc(hidden)]
    fn convert<S: Element>(source: S) -> Self;
}

macro_rules! element {
    ($type:ty, $dtype:ident, $source:ident => $convert:expr) => {
        element!($type, $dtype, $source => $convert,
            |x| f64::from(x), |x| x as f32, |x| x as i64, |x| x != <$type>::default());
    };
    ($type:ty, $dtype:ident, $source:ident => $convert:expr,
     $to_f64:expr, $to_f32:expr, $to_i64:expr, $is_true:expr) => {
        impl sealed::Sealed for $type {}

        impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;

            fn get(bytes: &[u8]) -> $type {
                <$type>::from_ne_bytes(bytes.try_into().expect("one element's bytes"))
            }

            fn put(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }

            fn to_f64(self) -> f64 {
                let to: fn($type) -> f64 = $to_f64;
                to(self)
            }

            fn to_f32(self) -> f32 {
                let to: fn($type) -> f32 = $to_f32;
                to(self)
            }

            fn to_i64(self) -> i64 {
                let to: fn($type) -> i64 = $to_i64;
                to(self)
            }

            fn is_true(self) -> bool {
                let is: fn($type) -> bool = $is_true;
                is(self)
            }

            fn convert<S: Element>($source: S) -> $type {
                $convert
            }
        }
    };
}
element!(f64, F64, x => x.to_f64());
element!(f32, F32, x => x.to_f32());
element!(i64, I64, x => x.to_i64(), |x| x as f64, |x| x as f32, |x| x, |x| x != 0);
element!(i32, I32, x => x.to_i64() as i32);
element!(i16, I16, x => x.to_i64() as i16);
element!(i8, I8, x => x.to_i64() as i8);
element!(u8, U8, x => x.to_i64() as u8);
element!(f16, F16, x => f16::from_f32(x.to_f32()),
    f16::to_f64, f16::to_f32, |x| x.to_f32() as i64, |x| x.to_f32() != 0.0);
element!(bf16, BF16, x => bf16::from_f32(x.to_f32()),
    bf16::to_f64, bf16::to_f32, |x| x.to_f32() as i64, |x| x.to_f32() != 0.0);

impl sealed::Sealed for bool {}

impl Element for bool {
    const DTYPE: Dtype = Dtype::Bool;

    fn get(bytes: &[u8]) -> bool {
        bytes[0] != 0
    }

    fn put(self, bytes: &mut [u8]) {
        bytes[0] = u8::from(self);
    }

    fn to_f64(self) -> f64 {
        f64::from(u8::from(self))
    }

    fn to_f32(self) -> f32 {
        f32::from(u8::from(self))
    }

    fn to_i64(self) -> i64 {
        i64::from(self)
    }

    fn is_true(self) -> bool {
        self
    }

    fn convert<S: Element>(source: S) -> bool {
        source.is_true()
    }
}

/// Runs a generic expression with the Rust type of a [`Dtype`].
macro_rules! with_element {
    ($dtype:expr, $type:ident => $body:expr) => {{
        use $crate::tensor::dtype::Dtype;
        macro_rules! run {
            ($concrete:ty) => {{
                type $type = $concrete;
                $body
            }};
        }
        match $dtype {
            Dtype::F64 => run!(f64),
            Dtype::F32 => run!(f32),
            Dtype::F16 => run!(half::f16),
            Dtype::BF16 => run!(half::bf16),
            Dtype::I64 => run!(i64),
            Dtype::I32 => run!(i32),
            Dtype::I16 => run!(i16),
            Dtype::I8 => run!(i8),
            Dtype::U8 => run!(u8),
            Dtype::Bool => run!(bool),
        }
    }};
}
pub(super) use with_element;

/// Converts packed elements of one type to packed elements of another.
pub(super) fn convert(bytes: Vec<u8>, source: Dtype, target: Dtype) -> Vec<u8> {
    if source == target {
        return bytes;
    }
    with_element!(source, S => with_element!(target, T => convert_as::<S, T>(&bytes)))
}

fn convert_as<S: Element, T: Element>(bytes: &[u8]) -> Vec<u8> {
    let count = bytes.len() / S::DTYPE.size_bytes();
    let mut converted = vec![0; count * T::DTYPE.size_bytes()];
    let sources = bytes.chunks_exact(S::DTYPE.size_bytes());
    for (source, target) in sources.zip(converted.chunks_exact_mut(T::DTYPE.size_bytes())) {
        T::convert(S::get(source)).put(target);
    }
    converted
}

/// The packed bytes of elements.
pub(super) fn pack<T: Element>(values: &[T]) -> Vec<u8> {
    let mut bytes = vec![0; size_of_val(values)];
    for (value, bytes) in values.iter().zip(bytes.chunks_exact_mut(T::DTYPE.size_bytes())) {
        value.put(bytes);
    }
    bytes
}

/// The elements of packed bytes.
pub(super) fn unpack<T: Element>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(T::DTYPE.size_bytes()).map(T::get).collect()
}

impl Scalar {
    /// The bytes of an element of type `dtype` with this value, converted as `copy_` does.
    pub(super) fn to_bytes(self, dtype: Dtype) -> Vec<u8> {
        match self {
            Scalar::Float(value) => convert(pack(&[value]), Dtype::F64, dtype),
            Scalar::Int(value) => convert(pack(&[value]), Dtype::I64, dtype),
            Scalar::Bool(value) => convert(pack(&[value]), Dtype::Bool, dtype),
        }
    }

    /// The value of one packed element.
    pub(super) fn of_bytes(bytes: &[u8], dtype: Dtype) -> Scalar {
        with_element!(dtype, T => T::get(bytes).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_do_what_the_module_says() {
        fn check<S: Element, T: Element>(source: S, expect: T) {
            let bytes = convert(pack(&[source]), S::DTYPE, T::DTYPE);
            assert_eq!(unpack::<T>(&bytes), [expect], "{source:?} as {}", T::DTYPE);
        }
        check(-1.9_f32, -1_i32);
        check(300.5_f64, 44_u8);
        check(-1.0_f32, 255_u8);
        check(f32::NAN, 0_i64);
        check(f64::INFINITY, i64::MAX);
        check(f32::NAN, true);
        check(-0.0_f32, false);
        check(true, 1.0_f64);
        check(-1_i64, -1_i8);
        check(257_i64, 1_u8);
        check(200_u8, -56_i8);
        check(16_777_217_i64, 16_777_216.0_f32);
        check(65_520.0_f32, f16::INFINITY);
        check(1.0 + f64::EPSILON, bf16::ONE);
        check(bf16::from_f32(-2.5), -2_i16);
        check(f16::from_f32(0.1), f16::from_f32(0.1).to_f64());
    }

    #[test]
    fn every_type_reads_back_what_was_written() {
        for dtype in Dtype::ALL {
            let bytes = Scalar::Int(1).to_bytes(dtype);
            assert_eq!(bytes.len(), dtype.size_bytes());
            let expect = match dtype {
                Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16 => Scalar::Float(1.0),
                Dtype::Bool => Scalar::Bool(true),
                _ => Scalar::Int(1),
            };
            assert_eq!(Scalar::of_bytes(&bytes, dtype), expect);
        }
    }
}
