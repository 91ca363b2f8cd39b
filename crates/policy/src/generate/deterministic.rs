//! Which operators of a framework give the same bytes again from the same inputs, by name.
//!
//! Only such an op may make a dropped block again. Whatever draws random numbers, depends on state
//! that no tensor holds, or is not known here, stays out: a wrong answer costs a training run, a
//! missing one costs a copy.

use swap_core::{Trace, TraceOp};

/// Names without namespace and overload, in order.
const DETERMINISTIC: [&str; 79] = [
    "_cudnn_attention_forward",
    "_efficient_attention_forward",
    "_flash_attention_forward",
    "_fused_rms_norm",
    "_log_softmax",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention",
    "_softmax",
    "_to_copy",
    "abs",
    "add",
    "addcdiv",
    "addcmul",
    "addmm",
    "addmv",
    "baddbmm",
    "bmm",
    "cat",
    "clamp",
    "clone",
    "constant_pad_nd",
    "contiguous",
    "conv1d",
    "conv2d",
    "convolution",
    "cos",
    "div",
    "dot",
    "einsum",
    "elu",
    "embedding",
    "erf",
    "exp",
    "gather",
    "gelu",
    "group_norm",
    "hardswish",
    "index_select",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log",
    "log_softmax",
    "masked_fill",
    "matmul",
    "maximum",
    "mean",
    "minimum",
    "mm",
    "mul",
    "mv",
    "native_group_norm",
    "native_layer_norm",
    "neg",
    "pad",
    "pow",
    "reciprocal",
    "relu",
    "repeat",
    "reshape",
    "rms_norm",
    "rsqrt",
    "rsub",
    "scaled_dot_product_attention",
    "sigmoid",
    "silu",
    "sin",
    "softmax",
    "softplus",
    "sqrt",
    "square",
    "stack",
    "sub",
    "sum",
    "tanh",
    "to",
    "tril",
    "where",
];

/// Kernels that can draw random numbers inside, where no trace shows it.
const ATTENTION: &str = "attention";

/// Parts of the names of ops that draw random numbers.
const RANDOM: [&str; 6] = ["bernoulli", "dropout", "multinomial", "normal_", "rand", "rrelu"];

/// Whether an operator, by its schema name, gives the same bytes from the same inputs.
///
/// An overload after a dot does not matter. Names of other namespaces than `aten` are not known.
///
/// # Examples
/// ```
/// assert!(policy::is_deterministic("aten::add.Tensor"));
/// assert!(!policy::is_deterministic("aten::native_dropout"));
/// assert!(!policy::is_deterministic("aten::add_.Tensor"), "it changes its input");
/// ```
pub fn is_deterministic(name: &str) -> bool {
    let Some(name) = name.strip_prefix("aten::") else { return false };
    let plain = name.split_once('.').map_or(name, |(plain, _)| plain);
    DETERMINISTIC.binary_search(&plain).is_ok()
}

fn is_random(name: &str) -> bool {
    RANDOM.iter().any(|part| name.contains(part))
}

/// Marks the outermost ops of a recorded step that can run again by their names alone
/// ([`is_deterministic`]), with everything that they call.
///
/// Attention kernels stay out of a step that has dropout anywhere: they may drop as well, and no
/// record of theirs says so.
pub fn mark_replayable(trace: &mut Trace) {
    let drops = trace.ops.iter().any(|op| is_random(&op.name));
    let mut start = 0;
    while start < trace.ops.len() {
        let calls = trace.ops[start + 1..].iter().take_while(|op| op.depth > 0).count();
        let end = start + 1 + calls;
        let inside = &trace.ops[start..end];
        let random = |op: &TraceOp| is_random(&op.name) || (drops && op.name.contains(ATTENTION));
        let known = is_deterministic(&inside[0].name);
        trace.ops[start].replayable = known && !inside.iter().any(random);
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_and_none_is_random() {
        assert!(DETERMINISTIC.is_sorted_by(|one, other| one < other));
        assert!(!DETERMINISTIC.iter().any(|name| is_random(name)));
    }

    #[test]
    fn dropout_keeps_itself_and_attention_out() {
        let op = |name: &str, depth| TraceOp {
            name: name.to_owned(),
            depth,
            device_us: 1.0,
            replayable: false,
        };
        let names =
            |trace: &Trace| -> Vec<bool> { trace.ops.iter().map(|op| op.replayable).collect() };
        let attention = "aten::scaled_dot_product_attention";
        let ops = vec![op("aten::linear", 0), op("aten::mm", 1), op(attention, 0)];
        let mut trace = Trace { ops, ..Trace::default() };
        mark_replayable(&mut trace);
        assert_eq!(names(&trace), [true, false, true]);
        trace.ops.push(op("aten::native_dropout", 0));
        mark_replayable(&mut trace);
        assert_eq!(names(&trace), [true, false, false, false]);
        trace.ops[1] = op("aten::bernoulli_.float", 1);
        mark_replayable(&mut trace);
        assert_eq!(names(&trace), [false; 4]);
    }

    #[test]
    fn what_changes_its_input_or_is_unknown_stays_out() {
        for name in ["aten::add_.Tensor", "aten::copy_", "aten::bernoulli_.float", "custom::mm"] {
            assert!(!is_deterministic(name), "{name}");
        }
        for name in ["aten::linear", "aten::mul.Scalar", "aten::scaled_dot_product_attention"] {
            assert!(is_deterministic(name), "{name}");
        }
    }
}
