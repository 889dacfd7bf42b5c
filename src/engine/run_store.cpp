#include "engine/run_store.h"

#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <thread>

#include "base/error.h"
#include "engine/store_backend.h"

namespace meshwright {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// A store that lives answers in far less; one whose process is stopped never does.
constexpr milliseconds kAnswer = std::chrono::seconds(10);

/// Libraries never print: c10d warns of every try to connect that fails.
class Silence {
 public:
  Silence() : before_(FLAGS_caffe2_log_level) { FLAGS_caffe2_log_level = 3; }
  ~Silence() { FLAGS_caffe2_log_level = before_; }

 private:
  int before_;
};

/// Empty when something listens there; else why not.
std::string try_connect(const std::string& host, int port, milliseconds limit) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed != 0) return gai_strerror(failed);
  std::string reason = "no address";
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    int error = 0;
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) error = errno;
    if (error == EINPROGRESS) {
      pollfd p{fd, POLLOUT, 0};
      socklen_t length = sizeof error;
      if (poll(&p, 1, static_cast<int>(limit.count())) != 1) {
        error = ETIMEDOUT;
      } else {
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
      }
    }
    close(fd);
    if (error == 0) {
      freeaddrinfo(found);
      return {};
    }
    reason = std::strerror(error);
  }
  freeaddrinfo(found);
  return reason;
}

/// Throws Error unless this process could listen there.
void check_port_free(int port) {
  const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;  // Without IPv6 the store itself finds out.
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_port = htons(static_cast<std::uint16_t>(port));
  const bool free =
      bind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0 && listen(fd, 1) == 0;
  const int error = errno;
  close(fd);
  if (!free && (error == EADDRINUSE || error == EACCES))
    throw Error(fmt::format("port {} cannot be used by rank 0: {}", port, std::strerror(error)),
                "master port", "choose another port, or end the program that listens there");
}

void check(const Rendezvous& r) {
  if (r.size < 1 || r.rank < 0 || r.rank >= r.size)
    throw Error(fmt::format("rank {} of {} ranks", r.rank, r.size), "rendezvous",
                "ranks count from 0 to the number of ranks less one");
  if (r.master_port < 1 || r.master_port > 65535)
    throw Error(fmt::format("port {}", r.master_port), "master port", "1 to 65535");
  if (r.timeout < milliseconds(1)) throw Error("a timeout must be positive", "rendezvous");
}

c10d::TCPStoreOptions store_options(const Rendezvous& r, bool serve) {
  c10d::TCPStoreOptions o;
  o.port = static_cast<std::uint16_t>(r.master_port);
  o.isServer = serve;
  o.waitWorkers = false;
  o.timeout = std::max<milliseconds>(std::min(r.timeout, kAnswer), std::chrono::seconds(1));
  return o;
}

std::vector<std::uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }

