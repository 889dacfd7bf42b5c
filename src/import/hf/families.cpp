#include "import/hf/families.h"

namespace meshwright::hf {
namespace {

// One line per family, in the order they are tried.
constexpr const Family* kFamilies[] = {
    // Decoder-only language models
    &kLlama,      &kMistral,     &kMinistral3, &kQwen2,      &kQwen3,      &kQwen,
    &kPhi3,       &kInternlm,    &kBaichuan,   &kSeedOss,    &kSmolLm3,    &kHelium,
    &kHunyuan,    &kErnie,       &kArcee,      &kOlmo,       &kOlmo2,      &kGlm,
    &kChatGlm,    &kStableLm,    &kCohere,     &kStarcoder2, &kNemotron,   &kGranite,
    &kMiniCpm,    &kExaone4,     &kGemma,      &kGemma2,     &kGemma3,     &kGpt2,
    &kGptBigCode, &kGptNeo,      &kGptj,       &kGptNeox,    &kPhi,        &kFalcon,
    &kBloom,      &kMpt,         &kOpt,        &kMixtral,    &kQwen2Moe,   &kQwen3Moe,
    &kOlmoe,      &kGraniteMoe,  &kPhimoe,     &kDbrx,       &kGptOss,     &kLlama4,
    &kGlm4Moe,    &kMiniMaxM2,   &kMimoV2,     &kDeepseek,   &kDeepseekV2, &kDeepseekV3,
    &kGlmMoeDsa,  &kGlm4MoeLite, &kQwenVl,     &kGemma3Vl,   &kKimiK25,    &kLlama4Vl,
    // Encoders, encoder-decoders and vision models
};

}  // namespace

std::span<const Family* const> families() { return kFamilies; }

}  // namespace meshwright::hf
