#include "run/checkpoint.h"

#include <fmt/format.h>

#include "run/checkpoint_test_data.h"

namespace meshwright {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(CheckpointTest, AnyCutIsReadBackByAnyOtherCut) {
  const std::vector<DType> dtypes = {DType::kF64, DType::kF32, DType::kBf16, DType::kI64};
  const std::vector<std::string> parts = {"parameter", "moment1", "moment2"};
  std::mt19937_64 random(7);
  int reads = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const int ranks = 1 + trial % 8;
    std::vector<TestTensor> tensors;
    for (int t = 0; t < 4; ++t) {
      std::vector<std::int64_t> shape(random() % 5);
      // Now and then a dimension of nothing.
      for (std::int64_t& size : shape) size = random() % 20 == 0 ? 0 : 1 + random() % 9;
      tensors.push_back(make_tensor(fmt::format("layers.{}.weight", t / 2), parts[random() % 3],
                                    dtypes[random() % 4], shape, random()));
      tensors.back().part += fmt::format("{}", t);
    }
    // Big enough for several chunks of the reader.
    if (trial % 10 == 0) {
      tensors.push_back(make_tensor("big", "parameter", DType::kF64, {400, 3, 200}, random()));
    }
    const fs::path directory = directory_ / fmt::format("{}", trial);
    std::vector<CheckpointWriter> writers;
    for (int rank = 0; rank < ranks; ++rank) {
      writers.emplace_back(directory, test_info(trial), rank, ranks);
    }
    for (const TestTensor& tensor : tensors) {
      for (const Share& share : random_cut(tensor, ranks, random)) {
        add_share(writers[static_cast<std::size_t>(share.rank)], tensor, share);
      }
    }
    for (CheckpointWriter& writer : writers) writer.close();
    writers.clear();
    complete_checkpoint(directory, trial, ranks);

    CheckpointReader reader(directory);
    reader.verify();
    EXPECT_EQ(reader.ranks(), ranks);
    EXPECT_EQ(reader.info(), test_info(trial));
    EXPECT_EQ(reader.names().size(), tensors.size());
    reader = CheckpointReader(directory);      // Which has checked nothing yet.
    for (int again = 0; again < 3; ++again) {  // Later reads skip what is not wanted.
      for (const TestTensor& tensor : tensors) {
        ASSERT_TRUE(reader.holds(tensor.name, tensor.part));
        for (const Share& share : random_cut(tensor, 1, random)) {
          ASSERT_EQ(read_back(reader, tensor, share.box, share.begin, share.end),
                    cut_out(tensor, share.box, share.begin, share.end))
              << "trial " << trial << " " << tensor.name;
          ++reads;
        }
      }
    }
  }
  EXPECT_GT(reads, 2000);
}

TEST_F(CheckpointTest, TellsWhatItHolds) {
  const fs::path path = write_small(100);
  EXPECT_EQ(path, directory_ / "step-00000100");
  CheckpointReader reader(directory_);
  EXPECT_EQ(reader.path(), path);
  ASSERT_EQ(reader.names().size(), 2u);
  EXPECT_EQ(reader.names()[0].tensor, "bias");
  EXPECT_EQ(reader.names()[0].part, "moment1");
  EXPECT_EQ(reader.names()[0].dtype, DType::kBf16);
  EXPECT_THAT(reader.names()[1].shape, ElementsAre(3, 4));
  EXPECT_FALSE(reader.holds("bias", "parameter"));
  EXPECT_THAT(names_below(directory_),
              ElementsAre("step-00000100", "step-00000100/manifest.json",
                          "step-00000100/rank-0000.bin", "step-00000100/rank-0000.json",
                          "step-00000100/rank-0001.bin", "step-00000100/rank-0001.json"));
}

TEST_F(CheckpointTest, DigestsTellContentApart) {
  std::vector<std::string> digests;
  for (const std::uint64_t version : {1, 1, 2}) {
    CheckpointWriter writer(directory_, test_info(1), 0, 1);
    const TestTensor tensor = small_tensors(version)[0];
    add_share(writer, tensor, {0, tensor.whole(), 0, 12});
    digests.push_back(writer.close());
  }
  EXPECT_EQ(digests[0], digests[1]);
  EXPECT_NE(digests[0], digests[2]);
}

