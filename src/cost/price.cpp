#include "cost/price.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace meshwright {

Pricer::Pricer(const Cluster& cluster, const CostModel& model, std::string_view engine)
    : cluster_(cluster), model_(model) {
  for (const DeviceKind& kind : cluster.kinds) efficiency_.push_back(efficiency_for(kind, engine));
}

Pricer::Pricer(const Cluster& cluster, const CostModel& model, std::vector<Efficiency> efficiency)
    : cluster_(cluster), model_(model), efficiency_(std::move(efficiency)) {
  MW_CHECK(efficiency_.size() == cluster.kinds.size(), "one efficiency per device kind");
}

void Pricer::use_profile(std::shared_ptr<const ProfileTable> table, const Graph& graph) {
  const ProfileTable& t = *table;
  profile_ = std::make_unique<Profile>(Profile{std::move(table), Signer(graph), ProfileUse(t)});
}

void Pricer::sign(SegmentProgram& program, const Mesh& mesh, std::int64_t samples) {
  if (!profile_) return;
  const auto& kernels = profile_->table->kernels;
  for (std::vector<Instr>* list : {&program.forward, &program.backward, &program.weight}) {
    for (Instr& instr : *list) {
      if (instr.kind == InstrKind::kCollective) {
        instr.messages = profile_->signer.messages(instr);
        continue;
      }
      const std::string signature = profile_->signer.of(instr, program, mesh, samples);
      if (signature.empty()) continue;
      const auto it = kernels.find(signature);
      instr.measured = it == kernels.end() ? Seconds(-1) : it->second.time.seconds;
    }
  }
}

void Pricer::sign(Program& program, const Plan& plan) {
  if (!profile_) return;
  const std::int64_t samples = plan.global_batch / plan.micro_batches;
  std::vector<bool> done(program.segments.size(), false);
  for (const ChunkProgram& chunk : program.chunks) {
    for (int s : chunk.segments) {
      const auto i = static_cast<std::size_t>(s);
      if (!done[i]) {
        sign(program.segments[i], plan.stages[static_cast<std::size_t>(chunk.stage)].mesh, samples);
      }
      done[i] = true;
    }
  }
  const auto& curves = profile_->table->curves;
  const auto update = curves.find(optimizer_signature(plan.training.optimizer));
  for (StageProgram& stage : program.stages) {
    count_updates(stage, program.segments);
    for (Instr& instr : stage.step) {
      if (instr.kind != InstrKind::kOptimizer || update == curves.end()) continue;
      if (const auto one = interpolate(update->second, instr.bytes * (1.0 / instr.messages))) {
        instr.measured = *one * instr.messages;
      }
    }
  }
}

std::optional<ProfileCoverage> Pricer::coverage() const {
  if (!profile_) return std::nullopt;
  return ProfileCoverage{profile_->use.found(), profile_->use.asked()};
}

const DeviceKind& Pricer::slowest_kind(const Mesh& mesh) const {
  if (cluster_.homogeneous()) return cluster_.kinds[0];
  AxisList all;
  for (int a = 0; a < static_cast<int>(mesh.axes.size()); ++a) all.push_back(a);
  const DeviceKind* slowest = nullptr;
  for (DeviceId device : mesh.group(all)) {
    const DeviceKind& kind = cluster_.kind(device);
    // Kinds without 16-bit units (CPUs) differ in fp32.
    const auto rates = [](const DeviceKind& k) {
      return std::pair(k.fp16.value + k.bf16.value, k.fp32.value);
    };
    if (slowest == nullptr || rates(kind) < rates(*slowest)) slowest = &kind;
  }
  MW_CHECK(slowest != nullptr, "a mesh has a device");
  return *slowest;
}

const Efficiency& Pricer::efficiency(const Mesh& mesh) {
  const DeviceKind& kind = slowest_kind(mesh);
  return efficiency_[static_cast<std::size_t>(&kind - cluster_.kinds.data())];
}

const CommMesh& Pricer::comm(const Mesh& mesh, const AxisList& axes) {
  std::vector<int> key = {mesh.first_device};
  for (int axis : axes) {
    const MeshAxis& a = mesh.axes[static_cast<std::size_t>(axis)];
    key.push_back(a.size);
    key.push_back(a.stride);
  }
  const auto [it, fresh] = comm_meshes_.try_emplace(std::move(key));
  if (fresh) it->second = comm_mesh(cluster_, mesh, axes);
  return it->second;
}

