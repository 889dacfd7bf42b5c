#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "ir/rule.h"
#include "ops/kernel.h"

namespace meshwright {

/// What a definition is asked about: the attributes and the operand types, whole or one device's
/// shard of them. `outputs` is empty while result types are being inferred.
struct OpContext {
  const Attrs& attrs;
  std::span<const TensorType> inputs;
  std::span<const TensorType> outputs;
};

enum class AttrType { kBool, kInt, kFloat, kString, kInts, kIntOrInts };

/// One attribute that an operator takes; others are refused.
struct AttrSpec {
  std::string_view name;
  AttrType type = AttrType::kInt;
  bool required = false;
  double min = 0;                 ///< Bounds of numbers (of each, in lists).
  double max = 1099511627776.0;   ///< 2^40.
  std::string_view choices = {};  ///< Legal strings, separated by blanks; empty = any.
};

/// How many operands an operator takes.
struct OperandCount {
  int min = 1;
  int max = 1;
};

/// Which efficiency curve prices an operator.
enum class KernelClass {
  kView,       ///< No kernel at all (reshape).
  kMemory,     ///< Bound by memory traffic: norms, activations, copies.
  kMatmul,     ///< Matrix units; `Work::matmul` gives the shape.
  kAttention,  ///< Fused attention.
};

/// A batch of equal matrix products C[m,n] = A[m,k] B[k,n].
struct MatmulShape {
  double batch = 1, m = 0, n = 0, k = 0;
};

/// Amount of work of one operator on one device's operands, per forward and backward pass. No
/// hardware.
struct Work {
  KernelClass kernel = KernelClass::kMemory;
  MatmulShape matmul;  ///< kMatmul only (forward product).
  Flops forward_flops;
  Bytes forward_traffic;       ///< Device memory read and written.
  Flops backward_input_flops;  ///< For gradients of activations (the "B" of zero-bubble schedules).
  Flops backward_weight_flops;  ///< For gradients of parameters (the "W").
  Bytes backward_traffic;
  /// Traffic of memory-bound kernels launched besides the main one (softmax between the products of
  /// unfused attention, scores of a router): not in the fields above, their time adds.
  Bytes forward_pointwise;
  Bytes backward_pointwise;
  int forward_kernels = 1;  ///< Kernel launches.
  int backward_kernels = 1;
};

/// What autograd keeps from the forward pass for the backward pass.
struct Saved {
  std::vector<int> inputs;   ///< Operand positions; parameters and buffers cost nothing. Values
                             ///< that share storage (see storage_roots) count once.
  std::vector<int> outputs;  ///< Result positions.
  Bytes extra;  ///< Masks, statistics, fp32 copies kept besides (for this context's shapes).
};

/// All knowledge of one operator. Empty functions mean the default derived from the rule.
struct OpDef {
  std::string_view kind;     ///< "linear".
  std::string_view summary;  ///< One sentence: operands, results.
  /// The ATen operator that takes the operands in their order and nothing else, "aten::linear":
  /// its kernel. Empty when `kernel` composes it.
  std::string_view aten;
  OperandCount operands;
  /// Element types by operand position, the last one for all that follow: f(loat), i(nteger),
  /// a(ny).
  std::string_view element_types = "f";
  std::span<const AttrSpec> attrs = {};
  /// Sums of the result's size that the kernel makes by itself ("group::sum", "group::max") over
  /// the devices that share the rule's summed factors.
  int own_sums = 0;
  bool view = false;  ///< The result is the operand's storage under another shape.
  /// Frozen sequence factors may be split by an algorithm of its own: ring attention.
  bool ring = false;
  /// The factor rule as text (see parse_rule) for these operand ranks and attributes.
  std::string (*annotation)(const OpContext&) = nullptr;
  /// Sizes of grouped factors that operand shapes alone do not fix.
  std::vector<FactorSize> (*factor_sizes)(const OpContext&) = nullptr;
  /// Corrects the bound rule: labels of dimensions that mean something else inside the operator.
  void (*relabel)(const OpContext&, Rule&) = nullptr;
  /// For a halo factor by its letter: how many elements of the neighbours' parts an even split of
  /// whole operands needs before and after its own; nothing when it cannot be split at all.
  struct HaloWidths {
    std::int64_t before = 0, after = 0;
  };
  std::optional<HaloWidths> (*halo)(const OpContext&, std::string_view factor) = nullptr;
  std::vector<TensorType> (*infer)(const OpContext&, const Rule&) = nullptr;
  Work (*work)(const OpContext&) = nullptr;
  Saved (*saved)(const OpContext&) = nullptr;
  /// What one device runs on its parts. Parts of results combine by the rule: concatenated along
  /// split factors, added along summed ones.
  Kernel (*kernel)(const KernelContext&) = nullptr;
  /// The backward kernel of operators whose gradients need no forward run (products): operands are
  /// the gradients of the results, then the operator's operands, then its results, of which only
  /// those that `saved` lists are given; results are the gradients of the operands, wanted or not
  /// being their flags. Default: autograd on `kernel`.
  Kernel (*backward_kernel)(const KernelContext&, const std::vector<bool>& wanted) = nullptr;
  /// Example operand types for property tests over all operators.
  struct Example {
    Attrs attrs;
    std::vector<TensorType> inputs;
  };
  std::vector<Example> (*examples)() = nullptr;
};

/// Throws Error for a wrong number of operands, an illegal operand type, or an attribute that is
/// unknown, missing, of a wrong type or out of range.
void check_operands(const OpDef& def, const OpContext& context);
/// Checks the operands, then parses and binds the operator's rule. Throws Error (without operator
/// name; the caller adds it).
Rule rule_of(const OpDef& def, const OpContext& context);
std::vector<TensorType> infer(const OpDef& def, const OpContext& context);
/// Default: 2 * product of factor sizes for rules with a summed factor (a matmul), else traffic
/// only.
Work work_of(const OpDef& def, const OpContext& context);
/// Default: every floating-point operand.
Saved saved_of(const OpDef& def, const OpContext& context);

/// Default: one call of `aten`. Throws Error when the operator cannot be run.
Kernel kernel_of(const OpDef& def, const KernelContext& context);

/// Traffic of reading all inputs and writing all outputs once.
Bytes operand_traffic(const OpContext& context);
/// Work of a memory-bound operator: `flops_per_element` of the first result; backward costs
/// `backward_ratio` times the forward traffic.
Work memory_work(const OpContext& context, double flops_per_element = 1,
                 double backward_ratio = 1.5);
/// Work of C[m,n] = A[m,k] B[k,n] repeated `batch` times; the backward pass is two products of
/// equal size, of which the one for B counts as weight gradient when `b_is_parameter`.
Work matmul_work(const OpContext& context, MatmulShape shape, bool b_is_parameter);

/// For every value the value whose storage it is: itself, or the operand that a chain of views
/// starts from.
std::vector<ValueId> storage_roots(const Graph& graph);

/// Every operator, one line each, in ops/table.cpp.
std::span<const OpDef* const> all_ops();
/// Throws Error naming near spellings.
const OpDef& find_op(std::string_view kind);

}  // namespace meshwright
