#include "models/layers/delta_net/gpu_delta_rule.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <optional>

#include "kernels/cpu/delta_kernels.h"
#include "model_files/mixer_cost.h"
#include "models/layers/documents.h"

namespace rp::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kChunk = kDeltaChunk;
static_assert(kChunk == kDeltaRuleChunk, "the cost model counts the products of these chunks");
constexpr double kLengthEpsilon = 1e-6;  // as kernels/cpu/delta_chunk.h
// Lower decays are 0 in fp32 anyway, and differences of infinite ones would not be numbers.
constexpr double kLowestDecay = -1000;

// Returns x [b, t, h, w] as fp32 chunks [b, h, n, kChunk, w]. Tokens after the end are zero.
at::Tensor chunks_of(const at::Tensor& x_bthw) {
  const std::int64_t t = x_bthw.size(1), n = (t + kChunk - 1) / kChunk;
  const at::Tensor padded = at::constant_pad_nd(x_bthw.to(at::kFloat), {0, 0, 0, 0, 0, n * kChunk - t});
  return padded.unflatten(1, {n, kChunk}).permute({0, 3, 1, 2, 4}).contiguous();
}

// The opposite.
at::Tensor tokens_of(const at::Tensor& chunks, std::int64_t t) {
  return chunks.permute({0, 2, 3, 1, 4}).flatten(1, 2).narrow(1, 0, t);
}

at::Tensor transposed(const at::Tensor& x) { return x.transpose(-1, -2); }

// A product with it makes cumulative sums, for which LibTorch has no operator with a fixed order on a
// GPU. Returns [kChunk, kChunk], zero above the diagonal.
at::Tensor triangle_of_ones(const at::Tensor& like) { return at::ones({kChunk, kChunk}, like.options()).tril(); }

at::Tensor sum_of_row(const at::Tensor& x) { return x.sum(-1, /*keepdim=*/true); }

// Rows of queries or keys, divided by their lengths.
struct UnitRows {
  at::Tensor rows, reciprocals;

  explicit UnitRows(const at::Tensor& x) : reciprocals(at::rsqrt(sum_of_row(x.square()) + kLengthEpsilon)) {
    rows = x * reciprocals;
  }
  // Returns the gradient of x.
  [[nodiscard]] at::Tensor back(const at::Tensor& grad) const {
    return reciprocals * (grad - rows * sum_of_row(grad * rows));
  }
};

// What is computed from a chunk alone. Shapes: [b, h, n, c, ...], where c = kChunk is a token of a
// chunk; d is the width of keys, e that of values. The letters are those of the chunked form:
//   L = strictly lower part of beta (k k^T * D),  P = q k^T * D
//   U = (1 + L)^-1 beta (v - E k S),  o = E q S + P U,  S' = gamma S + (w k)^T U
// D is the decay from one token to another of its document, E that from the last token of the
// chunk before, w that to the last token of this one, gamma that over the whole chunk.
struct Chunks {
  at::Tensor q, k, v, beta;
  at::Tensor decay, from_before, to_end, over_all;  // D [c, c], E [c, 1], w [c, 1], gamma [1, 1]
  at::Tensor products, lower, scores, inverse;      // k k^T, L, P, (1 + L)^-1: [c, c]
  at::Tensor first_u, u_by_state;                   // U = first_u - u_by_state S: [c, e], [c, d]

  // `q` and `k` are of all value heads.
  Chunks(const at::Tensor& q_of_heads, const at::Tensor& k_of_heads, const at::Tensor& v_of_heads,
         const at::Tensor& decay_of_heads, const at::Tensor& beta_of_heads, const at::Tensor& document_numbers)
      : q(q_of_heads), k(k_of_heads), v(v_of_heads), beta(beta_of_heads) {
    const at::Tensor ones = triangle_of_ones(q);
    // In fp64: after strong decays, an fp32 sum would not resolve weak ones.
    const at::Tensor sums = at::matmul(ones.to(at::kDouble), decay_of_heads.clamp_min(kLowestDecay).to(at::kDouble));
    const at::Tensor end = sums.narrow(-2, kChunk - 1, 1);
    const at::Tensor &number = document_numbers, last = number.narrow(-2, kChunk - 1, 1);
    const at::Tensor before = at::constant_pad_nd(last.narrow(2, 0, last.size(2) - 1), {0, 0, 0, 0, 1, 0}, -1);
    const at::Tensor sees = (number == transposed(number)).logical_and(ones.to(at::kBool));
    decay = exp_where(sees, sums - transposed(sums));
    from_before = exp_where(number == before, sums);
    to_end = exp_where(number == last, end - sums);
    over_all = from_before.narrow(-2, kChunk - 1, 1);
    products = at::matmul(k, transposed(k));
    lower = (beta * products * decay).tril(-1);
    scores = at::matmul(q, transposed(k)) * decay;
    inverse = at::linalg_solve_triangular(lower, at::eye(kChunk, q.options()).expand_as(lower), /*upper=*/false,
                                          /*left=*/true,
                                          /*unitriangular=*/true);
    first_u = at::matmul(inverse, beta * v);
    u_by_state = at::matmul(inverse, beta * from_before * k);
  }

