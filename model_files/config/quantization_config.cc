#include "model_files/config/quantization_config.h"

#include <algorithm>
#include <iterator>

#include "common/text.h"

namespace rp {
namespace {

// `format` has no value if the files are not read.
struct Method {
  std::string name;
  std::optional<WeightFormat> format{};
};

Method read_fp8(const ConfigSection& section) {
  const std::string codes = section.text("fmt", "e4m3"), scales = section.text("scale_fmt", "");
  if (codes != "e4m3") return {cat("fp8 with codes of ", codes)};
  if (scales == "ue8m0") return {cat("fp8 with scales of ", scales)};
  if (section.is_null("weight_block_size")) return {"fp8", WeightFormat::kFp8Tensor};
  constexpr std::int64_t kMaxSide = std::int64_t{1} << 20;
  const std::vector<std::int64_t> sides = section.integers("weight_block_size", 0, kMaxSide);
  if (sides.empty() || sides == std::vector{kFp8Side, kFp8Side}) return {"fp8", WeightFormat::kFp8Blocks};
  return {cat("fp8 with blocks of ", section.object().at("weight_block_size").dump())};
}

Method read_bitsandbytes(const ConfigSection& section) {
  if (!section.boolean("load_in_4bit", false)) return {"bitsandbytes with 8 bits"};
  const std::string type = section.text("bnb_4bit_quant_type", "fp4");
  if (type != "nf4") return {cat("bitsandbytes with ", type)};
  const std::string storage = section.text("bnb_4bit_quant_storage", "uint8");
  if (storage != "uint8") return {cat("bitsandbytes stored as ", storage)};
  const bool is_double = section.boolean("bnb_4bit_use_double_quant", false);
  return {"bitsandbytes", is_double ? WeightFormat::kNf4Double : WeightFormat::kNf4};
}

// Some methods have variants, such as "nvfp4-pack-quantized", that users know by name.
std::string name_with_variant(const ConfigSection& section, std::string method) {
  for (const char* key : {"format", "quant_algo"}) {
    const auto variant = section.object().find(key);
    if (variant != section.object().end() && variant->is_string())
      method += cat(" (", variant->get_ref<const std::string&>(), ")");
  }
  return method;
}

Method read_method(const ConfigSection& section) {
  // Early files of bitsandbytes do not name it.
  const bool is_unnamed = section.has("load_in_4bit") || section.has("load_in_8bit");
  const std::string method = section.text("quant_method", is_unnamed ? "bitsandbytes" : "unknown");
  if (method == "mxfp4") return {method, WeightFormat::kMxfp4};
  if (method == "fp8") return read_fp8(section);
  if (method == "bitsandbytes") return read_bitsandbytes(section);
  return {name_with_variant(section, method)};
}

}  // namespace

void read_quantization(const ConfigSection& file, ModelConfig& config) {
  if (!file.has("quantization_config")) return;
  const ConfigSection section = file.section("quantization_config");
  Method method = read_method(section);
  config.quantization = std::move(method.name);
  config.quantised_format = method.format;
  config.unquantised_layers.clear();
  if (!method.format) return;
  for (const char* key : {"modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules"})
    std::ranges::move(section.texts(key), std::back_inserter(config.unquantised_layers));
}

bool is_quantised(const ModelConfig& config, std::string_view layer) {
  const auto is_exception = [&](const std::string& name) {
    const bool is_beginning =
        layer.starts_with(name) && (layer.size() == name.size() || layer[name.size()] == '.' || name.ends_with('.'));
    return is_beginning || layer.ends_with(name);
  };
  return config.quantised_format && std::ranges::none_of(config.unquantised_layers, is_exception);
}

}  // namespace rp
