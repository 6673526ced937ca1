#include "benchmarks/kernel_calls.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>

#include "common/median.h"
#include "common/text.h"
#include "cuda/cuda_stream.h"

namespace rp {

namespace {

using models::GpuKernels;
using Calls = std::vector<KernelCalls::Call>;

constexpr DType kElement = DType::kBFloat16;
constexpr std::int64_t kElementBytes = 2;
constexpr std::uint64_t kAlignment = 256;
constexpr std::int64_t kCallTimeoutNs = 60 * kNsPerSecond;
constexpr unsigned char kPattern = 0x3c;  // the value of each byte: 0.0115 in bf16 and in fp32

// Assigns parts of one allocation of the GPU's memory, from its beginning on. With base address 0
// it computes how large the allocation must be.
class Layout {
 public:
  explicit Layout(CUdeviceptr base) : begin_(base), at_(base) {}

  void* take(std::int64_t bytes) {
    const CUdeviceptr data = at_;
    at_ += (static_cast<std::uint64_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    end_ = std::max(end_, at_);
    return reinterpret_cast<void*>(data);
  }
  [[nodiscard]] void* elements(std::int64_t count) { return take(count * kElementBytes); }
  template <typename T>
  [[nodiscard]] T* array(std::int64_t count) {
    return static_cast<T*>(take(count * static_cast<std::int64_t>(sizeof(T))));
  }
  // The next call's arguments may use the same memory as the previous call's, after the part that
  // is kept.
  void keep() { kept_ = at_; }
  void next_call() { at_ = kept_; }
  [[nodiscard]] std::uint64_t bytes() const { return end_ - begin_; }

 private:
  const CUdeviceptr begin_;
  CUdeviceptr at_;
  CUdeviceptr kept_ = 0;
  CUdeviceptr end_ = 0;
};

// The inputs that fill() writes, at the beginning of the allocation.
struct Inputs {
  Inputs(Layout& layout, const KernelSizes& sizes)
      : ids(layout.array<std::int64_t>(sizes.tokens)),
        sorted_ids(layout.array<std::int64_t>(sizes.tokens)),
        places(layout.array<std::int64_t>(sizes.tokens)),
        divisor(layout.array<double>(1)),
        experts{.counts = layout.array<std::int64_t>(sizes.experts),
                .plan = layout.array<std::int64_t>(models::expert_plan_size(sizes.tokens, sizes.experts)),
                .rows = sizes.tokens,
                .experts = sizes.experts} {
    layout.keep();
  }
  std::int64_t* ids;
  std::int64_t* sorted_ids;
  std::int64_t* places;
  double* divisor;
  models::ExpertRows experts;
};

// Returns the number of rows of each expert.
std::vector<std::int64_t> even_counts(const KernelSizes& sizes) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(sizes.experts), sizes.tokens / sizes.experts);
  counts.back() += sizes.tokens % sizes.experts;
  return counts;
}

// Returns a random token for each place, always the same for the same sizes.
std::vector<std::int64_t> random_ids(const KernelSizes& sizes) {
  std::mt19937_64 random(1);
  std::vector<std::int64_t> ids(sizes.tokens);
  for (std::int64_t& id : ids) id = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(sizes.vocabulary));
  return ids;
}

std::int64_t num_distinct(std::vector<std::int64_t> ids) {
  std::sort(ids.begin(), ids.end());
  return std::unique(ids.begin(), ids.end()) - ids.begin();
}

void add(Calls& calls, const char* kernel, std::int64_t bytes, std::function<void(CUstream)> enqueue) {
  calls.push_back({.kernel = kernel, .bytes = static_cast<std::uint64_t>(bytes), .enqueue = std::move(enqueue)});
}

