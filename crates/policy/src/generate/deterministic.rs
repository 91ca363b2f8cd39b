//! Which operators of a framework give the same bytes again from the same inputs, by name.
//!
//! Only such an op may make a dropped block again. What draws random numbers does, as the adapter
//! puts the generator back where it was at the call. Whatever depends on other state that no
//! tensor holds, or is not known here, stays out. In training nobody asks this list: there each
//! kind of op is tried.

use swap_core::Trace;

use crate::usage::callers;

/// Names without namespace and overload, in order.
const DETERMINISTIC: [&str; 97] = [
    "_cudnn_attention_forward",
    "_efficient_attention_forward",
    "_flash_attention_forward",
    "_fused_rms_norm",
    "_fused_rms_norm_backward",
    "_log_softmax",
    "_log_softmax_backward_data",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention",
    "_softmax",
    "_softmax_backward_data",
    "_to_copy",
    "abs",
    "add",
    "addcdiv",
    "addcmul",
    "addmm",
    "addmv",
    "alpha_dropout",
    "baddbmm",
    "bernoulli",
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
    "dropout",
    "einsum",
    "elu",
    "embedding",
    "erf",
    "exp",
    "feature_dropout",
    "gather",
    "gelu",
    "gelu_backward",
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
    "native_dropout",
    "native_dropout_backward",
    "native_group_norm",
    "native_group_norm_backward",
    "native_layer_norm",
    "native_layer_norm_backward",
    "neg",
    "pad",
    "pow",
    "rand_like",
    "randn_like",
    "reciprocal",
    "relu",
    "repeat",
    "reshape",
    "rms_norm",
    "rsqrt",
    "rsub",
    "scaled_dot_product_attention",
    "sigmoid",
    "sigmoid_backward",
    "silu",
    "silu_backward",
    "sin",
    "softmax",
    "softplus",
    "sqrt",
    "square",
    "stack",
    "sub",
    "sum",
    "tanh",
    "tanh_backward",
    "threshold_backward",
    "to",
    "tril",
    "where",
];

/// Whether an operator, by its schema name, gives the same bytes from the same inputs.
///
/// An overload after a dot does not matter. Names of other namespaces than `aten` are not known.
///
/// # Examples
/// ```
/// assert!(policy::is_deterministic("aten::add.Tensor"));
/// assert!(policy::is_deterministic("aten::native_dropout"), "it draws the same numbers again");
/// assert!(!policy::is_deterministic("aten::add_.Tensor"), "it changes its input");
/// ```
pub fn is_deterministic(name: &str) -> bool {
    let Some(name) = name.strip_prefix("aten::") else { return false };
    let plain = name.split_once('.').map_or(name, |(plain, _)| plain);
    DETERMINISTIC.binary_search(&plain).is_ok()
}

/// Whether an op only calls others: whatever it makes, one of them makes.
fn only_calls(name: &str) -> bool {
    const CALLERS: [&str; 2] = ["aten::cross_entropy_loss", "aten::nll_loss_nd"];
    name.starts_with("autograd::engine::evaluate_function: ") || CALLERS.contains(&name)
}

/// Ops nested deeper than this are not marked, so that long chains of ops cost no more.
const DEPTH_MAX: u32 = 16;

/// Marks the ops of a recorded step that can run again by their names alone
/// ([`is_deterministic`]), with everything that they call.
///
/// A nested op counts if all ops around it are known as well, or only call others: any other could
/// change afterwards what the nested op made, and no record would say so. A name says as much of
/// other sizes.
pub fn mark_replayable(trace: &mut Trace) {
    let around = callers(trace);
    let mut open: Vec<bool> = Vec::with_capacity(trace.ops.len());
    for (index, op) in trace.ops.iter_mut().enumerate() {
        let reached = around[index].is_none_or(|caller| open[caller]);
        let known = is_deterministic(&op.name);
        op.replayable = known && reached && op.depth < DEPTH_MAX;
        op.at_any_size = op.replayable;
        open.push(reached && (known || only_calls(&op.name)));
    }
}

#[cfg(test)]
mod tests {
    use swap_core::TraceOp;

    use super::*;

    #[test]
    fn names_are_in_order() {
        assert!(DETERMINISTIC.is_sorted_by(|one, other| one < other));
    }

    #[test]
    fn a_nested_op_counts_inside_ops_that_are_known_or_only_call() {
        let marks = |names: &[&str]| -> Vec<bool> {
            let op = |(depth, name): (u32, &&str)| TraceOp {
                name: (*name).to_owned(),
                depth,
                ..TraceOp::default()
            };
            let ops = (0..).zip(names).map(op).collect();
            let mut trace = Trace { ops, ..Trace::default() };
            mark_replayable(&mut trace);
            trace.ops.iter().map(|op| op.replayable).collect()
        };
        let backward = "autograd::engine::evaluate_function: MmBackward0";
        assert_eq!(marks(&[backward, "aten::mm"]), [false, true]);
        assert_eq!(marks(&["aten::cross_entropy_loss", "aten::_log_softmax"]), [false, true]);
        assert_eq!(marks(&["aten::linalg_inv", "aten::clone"]), [false, false]);
        assert_eq!(marks(&[backward, "aten::linalg_inv", "aten::clone"]), [false; 3]);
        let deep = vec!["aten::to"; 20];
        assert_eq!(marks(&deep).iter().filter(|&&mark| mark).count(), DEPTH_MAX as usize);
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
