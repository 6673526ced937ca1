#include "cuda/nvtx_ranges.h"

#if __has_include(<nvtx3/nvToolsExtCuda.h>)

#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtCuda.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>

namespace rp {

namespace {

constexpr const char* kInjection = "NVTX_INJECTION64_PATH";

// Uses the thread names that the kernel stores, which are cut after 15 characters.
void name_threads() {
  std::error_code failure;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", failure)) {
    std::string name;
    std::ifstream file(task.path() / "comm");
    if (!std::getline(file, name) || !name.starts_with("rp-")) continue;
    nvtxNameOsThreadA(static_cast<std::uint32_t>(std::strtoul(task.path().filename().c_str(), nullptr, 10)),
                      name.c_str());
  }
}

class NvtxRanges : public ProfilerRanges {
 public:
  void push(const std::string& text) override {
    std::call_once(named_, name_threads);
    nvtxRangePushA(text.c_str());
  }
  void pop() override { nvtxRangePop(); }

 private:
  std::once_flag named_;
};

}  // namespace

std::unique_ptr<ProfilerRanges> make_nvtx_ranges(const std::vector<NamedStream>& streams) {
  const char* const injection = std::getenv(kInjection);
  if (injection == nullptr || *injection == '\0') return nullptr;
  for (const NamedStream& each : streams) nvtxNameCuStreamA(each.stream, each.name.c_str());
  return std::make_unique<NvtxRanges>();
}

}  // namespace rp

#else

namespace rp {

std::unique_ptr<ProfilerRanges> make_nvtx_ranges(const std::vector<NamedStream>&) { return nullptr; }

}  // namespace rp

#endif
