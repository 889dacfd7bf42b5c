#include "emit/megatron_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "base/spelling.h"
#include "emit/megatron_model.h"
#include "emit/megatron_rules.h"

namespace meshwright {
namespace {

/// Compute capability by architecture; what is not listed counts as Hopper.
int compute_capability(const DeviceKind& kind) {
  constexpr std::pair<std::string_view, int> kArchitectures[] = {
      {"volta", 7}, {"turing", 7}, {"ampere", 8}, {"ada", 8}, {"hopper", 9}, {"blackwell", 10}};
  for (const auto& [name, capability] : kArchitectures) {
    if (kind.architecture.starts_with(name)) return capability;
  }
  return 9;
}

/// Letters, digits, dots, dashes, underscores and colons: what files and scripts take as it is.
bool is_host_name(std::string_view name) {
  return !name.empty() && name.front() != '-' && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_' || c == ':';
  });
}

/// Where every device of a cluster sits.
struct LocalDevices {
  std::vector<int> index;  ///< Of a device on its host.

  explicit LocalDevices(const Cluster& cluster) {
    std::vector<int> seen(cluster.hosts.size(), 0);
    for (int host : cluster.device_host) index.push_back(seen[static_cast<std::size_t>(host)]++);
  }
};

class PlanReader {
 public:
  explicit PlanReader(const EmitInput& input) : in_(input) {}

  MegatronPlanReading read() {
    DecoderReading model = read_decoder(in_.graph, in_.segments);
    GridReading grid = read_grid(in_.plan);
    append(std::move(model.faults));
    append(std::move(grid.faults));
    if (!faults_.empty()) return finish();
    plan_.grid = grid.grid;

    append(set_megatron_model(model.model, plan_.model));
    set_degrees();
    set_pipeline();
    set_training();
    set_state();
    set_recompute();
    set_platform();
    if (faults_.empty()) choose_order();
    return finish();
  }

 private:
  void say(std::string fault) { faults_.push_back(std::move(fault)); }
  void append(std::vector<std::string> faults) {
    for (std::string& fault : faults) say(std::move(fault));
  }
  MegatronPlanReading finish() { return {std::move(plan_), std::move(faults_)}; }

  void set_degrees() {
    const PlanGrid& g = plan_.grid;
    MegatronArgs& a = plan_.layout;
    a.tensor_model_parallel_size = g.tp;
    a.sequence_parallel = g.sequence_parallel && g.tp > 1;
    a.pipeline_model_parallel_size = g.pp;
    a.context_parallel_size = g.cp;
    if (plan_.model.num_experts) {
      a.expert_model_parallel_size = g.ep;
      a.expert_tensor_parallel_size = g.etp;
    }
    a.micro_batch_size = g.micro_batch;
    a.global_batch_size = in_.plan.global_batch;
    // Transformer Engine passes keys and values around a ring only where every query sees all
    // earlier keys.
    if (g.cp > 1 && plan_.model.find_other("--window-size") != nullptr) {
      say("windows of attention do not go with context parallelism in a ring");
    }
  }

  /// Units of Megatron's layout per chunk.
  void set_pipeline() {
    const PlanGrid& g = plan_.grid;
    const std::string& schedule = in_.plan.schedule;
    if (g.pp == 1) {
      if (g.vpp > 1) say(fmt::format("{} chunks on one stage", g.vpp));
      plan_.layers = {{*plan_.model.num_layers}};
      return;
    }
    if (schedule != "1f1b" && schedule != "interleaved") {
      say(fmt::format("schedule '{}' is none of Megatron's (1f1b and interleaved)", schedule));
    } else if (schedule == "1f1b" && g.vpp > 1) {
      say(fmt::format("{} chunks per stage run interleaved, not 1f1b", g.vpp));
    }
    MegatronLayout layout;
    std::size_t first = 0, last = in_.segments.size();
    while (first < last && !in_.segments[first].is_layer) ++first;
    while (last > first && !in_.segments[last - 1].is_layer) --last;
    for (const Chunk& chunk : in_.plan.chunks) {
      std::string units;
      for (auto i = static_cast<std::size_t>(chunk.first_segment);
           i < static_cast<std::size_t>(chunk.last_segment); ++i) {
        if (i >= first && i < last) {
          units += is_prediction_module(in_.graph, in_.segments[i]) ? 'm' : 't';
        } else if (units.empty() || (units.back() != 'E' && units.back() != 'L')) {
          units += i < first ? 'E' : 'L';
        }
      }
      layout.stages.push_back(std::move(units));
    }
    plan_.layers = layers_of(layout, g.pp);
    plan_.layout.pipeline_model_parallel_layout = print_megatron_layout(layout);
  }

