// One rank of the tests that need real processes: comm_probe RANK SIZE PORT TASK [TEXT].
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "engine/collectives.h"
#include "engine/gloo_comm.h"
#include "engine/watchdog.h"

namespace meshwright {
namespace {

using std::chrono::milliseconds;

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void expect(bool holds, const std::string& what) {
  if (!holds) throw InternalError(what);
}

void try_collectives(Comm& comm) {
  const int size = comm.size();
  const std::vector<int> group = all_ranks(size);
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kLong}) {
    for (const std::int64_t numel : {1, 64, 40000}) {
      const std::int64_t before = comm.bytes_sent();
      at::Tensor sum = at::full({numel}, comm.rank() + 1, type);
      all_reduce(comm, group, sum, false, 1);
      expect((sum == size * (size + 1) / 2).all().item<bool>(), "all_reduce");
      if (numel % size == 0)
        expect(comm.bytes_sent() - before ==
                   2 * (size - 1) * numel / size * static_cast<std::int64_t>(sum.element_size()),
               "bytes of all_reduce");
      at::Tensor most = at::full({numel}, comm.rank(), type);
      all_reduce(comm, group, most, true, 1);
      expect((most == size - 1).all().item<bool>(), "maximum");

      std::vector<at::Tensor> blocks, give, take;
      for (int i = 0; i < size; ++i) {
        blocks.push_back(at::full({numel + i}, 10 * comm.rank() + i, type));
        give.push_back(at::full({i == 1 ? 0 : numel}, 10 * comm.rank() + i, type));
        take.push_back(at::zeros({comm.rank() == 1 ? 0 : numel}, blocks[0].options()));
      }
      const at::Tensor mine = reduce_scatter(comm, group, blocks, 2);
      expect((mine == 5 * size * (size - 1) + size * comm.rank()).all().item<bool>(),
             "reduce_scatter");
      for (int i = 0; i < size; ++i)
        if (i == comm.rank()) blocks[i].fill_(i + 1);
      all_gather(comm, group, blocks, 3);
      for (int i = 0; i < size; ++i) expect((blocks[i] == i + 1).all().item<bool>(), "all_gather");
      exchange(comm, group, give, take, 4);
      for (int i = 0; i < size; ++i)
        expect((take[i] == 10 * i + comm.rank()).all().item<bool>(), "exchange");
    }
  }
  if (size == 1) return;
  // Order within a tag, tags apart, both directions at once, flags as bytes.
  const int next = (comm.rank() + 1) % size, previous = (comm.rank() + size - 1) % size;
  std::vector<at::Tensor> given, taken;
  std::vector<std::unique_ptr<Pending>> pending;
  for (int i = 0; i < 12; ++i) {
    given.push_back(at::full({1000}, i % 3 == 0, at::kBool));
    taken.push_back(at::empty({1000}, at::kBool));
    pending.push_back(comm.send(given.back(), next, i % 4));
  }
  for (int i = 11; i >= 0; --i) {
    // Of each tag the three messages in order.
    const int order = 8 - i / 4 * 4 + i % 4;
    pending.push_back(comm.receive(taken[order], previous, i % 4));
  }
  for (const auto& p : pending) p->wait();
  for (int i = 0; i < 12; ++i) expect(at::equal(taken[i], given[i]), "order of messages");
}

void measure(Comm& comm) {
  const std::vector<int> group = all_ranks(comm.size());
  for (const std::int64_t bytes : {1 << 6, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24}) {
    at::Tensor data = at::ones({bytes / 4}, at::kFloat), back = at::ones_like(data);
    for (const bool reduce : {false, true}) {
      std::vector<double> times;
      for (int i = 0; i < 22; ++i) {
        at::Tensor gate = at::ones({1});
        all_reduce(comm, group, gate, false, 0);
        const auto start = std::chrono::steady_clock::now();
        if (reduce) {
          all_reduce(comm, group, data, false, 0);
        } else if (comm.rank() == 0) {
          auto coming = comm.receive(back, 1, 0);
          comm.send(data, 1, 0)->wait();
          coming->wait();
        } else if (comm.rank() == 1) {
          comm.receive(back, 0, 0)->wait();
          comm.send(data, 0, 0)->wait();
        }
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        if (i >= 2) times.push_back(reduce ? taken.count() : taken.count() / 2);
      }
      std::sort(times.begin(), times.end());
      const double median = times[times.size() / 2];
      const double share = reduce ? 2.0 * (comm.size() - 1) / comm.size() : 1;
      if (comm.rank() == 0)
        fmt::print("{:>9} B {:10} {:9.3f} ms (best {:.3f}) {:7.2f} Gbit/s\n", bytes,
                   reduce ? "all_reduce" : "send", median * 1e3, times[0] * 1e3,
                   8e-9 * share * static_cast<double>(bytes) / median);
    }
  }
}

