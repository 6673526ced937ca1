// A library that plays the profiler for NVTX and receives its calls. It records them as lines,
// "push TEXT", "pop", "thread NAME", "stream NAME", and returns the lines on request.
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtCuda.h>

#include <mutex>
#include <string>

namespace {

std::mutex g_mutex;
std::string g_lines;

void write(const std::string& line) {
  const std::lock_guard lock(g_mutex);
  g_lines += line + "\n";
}

int NVTX_API push(const char* text) {
  write(std::string("push ") + text);
  return 0;
}
int NVTX_API pop() {
  write("pop");
  return 0;
}
void NVTX_API name_thread(std::uint32_t, const char* name) { write(std::string("thread ") + name); }
void NVTX_API name_cu_stream(CUstream, const char* name) { write(std::string("stream ") + name); }

template <typename Function>
void take(const NvtxExportTableCallbacks& callbacks, NvtxCallbackModule module, unsigned number, Function* function) {
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks.GetModuleFunctionTable(module, &table, &size) == 0 || number >= size) return;
  *table[number] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* nvtx_lines() {
  const std::lock_guard lock(g_mutex);
  return g_lines.c_str();
}

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  if (callbacks == nullptr) return 0;
  take(*callbacks, NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangePushA, push);
  take(*callbacks, NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangePop, pop);
  take(*callbacks, NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_NameOsThreadA, name_thread);
  take(*callbacks, NVTX_CB_MODULE_CUDA, NVTX_CBID_CUDA_NameCuStreamA, name_cu_stream);
  return 1;
}