  void set_training() {
    const Training& t = in_.plan.training;
    MegatronArgs& a = plan_.layout;
    a.bf16 = t.dtype == DType::kBf16 || t.dtype == DType::kF8;
    a.fp16 = t.dtype == DType::kF16;
    if (t.dtype == DType::kF64) say("Megatron-LM does not train in f64");
    if (t.dtype == DType::kF8) a.other.push_back({"--fp8-format", {"hybrid"}});
    if (t.gradient_dtype == DType::kBf16 && a.bf16) {
      a.other.push_back({"--grad-reduce-in-bf16", {}});
    } else if (t.gradient_dtype == DType::kF32) {
      if (a.fp16) a.other.push_back({"--accumulate-allreduce-grads-in-fp32", {}});
    } else {
      say(fmt::format("gradients are not accumulated in {} when training in {}",
                      dtype_name(t.gradient_dtype), dtype_name(t.dtype)));
    }
    // Megatron's adam decays weights apart from the gradient, as AdamW does.
    a.optimizer = t.optimizer == "sgd" ? "sgd" : "adam";
    if (t.optimizer != "sgd" && t.optimizer != "adam" && t.optimizer != "adamw") {
      say(fmt::format("optimizer {} is none of sgd, adam and adamw", in_quotes(t.optimizer)));
    }
  }

  void set_state() {
    const PlanGrid& g = plan_.grid;
    MegatronArgs& a = plan_.layout;
    const bool replicas = g.dp * g.cp > 1 || g.expert_dp() > 1;
    if (replicas) a.overlap_grad_reduce = true;
    if (g.state == StateSharding::kNone) return;
    if (*a.optimizer == "sgd") {
      say("the distributed optimizer, which shards state, takes Adam and not SGD");
    }
    a.use_distributed_optimizer = true;
    if (replicas) a.overlap_param_gather = true;
    if (g.state != StateSharding::kZero1) {
      a.use_megatron_fsdp = true;
      a.data_parallel_sharding_strategy =
          g.state == StateSharding::kZero2 ? "optim_grads" : "optim_grads_params";
      a.ckpt_format = "fsdp_dtensor";
      a.no_gradient_accumulation_fusion = true;
    }
    const std::int64_t instances = g.dp * g.cp / g.state_group;
    if (plan_.model.num_experts && g.expert_state_group * instances != g.expert_dp()) {
      say(
          fmt::format("{} replicas share a copy of an expert's state; Megatron-LM keeps as many "
                      "copies as of the dense state, {}, of {} replicas",
                      g.expert_state_group, instances, g.expert_dp()));
    }
    a.num_distributed_optimizer_instances = instances;
  }

  void set_recompute() {
    MegatronArgs& a = plan_.layout;
    if (plan_.grid.recompute == Recompute::kSelective) {
      a.recompute_granularity = "selective";
      a.recompute_modules = {"core_attn"};
    } else if (plan_.grid.recompute == Recompute::kFull) {
      a.recompute_granularity = "full";
      a.recompute_method = "uniform";
      a.recompute_num_layers = 1;
    }
  }

  void set_platform() {
    const Cluster& cluster = in_.cluster;
    plan_.devices = rank_devices(in_.plan, plan_.grid, RankOrder::kDpBeforePp);
    std::set<int> kinds, hosts;
    for (DeviceId device : plan_.devices) {
      kinds.insert(cluster.device_kind[device.index()]);
      hosts.insert(cluster.device_host[device.index()]);
    }
    for (int h : hosts) {
      const std::string& name = cluster.hosts[static_cast<std::size_t>(h)];
      if (is_host_name(name)) continue;
      say(fmt::format("{} is no name of a host", in_quotes(name)));
      break;
    }
    for (int k : kinds) {
      const DeviceKind& kind = cluster.kinds[static_cast<std::size_t>(k)];
      platform_.compute_capability =
          k == *kinds.begin() ? compute_capability(kind)
                              : std::min(platform_.compute_capability, compute_capability(kind));
      if (kind.vendor != "nvidia" && kind.vendor != "amd") {
        say(fmt::format("Megatron-LM runs on CUDA devices, and {} is none", kind.name));
        continue;
      }
      if (plan_.layout.bf16 && kind.bf16.value == 0) {
        say(fmt::format("{} has no bf16", kind.name));
      }
      if (in_.plan.training.dtype == DType::kF8 && kind.fp8.value == 0) {
        say(fmt::format("{} has no fp8", kind.name));
      }
    }
  }

