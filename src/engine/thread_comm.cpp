#include "engine/thread_comm.h"

#include <fmt/format.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "base/error.h"

namespace meshwright {
namespace {

struct Slot {
  at::Tensor target;
  bool filled = false;
};

/// Messages from one rank to another with one tag. One of the two queues is empty: what comes first
/// waits for the other, and both are served in order.
struct Channel {
  std::deque<at::Tensor> sent;
  std::deque<std::shared_ptr<Slot>> wanted;
};

void copy_bytes(const at::Tensor& from, at::Tensor& to, int sender, int receiver, int tag) {
  MW_CHECK(from.nbytes() == to.nbytes(),
           fmt::format("rank {} sends {} bytes where rank {} takes {} (tag {})", sender,
                       from.nbytes(), receiver, to.nbytes(), tag));
  std::memcpy(to.data_ptr(), from.data_ptr(), from.nbytes());
}

struct Board {
  Board(int n, std::chrono::milliseconds most) : size(n), limit(most), arrived(n) {}

  const int size;
  const std::chrono::milliseconds limit;
  std::mutex mutex;
  std::map<std::tuple<int, int, int>, Channel> channels;  // (from, to, tag)
  std::vector<std::condition_variable> arrived;           // by receiver
  int failed_rank = -1;
  std::string reason;

  void check_alive() const {
    if (failed_rank >= 0) throw Error(failure_text(failed_rank, reason));
  }
};

class Sent : public Pending {
 public:
  void wait() override {}
};

class Wanted : public Pending {
 public:
  Wanted(Board& board, std::shared_ptr<Slot> slot, int rank, int from, int tag)
      : board_(board), slot_(std::move(slot)), rank_(rank), from_(from), tag_(tag) {}

  void wait() override {
    std::unique_lock lock(board_.mutex);
    const auto ready = [&] { return slot_->filled || board_.failed_rank >= 0; };
    if (!board_.arrived[rank_].wait_for(lock, board_.limit, ready))
      throw Error(fmt::format("rank {}: no message from rank {} with tag {} within {} ms", rank_,
                              from_, tag_, board_.limit.count()));
    if (!slot_->filled) board_.check_alive();
  }

 private:
  Board& board_;
  std::shared_ptr<Slot> slot_;
  int rank_, from_, tag_;
};

class ThreadComm : public Comm {
 public:
  ThreadComm(std::shared_ptr<Board> board, int rank) : board_(std::move(board)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return board_->size; }

  std::unique_ptr<Pending> send(const at::Tensor& data, int to, int tag) override {
    check_peer(data, to);
    const std::scoped_lock lock(board_->mutex);
    board_->check_alive();
    Channel& channel = board_->channels[{rank_, to, tag}];
    if (channel.wanted.empty()) {
      channel.sent.push_back(data.detach().clone());
    } else {
      const auto slot = channel.wanted.front();
      channel.wanted.pop_front();
      copy_bytes(data, slot->target, rank_, to, tag);
      slot->filled = true;
      board_->arrived[to].notify_all();
    }
    bytes_sent_ += static_cast<std::int64_t>(data.nbytes());
    return std::make_unique<Sent>();
  }

  std::unique_ptr<Pending> receive(at::Tensor& data, int from, int tag) override {
    check_peer(data, from);
    const std::scoped_lock lock(board_->mutex);
    board_->check_alive();
    Channel& channel = board_->channels[{from, rank_, tag}];
    const auto slot = std::make_shared<Slot>(Slot{data, false});
    if (channel.sent.empty()) {
      channel.wanted.push_back(slot);
    } else {
      const at::Tensor message = channel.sent.front();
      channel.sent.pop_front();
      copy_bytes(message, slot->target, from, rank_, tag);
      slot->filled = true;
    }
    return std::make_unique<Wanted>(*board_, slot, rank_, from, tag);
  }

  void abort(const std::string& reason) override {
    const std::scoped_lock lock(board_->mutex);
    if (board_->failed_rank >= 0) return;  // What failed first is what the others report.
    board_->failed_rank = rank_;
    board_->reason = reason;
    for (std::condition_variable& c : board_->arrived) c.notify_all();
  }

 private:
  void check_peer(const at::Tensor& data, int peer) const {
    MW_CHECK(peer >= 0 && peer < board_->size && peer != rank_,
             fmt::format("rank {} of {} has no peer {}", rank_, board_->size, peer));
    MW_CHECK(data.is_contiguous() && data.numel() > 0, "messages are contiguous and not empty");
  }

  std::shared_ptr<Board> board_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Comm>> thread_comms(int size, std::chrono::milliseconds limit) {
  MW_CHECK(size >= 1, "a run has at least one rank");
  const auto board = std::make_shared<Board>(size, limit);
  std::vector<std::unique_ptr<Comm>> comms;
  for (int r = 0; r < size; ++r) comms.push_back(std::make_unique<ThreadComm>(board, r));
  return comms;
}

void run_rank_threads(int size, const std::function<void(Comm&)>& body,
                      std::chrono::milliseconds limit) {
  const auto comms = thread_comms(size, limit);
  std::mutex mutex;
  std::exception_ptr first;
  const auto run = [&](Comm& comm) {
    std::string reason;
    try {
      body(comm);
      return;
    } catch (const std::exception& e) {
      const std::scoped_lock lock(mutex);
      if (!first) first = std::current_exception();
      reason = e.what();
    } catch (...) {
      const std::scoped_lock lock(mutex);
      if (!first) first = std::current_exception();
      reason = "unknown exception";
    }
    comm.abort(reason);
  };
  std::vector<std::thread> threads;
  for (const auto& comm : comms) threads.emplace_back(run, std::ref(*comm));
  for (std::thread& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace meshwright
