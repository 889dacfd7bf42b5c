// The profiled cost model: what `meshwright profile` measured, by signature (plan/signature.h).
//
// Kernels and the engine's own work on tensors were measured one by one. Communication is a curve
// over the bytes of a message for each kind of group, linear between the sizes that were measured.
// What the table lacks takes the analytic time, scaled: kernels by what the table's kernels of the
// same class take over what the analytic model says of them, messages beyond twice the largest (or
// below half the smallest) measured by what it says of that one.
//
// Loses to the analytic model where a search asks for many shapes that no plan in the table has:
// one ratio per class of kernels then stands for all of them.
#include "cost/cost_model.h"
#include "cost/profile.h"
#include "plan/signature.h"

namespace meshwright {
namespace {

Seconds compute(const Instr& instr, const DeviceKind& kind, const Efficiency& e, ProfileUse* use) {
  if (instr.measured.value >= 0) {
    if (use != nullptr) use->count(true);
    return instr.measured;
  }
  const Seconds analytic = kAnalytic.compute(instr, kind, e, nullptr);
  if (use == nullptr) return analytic;
  use->count(false);
  return analytic * use->ratio(instr.kernel, kind, e);
}

Seconds collective(CollectiveKind kind, Bytes bytes, const CommMesh& comm, const Efficiency& e,
                   ProfileUse* use) {
  const Seconds analytic = kAnalytic.collective(kind, bytes, comm, e, nullptr);
  if (use == nullptr || comm.group_size < 2) return analytic;
  const auto& curves = use->table().curves;
  const auto it = curves.find(communication_signature(kind, comm));
  if (it == curves.end() || it->second.empty()) {
    use->count(false);
    return analytic;
  }
  if (const auto measured = interpolate(it->second, bytes)) {
    use->count(true);
    return *measured;
  }
  use->count(false);
  const auto& [size, time] =
      bytes.value < it->second.begin()->first ? *it->second.begin() : *it->second.rbegin();
  const Seconds there = kAnalytic.collective(kind, Bytes(size), comm, e, nullptr);
  return there.value > 0 ? analytic * (time.seconds / there) : analytic;
}

}  // namespace

const CostModel kProfiled = {
    "profiled",
    "times that `meshwright profile` measured, the analytic model's in proportion where it lacks "
    "them",
    compute,
    collective,
};

}  // namespace meshwright
