#include "coordinator/updates/step_record.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <type_traits>

namespace rp {

namespace {

using nlohmann::json;

static_assert(std::is_trivially_copyable_v<UpdateSpan>);

json binary(const void* data, std::size_t bytes) {
  const auto* const first = static_cast<const std::uint8_t*>(data);
  return json::binary({first, first + bytes});
}

json rules_json(const std::vector<std::vector<UpdateSpan>>& rules) {
  json array = json::array();
  for (const std::vector<UpdateSpan>& spans : rules)
    array.push_back(binary(spans.data(), spans.size() * sizeof(UpdateSpan)));
  return array;
}

std::vector<std::vector<UpdateSpan>> rules_of(const json& array) {
  std::vector<std::vector<UpdateSpan>> rules;
  for (const json& group : array) {
    const auto& bytes = group.get_binary();
    rules.emplace_back(bytes.size() / sizeof(UpdateSpan));
    std::memcpy(rules.back().data(), bytes.data(), rules.back().size() * sizeof(UpdateSpan));
  }
  return rules;
}

}  // namespace

std::vector<std::byte> StepRecord::to_bytes() const {
  json buffers = json::array();
  for (const auto& [layer, block] : results.buffers) buffers.push_back({layer, binary(block.data(), block.size())});
  const json object = {{"steps", steps},
                       {"rounds", rounds},
                       {"num_applied", history.num_applied},
                       {"scale", history.loss_scale.scale},
                       {"previous_scale", history.loss_scale.previous_scale},
                       {"steps_since_overflow", history.loss_scale.steps_since_overflow},
                       {"grad_norm", outcome.grad_norm},
                       {"skipped", outcome.skipped},
                       {"used_scale", outcome.loss_scale},
                       {"nonfinite_layers", outcome.nonfinite_layers},
                       {"losses", results.losses},
                       {"buffers", buffers},
                       {"restart_data", binary(restart_data.data(), restart_data.size())},
                       {"rules", rules_json(rules)}};
  const std::vector<std::uint8_t> bytes = json::to_cbor(object);
  std::vector<std::byte> result(bytes.size());
  std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

std::optional<StepRecord> StepRecord::from_bytes(std::span<const std::byte> bytes) try {
  const auto* const first = reinterpret_cast<const std::uint8_t*>(bytes.data());
  const json object = json::from_cbor(first, first + bytes.size());
  StepRecord record;
  record.steps = object.at("steps").get<std::uint64_t>();
  record.rounds = object.at("rounds").get<std::uint64_t>();
  record.history = {.num_applied = object.at("num_applied").get<std::uint64_t>(),
                    .loss_scale = {.scale = object.at("scale").get<double>(),
                                   .previous_scale = object.at("previous_scale").get<double>(),
                                   .steps_since_overflow = object.at("steps_since_overflow").get<int>()}};
  record.outcome = {.is_final = true,
                    .grad_norm = object.at("grad_norm").get<double>(),
                    .skipped = object.at("skipped").get<bool>(),
                    .loss_scale = object.at("used_scale").get<double>(),
                    .nonfinite_layers = object.at("nonfinite_layers").get<std::vector<int>>()};
  record.results.losses = object.at("losses").get<std::vector<std::vector<double>>>();
  for (const json& buffer : object.at("buffers")) {
    const auto& block = buffer.at(1).get_binary();
    std::vector<std::byte>& copy = record.results.buffers[buffer.at(0).get<int>()];
    copy.resize(block.size());
    std::memcpy(copy.data(), block.data(), block.size());
  }
  const auto& data = object.at("restart_data").get_binary();
  record.restart_data.assign(data.begin(), data.end());
  record.rules = rules_of(object.at("rules"));
  return record;
} catch (const json::exception&) {
  return std::nullopt;
}

}  // namespace rp
