// The analytic cost model: a roofline whose peaks are scaled by fitted efficiencies, plus fixed
// costs per kernel (Williams et al. 2009), and latency-bandwidth collectives on the links of the
// c-mesh.
//
// kernel   t = max(flops / (peak * fraction), traffic / (bandwidth * fraction)) + fixed. What the
// host needs to launch kernels is counted per block (price.cpp).
//          Matrix products are computed in whole tiles: m and n are rounded up to the tile.
// ring     t = base + (n-1) * steps * latency + max over links of bytes * (n-1)/n / (share *
// fraction); all_reduce takes twice the steps, and an uplink of one of p hosts carries
// 2 * bytes * (p-1)/p of it (with ring_sums 2 * bytes * (n-1)/n).
//
// Loses to the profiled model wherever kernels have cliffs (odd shapes, new libraries).
#include <algorithm>
#include <cmath>

#include "cost/cost_model.h"

namespace meshwright {
namespace {

double round_up(double value, double tile) { return std::ceil(value / tile) * tile; }

FlopsPerSecond matrix_peak(const Instr& instr, const DeviceKind& kind) {
  switch (instr.dtype) {
    case DType::kF8:
      if (kind.fp8.value > 0) return kind.fp8;
      [[fallthrough]];
    case DType::kBf16:
      if (kind.bf16.value > 0) return kind.bf16;
      return kind.fp16.value > 0 ? kind.fp16 : kind.fp32;
    case DType::kF16:
      return kind.fp16.value > 0 ? kind.fp16 : kind.fp32;
    case DType::kF32:
      return kind.tf32.value > 0 ? kind.tf32 : kind.fp32;
    default:
      return kind.fp64.value > 0 ? kind.fp64 : FlopsPerSecond(kind.fp32.value / 2);
  }
}

const Efficiency::Kernel& matmul_efficiency(const Instr& instr, const DeviceKind& kind,
                                            const Efficiency& e) {
  if (instr.dtype == DType::kF8 && kind.fp8.value > 0) return e.matmul_fp8;
  if (instr.dtype == DType::kF32 || instr.dtype == DType::kF64) return e.matmul_fp32;
  return e.matmul_16bit;
}

Seconds compute(const Instr& instr, const DeviceKind& kind, const Efficiency& e, ProfileUse*) {
  const double kernels = std::max(instr.kernels, 1);
  const Seconds memory =
      instr.traffic / BytesPerSecond(kind.memory_bandwidth.value * e.memory.fraction);
  if (instr.kind == InstrKind::kOptimizer) {
    return instr.bytes / BytesPerSecond(kind.memory_bandwidth.value * e.memory.fraction) *
           e.optimizer_passes;
  }
  Seconds time = memory * e.memory_passes + e.memory.fixed * kernels;
  if (instr.kernel == KernelClass::kMatmul) {
    const Efficiency::Kernel& k = matmul_efficiency(instr, kind, e);
    const MatmulShape& s = instr.matmul;
    const double padding = s.m > 0 && s.n > 0 ? round_up(s.m, e.matmul_tile) *
                                                    round_up(s.n, e.matmul_tile) / (s.m * s.n)
                                              : 1;
    const double rate = matrix_peak(instr, kind).value * k.fraction;
    const Seconds math(instr.flops.value * padding / rate);
    time = std::max(math, memory) + k.fixed * kernels;
  } else if (instr.kernel == KernelClass::kAttention) {
    Instr sixteen = instr;  // Fused attention computes in 16 bits whatever the linear layers do.
    if (sixteen.dtype == DType::kF8) sixteen.dtype = DType::kBf16;
    const double backward = instr.purpose == Purpose::kBackward ? e.attention_backward : 1;
    const double rate = matrix_peak(sixteen, kind).value * e.attention.fraction * backward;
    time = std::max(Seconds(instr.flops.value / rate), memory) + e.attention.fixed * kernels;
  }
  const double passes = instr.matmul.batch > 1 ? e.attention_passes : 1;
  time +=
      instr.pointwise * passes / BytesPerSecond(kind.memory_bandwidth.value * e.memory.fraction);
  return time * e.compute_scale;
}

Seconds collective(CollectiveKind kind, Bytes bytes, const CommMesh& comm, const Efficiency& e,
                   ProfileUse*) {
  const double n = comm.group_size;
  if (comm.group_size < 2) return Seconds(0);
  Seconds transfer, step, base;
  for (const CommMesh::Level& level : comm.levels) {
    const Efficiency::Link& link = e.link(level.link);
    double volume = bytes.value;
    double fraction = link.fraction;
    double steps = link.steps;
    switch (kind) {
      case CollectiveKind::kAllReduce:
        // Sums are formed below an uplink before they cross it, so that it carries its parts'
        // share.
        volume *= 2 * (e.ring_sums * (n - 1) / n +
                       (1 - e.ring_sums) * (level.groups_inside - 1.0) / level.groups_inside);
        fraction = link.all_reduce_fraction;
        steps = link.all_reduce_steps;
        break;
      case CollectiveKind::kAllGather:
      case CollectiveKind::kReduceScatter:
        volume *= (n - 1) / n;
        break;
      case CollectiveKind::kAllToAll:
        // Each of the members inside sends its part for everybody outside.
        volume *= level.members_inside * (n - level.members_inside) / n;
        fraction = link.all_to_all_fraction;
        break;
      case CollectiveKind::kPermute:
        // In the worst case everything comes from outside.
        volume *= level.members_inside;
        break;
      case CollectiveKind::kRing:
      case CollectiveKind::kBroadcast:
      case CollectiveKind::kHalo:
        break;
    }
    transfer = std::max(transfer, Seconds(volume / (level.bandwidth.value * fraction)));
    step = std::max(step, level.latency * steps);
    base = std::max(base, link.base);
  }
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return base + step * (2 * (n - 1)) + transfer;
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kPermute:
      return base + step * std::min(n - 1, 8 + std::log2(n)) + transfer;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kHalo:
      return base + step + transfer;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kRing:
      break;
  }
  return base + step * (n - 1) + transfer;
}

}  // namespace

const CostModel kAnalytic = {
    "analytic",
    "roofline with fitted efficiencies, latency-bandwidth collectives on the topology's links",
    compute,
    collective,
};

}  // namespace meshwright
