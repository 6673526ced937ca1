#include "pipeline/torch_worker/device_plugin.h"

#include <dlfcn.h>

#include <filesystem>

#include "common/system/own_library.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

const DevicePlugin& load_device_plugin(const std::string& name) {
  const OwnLibrary library = load_own_library(cat("libroundpipe_", name, ".so"));
  const std::filesystem::path& path = library.path;
  if (!library.exists) {
    throw Error(ExitCode::kNoResource,
                cat("--device ", name, ": this build has no ", path.filename().string(),
                    "; build it where nvcc is: scripts/build.sh release programs; or use --device cpu"));
  }
  if (library.handle == nullptr) {
    throw Error(ExitCode::kNoResource, cat("--device ", name, ": ", path.string(), " cannot be loaded: ", library.error,
                                           "; install the libraries of CUDA that it names, or use --device cpu"));
  }
  const auto* const plugin = static_cast<const DevicePlugin*>(dlsym(library.handle, kPluginSymbol));
  if (plugin == nullptr || std::string(plugin->version) != RP_VERSION) {
    throw Error(ExitCode::kNoResource,
                cat("--device ", name, ": ", path.string(), " is of another version than this program (", RP_VERSION,
                    "); install both from one build"));
  }
  return *plugin;
}

}  // namespace rp