bool is_free(const Instr& instr) {
  switch (instr.kind) {
    case InstrKind::kSlice:
    case InstrKind::kAdd:
    case InstrKind::kFree:
      return true;
    case InstrKind::kCompute:
      return instr.kernel == KernelClass::kView;
    case InstrKind::kCollective:
    case InstrKind::kOptimizer:
    case InstrKind::kAccumulate:
      return false;
  }
  return false;
}

Seconds Pricer::price(const Instr& instr, const Mesh& mesh) {
  const Efficiency& e = efficiency(mesh);
  if (instr.kind != InstrKind::kCollective) {
    if (is_free(instr) && instr.measured.value < 0) return Seconds(0);
    return model_.compute(instr, slowest_kind(mesh), e, profile());
  }
  if (instr.peer_offset != 0) return peer(instr.bytes, mesh, instr.peer_offset);
  const CommMesh& c = comm(mesh, instr.group);
  if (profile_) {
    return model_.collective(instr.collective, instr.bytes * (1.0 / instr.messages), c, e,
                             profile()) *
           instr.messages;
  }
  const bool bucketed =
      instr.purpose == Purpose::kGradient || instr.purpose == Purpose::kParameterGather;
  if (!bucketed || e.bucket.value <= 0 || instr.bytes <= e.bucket) {
    return model_.collective(instr.collective, instr.bytes, c, e, nullptr);
  }
  const double messages = std::floor(instr.bytes / e.bucket);
  const Bytes rest = instr.bytes - e.bucket * messages;
  return model_.collective(instr.collective, e.bucket, c, e, nullptr) * messages +
         (rest.value > 0 ? model_.collective(instr.collective, rest, c, e, nullptr) : Seconds(0));
}

BlockTime Pricer::block(const std::vector<Instr>& instrs, const Mesh& mesh) {
  const Efficiency& e = efficiency(mesh);
  BlockTime time;
  // Ring traffic that no attention kernel hides yet, and attention that hides none yet: the ring
  // runs beside the kernel, its way back (gradients of keys and values) too.
  Seconds ring, cover;
  Seconds launches;
  for (const Instr& instr : instrs) {
    if (is_free(instr) && instr.measured.value < 0) continue;
    Seconds t = price(instr, mesh);
    if (instr.regather) t *= 1 - e.keeps_gathered;
    // Of a measured kernel the host's time is a part.
    if (!profile_) {
      launches += instr.kind == InstrKind::kCollective ? e.collective_launch
                                                       : e.launch * std::max(instr.kernels, 1);
    }
    time.by_purpose[static_cast<std::size_t>(instr.purpose)] += t;
    if (instr.purpose == Purpose::kParameterGather) {
      time.gather += t;
    } else if (instr.purpose == Purpose::kGradient) {
      time.scatter += t;
    } else if (instr.collective == CollectiveKind::kRing && instr.kind == InstrKind::kCollective) {
      const Seconds hidden = std::min(t, cover);
      cover -= hidden;
      time.serial += hidden * (1 - e.context_overlap);
      ring += t - hidden;
    } else {
      time.serial += t;
      if (instr.kernel == KernelClass::kAttention) {
        const Seconds hidden = std::min(ring, t);
        time.serial += hidden * (1 - e.context_overlap);
        ring -= hidden;
        cover = t - hidden;
      }
    }
  }
  time.serial += ring;
  // The host runs ahead of the device, so that only its whole time counts, not each launch's.
  if (launches > time.serial) {
    time.host = launches - time.serial;
    time.serial = launches;
  }
  return time;
}

Seconds Pricer::peer(Bytes bytes, const Mesh& mesh, int offset) {
  const std::vector<int> key = {mesh.first_device, -1, offset};
  const auto [it, fresh] = comm_meshes_.try_emplace(key);
  if (fresh) it->second = peer_mesh(cluster_, mesh, offset);
  const Efficiency& e = efficiency(mesh);
  return model_.collective(CollectiveKind::kBroadcast, bytes, it->second, e, profile()) +
         (profile_ ? Seconds(0) : e.peer_fixed);
}

StepTime step_time(const std::vector<Instr>& step, const Mesh& mesh, Pricer& pricer) {
  StepTime time;
  for (const Instr& instr : step) {
    const Seconds t = pricer.price(instr, mesh);
    if (instr.purpose == Purpose::kGradient)
      time.reduce += t;
    else if (instr.purpose == Purpose::kParameterGather)
      time.gather += t;
    else
      time.optimizer += t;
  }
  return time;
}

}  // namespace meshwright
