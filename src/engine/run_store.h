#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/rendezvous.h"

namespace meshwright {

/// Short texts under names that all ranks of a run read and write: a connection to the store that
/// rank 0 serves. One thread per connection. Every function throws Error when the store is gone or
/// does not answer; after that the connection is of no more use.
class RunStore {
 public:
  /// Rank 0 starts to serve, and serves while any RunStore that it made lives; the others wait
  /// until it does. Throws Error: port in use, no such master within the time, two processes of
  /// one rank, ranks that disagree on the number of ranks.
  explicit RunStore(const Rendezvous& rendezvous);
  RunStore(RunStore&&) noexcept;
  RunStore& operator=(RunStore&&) noexcept;
  ~RunStore();

  /// One more connection, for another thread.
  RunStore connect() const;

  const Rendezvous& rendezvous() const;
  void set(const std::string& key, const std::string& text);
  /// Does not wait.
  std::optional<std::string> get(const std::string& key);
  bool has_all(const std::vector<std::string>& keys);
  /// Throws Error when nobody sets it in time.
  std::string wait(const std::string& key, std::chrono::milliseconds timeout);
  /// Returns when all ranks have called it equally often by this name; throws Error naming the
  /// ranks that are missing.
  void barrier(const std::string& name, std::chrono::milliseconds timeout);
  /// Throws Error, on every rank, listing the ranks whose text differs from that of rank 0.
  void agree(const std::string& name, const std::string& text, std::chrono::milliseconds timeout);

 private:
  friend struct StoreBackend;
  struct State;
  explicit RunStore(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// "0, 2 to 5 and 7".
std::string list_ranks(const std::vector<int>& ranks);

}  // namespace meshwright