std::string to_text(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

struct RunStore::State {
  Rendezvous rendezvous;
  c10::intrusive_ptr<c10d::TCPStore> server;  // on rank 0, which keeps it alive
  c10::intrusive_ptr<c10d::TCPStore> client;
  std::map<std::string, int> rounds;  // of barriers and agreements, by name

  template <typename F>
  auto ask(const F& f) {
    try {
      return f();
    } catch (const std::exception& e) {
      throw Error(
          fmt::format("the store of rank 0 at {} is gone: {}", rendezvous.master(), first_line(e)));
    }
  }

  void open_client() {
    const auto deadline = Clock::now() + rendezvous.timeout;
    for (;;) {
      const std::string reason =
          try_connect(rendezvous.master_address, rendezvous.master_port, milliseconds(1000));
      if (reason.empty()) break;
      if (Clock::now() > deadline)
        throw Error(
            fmt::format("rank {} did not reach rank 0 at {} within {} ms: {}", rendezvous.rank,
                        rendezvous.master(), rendezvous.timeout.count(), reason),
            "rendezvous", "does rank 0 run there, and does nothing block the port?");
      std::this_thread::sleep_for(milliseconds(30));
    }
    const Silence silence;
    ask([&] {
      client = c10::make_intrusive<c10d::TCPStore>(rendezvous.master_address,
                                                   store_options(rendezvous, false));
      // A first answer shows that a store listens there; waiting for it also sets the time after
      // which later calls of this connection give up.
      const std::string key = fmt::format("hello/{}", rendezvous.rank);
      client->set(key, to_bytes("hello"));
      client->wait({key}, std::min(rendezvous.timeout, kAnswer));
      return 0;
    });
  }
};

RunStore::RunStore(const Rendezvous& r) : state_(std::make_unique<State>()) {
  check(r);
  state_->rendezvous = r;
  if (r.rank == 0) {
    check_port_free(r.master_port);
    const Silence silence;
    try {
      state_->server =
          c10::make_intrusive<c10d::TCPStore>(r.master_address, store_options(r, true));
    } catch (const std::exception& e) {
      throw Error(fmt::format("rank 0 cannot serve at {}: {}", r.master(), first_line(e)),
                  "rendezvous", "the master address must be one of the host of rank 0");
    }
  }
  state_->open_client();
  if (r.rank == 0) set("ranks", std::to_string(r.size));
  const std::string size = wait("ranks", r.timeout);
  if (size != std::to_string(r.size))
    throw Error(fmt::format("rank {} was told of {} ranks, rank 0 of {}", r.rank, r.size, size),
                "rendezvous");
  const std::int64_t alike = state_->ask(
      [&] { return state_->client->add(fmt::format("processes of rank {}", r.rank), 1); });
  if (alike != 1)
    throw Error(fmt::format("{} processes say that they are rank {}", alike, r.rank), "rendezvous",
                "give each its own rank, and each run its own port");
}

RunStore::RunStore(std::unique_ptr<State> state) : state_(std::move(state)) {}
RunStore::RunStore(RunStore&&) noexcept = default;
RunStore& RunStore::operator=(RunStore&&) noexcept = default;
RunStore::~RunStore() = default;

RunStore RunStore::connect() const {
  auto state = std::make_unique<State>();
  state->rendezvous = state_->rendezvous;
  state->server = state_->server;
  state->open_client();
  return RunStore(std::move(state));
}

const Rendezvous& RunStore::rendezvous() const { return state_->rendezvous; }

void RunStore::set(const std::string& key, const std::string& text) {
  state_->ask([&] {
    state_->client->set(key, to_bytes(text));
    return 0;
  });
}

std::optional<std::string> RunStore::get(const std::string& key) {
  return state_->ask([&]() -> std::optional<std::string> {
    if (!state_->client->check({key})) return std::nullopt;
    return to_text(state_->client->get(key));
  });
}

bool RunStore::has_all(const std::vector<std::string>& keys) {
  return keys.empty() || state_->ask([&] { return state_->client->check(keys); });
}

std::string RunStore::wait(const std::string& key, milliseconds timeout) {
  // Asked again and again, since a wait that c10d gives up leaves its connection in disorder.
  const auto deadline = Clock::now() + timeout;
  for (milliseconds pause(1);; pause = std::min(pause * 2, milliseconds(20))) {
    if (auto text = get(key)) return *text;
    if (Clock::now() > deadline)
      throw Error(fmt::format("no rank has said '{}' within {} ms", key, timeout.count()));
    std::this_thread::sleep_for(pause);
  }
}

void RunStore::barrier(const std::string& name, milliseconds timeout) {
  const Rendezvous& r = state_->rendezvous;
  const std::string base = fmt::format("barrier/{}/{}", name, state_->rounds["barrier/" + name]++);
  std::vector<std::string> keys;
  for (int i = 0; i < r.size; ++i) keys.push_back(fmt::format("{}/{}", base, i));
  set(keys[r.rank], "here");
  const auto deadline = Clock::now() + timeout;
  for (milliseconds pause(1);; pause = std::min(pause * 2, milliseconds(20))) {
    if (has_all(keys)) return;
    // Who gives up first says so, since the store may end with it.
    if (const auto verdict = get(base)) throw Error(*verdict);
    if (Clock::now() > deadline) break;
    std::this_thread::sleep_for(pause);
  }
  std::vector<int> missing;
  for (int i = 0; i < r.size; ++i)
    if (!has_all({keys[i]})) missing.push_back(i);
  if (missing.empty()) return;
  const std::string verdict = fmt::format("rank{} {} of {} did not come to '{}' at {} within {} ms",
                                          missing.size() == 1 ? "" : "s", list_ranks(missing),
                                          r.size, name, r.master(), timeout.count());
  set(base, verdict);
  if (r.rank == 0) std::this_thread::sleep_for(milliseconds(300));
  throw Error(verdict);
}

void RunStore::agree(const std::string& name, const std::string& text, milliseconds timeout) {
  const Rendezvous& r = state_->rendezvous;
  const std::string base = fmt::format("agree/{}/{}", name, state_->rounds["agree/" + name]++);
  set(fmt::format("{}/{}", base, r.rank), text);
  barrier("say " + name, timeout);
  const std::string first = wait(fmt::format("{}/0", base), timeout);
  std::vector<int> others;
  for (int i = 1; i < r.size; ++i)
    if (wait(fmt::format("{}/{}", base, i), timeout) != first) others.push_back(i);
  // None leaves, and takes the store along, before all have read.
  barrier("hear " + name, timeout);
  if (others.empty()) return;
  throw Error(fmt::format("ranks disagree on {}: rank 0 has '{}', rank{} {} {} not", name, first,
                          others.size() == 1 ? "" : "s", list_ranks(others),
                          others.size() == 1 ? "does" : "do"),
              "", "start all ranks with the same files and options");
}

std::string list_ranks(const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i >= 3) {
      parts.push_back(fmt::format("{} to {}", ranks[i], ranks[end - 1]));
    } else {
      for (std::size_t j = i; j < end; ++j) parts.push_back(std::to_string(ranks[j]));
    }
    i = end;
  }
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i)
    text += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
  return text;
}

c10::intrusive_ptr<c10d::Store> StoreBackend::of(RunStore& store) { return store.state_->client; }

std::string first_line(const std::exception& e) {
  const std::string text = e.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace meshwright
