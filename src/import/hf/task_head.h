#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "import/hf/blocks.h"
#include "import/hf/family.h"

namespace meshwright::hf {

// What a class in "architectures" puts on top of its base model: a language model's output layer, a
// classifier, or nothing.

/// The part of the class name that says the task: "ForMaskedLM", "Model", "EncoderModel". Of
/// several classes the first that is more than the bare model counts, since that is what is
/// trained. `fallback` when the file names no class.
std::string task_of(const Config& config, std::string_view fallback);

/// Number of classes: num_labels, else the entries of id2label, else `fallback`.
std::int64_t label_count(const Config& config, std::int64_t fallback = 2);

/// Records in `model` that the task's own layers are not known and only the base model is there.
void note_unknown_task(Model& model, std::string_view family, std::string_view task);

/// One position of `x` [batch, tokens, hidden] (a class token, or the last one) -> [batch, hidden].
ValueId one_token(GraphBuilder& b, std::string_view name, ValueId x, std::int64_t position);

/// Linear to `labels` classes over the last dim (parameters `<name>.weight`, `<name>.bias`) and the
/// loss against an input of labels.
void classify(GraphBuilder& b, std::string_view name, ValueId x, std::int64_t labels,
              bool bias = true);

/// Logits over a vocabulary from a table [vocab, hidden] that may be shared with the embedding, and
/// the loss against an input of labels. `bias` [vocab] is optional.
void predict_tokens(GraphBuilder& b, std::string_view name, ValueId x, ValueId table,
                    ValueId bias = ValueId());

/// Throws Error unless `heads` divides `hidden`.
std::int64_t head_dim_of(const Config& config, std::int64_t hidden, std::int64_t heads,
                         std::string_view heads_key);

}  // namespace meshwright::hf
