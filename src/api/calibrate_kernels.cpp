#include "api/calibrate_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "api/coordinate_search.h"
#include "api/measured_sources.h"
#include "base/error.h"
#include "cluster/cluster.h"
#include "cost/cost_model.h"

namespace meshwright {
namespace {

// Smaller messages than those of training.
constexpr double kLeastMessage = 262144;
// See calibrate.cpp: what it costs to move a number over its whole range.
constexpr double kPull = 0.01;
// Fewest rows that say something about a link, about the fixed cost of a kernel, and about the
// latency of gathers as distinct from that of all_reduces.
constexpr std::size_t kFewestRows = 3;
constexpr std::ptrdiff_t kFewestGathers = 8;

const std::string& cell(const CsvTable& table, const CsvTable::Row& row, std::string_view column) {
  return row.cells[static_cast<std::size_t>(table.column(column))];
}

std::optional<double> number(const CsvTable& table, const CsvTable::Row& row,
                             std::string_view column) {
  const std::string& text = cell(table, row, column);
  if (text.empty()) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0 && value <= 1e18)) {
    throw Error(
        fmt::format("column '{}' must be a number of at least 0: '{}'", column, text.substr(0, 40)),
        fmt::format("{}:{}", table.source, row.line));
  }
  return value;
}

// "A100-80GB SXM (remark)": the whole text, or what stands before its last words.
const DeviceKind* device(std::string_view text) {
  while (!text.empty()) {
    try {
      return &find_device(text);
    } catch (const Error&) {
      const auto blank = text.rfind(' ');
      text = blank == std::string_view::npos ? std::string_view() : text.substr(0, blank);
    }
  }
  return nullptr;
}

// One number of the file, as a search sees it.
struct Number {
  std::string pointer;
  SearchRange range;
};

// Moves the numbers so that the rows' predicted times come near the measured ones; every row gives
// its log(predicted / measured) for the numbers in a file.
template <class LogError>
KernelFit search_numbers(const std::string& pointer, const std::vector<Number>& numbers,
                         std::size_t rows, Json& efficiency, LogError&& log_error) {
  const auto error = [&] {
    double sum = 0;
    for (std::size_t i = 0; i < rows; ++i) sum += std::abs(log_error(i, efficiency));
    return sum / static_cast<double>(rows);
  };
  std::vector<double> initial;
  std::vector<SearchRange> ranges;
  for (const Number& n : numbers) {
    const Json::json_pointer at(n.pointer);
    const double middle = n.range.logarithmic ? std::sqrt(n.range.low * n.range.high)
                                              : (n.range.low + n.range.high) / 2;
    initial.push_back(
        std::clamp(efficiency.contains(at) ? efficiency.at(at).template get<double>() : middle,
                   n.range.low, n.range.high));
    ranges.push_back(n.range);
    efficiency[at] = initial.back();
  }
  std::vector<double> values = initial;
  KernelFit fit{pointer, static_cast<int>(rows), error(), 0};
  SearchTarget target;
  target.tried = [&](std::size_t k, double candidate) {
    efficiency[Json::json_pointer(numbers[k].pointer)] = candidate;
    double pull = 0;
    for (std::size_t m = 0; m < values.size(); ++m) {
      const double d = range_distance(ranges[m], initial[m], m == k ? candidate : values[m]);
      pull += kPull * d * d;
    }
    const double now = error() + pull;
    efficiency[Json::json_pointer(numbers[k].pointer)] = values[k];
    return now;
  };
  target.kept = [&](std::size_t k, double candidate) {
    values[k] = candidate;
    efficiency[Json::json_pointer(numbers[k].pointer)] = candidate;
  };
  coordinate_search(values, ranges, fit.before, target);
  fit.after = error();
  return fit;
}

void say_source(Json& efficiency, const std::string& pointer, std::string text) {
  Json& entry = efficiency[Json::json_pointer(pointer)];
  if (entry.contains("source")) {
    const std::string before = entry.at("source").get<std::string>();
    if (before.find(text) != std::string::npos) return;
    text = before + "; " + text;
  }
  entry["source"] = text;
}

struct Product {
  const DeviceKind* kind;
  Instr instr;
  double seconds;
  bool best = false;  ///< The best of many shapes, not any shape.
};

