#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "cost/cost_model.h"
#include "cost/profile.h"
#include "plan/signature.h"

namespace meshwright {

/// Times of one segment's blocks, by purpose. Overlapped instructions are kept apart: what of them
/// is exposed depends on the compute around them.
struct BlockTime {
  Seconds serial;   ///< Compute and communication that the compute stream waits for, or the host's
                    ///< time to launch it all when that is longer.
  Seconds host;     ///< The part of `serial` in which the device waits for the host.
  Seconds gather;   ///< Parameter gathers on the communication stream.
  Seconds scatter;  ///< Gradient reductions on the communication stream.
  std::array<Seconds, kPurposeCount> by_purpose{};  ///< Of everything, overlapped or not.
};

/// Whether an instruction takes no time of its own: views, slices, frees.
bool is_free(const Instr& instr);

/// Prices instructions of one stage shape on a cluster; c-meshes are derived once per axis list.
class Pricer {
 public:
  Pricer(const Cluster& cluster, const CostModel& model, std::string_view engine);
  /// With numbers of one's own, one per device kind of the cluster.
  Pricer(const Cluster& cluster, const CostModel& model, std::vector<Efficiency> efficiency);

  /// From here on instructions of this graph are priced by a profile: those that were signed, and
  /// communication. Models that want no profile ignore it.
  void use_profile(std::shared_ptr<const ProfileTable> table, const Graph& graph);
  /// Looks up every instruction in the profile, into Instr::measured; `samples` as for lowering.
  /// Without a profile nothing happens.
  void sign(SegmentProgram& program, const Mesh& mesh, std::int64_t samples);
  /// A whole program of a plan, steps included.
  void sign(Program& program, const Plan& plan);
  /// Of the instructions priced so far, how many by a measurement; nothing without a profile.
  std::optional<ProfileCoverage> coverage() const;

  /// On the mesh's slowest device kind.
  Seconds price(const Instr& instr, const Mesh& mesh);
  /// One pass over a block. Ring attention is hidden behind the attention kernel that follows, up
  /// to the efficiency's context_overlap.
  BlockTime block(const std::vector<Instr>& instrs, const Mesh& mesh);
  /// A message between the stage of `mesh` and its neighbour `offset` devices away.
  Seconds peer(Bytes bytes, const Mesh& mesh, int offset);

  const Efficiency& efficiency(const Mesh& mesh);
  const DeviceKind& slowest_kind(const Mesh& mesh) const;
  const Cluster& cluster() const { return cluster_; }

 private:
  struct Profile {
    std::shared_ptr<const ProfileTable> table;
    Signer signer;
    ProfileUse use;
  };

  const CommMesh& comm(const Mesh& mesh, const AxisList& axes);
  ProfileUse* profile() { return profile_ ? &profile_->use : nullptr; }

  const Cluster& cluster_;
  const CostModel& model_;
  std::vector<Efficiency> efficiency_;  // Per device kind.
  std::map<std::vector<int>, CommMesh>
      comm_meshes_;  // Key: (size, stride) of each axis, first device's host offset.
  std::unique_ptr<Profile> profile_;
};

/// A bucketed pass of the optimizer step: what of it the backward pass may hide, and what not.
struct StepTime {
  Seconds reduce;  ///< Gradient reductions.
  Seconds optimizer;
  Seconds gather;
};
StepTime step_time(const std::vector<Instr>& step, const Mesh& mesh, Pricer& pricer);

}  // namespace meshwright
