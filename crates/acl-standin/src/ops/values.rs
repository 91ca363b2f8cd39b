//! Elements: their types, and how they lie in memory.

use half::{bf16, f16};

use crate::abi::pointer;
use crate::failure::{Outcome, RT_FEATURE_NOT_SUPPORT, refuse};

/// A type of elements, with the library's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DataType {
    F32 = 0,
    F16 = 1,
    I32 = 3,
    U8 = 4,
    I64 = 9,
    U64 = 10,
    Bool = 12,
    Bf16 = 27,
}

/// Elements as operators compute with them.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Values {
    Floats(Vec<f32>),
    Ints(Vec<i64>),
}

impl DataType {
    const ALL: [DataType; 8] = [
        DataType::F32,
        DataType::F16,
        DataType::I32,
        DataType::U8,
        DataType::I64,
        DataType::U64,
        DataType::Bool,
        DataType::Bf16,
    ];

    pub(crate) fn of(number: i32) -> Outcome<DataType> {
        match DataType::ALL.into_iter().find(|&known| known as i32 == number) {
            Some(data_type) => Ok(data_type),
            None => refuse(RT_FEATURE_NOT_SUPPORT, format!("elements of type {number}")),
        }
    }

    pub(crate) fn size_bytes(self) -> usize {
        match self {
            DataType::U8 | DataType::Bool => 1,
            DataType::F16 | DataType::Bf16 => 2,
            DataType::F32 | DataType::I32 => 4,
            DataType::I64 | DataType::U64 => 8,
        }
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, DataType::F32 | DataType::F16 | DataType::Bf16)
    }
}

/// Reads elements at the given places, counted from `address`.
fn read<T: Copy>(address: u64, places: impl Iterator<Item = usize>) -> impl Iterator<Item = T> {
    let start = pointer(address).cast::<T>().cast_const();
    places.map(move |place| {
        // The place's address; only reading it asks that something is there.
        let element = start.wrapping_add(place);
        // SAFETY: `ops::run` promises that the operands' memory is there; the places are in it.
        unsafe { element.read_unaligned() }
    })
}

/// Writes elements to the given places, counted from `address`.
fn write<T>(address: u64, places: impl Iterator<Item = usize>, values: impl Iterator<Item = T>) {
    let start = pointer(address).cast::<T>();
    for (place, value) in places.zip(values) {
        let element = start.wrapping_add(place);
        // SAFETY: as in `read`, and nobody else uses the memory now.
        unsafe { element.write_unaligned(value) };
    }
}

/// The elements at the given places of a tensor.
pub(super) fn load(
    data_type: DataType,
    address: u64,
    places: impl Iterator<Item = usize>,
) -> Values {
    use Values::{Floats, Ints};
    match data_type {
        DataType::F32 => Floats(read(address, places).collect()),
        DataType::F16 => Floats(read(address, places).map(f16::to_f32).collect()),
        DataType::Bf16 => Floats(read(address, places).map(bf16::to_f32).collect()),
        DataType::I32 => Ints(read::<i32>(address, places).map(i64::from).collect()),
        DataType::U8 | DataType::Bool => Ints(read::<u8>(address, places).map(i64::from).collect()),
        DataType::I64 | DataType::U64 => Ints(read(address, places).collect()),
    }
}

/// Stores elements at the given places of a tensor, each rounded to the nearest of its type.
///
/// The values are floats where the type is one, and whole numbers where not.
pub(super) fn store(
    data_type: DataType,
    address: u64,
    places: impl Iterator<Item = usize>,
    values: &Values,
) {
    match (data_type, values) {
        (DataType::F32, Values::Floats(values)) => write(address, places, values.iter().copied()),
        (DataType::F16, Values::Floats(values)) => {
            write(address, places, values.iter().copied().map(f16::from_f32));
        }
        (DataType::Bf16, Values::Floats(values)) => {
            write(address, places, values.iter().copied().map(bf16::from_f32));
        }
        (DataType::I32, Values::Ints(values)) => {
            write(address, places, values.iter().map(|&value| value as i32));
        }
        (DataType::U8 | DataType::Bool, Values::Ints(values)) => {
            write(address, places, values.iter().map(|&value| value as u8));
        }
        (DataType::I64 | DataType::U64, Values::Ints(values)) => {
            write(address, places, values.iter().copied());
        }
        _ => unreachable!("`Call::store` compared the kinds"),
    }
}

impl Values {
    pub(super) fn len(&self) -> usize {
        match self {
            Values::Floats(values) => values.len(),
            Values::Ints(values) => values.len(),
        }
    }

    pub(super) fn is_floats(&self) -> bool {
        matches!(self, Values::Floats(_))
    }

    /// The elements at the given places.
    pub(super) fn pick(&self, places: impl Iterator<Item = usize>) -> Values {
        match self {
            Values::Floats(values) => Values::Floats(places.map(|place| values[place]).collect()),
            Values::Ints(values) => Values::Ints(places.map(|place| values[place]).collect()),
        }
    }
}
