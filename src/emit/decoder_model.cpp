#include "emit/decoder_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "emit/decoder_layer.h"

namespace meshwright {
namespace {

bool has_op(const Graph& graph, const Segment& s, std::string_view kind) {
  for (int i = s.first_op; i < s.last_op; ++i) {
    if (graph.ops[static_cast<std::size_t>(i)].kind == kind) return true;
  }
  return false;
}

// What no decoder has; one sentence is better than one per layer.
std::string other_family(const Graph& graph) {
  for (const Value& value : graph.values) {
    for (const Dim& dim : value.type.dims) {
      if (dim.name == "src_seq") return "it is an encoder-decoder model";
      if (dim.name == "patches" || dim.name == "channels") return "it is an image model";
    }
  }
  for (const Op& op : graph.ops) {
    if (op.kind == "attention" && !attr_bool(op.attrs, "causal", false)) {
      return "its attention sees later tokens, as an encoder's does";
    }
    if (op.kind == "cross_entropy") return {};
  }
  return "it does not end in a language-model loss";
}

class ModelReader {
 public:
  ModelReader(const Graph& graph, const std::vector<Segment>& segments)
      : graph_(graph), segments_(segments) {}

  DecoderReading read() {
    const std::string other = other_family(graph_);
    if (!other.empty()) {
      faults_.push_back(other);
      return {std::move(model_), std::move(faults_)};
    }
    std::size_t first = 0, last = segments_.size();
    while (first < last && !segments_[first].is_layer) ++first;
    while (last > first && !segments_[last - 1].is_layer) --last;
    if (first == last) {
      faults_.emplace_back("it has no layers");
      return {std::move(model_), std::move(faults_)};
    }
    if (!attempt("before the layers", [&] { read_embedding(segments_[first].first_op); })) {
      stream_ = ValueId();
    }
    for (std::size_t i = first; i < last; ++i) {
      if (!segments_[i].is_layer) {
        faults_.push_back(fmt::format("'{}' stands between the layers", segments_[i].name));
        continue;
      }
      attempt("layer " + segments_[i].name, [&] { read_layer(segments_[i]); });
    }
    attempt("behind the layers", [&] { read_head(segments_[last - 1].last_op); });
    return {std::move(model_), std::move(faults_)};
  }

 private:
  template <class Read>
  bool attempt(const std::string& where, Read&& read) {
    try {
      read();
      return true;
    } catch (const Unreadable& u) {
      const std::string fault = fmt::format("{}: {}", where, u.why);
      if (std::ranges::find(faults_, fault) == faults_.end()) faults_.push_back(fault);
      return false;
    }
  }

  // Tokens, perhaps learned positions, perhaps dropout.
  void read_embedding(int end) {
    GraphWalk walk(graph_, 0, end);
    ValueId positions;
    for (const Op* op : walk.of_kind("embedding")) {
      const TensorType& table = walk.type(op->inputs[1]);
      walk.take(*op);
      if (walk.type(op->inputs[0]).rank() == 1) {
        model_.position_rows = table.dims[0].size;
        positions = op->outputs[0];
      } else if (table_.valid()) {
        throw Unreadable{fmt::format("{} is a second embedding", describe(*op))};
      } else {
        table_ = op->inputs[1];
        stream_ = op->outputs[0];
        model_.vocab = table.dims[0].size;
        model_.hidden = table.dims[1].size;
        model_.seq = walk.type(stream_).dims[1].size;
      }
    }
    if (!table_.valid()) throw Unreadable{"there is no token embedding"};
    for (const Op* op : walk.readers(stream_)) {
      if (op->kind != "add" || std::ranges::count(op->inputs, positions) != 1) continue;
      walk.take(*op);
      stream_ = op->outputs[0];
      break;
    }
    for (const Op* op : walk.readers(stream_)) {
      if (op->kind != "dropout") continue;
      walk.take(*op);
      model_.embedding_dropout = attr_float(op->attrs, "p", 0);
      stream_ = op->outputs[0];
      break;
    }
    walk.expect_all_taken();
  }

