#include "engine/call_kernel.h"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <map>

#include "base/error.h"
#include "run/draw.h"

namespace meshwright {
namespace {

const c10::OperatorHandle& find_operator(const std::string& name) {
  // Kernels of one program repeat a few dozen names.
  thread_local std::map<std::string, c10::OperatorHandle> found;
  const auto it = found.find(name);
  if (it != found.end()) return it->second;
  const std::size_t dot = name.find('.');
  const auto handle = c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
  if (!handle) throw InternalError(fmt::format("the dispatcher has no operator {}", name));
  return found.emplace(name, *handle).first->second;
}

class Caller {
 public:
  Caller(std::span<const at::Tensor> operands, const Numerics& numerics,
         const KernelServices& services)
      : slots_(operands.begin(), operands.end()), numerics_(numerics), services_(services) {}

  void call(const KernelCall& c) {
    if (c.name.starts_with("group::")) {
      at::Tensor copy = tensor(c.args.at(0)).detach().clone(at::MemoryFormat::Contiguous);
      if (services_.group_reduce) services_.group_reduce(copy, c.name == "group::max");
      slots_.push_back(copy);
    } else if (c.name == "random::keep") {
      slots_.push_back(keep(c));
    } else {
      dispatch(c);
    }
  }
  // Memory of intermediate results that no later call needs (the backward pass keeps its own).
  void release(std::span<const int> slots) {
    for (int s : slots) slots_[static_cast<std::size_t>(s)].reset();
  }
  const at::Tensor& slot(Slot s) const { return slots_.at(static_cast<std::size_t>(s.index)); }

 private:
  const at::Tensor& tensor(const KernelArg& arg) const { return slot(std::get<Slot>(arg)); }

  at::Tensor keep(const KernelCall& c) const {
    const double p = std::get<double>(c.args.at(0));
    const auto& begins = std::get<std::vector<std::int64_t>>(c.args.at(1));
    const auto& sizes = std::get<std::vector<std::int64_t>>(c.args.at(2));
    const auto& whole = std::get<std::vector<std::int64_t>>(c.args.at(3));
    const auto batch_dim = static_cast<int>(std::get<std::int64_t>(c.args.at(4)));
    Box box;
    for (std::size_t d = 0; d < sizes.size(); ++d) box.push_back({begins[d], begins[d] + sizes[d]});
    at::Tensor mask = at::empty(sizes, at::kDouble);
    double* data = mask.data_ptr<double>();
    for_each_index(box, whole, batch_dim, services_.draw.first_sample,
                   [&](std::int64_t position, std::int64_t index) {
                     const double u =
                         draw_uniform(services_.draw.key, static_cast<std::uint64_t>(index));
                     data[position] = u >= p ? 1 : 0;
                   });
    return mask.to(numerics_.device, numerics_.compute);
  }

  // Integers where the schema wants floats, and lists of optional tensors, look alike in a recipe.
  c10::IValue value(const KernelArg& arg, const c10::Argument& wanted) const {
    struct Visitor {
      const Caller& caller;
      const c10::TypePtr& type;

      c10::IValue operator()(NoValue) const { return {}; }
      c10::IValue operator()(bool v) const { return v; }
      c10::IValue operator()(std::int64_t v) const {
        if (type->kind() == c10::TypeKind::FloatType) return static_cast<double>(v);
        return v;
      }
      c10::IValue operator()(double v) const { return v; }
      c10::IValue operator()(const std::string& v) const { return v; }
      c10::IValue operator()(Slot s) const { return caller.slot(s); }
      c10::IValue operator()(const std::vector<Slot>& list) const {
        const auto* of = type->castRaw<c10::ListType>();
        if (of != nullptr && of->getElementType()->kind() == c10::TypeKind::OptionalType) {
          c10::impl::GenericList tensors(c10::OptionalType::ofTensor());
          for (Slot s : list) {
            tensors.push_back(s.index < 0 ? c10::IValue() : c10::IValue(caller.slot(s)));
          }
          return tensors;
        }
        c10::List<at::Tensor> tensors;
        for (Slot s : list) tensors.push_back(caller.slot(s));
        return tensors;
      }
      c10::IValue operator()(const std::vector<std::int64_t>& v) const { return v; }
      c10::IValue operator()(DType dtype) const { return caller.numerics_.type_of(dtype); }
      c10::IValue operator()(RunDevice) const { return caller.numerics_.device; }
    };
    c10::TypePtr type = wanted.type();
    if (type->kind() == c10::TypeKind::OptionalType) {
      type = type->castRaw<c10::OptionalType>()->getElementType();
    }
    return std::visit(Visitor{*this, type}, arg);
  }

