#pragma once

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "run/checkpoint.h"

/// Tensors and cuts of them for the tests of checkpoints.
namespace meshwright {

struct TestTensor {
  std::string name, part;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;

  Box whole() const {
    Box box;
    for (const std::int64_t size : shape) box.push_back({0, size});
    return box;
  }
};

inline std::int64_t count_elements(const Box& box) {
  std::int64_t count = 1;
  for (const Interval& i : box) count *= i.size();
  return count;
}

/// Element by element, so that it shares nothing with what is tested.
inline std::vector<std::byte> cut_out(const TestTensor& tensor, const Box& box, std::int64_t begin,
                                      std::int64_t end) {
  const auto size = static_cast<std::size_t>(dtype_bytes(tensor.dtype));
  std::vector<std::byte> out;
  for (std::int64_t p = begin; p < end; ++p) {
    std::int64_t rest = p, index = 0, stride = 1;
    for (std::size_t d = box.size(); d-- > 0;) {
      index += (box[d].begin + rest % box[d].size()) * stride;
      rest /= box[d].size();
      stride *= tensor.shape[d];
    }
    const auto* from = tensor.bytes.data() + static_cast<std::size_t>(index) * size;
    out.insert(out.end(), from, from + size);
  }
  return out;
}

inline TestTensor make_tensor(std::string name, std::string part, DType dtype,
                              std::vector<std::int64_t> shape, std::uint64_t seed) {
  TestTensor tensor{std::move(name), std::move(part), dtype, std::move(shape), {}};
  std::mt19937_64 random(seed);
  const std::int64_t count = count_elements(tensor.whole()) * dtype_bytes(dtype);
  for (std::int64_t i = 0; i < count; ++i) tensor.bytes.push_back(static_cast<std::byte>(random()));
  return tensor;
}

/// What one rank holds.
struct Share {
  int rank = 0;
  Box box;
  std::int64_t begin = 0, end = 0;
};

/// Covers a tensor: a grid of uneven boxes, cut into uneven flat ranges (some empty, some
/// overlapping), some of them held by two ranks.
inline std::vector<Share> random_cut(const TestTensor& tensor, int ranks, std::mt19937_64& random) {
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  std::vector<Box> boxes = {tensor.whole()};
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    for (std::int64_t cuts = below(3); cuts > 0; --cuts) {
      const std::int64_t at = below(tensor.shape[d] + 1);
      std::vector<Box> next;
      for (const Box& box : boxes) {
        if (at <= box[d].begin || at >= box[d].end) {
          next.push_back(box);
          continue;
        }
        next.push_back(box);
        next.back()[d].end = at;
        next.push_back(box);
        next.back()[d].begin = at;
      }
      boxes = std::move(next);
    }
  }
  std::vector<Share> shares;
  for (const Box& box : boxes) {
    const std::int64_t count = count_elements(box);
    std::vector<std::int64_t> cuts = {0, count};
    for (std::int64_t n = below(4); n > 0; --n) cuts.push_back(below(count + 1));
    std::sort(cuts.begin(), cuts.end());
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      std::int64_t begin = cuts[i], end = cuts[i + 1];
      if (below(4) == 0) begin -= below(begin + 1);
      if (below(4) == 0) end += below(count - end + 1);
      for (std::int64_t copies = 1 + (below(3) == 0); copies > 0; --copies) {
        shares.push_back({static_cast<int>(below(ranks)), box, begin, end});
      }
    }
  }
  std::shuffle(shares.begin(), shares.end(), random);
  return shares;
}

inline void add_share(CheckpointWriter& writer, const TestTensor& tensor, const Share& share) {
  const std::vector<std::byte> data = cut_out(tensor, share.box, share.begin, share.end);
  writer.add({tensor.name, tensor.part, tensor.dtype, tensor.shape, share.box, share.begin,
              share.end, data});
}

inline CheckpointInfo test_info(std::int64_t step, std::string run = "0123456789abcdef") {
  return {step, std::move(run), "feedfacefeedface", "tp2", "{\"loss\":1.5}"};
}

/// Each tensor in `ranks` flat ranges.
inline void write_flat(const std::filesystem::path& directory, const CheckpointInfo& info,
                       const std::vector<TestTensor>& tensors, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    CheckpointWriter writer(directory, info, rank, ranks);
    for (const TestTensor& t : tensors) {
      const std::int64_t n = count_elements(t.whole());
      add_share(writer, t, {rank, t.whole(), n * rank / ranks, n * (rank + 1) / ranks});
    }
    writer.close();
  }
}

inline std::vector<std::byte> read_back(CheckpointReader& reader, const TestTensor& t,
                                        const Box& box, std::int64_t begin, std::int64_t end) {
  std::vector<std::byte> out(static_cast<std::size_t>((end - begin) * dtype_bytes(t.dtype)));
  reader.read(t.name, t.part, box, begin, end, t.dtype, out);
  return out;
}

/// Two tensors of few bytes, whose values depend on `version`.
inline std::vector<TestTensor> small_tensors(std::uint64_t version) {
  return {make_tensor("layers.0.up.weight", "parameter", DType::kF32, {3, 4}, version),
          make_tensor("bias", "moment1", DType::kBf16, {5}, version + 1000)};
}

/// Whether all tensors are read back with their bytes; throws Error as the reader does.
inline bool holds_all(const std::filesystem::path& path, const std::vector<TestTensor>& tensors) {
  CheckpointReader reader(path);
  for (const TestTensor& t : tensors) {
    if (read_back(reader, t, t.whole(), 0, count_elements(t.whole())) != t.bytes) return false;
  }
  return true;
}

inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

inline std::string file_content(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void put_content(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

/// All names below a directory, sorted.
inline std::vector<std::string> names_below(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    names.push_back(entry.path().lexically_relative(directory).string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    // In memory where there is such a place: thousands of files are made durable here.
    std::string name = "/dev/shm/meshwright-checkpoint-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) {
      name = (std::filesystem::temp_directory_path() / "meshwright-checkpoint-XXXXXX").string();
      if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no place for " + name);
    }
    directory_ = name;
  }
  ~CheckpointTest() override { std::filesystem::remove_all(directory_); }

  /// A completed checkpoint of small_tensors(step).
  std::filesystem::path write_small(std::int64_t step, int ranks = 2, int keep = 2) {
    write_flat(directory_, test_info(step), small_tensors(static_cast<std::uint64_t>(step)), ranks);
    return complete_checkpoint(directory_, step, ranks, keep);
  }

  std::filesystem::path directory_;
};

}  // namespace meshwright
