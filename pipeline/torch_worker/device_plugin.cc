#include "pipeline/torch_worker/device_plugin.h"

#include <dlfcn.h>

#include <filesystem>

#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

std::filesystem::path own_directory() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&load_device_plugin), &info) == 0 || info.dli_fname == nullptr) return {};
  return std::filesystem::path(info.dli_fname).parent_path();
}

}  // namespace

const DevicePlugin& load_device_plugin(const std::string& name) {
  const std::filesystem::path path = own_directory() / cat("libroundpipe_", name, ".so");
  if (!std::filesystem::exists(path)) {
    throw Error(ExitCode::kNoResource,
                cat("--device ", name, ": this build has no ", path.filename().string(),
                    "; build it where nvcc is: scripts/build.sh release programs; or use --device cpu"));
  }
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    throw Error(ExitCode::kNoResource,
                cat("--device ", name, ": ", path.string(), " cannot be loaded: ", why == nullptr ? "?" : why,
                    "; install the libraries of CUDA that it names, or use --device cpu"));
  }
  const auto* const plugin = static_cast<const DevicePlugin*>(dlsym(library, kPluginSymbol));
  if (plugin == nullptr || std::string(plugin->version) != RP_VERSION) {
    throw Error(ExitCode::kNoResource,
                cat("--device ", name, ": ", path.string(), " is of another version than this program (", RP_VERSION,
                    "); install both from one build"));
  }
  return *plugin;
}

}  // namespace rp
