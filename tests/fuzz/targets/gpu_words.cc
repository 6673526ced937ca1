// --gpus and CUDA_VISIBLE_DEVICES, one per line, on a machine with three cards.
#include "launcher/machine/gpu_list.h"
#include "tests/fuzz/reading.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const rp::GpuSystem kSystem{
      .gpus = {{.index = 0, .uuid = "GPU-12ab", .name = "NVIDIA A"},
               {.index = 1, .uuid = "GPU-12cd", .name = "NVIDIA A"},
               {.index = 2, .uuid = "GPU-ffff", .name = "NVIDIA B", .problem = "it is lost"}},
      .instances = {{.index = 1, .uuid = "MIG-77", .is_instance = true}}};
  std::vector<std::string> lines = rp::fuzz::words_of(rp::fuzz::text_of(data, size));
  const std::optional<std::string> visible = lines.size() > 1 ? std::optional(lines[1]) : std::nullopt;
  lines.resize(1);
  return rp::fuzz::expect_answer([&] {
    const rp::GpuChoice choice =
        rp::choose_gpus(rp::parse_gpus("--gpus", lines[0]), kSystem, {.visible_devices = visible});
    for (std::size_t worker = 0; worker < choice.gpus.size(); ++worker)
      (void)rp::visible_devices(choice.gpus, worker, "memops");
  });
}
