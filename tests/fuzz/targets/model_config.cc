// config.json of every family, and the first uses of a model's description: the texts of its layers
// and its size.
#include "model_files/config/model_config.h"
#include "model_files/layer_tensors.h"
#include "tests/fuzz/reading.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static rp::fuzz::InputFolder folder(rp::kConfigFile);
  (void)folder.put(rp::fuzz::text_of(data, size));
  return rp::fuzz::expect_answer([&] {
    const rp::ModelConfig config = rp::read_model_config(folder.directory().path());
    for (const std::int64_t layer : {std::int64_t{0}, std::int64_t{1}, config.num_layers() + 1})
      (void)rp::text_of_layer(config, layer);
    rp::fuzz::require(rp::num_parameters(rp::tensors_of(config)) > 0);
  });
}
