#include "engine/regions.h"

#include <ATen/Functions.h>

#include "base/error.h"
#include "engine/collectives.h"

namespace meshwright {
namespace {

at::Tensor flat_view(const at::Tensor& t) { return t.contiguous().view({-1}); }

bool is_whole(const at::Tensor& t, const Box& box) {
  for (std::size_t d = 0; d < box.size(); ++d) {
    if (box[d].begin != 0 || box[d].end != t.size(static_cast<std::int64_t>(d))) return false;
  }
  return true;
}

// Cuts the flat range that a state shard holds out of its box.
at::Tensor shard_of(at::Tensor whole, const LocalBuffer& buffer) {
  if (!buffer.flat) return whole;
  return whole.view({-1}).slice(0, buffer.begin, buffer.end).clone();
}

template <typename T, typename F>
at::Tensor filled(const LocalBuffer& buffer, at::ScalarType type, F&& fill) {
  at::Tensor t = at::empty(sizes_of(buffer.box), type);
  fill(std::span<T>(t.data_ptr<T>(), static_cast<std::size_t>(t.numel())));
  return t;
}

at::Tensor point_to_point(Comm& comm, const LocalCollective& c, const at::Tensor& in,
                          const std::vector<std::int64_t>& shape, int tag) {
  const LocalExchange& e = c.exchange;
  at::Tensor out = e.sums ? at::zeros(shape, in.options()) : at::empty(shape, in.options());
  at::Tensor target = e.flat ? out.view({-1}) : out;
  std::vector<std::unique_ptr<Pending>> pending;
  std::vector<at::Tensor> received, sent;
  const auto rank = [&](const LocalPiece& p) { return c.ranks[static_cast<std::size_t>(p.peer)]; };
  for (const LocalPiece& p : e.take) {
    received.push_back(at::empty(sizes_of(p.target), in.options()));
    pending.push_back(comm.receive(received.back(), rank(p), tag));
  }
  for (const LocalPiece& p : e.give) {
    sent.push_back(part_of(in, p.source).contiguous());
    pending.push_back(comm.send(sent.back(), rank(p), tag));
  }
  const auto put = [&](const LocalPiece& p, const at::Tensor& data) {
    at::Tensor place = part_of(target, p.target);
    if (e.sums) {
      place.add_(data);
    } else {
      place.copy_(data);
    }
  };
  // What is added is added in the order of the group, wherever it is from.
  std::size_t next = 0;
  const auto arrive = [&](std::size_t before) {
    for (; next < e.take.size() && static_cast<std::size_t>(e.take[next].peer) < before; ++next) {
      pending[next]->wait();
      put(e.take[next], received[next]);
    }
  };
  arrive(c.me);
  for (const LocalPiece& p : e.keep) put(p, part_of(in, p.source));
  arrive(c.ranks.size());
  for (std::size_t i = next; i < pending.size(); ++i) pending[i]->wait();
  return out;
}

}  // namespace

at::Tensor part_of(const at::Tensor& tensor, const Box& box) {
  at::Tensor part = tensor;
  for (std::size_t d = 0; d < box.size(); ++d) {
    const auto dim = static_cast<std::int64_t>(d);
    if (box[d].begin == 0 && box[d].end == tensor.size(dim)) continue;
    part = part.slice(dim, box[d].begin, box[d].end);
  }
  return part;
}

at::Tensor slice_buffer(const at::Tensor& tensor, const LocalBuffer& from, const LocalBuffer& to) {
  if (to.flat) {
    if (from.box != to.box) throw InternalError("a slice changes box and state shard at once");
    const std::int64_t origin = from.flat ? from.begin : 0;
    return flat_view(tensor).slice(0, to.begin - origin, to.end - origin).clone();
  }
  Box box = to.box;
  for (std::size_t d = 0; d < box.size(); ++d) {
    box[d].begin -= from.box[d].begin;
    box[d].end -= from.box[d].begin;
  }
  return part_of(tensor, box).contiguous();
}

at::Tensor new_tensor(const LocalBuffer& buffer, at::ScalarType type, const Numerics& numerics) {
  return at::zeros(buffer.shape(), at::TensorOptions(numerics.device).dtype(type));
}

at::Tensor fed_tensor(const Feeds& feeds, ValueId id, const TensorType& type,
                      const LocalBuffer& buffer, std::int64_t step, std::int64_t first_sample,
                      const Numerics& numerics) {
  at::Tensor t;
  if (is_floating(type.dtype)) {
    t = filled<double>(buffer, at::kDouble, [&](std::span<double> out) {
      feeds.fill(id, type, buffer.box, step, first_sample, out);
    });
  } else {
    t = filled<std::int64_t>(buffer, at::kLong, [&](std::span<std::int64_t> out) {
      feeds.fill(id, type, buffer.box, step, first_sample, out);
    });
  }
  return shard_of(t, buffer).to(numerics.device, numerics.type_of(type.dtype));
}

at::Tensor loss_weights(const Feeds& feeds, ValueId id, const TensorType& type,
                        const LocalBuffer& buffer, std::int64_t first_sample,
                        const Numerics& numerics) {
  const at::Tensor t = filled<double>(buffer, at::kDouble, [&](std::span<double> out) {
    feeds.fill_loss_weights(id, type, buffer.box, first_sample, out);
  });
  return shard_of(t, buffer).to(numerics.device, numerics.type_of(type.dtype));
}

at::Tensor run_collective(Comm& comm, const LocalCollective& c, const at::Tensor& operand,
                          const std::vector<std::int64_t>& shape, int tag) {
  const LocalExchange& e = c.exchange;
  const at::Tensor in = e.flat ? flat_view(operand) : operand;
  switch (c.way) {
    case ExchangeWay::kAllReduce: {
      at::Tensor sum = in.clone(at::MemoryFormat::Contiguous);
      all_reduce(comm, c.ranks, sum, false, tag);
      if (e.keep.empty()) return at::empty(shape, in.options());
      return part_of(sum, e.keep[0].source).contiguous().view(shape);
    }
    case ExchangeWay::kReduceScatter: {
      std::vector<at::Tensor> blocks;
      for (const Box& share : e.shares) blocks.push_back(part_of(in, share).contiguous());
      return reduce_scatter(comm, c.ranks, std::move(blocks), tag).view(shape);
    }
    case ExchangeWay::kAllGather: {
      std::vector<at::Tensor> blocks;
      for (std::size_t m = 0; m < c.ranks.size(); ++m) {
        blocks.push_back(m == c.me ? in.contiguous()
                                   : at::empty(sizes_of(e.blocks[m]), in.options()));
      }
      all_gather(comm, c.ranks, blocks, tag);
      at::Tensor out = at::empty(shape, in.options());
      const at::Tensor target = e.flat ? out.view({-1}) : out;
      for (std::size_t m = 0; m < blocks.size(); ++m) {
        if (blocks[m].numel() == 0) continue;
        if (is_whole(target, e.shares[m])) return blocks[m].view(shape);
        part_of(target, e.shares[m]).copy_(blocks[m]);
      }
      return out;
    }
    case ExchangeWay::kPieces:
      return point_to_point(comm, c, in, shape, tag);
  }
  return {};
}

}  // namespace meshwright