TEST_F(CheckpointTest, SaysWhatIsNotThere) {
  const TestTensor t = small_tensors(1)[0];  // [3, 4]
  CheckpointWriter writer(directory_, test_info(5), 0, 1);
  add_share(writer, t, {0, {{0, 2}, {0, 4}}, 0, 8});
  add_share(writer, t, {0, {{2, 3}, {0, 4}}, 0, 3});
  writer.close();
  complete_checkpoint(directory_, 5, 1);
  CheckpointReader reader(directory_);
  std::vector<std::byte> out(48);
  const auto read = [&](std::string_view name, std::string_view part, Box box, DType dtype) {
    const std::int64_t n = count_elements(box);
    return error_of([&] {
      reader.read(name, part, box, 0, n, dtype,
                  std::span(out).first(static_cast<std::size_t>(n * dtype_bytes(dtype))));
    });
  };
  EXPECT_THAT(read(t.name, t.part, {{0, 3}, {0, 4}}, t.dtype),
              HasSubstr("holds \"parameter\" of tensor \"layers.0.up.weight\" only in part: of "
                        "region [0:3, 0:4] elements 0..12 no rank wrote the elements 11..12"));
  EXPECT_THAT(read(t.name, t.part, {{0, 3}, {0, 4}}, t.dtype),
              HasSubstr("its pieces are in rank-0000.bin"));
  EXPECT_EQ(read(t.name, t.part, {{0, 3}, {0, 3}}, t.dtype), "no error");
  EXPECT_THAT(read("layers.0.up.wieght", "parameter", {{0, 1}}, t.dtype),
              HasSubstr("nearest: layers.0.up.weight"));
  EXPECT_THAT(read(t.name, "moment1", {{0, 1}}, t.dtype), HasSubstr("it holds its parameter"));
  EXPECT_THAT(read(t.name, t.part, {{0, 1}, {0, 1}}, DType::kBf16),
              HasSubstr("is stored as f32 and asked for as bf16"));
  EXPECT_THAT(
      read(t.name, t.part, {{0, 4}, {0, 1}}, t.dtype),
      HasSubstr("is of shape [3, 4], and the region [0:4, 0:1] elements 0..4 is not within"));
  EXPECT_THAT(read(t.name, t.part, {{0, 3}}, t.dtype), HasSubstr("is of shape [3, 4]"));
}

TEST_F(CheckpointTest, ADirectoryWithoutCheckpoints) {
  const auto open = [&](const fs::path& path) {
    return error_of([&] { CheckpointReader reader{path}; });
  };
  EXPECT_THAT(open(directory_ / "none"), HasSubstr("no such directory"));
  EXPECT_THAT(open(directory_), HasSubstr("holds no checkpoint"));
  write_flat(directory_, test_info(7), small_tensors(7), 2);  // Not completed.
  EXPECT_THAT(open(directory_),
              HasSubstr("holds no completed checkpoint, only an unfinished one of step 7"));
  EXPECT_EQ(latest_intact_checkpoint(directory_), std::nullopt);
  EXPECT_THAT(checkpoint_steps(directory_), ElementsAre());
}

TEST_F(CheckpointTest, KeepsTheNewestAndNeverTouchesOthers) {
  fs::create_directories(directory_ / "step-00000001");  // Named as ours, and not ours.
  put_content(directory_ / "step-00000001" / "notes.txt", "mine");
  fs::create_directories(directory_ / ".step-00000002.partial");
  put_content(directory_ / ".step-00000002.partial" / "rank-0000.bin", "not a checkpoint");
  fs::create_directories(directory_ / "step-3");
  put_content(directory_ / "README", "mine");
  // A link to a real checkpoint elsewhere.
  const fs::path elsewhere = directory_ / "elsewhere";
  write_flat(elsewhere, test_info(4), small_tensors(4), 1);
  complete_checkpoint(elsewhere, 4, 1);
  fs::create_directory_symlink("elsewhere/step-00000004", directory_ / "step-00000004");
  const std::vector<std::string> before = names_below(directory_);

  for (const std::int64_t step : {10, 20, 30, 40}) write_small(step, 2, 2);
  EXPECT_THAT(checkpoint_steps(directory_), ElementsAre(30, 40));
  for (const std::string& name : before) EXPECT_TRUE(fs::exists(directory_ / name)) << name;

  // Somebody's notes in a checkpoint stay, the checkpoint goes.
  put_content(directory_ / "step-00000030" / "notes.txt", "mine");
  write_small(50, 2, 1);
  EXPECT_THAT(checkpoint_steps(directory_), ElementsAre(50));
  EXPECT_EQ(file_content(directory_ / "step-00000030" / "notes.txt"), "mine");
  EXPECT_TRUE(holds_all(directory_, small_tensors(50)));
  EXPECT_TRUE(holds_all(elsewhere, small_tensors(4)));
}

