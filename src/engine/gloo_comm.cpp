#include "engine/gloo_comm.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/error.h"
#include "engine/store_backend.h"

namespace meshwright {
namespace {

using std::chrono::milliseconds;
using Buffer = gloo::transport::UnboundBuffer;

/// c10d connects; messages go through its Gloo context directly, since a wait of c10d's own Work
/// can only end by closing all connections. Base classes differ between libtorch 1 and 2 (a
/// ProcessGroup there, a Backend here), their contexts do not.
class Group : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  std::shared_ptr<gloo::Context> context() const { return contexts_.at(0); }
};

/// Slots below are the tags of messages.
constexpr std::uint64_t kFarewellSlot = std::uint64_t{1} << 40;
constexpr std::size_t kFarewellBytes = 1024;
constexpr milliseconds kLook(50);

/// What Gloo says without the place in its source.
std::string words_of(const std::exception& e) {
  const std::string text = first_line(e);
  const std::size_t end = text.starts_with('[') ? text.find("] ") : std::string::npos;
  return end == std::string::npos ? text : text.substr(end + 2);
}

PeerLost lost(int rank, int peer, const std::string& why) {
  return PeerLost(peer,
                  fmt::format("rank {}: the connection to rank {} is lost: {}", rank, peer, why));
}

/// The numeric address of this host on the way to the master.
std::string address_towards(const Rendezvous& r) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(r.master_address.c_str(), "9", &hints, &found) != 0 || found == nullptr)
    throw Error(fmt::format("the master's address '{}' is not known", r.master_address));
  // Connecting a datagram socket sends nothing; it only picks a route.
  sockaddr_storage mine{};
  socklen_t length = sizeof mine;
  const int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool routed = fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
                      getsockname(fd, reinterpret_cast<sockaddr*>(&mine), &length) == 0;
  if (fd >= 0) close(fd);
  freeaddrinfo(found);
  std::array<char, NI_MAXHOST> text{};
  if (!routed || getnameinfo(reinterpret_cast<sockaddr*>(&mine), length, text.data(), text.size(),
                             nullptr, 0, NI_NUMERICHOST) != 0)
    throw Error(fmt::format("this host has no route to the master {}", r.master_address));
  return text.data();
}

std::shared_ptr<gloo::transport::Device> device_for(const Rendezvous& r) {
  try {
    return r.interface.empty() ? Group::createDeviceForHostname(address_towards(r))
                               : Group::createDeviceForInterface(r.interface);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    throw Error(fmt::format("rank {} cannot listen on {}: {}", r.rank,
                            r.interface.empty() ? "its address" : "interface " + r.interface,
                            first_line(e)),
                "interface", "`ip address` lists the interfaces of this host");
  }
}

/// Gloo tells of a lost peer only to messages that have not begun: one half through would wait for
/// the end of its time. So a receive that nothing answers stands open from every peer, and a thread
/// looks after these: a lost connection ends them with an exception, and a peer that fails sends
/// its reason there.
class Lookout {
 public:
  Lookout(gloo::Context& context, int rank, int size) : rank_(rank), texts_(size), buffers_(size) {
    states_.resize(size);
    for (int p = 0; p < size; ++p) {
      if (p == rank) continue;
      texts_[p].resize(kFarewellBytes);
      buffers_[p] = context.createUnboundBuffer(texts_[p].data(), kFarewellBytes);
      buffers_[p]->recv(p, kFarewellSlot);
    }
    thread_ = std::thread([this] { run(); });
  }

