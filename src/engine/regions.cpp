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

namespace {

// Without the copies that a message of several operands takes.
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

// Operands that can go together: the same way, group and element type.
bool travel_alike(const CollectiveOperand& a, const CollectiveOperand& b) {
  return a.collective->way == b.collective->way && a.collective->ranks == b.collective->ranks &&
         a.in.scalar_type() == b.in.scalar_type() && a.collective->way != ExchangeWay::kPieces;
}

at::Tensor flat_cat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flats;
  for (const at::Tensor& t : tensors) flats.push_back(t.reshape({-1}));
  return at::cat(flats);
}

// The next `count` elements of a message.
struct Cursor {
  at::Tensor message;
  std::int64_t at = 0;
  at::Tensor take(std::int64_t count) {
    at += count;
    return message.narrow(0, at - count, count);
  }
};

void run_together(Comm& comm, const std::vector<CollectiveOperand>& all,
                  const std::vector<std::size_t>& which, int tag,
                  std::vector<at::Tensor>& results) {
  const LocalCollective& first = *all[which[0]].collective;
  const std::size_t members = first.ranks.size();
  std::vector<at::Tensor> ins;
  for (std::size_t i : which) {
    ins.push_back(all[i].collective->exchange.flat ? flat_view(all[i].in) : all[i].in);
  }
  if (first.way == ExchangeWay::kAllReduce) {
    Cursor sum{flat_cat(ins)};
    all_reduce(comm, first.ranks, sum.message, false, tag);
    for (std::size_t n = 0; n < which.size(); ++n) {
      const CollectiveOperand& o = all[which[n]];
      const at::Tensor mine = sum.take(ins[n].numel()).view(ins[n].sizes());
      const auto& keep = o.collective->exchange.keep;
      results[which[n]] = keep.empty() ? at::empty(o.shape, mine.options())
                                       : part_of(mine, keep[0].source).clone().view(o.shape);
    }
    return;
  }
  if (first.way == ExchangeWay::kReduceScatter) {
    std::vector<at::Tensor> blocks;
    for (std::size_t m = 0; m < members; ++m) {
      std::vector<at::Tensor> parts;
      for (std::size_t n = 0; n < which.size(); ++n) {
        parts.push_back(part_of(ins[n], all[which[n]].collective->exchange.shares[m]));
      }
      blocks.push_back(flat_cat(parts));
    }
    Cursor sum{reduce_scatter(comm, first.ranks, std::move(blocks), tag)};
    for (std::size_t i : which) {
      std::int64_t count = 1;
      for (std::int64_t size : all[i].shape) count *= size;
      results[i] = sum.take(count).clone().view(all[i].shape);
    }
    return;
  }
  std::vector<Cursor> blocks(members);
  std::vector<at::Tensor> messages;
  for (std::size_t m = 0; m < members; ++m) {
    if (m == first.me) {
      messages.push_back(flat_cat(ins));
      continue;
    }
    std::int64_t count = 0;
    for (std::size_t i : which) count += element_count(all[i].collective->exchange.blocks[m]);
    messages.push_back(at::empty({count}, ins[0].options()));
  }
  all_gather(comm, first.ranks, messages, tag);
  for (std::size_t m = 0; m < members; ++m) blocks[m].message = messages[m];
  for (std::size_t i : which) {
    const LocalExchange& e = all[i].collective->exchange;
    at::Tensor out = at::empty(all[i].shape, ins[0].options());
    const at::Tensor target = e.flat ? out.view({-1}) : out;
    for (std::size_t m = 0; m < members; ++m) {
      const std::vector<std::int64_t> sizes = sizes_of(e.blocks[m]);
      const at::Tensor block = blocks[m].take(element_count(e.blocks[m])).view(sizes);
      if (block.numel() > 0) part_of(target, e.shares[m]).copy_(block);
    }
    results[i] = out;
  }
}

}  // namespace

std::vector<at::Tensor> run_collectives(Comm& comm, const std::vector<CollectiveOperand>& operands,
                                        int tag) {
  std::vector<at::Tensor> results(operands.size());
  std::vector<bool> done(operands.size());
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (done[i]) continue;
    std::vector<std::size_t> alike = {i};
    for (std::size_t j = i + 1; j < operands.size(); ++j) {
      if (!done[j] && travel_alike(operands[i], operands[j])) alike.push_back(j);
    }
    for (std::size_t j : alike) done[j] = true;
    if (alike.size() == 1) {
      results[i] =
          run_collective(comm, *operands[i].collective, operands[i].in, operands[i].shape, tag);
    } else {
      run_together(comm, operands, alike, tag, results);
    }
  }
  return results;
}

}  // namespace meshwright
