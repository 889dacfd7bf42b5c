#pragma once

#include <string>

#include "base/json.h"
#include "emit/megatron_args.h"
#include "emit/megatron_rules.h"

namespace meshwright {

/// What `meshwright check --engine megatron` prints: the verdict, broken rules with what would be
/// legal, what would misbehave, layers per pipeline rank, and what was not checked.
std::string verdict_text(const MegatronArgs& args, std::int64_t world_size,
                         const MegatronVerdict& verdict);
Json verdict_to_json(std::int64_t world_size, const MegatronVerdict& verdict);

}  // namespace meshwright
