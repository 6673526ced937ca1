// A safetensors file, which is opened and whose tensors are all read.
#include "model_files/weights/safetensors.h"

#include "tests/fuzz/reading.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static rp::fuzz::InputFolder folder("model.safetensors");
  const auto& path = folder.put(rp::fuzz::text_of(data, size));
  return rp::fuzz::expect_answer([&] {
    const rp::SafetensorsFile file = rp::SafetensorsFile::open(path);
    std::uint64_t bytes = 0;
    for (const std::string& name : file.names_in_order()) {
      std::string content(file.tensor(name).bytes, '\0');
      file.read(name, content.data(), content.size());
      bytes += content.size();
    }
    rp::fuzz::require(8 + file.header().size() + bytes == size);
  });
}
