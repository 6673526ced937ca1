#include "launcher/probe/product_measure.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <random>

#include "common/median.h"
#include "common/text.h"
#include "launcher/probe/probe_stream.h"

namespace rp {

namespace {

constexpr std::uint64_t kPieceElements = std::uint64_t{1} << 20;  // random numbers, repeated to fill the memory
constexpr std::uint64_t kMaxBytes = 4;                            // of an element

class GpuMemory {
 public:
  GpuMemory(const CudaContext& context, std::uint64_t bytes) : context_(context), bytes_(bytes) {
    context_.make_current();
    context_.check(context_.driver().mem_alloc(&data_, bytes), "taking memory of the GPU to measure with");
  }
  ~GpuMemory() { (void)context_.driver().mem_free(data_); }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  [[nodiscard]] CUdeviceptr data() const { return data_; }
  [[nodiscard]] void* pointer() const { return reinterpret_cast<void*>(data_); }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  const CudaContext& context_;
  std::uint64_t bytes_;
  CUdeviceptr data_ = 0;
};

// Pinned host memory, the source of copies to the GPU.
class StagingMemory {
 public:
  StagingMemory(const CudaContext& context, std::uint64_t bytes) : context_(context) {
    context_.make_current();
    context_.check(context_.driver().mem_host_alloc(&data_, bytes, CU_MEMHOSTALLOC_PORTABLE),
                   "taking pinned memory to measure with");
  }
  ~StagingMemory() { (void)context_.driver().mem_free_host(data_); }
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;
  [[nodiscard]] void* data() const { return data_; }

 private:
  const CudaContext& context_;
  void* data_ = nullptr;
};

void check_blas(int status, const char* what) {
  if (status != 0) throw Error(ExitCode::kNoResource, cat("cuBLAS: ", what, " gives status ", status));
}

class BlasHandle {
 public:
  BlasHandle(const Cublas& cublas, CUstream stream) : cublas_(cublas) {
    check_blas(cublas_.create(&handle_), "cublasCreate");
    const int status = cublas_.set_stream(handle_, stream);
    if (status != 0) (void)cublas_.destroy(handle_);
    check_blas(status, "cublasSetStream");
  }
  ~BlasHandle() { (void)cublas_.destroy(handle_); }
  BlasHandle(const BlasHandle&) = delete;
  BlasHandle& operator=(const BlasHandle&) = delete;
  [[nodiscard]] void* get() const { return handle_; }

 private:
  const Cublas& cublas_;
  void* handle_ = nullptr;
};

struct Kind {
  BlasType type;
  BlasCompute compute;
  double ProbeFigures::*figure;
};
constexpr std::array kKinds = {
    Kind{BlasType::kBFloat16, BlasCompute::kFloat32, &ProbeFigures::bf16_tflops},
    Kind{BlasType::kFloat16, BlasCompute::kFloat32, &ProbeFigures::fp16_tflops},
    Kind{BlasType::kFloat16, BlasCompute::kFloat16, &ProbeFigures::fp16_accumulate_tflops},
    Kind{BlasType::kFloat32, BlasCompute::kTf32, &ProbeFigures::tf32_tflops},
};

// Returns random numbers of either sign, with absolute values from 1/16 to 1, in the format of
// `type`.
std::vector<std::byte> random_numbers(BlasType type, std::uint64_t count) {
  const int mantissa = type == BlasType::kFloat32 ? 23 : type == BlasType::kBFloat16 ? 7 : 10;
  const std::uint32_t below_one = type == BlasType::kFloat16 ? 14 : 126;  // the exponent of 0.5
  const std::uint64_t size = type == BlasType::kFloat32 ? 4 : 2;
  std::mt19937 random(1);
  std::vector<std::byte> bytes(count * size);
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto draw = static_cast<std::uint32_t>(random());
    const std::uint32_t exponent = below_one - (draw & 3U);
    const std::uint32_t sign = (draw >> 2) & 1U;
    const std::uint32_t fraction = (draw >> 3) & ((1U << mantissa) - 1);
    const std::uint32_t bits = sign << (size * 8 - 1) | exponent << mantissa | fraction;
    std::memcpy(bytes.data() + i * size, &bits, size);  // little-endian
  }
  return bytes;
}

// Owns the resources of one measurement: a stream, and memory for the largest shape.
class Products {
 public:
  Products(const CudaContext& context, const ProductSettings& settings)
      : context_(context),
        settings_(settings),
        x_(context, kMaxBytes * largest([](const ProductShape& s) { return product(s.rows, s.in); })),
        w_(context, kMaxBytes * largest([](const ProductShape& s) { return product(s.in, s.out); })),
        y_(context, kMaxBytes * largest([](const ProductShape& s) { return product(s.rows, s.out); })),
        result_(context, kMaxBytes * largest([](const ProductShape& s) {
                           return std::max({product(s.rows, s.in), product(s.in, s.out), product(s.rows, s.out)});
                         })),
        numbers_(context, kPieceElements * kMaxBytes),
        stream_(context) {}

  // Returns the memory bandwidth in GB/s, reads plus writes.
  [[nodiscard]] double copy_gbs() {
    const std::uint64_t bytes = std::min(x_.bytes(), result_.bytes());
    const double ms = median_ms([&] {
      context_.check(context_.driver().memcpy_async(result_.data(), x_.data(), bytes, stream_.get()),
                     "copying inside the GPU's memory");
    });
    return 2 * static_cast<double>(bytes) / (ms * 1e6);
  }

