#pragma once

#include "import/hf/family.h"

namespace meshwright::hf {

// One definition per family; families.cpp lists them all. Decoder-only language models:
extern const Family kLlama;
extern const Family kMistral;
extern const Family kMinistral3;
extern const Family kQwen2;
extern const Family kQwen3;
extern const Family kQwen;
extern const Family kPhi3;
extern const Family kInternlm;
extern const Family kBaichuan;
extern const Family kSeedOss;
extern const Family kSmolLm3;
extern const Family kHelium;
extern const Family kHunyuan;
extern const Family kErnie;
extern const Family kArcee;
extern const Family kOlmo;
extern const Family kOlmo2;
extern const Family kGlm;
extern const Family kChatGlm;
extern const Family kStableLm;
extern const Family kCohere;
extern const Family kStarcoder2;
extern const Family kNemotron;
extern const Family kGranite;
extern const Family kMiniCpm;
extern const Family kExaone4;
extern const Family kGemma;
extern const Family kGemma2;
extern const Family kGemma3;
extern const Family kGpt2;
extern const Family kGptBigCode;
extern const Family kGptNeo;
extern const Family kGptj;
extern const Family kGptNeox;
extern const Family kPhi;
extern const Family kFalcon;
extern const Family kBloom;
extern const Family kMpt;
extern const Family kOpt;
extern const Family kMixtral;
extern const Family kQwen2Moe;
extern const Family kQwen3Moe;
extern const Family kOlmoe;
extern const Family kGraniteMoe;
extern const Family kPhimoe;
extern const Family kDbrx;
extern const Family kGptOss;
extern const Family kLlama4;
extern const Family kGlm4Moe;
extern const Family kMiniMaxM2;
extern const Family kMimoV2;
extern const Family kDeepseek;
extern const Family kDeepseekV2;
extern const Family kDeepseekV3;
extern const Family kGlmMoeDsa;
extern const Family kGlm4MoeLite;
extern const Family kQwenVl;
extern const Family kGemma3Vl;
extern const Family kKimiK25;
extern const Family kLlama4Vl;

// Encoders, encoder-decoders and vision models:
extern const Family kT5;
extern const Family kDecoderOnlyT5;
extern const Family kBart;
extern const Family kMBart;
extern const Family kPegasus;
extern const Family kMarian;
extern const Family kBlenderbot;
extern const Family kBlenderbotSmall;
extern const Family kM2M100;
extern const Family kBert;
extern const Family kRoberta;
extern const Family kElectra;
extern const Family kDistilBert;
extern const Family kVit;
extern const Family kDeit;
extern const Family kSwin;
extern const Family kClip;
extern const Family kClipText;
extern const Family kClipVision;
extern const Family kEvoformer;

}  // namespace meshwright::hf
