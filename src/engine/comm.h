#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace meshwright {

/// The connection with a peer ended while it was needed.
class PeerLost : public Error {
 public:
  PeerLost(int lost, std::string message) : Error(std::move(message)), peer(lost) {}
  int peer;
};

/// A message under way. `wait` returns when a send's tensor may be reused or a receive's is filled;
/// throws PeerLost when the connection is lost, Error when time is up.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual void wait() = 0;
};

/// Point-to-point messages between the ranks of a run. Messages from one rank to another with one
/// tag arrive in the order sent. A tensor must be contiguous and stay untouched until waited for;
/// empty tensors are not sent. One thread per Comm.
class Comm {
 public:
  virtual ~Comm() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::unique_ptr<Pending> send(const at::Tensor& data, int to, int tag) = 0;
  virtual std::unique_ptr<Pending> receive(at::Tensor& data, int from, int tag) = 0;
  /// In place over `group` (ascending or not, the same order on all; includes this rank) when the
  /// library has one of its own (NCCL); false = nothing done, compose it.
  virtual bool native_all_reduce(std::span<const int>, at::Tensor&, bool) { return false; }
  /// This rank has failed: waits of its peers end with an Error, the failure_text of this, as soon
  /// as the library can tell them. Nothing may be sent or received after it.
  virtual void abort(const std::string& reason) = 0;
  /// Bytes of payload sent so far.
  std::int64_t bytes_sent() const { return bytes_sent_; }

 protected:
  std::int64_t bytes_sent_ = 0;
};

/// "rank 2 failed: loss is NaN"; a reason that begins with a rank ("rank 1: ...", "rank 1 failed:
/// ...") stays as it is, so that what is passed on by many is told once.
std::string failure_text(int rank, const std::string& reason);

}  // namespace meshwright