  /// torchrun numbers the ranks of a host consecutively and starts equally many everywhere.
  bool torchrun_places(const std::vector<DeviceId>& devices) const {
    const LocalDevices local(in_.cluster);
    const auto host = [&](std::size_t rank) {
      return in_.cluster.device_host[devices[rank].index()];
    };
    std::set<int> hosts;
    for (std::size_t r = 0; r < devices.size(); ++r) hosts.insert(host(r));
    if (devices.size() % hosts.size() != 0) return false;
    const std::size_t each = devices.size() / hosts.size();
    for (std::size_t r = 0; r < devices.size(); ++r) {
      if (host(r) != host(r / each * each)) return false;
      if (local.index[devices[r].index()] != static_cast<int>(r % each)) return false;
    }
    return true;
  }

  // The rank order that torchrun can place; without one, ranks are started one by one.
  void choose_order() {
    const PlanGrid& g = plan_.grid;
    std::vector<RankOrder> orders = {RankOrder::kDpBeforePp};
    if (g.pp > 1 && g.dp > 1) {
      orders.insert(in_.plan.degrees.pp_inside_dp ? orders.begin() : orders.end(),
                    RankOrder::kPpBeforeDp);
    }
    for (RankOrder order : orders) {
      std::vector<DeviceId> devices = rank_devices(in_.plan, g, order);
      if (!torchrun_places(devices) || !accepted(order).empty()) continue;
      plan_.devices = std::move(devices);
      return;
    }
    plan_.torchrun = false;
    append(accepted(RankOrder::kDpBeforePp));
  }

  /// Completes the words for an order and asks Megatron's rules. Returns their complaints.
  std::vector<std::string> accepted(RankOrder order) {
    plan_.order = order;
    plan_.layout.use_tp_pp_dp_mapping = order == RankOrder::kPpBeforeDp;
    std::vector<std::string> words = to_argv(plan_.model);
    const std::vector<std::string> more = to_argv(plan_.layout);
    words.insert(words.end(), more.begin(), more.end());
    plan_.whole = parse_megatron_args(words);
    MW_CHECK(parse_megatron_args(to_argv(plan_.whole)) == plan_.whole, "options changed in print");

    const std::int64_t ranks = plan_.grid.ranks();
    if (ranks > kMaxMegatronWorld) return {fmt::format("{} ranks are too many", ranks)};
    plan_.env = check_megatron(plan_.whole, ranks, {}, platform_).required_env;
    plan_.unset_max_connections = plan_.whole.use_megatron_fsdp;
    const MegatronVerdict verdict = check_megatron(plan_.whole, ranks, plan_.env, platform_);
    std::vector<std::string> complaints;
    for (const MegatronFinding& f : verdict.violations) {
      complaints.push_back(
          fmt::format("Megatron-LM refuses it (rule {}): {}; {}", f.rule, f.message, f.legal));
    }
    for (const MegatronFinding& f : verdict.would_misbehave) {
      if (verdict.fine) continue;
      complaints.push_back(fmt::format("Megatron-LM accepts it and misbehaves (rule {}): {}; {}",
                                       f.rule, f.message, f.legal));
    }
    if (complaints.empty()) {
      MW_CHECK(verdict.layers == plan_.layers, "Megatron builds another cut than the plan's");
      MW_CHECK(verdict.data_parallel == plan_.grid.dp, "another data-parallel degree");
      MW_CHECK(verdict.micro_batches == in_.plan.micro_batches, "other micro-batches");
    }
    return complaints;
  }

  const EmitInput& in_;
  MegatronPlan plan_;
  MegatronPlatform platform_;
  std::vector<std::string> faults_;
};

}  // namespace

MegatronPlanReading read_megatron_plan(const EmitInput& input) { return PlanReader(input).read(); }

}  // namespace meshwright
