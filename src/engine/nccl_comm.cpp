// Written against the headers and never run: no libtorch with NCCL was at hand. Kept as small as it
// can be for that reason.
#include "engine/nccl_comm.h"

#include "base/error.h"

#ifdef USE_C10D_NCCL

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "engine/store_backend.h"

namespace meshwright {
namespace {

using Work = c10::intrusive_ptr<c10d::Work>;

class Message : public Pending {
 public:
  Message(Work work, int peer) : work_(std::move(work)), peer_(peer) {}
  void wait() override {
    try {
      work_->wait();
    } catch (const std::exception& e) {
      throw PeerLost(peer_,
                     fmt::format("the connection to rank {} is lost: {}", peer_, first_line(e)));
    }
  }

 private:
  Work work_;
  int peer_;
};

class NcclComm : public Comm {
 public:
  explicit NcclComm(RunStore store) : store_(std::move(store)), rendezvous_(store_.rendezvous()) {
    store_.barrier("start", rendezvous_.timeout);
  }

  int rank() const override { return rendezvous_.rank; }
  int size() const override { return rendezvous_.size; }

  // Messages of one pair and direction have a communicator (and stream) of their own, or a receive
  // would keep back the sends posted after it. NCCL knows no tags: both ends give messages of one
  // direction in the same order.
  std::unique_ptr<Pending> send(const at::Tensor& data, int to, int) override {
    std::vector<at::Tensor> tensors = {data};
    auto work = group({rank(), to}, "message").send(tensors, 1, 0);
    bytes_sent_ += static_cast<std::int64_t>(data.nbytes());
    return std::make_unique<Message>(std::move(work), to);
  }

  std::unique_ptr<Pending> receive(at::Tensor& data, int from, int) override {
    std::vector<at::Tensor> tensors = {data};
    return std::make_unique<Message>(group({from, rank()}, "message").recv(tensors, 0, 0), from);
  }

  bool native_all_reduce(std::span<const int> ranks, at::Tensor& data, bool maximum) override {
    c10d::AllreduceOptions options;
    options.reduceOp = maximum ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
    std::vector<at::Tensor> tensors = {data};
    group({ranks.begin(), ranks.end()}, "group").allreduce(tensors, options)->wait();
    const auto n = static_cast<std::int64_t>(ranks.size());
    bytes_sent_ += 2 * (n - 1) * static_cast<std::int64_t>(data.nbytes()) / n;
    return true;
  }

  void abort(const std::string&) override {}  // The watchdog tells the others.

 private:
  c10d::ProcessGroupNCCL& group(const std::vector<int>& ranks, const char* kind) {
    const std::string name = fmt::format("{}/{}", kind, fmt::join(ranks, "-"));
    auto& group = groups_[name];
    if (!group) {
      const auto me = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
      auto options = c10d::ProcessGroupNCCL::Options::create();
      options->timeout = rendezvous_.timeout;
      group = c10::make_intrusive<c10d::ProcessGroupNCCL>(
          c10::make_intrusive<c10d::PrefixStore>(name, StoreBackend::of(store_)),
          static_cast<int>(me), static_cast<int>(ranks.size()), options);
    }
    return *group;
  }

  RunStore store_;
  Rendezvous rendezvous_;
  std::map<std::string, c10::intrusive_ptr<c10d::ProcessGroupNCCL>> groups_;
};

}  // namespace

std::unique_ptr<Comm> nccl_comm(RunStore& store) {
  return std::make_unique<NcclComm>(store.connect());
}

}  // namespace meshwright

#else

namespace meshwright {

std::unique_ptr<Comm> nccl_comm(RunStore&) {
  throw Error("this libtorch was built without NCCL", "--device", "run with --device cpu");
}

}  // namespace meshwright

#endif
