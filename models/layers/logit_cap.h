// models/layers/logit_cap.h
// Caps logits to c * tanh(logits / c), as Gemma does (arXiv 2408.00118, section 2), and rounds each
// operation as transformers does.
#pragma once

#include <ATen/ATen.h>

namespace rp::models {

// Caps the logits of one chunk after another.
class LogitCap {
 public:
  // 0: no cap; then nothing is done.
  explicit LogitCap(double cap) : cap_(cap) {}

  // Caps the logits in place.
  void apply(at::Tensor logits_cv) {
    if (cap_ == 0) return;
    tanh_cv_ = logits_cv.div(cap_).tanh_();
    at::mul_out(logits_cv, tanh_cv_, at::scalar_tensor(cap_, logits_cv.options()));
  }

  // `grad_cv` is the gradient of the logits as the last apply() left them. Converts it in place to
  // the gradient of the logits before that apply().
  void apply_gradient(at::Tensor grad_cv) const {
    if (cap_ != 0) grad_cv.mul_(1 - tanh_cv_.square());
  }

 private:
  const double cap_;
  at::Tensor tanh_cv_;
};

}  // namespace rp::models
