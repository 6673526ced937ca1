// model_files/config/families/family.h
// Family and Wrapper, which the source of each family defines to read its config.json.
// docs/adding-a-model.md
#pragma once

#include <array>
#include <string_view>

#include "model_files/config/config_section.h"
#include "model_files/config/model_config.h"

namespace rp {

struct Family {
  std::string_view model_type;
  // Reads a config.json into `config`, except its name and family. Throws rp::Error (kBadInput).
  void (*read)(const ConfigSection& file, ModelConfig& config);
};

// The prefix that transformers 5 gives the text part of a multimodal model.
inline constexpr std::string_view kTextInWrapper = "model.language_model.";

// A multimodal model. Its text part is described by the "text_config" of its config.json and
// belongs to one of the families; the other parts are not read. The default prefixes are those of
// classes whose files kept their names from before transformers 5.
struct Wrapper {
  std::string_view model_type;
  std::string_view text_type;  // of a text_config without a model_type
  std::string_view body_in_files = "language_model.model.", head_in_files = "language_model.";  // NamePrefixes in files
  std::string_view body_in_memory = kTextInWrapper,
                   head_in_memory;  // NamePrefixes in transformers' class
  bool tied_head = true;            // if config.json has no value; the value in the text_config is ignored
};

// One Family for each source in model_files/config/families/ that defines one.
extern const Family kDeepseekV3Family, kGemma3TextFamily, kGemma4TextFamily, kGlm4MoeFamily, kGlm4MoeLiteFamily,
    kGptOssFamily, kLlamaFamily, kMinistral3Family, kMistralFamily, kOlmo3Family, kQwen2Family, kQwen3Family,
    kQwen3MoeFamily, kQwen35TextFamily, kQwen35MoeTextFamily, kSmolLm3Family;

inline constexpr std::array kFamilies = {
    &kDeepseekV3Family, &kGemma3TextFamily, &kGemma4TextFamily,    &kGlm4MoeFamily, &kGlm4MoeLiteFamily, &kGptOssFamily,
    &kLlamaFamily,      &kMinistral3Family, &kMistralFamily,       &kOlmo3Family,   &kQwen2Family,       &kQwen3Family,
    &kQwen3MoeFamily,   &kQwen35TextFamily, &kQwen35MoeTextFamily, &kSmolLm3Family};

extern const Wrapper kGemma3Wrapper, kGemma4Wrapper, kMistral3Wrapper, kQwen35Wrapper, kQwen35MoeWrapper;

inline constexpr std::array kWrappers = {&kGemma3Wrapper, &kGemma4Wrapper, &kMistral3Wrapper, &kQwen35Wrapper,
                                         &kQwen35MoeWrapper};

}  // namespace rp
