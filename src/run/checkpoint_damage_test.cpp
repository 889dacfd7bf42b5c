// Damage to a completed checkpoint: found, named, and an older checkpoint named.
#include <fmt/format.h>

#include "run/checkpoint_index.h"
#include "run/checkpoint_test_data.h"

namespace meshwright {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

TEST_F(CheckpointTest, EveryFlippedBitIsFound) {
  const fs::path path = write_small(100);
  const std::vector<TestTensor> tensors = small_tensors(100);
  int flips = 0;
  for (const std::string& name : names_below(path)) {
    const std::string content = file_content(path / name);
    for (std::size_t i = 0; i < content.size(); ++i) {
      std::string changed = content;
      changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
      put_content(path / name, changed);
      const std::string error = error_of([&] { holds_all(path, tensors); });
      ASSERT_THAT(error, HasSubstr(name)) << "byte " << i << " of " << name;
      ASSERT_THAT(error_of([&] { CheckpointReader(path).verify(); }), HasSubstr(name));
      ++flips;
    }
    put_content(path / name, content);
  }
  EXPECT_GT(flips, 1000);
  EXPECT_TRUE(holds_all(path, tensors));
}

TEST_F(CheckpointTest, EveryCutOrLongerFileIsFound) {
  const fs::path path = write_small(100);
  for (const std::string& name : names_below(path)) {
    const std::string content = file_content(path / name);
    for (std::size_t size = 0; size <= content.size() + 1; ++size) {
      if (size == content.size()) continue;
      std::string changed = content;
      changed.resize(size, '\n');
      put_content(path / name, changed);
      ASSERT_THAT(error_of([&] { CheckpointReader reader(path); }), HasSubstr(name))
          << size << " bytes of " << name;
    }
    fs::remove(path / name);
    EXPECT_THAT(error_of([&] { CheckpointReader reader(path); }),
                AllOf(HasSubstr(name), HasSubstr("no such file")));
    put_content(path / name, content);
  }
  EXPECT_TRUE(holds_all(path, small_tensors(100)));
}

TEST_F(CheckpointTest, NamesTheDamagedPieceAndTheIntactCheckpoint) {
  write_small(80, 2, 3);
  const fs::path good = write_small(90, 2, 3);
  const fs::path path = write_small(100, 2, 3);
  // The last byte of rank 1: of the tensor "bias", of which it holds the elements 2 to 5.
  std::string data = file_content(path / "rank-0001.bin");
  data.back() = static_cast<char>(data.back() ^ 0x10);
  put_content(path / "rank-0001.bin", data);
  CheckpointReader reader(directory_);  // Opens: the data is not read yet.
  const std::vector<TestTensor> tensors = small_tensors(100);
  EXPECT_EQ(read_back(reader, tensors[0], tensors[0].whole(), 0, 12), tensors[0].bytes);
  EXPECT_NO_THROW(read_back(reader, tensors[1], tensors[1].whole(), 0, 2));  // Rank 0's.
  EXPECT_THAT(error_of([&] { read_back(reader, tensors[1], tensors[1].whole(), 1, 3); }),
              AllOf(HasSubstr("rank-0001.bin"),
                    HasSubstr("the checksum of \"moment1\" of tensor \"bias\", region [0:5] "
                              "elements 2..5 is")));
  EXPECT_EQ(latest_intact_checkpoint(directory_), good);
  EXPECT_EQ(latest_intact_checkpoint(directory_, 90), directory_ / "step-00000080");

  fs::remove(path / "rank-0001.bin");
  EXPECT_THAT(error_of([&] { CheckpointReader again(directory_); }),
              AllOf(HasSubstr("step-00000100/rank-0001.bin"), HasSubstr("no such file"),
                    HasSubstr("step-00000090 is complete")));
  // Without its manifest, too.
  fs::remove(good / "manifest.json");
  fs::remove(path / "manifest.json");
  EXPECT_THAT(error_of([&] { CheckpointReader again(directory_); }),
              AllOf(HasSubstr("step-00000100/manifest.json"), HasSubstr("no such file"),
                    HasSubstr("step-00000080 is complete")));
  EXPECT_EQ(latest_intact_checkpoint(directory_), directory_ / "step-00000080");
}

TEST_F(CheckpointTest, MixedFilesAreNamed) {
  const fs::path old = write_small(90);
  const fs::path path = write_small(100);
  const auto open = [&] { return error_of([&] { CheckpointReader reader(path); }); };
  const auto copy = [&](const fs::path& from, const std::string& name, const std::string& to) {
    fs::copy_file(from / name, path / to, fs::copy_options::overwrite_existing);
  };
  // Both files of a rank from another step.
  copy(old, "rank-0001.json", "rank-0001.json");
  copy(old, "rank-0001.bin", "rank-0001.bin");
  EXPECT_THAT(open(), AllOf(HasSubstr("rank-0001.json"),
                            HasSubstr("is of step 90, rank 1, run 0123456789abcdef, and does not "
                                      "belong to this checkpoint of step 100")));
  write_small(100);
  copy(old, "rank-0001.bin", "rank-0001.bin");  // Of the same size.
  EXPECT_THAT(open(),
              AllOf(HasSubstr("rank-0001.bin"), HasSubstr("is not rank 1's data of step 100"),
                    HasSubstr("step=000000000090")));
  write_small(100);
  copy(path, "rank-0000.json", "rank-0001.json");
  EXPECT_THAT(open(), AllOf(HasSubstr("rank-0001.json"), HasSubstr("is of step 100, rank 0")));
  write_small(100);
  copy(old, "manifest.json", "manifest.json");
  EXPECT_THAT(open(), AllOf(HasSubstr("rank-0000.json"), HasSubstr("checkpoint of step 90")));

  // Of the same step of another run, and of another attempt of the same run.
  const fs::path other = directory_ / "other";
  write_flat(other, test_info(100, "ffffffffffffffff"), small_tensors(100), 2);
  complete_checkpoint(other, 100, 2);
  write_small(100);
  copy(other / "step-00000100", "rank-0001.json", "rank-0001.json");
  EXPECT_THAT(open(), AllOf(HasSubstr("rank-0001.json"), HasSubstr("run ffffffffffffffff")));
  const fs::path attempt = directory_ / "attempt";
  write_flat(attempt, test_info(100), small_tensors(5), 2);
  complete_checkpoint(attempt, 100, 2);
  write_small(100);
  copy(attempt / "step-00000100", "rank-0001.json", "rank-0001.json");
  EXPECT_THAT(open(), HasSubstr("is not the index with which the checkpoint was completed"));
}

// Indexes whose checksum is right and whose content lies.
TEST(CheckpointIndex, LiesAreErrors) {
  RankIndex good;
  good.info = test_info(1);
  good.data_bytes = kDataHeadBytes + 48;
  good.pieces = {{"w",
                  "parameter",
                  DType::kF32,
                  {3, 4},
                  {{0, 3}, {0, 4}},
                  0,
                  12,
                  kDataHeadBytes,
                  48,
                  0x12345678}};
  const auto answer = [](const RankIndex& index) {
    return error_of([&] { parse_index(print_index(index), "rank-0000.json"); });
  };
  EXPECT_EQ(answer(good), "no error");
  const auto lie = [&](auto change) {
    RankIndex index = good;
    change(index, index.pieces[0]);
    return answer(index);
  };
  const std::int64_t most = INT64_MAX;
  EXPECT_THAT(lie([](auto&, auto& p) { p.end = 13; }),
              HasSubstr("piece 0: 'range' must be an integer from 0 to 12"));
  EXPECT_THAT(lie([](auto&, auto& p) { p.begin = -1; }), HasSubstr("'range' must be"));
  EXPECT_THAT(lie([](auto&, auto& p) { p.box[1].end = 5; }), HasSubstr("'box' must be"));
  EXPECT_THAT(lie([](auto&, auto& p) { p.box.pop_back(); }), HasSubstr("'box' and 'shape'"));
  EXPECT_THAT(lie([&](auto&, auto& p) { p.shape[0] = most; }), HasSubstr("'shape' must be"));
  EXPECT_THAT(lie([](auto&, auto& p) {
                p.shape = {1LL << 40, 1LL << 40};
                p.box = {{0, 0}, {0, 1}};
              }),
              HasSubstr("more than 2^60 elements"));
  EXPECT_THAT(lie([](auto&, auto& p) {
                p.shape.assign(17, 1);
                p.box.assign(17, {0, 1});
              }),
              HasSubstr("more than 16 dimensions"));
  EXPECT_THAT(lie([](auto&, auto& p) { p.offset = 0; }), HasSubstr("lies at byte 0 with 48 bytes"));
  EXPECT_THAT(lie([&](auto&, auto& p) { p.offset = most; }), HasSubstr("lies at byte"));
  EXPECT_THAT(lie([](auto& i, auto&) { i.data_bytes -= 1; }), HasSubstr("lies at byte 96"));
  EXPECT_THAT(lie([](auto& i, auto&) { i.data_bytes += 1; }), HasSubstr("the pieces end at byte"));
  EXPECT_THAT(lie([](auto& i, auto&) { i.rank = 1; }), HasSubstr("'rank' must be"));
  EXPECT_THAT(lie([](auto& i, auto&) { i.info.step = -1; }), HasSubstr("'step' must be"));
  EXPECT_THAT(lie([](auto& i, auto&) { i.info.run = "x"; }), HasSubstr("16 hexadecimal digits"));
  EXPECT_THAT(lie([](auto&, auto& p) { p.tensor = "\xff"; }), HasSubstr("not valid UTF-8"));
  EXPECT_THAT(lie([](auto&, auto& p) { p.tensor.assign(5000, 'x'); }),
              HasSubstr("'tensor' is of 5000 bytes, more than 4096"));
}

}  // namespace
}  // namespace meshwright
