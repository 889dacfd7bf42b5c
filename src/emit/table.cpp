#include <fmt/format.h>

#include "base/error.h"
#include "base/spelling.h"
#include "emit/emitter.h"

namespace meshwright {
namespace {

constexpr const Emitter* kEmitters[] = {
    &kMegatronEmitter,
};

}  // namespace

std::span<const Emitter* const> all_emitters() { return kEmitters; }

const Emitter& find_emitter(std::string_view name) {
  std::string known;
  for (const Emitter* emitter : kEmitters) {
    if (emitter->name == name) return *emitter;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", emitter->name);
  }
  throw Error(fmt::format("unknown target {}", in_quotes(name)), "target", "known: " + known);
}

}  // namespace meshwright
