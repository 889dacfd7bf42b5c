#include "api/measured_sources.h"

namespace meshwright {
namespace {

constexpr double kGiB = 1073741824.0;

constexpr EngineVariant kScaling[] = {
    {.notes = "+ RMS kernel", .engine = "scaling-rms"},
    {.notes = "label='torch'", .engine = "scaling-torch"},
    {.notes = "label='flash_attentionv1", .engine = "scaling-flash1"},
};
// Peak memory says that runs with stages gather sequence-parallel operands again in the backward
// pass, and that those without keep them.
constexpr EngineVariant kNanotron[] = {{.pipelined = true, .engine = "nanotron-pipeline"}};
constexpr EngineVariant kTorchtitan[] = {{.notes = "eager;", .engine = "torchtitan-eager"}};

constexpr MeasuredSource kSources[] = {
    {.match = "Efficient Parallelization Layouts",
     .name = "aleph_alpha_layouts",
     .engine = "scaling",
     .variants = kScaling,
     .network = "ib200x8",
     .zero_stage = 1,
     .half_gradients = true,
     .tied = false},
    {.match = "HF ultra-scale playbook",
     .name = "playbook_nanotron",
     .engine = "nanotron",
     .variants = kNanotron,
     .network = "efa100x32",
     .sequence_parallel = true,
     .cut = CutRule::kWeighted,
     .memory_unit = kGiB},
    {.match = "BigScience tr3m",
     .name = "bloom_bigscience",
     .engine = "megatron-deepspeed",
     .network = "opa100x4",
     .precision = "fp16",
     .attention = "unfused",
     .dropout = true,
     .half_gradients = true,
     .pads_vocab = true,
     .memory = MemoryMeasure::kDevice,
     .memory_unit = kGiB},
    {.match = "vTrain",
     .name = "vtrain_ground_truth",
     .engine = "megatron-deepspeed",
     .network = "",
     .precision = "fp16",
     .attention = "unfused",
     .dropout = true,
     .half_gradients = true,
     .pads_vocab = true},
    {.match = "AMP (NeurIPS 2022)",
     .name = "amp",
     .engine = "megatron-deepspeed",
     .network = "eth50",
     .precision = "fp16",
     .recompute = "full",  // Its example scripts checkpoint; its largest runs fit only so.
     .attention = "unfused",
     .dropout = true,
     .half_gradients = true,
     .pads_vocab = true},
    {.match = "mosaicml/llm-foundry",
     .name = "llm_foundry",
     .engine = "fsdp",
     .network = "roce200x8",
     .zero_stage = 3},
    {.match = "InternEvo",
     .name = "internevo",
     .engine = "internevo",
     .network = "roce200x4",
     .half_gradients = true,
     .tied = false,
     .vocab = 103168,
     .memory = MemoryMeasure::kDevice,
     .memory_unit = kGiB},
    {.match = "torchtitan",
     .name = "torchtitan",
     .engine = "torchtitan",
     .variants = kTorchtitan,
     .network = "ib400x8",
     .recompute = "selective",
     .zero_stage = 3,
     .sequence_parallel = true,
     .tied = false,
     .memory_unit = kGiB},
    {.match = "Zero Bubble Pipeline Parallelism",
     .name = "zero_bubble",
     .engine = "megatron",
     .network = "roce200x8",
     .precision = "fp16",
     .attention = "unfused",
     .zero_stage = 1,
     .dropout = true,
     .half_gradients = true,
     .pads_vocab = true,
     .memory_unit = kGiB},
    {.match = "Vocabulary Parallelism",
     .name = "vocab_parallel",
     .engine = "megatron",
     .network = "roce200x8",
     .precision = "fp16",
     .zero_stage = 1,
     .pads_vocab = true,
     .tied = false,
     .memory_unit = kGiB},
    {.match = "Megatron-LM functional-test",
     .name = "megatron_lm_golden",
     .engine = "megatron",
     .network = "",
     .pads_vocab = true,
     .memory = MemoryMeasure::kAllocated,
     .memory_of_last_stage = true,
     .min_hidden_timed = 1024},
    {.match = "Korthikanti et al. 2022",
     .name = "korthikanti_2022",
     .engine = "megatron",
     .network = "",
     .precision = "fp16",
     .attention = "unfused",
     .dropout = true},
};

constexpr MeasuredSource kUnknown = {.match = "", .name = "", .engine = "default", .network = ""};

constexpr NetworkText kNetworks[] = {
    {"4x100Gb RoCE", "roce100x4"},
    {"EFA 32x100Gb/node", "efa100x32"},
    {"EFA 4x100Gb/node", "efa100x4"},
    {"EFA v4 8x400Gb/node", "efa400x8"},
    {"EFA v3", "efa200x16"},
    {"8x400G BlueField-3 RoCE", "roce400x8"},
    {"16-port RoCE per node", "roce200x16"},
    {"1600 Gbps/node RoCE", "roce200x8"},
    {"400 Gb/s RDMA per GPU", "roce400x8"},
    {"400 Gb/s CX-7 per GPU", "ib400x8"},
    {"HF science cluster", "efa100x32"},
    {"Omni-Path", "opa100x4"},
    {"g4dn.12xlarge", "eth50"},
    {"RoCE RDMA between nodes", "roce200x8"},
    {"HDR", "ib200x8"},
    {"NDR", "ib400x8"},
};

}  // namespace

std::span<const MeasuredSource> measured_sources() { return kSources; }

const MeasuredSource& measured_source(std::string_view source) {
  for (const MeasuredSource& s : kSources) {
    if (source.starts_with(s.match)) return s;
  }
  return kUnknown;
}

std::span<const NetworkText> network_texts() { return kNetworks; }

}  // namespace meshwright
