#include "plan/program.h"

namespace meshwright {

std::string_view instr_kind_name(InstrKind kind) {
  constexpr std::string_view kNames[] = {"compute", "collective", "optimizer", "accumulate",
                                         "slice",   "add",        "free"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string_view phase_name(Phase phase) {
  constexpr std::string_view kNames[] = {"forward",   "backward", "weight",      "send",
                                         "send wait", "receive",  "receive wait"};
  return kNames[static_cast<std::size_t>(phase)];
}

std::string_view purpose_name(Purpose purpose) {
  constexpr std::string_view kNames[] = {"forward",  "backward", "recompute",    "tensor",
                                         "context",  "expert",   "param gather", "gradient",
                                         "pipeline", "optimizer"};
  return kNames[static_cast<std::size_t>(purpose)];
}

}  // namespace meshwright
