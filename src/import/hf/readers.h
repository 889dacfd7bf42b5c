#pragma once

#include "import/hf/decoder.h"

namespace meshwright::hf {

// Readers of language models that vision-language wrappers contain.
Decoder read_qwen2(const Config& config);
Decoder read_qwen3(const Config& config);
Decoder read_qwen3_moe(const Config& config);
Decoder read_llama4(const Config& config);
Decoder read_gemma3(const Config& config);
Decoder read_deepseek_v3(const Config& config);

}  // namespace meshwright::hf