  ~Lookout() {
    {
      const std::scoped_lock lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  /// Throws what ends all waits for this peer, if anything does.
  void check(int peer) {
    const std::scoped_lock lock(mutex_);
    check_locked(peer);
  }

  /// The same, at once: what a peer says last comes before the end of its connection.
  void look_and_check(int peer) {
    const std::scoped_lock lock(mutex_);
    look_at_all();
    check_locked(peer);
  }

  /// Between these, `buffer` is interrupted when its peer is lost or any rank fails.
  void begin_wait(Buffer& buffer, int peer, bool receives) {
    const std::scoped_lock lock(mutex_);
    check_locked(peer);
    waiting_ = {&buffer, peer, receives};
  }
  void end_wait() {
    const std::scoped_lock lock(mutex_);
    waiting_.buffer = nullptr;
  }

 private:
  struct Waiting {
    Buffer* buffer = nullptr;
    int peer = 0;
    bool receives = false;
  };

  void check_locked(int peer) const {
    if (failed_ >= 0) throw Error(failure_text(failed_, reason_));
    if (!states_[peer].empty()) throw lost(rank_, peer, states_[peer]);
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, kLook, [&] { return stop_; })) {
      look_at_all();
      if (waiting_.buffer != nullptr && (failed_ >= 0 || !states_[waiting_.peer].empty())) {
        if (waiting_.receives)
          waiting_.buffer->abortWaitRecv();
        else
          waiting_.buffer->abortWaitSend();
      }
    }
  }

  void look_at_all() {
    for (std::size_t p = 0; p < buffers_.size(); ++p)
      if (buffers_[p]) look(static_cast<int>(p));
  }

  void look(int peer) {
    Buffer& buffer = *buffers_[peer];
    try {
      // An interruption asked for beforehand makes the wait return at once.
      buffer.abortWaitRecv();
      const bool filled = buffer.waitRecv(nullptr, milliseconds(1000)) || is_filled(peer);
      if (!filled) return;
      if (failed_ < 0) {
        failed_ = peer;
        reason_ = std::string(texts_[peer].c_str());
      }
    } catch (const std::exception& e) {
      states_[peer] = words_of(e);
    }
    buffers_[peer].reset();
  }

  /// An interruption hides that the message came; its last byte, never zero, shows it.
  bool is_filled(int peer) const {
    return static_cast<const volatile char&>(texts_[peer].back()) != 0;
  }

  const int rank_;
  std::vector<std::string> texts_;
  std::vector<std::unique_ptr<Buffer>> buffers_;  // none: has ended
  std::vector<std::string> states_;               // by peer: why it is lost; empty = it is not
  int failed_ = -1;
  std::string reason_;
  Waiting waiting_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

class Message : public Pending {
 public:
  Message(at::Tensor data, std::unique_ptr<Buffer> buffer, Lookout& lookout, int rank, int peer,
          int tag, bool receives, milliseconds timeout)
      : data_(std::move(data)),
        buffer_(std::move(buffer)),
        lookout_(lookout),
        rank_(rank),
        peer_(peer),
        tag_(tag),
        receives_(receives),
        timeout_(timeout) {}

  void wait() override {
    const auto start = std::chrono::steady_clock::now();
    try {
      lookout_.begin_wait(*buffer_, peer_, receives_);
      const bool done = wait_for(timeout_);
      lookout_.end_wait();
      // What interrupted it may have come just after the message was complete.
      if (!done && !wait_for(milliseconds(1))) lookout_.check(peer_);
    } catch (const Error&) {
      // Lost or failed; but a message that was complete before is good.
      lookout_.end_wait();
      bool done = false;
      try {
        done = wait_for(milliseconds(1));
      } catch (const std::exception&) {
      }
      if (!done) throw;
    } catch (const std::exception& e) {
      lookout_.end_wait();
      if (std::chrono::steady_clock::now() - start >= timeout_)
        throw Error(fmt::format("rank {}: the {} rank {} with tag {} took longer than {} ms", rank_,
                                receives_ ? "receive from" : "send to", peer_, tag_,
                                timeout_.count()));
      lookout_.look_and_check(peer_);
      throw lost(rank_, peer_, words_of(e));
    }
  }

 private:
  bool wait_for(milliseconds limit) {
    return receives_ ? buffer_->waitRecv(nullptr, limit) : buffer_->waitSend(nullptr, limit);
  }

