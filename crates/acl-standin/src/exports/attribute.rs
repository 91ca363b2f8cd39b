//! Attributes of operators.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};

use crate::abi::{In, Opaque};
use crate::entry::{self, exports};
use crate::failure::{INVALID_PARAM, Outcome, refuse};
use crate::shelf::Shelf;

/// The value of one attribute.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Attribute {
    Bool(bool),
    Int(i64),
    Float(f32),
    Text(String),
    DataType(i32),
    Bools(Vec<bool>),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    /// Lists of numbers, which no operator here reads.
    Lists,
}

pub(crate) type Attributes = BTreeMap<String, Attribute>;

pub(crate) static ATTRIBUTES: Shelf<Attributes> = Shelf::new("set of attributes");

/// The text that a C string holds.
pub(super) fn text(name: &str, string: *const c_char) -> Outcome<String> {
    if string.is_null() {
        return refuse(INVALID_PARAM, format!("{name} is null"));
    }
    // SAFETY: not null, so a C string: see `exports!`.
    let string = unsafe { CStr::from_ptr(string) };
    Ok(string.to_string_lossy().into_owned())
}

fn set(attributes: Opaque, name: *const c_char, value: Attribute) -> Outcome {
    let name = text("attrName", name)?;
    ATTRIBUTES.with(attributes, |attributes| {
        attributes.insert(name, value);
    })
}

fn list<T: Copy>(count: i32, values: In<T>) -> Outcome<Vec<T>> {
    match usize::try_from(count) {
        Ok(0) => Ok(Vec::new()),
        Ok(count) => values.get_all("values", count),
        Err(_) => refuse(INVALID_PARAM, format!("{count} values")),
    }
}

/// An empty set of attributes.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // The library's own name.
pub extern "C" fn aclopCreateAttr() -> Opaque {
    ATTRIBUTES.put(Attributes::new())
}

/// Ends a set of attributes.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // The library's own name.
pub extern "C" fn aclopDestroyAttr(attributes: Opaque) {
    entry::run("aclopDestroyAttr", || ATTRIBUTES.take(attributes).map(drop));
}

exports! {
    /// Sets a truth value.
    fn aclopSetAttrBool(attributes: Opaque, name: *const c_char, value: u8) {
        set(attributes, name, Attribute::Bool(value != 0))
    }

    /// Sets a whole number.
    fn aclopSetAttrInt(attributes: Opaque, name: *const c_char, value: i64) {
        set(attributes, name, Attribute::Int(value))
    }

    /// Sets a number.
    fn aclopSetAttrFloat(attributes: Opaque, name: *const c_char, value: f32) {
        set(attributes, name, Attribute::Float(value))
    }

    /// Sets a text.
    fn aclopSetAttrString(attributes: Opaque, name: *const c_char, value: *const c_char) {
        set(attributes, name, Attribute::Text(text("attrValue", value)?))
    }

    /// Sets a type of elements.
    fn aclopSetAttrDataType(attributes: Opaque, name: *const c_char, value: i32) {
        set(attributes, name, Attribute::DataType(value))
    }

    /// Sets truth values.
    fn aclopSetAttrListBool(
        attributes: Opaque, name: *const c_char, count: i32, values: In<u8>,
    ) {
        let values = list(count, values)?.into_iter().map(|value| value != 0).collect();
        set(attributes, name, Attribute::Bools(values))
    }

    /// Sets whole numbers.
    fn aclopSetAttrListInt(
        attributes: Opaque, name: *const c_char, count: i32, values: In<i64>,
    ) {
        set(attributes, name, Attribute::Ints(list(count, values)?))
    }

    /// Sets numbers.
    fn aclopSetAttrListFloat(
        attributes: Opaque, name: *const c_char, count: i32, values: In<f32>,
    ) {
        set(attributes, name, Attribute::Floats(list(count, values)?))
    }

    /// Sets lists of whole numbers.
    fn aclopSetAttrListListInt(
        attributes: Opaque, name: *const c_char, _count: i32, _counts: Opaque, _values: Opaque,
    ) {
        set(attributes, name, Attribute::Lists)
    }
}