  [[nodiscard]] std::int64_t count() const { return q.size(2); }
  [[nodiscard]] at::Tensor u(const at::Tensor& states) const { return first_u - at::matmul(u_by_state, states); }

  // Returns the state at the beginning of each chunk [b, h, n, d, e].
  [[nodiscard]] at::Tensor states() const {
    const at::Tensor kept = transposed(to_end * k);
    const at::Tensor states = at::empty({q.size(0), q.size(1), count(), q.size(4), v.size(4)}, q.options());
    states.select(2, 0).zero_();
    for (std::int64_t n = 0; n + 1 < count(); ++n) {
      const at::Tensor state = states.select(2, n);
      const at::Tensor u_n = first_u.select(2, n) - at::matmul(u_by_state.select(2, n), state);
      states.select(2, n + 1).copy_(over_all.select(2, n) * state + at::matmul(kept.select(2, n), u_n));
    }
    return states;
  }

 private:
  static at::Tensor exp_where(const at::Tensor& condition, const at::Tensor& x) {
    // The exponent is replaced first: e to a large number times zero would not be a number.
    return at::where(condition, x, -INFINITY).to(at::kFloat).exp();
  }
};

// The inputs of a call, and how they become chunks.
class Call {
 public:
  // `tensors`: q, k, v, decay, beta as in DeltaRuleInputs.
  Call(const variable_list& tensors, const at::Tensor& documents_bk)
      : t_(tensors[0].size(1)),
        sharing_(tensors[2].size(2) / tensors[0].size(2)),
        scale_(1 / std::sqrt(static_cast<double>(tensors[0].size(3)))),
        q_(chunks_of(tensors[0])),
        k_(chunks_of(tensors[1])),
        chunks_(of_heads(q_.rows * scale_), of_heads(k_.rows), chunks_of(tensors[2]),
                chunks_of(tensors[3].unsqueeze(3)), chunks_of(tensors[4].unsqueeze(3)),
                document_numbers(tensors[0], documents_bk)) {}

  [[nodiscard]] const Chunks& chunks() const { return chunks_; }
  [[nodiscard]] std::int64_t t() const { return t_; }

  // Return the gradients of q and k from those of all value heads' rows.
  [[nodiscard]] at::Tensor grad_q(const at::Tensor& grad) const {
    return tokens_of(q_.back(of_key_heads(grad) * scale_), t_);
  }
  [[nodiscard]] at::Tensor grad_k(const at::Tensor& grad) const { return tokens_of(k_.back(of_key_heads(grad)), t_); }

 private:
  [[nodiscard]] at::Tensor of_heads(const at::Tensor& of_key_heads) const {
    return of_key_heads.repeat_interleave(sharing_, 1);
  }
  [[nodiscard]] at::Tensor of_key_heads(const at::Tensor& of_heads) const {
    return of_heads.unflatten(1, {-1, sharing_}).sum(2);
  }

  // Returns [b, 1, n, c, 1]: tokens with the same number belong to the same document.
  [[nodiscard]] static at::Tensor document_numbers(const at::Tensor& q_btkd, const at::Tensor& documents_bk) {
    const std::int64_t b = q_btkd.size(0), t = q_btkd.size(1), n = (t + kChunk - 1) / kChunk;
    const at::Tensor numbers_bt = documents_bk.defined()
                                      ? (document_positions(documents_bk, t) == 0).to(at::kLong).cumsum(1)
                                      : at::ones({b, t}, q_btkd.options().dtype(at::kLong));
    return at::constant_pad_nd(numbers_bt, {0, n * kChunk - t}).view({b, 1, n, kChunk, 1});
  }

  const std::int64_t t_, sharing_;
  const double scale_;
  const UnitRows q_, k_;
  const Chunks chunks_;
};

