// Profiles of GPUs and servers. The text of an accepted GPU profile must be readable again.
#include "model_files/profile_file.h"
#include "tests/fuzz/reading.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static rp::fuzz::InputFolder folder("profile.json"), again("profile.json");
  const auto& path = folder.put(rp::fuzz::text_of(data, size));
  (void)rp::fuzz::expect_answer([&] {
    const auto file = rp::read_gpu_profile(path);
    const auto copy = rp::read_gpu_profile(again.put(rp::gpu_profile_text(file)));
    rp::fuzz::require(copy.profile == file.profile && copy.sources == file.sources);
  });
  return rp::fuzz::expect_answer([&] { (void)rp::read_server_profile(path); });
}