void add_norms(Calls& calls, const GpuKernels& table, const KernelSizes& s, Layout& layout) {
  const std::int64_t count = s.tokens * s.hidden, bytes = count * kElementBytes;
  layout.next_call();
  const models::RmsNormRows norm{.x = layout.elements(count),
                                 .weight = layout.elements(s.hidden),
                                 .y = layout.elements(count),
                                 .rstd = layout.array<float>(s.tokens),
                                 .columns = s.hidden,
                                 .epsilon = 1e-6F};
  add(calls, "rms_norm", 2 * bytes, [=, &table](CUstream stream) { table.rms_norm(kElement, norm, s.tokens, stream); });
  layout.next_call();
  const models::AddRmsNormRows add_norm{.x = layout.elements(count),
                                        .residual = layout.elements(count),
                                        .weight = layout.elements(s.hidden),
                                        .sum = layout.elements(count),
                                        .y = layout.elements(count),
                                        .rstd = layout.array<float>(s.tokens),
                                        .columns = s.hidden,
                                        .epsilon = 1e-6F};
  add(calls, "add_rms_norm", 4 * bytes,
      [=, &table](CUstream stream) { table.add_rms_norm(kElement, add_norm, s.tokens, stream); });
  layout.next_call();
  const models::GpuRmsNormGradRows grad{.grad_y = layout.elements(count),
                                        .grad_sum = layout.elements(count),
                                        .x = layout.elements(count),
                                        .weight = layout.elements(s.hidden),
                                        .rstd = layout.array<float>(s.tokens),
                                        .grad_x = layout.elements(count),
                                        .grad_weight = layout.array<float>(s.hidden),
                                        .partial_sums = layout.array<float>(models::num_row_sums(s.tokens) * s.hidden),
                                        .columns = s.hidden};
  add(calls, "rms_norm_grad", 4 * bytes,
      [=, &table](CUstream stream) { table.rms_norm_grad(kElement, grad, s.tokens, stream); });
}

void add_decoder_layers(Calls& calls, const GpuKernels& table, const KernelSizes& s, Layout& layout) {
  const std::int64_t half = s.head_size / 2, angles = s.tokens * half, heads = s.tokens * s.heads * s.head_size;
  layout.next_call();
  const models::RotaryAngles rotary{.frequencies = layout.array<float>(half),
                                    .cosine = layout.array<float>(angles),
                                    .sine = layout.array<float>(angles),
                                    .length = s.tokens,
                                    .half = half};
  add(calls, "rotary_table", 2 * angles * 4,
      [=, &table](CUstream stream) { table.rotary_table(kElement, rotary, stream); });
  layout.next_call();
  const models::RotateRows rotate{.x = layout.elements(heads),
                                  .y = layout.elements(heads),
                                  .cosine = layout.array<float>(angles),
                                  .sine = layout.array<float>(angles),
                                  .sequence = s.tokens,
                                  .heads = s.heads,
                                  .head_size = s.head_size,
                                  .rotated = s.head_size};
  add(calls, "rotate", 2 * heads * kElementBytes + 2 * angles * 4,
      [=, &table](CUstream stream) { table.rotate(kElement, rotate, s.tokens, stream); });
  const std::int64_t count = s.tokens * s.intermediate;
  layout.next_call();
  const models::Glu glu{.gate = layout.elements(count), .up = layout.elements(count), .y = layout.elements(count)};
  add(calls, "glu", 3 * count * kElementBytes,
      [=, &table](CUstream stream) { table.glu(kElement, glu, count, stream); });
  layout.next_call();
  const models::GluGrad grad{.grad_y = layout.elements(count),
                             .gate = layout.elements(count),
                             .up = layout.elements(count),
                             .grad_gate = layout.elements(count),
                             .grad_up = layout.elements(count)};
  add(calls, "glu_grad", 5 * count * kElementBytes,
      [=, &table](CUstream stream) { table.glu_grad(kElement, grad, count, stream); });
}

