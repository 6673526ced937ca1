// Regular expressions of --lora-targets, --freeze and --train, one per line, applied to a model.
#include "model_files/part_selection.h"
#include "tests/fuzz/reading.h"
#include "tests/model_files/tiny_model.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const rp::ModelConfig kModel = rp::read_with(rp::tiny_llama_json(), nlohmann::json::object());
  std::vector<std::string> lines = rp::fuzz::words_of(rp::fuzz::text_of(data, size));
  lines.resize(3);
  const rp::TrainedParts parts{
      .lora = {.rank = lines[0].empty() ? 0 : 4, .targets = lines[0]}, .freeze = lines[1], .train = lines[2]};
  return rp::fuzz::expect_answer([&] { (void)rp::summarise(kModel, parts); });
}