// "4096x4096x4096" with a measured rate in TFLOP/s.
std::optional<Product> product(const DeviceKind* kind, const std::string& shape, double tflops,
                               DType dtype) {
  double size[3] = {0, 0, 0};
  const char* at = shape.data();
  const char* const end = at + shape.size();
  for (int i = 0; i < 3; ++i) {
    const auto [next, error] = std::from_chars(at, end, size[i]);
    if (error != std::errc() || !(size[i] >= 1 && size[i] <= 1e9)) return std::nullopt;
    at = next;
    if (i < 2 && (at == end || *at++ != 'x')) return std::nullopt;
  }
  if (at != end || tflops <= 0) return std::nullopt;
  const auto [m, n, k] = size;
  Product p{kind, {}, 0, false};
  p.instr.kernel = KernelClass::kMatmul;
  p.instr.matmul = {1, m, n, k};
  p.instr.flops = Flops(2 * m * n * k);
  p.instr.traffic = Bytes(dtype_bytes(dtype) * (m * k + k * n) + 2 * m * n);
  p.instr.kernels = 1;
  p.instr.dtype = dtype;
  p.seconds = p.instr.flops.value / (tflops * 1e12);
  return p;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// A share of a rate: what is measured, at the middle.
KernelFit set_share(const std::string& pointer, const std::vector<double>& shares,
                    Json& efficiency) {
  const Json::json_pointer at(pointer + "/fraction");
  const double value = std::clamp(median(shares), 0.01, 2.0);
  const double old = efficiency.contains(at) ? efficiency.at(at).get<double>() : 0.8;
  efficiency[at] = value;
  KernelFit fit{pointer, static_cast<int>(shares.size()), 0, 0};
  for (double share : shares) {
    fit.before += std::abs(std::log(old / share)) / static_cast<double>(shares.size());
    fit.after += std::abs(std::log(value / share)) / static_cast<double>(shares.size());
  }
  return fit;
}

struct Collective {
  CollectiveKind kind;
  Bytes bytes;
  CommMesh comm;
  const DeviceKind* device;
  double seconds;
};

std::optional<Collective> collective(const CsvTable& table, const CsvTable::Row& row,
                                     std::map<std::string, Cluster>& clusters,
                                     std::string& network) {
  const std::string& name = cell(table, row, "collective");
  const double bytes = number(table, row, "bytes").value_or(0);
  const double gpus = number(table, row, "gpus").value_or(0);
  const double nodes = number(table, row, "nodes").value_or(0);
  const double bandwidth = number(table, row, "busbw_GBps").value_or(0) * 1e9;
  const double micros = number(table, row, "time_us").value_or(0);
  const DeviceKind* kind = device(cell(table, row, "gpu"));
  if (kind == nullptr || bytes < kLeastMessage || gpus < 2 || gpus > 65536 || nodes < 1 ||
      std::fmod(gpus, nodes) != 0 || (bandwidth <= 0 && micros <= 0)) {
    return std::nullopt;
  }
  Collective c{CollectiveKind::kAllReduce, Bytes(bytes), {}, nullptr, 0};
  double factor = (gpus - 1) / gpus;  // Bus bandwidth = bytes * factor / time.
  if (name == "all_reduce")
    factor *= 2;
  else if (name == "all_gather")
    c.kind = CollectiveKind::kAllGather;
  else if (name == "reduce_scatter")
    c.kind = CollectiveKind::kReduceScatter;
  else
    return std::nullopt;
  std::string text = fmt::format("{}:{:.0f}x{:.0f}", kind->name, nodes, gpus / nodes);
  if (nodes > 1) {
    const std::string& interconnect = cell(table, row, "interconnect");
    for (const NetworkText& known : network_texts()) {
      if (network.empty() && interconnect.find(known.contains) != std::string::npos) {
        network = known.network.substr(0, known.network.find_first_of("0123456789"));
        text += fmt::format("@{}", known.network);
      }
    }
    if (network.empty()) return std::nullopt;
  }
  auto it = clusters.find(text);
  if (it == clusters.end()) {
    try {
      it = clusters.emplace(text, read_cluster(text)).first;
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  const Cluster& cluster = it->second;
  Mesh mesh;
  mesh.axes = {{"all", cluster.device_count(), 1}};
  c.comm = comm_mesh(cluster, mesh, {0});
  c.device = &cluster.kinds[0];
  c.seconds = micros > 0 ? micros * 1e-6 : bytes * factor / bandwidth;
  return c;
}

KernelFit fit_link(const std::string& pointer, const std::vector<Collective>& rows,
                   Json& efficiency) {
  const auto reduces = std::count_if(rows.begin(), rows.end(), [](const Collective& c) {
    return c.kind == CollectiveKind::kAllReduce;
  });
  const auto gathers = static_cast<std::ptrdiff_t>(rows.size()) - reduces;
  std::vector<Number> numbers = {{pointer + "/base_us", {1, 300, true}}};
  if (reduces > 0) {
    numbers.push_back({pointer + "/all_reduce_fraction", {0.05, 1.2, true}});
    numbers.push_back({pointer + "/all_reduce_steps", {0.05, 50, true}});
  }
  if (gathers > 0) numbers.push_back({pointer + "/fraction", {0.05, 1.2, true}});
  if (gathers >= kFewestGathers) numbers.push_back({pointer + "/steps", {0.05, 50, true}});
  const auto log_error = [&](std::size_t i, const Json& file) {
    const Collective& c = rows[i];
    const Efficiency e = efficiency_for(file, *c.device, "default");
    return std::log(kAnalytic.collective(c.kind, c.bytes, c.comm, e, nullptr).value / c.seconds);
  };
  KernelFit fit = search_numbers(pointer, numbers, rows.size(), efficiency, log_error);
  Json& link = efficiency[Json::json_pointer(pointer)];
  // Rings of both kinds take the same steps where nothing says otherwise.
  if (gathers < kFewestGathers) link["steps"] = link.at("all_reduce_steps");
  if (gathers == 0) link["fraction"] = std::min(link.at("all_reduce_fraction").get<double>(), 1.0);
  say_source(efficiency, pointer, fmt::format("{} measured collectives", rows.size()));
  return fit;
}

}  // namespace

bool is_kernel_table(const CsvTable& table) {
  for (const char* column : {"gpu", "benchmark", "shape", "value", "unit"}) {
    if (table.column(column) < 0) return false;
  }
  return true;
}

bool is_link_table(const CsvTable& table) {
  for (const char* column :
       {"gpu", "nodes", "gpus", "collective", "bytes", "busbw_GBps", "interconnect", "time_us"}) {
    if (table.column(column) < 0) return false;
  }
  return true;
}

KernelFits fit_kernels(const CsvTable& table, Json& efficiency) {
  KernelFits result;
  std::map<std::string, std::vector<Product>> products;  // By pointer.
  std::map<std::string, std::vector<double>> shares;     // By pointer.
  std::map<std::string, int> rows_of;                    // By architecture.
  for (const CsvTable::Row& row : table.rows) {
    const std::string& benchmark = cell(table, row, "benchmark");
    const double value = number(table, row, "value").value_or(0);
    const DeviceKind* kind = device(cell(table, row, "gpu"));
    const auto is = [&](std::string_view part) {
      return benchmark.find(part) != std::string::npos;
    };
    bool used = false;
    if (kind != nullptr && value > 0) {
      const std::string base = "/architectures/" + kind->architecture;
      if (is("GEMM")) {
        const DType dtype = is("fp8") ? DType::kF8 : is("fp16") ? DType::kF16 : DType::kBf16;
        if (auto p = product(kind, cell(table, row, "shape"), value, dtype)) {
          p->best = is("max");
          products[base + (dtype == DType::kF8 ? "/matmul_fp8" : "/matmul_16bit")].push_back(*p);
          used = true;
        }
      } else if (is("HBM")) {
        shares[base + "/memory"].push_back(value * 1e9 / kind->memory_bandwidth.value);
        used = true;
      } else if (is("FlashAttention")) {
        shares[base + "/attention"].push_back(value * 1e12 / kind->fp16.value);
        used = true;
      }
      if (used) ++rows_of[base];
    }
    result.skipped += !used;
  }
  for (const auto& [pointer, values] : shares) {
    result.fits.push_back(set_share(pointer, values, efficiency));
  }
  // Tables of the best shape overstate what any shape reaches: by how much is seen where there are
  // tables of both kinds, and taken off where there is only the best.
  double overstated = 0;
  int compared = 0;
  for (const bool only_best : {false, true}) {
    for (const auto& [pointer, rows] : products) {
      std::vector<Product> plain, best;
      for (const Product& p : rows) (p.best ? best : plain).push_back(p);
      if (plain.empty() != only_best) continue;
      std::vector<Product>& list = only_best ? best : plain;
      if (only_best && compared > 0) {
        for (Product& p : list) p.seconds *= std::exp(overstated / compared);
      }
      const auto error_of = [](const Product& p, const Json& file) {
        const Efficiency e = efficiency_for(file, *p.kind, "default");
        return std::log(kAnalytic.compute(p.instr, *p.kind, e, nullptr).value / e.compute_scale /
                        p.seconds);
      };
      std::vector<Number> numbers = {{pointer + "/fraction", {0.1, 1, true}}};
      if (!only_best && list.size() >= kFewestRows) {
        numbers.push_back({pointer + "/fixed_us", {1, 40, true}});
      }
      result.fits.push_back(
          search_numbers(pointer, numbers, list.size(), efficiency,
                         [&](std::size_t k, const Json& file) { return error_of(list[k], file); }));
      if (only_best) continue;
      for (const Product& p : best) {
        overstated += error_of(p, efficiency);
        ++compared;
      }
    }
  }
  for (const auto& [pointer, rows] : rows_of) {
    say_source(efficiency, pointer, fmt::format("{} measured kernels", rows));
  }
  return result;
}

KernelFits fit_links(const CsvTable& table, Json& efficiency) {
  KernelFits result;
  std::map<std::string, Cluster> clusters;
  std::map<std::string, std::vector<Collective>> inside, networks;  // By pointer.
  for (const CsvTable::Row& row : table.rows) {
    std::string network;
    const std::optional<Collective> c = collective(table, row, clusters, network);
    if (!c) {
      ++result.skipped;
    } else if (!network.empty()) {
      networks["/default/links/" + network].push_back(*c);
    } else {
      inside[fmt::format("/architectures/{}/links/{}", c->device->architecture,
                         c->comm.levels.front().link)]
          .push_back(*c);
    }
  }
  // Links inside a host first: those between hosts are measured on top of them.
  for (const auto* group : {&inside, &networks}) {
    for (const auto& [pointer, rows] : *group) {
      if (rows.size() < kFewestRows) {
        result.skipped += static_cast<int>(rows.size());
        continue;
      }
      result.fits.push_back(fit_link(pointer, rows, efficiency));
    }
  }
  return result;
}

}  // namespace meshwright
