//! A call of an operator: its operands and attributes.

use super::shape;
use super::values::{self, DataType, Values};
use crate::exports::attribute::{Attribute, Attributes};
use crate::failure::{INVALID_PARAM, Outcome, refuse};

/// Where an operand's elements are.
#[derive(Clone, Debug)]
pub(crate) enum Elements {
    /// On the device.
    Device(u64),
    /// They were on the host, and were read when the operator was called.
    Host(Vec<u8>),
}

/// An input or output. Its elements lie in a row.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    pub(crate) data_type: DataType,
    pub(crate) dims: Vec<usize>,
    pub(crate) place: Elements,
}

/// One call of an operator.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) inputs: Vec<Operand>,
    pub(crate) outputs: Vec<Operand>,
    pub(crate) attributes: Attributes,
}

/// What becomes of an output.
#[derive(Debug)]
pub(super) enum Output {
    /// All its elements, in their order.
    Whole(Values),
    /// Elements for these places; the others stay.
    At(Vec<usize>, Values),
}

/// The values of an input, and its shape.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) dims: Vec<usize>,
    pub(super) values: Values,
}

impl Operand {
    fn address(&self) -> u64 {
        match &self.place {
            Elements::Device(address) => *address,
            Elements::Host(bytes) => crate::abi::address(bytes.as_ptr().cast()),
        }
    }

    pub(crate) fn size_bytes(&self) -> usize {
        shape::count(&self.dims) * self.data_type.size_bytes()
    }

    fn load(&self, places: impl Iterator<Item = usize>) -> Values {
        values::load(self.data_type, self.address(), places)
    }
}

impl Call {
    /// Refuses the call, with its name.
    pub(super) fn refuse<T>(&self, text: impl std::fmt::Display) -> Outcome<T> {
        refuse(INVALID_PARAM, format!("operator {}: {text}", self.name))
    }

    fn operand(&self, index: usize) -> Outcome<&Operand> {
        match self.inputs.get(index) {
            Some(operand) => Ok(operand),
            None => self.refuse(format!("it has no input {index}")),
        }
    }

    /// An input.
    pub(super) fn input(&self, index: usize) -> Outcome<Tensor> {
        let operand = self.operand(index)?;
        let dims = operand.dims.clone();
        Ok(Tensor { values: operand.load(0..shape::count(&dims)), dims })
    }

    /// The elements at these places behind the start of an input, which may have others between.
    pub(super) fn elements(&self, index: usize, places: &[usize]) -> Outcome<Values> {
        Ok(self.operand(index)?.load(places.iter().copied()))
    }

    /// An input of floats.
    pub(super) fn floats(&self, index: usize) -> Outcome<(Vec<usize>, Vec<f32>)> {
        let Tensor { dims, values } = self.input(index)?;
        match values {
            Values::Floats(values) => Ok((dims, values)),
            Values::Ints(_) => self.refuse(format!("input {index} holds no floats")),
        }
    }

    /// An input of whole numbers.
    pub(super) fn ints(&self, index: usize) -> Outcome<Vec<i64>> {
        match self.input(index)?.values {
            Values::Ints(values) => Ok(values),
            Values::Floats(_) => self.refuse(format!("input {index} holds no whole numbers")),
        }
    }

    /// An input of sizes, strides or offsets.
    pub(super) fn sizes(&self, index: usize) -> Outcome<Vec<usize>> {
        shape::sizes(&self.ints(index)?)
    }

    /// The shape of an output.
    pub(super) fn output(&self, index: usize) -> Outcome<&Operand> {
        match self.outputs.get(index) {
            Some(operand) => Ok(operand),
            None => self.refuse(format!("it has no output {index}")),
        }
    }

    /// A truth value, false if the call has it not.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.attributes.get(name) == Some(&Attribute::Bool(true))
    }

    /// A whole number.
    pub(super) fn int(&self, name: &str) -> Outcome<i64> {
        match self.attributes.get(name) {
            Some(Attribute::Int(value)) => Ok(*value),
            other => self.refuse(format!("its {name} is {other:?}")),
        }
    }

    /// A number.
    pub(super) fn float(&self, name: &str) -> Outcome<f32> {
        match self.attributes.get(name) {
            Some(Attribute::Float(value)) => Ok(*value),
            other => self.refuse(format!("its {name} is {other:?}")),
        }
    }

    /// Whole numbers.
    pub(super) fn int_list(&self, name: &str) -> Outcome<&[i64]> {
        match self.attributes.get(name) {
            Some(Attribute::Ints(values)) => Ok(values),
            other => self.refuse(format!("its {name} is {other:?}")),
        }
    }

    /// A text.
    pub(super) fn text(&self, name: &str) -> Outcome<&str> {
        match self.attributes.get(name) {
            Some(Attribute::Text(value)) => Ok(value),
            other => self.refuse(format!("its {name} is {other:?}")),
        }
    }

    /// Stores an output.
    pub(super) fn store(&self, index: usize, output: Output) -> Outcome {
        let operand = &self.outputs[index];
        let (values, places) = match output {
            Output::Whole(values) => {
                let due = shape::count(&operand.dims);
                if values.len() != due {
                    let text = format!("output {index} is of {due} elements, not {}", values.len());
                    return self.refuse(text);
                }
                (values, None)
            }
            Output::At(places, values) => (values, Some(places)),
        };
        if values.is_floats() != operand.data_type.is_float() {
            return self.refuse(format!("output {index} cannot be {:?}", operand.data_type));
        }
        let address = operand.address();
        match places {
            None => values::store(operand.data_type, address, 0..values.len(), &values),
            Some(places) => {
                values::store(operand.data_type, address, places.into_iter(), &values);
            }
        }
        Ok(())
    }
}

/// The one output of an operator.
pub(super) fn whole(values: Values) -> Outcome<Vec<Output>> {
    Ok(vec![Output::Whole(values)])
}
