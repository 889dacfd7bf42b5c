#include "import/hf/task_head.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace meshwright::hf {
namespace {

std::string_view task_of_class(std::string_view class_name) {
  constexpr std::string_view kEncoder = "EncoderModel";
  if (class_name.ends_with("MTModel")) return "ForConditionalGeneration";  // Marian's translator.
  if (class_name.ends_with(kEncoder)) return class_name.substr(class_name.size() - kEncoder.size());
  return class_name.substr(architecture_stem(class_name).size());
}

// The same dims without the last one, of integers.
TensorType label_type(const TensorType& logits) {
  TensorType type = logits;
  type.dtype = DType::kI64;
  type.dims.pop_back();
  return type;
}

void loss(GraphBuilder& b, ValueId logits) {
  const ValueId labels = b.input("labels", label_type(b.type(logits)));
  b.op("cross_entropy", "loss", {logits, labels});
}

}  // namespace

std::string task_of(const Config& config, std::string_view fallback) {
  const std::vector<std::string> classes = config.texts_or_empty("architectures");
  for (const std::string& name : classes) {
    const std::string_view task = task_of_class(name);
    if (task != "Model" && !task.empty()) return std::string(task);
  }
  if (classes.empty()) return std::string(fallback);
  return std::string(task_of_class(classes[0]));
}

std::int64_t label_count(const Config& config, std::int64_t fallback) {
  if (config.has("num_labels")) return config.size({"num_labels"});
  if (!config.has_nested("id2label")) return fallback;
  const auto labels = static_cast<std::int64_t>(config.nested("id2label").json().size());
  if (labels == 0) config.fail("id2label", "id2label names no class");
  return labels;
}

void note_unknown_task(Model& model, std::string_view family, std::string_view task) {
  model.notes.push_back(fmt::format(
      "the layers that a class ending in '{}' puts on top of {} are not known; only the base model "
      "is imported",
      task, family));
}

ValueId one_token(GraphBuilder& b, std::string_view name, ValueId x, std::int64_t position) {
  const ValueId token =
      b.op("slice", fmt::format("{}.select", name), {x},
           {{"dim", std::int64_t{1}}, {"start", position}, {"length", std::int64_t{1}}});
  return b.op("reshape", fmt::format("{}.squeeze", name), {token},
              {{"pattern", std::string("b 1 h -> b h")}});
}

void classify(GraphBuilder& b, std::string_view name, ValueId x, std::int64_t labels, bool bias) {
  loss(b, b.linear(name, x, {"classes", labels, 1}, bias));
}

void predict_tokens(GraphBuilder& b, std::string_view name, ValueId x, ValueId table,
                    ValueId bias) {
  std::vector<ValueId> operands = {x, table};
  if (bias.valid()) operands.push_back(bias);
  loss(b, b.op("linear", name, std::move(operands)));
}

std::int64_t head_dim_of(const Config& config, std::int64_t hidden, std::int64_t heads,
                         std::string_view heads_key) {
  if (hidden % heads != 0) {
    config.fail(heads_key, fmt::format("the hidden size {} is not a multiple of {} = {}", hidden,
                                       heads_key, heads));
  }
  return hidden / heads;
}

}  // namespace meshwright::hf
