#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/units.h"
#include "cluster/cluster.h"

namespace meshwright {

/// What fraction of the datasheet is reached, and the fixed costs besides: data, fitted to
/// measurements (data/efficiency/*.json; docs/cost_model.md has the formulas), never constants in
/// code.
struct Efficiency {
  struct Kernel {
    double fraction = 0.8;  ///< Of the peak rate, for large operands.
    Seconds fixed;          ///< Added per kernel: ramp-up, tail.
  };
  struct Link {
    double fraction = 0.8;  ///< Of the link rate, for large messages.
    double all_reduce_fraction =
        0.8;  ///< The same for all_reduce (in-network reduction may exceed 1).
    double all_to_all_fraction = 0.8;
    double steps = 1;             ///< Times the link's latency per ring step.
    double all_reduce_steps = 1;  ///< The same for all_reduce, of which there are twice as many.
    Seconds base;                 ///< Per collective.
  };

  Kernel matmul_16bit, matmul_fp8, matmul_fp32;
  double matmul_tile = 128;         ///< Rows and columns are computed in whole tiles of this size.
  Kernel attention;                 ///< Forward; fraction of the 16-bit peak.
  double attention_backward = 0.8;  ///< Backward fraction relative to forward.
  Kernel memory;                    ///< Fraction of memory bandwidth.
  /// How often the traffic of a fused kernel is moved: more than 1 where an engine runs
  /// normalizations, activations and the loss as several operators each.
  double memory_passes = 1;
  double optimizer_passes =
      1;  ///< The same of gradients, optimizer state and parameters in the step.
  double attention_passes = 1;  ///< The same of what unfused attention does to its scores.
  /// Host time per kernel and per collective. A block of kernels takes at least their sum: the host
  /// launches them one after another, ahead of the device while it can.
  Seconds launch, collective_launch;
  std::map<std::string, Link, std::less<>>
      links;  ///< By what the link is made of ("nvlink", "ib", …); "default".

  /// Gradients and gathered parameters travel in messages of this size; 0 = each buffer in one.
  Bytes bucket;
  double gradient_overlap =
      0.8;                      ///< Share of gradient traffic that the last backward pass may hide.
  double update_overlap = 0.5;  ///< Share of gathers of updated parameters (ZeRO-1) that the first
                                ///< forward pass may hide.
  double gather_overlap = 0.9;  ///< Share of parameter gathers that compute may hide.
  /// 1: an all_reduce is one ring through all members, which crosses every uplink with the ring's
  /// share of the buffer; 0: sums are formed below an uplink before they cross it.
  double ring_sums = 0;
  double context_overlap = 0.8;  ///< Share of ring attention traffic that attention may hide.
  Seconds step_fixed;            ///< Per step: data loading, logging, loss synchronization.
  Seconds micro_batch_fixed;     ///< Per micro-batch and chunk on the host.
  Seconds peer_fixed;            ///< Per message between stages.
  double compute_scale = 1;      ///< Multiplies every kernel's time (clock throttling, framework).

  Bytes context;                ///< CUDA context, NCCL, library workspaces.
  double fragmentation = 0.05;  ///< Allocator overhead, as a fraction of everything dynamic.
  /// Copies of the loss's fp32 logits alive at its peak besides the one kept for the backward pass
  /// (16-bit logits count half).
  double loss_copies = 1;
  /// Share of operands gathered along the sequence that is kept for the backward pass instead of
  /// gathered again.
  double keeps_gathered = 0;
  /// What is saved for the backward pass, over what fused operators save (an unfused gated MLP
  /// keeps half as much again).
  double activation_scale = 1;
  /// Share of gradients in the weights' type that is alive beside the accumulated ones.
  double working_gradients = 0;
  double communication_buffers =
      1;  ///< Of the largest gathered or reduced buffer, kept twice over.

  const Link& link(std::string_view made_of) const;
};

/// Looks up `engine` ("default", "megatron", "fsdp", …) on a device kind: the architecture's
/// numbers with the engine's replacements. Unknown architectures use "default"; an unknown engine
/// is an Error.
Efficiency efficiency_for(const DeviceKind& kind, std::string_view engine = "default");
/// The same from another file's content (docs/cost_model.md has the format).
Efficiency efficiency_for(const Json& file, const DeviceKind& kind, std::string_view engine);
/// The content of the file that is compiled in.
const Json& shipped_efficiency();

/// The numbers of one JSON object over those of `base`. Throws Error with the key's pointer.
Efficiency parse_efficiency(const Json& json, const Efficiency& base, std::string_view source);

/// Names of the engines with numbers of their own.
std::string known_engines();

}  // namespace meshwright
