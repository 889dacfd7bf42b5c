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

}  // namespace meshwright
