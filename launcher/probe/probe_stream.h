// launcher/probe/probe_stream.h
// A stream of rp-probe's.
#pragma once

#include <thread>

#include "cuda/context.h"

namespace rp {

// Its end waits for what is enqueued: after a failure, too, a copy may be under way, and the memory goes next.
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
