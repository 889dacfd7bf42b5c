#include <fmt/format.h>

#include <filesystem>

#include "base/embedded.h"
#include "base/error.h"
#include "base/files.h"
#include "base/spelling.h"
#include "cluster/yaml_text.h"
#include "space/plan_space.h"

namespace meshwright {
namespace {

constexpr std::string_view kPrefix = "spaces/";
constexpr std::string_view kSuffix = ".yaml";

}  // namespace

std::vector<NamedSpace> named_spaces() {
  std::vector<NamedSpace> spaces;
  for (const EmbeddedFile& file : embedded_files()) {
    std::string_view name = file.name;
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    name = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
    spaces.push_back({std::string(name), file.content});
  }
  return spaces;
}

PlanSpace read_space(const std::string& file_or_name) {
  std::error_code error;
  if (std::filesystem::exists(file_or_name, error)) {
    return parse_space(read_file(file_or_name, kMaxYamlBytes), file_or_name);
  }
  std::vector<std::string> names;
  for (const NamedSpace& space : named_spaces()) {
    if (space.name == file_or_name)
      return parse_space(space.text, "spaces/" + space.name + ".yaml");
    names.push_back(space.name);
  }
  std::string near;
  for (const std::string& name : nearest_names(file_or_name, names, 3)) {
    near += (near.empty() ? "" : ", ") + name;
  }
  throw Error(fmt::format("no such file, and no plan space is named {}", in_quotes(file_or_name)),
              file_or_name,
              near.empty() ? "`meshwright space` lists the plan spaces that come with it"
                           : "did you mean " + near + "? `meshwright space` lists all");
}

}  // namespace meshwright
