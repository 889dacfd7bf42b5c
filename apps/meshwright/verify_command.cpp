#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "api/prove.h"
#include "api/recheck.h"
#include "base/error.h"
#include "base/format.h"
#include "cli.h"

namespace meshwright::cli {
namespace {

struct VerifyOptions {
  std::string plan;
  std::int64_t mutants = 0;
  std::uint64_t seed = 1;
  bool json = false;
};

Json failure_to_json(const CounterExample& f) {
  Json history = Json::array();
  for (const std::string& line : f.history) history.push_back(line);
  return {{"check", f.check},  {"message", f.message}, {"instruction", f.instruction},
          {"rank", f.rank},    {"tensor", f.tensor},   {"region", f.region},
          {"history", history}};
}

Json report_to_json(const Proof& proof) {
  const VerifyCounts& c = proof.report.counts;
  Json json = {{"proved", proof.report.proved()},
               {"devices", c.devices},
               {"segment_programs", c.segments},
               {"instructions", c.instructions},
               {"device_instructions", c.device_instructions},
               {"links", c.links},
               {"transfers", c.transfers},
               {"order_entries", c.passes},
               {"parameters", c.parameters},
               {"memory_bytes", proof.memory.value},
               {"usable_bytes", proof.usable.value}};
  if (proof.report.failure) json["counter_example"] = failure_to_json(*proof.report.failure);
  if (!proof.mutants) return json;
  Json kinds = Json::array();
  for (const MutantTally& k : proof.mutants->kinds) {
    kinds.push_back({{"mutation", k.name},
                     {"made", k.made},
                     {"rejected", k.rejected},
                     {"equivalent", k.equivalent},
                     {"missed", k.missed}});
  }
  json["mutants"] = std::move(kinds);
  return json;
}

int run(const VerifyOptions& o) {
  constexpr std::int64_t kMaxMutants = 10000000;
  if (o.mutants < 0 || o.mutants > kMaxMutants) {
    throw Error(fmt::format("must be 0..{}: {}", kMaxMutants, o.mutants), "--mutants");
  }
  const PlanFile file = read_plan_file(o.plan);
  const Proof proof = prove(file, o.mutants, o.seed, &interrupted());
  const bool missed = proof.mutants && proof.mutants->total().missed > 0;
  const int code = proof.report.proved() && !missed ? kOk : kNoPlan;
  if (o.json) {
    print(report_to_json(proof).dump(2) + "\n");
    return code;
  }
  print(fmt::format("{}: {} on {}\n", o.plan, file.loaded.model_name, file.loaded.cluster.name));
  print(to_string(proof.report));
  print(fmt::format("  memory       {} of {} on stage {}, the fullest\n",
                    format_bytes(proof.memory), format_bytes(proof.usable), proof.fullest_lane));
  print(fmt::format("  time         {} lowering, {} verification\n", format_seconds(proof.lowering),
                    format_seconds(proof.verification)));
  // The numbers may be right where the layout breaks a rule.
  for (const Violation& v : recheck(file).violations) {
    if (v.rule != "M1") print(fmt::format("note: breaks rule {}: {}\n", v.rule, v.message));
  }
  if (proof.mutants) print("\n" + to_string(*proof.mutants));
  return code;
}

constexpr const char* kFooter = R"(Examples:
  meshwright verify plan.json
  meshwright verify plan.json --json
  meshwright verify tiny.json --mutants 10000
What is proved, and what not, stands in docs/verify.md.
Mutants are small faults put into the program one at a time; verify must reject each that changes a
number. They need a model of a few thousand elements: every one that is not rejected is evaluated.
Exit code: 0 proved (and no mutant missed), 1 not proved, 2 wrong input.)";

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  auto o = std::make_shared<VerifyOptions>();
  CLI::App* command = app.add_subcommand(
      "verify", "Prove that a plan's program computes what the model does on one device");
  command->footer(kFooter);
  command->add_option("PLAN", o->plan, "A plan file (meshwright plan -o)")->required();
  command->add_option("--mutants", o->mutants, "Also judge this many mutants of the program");
  command->add_option("--seed", o->seed, "Of the mutants (default 1)");
  command->add_flag("--json", o->json, "Print the result as JSON");
  command->callback([o, &action] { action.run = [o] { return run(*o); }; });
}

}  // namespace meshwright::cli
