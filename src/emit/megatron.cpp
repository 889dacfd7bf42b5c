// Emits a plan for Megatron-LM: launch.sh, hostfile, ranks.csv (docs/emit.md).
#include <fmt/format.h>

#include <map>
#include <set>

#include "base/error.h"
#include "emit/emitter.h"
#include "emit/megatron_plan.h"
#include "emit/shell_words.h"

namespace meshwright {
namespace {

std::vector<std::string> why_not(const EmitInput& input) {
  return read_megatron_plan(input).faults;
}

/// Hosts in the order of their first rank, with their ranks.
struct HostRanks {
  std::string name;
  std::int64_t ranks = 0;
};

class Writer {
 public:
  Writer(const EmitInput& input, const MegatronPlan& plan) : in_(input), plan_(plan) {
    std::map<int, std::size_t> index;
    for (DeviceId device : plan.devices) {
      const int host = in_.cluster.device_host[device.index()];
      const auto [it, fresh] = index.emplace(host, hosts_.size());
      if (fresh) hosts_.push_back({in_.cluster.hosts[static_cast<std::size_t>(host)]});
      ++hosts_[it->second].ranks;
    }
  }

  std::vector<EmittedFile> files() const {
    return {{"launch.sh", script()}, {"hostfile", hostfile()}, {"ranks.csv", ranks()}};
  }

 private:
  std::string hostfile() const {
    std::string text;
    for (const HostRanks& host : hosts_) {
      text += fmt::format("{} slots={}\n", host.name, host.ranks);
    }
    return text;
  }

  std::string ranks() const {
    std::vector<int> seen(in_.cluster.hosts.size(), 0);
    std::vector<int> local;
    for (int host : in_.cluster.device_host)
      local.push_back(seen[static_cast<std::size_t>(host)]++);
    std::string text = "rank,host,local_device,pp,dp,cp,tp,ep,etp\n";
    for (std::size_t r = 0; r < plan_.devices.size(); ++r) {
      const std::size_t device = plan_.devices[r].index();
      const auto host = static_cast<std::size_t>(in_.cluster.device_host[device]);
      const RankPlace p = place_of(plan_.grid, static_cast<std::int64_t>(r), plan_.order);
      text += fmt::format("{},{},{},{},{},{},{},{},{}\n", r, in_.cluster.hosts[host], local[device],
                          p.pp, p.dp, p.cp, p.tp, p.ep, p.etp);
    }
    return text;
  }

  static std::string array(std::string_view name, const MegatronArgs& args) {
    std::string text = fmt::format("{}=(", name);
    for (const std::string& word : to_argv(args)) {
      text += (word.starts_with("--") ? "\n  " : " ") + quote_shell_word(word);
    }
    return text + "\n)\n";
  }

  std::string head() const {
    std::string text = "#!/usr/bin/env bash\n";
    text += fmt::format("# {} on {}: {}\n", comment(in_.model_name), comment(in_.cluster.name),
                        comment(to_string(in_.plan.degrees)));
    text += "# For Megatron-LM 0.20 (core_v0.20); written by meshwright.\n#\n";
    if (hosts_.size() == 1) {
      text += "#   ./launch.sh [more options]\n";
    } else if (plan_.torchrun) {
      text += fmt::format(
          "# On every host of hostfile, in its order, with NODE_RANK 0 to {}:\n"
          "#   NODE_RANK=0 MASTER_ADDR={} ./launch.sh [more options]\n",
          hosts_.size() - 1, hosts_[0].name);
    } else {
      text += fmt::format(
          "# On every host of hostfile, with the name that it has there:\n"
          "#   HOST={0} MASTER_ADDR={0} ./launch.sh [more options]\n"
          "# Ranks are placed as ranks.csv says, which torchrun cannot do.\n",
          hosts_[0].name);
    }
    text += R"(# Read from the environment:
#   MEGATRON_PATH                    checkout of Megatron-LM (default: this directory)
#   DATA_PATH, TOKENIZER_TYPE, TOKENIZER_MODEL
#                                    training data; without DATA_PATH: made-up tokens
#   TRAIN_ITERS, LR                  length of the run and learning rate
#   CHECKPOINT_PATH                  where to save and load
)";
    text +=
        plan_.whole.position_embedding_type == "rope"
            ? "#   ROTARY_BASE, NORM_EPSILON        numbers of the model that no plan depends on\n"
            : "#   NORM_EPSILON                     a number of the model that no plan depends "
              "on\n";
    return text + "set -euo pipefail\n";
  }

