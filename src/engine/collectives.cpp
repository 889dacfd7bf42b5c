#include "engine/collectives.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace meshwright {
namespace {

/// A ring over the group as seen from this rank.
struct Ring {
  Ring(Comm& c, std::span<const int> g, int t)
      : comm(c), group(g), size(static_cast<int>(g.size())), tag(t) {
    const auto found = std::find(g.begin(), g.end(), c.rank());
    MW_CHECK(found != g.end(), fmt::format("rank {} is not in the group", c.rank()));
    me = static_cast<int>(found - g.begin());
  }

  /// The member `steps` after this one; negative = before.
  int member(int steps) const { return ((me + steps) % size + size) % size; }

  /// Both at once; the receive is posted first, so that no order of ranks can block.
  void pass(const at::Tensor& give, int to, at::Tensor& take, int from) const {
    std::unique_ptr<Pending> coming, going;
    if (take.defined() && take.numel() > 0) coming = comm.receive(take, group[from], tag);
    if (give.defined() && give.numel() > 0) going = comm.send(give, group[to], tag);
    if (coming) coming->wait();
    if (going) going->wait();
  }

  Comm& comm;
  std::span<const int> group;
  int size;
  int tag;
  int me = 0;
};

void check_blocks(const Ring& ring, const std::vector<at::Tensor>& blocks) {
  MW_CHECK(blocks.size() == ring.group.size(),
           fmt::format("{} blocks for a group of {}", blocks.size(), ring.size));
  for (const at::Tensor& b : blocks)
    MW_CHECK(b.defined() && b.is_contiguous(), "blocks are contiguous");
}

/// Block b starts at the member after b and goes once around, each adding its own part, so that it
/// arrives complete at b. The blocks given stay as they are. Two buffers take turns: what came in
/// one step goes out in the next.
at::Tensor ring_reduce(const Ring& ring, const std::vector<at::Tensor>& blocks, bool maximum) {
  std::int64_t largest = 0;
  for (const at::Tensor& b : blocks) largest = std::max(largest, b.numel());
  at::Tensor buffers[2];
  at::Tensor outgoing = blocks[ring.member(-1)];
  for (int step = 0; step + 1 < ring.size; ++step) {
    const at::Tensor& mine = blocks[ring.member(-2 - step)];
    at::Tensor incoming;
    if (step + 2 == ring.size) {
      incoming = at::empty_like(mine);
    } else {
      at::Tensor& buffer = buffers[step % 2];
      if (!buffer.defined()) buffer = at::empty({largest}, mine.options());
      incoming = buffer.narrow(0, 0, mine.numel()).view(mine.sizes());
    }
    ring.pass(outgoing, ring.member(1), incoming, ring.member(-1));
    if (maximum)
      at::maximum_out(incoming, incoming, mine);
    else
      incoming.add_(mine);
    outgoing = incoming;
  }
  return outgoing;
}

void ring_gather(const Ring& ring, std::vector<at::Tensor>& blocks) {
  for (int step = 0; step + 1 < ring.size; ++step)
    ring.pass(blocks[ring.member(-step)], ring.member(1), blocks[ring.member(-1 - step)],
              ring.member(-1));
}

}  // namespace

void all_reduce(Comm& comm, std::span<const int> group, at::Tensor& data, bool maximum, int tag) {
  const Ring ring(comm, group, tag);
  if (ring.size == 1 || data.numel() == 0) return;
  MW_CHECK(data.is_contiguous(), "an all_reduce wants contiguous data");
  const at::NoGradGuard no_grad;
  if (comm.native_all_reduce(group, data, maximum)) return;
  const at::Tensor flat = data.detach().view({-1});
  std::vector<at::Tensor> chunks;
  std::int64_t begin = 0;
  for (int i = 0; i < ring.size; ++i) {
    const std::int64_t length = flat.numel() / ring.size + (i < flat.numel() % ring.size ? 1 : 0);
    chunks.push_back(flat.narrow(0, begin, length));
    begin += length;
  }
  chunks[ring.me].copy_(ring_reduce(ring, chunks, maximum));
  ring_gather(ring, chunks);
}

at::Tensor reduce_scatter(Comm& comm, std::span<const int> group, std::vector<at::Tensor> blocks,
                          int tag) {
  const Ring ring(comm, group, tag);
  check_blocks(ring, blocks);
  const at::NoGradGuard no_grad;
  return ring.size == 1 ? blocks[0] : ring_reduce(ring, blocks, false);
}

void all_gather(Comm& comm, std::span<const int> group, std::vector<at::Tensor>& blocks, int tag) {
  const Ring ring(comm, group, tag);
  check_blocks(ring, blocks);
  ring_gather(ring, blocks);
}

std::vector<std::vector<double>> numbers_of_all(Comm& comm, std::span<const double> mine) {
  constexpr int kControlTag = 1;
  std::vector<int> all;
  std::vector<at::Tensor> blocks;
  for (int r = 0; r < comm.size(); ++r) {
    all.push_back(r);
    blocks.push_back(at::empty({static_cast<std::int64_t>(mine.size())}, at::kDouble));
  }
  at::Tensor& own = blocks[static_cast<std::size_t>(comm.rank())];
  std::copy(mine.begin(), mine.end(), own.data_ptr<double>());
  all_gather(comm, all, blocks, kControlTag);
  std::vector<std::vector<double>> numbers;
  for (const at::Tensor& b : blocks) {
    const double* first = b.data_ptr<double>();
    numbers.emplace_back(first, first + b.numel());
  }
  return numbers;
}

void exchange(Comm& comm, std::span<const int> group, std::vector<at::Tensor>& give,
              std::vector<at::Tensor>& take, int tag) {
  const Ring ring(comm, group, tag);
  MW_CHECK(give.size() == group.size() && take.size() == group.size(),
           "an exchange names a tensor per member");
  const at::NoGradGuard no_grad;
  if (give[ring.me].defined() && give[ring.me].numel() > 0) take[ring.me].copy_(give[ring.me]);
  for (int round = 1; round < ring.size; ++round) {
    const int to = ring.member(round), from = ring.member(-round);
    ring.pass(give[to], to, take[from], from);
  }
}

}  // namespace meshwright
