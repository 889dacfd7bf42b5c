#pragma once

#include <string_view>

#include "cluster/cluster.h"

namespace meshwright {

/// Reads "dgx-h100:8", "a100-80:4x8@ib200", "cpu:4", "dgx-a100:2+dgx-h100:2"; the grammar is in
/// docs/cluster_format.md. Throws Error with an example that works.
Cluster parse_shorthand(std::string_view text);

}  // namespace meshwright
