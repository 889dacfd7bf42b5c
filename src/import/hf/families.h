#pragma once

#include "import/hf/family.h"

namespace meshwright::hf {

// One definition per file; families.cpp lists them all. Decoder-only language models:

// Encoders, encoder-decoders and vision models:

}  // namespace meshwright::hf
