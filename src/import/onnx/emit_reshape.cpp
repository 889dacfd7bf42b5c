// Views: any reshape as splits and merges of neighbouring dimensions, renames, and stretching.

#include <fmt/format.h>

#include <algorithm>

#include "import/onnx/emitter.h"

namespace meshwright::onnx {
namespace {

using Dims = std::vector<std::int64_t>;

// A run of operand dims that has as many elements as a run of result dims.
struct Run {
  std::vector<std::size_t> from, to;
};

std::vector<Run> runs(const Dims& from, const Dims& to) {
  std::vector<Run> result;
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < from.size() || j < to.size()) {
    Run run;
    const bool one_from = i < from.size() && from[i] == 1;
    const bool one_to = j < to.size() && to[j] == 1;
    if (one_from && one_to) {
      run = {{i++}, {j++}};
    } else if (one_from || j == to.size()) {
      run = {{i++}, {}};
    } else if (one_to || i == from.size()) {
      run = {{}, {j++}};
    } else {
      std::int64_t a = from[i];
      std::int64_t b = to[j];
      run = {{i++}, {j++}};
      while (a != b) {
        if (a < b) {
          MW_CHECK(i < from.size(), "a reshape changes the number of elements");
          a *= from[i];
          run.from.push_back(i++);
        } else {
          MW_CHECK(j < to.size(), "a reshape changes the number of elements");
          b *= to[j];
          run.to.push_back(j++);
        }
      }
    }
    result.push_back(std::move(run));
  }
  return result;
}

Dims sizes_of(const TensorType& type) {
  Dims sizes;
  for (const Dim& dim : type.dims) sizes.push_back(dim.size);
  return sizes;
}

// Ids of the dims of one side that are not 1, grouped when there are several.
std::string side(const std::vector<std::size_t>& dims, const Dims& sizes,
                 const std::vector<std::string>& ids, bool merged) {
  if (merged) return fmt::format("({})", fmt::join(ids, " "));
  std::string text;
  std::size_t next = 0;
  for (const std::size_t d : dims) {
    text += text.empty() ? "" : " ";
    text += sizes[d] == 1 && dims.size() > 1 ? "1" : ids[next++];
  }
  return text;
}

}  // namespace

ValueId Emitter::reshape(ValueId x, const Dims& sizes, const std::string& like) {
  const Dims from = sizes_of(type(x));
  if (from == sizes) return x;
  const std::vector<Run> all = runs(from, sizes);
  // What neither splits nor merges alone goes through the merged shape.
  Dims merged;
  bool both = false;
  for (const Run& run : all) {
    if (run.from.size() > 1 && run.to.size() > 1) {
      both = true;
      Dims part;
      for (const std::size_t d : run.from) part.push_back(from[d]);
      merged.push_back(product(part));
    } else {
      for (const std::size_t d : run.from) merged.push_back(from[d]);
    }
  }
  if (both) return reshape(reshape(x, merged, ""), sizes, like);

  std::string left;
  std::string right;
  std::string inner;
  std::string names;
  int next = 0;
  const auto append = [](std::string& text, const std::string& word, std::string_view glue) {
    if (!text.empty()) text += glue;
    text += word;
  };
  for (const Run& run : all) {
    if (run.from.empty() || run.to.empty()) {
      if (!run.from.empty()) append(left, "1", " ");
      if (!run.to.empty()) append(right, "1", " ");
      continue;
    }
    const bool split = run.to.size() > 1;
    const std::vector<std::size_t>& many = split ? run.to : run.from;
    const Dims& many_sizes = split ? sizes : from;
    std::vector<std::string> ids;
    for (const std::size_t d : many) {
      if (many_sizes[d] == 1 && many.size() > 1) continue;
      ids.push_back(fmt::format("a{}", next++));
      if (split && ids.size() > 1) append(inner, fmt::format("{}={}", ids.back(), sizes[d]), ", ");
      if (like.empty() || !(split || hint(like, run.to[0]))) continue;
      const std::size_t to = split ? d : run.to[0];
      const DimRole r = role(like, to);
      const std::string name = dim_of(like, to).name;
      const bool keep = r.kind == DimRole::Kind::kFixed && name == "features" && ids.size() == 1;
      if (!keep && (split || ids.size() == 1))
        append(names, fmt::format("{}={}", ids.back(), name), ", ");
    }
    append(left, side(run.from, from, ids, split && ids.size() > 1), " ");
    append(right, side(run.to, sizes, ids, !split && ids.size() > 1), " ");
  }
  Attrs attrs = {{"pattern", left + " -> " + right}};
  if (!inner.empty()) attrs["sizes"] = inner;
  if (!names.empty()) attrs["names"] = names;
  return op("reshape", {x}, std::move(attrs));
}

ValueId Emitter::rename(ValueId x, std::size_t dim, const std::string& name) {
  std::string ids;
  for (std::size_t d = 0; d < type(x).dims.size(); ++d)
    ids += fmt::format("{}a{}", d == 0 ? "" : " ", d);
  return op("reshape", {x},
            {{"pattern", ids + " -> " + ids}, {"names", fmt::format("a{}={}", dim, name)}});
}

ValueId Emitter::stretch(ValueId x, const Dims& sizes, const std::string& like) {
  Dims from = sizes_of(type(x));
  if (from.size() < sizes.size()) {
    from.insert(from.begin(), sizes.size() - from.size(), 1);
    x = reshape(x, from, "");
  }
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (from[d] == sizes[d]) continue;
    const std::string name = like.empty() ? "features" : dim_of(like, d).name;
    x = op("resample", {x},
           {{"fn", std::string("expand")},
            {"dims", Dims{static_cast<std::int64_t>(d)}},
            {"sizes", Dims{sizes[d]}},
            {"name", name}});
  }
  return x;
}

}  // namespace meshwright::onnx