// Going on from an older checkpoint leaves the later ones until they are replaced.
TEST_F(CheckpointTest, StepsAheadStay) {
  for (const std::int64_t step : {10, 20, 30}) write_small(step, 2, 3);
  write_small(15, 3, 2);
  EXPECT_THAT(checkpoint_steps(directory_), ElementsAre(10, 15, 20, 30));
  write_flat(directory_, test_info(20), small_tensors(77), 1);
  complete_checkpoint(directory_, 20, 1, 2);
  EXPECT_THAT(checkpoint_steps(directory_), ElementsAre(15, 20, 30));
  EXPECT_TRUE(holds_all(directory_ / "step-00000020", small_tensors(77)));
  EXPECT_THAT(names_below(directory_ / "step-00000020"),
              ElementsAre("manifest.json", "rank-0000.bin", "rank-0000.json"));
}

TEST_F(CheckpointTest, LeftoversOfACutAttemptAreNotTaken) {
  write_small(10);
  write_flat(directory_, test_info(20), small_tensors(99), 4);  // Cut short before completion.
  {
    CheckpointWriter dead(directory_, test_info(15), 0, 2);  // Goes out of scope unclosed.
  }
  write_small(20, 2);  // With fewer ranks.
  EXPECT_TRUE(holds_all(directory_, small_tensors(20)));
  EXPECT_THAT(names_below(directory_ / "step-00000020"),
              ElementsAre("manifest.json", "rank-0000.bin", "rank-0000.json", "rank-0001.bin",
                          "rank-0001.json"));
  write_flat(directory_, test_info(25), small_tensors(25), 2);
  write_small(30);
  EXPECT_THAT(checkpoint_steps(directory_), ElementsAre(20, 30));
  EXPECT_FALSE(fs::exists(directory_ / ".step-00000025.partial"));
}

TEST_F(CheckpointTest, CompletionChecksTheRanks) {
  write_small(10);
  const auto complete = [&](int ranks) {
    return error_of([&] { complete_checkpoint(directory_, 20, ranks); });
  };
  write_flat(directory_, test_info(20), small_tensors(20), 2);
  EXPECT_THAT(complete(3), testing::AllOf(HasSubstr("is of step 20, rank 0 of 2"),
                                          HasSubstr("the last completed checkpoint is step 10")));
  EXPECT_FALSE(fs::exists(directory_ / ".step-00000020.partial"));

  write_flat(directory_, test_info(20), small_tensors(20), 2);
  fs::remove(directory_ / ".step-00000020.partial/rank-0001.json");
  EXPECT_THAT(complete(2), testing::AllOf(HasSubstr("rank-0001.json"), HasSubstr("no such file")));

  write_flat(directory_, test_info(20), small_tensors(20), 2);
  fs::resize_file(directory_ / ".step-00000020.partial/rank-0001.bin", 100);
  EXPECT_THAT(complete(2),
              testing::AllOf(HasSubstr("rank-0001.bin"), HasSubstr("is of 100 bytes")));

  write_flat(directory_, test_info(20), small_tensors(20), 2);
  CheckpointInfo other = test_info(20);
  other.plan = "dp2";
  CheckpointWriter(directory_, other, 1, 2).close();
  EXPECT_THAT(complete(2), HasSubstr("has another graph, plan or text than rank-0000.json"));

  write_flat(directory_, test_info(20), small_tensors(20), 2);
  abandon_checkpoint(directory_, 20, "ffffffffffffffff");  // Not this run's.
  EXPECT_TRUE(fs::exists(directory_ / ".step-00000020.partial/rank-0001.bin"));
  abandon_checkpoint(directory_, 20, test_info(20).run);
  EXPECT_FALSE(fs::exists(directory_ / ".step-00000020.partial"));
  EXPECT_TRUE(holds_all(directory_, small_tensors(10)));
}

TEST_F(CheckpointTest, AnotherRunsDirectoryIsRefused) {
  write_small(10);
  const CheckpointInfo other = test_info(20, "ffffffffffffffff");
  EXPECT_THAT(error_of([&] { CheckpointWriter(directory_, other, 0, 1); }),
              HasSubstr("holds checkpoints of another run (step 10 of run 0123456789abcdef)"));
  fs::create_directories(directory_ / "step-00000030");
  EXPECT_THAT(error_of([&] { CheckpointWriter(directory_, test_info(30), 0, 1); }),
              HasSubstr("is in the place of a checkpoint and none can be recognized in it"));
  EXPECT_EQ(draw_run_id().size(), 16u);
  EXPECT_NE(draw_run_id(), draw_run_id());
}

}  // namespace
}  // namespace meshwright
