#include "model_files/config/nearest_family.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

#include "common/text.h"
#include "model_files/config/families/family.h"

namespace rp {
namespace {

// Keys that transformers writes for every family, or that do not change the training of weights.
const std::set<std::string, std::less<>> kWithoutConsequence = {"_name_or_path",
                                                                "architectures",
                                                                "auto_map",
                                                                "bos_token_id",
                                                                "chunk_size_feed_forward",
                                                                "dtype",
                                                                "eos_token_id",
                                                                "id2label",
                                                                "initializer_range",
                                                                "is_encoder_decoder",
                                                                "label2id",
                                                                "model_type",
                                                                "output_attentions",
                                                                "output_hidden_states",
                                                                "output_router_logits",
                                                                "pad_token_id",
                                                                "pretraining_tp",
                                                                "problem_type",
                                                                "return_dict",
                                                                "router_aux_loss_coef",
                                                                "tokenizer_class",
                                                                "torch_dtype",
                                                                "transformers_version",
                                                                "use_cache"};

constexpr std::size_t kShownKeys = 8;

// The outcome of reading a config.json as if it belonged to another family.
struct Reading {
  std::string family;
  std::vector<std::string> refusals{}, unread{};  // messages; keys in quotes
  std::size_t distance = 0;                       // between the names of the families

  [[nodiscard]] auto rank() const { return std::tuple(refusals.size() + unread.size(), distance); }
};

// Reads the file again without each key that is refused, until no key is refused or a key is
// missing.
Reading read_as(const Family& family, const std::filesystem::path& path, nlohmann::json object,
                const std::string& type) {
  Reading reading{.family = std::string(family.model_type), .distance = edit_distance(type, family.model_type)};
  for (bool is_refused = true; is_refused;) {
    is_refused = false;
    const ConfigSection section(path, object);
    try {
      ModelConfig config;
      family.read(section, config);
    } catch (const Error& error) {
      const std::string text = error.what();
      reading.refusals.push_back(text.substr(std::min(text.size(), path.string().size() + 2)));  // without "path: "
      is_refused = true;
    }
    reading.unread.clear();
    for (const std::string& key : section.unread()) {
      if (!kWithoutConsequence.contains(key)) reading.unread.push_back(quoted_name(key));
    }
    if (is_refused) is_refused = object.erase(section.last_asked()) > 0;
  }
  return reading;
}

}  // namespace

std::string nearest_family(const ConfigSection& file, const std::string& type) {
  const nlohmann::json& object = file.has("text_config") ? file.section("text_config").object() : file.object();
  std::vector<Reading> readings;
  // Starts from the last family, because of equally near ones the newer is more similar: qwen2 and
  // qwen3 have the same distance from a qwen4.
  for (auto family = kFamilies.rbegin(); family != kFamilies.rend(); ++family)
    readings.push_back(read_as(**family, file.file(), object, type));
  const Reading& nearest = *std::ranges::min_element(readings, {}, &Reading::rank);
  std::string text = cat("the nearest is ", nearest.family, ", which ");
  if (nearest.refusals.empty() && nearest.unread.empty())
    return text + "knows all of its keys; its layers may differ all the same";
  std::string refusals;
  for (const std::string& refusal : nearest.refusals) refusals += (refusals.empty() ? "" : "; ") + refusal;
  if (!refusals.empty()) text += cat("refuses it (", refusals, ")");
  if (!nearest.unread.empty())
    text += cat(refusals.empty() ? "" : " and ", "has nothing for ", list_of(nearest.unread, kShownKeys));
  return text;
}

}  // namespace rp
