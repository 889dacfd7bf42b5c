#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace meshwright::onnx {

// An ONNX model as its file states it, weights left out.

/// Element types by their number in the format (TensorProto.DataType).
enum ElementType : int {
  kUnknownType = 0,
  kFloat = 1,
  kUint8 = 2,
  kInt8 = 3,
  kInt32 = 6,
  kInt64 = 7,
  kString = 8,
  kBool = 9,
  kFloat16 = 10,
  kDouble = 11,
  kUint64 = 13,
};

/// "float32", "int64", …; "type 99" for numbers that the format does not have.
std::string element_type_name(int type);
bool is_floating_type(int type);
/// Bits of one element; 0 for strings and numbers that the format does not have.
int element_bits(int type);

/// Elements of a small tensor; integers and booleans in `ints`, the rest in `floats`.
struct Known {
  bool floating = false;
  std::vector<std::int64_t> ints;
  std::vector<double> floats;
  std::size_t size() const { return floating ? floats.size() : ints.size(); }
};
/// More elements than this are never held: shapes are what values are needed for.
inline constexpr std::int64_t kMaxKnown = 4096;

struct Tensor {
  std::string name;
  int type = kUnknownType;
  std::vector<std::int64_t> dims;
  std::shared_ptr<const Known> known;  ///< When it is small and numeric and its data are here.
};

struct Subgraph;

struct Attribute {
  enum class Kind {
    kNone,
    kFloat,
    kInt,
    kString,
    kTensor,
    kGraph,
    kFloats,
    kInts,
    kStrings,
    kOther
  };
  std::string name;
  Kind kind = Kind::kNone;
  double f = 0;
  std::int64_t i = 0;
  std::string s;
  std::vector<double> floats;
  std::vector<std::int64_t> ints;
  std::vector<std::string> strings;
  std::shared_ptr<const Tensor> tensor;
  std::shared_ptr<const Subgraph> graph;
  std::string reference;  ///< Inside a function: the attribute of the call that it stands for.
};

struct Node {
  std::string op, domain, name;
  std::vector<std::string> inputs, outputs;  ///< "" = left out.
  std::vector<Attribute> attributes;
  const Attribute* attribute(std::string_view name) const;
};

/// One dimension of a stated shape: a size, a name, or neither.
struct StatedDim {
  std::optional<std::int64_t> size;
  std::string name;
};

struct ValueInfo {
  std::string name;
  int type = kUnknownType;
  bool tensor = true;  ///< False for sequences, maps and optionals.
  std::optional<std::vector<StatedDim>> dims;
};

struct Subgraph {
  std::string name;
  std::vector<Node> nodes;
  std::vector<Tensor> initializers;
  std::vector<ValueInfo> inputs, outputs, values;
};

struct Function {
  std::string name, domain;
  std::vector<std::string> inputs, outputs;
  std::vector<Attribute> defaults;
  std::vector<Node> nodes;
};

struct ModelFile {
  std::int64_t ir_version = 0;
  std::map<std::string, std::int64_t> opsets;  ///< By domain; "" is ONNX itself.
  Subgraph graph;
  std::vector<Function> functions;
};

/// Reads a serialized model. `external_bytes` of tensors are never opened, but their paths must
/// stay inside the model's folder. Throws Error whose place is a byte offset or names a tensor.
ModelFile decode_model(std::string_view bytes);

}  // namespace meshwright::onnx
