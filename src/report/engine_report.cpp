#include "report/engine_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

namespace meshwright {
namespace {

std::string findings_text(std::string_view heading, const std::vector<MegatronFinding>& findings) {
  if (findings.empty()) return {};
  std::string text = fmt::format("{}\n", heading);
  for (const MegatronFinding& f : findings) {
    text += fmt::format("  {:<4} {}\n", f.rule, f.message);
    if (!f.legal.empty()) text += fmt::format("       hint: {}\n", f.legal);
  }
  return text;
}

// "20 20 20 20" of one chunk each; several chunks of a rank are joined by plus signs.
std::string table_text(const LayerTable& table) {
  std::vector<std::string> ranks;
  for (const auto& rank : table) ranks.push_back(fmt::format("{}", fmt::join(rank, "+")));
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t j = i;
    while (j < ranks.size() && ranks[j] == ranks[i]) ++j;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ranks[i]);
    if (j - i > 1) text += fmt::format(" x{}", j - i);
    i = j;
  }
  return text;
}

Json findings_to_json(const std::vector<MegatronFinding>& findings) {
  Json list = Json::array();
  for (const MegatronFinding& f : findings) {
    list.push_back({{"rule", f.rule}, {"message", f.message}, {"legal", f.legal}});
  }
  return list;
}

template <class T>
Json optional_json(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace

std::string verdict_text(const MegatronArgs& args, std::int64_t world_size,
                         const MegatronVerdict& verdict) {
  std::string text = fmt::format("ranks          {}: tp {} x cp {} x pp {}", world_size,
                                 args.tensor_model_parallel_size, args.context_parallel_size,
                                 args.pipeline_model_parallel_size);
  if (verdict.data_parallel) text += fmt::format(" x dp {}", *verdict.data_parallel);
  if (args.num_experts.value_or(0) > 0) {
    text += fmt::format("; experts ep {} x etp {}", args.expert_model_parallel_size,
                        args.expert_tensor_parallel_size.value_or(args.tensor_model_parallel_size));
    if (verdict.expert_data_parallel)
      text += fmt::format(" x dp {}", *verdict.expert_data_parallel);
  }
  text +=
      fmt::format("\nargs_ok        {}\nfinal_ok       {}\n",
                  verdict.args_ok ? "yes: the options are accepted" : "no: the options are refused",
                  !verdict.final_ok ? "no: the run does not start"
                  : verdict.fine    ? "yes: the run starts"
                                    : "yes: the run starts, but not as it should");
  if (verdict.micro_batches) {
    text += fmt::format("micro-batches  {} per replica and step\n", *verdict.micro_batches);
  }
  if (!verdict.layers.empty()) {
    text += fmt::format("layers         {}\n", table_text(verdict.layers));
  }
  for (const auto& [name, value] : verdict.required_env) {
    text += fmt::format("environment    {}={} has to be set\n", name, value);
  }
  text += findings_text("refused", verdict.violations);
  text += findings_text("accepted, but misbehaves", verdict.would_misbehave);
  if (!verdict.warnings.empty()) text += "not checked\n";
  for (const std::string& warning : verdict.warnings) text += fmt::format("  {}\n", warning);
  return text;
}

Json verdict_to_json(std::int64_t world_size, const MegatronVerdict& verdict) {
  return {{"engine", "megatron"},
          {"world_size", world_size},
          {"args_ok", verdict.args_ok},
          {"groups_ok", verdict.groups_ok},
          {"build_ok", verdict.build_ok},
          {"schedule_ok", verdict.schedule_ok},
          {"final_ok", verdict.final_ok},
          {"fine", verdict.fine},
          {"data_parallel", optional_json(verdict.data_parallel)},
          {"expert_data_parallel", optional_json(verdict.expert_data_parallel)},
          {"micro_batches", optional_json(verdict.micro_batches)},
          {"layers", verdict.layers},
          {"violations", findings_to_json(verdict.violations)},
          {"would_misbehave", findings_to_json(verdict.would_misbehave)},
          {"warnings", verdict.warnings},
          {"required_env", verdict.required_env}};
}

}  // namespace meshwright
