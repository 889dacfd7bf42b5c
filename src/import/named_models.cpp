#include <deque>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/embedded.h"
#include "base/error.h"
#include "base/json.h"
#include "import/import.h"

namespace meshwright {
namespace {

// data/models/*.json: {"name": {"summary": …, "source": …, "parameters": …, "config": {…}}, …}.
struct Models {
  std::deque<std::string> texts;  // What the views of `entries` point to; never moves.
  std::vector<NamedModel> entries;

  std::string_view keep(std::string text) { return texts.emplace_back(std::move(text)); }
};

Models load() {
  Models models;
  for (const EmbeddedFile& file : embedded_files()) {
    if (!file.name.starts_with("models/")) continue;
    const Json json = parse_json(file.content, file.name);
    for (const auto& [name, entry] : json.items()) {
      NamedModel model;
      model.name = models.keep(name);
      model.summary = models.keep(entry.at("summary").get<std::string>());
      model.config = models.keep(entry.at("config").dump());
      model.parameters = entry.at("parameters").get<double>();
      models.entries.push_back(model);
    }
  }
  MW_CHECK(!models.entries.empty(), "no model is embedded");
  return models;
}

}  // namespace

std::span<const NamedModel> named_models() {
  static const Models models = load();
  return models.entries;
}

}  // namespace meshwright
