// model_files/config/families/family.h
// What the file of a family gives: how to read its config.json. docs/adding-a-model.md
#pragma once

#include <array>
#include <string_view>

#include "model_files/config/config_section.h"
#include "model_files/config/model_config.h"

namespace rp {

struct Family {
  std::string_view model_type;
  // Reads a config.json into the config, except its name and family. Throws rp::Error (kBadInput).
  void (*read)(const ConfigSection& file, ModelConfig& config);
};

// A multimodal model, whose text part is the "text_config" of its config.json: of one of the families. What else it has
// is not read. The prefixes are those of the classes whose files kept their names from before transformers 5.
struct Wrapper {
  std::string_view model_type;
  std::string_view text_type;  // of a text_config that does not say
  std::string_view body_in_files = "language_model.model.", head_in_files = "language_model.";  // NamePrefixes
  std::string_view body_in_memory = "model.language_model.", head_in_memory = "";  // likewise, in transformers' class
  bool tied_head = true;  // of a config.json that does not say; that of the text_config counts for nothing
};

// One for each file in model_files/config/families/.
extern const Family kGemma3TextFamily, kGptOssFamily, kLlamaFamily, kMinistral3Family, kMistralFamily, kOlmo3Family,
    kQwen2Family, kQwen3Family, kQwen3MoeFamily, kSmolLm3Family;

inline constexpr std::array kFamilies = {&kGemma3TextFamily, &kGptOssFamily, &kLlamaFamily, &kMinistral3Family,
                                         &kMistralFamily,    &kOlmo3Family,  &kQwen2Family, &kQwen3Family,
                                         &kQwen3MoeFamily,   &kSmolLm3Family};

extern const Wrapper kGemma3Wrapper, kMistral3Wrapper;

inline constexpr std::array kWrappers = {&kGemma3Wrapper, &kMistral3Wrapper};

}  // namespace rp
