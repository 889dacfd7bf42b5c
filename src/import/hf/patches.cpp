#include "import/hf/patches.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

namespace meshwright::hf {
namespace {

std::pair<std::int64_t, std::int64_t> pair_or(const Config& config, std::string_view key,
                                              std::int64_t fallback) {
  if (!config.has(key) || !config.json().find(key)->is_array()) {
    const std::int64_t size = config.size_or({key}, fallback);
    return {size, size};
  }
  const std::vector<std::int64_t> sizes = config.sizes_or_empty(key);
  if (sizes.size() != 2 || sizes[0] < 1 || sizes[1] < 1) {
    config.fail(key, fmt::format("{} must be a positive number or a pair of them", key));
  }
  return {sizes[0], sizes[1]};
}

}  // namespace

PatchGrid read_patch_grid(const Config& config, std::int64_t image, std::int64_t patch) {
  PatchGrid grid;
  grid.channels = config.size_or({"num_channels"}, 3);
  std::tie(grid.height, grid.width) = pair_or(config, "image_size", image);
  std::tie(grid.patch_height, grid.patch_width) = pair_or(config, "patch_size", patch);
  if (grid.rows() < 1 || grid.columns() < 1) {
    config.fail("patch_size",
                fmt::format("a patch of {} x {} pixels does not fit an image of {} x {}",
                            grid.patch_height, grid.patch_width, grid.height, grid.width));
  }
  return grid;
}

std::int64_t image_batch(const Config& config, const ImportOptions& options,
                         const PatchGrid& grid) {
  const TokenShape shape = token_shape(options, 1);
  // Plan files say the length that the model has: one token per patch and up to two more.
  const std::int64_t patches = grid.rows() * grid.columns();
  if (options.seq != 0 && (options.seq < patches || options.seq > patches + 2)) {
    config.fail("image_size",
                fmt::format("the sequence length of an image model follows from its {} x {} "
                            "patches and cannot be {}",
                            grid.rows(), grid.columns(), options.seq),
                "leave --seq out");
  }
  return shape.batch;
}

ValueId embed_patches(GraphBuilder& b, std::string_view name, const PatchGrid& grid,
                      std::int64_t batch, std::int64_t hidden, bool bias) {
  const ValueId pixels = b.input("pixel_values", {b.dtype(),
                                                  {{"batch", batch, 1},
                                                   {"channels", grid.channels, 1},
                                                   {"height", grid.height, 1},
                                                   {"width", grid.width, 1}}});
  std::vector<ValueId> operands = {
      pixels, b.parameter(fmt::format("{}.weight", name), {{"hidden", hidden, 1},
                                                           {"channels", grid.channels, 1},
                                                           {"patch_height", grid.patch_height, 1},
                                                           {"patch_width", grid.patch_width, 1}})};
  if (bias) operands.push_back(b.parameter(fmt::format("{}.bias", name), {{"hidden", hidden, 1}}));
  const ValueId x =
      b.op("conv2d", name, std::move(operands),
           {{"stride", std::vector<std::int64_t>{grid.patch_height, grid.patch_width}}});
  return b.op("transpose", fmt::format("{}.channels_last", name), {x},
              {{"perm", std::vector<std::int64_t>{0, 2, 3, 1}}});
}

ValueId flatten_patches(GraphBuilder& b, std::string_view name, ValueId x) {
  return b.op(
      "reshape", name, {x},
      {{"pattern", std::string("b y x c -> b (y x) c")}, {"names", std::string("y=patches")}});
}

ValueId prepend_tokens(GraphBuilder& b, const std::vector<std::string_view>& names, ValueId x) {
  const std::vector<Dim> dims = b.type(x).dims;
  std::vector<ValueId> parts;
  for (std::string_view name : names) {
    parts.push_back(b.parameter(name, {{dims[1].name, 1, 1}, dims[2]}));
  }
  parts.push_back(x);
  return b.op("concat", "tokens", std::move(parts), {{"dim", std::int64_t{1}}});
}

ValueId add_patch_positions(GraphBuilder& b, std::string_view name, ValueId x) {
  const std::vector<Dim> dims = b.type(x).dims;
  const ValueId rows = b.parameter(name, {dims[1], dims[2]});
  return b.op("add", fmt::format("{}.add", name), {x, rows});
}

}  // namespace meshwright::hf