/// Whole messages of 64 MB one way, so that a death falls into the middle of one.
void stream(Comm& comm) {
  at::Tensor data = at::ones({std::int64_t{1} << 24});
  for (;;) {
    if (comm.rank() == 0) comm.send(data, 1, 0)->wait();
    if (comm.rank() == 1) comm.receive(data, 0, 0)->wait();
  }
}

void train(Comm& comm, std::atomic<int>& step, const std::string& task) {
  for (;; ++step) {
    if (step == 3) std::puts("running");
    std::fflush(stdout);
    if (task == "fail" && step == 20 && comm.rank() == comm.size() - 1) throw Error("loss is NaN");
    if (task == "end" && step == 20 + 20 * comm.rank()) return;
    at::Tensor data = at::ones({1000});
    // "alone" and "end" leave the watch to the watchdog.
    if (task == "train" || task == "fail") all_reduce(comm, all_ranks(comm.size()), data, false, 0);
    std::this_thread::sleep_for(milliseconds(10));
  }
}

void run(const Rendezvous& r, const std::string& task, const std::string& text) {
  RunStore store(r);
  const auto comm = gloo_comm(store);
  if (task == "collectives") {
    try_collectives(*comm);
    store.barrier("end", r.timeout);
  } else if (task == "agree") {
    store.agree("the plan", text, r.timeout);
  } else if (task == "measure") {
    measure(*comm);
    store.barrier("end", r.timeout);
  } else if (task == "stream") {
    std::puts("running");
    std::fflush(stdout);
    stream(*comm);
  } else if (task == "silent") {
    at::Tensor data = at::ones({5});
    if (r.rank == 0) comm->receive(data, 1, 77)->wait();
    std::this_thread::sleep_for(r.timeout * 3);
  } else if (task == "abort") {
    at::Tensor data = at::ones({5});
    if (r.rank == 1) {
      comm->abort("disk full");
      throw Error("disk full");
    }
    comm->receive(data, r.size - 1 == r.rank ? 0 : r.size - 1, 1)->wait();
  } else {
    std::atomic<int> step = 0;
    Watchdog watchdog(store, [&] { return fmt::format("step {}", step.load()); },
                      {.beat = milliseconds(250), .limit = milliseconds(2000)});
    std::string reason;
    try {
      train(*comm, step, task);
      watchdog.finish();
      return;
    } catch (const PeerLost& e) {
      reason = watchdog.fail(e.what(), e.peer);
    } catch (const Error& e) {
      reason = watchdog.fail(e.what());
    }
    comm->abort(reason);
    throw Error(reason);
  }
}

}  // namespace
}  // namespace meshwright

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  meshwright::one_thread_per_rank();
  meshwright::Rendezvous r;
  r.rank = std::atoi(argv[1]);
  r.size = std::atoi(argv[2]);
  r.master_port = std::atoi(argv[3]);
  const std::string task = argv[4];
  r.timeout = std::chrono::milliseconds(task == "brief" || task == "silent" ? 700
                                        : task == "stream"                  ? 60000
                                                                            : 20000);
  try {
    meshwright::run(r, task, argc > 5 ? argv[5] : "");
  } catch (const std::exception& e) {
    fmt::print(stderr, "rank {} ends: {}\n", r.rank, e.what());
    std::_Exit(3);
  }
  return 0;
}