void add_loss(Calls& calls, const GpuKernels& table, const KernelSizes& s, const Inputs& inputs, Layout& layout) {
  const std::int64_t rows = std::min(s.tokens, s.max_logit_rows), logits = rows * s.vocabulary;
  layout.next_call();
  const models::GpuCrossEntropyRows loss{.logits = layout.elements(logits),
                                         .labels = inputs.ids,
                                         .losses = layout.array<float>(rows),
                                         .divisor = inputs.divisor,
                                         .columns = s.vocabulary,
                                         .with_gradient = true};
  add(calls, "cross_entropy", 2 * logits * kElementBytes,
      [=, &table](CUstream stream) { table.cross_entropy(kElement, loss, rows, stream); });
  layout.next_call();
  const models::LossSum sum{.losses = layout.array<float>(s.tokens),
                            .count = s.tokens,
                            .divisor = inputs.divisor,
                            .total = layout.array<float>(1)};
  add(calls, "sum_losses", s.tokens * 4, [=, &table](CUstream stream) { table.sum_losses(sum, stream); });
}

void add_gradients(Calls& calls, const GpuKernels& table, const KernelSizes& s, const Inputs& inputs, Layout& layout) {
  const std::int64_t count = s.tokens * s.hidden, bytes = count * kElementBytes;
  layout.next_call();
  const models::ScaleElements scale{.values = layout.elements(count), .count = count, .factor = layout.array<float>(1)};
  add(calls, "scale", 2 * bytes, [=, &table](CUstream stream) { table.scale(kElement, scale, stream); });
  layout.next_call();
  const models::RoundGradient round{.from = layout.array<float>(count),
                                    .to = layout.elements(count),
                                    .count = count,
                                    .partial_sums = layout.array<double>(models::num_square_sums(count)),
                                    .squares = layout.array<double>(1)};
  add(calls, "round_gradient", 3 * bytes,
      [=, &table](CUstream stream) { table.round_gradient(kElement, round, stream); });
  layout.next_call();
  const models::EmbedRows embed{.weight = layout.elements(s.vocabulary * s.hidden),
                                .ids = inputs.ids,
                                .y = layout.elements(count),
                                .vocabulary = s.vocabulary,
                                .columns = s.hidden};
  const std::int64_t rows_bytes = num_distinct(random_ids(s)) * s.hidden;
  add(calls, "embed", rows_bytes * kElementBytes + bytes,
      [=, &table](CUstream stream) { table.embed(kElement, embed, s.tokens, stream); });
  layout.next_call();
  const models::EmbedGradRows grad{.grad_y = layout.elements(count),
                                   .sorted_ids = inputs.sorted_ids,
                                   .places = inputs.places,
                                   .grad_weight = layout.array<float>(s.vocabulary * s.hidden),
                                   .vocabulary = s.vocabulary,
                                   .columns = s.hidden};
  add(calls, "embed_grad", bytes + 2 * rows_bytes * 4,
      [=, &table](CUstream stream) { table.embed_grad(kElement, grad, s.tokens, stream); });
}

void add_experts(Calls& calls, const GpuKernels& table, const KernelSizes& s, const Inputs& inputs, Layout& layout) {
  const std::int64_t wide = s.tokens * s.hidden, narrow = s.tokens * s.expert_size,
                     weights = s.experts * s.expert_size * s.hidden;
  const models::ExpertRows& experts = inputs.experts;
  add(calls, "plan_experts", (s.experts + models::expert_plan_size(s.tokens, s.experts)) * 8,
      [=, &table](CUstream stream) { table.plan_experts(experts, stream); });
  const models::GroupedProduct shape{
      .plan = experts.plan, .rows = s.tokens, .experts = s.experts, .inputs = s.hidden, .outputs = s.expert_size};
  layout.next_call();
  models::GroupedProduct linear = shape;
  linear.rows_in = layout.elements(wide);
  linear.weight = layout.elements(weights);
  linear.result = layout.elements(narrow);
  add(calls, "grouped_linear", (wide + narrow + weights) * kElementBytes,
      [=, &table](CUstream stream) { table.grouped_linear(kElement, linear, stream); });
  layout.next_call();
  models::GroupedProduct grad = shape;
  grad.rows_in = layout.elements(narrow);
  grad.weight = layout.elements(weights);
  grad.result = layout.elements(wide);
  add(calls, "grouped_linear_grad", (wide + narrow + weights) * kElementBytes,
      [=, &table](CUstream stream) { table.grouped_linear_grad(kElement, grad, stream); });
  layout.next_call();
  models::GroupedProduct weight_grad = shape;
  weight_grad.rows_in = layout.elements(narrow);
  weight_grad.other_rows_in = layout.elements(wide);
  weight_grad.add_to = layout.array<float>(weights);
  add(calls, "grouped_weight_grad", (wide + narrow) * kElementBytes + 2 * weights * 4,
      [=, &table](CUstream stream) { table.grouped_weight_grad(kElement, weight_grad, stream); });
}

