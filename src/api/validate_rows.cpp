#include "api/validate_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/csv.h"
#include "base/error.h"
#include "cluster/cluster.h"

namespace meshwright {
namespace {

// Thrown while a row is mapped: the reason why it is left out.
struct Skip {
  std::string reason;
};

constexpr std::int64_t kMaxCount = 1000000000000;

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return result;
}

class Row {
 public:
  Row(const CsvTable& table, const CsvTable::Row& row) : table_(table), row_(row) {}

  std::string place() const { return fmt::format("{}:{}", table_.source, row_.line); }
  const std::string& text(std::string_view column) const {
    static const std::string kBlank;
    const int index = table_.column(column);
    return index < 0 ? kBlank : row_.cells[static_cast<std::size_t>(index)];
  }
  std::optional<double> number(std::string_view column) const {
    const std::string& cell = text(column);
    if (cell.empty()) return std::nullopt;
    double value = 0;
    const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (error != std::errc() || end != cell.data() + cell.size() || !std::isfinite(value) ||
        value < 0 || value > 1e15) {
      throw Error(fmt::format("column '{}' must be a number of at least 0: '{}'", column,
                              cell.substr(0, 40)),
                  place());
    }
    return value;
  }
  // A count; blank = `fallback`.
  std::int64_t count(std::string_view column, std::int64_t fallback) const {
    const std::optional<double> value = number(column);
    if (!value) return fallback;
    if (*value != std::floor(*value) || *value > kMaxCount) {
      throw Error(
          fmt::format("column '{}' must be a whole number up to 1e12: '{}'", column, text(column)),
          place());
    }
    return static_cast<std::int64_t>(*value);
  }
  std::int64_t required(std::string_view column) const {
    const std::int64_t value = count(column, 0);
    if (value == 0) throw Skip{fmt::format("{} not given", column)};
    return value;
  }
  int degree(std::string_view column) const {
    const std::int64_t value = count(column, 1);
    if (value < 1 || value > 1000000) {
      throw Error(fmt::format("column '{}' must be between 1 and 1000000: {}", column, value),
                  place());
    }
    return static_cast<int>(value);
  }
  // The value after "key" in the notes, up to a blank, comma, semicolon or closing bracket.
  std::string_view note(std::string_view key) const {
    const std::string_view notes = text("notes");
    const auto at = notes.find(key);
    if (at == std::string_view::npos) return {};
    const auto begin = at + key.size();
    return notes.substr(begin, notes.find_first_of(" ,;)", begin) - begin);
  }
  std::int64_t note_count(std::string_view key) const {
    const std::string_view value = note(key);
    std::int64_t number = 0;
    std::from_chars(value.data(), value.data() + value.size(), number);
    return std::clamp<std::int64_t>(number, 0, kMaxCount);
  }

