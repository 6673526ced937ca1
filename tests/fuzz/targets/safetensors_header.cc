// The JSON header of a safetensors file with 64 bytes of data.
#include "model_files/weights/safetensors_header.h"

#include "tests/fuzz/reading.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return rp::fuzz::expect_answer([&] {
    std::uint64_t bytes = 0;
    for (const auto& [name, tensor] : rp::parse_safetensors_header("file", rp::fuzz::text_of(data, size), 64))
      bytes += tensor.bytes;
    rp::fuzz::require(bytes == 64);
  });
}
