// Writing and reading a checkpoint in memory beside a plain copy of the same bytes, which no reader
// can beat: what remains is the cost of files, checksums and cuts.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "run/checkpoint.h"

namespace meshwright {
namespace {

constexpr std::int64_t kRows = 8192, kColumns = 2048;  // 64 MiB of f32.
constexpr std::size_t kBytes = kRows * kColumns * 4;
const std::vector<std::int64_t> kShape = {kRows, kColumns};
const Box kWhole = {{0, kRows}, {0, kColumns}};

class Place {
 public:
  Place() {
    path_ = "/dev/shm/meshwright-checkpoint-bench-" + std::to_string(::getpid());
    std::error_code error;
    if (!std::filesystem::create_directory(path_, error)) {
      path_ = std::filesystem::temp_directory_path() / path_.filename();
      std::filesystem::create_directory(path_);
    }
  }
  ~Place() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

void write(const std::filesystem::path& directory, int ranks, const std::vector<std::byte>& data) {
  const CheckpointInfo info{1, "0123456789abcdef", "graph", "plan", ""};
  for (int rank = 0; rank < ranks; ++rank) {
    CheckpointWriter writer(directory, info, rank, ranks);
    const Box rows = {{kRows * rank / ranks, kRows * (rank + 1) / ranks}, {0, kColumns}};
    const std::int64_t n = rows[0].size() * kColumns;
    writer.add({"w", "parameter", DType::kF32, kShape, rows, 0, n,
                std::span(data).first(static_cast<std::size_t>(n * 4))});
    writer.close();
  }
  complete_checkpoint(directory, 1, ranks);
}

void copy(benchmark::State& state) {
  const std::vector<std::byte> from(kBytes, std::byte{1});
  std::vector<std::byte> to(kBytes);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), kBytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kBytes));
}
BENCHMARK(copy);

void write_checkpoint(benchmark::State& state) {
  const Place place;
  const std::vector<std::byte> data(kBytes, std::byte{1});
  for (auto _ : state) write(place.path(), static_cast<int>(state.range(0)), data);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kBytes));
}
BENCHMARK(write_checkpoint)->Arg(1)->Arg(8);

// Written by 8 ranks in rows, read by `range(0)` ranks: in flat ranges, or (range(1)) in columns.
// range(2): the checksums have been checked before.
void read_checkpoint(benchmark::State& state) {
  const Place place;
  write(place.path(), 8, std::vector<std::byte>(kBytes, std::byte{1}));
  std::vector<std::byte> out(kBytes);
  const std::int64_t ranks = state.range(0);
  CheckpointReader reader(place.path());
  if (state.range(2)) reader.verify();
  for (auto _ : state) {
    if (!state.range(2)) reader = CheckpointReader(place.path());
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      Box box = kWhole;
      std::int64_t begin = 0, end = kRows * kColumns / ranks;
      if (state.range(1)) {
        box[1] = {kColumns * rank / ranks, kColumns * (rank + 1) / ranks};
      } else {
        begin = end * rank;
        end += begin;
      }
      reader.read("w", "parameter", box, begin, end, DType::kF32,
                  std::span(out).subspan(static_cast<std::size_t>(rank) * kBytes / ranks,
                                         static_cast<std::size_t>(kBytes / ranks)));
    }
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kBytes));
}
BENCHMARK(read_checkpoint)
    ->ArgNames({"ranks", "columns", "checked"})
    ->ArgsProduct({{1, 8}, {0, 1}, {0, 1}});

}  // namespace
}  // namespace meshwright