struct DeltaRuleByProducts : torch::autograd::Function<DeltaRuleByProducts> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& decay, const at::Tensor& beta,
                            const std::optional<at::Tensor>& documents) {
    const at::Tensor documents_bk = documents.value_or(at::Tensor());
    const Call call({q, k, v, decay, beta}, documents_bk);
    const Chunks& c = call.chunks();
    const at::Tensor states = c.states();
    context->save_for_backward({q, k, v, decay, beta, documents_bk, states});
    const at::Tensor o = at::matmul(c.from_before * c.q, states) + at::matmul(c.scores, c.u(states));
    return tokens_of(o, call.t()).to(v.scalar_type()).contiguous();
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& states = saved[6];
    const Call call({saved[0], saved[1], saved[2], saved[3], saved[4]}, saved[5]);
    const Chunks& c = call.chunks();
    const at::Tensor grad_o = chunks_of(grad_outputs[0]), u = c.u(states);
    const at::Tensor kept = c.to_end * c.k, forgotten = c.beta * c.from_before;

    // The gradients that a chunk receives from the state behind it, from the last chunk to the first.
    const at::Tensor inverse = transposed(c.inverse);
    const at::Tensor grad_u_of_o = at::matmul(transposed(c.scores), grad_o);
    const at::Tensor first_r = at::matmul(inverse, grad_u_of_o), r_by_state = at::matmul(inverse, kept);
    const at::Tensor grad_state_of_o = at::matmul(transposed(c.from_before * c.q), grad_o);
    const at::Tensor by_r = transposed(forgotten * c.k);
    const at::Tensor grad_behind = at::empty_like(states);
    grad_behind.select(2, c.count() - 1).zero_();
    for (std::int64_t n = c.count() - 1; n > 0; --n) {
      const at::Tensor behind = grad_behind.select(2, n);
      const at::Tensor r = first_r.select(2, n) + at::matmul(r_by_state.select(2, n), behind);
      grad_behind.select(2, n - 1).copy_(c.over_all.select(2, n) * behind + grad_state_of_o.select(2, n) -
                                         at::matmul(by_r.select(2, n), r));
    }

    const at::Tensor grad_r = first_r + at::matmul(r_by_state, grad_behind);
    const at::Tensor grad_lower = -at::matmul(grad_r, transposed(u)).tril(-1);
    const at::Tensor grad_scores = at::matmul(grad_o, transposed(u)), grad_qk = grad_scores * c.decay;
    const at::Tensor grad_products = c.beta * c.decay * grad_lower;
    const at::Tensor q_s = at::matmul(c.q, states), k_s = at::matmul(c.k, states);
    const at::Tensor grad_q = c.from_before * at::matmul(grad_o, transposed(states)) + at::matmul(grad_qk, c.k);
    const at::Tensor grad_k = at::matmul(transposed(grad_qk), c.q) + c.to_end * at::matmul(u, transposed(grad_behind)) +
                              at::matmul(grad_products + transposed(grad_products), c.k) -
                              forgotten * at::matmul(grad_r, transposed(states));
    const at::Tensor grad_beta =
        sum_of_row(grad_lower * c.products * c.decay) + sum_of_row(grad_r * (c.v - c.from_before * k_s));

    // The gradient of the sums of decays, in fp64 because the sums of rows and columns cancel out where decays are
    // strong.
    const at::Tensor of_pairs = (grad_lower * c.lower + grad_scores * c.scores).to(at::kDouble);
    const at::Tensor of_kept = (c.to_end * sum_of_row(at::matmul(c.k, grad_behind) * u)).to(at::kDouble);
    const at::Tensor grad_sums = sum_of_row(of_pairs) - transposed(of_pairs.sum(-2, /*keepdim=*/true)) - of_kept +
                                 c.from_before * (sum_of_row(q_s * grad_o) - c.beta * sum_of_row(k_s * grad_r));
    const at::Tensor of_chunk = c.over_all * sum_of_row(sum_of_row(states * grad_behind).transpose(-1, -2));
    grad_sums.narrow(-2, kChunk - 1, 1).add_(of_kept.sum(-2, /*keepdim=*/true) + of_chunk);
    const at::Tensor grad_decay = at::matmul(transposed(triangle_of_ones(of_pairs)), grad_sums).to(at::kFloat);

    const at::ScalarType dtype = saved[0].scalar_type();
    const auto of_tokens = [&](const at::Tensor& chunks) { return tokens_of(chunks, call.t()); };
    return {call.grad_q(grad_q).to(dtype),
            call.grad_k(grad_k).to(dtype),
            of_tokens(c.beta * grad_r).to(dtype),
            of_tokens(grad_decay).squeeze(3),
            of_tokens(grad_beta).squeeze(3).to(dtype),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor gated_delta_rule_by_products(const DeltaRuleInputs& in) {
  return DeltaRuleByProducts::apply(in.q_btkd, in.k_btkd, in.v_bthe, in.decay_bth, in.beta_bth,
                                    in.documents_bk.defined() ? std::make_optional(in.documents_bk) : std::nullopt);
}

}  // namespace rp::models
