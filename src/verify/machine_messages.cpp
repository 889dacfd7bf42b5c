// Orders of lanes: passes of a stage on several lanes start together; messages between two lanes
// are told apart by their order only.
#include <algorithm>

#include "verify/machine.h"

namespace meshwright {

std::shared_ptr<const Machine::Message> Machine::pack(const ScheduleItem& item) {
  const Transfer& t = p_.transfers[static_cast<std::size_t>(item.chunk)];
  const int from = p_.chunks[static_cast<std::size_t>(t.from_chunk)].stage;
  const int replica = e_.plan.chunks[static_cast<std::size_t>(t.from_chunk)].replica;
  auto message = std::make_shared<Message>();
  message->transfer = item.chunk;
  message->micro_batch = item.micro_batch;
  for (const Transfer::Item& i : t.items) {
    Spread s = make(from, {i.value, BufferKind::kValue, i.from, {}}, i.value);
    const Key key{from, replica, i.value.value, item.micro_batch};
    if (t.gradient) {
      const auto it = gradients_.find(key);
      if (it != gradients_.end() && same_regions(it->second, s)) s.data = it->second.data;
    } else {
      for (const Spread& held : values_[key]) {
        if (same_regions(held, s)) s.data = held.data;
      }
    }
    message->items.push_back(std::move(s));
  }
  return message;
}

// What came takes the place of what the transfer describes, right or wrong.
void Machine::unpack(const ScheduleItem& item, const Message* message) {
  const Transfer& t = p_.transfers[static_cast<std::size_t>(item.chunk)];
  const int to = p_.chunks[static_cast<std::size_t>(t.to_chunk)].stage;
  const int replica = e_.plan.chunks[static_cast<std::size_t>(t.from_chunk)].replica;
  for (std::size_t i = 0; i < t.items.size(); ++i) {
    const Transfer::Item& described = t.items[i];
    Spread s = make(to, {described.value, BufferKind::kValue, described.to, {}}, described.value);
    if (message != nullptr && i < message->items.size()) {
      const Spread& source = message->items[i];
      std::vector<std::size_t> all(source.data.size());
      for (std::size_t d = 0; d < all.size(); ++d) all[d] = d;
      for (std::size_t d = 0; d < s.data.size(); ++d) {
        if (!t.aligned) {
          assemble(source, all, d, s);
        } else if (d < source.data.size() && source.data[d].size() == s.data[d].size()) {
          s.data[d] = source.data[d];
        }
      }
    }
    const Key key{to, replica, described.value.value, item.micro_batch};
    if (!t.gradient) {
      values_[key].push_back(std::move(s));
      continue;
    }
    const auto [it, fresh] = gradients_.try_emplace(key, s);
    if (!fresh && !(same_regions(it->second, s) && add(s, it->second))) spoil(it->second);
  }
}

// One entry of a lane's order; false when it has to wait.
bool Machine::step_item(int lane) {
  const ScheduleItem& item =
      p_.lanes[static_cast<std::size_t>(lane)].order[at_[static_cast<std::size_t>(lane)]];
  if (is_pass(item.phase)) {
    const auto& lanes =
        lanes_[static_cast<std::size_t>(p_.chunks[static_cast<std::size_t>(item.chunk)].stage)];
    for (int other : lanes) {
      const auto o = static_cast<std::size_t>(other);
      const auto& order = p_.lanes[o].order;
      if (at_[o] >= order.size() || !(order[at_[o]] == item)) return false;
    }
    pass(item.phase, item.chunk, item.micro_batch);
    for (int other : lanes) {
      if (other != lane) ++at_[static_cast<std::size_t>(other)];
    }
    return true;
  }
  const Transfer& t = p_.transfers[static_cast<std::size_t>(item.chunk)];
  const auto& senders =
      lanes_[static_cast<std::size_t>(p_.chunks[static_cast<std::size_t>(t.from_chunk)].stage)];
  const auto& receivers =
      lanes_[static_cast<std::size_t>(p_.chunks[static_cast<std::size_t>(t.to_chunk)].stage)];
  const std::pair<int, std::int64_t> id{item.chunk, item.micro_batch};
  const auto position = [&](const auto& list) {
    return static_cast<std::size_t>(
        std::find_if(list.begin(), list.end(), [&](const auto& m) { return m.id == id; }) -
        list.begin());
  };
  switch (item.phase) {
    case Phase::kSend: {
      const auto message = pack(item);
      for (int r : receivers) sent_[{lane, r}].push_back({id, message});
      return true;
    }
    case Phase::kReceive:
      for (int s : senders) received_[{s, lane}].push_back({id});
      return true;
    case Phase::kSendWait:
      for (int r : receivers) {
        const auto& out = sent_[{lane, r}];
        const auto& in = received_[{lane, r}];
        const std::size_t n = position(out);
        if (n == out.size()) continue;  // Nothing was sent.
        if (r == lane ? position(in) == in.size() : n >= in.size()) return false;
      }
      return true;
    default:
      break;
  }
  const Message* arrived = nullptr;
  bool equal = true;
  for (int s : senders) {
    const auto& out = sent_[{s, lane}];
    const auto& in = received_[{s, lane}];
    // A device's messages to itself need no order.
    const std::size_t n = s == lane ? position(out) : position(in);
    if (s != lane && n == in.size()) continue;  // It was never asked for: nothing comes.
    if (n >= out.size()) return false;
    equal &= arrived == nullptr || arrived->transfer == out[n].message->transfer;
    arrived = out[n].message.get();
  }
  if (unpacked_.insert(id).second) unpack(item, equal ? arrived : nullptr);
  return true;
}

bool Machine::play() {
  at_.assign(p_.lanes.size(), 0);
  lanes_.resize(e_.plan.stages.size());
  for (std::size_t l = 0; l < p_.lanes.size(); ++l) {
    for (int s : p_.lanes[l].stages) {
      lanes_[static_cast<std::size_t>(s)].push_back(static_cast<int>(l));
    }
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t l = 0; l < p_.lanes.size(); ++l) {
      while (at_[l] < p_.lanes[l].order.size() && step_item(static_cast<int>(l))) {
        ++at_[l];
        moved = true;
      }
    }
  }
  for (std::size_t l = 0; l < p_.lanes.size(); ++l) {
    if (at_[l] < p_.lanes[l].order.size()) return false;
  }
  return true;
}

}  // namespace meshwright
