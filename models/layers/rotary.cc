#include "models/layers/rotary.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/check.h"
#include "models/layers/kernel_call.h"

namespace rp::models {

namespace {

// Long waves (few turns within the original context) are stretched by the factor, short ones are
// unchanged, and those in between are interpolated. All operations are fp32, in the order of
// transformers.
at::Tensor stretched_by_wavelength(const at::Tensor& frequencies, const RopeConfig& scaling) {
  const auto original = static_cast<double>(scaling.original_positions);
  const at::Tensor wavelengths = (2.0 * std::numbers::pi) / frequencies;
  const at::Tensor divided =
      at::where(wavelengths > original / scaling.low_freq_factor, frequencies / scaling.factor, frequencies);
  const at::Tensor smooth =
      (original / wavelengths - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  const at::Tensor blended = (1.0 - smooth) * divided / scaling.factor + smooth * divided;
  const at::Tensor between = (wavelengths >= original / scaling.high_freq_factor)
                                 .logical_and(wavelengths <= original / scaling.low_freq_factor);
  return at::where(between, blended, divided);
}

// YaRN: pairs that turn more than beta_fast times within the original context are unchanged, those
// that turn less than beta_slow times are stretched, and those in between are mixed by a ramp over
// the pairs.
at::Tensor stretched_by_ramp(const at::Tensor& exponents, const RopeConfig& rope, std::int64_t head_dim) {
  const auto dim = static_cast<double>(head_dim);
  const auto pair_with_turns = [&](double turns) {
    return dim * std::log(static_cast<double>(rope.original_positions) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = pair_with_turns(rope.beta_fast), high = pair_with_turns(rope.beta_slow);
  if (rope.truncates) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  const at::Tensor stays = 1.0 - ((at::arange(head_dim / 2, at::kFloat) - low) / (high - low)).clamp(0, 1);
  const at::Tensor powers = at::pow(rope.theta, exponents);
  return 1.0 / (rope.factor * powers) * (1.0 - stays) + 1.0 / powers * stays;
}

}  // namespace

at::Tensor rotary_frequencies(const RopeConfig& rope, std::int64_t head_dim) {
  const at::Tensor exponents = at::arange(0, head_dim, 2, at::kFloat) / static_cast<double>(head_dim);
  const at::Tensor frequencies = 1.0 / at::pow(rope.theta, exponents);
  switch (rope.kind) {
    case RopeConfig::Kind::kNone: break;
    case RopeConfig::Kind::kPlain: return frequencies;
    case RopeConfig::Kind::kLinear: return frequencies / rope.factor;
    case RopeConfig::Kind::kLlama3: return stretched_by_wavelength(frequencies, rope);
    case RopeConfig::Kind::kProportional: {
      const auto num_rotated = static_cast<std::int64_t>(rope.rotated_part * static_cast<double>(head_dim) / 2);
      return at::where(at::arange(head_dim / 2) < num_rotated, frequencies / rope.factor, 0.0F);
    }
    case RopeConfig::Kind::kYarn: return stretched_by_ramp(exponents, rope, head_dim);
  }
  RP_ASSERT(false);
}

RotaryTable make_rotary_table(const at::Tensor& frequencies, std::int64_t length, at::ScalarType dtype, double factor) {
  if (runs_on_gpu(frequencies)) {
    const at::Tensor cosine_tr2 = at::empty({length, frequencies.size(0)}, frequencies.options());
    const at::Tensor sine_tr2 = at::empty_like(cosine_tr2);
    // The dtype only determines the rounding. fp32 and wider dtypes need none.
    const bool is_half = dtype == at::kBFloat16 || dtype == at::kHalf;
    gpu_kernels().rotary_table(
        is_half ? dtype_of(dtype) : DType::kFloat32,
        {frequencies.const_data_ptr<float>(), cosine_tr2.mutable_data_ptr<float>(), sine_tr2.mutable_data_ptr<float>(),
         length, frequencies.size(0), static_cast<float>(factor)},
        gpu_kernels().current_stream());
    return {cosine_tr2, sine_tr2};
  }
  const at::Tensor positions = at::arange(length, at::kFloat);
  const at::Tensor angles = positions.unsqueeze(1) * frequencies.unsqueeze(0);
  const auto rounded = [&](const at::Tensor& values) {
    return (factor == 1 ? values : values * factor).to(dtype).to(at::kFloat);
  };
  return {rounded(angles.cos()), rounded(angles.sin())};
}

std::optional<RotaryTable> growing_table(const RotaryTable& table, double growth, std::int64_t positions,
                                         at::ScalarType dtype) {
  const std::int64_t length = table.cosine_tr2.size(0);
  if (growth == 0 || length <= positions) return std::nullopt;
  const at::Tensor times = (at::arange(length, table.cosine_tr2.options()) / static_cast<double>(positions)).floor();
  const at::Tensor factors_t1 = (1 + growth * (1 + times).log()).to(dtype).to(at::kFloat).unsqueeze(1);
  return RotaryTable{table.cosine_tr2 * factors_t1, table.sine_tr2 * factors_t1};
}

RotaryTable rotary_table_at(const RotaryTable& table, const at::Tensor& positions_bt) {
  const at::Tensor positions = positions_bt.flatten();
  return {table.cosine_tr2.index_select(0, positions), table.sine_tr2.index_select(0, positions)};
}

RotaryTables::RotaryTables(const RopeConfig& rope, std::int64_t head_dim)
    : rounds_(rope.rounds_table), factor_(rope.attention_factor), frequencies_(rotary_frequencies(rope, head_dim)) {}

RotaryTable RotaryTables::of(const at::Tensor& x) {
  const std::int64_t length = x.size(1);
  const at::ScalarType dtype = rounds_ ? x.scalar_type() : at::kFloat;
  if (frequencies_.device() != x.device()) frequencies_ = frequencies_.to(x.device(), /*non_blocking=*/true);
  if (runs_on_gpu(x)) return make_rotary_table(frequencies_, length, dtype, factor_);
  if (!table_ || table_->cosine_tr2.size(0) != length || table_dtype_ != dtype) {
    table_ = make_rotary_table(frequencies_, length, dtype, factor_);
    table_dtype_ = dtype;
  }
  return *table_;
}

}  // namespace rp::models