 private:
  const CsvTable& table_;
  const CsvTable::Row& row_;
};

GptSizes model_sizes(const Row& row, const MeasuredSource& source, int tp) {
  GptSizes z;
  const std::string name = lower(row.text("model"));
  // Public configurations of models that a table names without sizes.
  struct Named {
    std::string_view name;
    std::int64_t layers, hidden, heads, ffn;
  };
  constexpr Named kNamed[] = {{"internlm-7b", 32, 4096, 32, 11008},
                              {"internlm-20b", 60, 5120, 40, 13824}};
  Named known{};
  for (const Named& n : kNamed) {
    if (name == n.name) known = n;
  }
  z.layers = row.count("layers", known.layers);
  z.hidden = row.count("hidden", known.hidden);
  z.heads = row.count("heads", known.heads);
  z.ffn = row.count("ffn", known.ffn);
  if (z.layers == 0 || z.hidden == 0) throw Skip{"layers or hidden not given"};
  // GPT-2's head size.
  if (z.heads == 0) z.heads = std::max<std::int64_t>(z.hidden / 64, 1);
  if (z.hidden % z.heads != 0) throw Skip{"heads do not divide hidden"};
  z.kv_heads = row.count("kv_heads", z.heads);
  z.vocab = row.count("vocab", source.vocab);
  z.gated = contains(name, "llama") || contains(name, "internlm") || contains(name, "mistral") ||
            contains(row.text("notes"), "swiglu=True");
  if (z.vocab == 0) z.vocab = 1;  // One layer alone.
  if (source.pads_vocab) {
    const std::int64_t multiple = std::int64_t{128} * tp;
    z.vocab = (z.vocab + multiple - 1) / multiple * multiple;
  }
  const std::string& notes = row.text("notes");
  z.tied = source.tied;
  if (contains(notes, "tied embedding") || contains(notes, "tie_word_embeddings=True"))
    z.tied = true;
  if (contains(notes, "untie") || contains(notes, "tie_word_embeddings=False")) z.tied = false;
  z.experts = row.note_count("num-experts=");
  if (z.experts > 0) {
    z.top_k = std::max<std::int64_t>(row.note_count("moe-router-topk="), 1);
    z.expert_ffn = row.note_count("moe-ffn-hidden-size=");
  }
  return z;
}

std::string cluster_text(const Row& row, const MeasuredSource& source, int gpus) {
  const std::string& gpu = row.text("gpu");
  if (gpu.empty()) throw Skip{"gpu not given"};
  std::string device;
  try {
    device = find_device(gpu).name;
  } catch (const Error&) {
    // "A100-80GB SXM4" and the like: without the last word.
    const auto blank = gpu.find(' ');
    if (blank == std::string::npos) throw Skip{"device not in the catalogue"};
    try {
      device = find_device(std::string_view(gpu).substr(0, blank)).name;
    } catch (const Error&) {
      throw Skip{"device not in the catalogue"};
    }
  }
  const int per_host = std::min(static_cast<int>(row.count("gpus_per_node", 8)), gpus);
  if (per_host < 1 || per_host > 72) throw Skip{"hosts of that many devices are not modelled"};
  if (gpus % per_host != 0) throw Skip{"devices do not fill whole hosts"};
  std::string text = fmt::format("{}:{}x{}", device, gpus / per_host, per_host);
  std::string_view network = source.network;
  for (const NetworkText& known : network_texts()) {
    if (contains(row.text("interconnect"), known.contains)) {
      network = known.network;
      break;
    }
  }
  if (gpus > per_host && !network.empty()) text += fmt::format("@{}", network);
  return text;
}

// "[0, 15, 30]" in units of which two stand before the first layer and `total - 2 - layers` after
// the last (DeepSpeed's pipeline form of Megatron: embedding, transpose, layers, …).
std::vector<int> cut_by_boundaries(std::string_view list, std::int64_t layers, int chunks) {
  std::vector<std::int64_t> bounds;
  while (!list.empty() && bounds.size() < 10000) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(list.data(), list.data() + list.size(), value);
    if (error != std::errc() || value < 0 || value > kMaxCount) break;
    bounds.push_back(std::clamp<std::int64_t>(value - 2, 0, layers));
    list.remove_prefix(static_cast<std::size_t>(end - list.data()));
    list.remove_prefix(std::min(list.find_first_of("0123456789]"), list.size()));
  }
  if (static_cast<int>(bounds.size()) != chunks + 1 || bounds.back() != layers) return {};
  std::vector<int> counts;
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    if (bounds[i + 1] < bounds[i]) return {};
    counts.push_back(static_cast<int>(bounds[i + 1] - bounds[i]));
  }
  return counts;
}

// Layers moved between stages until the slowest is as fast as can be, by FLOPs (the "REDIS" of
// Yeung et al. 2024).
std::vector<int> cut_by_flops(const GptSizes& z, double seq, int chunks) {
  const double h = static_cast<double>(z.hidden);
  const double layer = 72 * h * h + 12 * seq * h;
  const double head = 6 * h * static_cast<double>(z.vocab);
  const auto layers = static_cast<int>(z.layers);
  // Layers the last stage can take under a limit of k layers elsewhere.
  for (int most = 1; most <= layers; ++most) {
    const double limit = layer * most;
    const int last = static_cast<int>(std::clamp((limit - head) / layer, 0.0, double(most)));
    if ((chunks - 1) * most + last < layers) continue;
    const int others = layers - last;
    std::vector<int> counts;
    for (int c = 0; c + 1 < chunks; ++c) {
      counts.push_back(others / (chunks - 1) + (c < others % (chunks - 1)));
    }
    counts.push_back(last);
    return counts;
  }
  return {};
}

std::vector<int> chunk_layers(const Row& row, const MeasuredSource& source, const GptSizes& sizes,
                              double seq, int chunks) {
  const std::string& notes = row.text("notes");
  const auto layers = static_cast<int>(sizes.layers);
  if (const auto at = notes.find("partition boundaries=["); at != std::string::npos) {
    return cut_by_boundaries(std::string_view(notes).substr(at + 22), sizes.layers, chunks);
  }
  if (contains(notes, "one transformer layer fewer") && chunks > 1 && (layers + 2) % chunks == 0) {
    std::vector<int> counts(static_cast<std::size_t>(chunks), (layers + 2) / chunks);
    --counts.front();
    --counts.back();
    return counts;
  }
  if (contains(notes, "method=REDIS") && chunks > 1) return cut_by_flops(sizes, seq, chunks);
  return cut_layers(source.cut, sizes, chunks);
}

