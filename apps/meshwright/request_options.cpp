#include "request_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "plan/schedule.h"

namespace meshwright::cli {

void declare(CLI::App& app, RequestOptions& o, bool with_pins, bool required) {
  app.add_option(
         "MODEL CLUSTER", o.positional,
         "MODEL: a name (`meshwright models`), config.json, a directory with one, a .onnx or "
         "a .graph file. "
         "CLUSTER: a shorthand (`meshwright clusters`) or a YAML file")
      ->expected(1, 2)
      ->required(required);
  const char* model = "Model by sizes (instead of MODEL)";
  app.add_option("--layers", o.sizes.layers, "Transformer layers")->group(model);
  app.add_option("--hidden", o.sizes.hidden, "Width of the residual stream")->group(model);
  app.add_option("--heads", o.sizes.heads, "Attention heads")->group(model);
  app.add_option("--kv-heads", o.sizes.kv_heads, "Key/value heads (default: heads)")->group(model);
  app.add_option("--head-dim", o.sizes.head_dim, "Width of a head (default: hidden / heads)")
      ->group(model);
  app.add_option("--ffn", o.sizes.ffn, "MLP width (default: 4 * hidden; gated: 8/3 * hidden)")
      ->group(model);
  app.add_option("--vocab", o.sizes.vocab, "Vocabulary (default: 51200)")->group(model);
  app.add_option("--experts", o.sizes.experts, "Experts per MoE layer")->group(model);
  app.add_option("--top-k", o.sizes.top_k, "Experts per token")->group(model);
  app.add_option("--expert-ffn", o.sizes.expert_ffn, "Width of an expert")->group(model);
  app.add_flag("--gated", o.sizes.gated,
               "Llama style: SwiGLU, RMSNorm, rotary positions, no biases")
      ->group(model);
  app.add_flag("--untied", o.untied, "Output layer with weights of its own")->group(model);

  const char* run = "Run";
  app.add_option("-b,--global-batch", o.global_batch,
                 "Sequences per optimizer step (default: 1024)")
      ->group(run);
  app.add_option("-s,--seq", o.seq, "Tokens per sequence (default: the model's own, at most 4096)")
      ->group(run);
  app.add_option("--precision", o.precision, "bf16, f16, f32 or f8 (default: bf16)")->group(run);
  app.add_option("--optimizer", o.optimizer, "adamw, adam or sgd (default: adamw)")->group(run);
  app.add_option("--gradients", o.gradient_dtype,
                 "Type of accumulated gradients: f32 or bf16 (default: f32)")
      ->group(run);
  app.add_option("--attention", o.attention, "flash or unfused (default: flash)")->group(run);
  app.add_flag("--dropout", o.dropout, "Keep the configuration's dropout")->group(run);
  app.add_flag("--mtp", o.mtp, "Include multi-token-prediction modules")->group(run);
  app.add_option("--cost", o.cost,
                 "Cost model: analytic, or profiled (default: analytic; profiled with --profile)")
      ->group(run);
  app.add_option("--profile", o.profile, "Table of `meshwright profile` for the model profiled")
      ->group(run);
  app.add_option("--engine", o.engine, "Whose overheads to assume (default: default)")->group(run);
  if (!with_pins) return;

  const char* pins = "Pin or bound (8, 2..8, ..8, 2..)";
  app.add_option("--objective", o.objective, "throughput, cost or memory (default: throughput)")
      ->group(run);
  app.add_option("--pp", o.pp, "Pipeline stages")->group(pins);
  app.add_option("--vpp", o.vpp, "Chunks per stage")->group(pins);
  app.add_option("--tp", o.tp, "Tensor parallel degree")->group(pins);
  app.add_option("--cp", o.cp, "Context parallel degree")->group(pins);
  app.add_option("--dp", o.dp, "Data parallel degree")->group(pins);
  app.add_option("--ep", o.ep, "Expert parallel degree")->group(pins);
  app.add_option("--etp", o.etp, "Expert tensor parallel degree")->group(pins);
  app.add_option("--micro-batch", o.micro_batch, "Sequences per micro-batch and replica")
      ->group(pins);
  app.add_option("--zero", o.zero,
                 "State sharding: none, zero1, zero2, zero3 (several: any of them)")
      ->delimiter(',')
      ->group(pins);
  app.add_option("--recompute", o.recompute,
                 "Recomputation: none, selective, full, parts (several: any of them)")
      ->delimiter(',')
      ->group(pins);
  app.add_flag("--no-recompute", o.no_recompute, "The same as --recompute none")->group(pins);
  app.add_flag("--no-sp", o.no_sp, "No sequence parallelism")->group(pins);
  app.add_option("--schedule", o.schedule,
                 searchable_schedules() +
                     "; terapipe, 3f1b, interlaced where the model has what they need "
                     "(default: 1f1b, or interleaved with --vpp)")
      ->group(pins);
  app.add_option("--max-memory", o.max_memory, "Share of device memory to use (default: 0.94)")
      ->group(pins);
  app.add_option("--space", o.space,
                 "Plan space: rules about operators, from a file or by name (`meshwright space`)")
      ->group(pins);
  app.add_option("--devices", o.devices, "Use only this many devices (default: all)")->group(pins);
}

Request to_request(const RequestOptions& o) {
  Request r;
  const bool sizes = o.sizes.layers != 0 || o.sizes.hidden != 0 || o.sizes.heads != 0;
  if (sizes) {
    if (o.positional.size() != 1) {
      throw Error("with --layers, --hidden and --heads give the cluster only", "arguments",
                  "meshwright plan --layers 96 --hidden 12288 --heads 96 dgx-a100:64");
    }
    r.cluster = o.positional[0];
    r.sizes = o.sizes;
    r.sizes.tied = !o.untied;
  } else {
    if (o.positional.size() != 2) {
      throw Error("a model and a cluster are needed", "arguments",
                  "meshwright plan llama-3-8b dgx-h100:1");
    }
    r.model = o.positional[0];
    r.cluster = o.positional[1];
  }
  if (o.global_batch < 1)
    throw Error(fmt::format("must be at least 1: {}", o.global_batch), "--global-batch");
  if (o.seq < 0) throw Error(fmt::format("must be at least 1: {}", o.seq), "--seq");
  r.import.global_batch = o.global_batch;
  r.import.seq = o.seq;
  r.import.attention = o.attention;
  if (o.attention != "flash" && o.attention != "unfused") {
    throw Error(fmt::format("unknown kernel '{}'", o.attention), "--attention",
                "legal: flash, unfused");
  }
  r.import.dropout = o.dropout;
  r.import.mtp = o.mtp;
  const auto dtype = [](const std::string& text, std::string_view option) {
    if (text == "fp16") return DType::kF16;
    if (text == "fp32") return DType::kF32;
    if (text == "fp8") return DType::kF8;
    try {
      const DType parsed = parse_dtype(text);
      if (is_floating(parsed) && parsed != DType::kF64) return parsed;
    } catch (const Error&) {
    }
    throw Error(fmt::format("unknown precision '{}'", text), std::string(option),
                "legal: bf16, f16, f32, f8");
  };
  r.training.dtype = dtype(o.precision, "--precision");
  r.import.dtype = r.training.dtype == DType::kF8 ? DType::kBf16 : r.training.dtype;
  r.training.gradient_dtype = dtype(o.gradient_dtype, "--gradients");
  if (o.optimizer != "adamw" && o.optimizer != "adam" && o.optimizer != "sgd") {
    throw Error(fmt::format("unknown optimizer '{}'", o.optimizer), "--optimizer",
                "legal: adamw, adam, sgd");
  }
  r.training.optimizer = o.optimizer;
  r.cost_model = !o.cost.empty() ? o.cost : o.profile.empty() ? "analytic" : "profiled";
  r.profile = o.profile;
  r.engine = o.engine;
  if (o.objective == "throughput")
    r.objective = Objective::kThroughput;
  else if (o.objective == "cost")
    r.objective = Objective::kCost;
  else if (o.objective == "memory")
    r.objective = Objective::kMemory;
  else
    throw Error(fmt::format("unknown objective '{}'", o.objective), "--objective",
                "legal: throughput, cost, memory");

  Restrictions& x = r.restrictions;
  const auto pin = [](const std::string& text, std::string_view option, Allowed& allowed) {
    if (!text.empty()) allowed = parse_allowed(text, option);
  };
  pin(o.pp, "--pp", x.pp);
  pin(o.vpp, "--vpp", x.vpp);
  pin(o.tp, "--tp", x.tp);
  pin(o.cp, "--cp", x.cp);
  pin(o.dp, "--dp", x.dp);
  pin(o.ep, "--ep", x.ep);
  pin(o.etp, "--etp", x.etp);
  pin(o.micro_batch, "--micro-batch", x.micro_batch);
  for (const std::string& z : o.zero) x.state.push_back(parse_state_sharding(z));
  for (const std::string& c : o.recompute) x.recompute.push_back(parse_recompute(c));
  if (o.no_recompute && !o.recompute.empty()) {
    throw Error("contradicts --recompute", "--no-recompute", "give one of them");
  }
  if (o.no_recompute) x.recompute = {Recompute::kNone};
  if (o.no_sp) x.sp = false;
  if (!o.schedule.empty()) {
    const Schedule& schedule = find_schedule(o.schedule);
    x.schedule = schedule.name;
    // Where chunks follow from the model's rounds there is nothing to choose.
    const bool rounds = schedule.vpp_max == 0;
    if (rounds && !o.vpp.empty()) throw Error(fmt::format("{} has no vpp", o.schedule), "--vpp");
    // Schedules have their numbers of virtual stages.
    Allowed& vpp = x.vpp;
    vpp.min = std::max<std::int64_t>(vpp.min, schedule.vpp_min);
    if (!rounds) vpp.max = std::min<std::int64_t>(vpp.max, schedule.vpp_max);
    if (vpp.min > vpp.max) {
      throw Error(fmt::format("{} contradicts --vpp {}", o.schedule, o.vpp), "--schedule",
                  schedule.vpp_max == 1 ? "it has one chunk per stage"
                  : schedule.vpp_max == schedule.vpp_min
                      ? fmt::format("it has {} chunks per stage", schedule.vpp_min)
                      : fmt::format("{} needs vpp of {} or more", schedule.name, schedule.vpp_min));
    }
  }
  if (!(o.max_memory > 0 && o.max_memory <= 1)) {
    throw Error(fmt::format("must be above 0 and at most 1: {}", o.max_memory), "--max-memory");
  }
  x.max_memory = o.max_memory;
  if (o.devices < 0) throw Error(fmt::format("must be at least 1: {}", o.devices), "--devices");
  x.devices = o.devices;
  r.space = o.space;
  return r;
}

}  // namespace meshwright::cli
