#include "models/layers/delta_net/delta_rule.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "models/layers/delta_net/gpu_delta_rule.h"
#include "models/layers/delta_net/token_runs.h"
#include "models/layers/kernel_call.h"

namespace rp::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kDeltaRule = "gated_delta_rule";

// Returns x [b, t, heads, size], copied unless the heads of a token follow each other.
at::Tensor with_heads_together(const at::Tensor& x) {
  const bool fits = (x.stride(3) == 1 || x.size(3) == 1) && (x.stride(2) == x.size(3) || x.size(2) == 1);
  return fits ? x : x.contiguous();
}

// Counts the states that the backward pass reads: one for each chunk of a document but the first.
std::int64_t num_kept(const Document& document) { return (document.length - 1) / kDeltaChunk; }

std::int64_t num_kept(const std::vector<Document>& row) {
  std::int64_t total = 0;
  for (const Document& document : row) total += num_kept(document);
  return total;
}

// The inputs of a call, in an order that the autograd engine keeps.
class DeltaCall {
 public:
  // `tensors`: q, k, v, decay and beta; the heads of a token follow each other.
  DeltaCall(const variable_list& tensors, const at::Tensor& documents_bk)
      : tensors_(tensors),
        b_(tensors[0].size(0)),
        t_(tensors[0].size(1)),
        keys_(tensors[0].size(2)),
        key_size_(tensors[0].size(3)),
        values_(tensors[2].size(2)),
        value_size_(tensors[2].size(3)),
        rows_(token_runs(kDeltaRule, documents_bk, b_, t_)) {
    for (const auto& row : rows_) first_kept_.push_back(first_kept_.back() + num_kept(row));
  }

  // Returns [number of kept states, h, d, e], uninitialized.
  [[nodiscard]] at::Tensor make_states() const {
    return at::empty({first_kept_.back(), values_, key_size_, value_size_}, tensors_[3].options());
  }

  // Calls run(head, at) for each document, row and key head, in several threads. `head` has all
  // inputs; `at` is the place of the document's first token among the b t tokens, with the number
  // of the key head. A thread processes a key head with all its value heads, because they share the
  // products of queries and keys, and because the sums of their gradients then have a fixed order.
  template <typename Run>
  void for_each_head(float* states, const Run& run) const {
    const std::int64_t sharing = values_ / keys_, state_size = key_size_ * value_size_;
    const std::int64_t scratch_size = delta_kernels().scratch_floats(key_size_, value_size_, sharing);
    at::parallel_for(0, b_ * keys_, 1, [&](std::int64_t begin, std::int64_t end) {
      const at::Tensor scratch = at::zeros({scratch_size}, at::kFloat);
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t row = i / keys_, key = i % keys_;
        std::int64_t kept = first_kept_[row];
        for (const Document& document : rows_[row]) {
          DeltaHead head = head_at(row, document.first, key);
          head.length = document.length;
          if (states != nullptr) head.states = states + (kept * values_ + key * sharing) * state_size;
          head.states_stride = values_ * state_size;
          head.scratch = scratch.mutable_data_ptr<float>();
          kept += num_kept(document);
          run(head, row * t_ + document.first, key);
        }
      }
    });
  }

  [[nodiscard]] std::int64_t sharing() const { return values_ / keys_; }

 private:
  static const void* token_of(const at::Tensor& x, std::int64_t row, std::int64_t token, std::int64_t offset) {
    return static_cast<const char*>(x.const_data_ptr()) +
           (row * x.stride(0) + token * x.stride(1) + offset) * x.element_size();
  }

  [[nodiscard]] DeltaHead head_at(std::int64_t row, std::int64_t token, std::int64_t key) const {
    const std::int64_t value = key * (values_ / keys_);
    DeltaHead head;
    head.q = token_of(tensors_[0], row, token, key * key_size_);
    head.k = token_of(tensors_[1], row, token, key * key_size_);
    head.v = token_of(tensors_[2], row, token, value * value_size_);
    head.decay = static_cast<const float*>(token_of(tensors_[3], row, token, value));
    head.beta = token_of(tensors_[4], row, token, value);
    head.q_stride = tensors_[0].stride(1);
    head.k_stride = tensors_[1].stride(1);
    head.v_stride = tensors_[2].stride(1);
    head.gate_stride = values_;
    head.key_size = key_size_;
    head.value_size = value_size_;
    head.values = values_ / keys_;
    return head;
  }

  const variable_list tensors_;
  const std::int64_t b_, t_, keys_, key_size_, values_, value_size_;
  const std::vector<std::vector<Document>> rows_;
  std::vector<std::int64_t> first_kept_ = {0};  // of each row, and the total
};

// Returns the address of `elements` elements after the first one.
void* behind(const at::Tensor& tensor, std::int64_t elements) {
  return static_cast<char*>(tensor.mutable_data_ptr()) + elements * tensor.element_size();
}

