#pragma once

#include <string>
#include <vector>

#include "base/csv.h"
#include "base/json.h"

namespace meshwright {

/// How well one kind of kernel or link is fitted.
struct KernelFit {
  std::string pointer;  ///< Where its numbers are in the efficiency file.
  int rows = 0;
  double before = 0, after = 0;  ///< Mean |log(predicted / measured)| of times.
};

/// Rows that were not used: of devices that are not in the catalogue, of benchmarks or networks
/// that say nothing about a number of the cost model.
struct KernelFits {
  std::vector<KernelFit> fits;
  int skipped = 0;
};

/// Whether a table is one of those below, by its columns.
bool is_kernel_table(const CsvTable& table);
bool is_link_table(const CsvTable& table);

/// Fits matrix products (share of the peak and fixed cost per kernel), memory bandwidth and fused
/// attention of every architecture in a table with the columns gpu, benchmark, shape, value, unit,
/// peak, and writes them to `efficiency`. Throws Error with `source:line` for a malformed cell.
KernelFits fit_kernels(const CsvTable& table, Json& efficiency);

/// Fits links (share of the bandwidth, latency per step, fixed cost) to a table of collectives with
/// the columns gpu, nodes, gpus, collective, bytes, busbw_GBps, interconnect, time_us: links inside
/// a host per architecture, networks for all.
KernelFits fit_links(const CsvTable& table, Json& efficiency);

}  // namespace meshwright