  void dispatch(const KernelCall& c) {
    const c10::OperatorHandle& op = find_operator(c.name);
    const auto& arguments = op.schema().arguments();
    if (c.args.size() > arguments.size()) {
      throw InternalError(fmt::format("{} takes {} arguments, a kernel gives {}", c.name,
                                      arguments.size(), c.args.size()));
    }
    std::vector<c10::IValue> stack;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (i < c.args.size()) {
        stack.push_back(value(c.args[i], arguments[i]));
      } else if (arguments[i].default_value()) {
        stack.push_back(*arguments[i].default_value());
      } else {
        throw InternalError(fmt::format("{} lacks its argument {}", c.name, arguments[i].name()));
      }
    }
    try {
      op.callBoxed(&stack);
    } catch (const c10::Error& e) {
      throw InternalError(fmt::format("{}: {}", c.name, e.what_without_backtrace()));
    }
    for (int i = 0; i < c.results; ++i) {
      slots_.push_back(stack.at(static_cast<std::size_t>(i)).toTensor());
    }
  }

  std::vector<at::Tensor> slots_;
  const Numerics& numerics_;
  const KernelServices& services_;
};

// Per call the slots that it reads last.
std::vector<std::vector<int>> last_uses(const Kernel& kernel) {
  std::map<int, std::size_t> last;
  for (std::size_t i = 0; i < kernel.calls.size(); ++i) {
    for (const KernelArg& arg : kernel.calls[i].args) {
      if (const auto* slot = std::get_if<Slot>(&arg)) last[slot->index] = i;
      if (const auto* list = std::get_if<std::vector<Slot>>(&arg)) {
        for (Slot s : *list) last[s.index] = i;
      }
    }
  }
  for (Slot s : kernel.results) last.erase(s.index);
  std::vector<std::vector<int>> dying(kernel.calls.size());
  for (const auto& [slot, call] : last) {
    if (slot >= 0) dying[call].push_back(slot);
  }
  return dying;
}

}  // namespace

at::ScalarType Numerics::type_of(DType dtype) const {
  switch (dtype) {
    case DType::kF64:
    case DType::kF32:
      return precise;
    case DType::kBf16:
    case DType::kF16:
    case DType::kF8:
      return compute;
    case DType::kI64:
      return at::kLong;
    case DType::kI32:
      return at::kInt;
    case DType::kU8:
      return at::kByte;
    case DType::kBool:
      return at::kBool;
  }
  throw InternalError("no such element type");
}

Numerics parse_numerics(std::string_view name) {
  if (name == "float64") return {at::kDouble, at::kDouble, at::kCPU};
  if (name == "float32") return {at::kFloat, at::kFloat, at::kCPU};
  if (name == "bfloat16") return {at::kBFloat16, at::kFloat, at::kCPU};
  throw Error(fmt::format("no such numbers: '{}'", name), "--dtype",
              "float64, float32 or bfloat16");
}

std::vector<at::Tensor> call_kernel(const Kernel& kernel, std::span<const at::Tensor> operands,
                                    std::span<const DType> result_types, const Numerics& numerics,
                                    const KernelServices& services) {
  Caller caller(operands, numerics, services);
  const std::vector<std::vector<int>> dying = last_uses(kernel);
  for (std::size_t i = 0; i < kernel.calls.size(); ++i) {
    caller.call(kernel.calls[i]);
    caller.release(dying[i]);
  }
  std::vector<at::Tensor> results;
  for (std::size_t i = 0; i < kernel.results.size(); ++i) {
    if (kernel.results[i].index < 0) {
      results.emplace_back();
      continue;
    }
    results.push_back(caller.slot(kernel.results[i]).to(numerics.type_of(result_types[i])));
  }
  return results;
}

}  // namespace meshwright
