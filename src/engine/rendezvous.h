#pragma once

#include <chrono>
#include <string>

namespace meshwright {

/// Where the ranks of a run meet. Rank 0 serves a store at the address that all are given.
struct Rendezvous {
  int rank = 0;
  int size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 29500;
  /// Network interface for messages between ranks; empty = the one that leads to the master (which
  /// is loopback for 127.0.0.1, and also for a master whose name resolves to loopback on its own
  /// host: give such runs an address).
  std::string interface;
  /// For the ranks to come, and for each message.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  /// For each message, where that is another time; 0 = it is not.
  std::chrono::milliseconds message_timeout{0};

  std::chrono::milliseconds for_messages() const {
    return message_timeout.count() > 0 ? message_timeout : timeout;
  }
  std::string master() const { return master_address + ":" + std::to_string(master_port); }
};

}  // namespace meshwright
