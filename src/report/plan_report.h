#pragma once

#include <string>

#include "search/problem.h"

namespace meshwright {

/// What reports say of a model besides its graph.
struct ModelSummary {
  std::string name;
  double parameters = 0;
  double tokens_per_step = 0;
  std::string unit = "tokens";  ///< What is counted: "samples" for models without token sequences.
  Flops flops_per_step;
};
ModelSummary summarize(const Graph& graph, std::string name);

/// Model FLOPs utilization of a judged plan: useful FLOPs over the 16-bit peak of all devices of
/// the plan.
double mfu(const Problem& problem, const ModelSummary& model, const Judged& judged);

/// The lines about one plan: layout, step time with its breakdown, memory per stage.
std::string plan_text(const Problem& problem, const ModelSummary& model, const Judged& judged);

/// Everything `meshwright plan` prints of a search that found something.
std::string search_text(const Problem& problem, const ModelSummary& model,
                        const SearchResult& result);

/// Where step time goes on average over stages and on the busiest one; memory of every distinct
/// stage.
std::string time_table(const Judged& judged);
std::string memory_table(const Problem& problem, const Judged& judged);

/// The memory term that holds most, as words: "optimizer state (41.2 GiB)".
std::string largest_memory_term(const MemoryBreakdown& memory);

/// Layers per chunk in one line: "20 20 20 20", "stage 0: 11+10, …".
std::string cut_text(const Problem& problem, const Plan& plan);

}  // namespace meshwright
