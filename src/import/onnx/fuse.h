#pragma once

#include <map>
#include <string>
#include <unordered_set>
#include <vector>

#include "import/onnx/infer.h"
#include "ir/tensor_type.h"

namespace meshwright::onnx {

/// Domain of the nodes that fusion makes; emit_fused.cpp reads them.
inline constexpr std::string_view kOwnDomain = "meshwright";

/// A graph under rewriting: who computes and who reads each value.
class Rewriter {
 public:
  Rewriter(ModelFile& model, Inferred& inferred);

  Subgraph& graph() { return model_.graph; }
  Inferred& inferred() { return inferred_; }
  const Fact& fact(const std::string& name) const;
  std::size_t count() const { return model_.graph.nodes.size(); }
  const Node& node(std::size_t i) const { return model_.graph.nodes[i]; }
  bool removed(std::size_t i) const { return removed_[i]; }

  /// The node that computes a value; null for inputs and initializers.
  const Node* producer(const std::string& name) const;
  /// The same when it has this operator; null otherwise.
  const Node* producer(const std::string& name, std::string_view op) const;
  /// The same when also nothing else reads the value, so that the node may vanish in a fusion.
  const Node* only_producer(const std::string& name, std::string_view op) const;
  /// The only node that reads a value; null when there are others or it is an output.
  const Node* only_user(const std::string& name) const;
  std::vector<const Node*> users(const std::string& name) const;
  /// How many operands read a value; an output of the graph counts as more than one.
  int uses(const std::string& name) const;
  bool is_output(const std::string& name) const;
  bool is_parameter(const std::string& name) const;
  /// Value of a constant with one element.
  std::optional<double> number(const std::string& name) const;
  bool is_number(const std::string& name, double value) const;
  /// `name`, or what it is a cast between floating types of.
  std::string uncast(const std::string& name) const;

  /// Puts `fused` in the place of the node that computes its first output; nodes that only it made
  /// use of vanish.
  void replace(Node fused, const std::string& what);
  /// Adds a node just before the one that computes `before`.
  void insert_before(const std::string& before, Node node);
  /// Counts something else that the notes should say.
  void count_one(const std::string& what) { ++counts_[what]; }
  /// Lets readers of results of Identity nodes read their operands.
  void drop_identities();
  /// Removes a node whose results others compute by now.
  void remove(std::size_t i, const std::string& what);
  /// Adds a parameter (a value with the roles of `like`) and returns its name.
  std::string add_parameter(const std::string& name, Fact fact);
  std::string add_value(const std::string& name, Fact fact, const std::string& like);
  /// Added values, and those they are like.
  const std::vector<std::pair<std::string, std::string>>& added() const { return added_; }
  /// Counts what was fused, for the notes.
  const std::map<std::string, int>& counts() const { return counts_; }
  int swept() const { return swept_; }

  /// Writes the order without removed nodes back.
  void finish();

 private:
  void link(std::size_t i, int change);
  void sweep(std::vector<std::string> candidates);

  ModelFile& model_;
  Inferred& inferred_;
  std::unordered_map<std::string, std::size_t> producer_;
  std::unordered_map<std::string, int> uses_;
  std::unordered_map<std::string, std::vector<std::size_t>> users_;
  std::unordered_map<std::string, std::vector<std::size_t>> inserted_;
  std::unordered_set<std::string> parameters_, outputs_;
  std::vector<std::pair<std::string, std::string>> added_;
  std::vector<bool> removed_;
  std::map<std::string, int> counts_;
  int swept_ = 0;
};

/// A product as a number times factors, seen through multiplications, divisions by numbers and
/// small whole powers of values that nothing else reads.
struct Product {
  double number = 1;
  std::vector<std::string> factors;
};
Product product_of(const Rewriter& r, const std::string& name, bool top = true);

// One file each.
void fuse_norms(Rewriter& r);  ///< Expects identities gone.
void fuse_activations(Rewriter& r);
void fuse_biases(Rewriter& r);
void split_projections(Rewriter& r);
/// `small` is the model at a small size with all masks among the inputs set, where masks have
/// values.
void fuse_attention(Rewriter& r, const Inferred* small);

/// Names of dimensions by what reads them ("hidden", "ffn", "heads", "vocab"), by value.
std::unordered_map<std::string, std::vector<Dim>> name_dims(const Rewriter& r);

}  // namespace meshwright::onnx
