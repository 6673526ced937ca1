// adapter_config.json next to the weights of an adapter; its selection is applied to a model.
#include "model_files/weights/adapter_config.h"

#include "model_files/part_selection.h"
#include "tests/fuzz/reading.h"
#include "tests/model_files/tiny_model.h"

namespace {

const rp::ModelConfig& model() {
  static const rp::ModelConfig kModel = rp::read_with(rp::tiny_llama_json(), nlohmann::json::object());
  return kModel;
}

bool add_weights(const rp::fuzz::InputFolder& folder) {
  std::vector<rp::TensorDeclaration> tensors;
  const rp::TrainedParts parts{.lora = {.rank = 4, .targets = "q_proj"}};
  for (const auto& tensor : rp::adapter_tensors(model(), parts))
    tensors.push_back({tensor.name, rp::DType::kFloat32, tensor.shape});
  rp::write_tensors(folder.directory().file(rp::kAdapterWeightsFile), tensors);
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static rp::fuzz::InputFolder folder(rp::kAdapterConfigFile);
  [[maybe_unused]] static const bool kHasWeights = add_weights(folder);
  (void)folder.put(rp::fuzz::text_of(data, size));
  return rp::fuzz::expect_answer([&] {
    const rp::TrainedParts parts = rp::read_adapter_config(folder.directory().path());
    (void)rp::summarise(model(), parts);
    rp::check_adapter(model(), parts, rp::SafetensorsFile::open(folder.directory().file(rp::kAdapterWeightsFile)));
  });
}
