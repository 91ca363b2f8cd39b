// Which operators can be run again: by their schemas, and by what PyTorch says of them.
#include <ATen/core/enum_tag.h>
#include <ATen/core/function_schema.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <unordered_set>

#include "engine.h"
#include "replay.h"

namespace smartswap::replay {

namespace {

bool begins_with(const std::string& name, std::string_view start) {
  return name.compare(0, start.size(), start) == 0;
}

// Their bytes are whatever was there, or their work goes on elsewhere.
bool is_excluded(const std::string& name) {
  static constexpr std::string_view starts[] = {
      "aten::empty", "aten::new_empty", "aten::_empty", "c10d",       "_c10d",
      "aten::_cudnn_init_dropout_state", "prim",        "profiler",   "aten::_pin_memory",
      "aten::pin_memory",                "aten::_efficientzerotensor"};
  return std::any_of(std::begin(starts), std::end(starts), [&](std::string_view start) {
    return begins_with(name, start);
  });
}

// Whether the operator works with other ranks, as those do that are fused with a collective: a text
// names their group, as PyTorch, HCCL and its users call it. All of them would have to run it again
// at the same moment.
bool needs_ranks(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
    const auto& type = argument.type();
    const bool is_text = type->isSubtypeOf(*c10::OptionalType::create(c10::StringType::get()));
    return is_text &&
        (begins_with(argument.name(), "group") || begins_with(argument.name(), "hcom"));
  });
}

// Operators whose kernels of accelerators add in any order, unless deterministic ones are asked
// for: so says the documentation of torch.use_deterministic_algorithms.
bool adds_in_any_order(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "aten::_adaptive_avg_pool2d_backward",
      "aten::_adaptive_avg_pool3d_backward",
      "aten::_ctc_loss_backward",
      "aten::_embedding_bag",
      "aten::_embedding_bag_backward",
      "aten::_embedding_bag_dense_backward",
      "aten::_embedding_bag_forward_only",
      "aten::_flash_attention_backward",
      "aten::_scaled_dot_product_cudnn_attention_backward",
      "aten::_scaled_dot_product_efficient_attention_backward",
      "aten::_scaled_dot_product_flash_attention_backward",
      "aten::_efficient_attention_backward",
      "aten::_index_put_impl",
      "aten::adaptive_max_pool2d_backward",
      "aten::adaptive_max_pool3d_backward",
      "aten::avg_pool3d_backward",
      "aten::bincount",
      "aten::convolution_backward",
      "aten::cumsum",
      "aten::embedding_dense_backward",
      "aten::fractional_max_pool2d_backward",
      "aten::fractional_max_pool3d_backward",
      "aten::grid_sampler_2d_backward",
      "aten::grid_sampler_3d_backward",
      "aten::histc",
      "aten::index_add",
      "aten::index_put",
      "aten::index_reduce",
      "aten::kthvalue",
      "aten::max_pool2d_with_indices_backward",
      "aten::max_pool3d_with_indices_backward",
      "aten::max_unpool2d",
      "aten::max_unpool3d",
      "aten::median",
      "aten::nanmedian",
      "aten::nll_loss2d_backward",
      "aten::nll_loss2d_forward",
      "aten::put",
      "aten::reflection_pad1d_backward",
      "aten::reflection_pad2d_backward",
      "aten::reflection_pad3d_backward",
      "aten::replication_pad1d_backward",
      "aten::replication_pad2d_backward",
      "aten::replication_pad3d_backward",
      "aten::scatter",
      "aten::scatter_add",
      "aten::scatter_reduce",
      "aten::upsample_bicubic2d_backward",
      "aten::upsample_bilinear2d_backward",
      "aten::upsample_linear1d_backward",
      "aten::upsample_trilinear3d_backward",
      "aten::_upsample_bicubic2d_aa_backward",
      "aten::_upsample_bilinear2d_aa_backward",
  };
  return names.count(name) != 0;
}

