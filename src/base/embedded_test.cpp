#include "base/embedded.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "base/files.h"

namespace meshwright {
namespace {

TEST(Embedded, EveryFileEqualsItsSource) {
  ASSERT_FALSE(embedded_files().empty());
  for (const EmbeddedFile& file : embedded_files()) {
    // Spaces lie beside data/.
    const std::filesystem::path root(MESHWRIGHT_SOURCE_DIR);
    const auto path =
        file.name.starts_with("spaces/") ? root / file.name : root / "data" / file.name;
    EXPECT_EQ(file.content, read_file(path, 64u << 20)) << file.name;
    EXPECT_EQ(embedded_file(file.name).data(), file.content.data());
  }
}

TEST(Embedded, MissingFileIsABug) {
  EXPECT_THROW(embedded_file("no-such-file.json"), InternalError);
}

}  // namespace
}  // namespace meshwright
