#pragma once

#include <string_view>

#include "import/import.h"

namespace meshwright::onnx {

/// Imports a serialized ONNX model; `source` names it in errors.
Model import_model(std::string_view bytes, std::string_view source, const ImportOptions& options);

}  // namespace meshwright::onnx
