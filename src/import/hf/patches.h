#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "import/hf/blocks.h"
#include "import/hf/family.h"

namespace meshwright::hf {

/// An image cut into patches.
struct PatchGrid {
  std::int64_t channels = 3;
  std::int64_t height = 224, width = 224;            ///< Of the image, in pixels.
  std::int64_t patch_height = 16, patch_width = 16;  ///< Of a patch, in pixels.

  std::int64_t rows() const { return height / patch_height; }
  std::int64_t columns() const { return width / patch_width; }
};

/// num_channels, image_size and patch_size (a number or [height, width]). Throws Error unless at
/// least one patch fits.
PatchGrid read_patch_grid(const Config& config, std::int64_t image, std::int64_t patch);

/// Images per step. An image's sequence length follows from its size: another one is an Error.
std::int64_t image_batch(const Config& config, const ImportOptions& options, const PatchGrid& grid);

/// Convolution whose kernel is one patch, parameters `<name>.weight` (and `<name>.bias`), over an
/// input "pixel_values" -> [batch, rows, columns, hidden].
ValueId embed_patches(GraphBuilder& b, std::string_view name, const PatchGrid& grid,
                      std::int64_t batch, std::int64_t hidden, bool bias);

/// [batch, rows, columns, hidden] -> [batch, patches, hidden].
ValueId flatten_patches(GraphBuilder& b, std::string_view name, ValueId x);

/// Learned tokens, one parameter [1, hidden] each, in front of `x` [batch, patches, hidden].
ValueId prepend_tokens(GraphBuilder& b, const std::vector<std::string_view>& names, ValueId x);

/// `x` plus a parameter [patches, hidden].
ValueId add_patch_positions(GraphBuilder& b, std::string_view name, ValueId x);

}  // namespace meshwright::hf