  [[nodiscard]] double tflops(const Cublas& cublas, const Kind& kind) {
    const BlasHandle handle(cublas, stream_.get());
    for (const GpuMemory* memory : {&x_, &w_, &y_}) fill(*memory, kind.type);
    double flops = 0;
    double ms = 0;
    for (const ProductShape& shape : settings_.shapes) {
      for (const Form form : {Form::kForward, Form::kInput, Form::kWeight}) {
        ms += median_ms([&] { multiply(cublas, handle.get(), kind, shape, form); });
        flops += 2.0 * shape.rows * shape.in * shape.out;
      }
    }
    return flops / (ms * 1e9);
  }

 private:
  enum class Form { kForward, kInput, kWeight };

  static std::uint64_t product(int a, int b) { return static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b); }
  [[nodiscard]] std::uint64_t largest(std::uint64_t (*elements)(const ProductShape&)) const {
    std::uint64_t most = 1;
    for (const ProductShape& shape : settings_.shapes) most = std::max(most, elements(shape));
    return most;
  }

  void fill(const GpuMemory& memory, BlasType type) {
    const std::vector<std::byte> numbers = random_numbers(type, std::min(kPieceElements, memory.bytes() / kMaxBytes));
    std::memcpy(numbers_.data(), numbers.data(), numbers.size());
    for (std::uint64_t at = 0; at < memory.bytes(); at += numbers.size()) {
      const std::uint64_t bytes = std::min<std::uint64_t>(numbers.size(), memory.bytes() - at);
      context_.check(context_.driver().memcpy_async(memory.data() + at, reinterpret_cast<CUdeviceptr>(numbers_.data()),
                                                    bytes, stream_.get()),
                     "copying numbers to multiply");
    }
    wait();  // the next call overwrites numbers_
  }

  void wait() {
    const CudaEventHandle done(context_);
    context_.check(context_.driver().event_record(done.get(), stream_.get()), "recording an event");
    context_.check(context_.driver().event_synchronize(done.get()), "waiting for the GPU");
  }

  // cuBLAS uses column-major order, so it sees each matrix transposed: y = x w^T, dx = dy w, dw =
  // dy^T x. Results are not used as operands, because the numbers would grow from product to
  // product.
  void multiply(const Cublas& cublas, void* handle, const Kind& kind, const ProductShape& shape, Form form) const {
    using enum BlasForm;
    constexpr float kOnes[] = {1, 0};
    constexpr std::uint16_t kHalfOnes[] = {0x3c00, 0};
    const bool is_half = kind.compute == BlasCompute::kFloat16;
    const void* const one = is_half ? static_cast<const void*>(&kHalfOnes[0]) : &kOnes[0];
    const void* const zero = is_half ? static_cast<const void*>(&kHalfOnes[1]) : &kOnes[1];
    const auto gemm = [&](BlasForm a_form, BlasForm b_form, int m, int n, int k, const GpuMemory& a, int lda,
                          const GpuMemory& b, int ldb) {
      check_blas(cublas.gemm_ex(handle, a_form, b_form, m, n, k, one, a.pointer(), kind.type, lda, b.pointer(),
                                kind.type, ldb, zero, result_.pointer(), kind.type, m, kind.compute, kBlasAnyAlgorithm),
                 "cublasGemmEx");
    };
    const auto [rows, in, out] = shape;
    switch (form) {
      case Form::kForward: return gemm(kTransposed, kPlain, out, rows, in, w_, in, x_, in);
      case Form::kInput: return gemm(kPlain, kPlain, in, rows, out, w_, in, y_, out);
      case Form::kWeight: return gemm(kPlain, kTransposed, in, out, rows, x_, in, y_, out);
    }
  }

  [[nodiscard]] double median_ms(const std::function<void()>& enqueue) {
    const CudaDriver& driver = context_.driver();
    const CudaEventHandle begin(context_, CU_EVENT_DEFAULT), end(context_, CU_EVENT_DEFAULT);
    std::vector<float> times_ms;
    for (int run = 0; run < settings_.num_warm_up + settings_.num_runs; ++run) {
      context_.check(driver.event_record(begin.get(), stream_.get()), "recording an event");
      enqueue();
      context_.check(driver.event_record(end.get(), stream_.get()), "recording an event");
      context_.check(driver.event_synchronize(end.get()), "waiting for the GPU");
      float ms = 0;
      context_.check(driver.event_elapsed_time(&ms, begin.get(), end.get()), "asking for the time between events");
      if (run >= settings_.num_warm_up) times_ms.push_back(ms);
    }
    return median(std::move(times_ms));
  }

  const CudaContext& context_;
  const ProductSettings& settings_;
  GpuMemory x_, w_, y_, result_;
  StagingMemory numbers_;
  ProbeStream stream_;  // destroyed first
};

}  // namespace

void measure_products(const CudaContext& context, const Cublas* cublas, const ProductSettings& settings,
                      ProbeFigures& figures) {
  Products products(context, settings);
  figures.memory_gbs = products.copy_gbs();
  if (cublas == nullptr) return;
  for (const Kind& kind : kKinds) figures.*kind.figure = products.tflops(*cublas, kind);
}

}  // namespace rp