struct GatedDeltaRule : torch::autograd::Function<GatedDeltaRule> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& decay, const at::Tensor& beta, const std::optional<at::Tensor>& documents,
                            bool is_kept) {
    const at::Tensor documents_bk = documents.value_or(at::Tensor());
    const variable_list tensors = {with_heads_together(q), with_heads_together(k), with_heads_together(v),
                                   decay.contiguous(), beta.contiguous()};
    const DeltaCall call(tensors, documents_bk);
    const at::Tensor states = is_kept ? call.make_states() : at::Tensor();
    const at::Tensor o = at::empty(v.sizes(), v.options());
    const DType dtype = kernel_dtype(q);
    const std::int64_t size = v.size(3), stride = v.size(2) * size;
    call.for_each_head(is_kept ? states.mutable_data_ptr<float>() : nullptr, [&](const DeltaHead& head,
                                                                                 std::int64_t token, std::int64_t key) {
      delta_kernels().delta_head(dtype, head, {behind(o, token * stride + key * call.sharing() * size), stride});
    });
    context->save_for_backward({tensors[0], tensors[1], tensors[2], tensors[3], tensors[4], documents_bk, states});
    return o;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    const variable_list saved = context->get_saved_variables();
    const variable_list tensors(saved.begin(), saved.begin() + 5);
    const DeltaCall call(tensors, saved[5]);
    const at::Tensor grad_o = grad_outputs[0].contiguous();
    variable_list grads(7);
    for (std::size_t i = 0; i < tensors.size(); ++i) grads[i] = at::empty(tensors[i].sizes(), tensors[i].options());
    const DType dtype = kernel_dtype(grad_o);
    const std::int64_t key_size = tensors[0].size(3), key_stride = tensors[0].size(2) * key_size;
    const std::int64_t value_size = tensors[2].size(3), gate_stride = tensors[2].size(2);
    const std::int64_t value_stride = gate_stride * value_size;
    call.for_each_head(saved[6].mutable_data_ptr<float>(),
                       [&](const DeltaHead& head, std::int64_t token, std::int64_t key) {
                         const std::int64_t of_key = token * key_stride + key * key_size;
                         const std::int64_t gate = token * gate_stride + key * call.sharing();
                         delta_kernels().delta_head_grad(dtype, head,
                                                         {.grad_o = behind(grad_o, gate * value_size),
                                                          .grad_q = behind(grads[0], of_key),
                                                          .grad_k = behind(grads[1], of_key),
                                                          .grad_v = behind(grads[2], gate * value_size),
                                                          .grad_decay = grads[3].mutable_data_ptr<float>() + gate,
                                                          .grad_beta = behind(grads[4], gate),
                                                          .key_stride = key_stride,
                                                          .value_stride = value_stride,
                                                          .gate_stride = gate_stride});
                       });
    return grads;
  }
};

void check(const DeltaRuleInputs& in) {
  check_device<5>(kDeltaRule, {in.q_btkd, in.k_btkd, in.v_bthe, in.decay_bth, in.beta_bth});
  const at::Tensor &q = in.q_btkd, &v = in.v_bthe;
  TORCH_CHECK(q.dim() == 4 && q.sizes() == in.k_btkd.sizes() && v.dim() == 4 && v.size(0) == q.size(0) &&
                  v.size(1) == q.size(1) && q.size(2) > 0 && v.size(2) % q.size(2) == 0,
              kDeltaRule, ": q ", q.sizes(), ", k ", in.k_btkd.sizes(), " and v ", v.sizes(),
              " do not fit [b, t, k, d], [b, t, k, d] and [b, t, h, e] with h a multiple of k");
  for (const at::Tensor& gate : {in.decay_bth, in.beta_bth}) {
    TORCH_CHECK(gate.sizes() == v.sizes().slice(0, 3), kDeltaRule, ": decay and beta of shape ", gate.sizes(),
                " do not fit v ", v.sizes());
  }
  for (const at::Tensor& x : {in.k_btkd, in.v_bthe, in.beta_bth}) {
    TORCH_CHECK(x.scalar_type() == q.scalar_type(), kDeltaRule, ": q, k, v and beta need one dtype, not ", q.toString(),
                " and ", x.toString());
  }
  TORCH_CHECK(in.decay_bth.scalar_type() == at::kFloat, kDeltaRule, ": the decay must be fp32, not ",
              in.decay_bth.toString());
}

}  // namespace

at::Tensor gated_delta_rule(const DeltaRuleInputs& inputs) {
  check(inputs);
  bool is_kept = false;
  for (const at::Tensor& x : {inputs.q_btkd, inputs.k_btkd, inputs.v_bthe, inputs.decay_bth, inputs.beta_bth}) {
    is_kept = is_kept || (at::GradMode::is_enabled() && x.requires_grad());
  }
  if (runs_on_gpu(inputs.q_btkd)) return gpu_delta_rule(inputs, is_kept);
  const at::Tensor& documents_bk = inputs.documents_bk;
  return GatedDeltaRule::apply(inputs.q_btkd, inputs.k_btkd, inputs.v_bthe, inputs.decay_bth, inputs.beta_bth,
                               where_defined(documents_bk), is_kept);
}

}  // namespace rp::models
