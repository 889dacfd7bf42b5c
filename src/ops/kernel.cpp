#include "ops/kernel.h"

#include <iterator>
#include <utility>

namespace meshwright {

Kernel one_call(const KernelContext& context, std::string_view name, std::vector<KernelArg> rest) {
  KernelBuilder k(context);
  std::vector<KernelArg> args;
  for (int i = 0; i < static_cast<int>(context.inputs.size()); ++i) args.emplace_back(Slot{i});
  args.insert(args.end(), std::make_move_iterator(rest.begin()),
              std::make_move_iterator(rest.end()));
  const Slot result = k.call(name, std::move(args));
  return k.finish({result});
}

std::vector<std::int64_t> sizes_of(const Box& box) {
  std::vector<std::int64_t> sizes;
  for (const Interval& i : box) sizes.push_back(i.size());
  return sizes;
}

Slot cast(KernelBuilder& k, Slot x, DType dtype) { return k.call("aten::to.dtype", {x, dtype}); }

Slot indices(KernelBuilder& k, const Interval& interval) {
  return k.call("aten::arange.start",
                {interval.begin, interval.end, DType::kI64, NoValue(), RunDevice()});
}

Slot drop(KernelBuilder& k, Slot x, double p, const TensorType& whole, const Box& box) {
  if (p <= 0) return x;
  if (p >= 1) return k.call("aten::mul.Scalar", {x, 0.0});
  std::vector<std::int64_t> begins, sizes, whole_sizes;
  const auto add = [&](const Interval& part, std::int64_t size) {
    begins.push_back(part.begin);
    sizes.push_back(part.size());
    whole_sizes.push_back(size);
  };
  std::int64_t batch_dim = -1;
  bool folded = false;
  for (std::size_t d = 0; d < box.size(); ++d) {
    const Dim& dim = whole.dims[d];
    if (dim.name != "batch" || batch_dim >= 0) {
      add(box[d], dim.size);
      continue;
    }
    // A sample's rows folded into the batch are a dim of their own.
    batch_dim = static_cast<std::int64_t>(d);
    const std::int64_t rows = dim.unit;
    folded = rows > 1;
    add({box[d].begin / rows, (box[d].end + rows - 1) / rows}, dim.size / rows);
    if (folded) add({0, rows}, rows);
  }
  Slot keep = k.call("random::keep", {p, begins, sizes, whole_sizes, batch_dim});
  if (folded) keep = k.call("aten::reshape", {keep, sizes_of(box)});
  return k.call("aten::mul.Scalar", {k.call("aten::mul.Tensor", {x, keep}), 1 / (1 - p)});
}

}  // namespace meshwright