// A weight with as many rows as there are tokens, in each format.
void add_expansions(Calls& calls, const GpuKernels& table, const KernelSizes& s, Layout& layout) {
  constexpr std::pair<const char*, WeightFormat> kFormats[] = {{"expand_weights_nf4", WeightFormat::kNf4},
                                                               {"expand_weights_nf4_double", WeightFormat::kNf4Double},
                                                               {"expand_weights_mxfp4", WeightFormat::kMxfp4},
                                                               {"expand_weights_fp8_blocks", WeightFormat::kFp8Blocks},
                                                               {"expand_weights_fp8_tensor", WeightFormat::kFp8Tensor}};
  for (const auto& [name, format] : kFormats) {
    layout.next_call();
    const QuantisedShape shape{.format = format, .matrices = 1, .rows = s.tokens, .columns = s.hidden};
    const auto bytes = static_cast<std::int64_t>(QuantisedLayout(shape).num_bytes);
    const QuantisedWeights weights{shape, layout.array<std::byte>(bytes)};
    void* values = layout.elements(shape.num_elements());
    add(calls, name, bytes + shape.num_elements() * kElementBytes,
        [=, &table](CUstream stream) { table.expand_weights(kElement, weights, values, stream); });
  }
}

// The parts of linear attention, with as many key heads as value heads, in sequences of kLinearLength
// tokens.
constexpr std::int64_t kLinearLength = 2048;

void add_convolution_and_norm(Calls& calls, const GpuKernels& table, const KernelSizes& s, Layout& layout) {
  const std::int64_t width = s.heads * s.head_size, count = s.tokens * width, bytes = count * kElementBytes;
  layout.next_call();
  const models::GpuConvolution convolution{.y = layout.elements(3 * count),
                                           .weight = layout.array<float>(3 * width * 4),
                                           .x = layout.elements(3 * count),
                                           .sequences = s.tokens / kLinearLength,
                                           .length = kLinearLength,
                                           .channels = 3 * width,
                                           .taps = 4};
  add(calls, "convolution", 2 * 3 * bytes,
      [=, &table](CUstream stream) { table.convolution(kElement, convolution, stream); });
  const std::int64_t sums = models::num_convolution_sums(convolution.sequences, convolution.length);
  const models::GpuConvolutionGrad convolution_grad{.forward = convolution,
                                                    .grad_x = layout.elements(3 * count),
                                                    .grad_y = layout.elements(3 * count),
                                                    .grad_weight = layout.array<float>(3 * width * 4),
                                                    .partial_sums = layout.array<float>(sums * 3 * width * 4)};
  add(calls, "convolution_grad", 3 * 3 * bytes,
      [=, &table](CUstream stream) { table.convolution_grad(kElement, convolution_grad, stream); });
  const std::int64_t rows = s.tokens * s.heads;
  layout.next_call();
  const models::GpuGatedNorm norm{.o = layout.elements(count),
                                  .z = layout.elements(count),
                                  .weight = layout.elements(s.head_size),
                                  .y = layout.elements(count),
                                  .columns = s.head_size,
                                  .epsilon = 1e-6F};
  add(calls, "gated_norm", 3 * bytes, [=, &table](CUstream stream) { table.gated_norm(kElement, norm, rows, stream); });
  const models::GpuGatedNormGrad norm_grad{
      .forward = norm,
      .grad_y = layout.elements(count),
      .grad_o = layout.elements(count),
      .grad_z = layout.elements(count),
      .grad_weight = layout.array<float>(s.head_size),
      .partial_sums = layout.array<float>(models::num_gated_norm_sums(rows) * s.head_size)};
  add(calls, "gated_norm_grad", 5 * bytes,
      [=, &table](CUstream stream) { table.gated_norm_grad(kElement, norm_grad, rows, stream); });
}

