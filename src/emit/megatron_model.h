#pragma once

#include <string>
#include <vector>

#include "emit/decoder_model.h"
#include "emit/megatron_args.h"

namespace meshwright {

/// Fills in Megatron-LM's options that describe a model. Returns what of it the options cannot say,
/// one sentence each.
std::vector<std::string> set_megatron_model(const DecoderModel& model, MegatronArgs& args);

/// A list of small numbers as Megatron reads layer patterns: "([0]*3+[1]*58)", "([1]+[0])*12".
std::string layer_pattern(const std::vector<int>& values);

}  // namespace meshwright
