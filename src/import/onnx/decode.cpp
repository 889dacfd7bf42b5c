// The messages of onnx.proto, read field by field. Field numbers are those of the format.

#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/spelling.h"
#include "import/onnx/proto.h"
#include "import/onnx/wire.h"

namespace meshwright::onnx {
namespace {

// Far above any real model: a 100,000-node export has about a million parts.
constexpr std::size_t kMaxParts = 4'000'000;
constexpr std::size_t kMaxName = 4096;
constexpr int kMaxDepth = 16;  // Of graphs inside attributes.
constexpr std::size_t kMaxStatedRank = 64;

double half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const double fraction = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  if (exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

// Value of an element of a floating type that is kept (others: no value).
std::optional<double> float_element(int type, std::uint64_t bits) {
  if (type == kFloat) return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  if (type == kDouble) return std::bit_cast<double>(bits);
  if (type == kFloat16) return half(static_cast<std::uint16_t>(bits));
  if (type == 16) return std::bit_cast<float>(static_cast<std::uint32_t>(bits << 16));
  return std::nullopt;
}

std::int64_t int_element(int type, std::uint64_t bits) {
  switch (type) {
    case kInt8:
      return static_cast<std::int8_t>(bits);
    case 5:
      return static_cast<std::int16_t>(bits);
    case kInt32:
      return static_cast<std::int32_t>(bits);
    default:
      return static_cast<std::int64_t>(bits);
  }
}

// What a tensor's data fields hold, before they are held against its shape.
struct TensorData {
  std::string_view raw;
  bool has_raw = false;
  std::size_t typed = 0;  ///< Elements in the typed fields.
  std::vector<std::uint64_t> bits;
  bool external = false;
  std::string location, offset, length;
  bool has_location = false;
};

class Decoder {
 public:
  explicit Decoder(std::string_view file) : file_(file) {}

  ModelFile model() {
    ModelFile model;
    WireReader reader = open(file_);
    bool has_graph = false;
    for (WireField f; reader.next(f);) {
      switch (f.number) {
        case 1:
          model.ir_version = static_cast<std::int64_t>(f.value);
          break;
        case 7:
          if (has_graph) reader.fail("the model has two graphs");
          has_graph = true;
          model.graph = graph(bytes(reader, f), 0);
          break;
        case 8:
          opset(bytes(reader, f), model.opsets);
          break;
        case 25:
          model.functions.push_back(function(bytes(reader, f)));
          break;
        default:
          break;
      }
    }
    if (!has_graph) throw Error("the file has no graph", {}, "it is no ONNX model");
    return model;
  }

 private:
  WireReader open(std::string_view message) {
    WireReader reader(message, file_);
    if (++parts_ > kMaxParts)
      reader.fail(fmt::format("the model has more than {} parts", kMaxParts));
    return reader;
  }

  static std::string_view bytes(const WireReader& reader, const WireField& f) {
    if (f.kind != WireField::Kind::kBytes) {
      reader.fail(fmt::format("field {} must be a message or text", f.number));
    }
    return f.bytes;
  }

  std::string text(const WireReader& reader, const WireField& f) {
    if (++parts_ > kMaxParts)
      reader.fail(fmt::format("the model has more than {} parts", kMaxParts));
    const std::string_view value = bytes(reader, f);
    if (value.size() > kMaxName) {
      reader.fail(fmt::format("a name of {} bytes; at most {} are read", value.size(), kMaxName));
    }
    return std::string(value);
  }

  // A repeated number, packed or not.
  template <class T, class Read>
  void numbers(const WireReader& reader, const WireField& f, std::vector<T>& out, Read read) {
    const auto keep = [&](T value) {
      if (++parts_ > kMaxParts)
        reader.fail(fmt::format("the model has more than {} parts", kMaxParts));
      out.push_back(value);
    };
    if (f.kind == WireField::Kind::kBytes) {
      WireReader packed(f.bytes, file_);
      while (!packed.done()) keep(read(packed));
    } else {
      keep(read(f.value));
    }
  }
  struct ReadInt {
    std::int64_t operator()(WireReader& r) const { return static_cast<std::int64_t>(r.varint()); }
    std::int64_t operator()(std::uint64_t v) const { return static_cast<std::int64_t>(v); }
  };
  struct ReadFloat {
    double operator()(WireReader& r) const { return (*this)(r.fixed(4)); }
    double operator()(std::uint64_t v) const {
      return std::bit_cast<float>(static_cast<std::uint32_t>(v));
    }
  };

  void opset(std::string_view message, std::map<std::string, std::int64_t>& opsets) {
    WireReader reader = open(message);
    std::string domain;
    std::int64_t version = 0;
    for (WireField f; reader.next(f);) {
      if (f.number == 1) domain = text(reader, f);
      if (f.number == 2) version = static_cast<std::int64_t>(f.value);
    }
    if (domain == "ai.onnx") domain.clear();
    opsets[domain] = version;
  }

  Subgraph graph(std::string_view message, int depth) {
    WireReader reader = open(message);
    if (depth > kMaxDepth) reader.fail(fmt::format("graphs nest deeper than {}", kMaxDepth));
    Subgraph graph;
    for (WireField f; reader.next(f);) {
      switch (f.number) {
        case 1:
          graph.nodes.push_back(node(bytes(reader, f), depth));
          break;
        case 2:
          graph.name = text(reader, f);
          break;
        case 5:
          graph.initializers.push_back(tensor(bytes(reader, f)));
          break;
        case 11:
          graph.inputs.push_back(value_info(bytes(reader, f)));
          break;
        case 12:
          graph.outputs.push_back(value_info(bytes(reader, f)));
          break;
        case 13:
          graph.values.push_back(value_info(bytes(reader, f)));
          break;
        case 15:
          graph.initializers.push_back(sparse_tensor(bytes(reader, f)));
          break;
        default:
          break;
      }
    }
    return graph;
  }

  Function function(std::string_view message) {
    WireReader reader = open(message);
    Function function;
    for (WireField f; reader.next(f);) {
      switch (f.number) {
        case 1:
          function.name = text(reader, f);
          break;
        case 4:
          function.inputs.push_back(text(reader, f));
          break;
        case 5:
          function.outputs.push_back(text(reader, f));
          break;
        case 7:
          function.nodes.push_back(node(bytes(reader, f), 0));
          break;
        case 10:
          function.domain = text(reader, f);
          break;
        case 11:
          function.defaults.push_back(attribute(bytes(reader, f), 0));
          break;
        default:
          break;
      }
    }
    return function;
  }

  Node node(std::string_view message, int depth) {
    WireReader reader = open(message);
    Node node;
    for (WireField f; reader.next(f);) {
      switch (f.number) {
        case 1:
          node.inputs.push_back(text(reader, f));
          break;
        case 2:
          node.outputs.push_back(text(reader, f));
          break;
        case 3:
          node.name = text(reader, f);
          break;
        case 4:
          node.op = text(reader, f);
          break;
        case 5:
          node.attributes.push_back(attribute(bytes(reader, f), depth));
          break;
        case 7:
          node.domain = text(reader, f);
          if (node.domain == "ai.onnx") node.domain.clear();
          break;
        default:
          break;
      }
    }
    return node;
  }

  Attribute attribute(std::string_view message, int depth) {
    using Kind = Attribute::Kind;
    WireReader reader = open(message);
    Attribute a;
    std::uint64_t stated = 0;
    Kind seen = Kind::kNone;
    for (WireField f; reader.next(f);) {
      switch (f.number) {
        case 1:
          a.name = text(reader, f);
          break;
        case 2:
          a.f = ReadFloat()(f.value);
          seen = Kind::kFloat;
          break;
        case 3:
          a.i = static_cast<std::int64_t>(f.value);
          seen = Kind::kInt;
          break;
        case 4:
          // Long texts (documentation, custom data) are no names; what is needed is short.
          a.s = std::string(bytes(reader, f).substr(0, kMaxName));
          seen = Kind::kString;
          break;
        case 5:
          a.tensor = std::make_shared<Tensor>(tensor(bytes(reader, f)));
          seen = Kind::kTensor;
          break;
        case 6:
          a.graph = std::make_shared<Subgraph>(graph(bytes(reader, f), depth + 1));
          seen = Kind::kGraph;
          break;
        case 7:
          numbers(reader, f, a.floats, ReadFloat());
          seen = Kind::kFloats;
          break;
        case 8:
          numbers(reader, f, a.ints, ReadInt());
          seen = Kind::kInts;
          break;
        case 9:
          a.strings.push_back(std::string(bytes(reader, f).substr(0, kMaxName)));
          if (++parts_ > kMaxParts) reader.fail("the model has too many parts");
          seen = Kind::kStrings;
          break;
        case 20:
          stated = f.value;
          break;
        case 21:
          a.reference = text(reader, f);
          break;
        default:
          break;
      }
    }
    // Empty lists and zeros may be left out; the stated type tells which.
    constexpr Kind kByNumber[] = {Kind::kNone,   Kind::kFloat,  Kind::kInt,
                                  Kind::kString, Kind::kTensor, Kind::kGraph,
                                  Kind::kFloats, Kind::kInts,   Kind::kStrings};
    a.kind = seen != Kind::kNone             ? seen
             : stated < std::size(kByNumber) ? kByNumber[stated]
                                             : Kind::kOther;
    if (a.kind == Kind::kTensor && !a.tensor) a.tensor = std::make_shared<Tensor>();
    if (a.kind == Kind::kGraph && !a.graph) a.graph = std::make_shared<Subgraph>();
    return a;
  }

  Tensor tensor(std::string_view message) {
    WireReader reader = open(message);
    Tensor t;
    TensorData data;
    for (WireField f; reader.next(f);) {
      switch (f.number) {
        case 1:
          numbers(reader, f, t.dims, ReadInt());
          break;
        case 2:
          t.type = static_cast<int>(f.value & 0xffff);
          break;
        case 4:
        case 5:
        case 7:
        case 10:
        case 11:
          typed_data(f, data);
          break;
        case 6:
          ++data.typed;
          break;
        case 8:
          t.name = text(reader, f);
          break;
        case 9:
          data.raw = bytes(reader, f);
          data.has_raw = true;
          break;
        case 13:
          external_entry(bytes(reader, f), data);
          break;
        case 14:
          data.external = f.value == 1;
          break;
        default:
          break;
      }
    }
    try {
      check_tensor(t);
      keep_values(t, data);
    } catch (const Error& e) {
      throw e.within(fmt::format("tensor {}", in_quotes(t.name)));
    }
    return t;
  }

  // Elements of a typed field; the first few are kept.
  void typed_data(const WireField& f, TensorData& data) {
    const auto keep = [&](std::uint64_t bits) {
      if (data.typed++ < static_cast<std::size_t>(kMaxKnown)) data.bits.push_back(bits);
    };
    if (f.kind != WireField::Kind::kBytes) {
      keep(f.value);
      return;
    }
    WireReader packed(f.bytes, file_);
    while (!packed.done()) {
      keep(f.number == 4 ? packed.fixed(4) : f.number == 10 ? packed.fixed(8) : packed.varint());
    }
  }

  void external_entry(std::string_view message, TensorData& data) {
    WireReader reader = open(message);
    std::string key;
    std::string value;
    for (WireField f; reader.next(f);) {
      if (f.number == 1) key = text(reader, f);
      if (f.number == 2) value = text(reader, f);
    }
    data.external = true;
    if (key == "location") data.location = value, data.has_location = true;
    if (key == "offset") data.offset = value;
    if (key == "length") data.length = value;
  }

  static void check_tensor(const Tensor& t) {
    if (t.dims.size() > kMaxStatedRank)
      throw Error(fmt::format("has {} dimensions", t.dims.size()));
    double elements = 1;
    for (const std::int64_t dim : t.dims) {
      if (dim < 0) throw Error(fmt::format("has a dimension of size {}", dim));
      elements *= static_cast<double>(dim);
    }
    if (elements > 9007199254740992.0) throw Error("has more than 2^53 elements");
  }

  static std::int64_t byte_count(std::string_view what, const std::string& text) {
    std::int64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || rest != end || value < 0) {
      throw Error(fmt::format("external data: {} {} is no number of bytes", what, in_quotes(text)));
    }
    return value;
  }

  static void check_external(const TensorData& data, double bytes) {
    const std::string& path = data.location;
    if (!data.has_location || path.empty()) throw Error("external data have no location");
    const bool absolute = path[0] == '/' || path[0] == '\\' ||
                          (path.size() > 1 && path[1] == ':') ||
                          path.find('\0') != std::string::npos;
    bool leaves = false;
    for (std::size_t begin = 0; begin <= path.size();) {
      const std::size_t end = std::min(path.find_first_of("/\\", begin), path.size());
      leaves |= path.substr(begin, end - begin) == "..";
      begin = end + 1;
    }
    if (absolute || leaves) {
      throw Error(fmt::format("external data leave the model's folder: {}", in_quotes(path)), {},
                  "locations are relative and have no '..'");
    }
    if (!data.offset.empty()) byte_count("offset", data.offset);
    if (!data.length.empty() && bytes > 0) {
      const std::int64_t length = byte_count("length", data.length);
      if (static_cast<double>(length) != bytes) {
        throw Error(
            fmt::format("has {} bytes of external data, its shape needs {:.0f}", length, bytes));
      }
    }
  }

  void keep_values(Tensor& t, const TensorData& data) {
    double elements = 1;
    for (const std::int64_t dim : t.dims) elements *= static_cast<double>(dim);
    const int bits = element_bits(t.type);
    const double bytes = std::ceil(elements * bits / 8);
    if (data.external) {
      check_external(data, bytes);
      return;
    }
    if (data.has_raw && bits != 0 && static_cast<double>(data.raw.size()) != bytes) {
      throw Error(
          fmt::format("has {} bytes of data, its shape needs {:.0f}", data.raw.size(), bytes));
    }
    // Small types share a word in the typed fields; weights may also be left out altogether.
    if (!data.has_raw && data.typed != 0 && bits >= 8 && bits <= 64 && t.type != 14 &&
        static_cast<double>(data.typed) != elements) {
      throw Error(
          fmt::format("has {} elements of data, its shape needs {:.0f}", data.typed, elements));
    }
    const bool here = data.has_raw || data.typed != 0 || elements == 0;
    if (!here || elements > static_cast<double>(kMaxKnown) || bits < 8 || bits > 64 ||
        t.type == 14) {
      return;
    }
    Known known;
    known.floating = is_floating_type(t.type);
    const auto count = static_cast<std::size_t>(elements);
    if (!data.has_raw && data.bits.size() < count) return;  // Text in a tensor of numbers.
    const int width = bits / 8;
    WireReader raw(data.raw, file_);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t element = data.has_raw ? raw.fixed(width) : data.bits[i];
      if (known.floating) {
        const std::optional<double> value = float_element(t.type, element);
        if (!value) return;
        known.floats.push_back(*value);
      } else {
        known.ints.push_back(int_element(t.type, element));
      }
    }
    t.known = std::make_shared<Known>(std::move(known));
  }