// Operators that PyTorch does not call pointwise, though each number that they make is one of their
// inputs', at most of another type.
bool only_moves(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "aten::_to_copy", "aten::cat", "aten::clone", "aten::constant_pad_nd", "aten::repeat",
      "aten::stack"};
  return names.count(name) != 0;
}

// By argument, whether the operator writes its result there. One that changes its arguments in any
// other way is not functional, and one that writes several results there cannot be called boxed:
// what the dispatcher then returns refers to arguments that it has given up.
std::optional<std::vector<bool>> result_arguments(const c10::FunctionSchema& schema) {
  std::vector<bool> found;
  for (const auto& argument : schema.arguments()) {
    if (argument.alias_info() != nullptr && !argument.is_out()) {
      return std::nullopt;
    }
    found.push_back(argument.is_out());
  }
  const auto count = std::count(found.begin(), found.end(), true);
  return count > 1 ? std::nullopt : std::optional(std::move(found));
}

bool is_functional(const c10::FunctionSchema& schema) {
  const auto aliases = [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr;
  };
  const auto& results = schema.returns();
  const auto has_tensors = [](const c10::Argument& result) {
    const auto kind = result.type()->kind();
    return kind == c10::TypeKind::TensorType || kind == c10::TypeKind::ListType;
  };
  const auto arguments = result_arguments(schema);
  const bool has_results = arguments &&
      std::find(arguments->begin(), arguments->end(), true) != arguments->end();
  return arguments && (has_results || std::none_of(results.begin(), results.end(), aliases)) &&
      std::any_of(results.begin(), results.end(), has_tensors);
}

}  // namespace

std::optional<Candidate> candidate(
    const c10::OperatorHandle& op, const std::string& name, bool reads_shapes) {
  // Whether an index is a mask shows in the call.
  const bool has_any_shape =
      op.hasTag(at::Tag::dynamic_output_shape) && name != "aten::index";
  const bool is_known = is_functional(op.schema()) && !is_excluded(name) && !has_any_shape &&
      !needs_ranks(op.schema()) && !op.hasTag(at::Tag::data_dependent_output) &&
      !op.hasTag(at::Tag::nondeterministic_bitwise) &&
      !op.hasTag(at::Tag::maybe_aliasing_or_mutating) && !op.hasTag(at::Tag::inplace_view);
  if (!is_known) {
    return std::nullopt;
  }
  const bool draws = op.hasTag(at::Tag::nondeterministic_seeded);
  const bool in_any_order =
      attached().type != c10::DeviceType::CPU && adds_in_any_order(name);
  return Candidate{
      op,
      draws,
      reads_shapes,
      op.hasTag(at::Tag::dynamic_output_shape),
      in_any_order,
      !draws && (op.hasTag(at::Tag::pointwise) || only_moves(name)),
      *result_arguments(op.schema())};
}

bool Unsaid::changes(c10::ArrayRef<const c10::IValue> inputs, size_t index) const {
  if (std::find(changed.begin(), changed.end(), index) == changed.end()) {
    return false;
  }
  return !condition || *condition >= inputs.size() || !inputs[*condition].isBool() ||
      inputs[*condition].toBool();
}

Unsaid unsaid(const c10::FunctionSchema& schema) {
  // A recurrent layer on a GPU takes its numbers from a state of its own, which goes on with each
  // call, and its backward pass works in the reserve.
  const bool is_recurrent_backward = schema.name().find("_rnn_backward") != std::string::npos;
  Unsaid found;
  for (size_t index = 0; index < schema.arguments().size(); ++index) {
    const auto& argument = schema.arguments()[index];
    const auto& name = argument.name();
    const bool is_changed = name == "running_mean" || name == "running_var" ||
        name == "dropout_state" || (is_recurrent_backward && name == "reserve");
    if (is_changed && argument.alias_info() == nullptr) {
      found.changed.push_back(index);
    }
    if (name == "training" || name == "train") {
      found.condition = index;
    }
  }
  return found;
}

}  // namespace smartswap::replay