void refuse_what_is_not_modelled(const Row& row) {
  const std::string& notes = row.text("notes");
  if (const std::string_view schedule = row.note("schedule=");
      !schedule.empty() && schedule != "1F1B" && schedule != "1F1B-I") {
    throw Skip{"schedule not simulated: " + std::string(schedule)};
  }
  if (contains(notes, "vocabulary layer sharded over all stages"))
    throw Skip{"vocabulary layer sharded over pipeline stages"};
  if (contains(notes, "INCONSISTENT")) throw Skip{"inconsistent by its own notes"};
  if (contains(notes, "borderline OOM")) throw Skip{"borderline out of memory by its own notes"};
  if (contains(notes, "not distinguished")) throw Skip{"failed, cause not known"};
  if (contains(notes, "multi-latent-attention=True")) throw Skip{"latent attention"};
  if (contains(notes, "cuda-graph")) throw Skip{"CUDA graphs"};
  if (contains(notes, "offload")) throw Skip{"offloading"};
  if (notes.starts_with("async TP")) throw Skip{"asynchronous tensor parallelism"};
  if (contains(notes, "layer AC")) throw Skip{"recomputation of every other layer"};
  if (contains(notes, "moe-shared-expert")) throw Skip{"shared experts"};
  if (contains(lower(row.text("model")), "nemotron")) throw Skip{"model family not built"};
}

Training training_of(const Row& row, const MeasuredSource& source) {
  Training training;
  std::string precision = lower(row.text("precision"));
  if (precision.empty()) precision = source.precision;
  if (contains(precision, "fp8")) {
    if (contains(precision, "rowwise")) throw Skip{"row-wise scaled fp8"};
    training.dtype = DType::kF8;
  } else if (contains(precision, "bf16")) {
    training.dtype = DType::kBf16;
  } else if (precision == "fp16") {
    training.dtype = DType::kF16;
  } else if (precision == "fp32" || precision == "tf32") {
    training.dtype = DType::kF32;
  } else {
    throw Skip{"precision not modelled: " + precision};
  }
  const bool half = source.half_gradients || contains(row.text("notes"), "mp_mode=PURE");
  if (half && training.dtype != DType::kF32) {
    training.gradient_dtype = training.dtype == DType::kF8 ? DType::kBf16 : training.dtype;
  }
  return training;
}

Degrees degrees_of(const Row& row, const MeasuredSource& source, const GptSizes& sizes, int gpus) {
  Degrees d;
  d.tp = row.degree("tp");
  d.pp = row.degree("pp");
  d.vpp = row.degree("vpp");
  d.cp = row.degree("cp");
  d.ep = row.degree("ep");
  const std::int64_t model = std::int64_t{d.tp} * d.pp * d.cp;
  if (model > gpus || gpus % model != 0) throw Skip{"degrees do not fill the devices"};
  d.dp = static_cast<int>(row.count("dp", gpus / model));
  if (model * d.dp != gpus) throw Skip{"degrees do not fill the devices"};
  if (contains(row.text("notes"), "one transformer layer per chunk") && d.pp > 1) {
    d.vpp = static_cast<int>((sizes.layers + 2) / d.pp);
  }
  if (const auto etp = row.note_count("expert-tensor-parallel-size="); etp > 0) {
    d.etp = static_cast<int>(std::min<std::int64_t>(etp, gpus));
  } else if (sizes.experts > 0) {
    d.etp = d.tp;
  }
  d.micro_batch = std::max<std::int64_t>(row.count("micro_batch", 1), 1);
  const std::string sequence = lower(row.text("sequence_parallel"));
  d.sp = d.tp > 1 && (sequence.empty() ? source.sequence_parallel : sequence == "true");
  const std::int64_t zero = row.count("zero_stage", source.zero_stage);
  if (zero > 3)
    throw Error(fmt::format("column 'zero_stage' must be 0 to 3: {}", zero), row.place());
  d.zero = static_cast<StateSharding>(zero);
  if (d.dp * d.cp == 1 && d.zero != StateSharding::kZero3) d.zero = StateSharding::kNone;
  if (const std::int64_t group = row.note_count("zero1 group size: ");
      group > 1 && group < d.dp * d.cp && d.zero != StateSharding::kNone) {
    d.zero_group = static_cast<int>(group);
  }
  const std::string recompute = lower(row.text("recompute"));
  d.recompute = parse_recompute(recompute.empty() ? std::string(source.recompute) : recompute);
  return d;
}

