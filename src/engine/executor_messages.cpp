// Transfers between stages: issued and waited for as the lane's order says.
#include <ATen/Functions.h>
#include <fmt/format.h>

#include "base/error.h"
#include "engine/executor_state.h"

namespace meshwright {
namespace {

constexpr int kFirstTransferTag = 16;

}  // namespace

void Executor::Impl::send(int t, int m) {
  const Transfer& transfer = p.transfers[static_cast<std::size_t>(t)];
  const int from = chunk(transfer.from_chunk).stage;
  if (!holds(from)) return;
  const int tag = kFirstTransferTag + t * static_cast<int>(plan.micro_batches) + m;
  Mail& mail = outgoing[{t, m}];
  auto& self = kept[{t, m}];
  self.resize(transfer.items.size());
  for (std::size_t i = 0; i < transfer.items.size(); ++i) {
    const LocalTransfer& local = transfers[static_cast<std::size_t>(t)][i];
    const Key key{from, replica(transfer.from_chunk), transfer.items[i].value.value, m};
    at::Tensor data;
    if (transfer.gradient) {
      const auto it = gradients.find(key);
      if (it == gradients.end()) {
        throw InternalError(
            fmt::format("no gradient of {} to send", graph.value(transfer.items[i].value).name));
      }
      data = it->second;
      gradients.erase(it);
    } else {
      data = take_value(key, *local.from);
    }
    for (const LocalPiece& piece : local.keep) {
      self[i].push_back(part_of(data, piece.source));
    }
    std::vector<at::Tensor>& pieces = mail.pieces.emplace_back();
    for (const LocalPiece& piece : local.give) {
      pieces.push_back(part_of(data, piece.source).contiguous());
      mail.pending.push_back(comm.send(pieces.back(), piece.peer, tag));
    }
  }
}

void Executor::Impl::receive(int t, int m) {
  const Transfer& transfer = p.transfers[static_cast<std::size_t>(t)];
  if (!holds(chunk(transfer.to_chunk).stage)) return;
  const int tag = kFirstTransferTag + t * static_cast<int>(plan.micro_batches) + m;
  Mail& mail = incoming[{t, m}];
  for (std::size_t i = 0; i < transfer.items.size(); ++i) {
    const at::TensorOptions options =
        at::TensorOptions(settings.numerics.device)
            .dtype(settings.numerics.type_of(graph.value(transfer.items[i].value).type.dtype));
    std::vector<at::Tensor>& pieces = mail.pieces.emplace_back();
    for (const LocalPiece& piece : transfers[static_cast<std::size_t>(t)][i].take) {
      pieces.push_back(at::empty(sizes_of(piece.target), options));
      mail.pending.push_back(comm.receive(pieces.back(), piece.peer, tag));
    }
  }
}

void Executor::Impl::unpack(int t, int m) {
  const Transfer& transfer = p.transfers[static_cast<std::size_t>(t)];
  const int to = chunk(transfer.to_chunk).stage;
  if (!holds(to)) return;
  const auto mail = incoming.find({t, m});
  if (mail == incoming.end()) throw InternalError("waits for what it never asked for");
  for (const auto& pending : mail->second.pending) pending->wait();
  const auto self = kept.find({t, m});
  for (std::size_t i = 0; i < transfer.items.size(); ++i) {
    const Transfer::Item& item = transfer.items[i];
    const LocalTransfer& local = transfers[static_cast<std::size_t>(t)][i];
    const std::vector<std::int64_t> shape = local.to->shape();
    at::Tensor whole;
    const auto put = [&](const LocalPiece& piece, const at::Tensor& data) {
      // One piece that is all of it needs no copy.
      if (data.sizes() == at::IntArrayRef(shape)) {
        whole = data;
        return;
      }
      if (!whole.defined()) whole = at::empty(shape, data.options());
      part_of(whole, piece.target).copy_(data);
    };
    for (std::size_t k = 0; k < local.take.size(); ++k) {
      put(local.take[k], mail->second.pieces[i][k]);
    }
    for (std::size_t k = 0; k < local.keep.size(); ++k) put(local.keep[k], self->second[i][k]);
    if (!whole.defined()) {
      whole = new_tensor(*local.to, settings.numerics.type_of(graph.value(item.value).type.dtype),
                         settings.numerics);
    }
    const Key key{to, replica(transfer.from_chunk), item.value.value, m};
    if (transfer.gradient) {
      add_gradient(key, whole);
    } else if (uses.contains({to, replica(transfer.from_chunk), item.value.value})) {
      values[key].forms.emplace_back(*local.to, whole);
    }
  }
  incoming.erase(mail);
  if (self != kept.end()) kept.erase(self);
}

void Executor::Impl::message(const ScheduleItem& item) {
  const int t = item.chunk, m = item.micro_batch;
  const std::string_view name = phase_name(item.phase);
  begin({0, name.data(), t, m, -1, nullptr, nullptr});
  switch (item.phase) {
    case Phase::kSend:
      send(t, m);
      break;
    case Phase::kSendWait: {
      const auto mail = outgoing.find({t, m});
      if (mail == outgoing.end()) break;
      for (const auto& pending : mail->second.pending) pending->wait();
      outgoing.erase(mail);
      break;
    }
    case Phase::kReceive:
      receive(t, m);
      break;
    default:
      unpack(t, m);
      break;
  }
  end();
}

}  // namespace meshwright
