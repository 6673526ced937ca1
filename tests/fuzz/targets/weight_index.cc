// model.safetensors.index.json next to two shards with the tensors `a` and `b`.
#include "model_files/weights/weight_files.h"

#include "tests/fuzz/reading.h"
#include "tests/model_files/safetensors_bytes.h"

namespace {

bool add_shards(const rp::fuzz::InputFolder& folder) {
  for (const char* name : {"a", "b"}) {
    (void)folder.directory().write(std::string(name) + ".safetensors",
                                   rp::safetensors_bytes("{" + rp::entry(name, "F32", "[1]", "[0,4]") + "}", 4));
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static rp::fuzz::InputFolder folder(rp::kIndexFile);
  [[maybe_unused]] static const bool kHasShards = add_shards(folder);
  (void)folder.put(rp::fuzz::text_of(data, size));
  return rp::fuzz::expect_answer([&] {
    const rp::WeightFiles files = rp::WeightFiles::open(folder.directory().path());
    for (const std::string& name : files.names()) rp::fuzz::require(files.tensor(name).bytes == 4);
  });
}