  void read_layer(const Segment& segment) {
    if (is_prediction_module(graph_, segment)) {
      read_prediction(segment);
      return;
    }
    if (model_.mtp_layers > 0) throw Unreadable{"it follows a multi-token-prediction module"};
    // Isomorphic layers are read once; only where their values come from differs.
    const auto known = known_.find(segment.shape_class);
    if (known == known_.end()) {
      if (!failed_.insert(segment.shape_class).second) return;
      const ValueId before = std::exchange(stream_, ValueId());
      const LayerReading reading = read_decoder_layer(graph_, segment.first_op, segment.last_op);
      failed_.erase(segment.shape_class);
      expect_stream(before, reading.input);
      const int offset = graph_.value(reading.output).producer.value - segment.first_op;
      known_.emplace(segment.shape_class, Known{reading.layer, offset});
      model_.layers.push_back(reading.layer);
      stream_ = reading.output;
      return;
    }
    const GraphWalk walk(graph_, segment.first_op, segment.last_op);
    for (ValueId value : walk.incoming()) expect_stream(stream_, value);
    model_.layers.push_back(known->second.layer);
    const int last = segment.first_op + known->second.output_offset;
    stream_ = graph_.ops[static_cast<std::size_t>(last)].outputs[0];
  }

  static void expect_stream(ValueId stream, ValueId input) {
    // What could not be read before was reported already.
    if (stream.valid() && input != stream) throw Unreadable{"it does not read the layer before it"};
  }

  // DeepSeek-V3 (arXiv 2412.19437) section 2.2: the next token's embedding joins the stream, a
  // layer of the last one's kind follows, then norm, head and loss.
  void read_prediction(const Segment& segment) {
    constexpr std::string_view kBegin[] = {"embedding", "rms_norm", "rms_norm", "concat", "linear"};
    constexpr std::string_view kEnd[] = {"rms_norm", "linear", "cross_entropy"};
    const int body = segment.first_op + static_cast<int>(std::size(kBegin));
    const int end = segment.last_op - static_cast<int>(std::size(kEnd));
    const auto op = [&](int i) -> const Op& { return graph_.ops[static_cast<std::size_t>(i)]; };
    bool fits = end > body;
    for (int i = segment.first_op; fits && i < body; ++i) {
      fits = op(i).kind == kBegin[i - segment.first_op];
    }
    for (int i = end; fits && i < segment.last_op; ++i) fits = op(i).kind == kEnd[i - end];
    if (!fits) throw Unreadable{"its prediction module is not that of DeepSeek-V3"};
    if (op(segment.first_op).inputs[1] != table_ || op(end + 1).inputs.size() != 2) {
      throw Unreadable{"its prediction module has an embedding or head bias of its own"};
    }
    const LayerReading reading = read_decoder_layer(graph_, body, end);
    if (model_.layers.empty() || !(reading.layer == model_.layers.back())) {
      throw Unreadable{"its prediction module is another layer than the last one"};
    }
    ++model_.mtp_layers;
  }

  void read_head(int begin) {
    GraphWalk walk(graph_, begin, static_cast<int>(graph_.ops.size()));
    const auto losses = walk.of_kind("cross_entropy");
    if (losses.size() != 1) throw Unreadable{fmt::format("there are {} losses", losses.size())};
    walk.take(*losses[0]);
    const Op& head = walk.take_maker(losses[0]->inputs[0], "linear", "the input of the loss");
    if (head.inputs.size() > 2) throw Unreadable{"the output layer has a bias"};
    model_.tied = head.inputs[1] == table_;
    const Op* norm = walk.maker(head.inputs[0]);
    if (norm == nullptr) throw Unreadable{"there is no norm before the output layer"};
    if (norm->kind != "rms_norm" && norm->kind != "layer_norm") {
      throw Unreadable{fmt::format("the output layer reads {}, not a norm", describe(*norm))};
    }
    model_.final_norm = read_norm(walk, *norm);
    expect_stream(stream_, norm->inputs[0]);
    walk.expect_all_taken();
  }

  const Graph& graph_;
  const std::vector<Segment>& segments_;
  DecoderModel model_;
  std::vector<std::string> faults_;
  struct Known {
    DecoderLayer layer;
    int output_offset;  // Of the operator behind which the layer ends.
  };
  std::map<int, Known> known_;  // By shape class.
  std::set<int> failed_;        // Shape classes that were reported.
  ValueId table_;
  ValueId stream_;  // The residual stream so far.
};

}  // namespace

bool is_prediction_module(const Graph& graph, const Segment& segment) {
  return segment.is_layer && has_op(graph, segment, "cross_entropy");
}

DecoderReading read_decoder(const Graph& graph, const std::vector<Segment>& segments) {
  return ModelReader(graph, segments).read();
}

}  // namespace meshwright