  // Its shape counts; planners hold it dense.
  Tensor sparse_tensor(std::string_view message) {
    WireReader reader = open(message);
    Tensor t;
    std::vector<std::int64_t> dims;
    for (WireField f; reader.next(f);) {
      if (f.number == 1) t = tensor(bytes(reader, f));
      if (f.number == 3) numbers(reader, f, dims, ReadInt());
    }
    t.dims = std::move(dims);
    t.known = nullptr;
    check_tensor(t);
    return t;
  }

  ValueInfo value_info(std::string_view message) {
    WireReader reader = open(message);
    ValueInfo info;
    for (WireField f; reader.next(f);) {
      if (f.number == 1) info.name = text(reader, f);
      if (f.number == 2) type(bytes(reader, f), info);
    }
    return info;
  }

  void type(std::string_view message, ValueInfo& info) {
    WireReader reader = open(message);
    for (WireField f; reader.next(f);) {
      if (f.number == 1 || f.number == 8) tensor_type(bytes(reader, f), info);
      if (f.number == 4 || f.number == 5 || f.number == 7 || f.number == 9) info.tensor = false;
    }
  }

  void tensor_type(std::string_view message, ValueInfo& info) {
    WireReader reader = open(message);
    for (WireField f; reader.next(f);) {
      if (f.number == 1) info.type = static_cast<int>(f.value & 0xffff);
      if (f.number != 2) continue;
      info.dims.emplace();
      WireReader shape = open(bytes(reader, f));
      for (WireField d; shape.next(d);) {
        if (d.number != 1) continue;
        if (info.dims->size() >= kMaxStatedRank) shape.fail("a shape of more than 64 dimensions");
        info.dims->push_back(stated_dim(bytes(shape, d)));
      }
    }
  }

  StatedDim stated_dim(std::string_view message) {
    WireReader reader = open(message);
    StatedDim dim;
    for (WireField f; reader.next(f);) {
      if (f.number == 1) dim.size = static_cast<std::int64_t>(f.value);
      if (f.number == 2) dim.name = text(reader, f);
    }
    return dim;
  }

  std::string_view file_;
  std::size_t parts_ = 0;
};

}  // namespace

ModelFile decode_model(std::string_view bytes) { return Decoder(bytes).model(); }

}  // namespace meshwright::onnx
