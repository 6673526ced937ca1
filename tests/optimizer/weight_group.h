// tests/optimizer/weight_group.h
// Weight groups with random numbers, and what kernels/update_arguments.h defines that an update does to them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/float16.h"
#include "kernels/cpu/update_kernels.h"
#include "optimizer/update.h"
#include "tests/common/random_floats.h"

namespace rp {

inline constexpr std::array<DType, 3> kDTypes = {DType::kBFloat16, DType::kFloat16, DType::kFloat32};
inline constexpr AdamW kSettings = {
    .learning_rate = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};

// An array of `num_elements` numbers of a format. The first one is `offset` elements after the
// beginning of a 64-byte line.
class Numbers {
 public:
  Numbers(DType dtype, std::size_t num_elements, std::size_t offset)
      : dtype_(dtype),
        num_bytes_(num_elements * dtype_bytes(dtype)),
        start_(offset * dtype_bytes(dtype)),
        lines_((start_ + num_bytes_) / sizeof(Line) + 1) {}

  [[nodiscard]] void* data() { return lines_.data()->bytes.data() + start_; }
  [[nodiscard]] const void* data() const { return lines_.data()->bytes.data() + start_; }
  [[nodiscard]] float* floats() { return static_cast<float*>(data()); }
  void set(std::size_t i, float x) {
    if (dtype_ == DType::kFloat32) {
      floats()[i] = x;
    } else {
      static_cast<std::uint16_t*>(data())[i] = dtype_ == DType::kBFloat16 ? bf16_from_float(x) : fp16_from_float(x);
    }
  }
  [[nodiscard]] float get(std::size_t i) const {
    if (dtype_ == DType::kFloat32) return static_cast<const float*>(data())[i];
    const std::uint16_t bits = static_cast<const std::uint16_t*>(data())[i];
    return dtype_ == DType::kBFloat16 ? float_from_bf16(bits) : float_from_fp16(bits);
  }
  [[nodiscard]] bool same_bits(const Numbers& other) const {
    return std::memcmp(data(), other.data(), num_bytes_) == 0;
  }

 private:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes{};
  };
  DType dtype_;
  std::size_t num_bytes_;
  std::size_t start_;
  std::vector<Line> lines_;
};

struct Shape {
  std::size_t num_elements = 0;
  std::size_t offset = 0;
  std::size_t num_uses = 1;
  DType gradient = DType::kBFloat16;
  DType working = DType::kBFloat16;
  bool has_working = true;
  bool two_masters = false;
};

// A weight group with numbers of many magnitudes, including zeros and denormals, from a fixed seed.
struct Group {
  explicit Group(const Shape& its_shape)
      : shape(its_shape),
        old_master(DType::kFloat32, shape.num_elements, shape.offset),
        master(old_master),
        m(old_master),
        v(old_master),
        working(shape.working, shape.num_elements, shape.offset) {
    std::mt19937 random(static_cast<unsigned>(shape.num_elements * 64 + shape.offset));
    NormalFloats normal;
    UniformFloats exponent(-30, 10);
    const auto number = [&] {
      const auto kind = random() % 16;
      return kind == 0 ? 0.0F : kind == 1 ? -0.0F : normal(random) * std::exp2(exponent(random));
    };
    for (std::size_t use = 0; use < shape.num_uses; ++use) {
      gradients.emplace_back(shape.gradient, shape.num_elements, shape.offset);
      for (std::size_t i = 0; i < shape.num_elements; ++i) gradients.back().set(i, number());
    }
    for (std::size_t i = 0; i < shape.num_elements; ++i) {
      old_master.set(i, number());
      m.set(i, i % 9 == 0 ? 1e-41F : number());
      v.set(i, std::fabs(number()));
      master.set(i, shape.two_masters ? -7.0F : old_master.get(i));
    }
  }

  GroupGradients all_gradients() {
    uses.clear();
    for (Numbers& gradient : gradients) uses.push_back(gradient.data());
    return {.uses = uses.data(), .num_uses = uses.size(), .dtype = shape.gradient, .num_elements = shape.num_elements};
  }
  GroupState state() {
    return {.old_master = shape.two_masters ? old_master.floats() : master.floats(),
            .master = master.floats(),
            .m = m.floats(),
            .v = v.floats(),
            .working = shape.has_working ? working.data() : nullptr,
            .working_dtype = shape.working,
            .num_elements = shape.num_elements};
  }
  [[nodiscard]] bool same_bits(const Group& other) const {
    return old_master.same_bits(other.old_master) && master.same_bits(other.master) && m.same_bits(other.m) &&
           v.same_bits(other.v) && working.same_bits(other.working);
  }

  Shape shape;
  std::vector<Numbers> gradients;
  Numbers old_master, master, m, v, working;
  std::vector<const void*> uses;
};

inline float gradient_of(const Group& group, std::size_t i) {
  float g = 0;
  for (const Numbers& gradient : group.gradients) g = g + gradient.get(i);
  return g;
}

// Does literally what kernels/update_arguments.h defines.
inline void update_by_the_header(Group& group, const UpdateStep& s) {
  for (std::size_t i = 0; i < group.shape.num_elements; ++i) {
    float g = gradient_of(group, i) * s.gradient_scale;
    float p = group.old_master.get(i);
    float m = group.m.get(i);
    float v = group.v.get(i);
    if (s.clips_values && !std::isnan(g)) g = std::max(-s.max_value, std::min(s.max_value, g));
    if (s.couples_decay) g = g + s.coupled_decay * p;
    switch (s.kind) {
      case UpdateKind::kAdam:
        p = p * s.decay;
        m = (s.m_from_gradient ? g : m) + s.m_weight * (g - m);
        v = v * s.beta2 + (s.v_weight * g) * g;
        p = p + (s.step_size * m) / (std::sqrt(v) / s.v_correction + s.epsilon);
        break;
      case UpdateKind::kMomentum:
        m = m * s.m_decay + s.m_weight * g;
        p = p + s.step_size * (s.nesterov ? g + s.nesterov_weight * m : m);
        break;
      case UpdateKind::kPlain: p = p + s.step_size * g; break;
    }
    group.master.set(i, p);
    group.m.set(i, m);
    group.v.set(i, v);
    if (group.shape.has_working) group.working.set(i, p);
  }
}

inline std::string text_of(const UpdateKernels& kernels, const Shape& shape) {
  return std::string(kernels.name) + ", " + std::to_string(shape.num_elements) + " elements, offset " +
         std::to_string(shape.offset) + ", " + std::to_string(shape.num_uses) + " uses, formats " +
         std::to_string(static_cast<int>(shape.gradient)) + " " + std::to_string(static_cast<int>(shape.working));
}

// Returns the sizes around those of vectors and chunks.
inline std::vector<std::size_t> sizes() {
  std::vector<std::size_t> all(71);
  std::iota(all.begin(), all.end(), std::size_t{0});
  all.insert(all.end(), {127, 1023, 4097, 65'537});
  return all;
}

}  // namespace rp
