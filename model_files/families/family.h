// model_files/families/family.h
// What the file of a family gives: how to read its config.json. docs/adding-a-model.md
#pragma once

#include <array>
#include <string_view>

#include "model_files/config_section.h"
#include "model_files/model_config.h"

namespace rp {

struct Family {
  std::string_view model_type;
  // Reads all of a config.json but what common_config() has read. Throws rp::Error (kBadInput).
  void (*read)(const ConfigSection& file, ModelConfig& config);
};

// One for each file in model_files/families/.
extern const Family kGemma3TextFamily, kGptOssFamily, kLlamaFamily, kMistralFamily, kOlmo3Family, kQwen2Family, kQwen3Family,
    kQwen3MoeFamily, kSmolLm3Family;

inline constexpr std::array kFamilies = {&kGemma3TextFamily, &kGptOssFamily, &kLlamaFamily,    &kMistralFamily, &kOlmo3Family,
                                         &kQwen2Family,      &kQwen3Family,  &kQwen3MoeFamily, &kSmolLm3Family};

}  // namespace rp