MeasuredRun map_row(const Row& row, const MeasuredSource& source) {
  refuse_what_is_not_modelled(row);
  MeasuredRun run;
  run.place = row.place();
  run.source = source.name.empty() ? row.text("source").substr(0, 60) : std::string(source.name);
  run.engine = source.engine;
  run.model = row.text("model");
  run.gpu = row.text("gpu");
  run.gpus = static_cast<int>(std::min<std::int64_t>(row.required("gpus"), 1 << 20));
  const std::string& notes = row.text("notes");
  run.sizes = model_sizes(row, source, row.degree("tp"));
  run.degrees = degrees_of(row, source, run.sizes, run.gpus);
  const Degrees& d = run.degrees;
  run.training = training_of(row, source);
  run.cluster = cluster_text(row, source, run.gpus);

  run.import.seq = row.count("seq", source.seq);
  if (run.import.seq == 0) throw Skip{"seq not given"};
  const std::int64_t per_step = row.note_count("micro_num ");
  run.import.global_batch =
      row.count("global_batch", per_step > 0 ? per_step * d.micro_batch * d.dp : 0);
  if (run.import.global_batch == 0) throw Skip{"global_batch not given"};
  if (run.import.global_batch % (d.micro_batch * d.dp) != 0)
    throw Skip{"micro-batch and dp do not divide the global batch"};
  run.import.dtype = run.training.dtype == DType::kF8 ? DType::kBf16 : run.training.dtype;
  run.import.dropout = source.dropout;
  const std::string attention = lower(row.text("flash_attention"));
  run.import.attention = attention.empty() ? std::string(source.attention)
                         : attention.starts_with("no") || attention == "unfused" ? "unfused"
                                                                                 : "flash";
  for (const EngineVariant& variant : source.variants) {
    if (variant.notes.empty() ? variant.pipelined && d.pp > 1 : contains(notes, variant.notes)) {
      run.engine = variant.engine;
      break;
    }
  }
  run.one_layer = contains(notes, "PER-LAYER time");

  const std::int64_t micro_batches = run.import.global_batch / (d.micro_batch * d.dp);
  if (source.cut == CutRule::kWeighted && micro_batches < d.pp - 1)
    throw Skip{"the engine refuses fewer micro-batches than stages"};
  const int chunks = d.pp * d.vpp;
  if (chunks > run.sizes.layers + 2) throw Skip{"more chunks than layers"};
  run.layers = chunk_layers(row, source, run.sizes, static_cast<double>(run.import.seq), chunks);
  if (run.layers.empty()) throw Skip{"the engine's cut leaves a stage without layers"};

  run.measure = source.memory;
  run.peak_of_last_stage = source.memory_of_last_stage;
  run.out_of_memory =
      contains(notes, "RESULT: OOM") || contains(notes, "FAILED run") || notes.starts_with("OOM");
  if (const auto peak = row.number("peak_mem_gb")) run.peak = Bytes(*peak * source.memory_unit);
  if (const auto step = row.number("step_time_s"); step && *step > 0) {
    if (run.sizes.hidden >= source.min_hidden_timed) run.step = Seconds(*step);
  }
  if (!run.out_of_memory && !run.step && !run.peak) throw Skip{"nothing measured"};
  return run;
}

}  // namespace

std::vector<int> cut_layers(CutRule rule, const GptSizes& z, int chunks) {
  const auto layers = static_cast<int>(z.layers);
  std::vector<int> counts(static_cast<std::size_t>(chunks), 0);
  if (rule == CutRule::kEven || chunks == 1) {
    for (int c = 0; c < chunks; ++c) {
      counts[static_cast<std::size_t>(c)] = layers / chunks + (c < layers % chunks);
    }
    if (layers < chunks) return {};
    return counts;
  }
  const double h = static_cast<double>(z.hidden);
  const double layer = 4 * h * h + 3 * static_cast<double>(z.ffn) * h;
  const double head = static_cast<double>(z.vocab) * h;
  const double total = layer * layers + head;
  std::size_t stage = 0;
  const auto full = [&](double so_far) { return so_far > total * double(stage + 1) / chunks; };
  for (int i = 1; i <= layers; ++i) {
    ++counts[stage];
    if (full(layer * i)) ++stage;
  }
  // Norm, output layer and loss follow; they must share the last stage.
  if (stage + 1 != counts.size()) return {};
  return counts;
}

MeasuredRuns read_measured_runs(std::string_view text, std::string_view file) {
  const CsvTable table = parse_csv(text, file);
  for (std::string_view column :
       {"source", "gpu", "gpus", "model", "layers", "hidden", "seq", "global_batch", "micro_batch",
        "tp", "pp", "step_time_s", "notes"}) {
    if (table.column(column) < 0) {
      throw Error(fmt::format("no column '{}': not a table of measured runs", column),
                  fmt::format("{}:1", file), "docs/validation.md lists the columns");
    }
  }
  MeasuredRuns result;
  for (const CsvTable::Row& cells : table.rows) {
    const Row row(table, cells);
    const MeasuredSource& source = measured_source(row.text("source"));
    try {
      result.runs.push_back(map_row(row, source));
    } catch (const Skip& skip) {
      result.skipped.push_back(
          {row.place(),
           source.name.empty() ? row.text("source").substr(0, 60) : std::string(source.name),
           skip.reason});
    }
  }
  return result;
}

}  // namespace meshwright