  static std::string comment(std::string_view text) {
    std::string line(text.substr(0, 200));
    for (char& c : line) {
      if (static_cast<unsigned char>(c) < 32) c = ' ';
    }
    return line;
  }

  std::string environment() const {
    std::string text;
    for (const auto& [name, value] : plan_.env) {
      text += fmt::format("export {}={}\n", name, quote_shell_word(value));
    }
    if (plan_.unset_max_connections) {
      text += "unset CUDA_DEVICE_MAX_CONNECTIONS  # FSDP refuses 1.\n";
    }
    return text.empty() ? text : "\n" + text;
  }

  std::string run_options() const {
    std::string text = "run=(\n";
    if (plan_.whole.position_embedding_type == "rope") {
      text += "  --rotary-base \"${ROTARY_BASE:-10000}\"\n";
    }
    text += R"(  --norm-epsilon "${NORM_EPSILON:-1e-5}"
  --train-iters "${TRAIN_ITERS:-100}"
  --lr "${LR:-1e-4}"
  --log-interval 1
  --log-throughput
)
if [[ -n "${CHECKPOINT_PATH:-}" ]]; then
  run+=(--save "$CHECKPOINT_PATH" --load "$CHECKPOINT_PATH")
fi
data=(--mock-data --tokenizer-type NullTokenizer)
if [[ -n "${DATA_PATH:-}" ]]; then
  data=(
    --data-path $DATA_PATH
    --tokenizer-type "${TOKENIZER_TYPE:-HuggingFaceTokenizer}"
    --tokenizer-model "${TOKENIZER_MODEL:-}"
  )
fi
)";
    return text;
  }

  std::string start() const {
    const std::string options =
        "\"${model[@]}\" \"${layout[@]}\" \"${run[@]}\" \"${data[@]}\" \"$@\"";
    const std::string master = hosts_.size() == 1 ? "localhost" : hosts_[0].name;
    if (plan_.torchrun) {
      const std::string node =
          hosts_.size() == 1 ? "0" : "\"${NODE_RANK:-${SLURM_NODEID:?set NODE_RANK}}\"";
      return fmt::format(
          "cd \"${{MEGATRON_PATH:-.}}\"\n"
          "exec torchrun --nnodes {} --nproc-per-node {} --node-rank {} \\\n"
          "  --master-addr \"${{MASTER_ADDR:-{}}}\" --master-port \"${{MASTER_PORT:-29500}}\" \\\n"
          "  pretrain_gpt.py {}\n",
          hosts_.size(), hosts_[0].ranks, node, master, options);
    }
    return fmt::format(
        R"sh(ranks="$(cd "$(dirname "$0")" && pwd)/ranks.csv"
host="${{HOST:-$(hostname -s)}}"
cd "${{MEGATRON_PATH:-.}}"
started=()
while IFS=, read -r rank on device _; do
  [[ "$on" == "$host" ]] || continue
  WORLD_SIZE={} RANK="$rank" LOCAL_RANK="$device" \
    MASTER_ADDR="${{MASTER_ADDR:-{}}}" MASTER_PORT="${{MASTER_PORT:-29500}}" \
    python3 pretrain_gpt.py {} &
  started+=("$!")
done < "$ranks"
if [[ ${{#started[@]}} -eq 0 ]]; then
  echo "ranks.csv has no rank for host '$host'; set HOST to a name in hostfile" >&2
  exit 1
fi
status=0
for process in "${{started[@]}}"; do wait "$process" || status=$?; done
exit "$status"
)sh",
        plan_.devices.size(), master, options);
  }

  std::string script() const {
    return head() + environment() + "\n# The model.\n" + array("model", plan_.model) +
           "\n# The plan.\n" + array("layout", plan_.layout) + "\n# The run.\n" + run_options() +
           "\n" + start();
  }

  const EmitInput& in_;
  const MegatronPlan& plan_;
  std::vector<HostRanks> hosts_;
};

std::vector<EmittedFile> emit(const EmitInput& input) {
  const MegatronPlanReading reading = read_megatron_plan(input);
  if (!reading.faults.empty()) {
    throw Error(reading.faults[0], "plan for Megatron-LM");
  }
  return Writer(input, reading.plan).files();
}

}  // namespace

const Emitter kMegatronEmitter = {
    .name = "megatron",
    .summary = "Megatron-LM 0.20: launch script with all options, host file, map of ranks",
    .why_not = why_not,
    .emit = emit,
};

}  // namespace meshwright