  at::Tensor data_;  // keeps the memory while Gloo may touch it
  std::unique_ptr<Buffer> buffer_;
  Lookout& lookout_;
  int rank_, peer_, tag_;
  bool receives_;
  milliseconds timeout_;
};

class GlooComm : public Comm {
 public:
  explicit GlooComm(RunStore store) : store_(std::move(store)), rendezvous_(store_.rendezvous()) {
    std::signal(SIGPIPE, SIG_IGN);  // Gloo writes to sockets that peers have closed.
    store_.barrier("start", rendezvous_.timeout);
    if (rendezvous_.size == 1) return;
    auto options = c10d::ProcessGroupGloo::Options::create(rendezvous_.for_messages());
    options->threads = 1;
    options->devices.push_back(device_for(rendezvous_));
    try {
      group_ = c10::make_intrusive<Group>(
          c10::make_intrusive<c10d::PrefixStore>("gloo", StoreBackend::of(store_)),
          rendezvous_.rank, rendezvous_.size, options);
    } catch (const std::exception& e) {
      throw Error(fmt::format("rank {} cannot connect to all other ranks: {}", rendezvous_.rank,
                              first_line(e)),
                  "interface", "give the interface by which the hosts reach one another");
    }
    lookout_.emplace(*group_->context(), rendezvous_.rank, rendezvous_.size);
    // From here on a receive stands open at every peer.
    store_.barrier("connected", rendezvous_.timeout);
  }

  int rank() const override { return rendezvous_.rank; }
  int size() const override { return rendezvous_.size; }

  std::unique_ptr<Pending> send(const at::Tensor& data, int to, int tag) override {
    auto pending = post(data, to, tag, false);
    bytes_sent_ += static_cast<std::int64_t>(data.nbytes());
    return pending;
  }

  std::unique_ptr<Pending> receive(at::Tensor& data, int from, int tag) override {
    return post(data, from, tag, true);
  }

  void abort(const std::string& reason) override {
    if (!group_) return;
    std::string text = reason.substr(0, kFarewellBytes - 2);
    text.resize(kFarewellBytes, '\0');
    text.back() = '.';
    std::vector<std::unique_ptr<Buffer>> sends;
    for (int p = 0; p < size(); ++p) {
      if (p == rank()) continue;
      try {
        auto buffer = group_->context()->createUnboundBuffer(text.data(), text.size());
        buffer->send(p, kFarewellSlot);
        sends.push_back(std::move(buffer));
      } catch (const std::exception&) {  // Lost already.
      }
    }
    for (const auto& s : sends) {
      try {
        s->waitSend(nullptr, milliseconds(200));
      } catch (const std::exception&) {
      }
    }
  }

 private:
  std::unique_ptr<Pending> post(const at::Tensor& data, int peer, int tag, bool receives) {
    MW_CHECK(peer >= 0 && peer < size() && peer != rank(),
             fmt::format("rank {} of {} has no peer {}", rank(), size(), peer));
    MW_CHECK(data.is_contiguous() && data.numel() > 0 && tag >= 0,
             "messages are contiguous and not empty, tags not negative");
    lookout_->check(peer);
    auto buffer = group_->context()->createUnboundBuffer(data.data_ptr(), data.nbytes());
    try {
      if (receives)
        buffer->recv(peer, static_cast<std::uint64_t>(tag));
      else
        buffer->send(peer, static_cast<std::uint64_t>(tag));
    } catch (const std::exception& e) {
      throw lost(rank(), peer, words_of(e));
    }
    return std::make_unique<Message>(data, std::move(buffer), *lookout_, rank(), peer, tag,
                                     receives, rendezvous_.for_messages());
  }

  RunStore store_;
  Rendezvous rendezvous_;
  c10::intrusive_ptr<Group> group_;  // none when this rank is alone
  std::optional<Lookout> lookout_;
};

}  // namespace

std::unique_ptr<Comm> gloo_comm(const Rendezvous& rendezvous) {
  return std::make_unique<GlooComm>(RunStore(rendezvous));
}

std::unique_ptr<Comm> gloo_comm(RunStore& store) {
  return std::make_unique<GlooComm>(store.connect());
}

void one_thread_per_rank() {
  // For the BLAS and OpenMP libraries, where they have not started yet.
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"})
    setenv(name, "1", 1);
  // OpenBLAS has read its variable when it was loaded, and has threads of its own.
  if (void* found = dlsym(RTLD_DEFAULT, "openblas_set_num_threads"))
    reinterpret_cast<void (*)(int)>(found)(1);
  at::set_num_threads(1);
  static std::once_flag once;  // ATen takes it once.
  std::call_once(once, [] { at::set_num_interop_threads(1); });
}

}  // namespace meshwright
