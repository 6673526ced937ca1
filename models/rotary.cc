#include "models/rotary.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numbers>

#include "models/kernel_call.h"

namespace rp::models {

namespace {

// Long waves (few turns within the original context) are stretched by the factor, short ones stay, and those between
// are interpolated. Every operation is fp32, in the order of transformers.
at::Tensor stretched(const at::Tensor& frequencies, const Llama3RopeScaling& scaling) {
  const auto original = static_cast<double>(scaling.original_max_position_embeddings);
  const at::Tensor wavelengths = (2.0 * std::numbers::pi) / frequencies;
  const at::Tensor divided = at::where(wavelengths > original / scaling.low_freq_factor, frequencies / scaling.factor,
                                       frequencies);
  const at::Tensor smooth = (original / wavelengths - scaling.low_freq_factor) /
                            (scaling.high_freq_factor - scaling.low_freq_factor);
  const at::Tensor blended = (1.0 - smooth) * divided / scaling.factor + smooth * divided;
  const at::Tensor between = (wavelengths >= original / scaling.high_freq_factor)
                                 .logical_and(wavelengths <= original / scaling.low_freq_factor);
  return at::where(between, blended, divided);
}

}  // namespace

at::Tensor rotary_frequencies(const LlamaConfig& config) {
  const at::Tensor exponents = at::arange(0, config.head_dim, 2, at::kFloat) / static_cast<double>(config.head_dim);
  const at::Tensor frequencies = 1.0 / at::pow(config.rope_theta, exponents);
  return config.rope_scaling ? stretched(frequencies, *config.rope_scaling) : frequencies;
}

RotaryTable make_rotary_table(const at::Tensor& frequencies, std::int64_t length, at::ScalarType dtype) {
  if (runs_on_gpu(frequencies)) {
    const at::Tensor cosine_td2 = at::empty({length, frequencies.size(0)}, frequencies.options());
    const at::Tensor sine_td2 = at::empty_like(cosine_td2);
    // Of the element only the rounding is asked.
    const Element element = dtype == at::kBFloat16 ? Element::kBf16 : dtype == at::kHalf ? Element::kFp16 : Element::kFp32;
    gpu_kernels().rotary_table(element,
                               {frequencies.const_data_ptr<float>(), cosine_td2.mutable_data_ptr<float>(),
                                sine_td2.mutable_data_ptr<float>(), length, frequencies.size(0)},
                               gpu_kernels().current_stream());
    return {cosine_td2, sine_td2};
  }
  const at::Tensor positions = at::arange(length, at::kFloat);
  const at::Tensor angles = positions.unsqueeze(1) * frequencies.unsqueeze(0);
  return {angles.cos().to(dtype).to(at::kFloat), angles.sin().to(dtype).to(at::kFloat)};
}

RotaryTable rotary_table_at(const RotaryTable& table, const at::Tensor& positions_bt) {
  const at::Tensor positions = positions_bt.flatten();
  return {table.cosine_td2.index_select(0, positions), table.sine_td2.index_select(0, positions)};
}

}  // namespace rp::models