void add_delta_rule(Calls& calls, const GpuKernels& table, const KernelSizes& s, Layout& layout) {
  const std::int64_t count = s.tokens * s.heads * s.head_size, gates = s.tokens * s.heads,
                     bytes = count * kElementBytes, gate_bytes = gates * (4 + kElementBytes);
  layout.next_call();
  const models::GpuDeltaInputs in{.q = layout.elements(count),
                                  .k = layout.elements(count),
                                  .v = layout.elements(count),
                                  .decay = layout.array<float>(gates),
                                  .beta = layout.elements(gates),
                                  .q_stride = s.heads * s.head_size,
                                  .k_stride = s.heads * s.head_size,
                                  .v_stride = s.heads * s.head_size,
                                  .sequences = s.tokens / kLinearLength,
                                  .length = kLinearLength,
                                  .key_heads = s.heads,
                                  .value_heads = s.heads,
                                  .key_size = s.head_size,
                                  .value_size = s.head_size};
  const std::int64_t states = in.sequences * in.chunks() * s.heads * s.head_size * s.head_size;
  float* kept = layout.array<float>(states);
  float* scratch = layout.array<float>(models::delta_grad_scratch_floats(in));
  const models::GpuDeltaRule rule{.in = in, .o = layout.elements(count), .states = kept, .scratch = scratch};
  add(calls, "delta_rule", 4 * bytes + gate_bytes + states * 4,
      [=, &table](CUstream stream) { table.delta_rule(kElement, rule, stream); });
  const models::GpuDeltaRuleGrad grad{.in = in,
                                      .states = kept,
                                      .grad_o = layout.elements(count),
                                      .grad_q = layout.elements(count),
                                      .grad_k = layout.elements(count),
                                      .grad_v = layout.elements(count),
                                      .grad_decay = layout.array<float>(gates),
                                      .grad_beta = layout.elements(gates),
                                      .scratch = scratch};
  add(calls, "delta_rule_grad", 7 * bytes + 2 * gate_bytes + states * 4,
      [=, &table](CUstream stream) { table.delta_rule_grad(kElement, grad, stream); });
}

Calls make_calls(const GpuKernels& table, const KernelSizes& sizes, Layout& layout) {
  const Inputs inputs(layout, sizes);
  Calls calls;
  add_norms(calls, table, sizes, layout);
  add_decoder_layers(calls, table, sizes, layout);
  add_loss(calls, table, sizes, inputs, layout);
  add_gradients(calls, table, sizes, inputs, layout);
  add_experts(calls, table, sizes, inputs, layout);
  add_expansions(calls, table, sizes, layout);
  add_convolution_and_norm(calls, table, sizes, layout);
  add_delta_rule(calls, table, sizes, layout);
  return calls;
}

// Pinned memory from which the driver copies.
class PinnedCopy {
 public:
  PinnedCopy(const CudaContext& context, std::uint64_t bytes) : context_(context) {
    context.check(context.driver().mem_host_alloc(&data_, bytes, CU_MEMHOSTALLOC_PORTABLE), "taking pinned memory");
  }
  ~PinnedCopy() { (void)context_.driver().mem_free_host(data_); }
  PinnedCopy(const PinnedCopy&) = delete;
  PinnedCopy& operator=(const PinnedCopy&) = delete;
  [[nodiscard]] void* data() const { return data_; }

 private:
  const CudaContext& context_;
  void* data_ = nullptr;
};

void drain(const CudaQueue& queue) {
  if (!queue.drain(kCallTimeoutNs)) throw Error(ExitCode::kHang, "the GPU did not end a kernel within 60 s");
}

}  // namespace

