// launcher/probe/probe_stream.h
// A CUDA stream of rp-probe.
#pragma once

#include <thread>

#include "cuda/context.h"

namespace rp {

// The destructor waits for the work enqueued on the stream: even after a failure a copy may be
// running, and its memory is freed next.
class ProbeStream {
 public:
  explicit ProbeStream(const CudaContext& context) : context_(context) {
    context_.make_current();
    context_.check(context_.driver().stream_create(&stream_, CU_STREAM_NON_BLOCKING, 0), "making a stream");
  }
  ~ProbeStream() {
    while (context_.driver().stream_query(stream_) == CUDA_ERROR_NOT_READY) std::this_thread::yield();
    (void)context_.driver().stream_destroy(stream_);
  }
  ProbeStream(const ProbeStream&) = delete;
  ProbeStream& operator=(const ProbeStream&) = delete;
  [[nodiscard]] CUstream get() const { return stream_; }

 private:
  const CudaContext& context_;
  CUstream stream_ = nullptr;
};

}  // namespace rp