KernelCalls::KernelCalls(const CudaContext& context, const GpuKernels& table, const KernelSizes& sizes)
    : context_(context), sizes_(sizes) {
  context.make_current();
  Layout empty(0);
  (void)make_calls(table, sizes, empty);
  bytes_ = empty.bytes();
  context.check(context.driver().mem_alloc(&data_, bytes_),
                cat("taking ", bytes_text(bytes_), " for arguments of kernels").c_str());
  Layout layout(data_);
  calls_ = make_calls(table, sizes, layout);
  fill(table);
}

KernelCalls::~KernelCalls() {
  context_.make_current();
  (void)context_.driver().mem_free(data_);
}

void KernelCalls::fill(const GpuKernels& table) {
  const CudaDriver& driver = context_.driver();
  const CudaQueue queue(context_, false);
  context_.check(driver.memset_d8_async(data_, kPattern, bytes_, queue.get()), "setting memory");
  Layout layout(data_);
  const Inputs inputs(layout, sizes_);
  const std::vector<std::int64_t> ids = random_ids(sizes_);
  std::vector<std::int64_t> places(ids.size()), sorted_ids;
  std::iota(places.begin(), places.end(), std::int64_t{0});
  const auto id_at = [&ids](std::int64_t place) { return ids[place]; };
  std::stable_sort(places.begin(), places.end(), [&](std::int64_t a, std::int64_t b) { return id_at(a) < id_at(b); });
  for (const std::int64_t place : places) sorted_ids.push_back(id_at(place));
  const std::vector<std::int64_t> counts = even_counts(sizes_);
  const PinnedCopy staging(context_, std::max(ids.size(), counts.size()) * sizeof(std::int64_t));
  const auto write = [&](const void* to, const void* from, std::uint64_t bytes) {
    std::memcpy(staging.data(), from, bytes);
    context_.check(driver.memcpy_async(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(staging.data()),
                                       bytes, queue.get()),
                   "copying arguments");
    drain(queue);
  };
  const double divisor = static_cast<double>(sizes_.tokens);
  write(inputs.ids, ids.data(), ids.size() * sizeof(std::int64_t));
  write(inputs.sorted_ids, sorted_ids.data(), ids.size() * sizeof(std::int64_t));
  write(inputs.places, places.data(), ids.size() * sizeof(std::int64_t));
  write(inputs.divisor, &divisor, sizeof(divisor));
  write(inputs.experts.counts, counts.data(), counts.size() * sizeof(std::int64_t));
  table.plan_experts(inputs.experts, queue.get());
  drain(queue);
}

std::vector<KernelSpeed> measure_kernels(const CudaContext& context, const GpuKernels& table, const KernelSizes& sizes,
                                         int num_calls, int rounds) {
  const KernelCalls calls(context, table, sizes);
  const CudaQueue queue(context, false);
  const CudaEventHandle begin(context, CU_EVENT_DEFAULT), end(context, CU_EVENT_DEFAULT);
  std::vector<KernelSpeed> speeds;
  for (const KernelCalls::Call& call : calls.calls()) {
    std::vector<double> us;
    for (int round = -1; round < rounds; ++round) {  // the first round loads the kernel
      context.check(context.driver().event_record(begin.get(), queue.get()), "recording an event");
      for (int i = 0; i < num_calls; ++i) call.enqueue(queue.get());
      context.check(context.driver().event_record(end.get(), queue.get()), "recording an event");
      drain(queue);
      float ms = 0;
      context.check(context.driver().event_elapsed_time(&ms, begin.get(), end.get()), "reading the time of kernels");
      if (round >= 0) us.push_back(static_cast<double>(ms) * 1000 / num_calls);
    }
    const double each_us = median(us);
    speeds.push_back({.kernel = call.kernel, .us = each_us, .gbs = static_cast<double>(call.bytes) / (each_us * 1000)});
  }
  return speeds;
}

}  // namespace rp
