#include "models/layers/attention/attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "models/layers/attention/gpu_attention.h"
#include "models/layers/documents.h"
#include "models/layers/kernel_call.h"

namespace rp::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kQueryTile = 64;
constexpr std::int64_t kKeyTile = 64;
constexpr float kNoSink = -std::numeric_limits<float>::infinity();

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Computes C [m, n] (+)= A [m, k] B [k, n], where B is packed (PackRows). `ld_b` is n unless B is
// part of a wider matrix.
template <typename T>
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t ld_a, const T* b,
              std::int64_t ld_b, float* c, std::int64_t ld_c, bool add) {
  constexpr bool kPairs = sizeof(T) == 2;
  at::native::cpublas::brgemm(m, n, k, ld_a, ld_b, ld_c, add, a, b, c, kPairs);
}

template <typename T>
constexpr DType kElement = sizeof(T) == 2 ? DType::kBFloat16 : DType::kFloat32;

// One head of one sequence, as a matrix [t, d] within a tensor [b, t, n, d], or of values.
template <typename T>
struct HeadRows {
  HeadRows(const at::Tensor& x_btnd, std::int64_t batch, std::int64_t head)
      : first(static_cast<T*>(x_btnd.data_ptr()) + batch * x_btnd.stride(0) + head * x_btnd.stride(2)),
        stride(x_btnd.stride(1)) {}
  HeadRows(T* first_row, std::int64_t row_stride) : first(first_row), stride(row_stride) {}
  // Returns the part that begins with row i.
  [[nodiscard]] HeadRows from(std::int64_t i) const { return {row(i), stride}; }
  [[nodiscard]] T* row(std::int64_t i) const { return first + i * stride; }

  T* first;
  std::int64_t stride;
};

template <typename T>
void pack(const HeadRows<T>& from, std::int64_t begin, std::int64_t rows, std::int64_t columns, T* to,
          std::int64_t width, bool transposed, std::int64_t to_stride = 0) {
  layer_kernels().pack(kElement<T>, {from.row(begin), from.stride, rows, columns, to, width, transposed, to_stride});
}

struct Shape {
  Shape(const at::Tensor& q_btnd, const at::Tensor& v_btme, double scale_of_scores, std::int64_t window_or_none)
      : b(q_btnd.size(0)),
        t(q_btnd.size(1)),
        n(q_btnd.size(2)),
        m(v_btme.size(2)),
        d(q_btnd.size(3)),
        e(v_btme.size(3)),
        scale(static_cast<float>(scale_of_scores)),
        window(window_or_none > 0 ? window_or_none : kWholeWindow) {}

  // Returns the first key of the tile that contains the first key that this query sees.
  [[nodiscard]] std::int64_t first_key_tile(std::int64_t query) const {
    return query < window ? 0 : (query + 1 - window) / kKeyTile * kKeyTile;
  }

  std::int64_t b, t, n, m, d, e;
  float scale;
  std::int64_t window;
};

// Computes the attention of one query head, document by document. Packed keys and scores always
// have the stride that a whole row needs, because oneDNN generates and keeps code for each stride
// that it meets.
template <typename T>
class HeadForward {
 public:
  explicit HeadForward(const Shape& shape)
      : s_(shape),
        padded_(round_up(shape.t, kKeyTile)),
        keys_(element_count(s_.d)),
        values_(element_count(s_.e)),
        scores_(kQueryTile * padded_),
        probabilities_(scores_.size()),
        out_(kQueryTile * s_.e) {}

  // All arguments begin with the first of `length` positions.
  void run(const HeadRows<T>& q, const HeadRows<T>& k, const HeadRows<T>& v, const HeadRows<T>& out, float* log_sums,
           std::int64_t length, float sink) {
    const std::int64_t width = round_up(length, kKeyTile);
    pack(k, 0, length, s_.d, keys_.data(), width, /*transposed=*/true, padded_);
    pack(v, 0, length, s_.e, values_.data(), width, /*transposed=*/false);
    for (std::int64_t query = 0; query < length; query += kQueryTile) {
      const std::int64_t rows = std::min(kQueryTile, length - query);
      const std::int64_t first = s_.first_key_tile(query), columns = round_up(query + rows, kKeyTile);
      for (std::int64_t key = first; key < columns; key += kKeyTile) {
        multiply(rows, kKeyTile, s_.d, q.row(query), q.stride, keys_.data() + pairs() * key, padded_,
                 scores_.data() + key, padded_, /*add=*/false);
      }
      const CausalSoftmaxRows call{.scores = scores_.data() + first,
                                   .probabilities = probabilities_.data() + first,
                                   .log_sums = log_sums + query,
                                   .stride = padded_,
                                   .first_visible = query + 1 - first,
                                   .columns = columns - first,
                                   .scale = s_.scale,
                                   .window = s_.window,
                                   .sink = sink};
      layer_kernels().causal_softmax(kElement<T>, call, 0, rows);
      for (std::int64_t key = first; key < columns; key += kKeyTile) {
        multiply(rows, s_.e, kKeyTile, probabilities_.data() + key, padded_, values_.data() + key * s_.e, s_.e,
                 out_.data(), s_.e, /*add=*/key > first);
      }
      for (std::int64_t i = 0; i < rows; ++i) {
        layer_kernels().round(kElement<T>, out_.data() + i * s_.e, out.row(query + i), s_.e);
      }
    }
  }

 private:
  // The distance of neighbouring columns of a packed matrix.
  static constexpr std::int64_t pairs() { return sizeof(T) == 2 ? 2 : 1; }
  [[nodiscard]] std::size_t element_count(std::int64_t size) const { return static_cast<std::size_t>(padded_ * size); }

  const Shape s_;
  const std::int64_t padded_;  // t rounded up to whole key tiles
  std::vector<T> keys_, values_;
  std::vector<float> scores_;
  std::vector<T> probabilities_;
  std::vector<float> out_;
};

// Computes the gradients of one key/value head and of the query heads that share it. It uses
// transposed scores [keys, queries]. So the products for keys and values need no transposition, and
// the product for queries uses the interleaved copy.
template <typename T>
class GroupBackward {
 public:
  explicit GroupBackward(const Shape& shape)
      : s_(shape),
        padded_(round_up(shape.t, kKeyTile)),
        keys_t_(floats(padded_ * s_.d)),
        grad_k_(keys_t_.size()),
        grad_v_(floats(padded_ * s_.e)) {
    for (auto* buffer : {&q_, &q_t_}) buffer->resize(floats(kQueryTile * s_.d));
    for (auto* buffer : {&grad_out_, &grad_out_t_}) buffer->resize(floats(kQueryTile * s_.e));
    for (auto* buffer : {&probabilities_, &grad_scores_, &grad_score_pairs_}) {
      buffer->resize(floats(kKeyTile * kQueryTile));
    }
    for (auto* buffer : {&scores_, &grads_}) buffer->resize(floats(kKeyTile * kQueryTile));
    grad_q_t_.resize(floats(kQueryTile * s_.d));
  }

  // Begins a document of `length` positions. All arguments, here and below, begin with the first of
  // them.
  void start(const HeadRows<T>& k, std::int64_t length) {
    length_ = length;
    const std::int64_t width = round_up(length, kKeyTile);
    // The keys are the left operand of a product, so they are not interleaved.
    for (std::int64_t i = 0; i < s_.d; ++i) {
      T* row = keys_t_.data() + i * padded_;
      for (std::int64_t key = 0; key < length; ++key) row[key] = k.row(key)[i];
      std::fill(row + length, row + width, T{});
    }
    std::fill_n(grad_k_.begin(), width * s_.d, 0.0F);
    std::fill_n(grad_v_.begin(), width * s_.e, 0.0F);
  }

  // Returns the sum, over the head's queries, of the sink's probability times `deltas_`: the sink's
  // gradient is computed from it.
  float add_head(const HeadRows<T>& q, const HeadRows<T>& k, const HeadRows<T>& v, const HeadRows<T>& out,
                 const HeadRows<T>& grad_out, const float* log_sums, const HeadRows<T>& grad_q, float sink) {
    float of_sink = 0;
    for (std::int64_t query = 0; query < length_; query += kQueryTile) {
      const std::int64_t rows = std::min(kQueryTile, length_ - query);
      pack(q, query, rows, s_.d, q_.data(), kQueryTile, false);
      pack(q, query, rows, s_.d, q_t_.data(), kQueryTile, true);
      pack(grad_out, query, rows, s_.e, grad_out_.data(), kQueryTile, false);
      pack(grad_out, query, rows, s_.e, grad_out_t_.data(), kQueryTile, true);
      for (std::int64_t i = 0; i < kQueryTile; ++i) {
        // Queries after the end have zero gradients. These values keep their probabilities finite.
        log_sums_[i] = i < rows ? log_sums[query + i] : 0.0F;
        deltas_[i] =
            i < rows ? layer_kernels().dot(kElement<T>, out.row(query + i), grad_out.row(query + i), s_.e) : 0.0F;
      }
      if (sink != kNoSink) {
        for (std::int64_t i = 0; i < rows; ++i) of_sink += std::exp(sink - log_sums_[i]) * deltas_[i];
      }
      const std::int64_t first = s_.first_key_tile(query);
      for (std::int64_t key = first; key < query + rows; key += kKeyTile) add_tile(k, v, query, key, first);
      for (std::int64_t i = 0; i < rows; ++i) {
        T* row = grad_q.row(query + i);
        for (std::int64_t j = 0; j < s_.d; ++j) {
          row[j] = static_cast<T>(grad_q_t_[j * kQueryTile + i]);
        }
      }
    }
    return of_sink;
  }

  void finish(const HeadRows<T>& grad_k, const HeadRows<T>& grad_v) const {
    for (std::int64_t i = 0; i < length_; ++i) {
      layer_kernels().round(kElement<T>, grad_k_.data() + i * s_.d, grad_k.row(i), s_.d);
      layer_kernels().round(kElement<T>, grad_v_.data() + i * s_.e, grad_v.row(i), s_.e);
    }
  }

 private:
  static std::size_t floats(std::int64_t count) { return static_cast<std::size_t>(count); }

  void add_tile(const HeadRows<T>& k, const HeadRows<T>& v, std::int64_t query, std::int64_t key,
                std::int64_t first_key) {
    const std::int64_t d = s_.d, e = s_.e, rows = std::min(kKeyTile, length_ - key);
    multiply(rows, kQueryTile, d, k.row(key), k.stride, q_t_.data(), kQueryTile, scores_.data(), kQueryTile, false);
    multiply(rows, kQueryTile, e, v.row(key), v.stride, grad_out_t_.data(), kQueryTile, grads_.data(), kQueryTile,
             false);
    const AttentionGradRows call{scores_.data(),
                                 grads_.data(),
                                 log_sums_,
                                 deltas_,
                                 probabilities_.data(),
                                 grad_scores_.data(),
                                 grad_score_pairs_.data(),
                                 kQueryTile,
                                 rows,
                                 query - key,
                                 s_.scale,
                                 s_.window};
    layer_kernels().attention_grad(kElement<T>, call, 0, kKeyTile / 2);
    multiply(rows, e, kQueryTile, probabilities_.data(), kQueryTile, grad_out_.data(), e, grad_v_.data() + key * e, e,
             true);
    multiply(rows, d, kQueryTile, grad_scores_.data(), kQueryTile, q_.data(), d, grad_k_.data() + key * d, d, true);
    const T* grad_scores = sizeof(T) == 2 ? grad_score_pairs_.data() : grad_scores_.data();
    multiply(d, kQueryTile, kKeyTile, keys_t_.data() + key, padded_, grad_scores, kQueryTile, grad_q_t_.data(),
             kQueryTile, key > first_key);
  }

  const Shape s_;
  const std::int64_t padded_;
  std::int64_t length_ = 0;
  std::vector<T> keys_t_;               // [d, padded_], zero after the end up to a whole tile
  std::vector<float> grad_k_, grad_v_;  // [padded_, d] and [padded_, e]
  std::vector<T> q_, q_t_, grad_out_, grad_out_t_;
  std::vector<T> probabilities_, grad_scores_, grad_score_pairs_;  // [keys, queries] of a tile
  std::vector<float> scores_, grads_;
  std::vector<float> grad_q_t_;  // [d, queries]
  float log_sums_[kQueryTile] = {}, deltas_[kQueryTile] = {};
};

// The documents of each row.
using Rows = std::vector<std::vector<Document>>;

Rows rows_of(const Shape& shape, const at::Tensor& documents_bk) {
  if (!documents_bk.defined()) return Rows(static_cast<std::size_t>(shape.b), {{0, shape.t}});
  TORCH_CHECK(documents_bk.size(0) == shape.b, "causal_attention: documents of ", documents_bk.size(0),
              " sequences, but there are ", shape.b);
  return documents_of_rows(documents_bk, shape.t);
}

// fp32 [n], or undefined.
using Sinks = at::Tensor;

float sink_of(const Sinks& sinks_n, std::int64_t head) {
  return sinks_n.defined() ? sinks_n.const_data_ptr<float>()[head] : kNoSink;
}

template <typename T>
void run_forward(const Shape& shape, const Rows& rows, const variable_list& qkv, const Sinks& sinks_n,
                 const at::Tensor& out_btnd, float* log_sums) {
  at::parallel_for(0, shape.b * shape.n, 1, [&](std::int64_t begin, std::int64_t end) {
    HeadForward<T> head_forward(shape);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t batch = i / shape.n, head = i % shape.n, group = head / (shape.n / shape.m);
      const HeadRows<T> q(qkv[0], batch, head), k(qkv[1], batch, group), v(qkv[2], batch, group),
          out(out_btnd, batch, head);
      for (const auto& [first, length] : rows[batch]) {
        head_forward.run(q.from(first), k.from(first), v.from(first), out.from(first), log_sums + i * shape.t + first,
                         length, sink_of(sinks_n, head));
      }
    }
    at::native::cpublas::brgemm_release();
  });
}

// `of_sinks_bn`: the results of GroupBackward::add_head() for each head, if there are sinks.
template <typename T>
void run_backward(const Shape& shape, const Rows& rows, const variable_list& qkv, const Sinks& sinks_n,
                  const at::Tensor& out_btnd, const float* log_sums, const at::Tensor& grad_out,
                  const variable_list& grads, float* of_sinks_bn) {
  at::parallel_for(0, shape.b * shape.m, 1, [&](std::int64_t begin, std::int64_t end) {
    GroupBackward<T> group_backward(shape);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t batch = i / shape.m, group = i % shape.m, members = shape.n / shape.m;
      for (const auto& [first, length] : rows[batch]) {
        const auto part = [&, first = first](const at::Tensor& x, std::int64_t head) {
          return HeadRows<T>(x, batch, head).from(first);
        };
        const HeadRows<T> k = part(qkv[1], group), v = part(qkv[2], group);
        group_backward.start(k, length);
        for (std::int64_t head = group * members; head < (group + 1) * members; ++head) {
          const std::int64_t place = batch * shape.n + head;
          const float of_sink =
              group_backward.add_head(part(qkv[0], head), k, v, part(out_btnd, head), part(grad_out, head),
                                      log_sums + place * shape.t + first, part(grads[0], head), sink_of(sinks_n, head));
          if (sinks_n.defined()) of_sinks_bn[place] += of_sink;
        }
        group_backward.finish(part(grads[1], group), part(grads[2], group));
      }
    }
    at::native::cpublas::brgemm_release();
  });
}

struct TiledAttention : torch::autograd::Function<TiledAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::optional<at::Tensor>& sinks, const std::optional<at::Tensor>& documents,
                            double scale, std::int64_t window) {
    const at::Tensor documents_bk = documents.value_or(at::Tensor());
    const Sinks sinks_n = sinks ? sinks->detach().to(at::kFloat).contiguous() : Sinks();
    const variable_list qkv = {q.contiguous(), k.contiguous(), v.contiguous()};
    const Shape shape(q, v, scale, window);
    const at::Tensor out = at::empty({shape.b, shape.t, shape.n, shape.e}, q.options());
    const at::Tensor log_sums = at::empty({shape.b, shape.n, shape.t}, out.options().dtype(at::kFloat));
    float* sums = log_sums.mutable_data_ptr<float>();
    const Rows rows = rows_of(shape, documents_bk);
    kernel_dtype(q) == DType::kBFloat16 ? run_forward<at::BFloat16>(shape, rows, qkv, sinks_n, out, sums)
                                        : run_forward<float>(shape, rows, qkv, sinks_n, out, sums);
    context->save_for_backward({qkv[0], qkv[1], qkv[2], out, log_sums, documents_bk, sinks_n});
    context->saved_data["scale"] = scale;
    context->saved_data["window"] = window;
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor grad_out = grad_outputs[0].contiguous();
    variable_list grads(7);
    for (std::size_t i = 0; i < 3; ++i) grads[i] = at::empty_like(saved[i]);
    const Shape shape(saved[0], saved[2], context->saved_data["scale"].toDouble(),
                      context->saved_data["window"].toInt());
    const Rows rows = rows_of(shape, saved[5]);
    const float* sums = saved[4].const_data_ptr<float>();
    const Sinks& sinks_n = saved[6];
    const at::Tensor of_sinks_bn = at::zeros({sinks_n.defined() ? shape.b : 0, shape.n}, at::kFloat);
    (kernel_dtype(grad_out) == DType::kBFloat16 ? run_backward<at::BFloat16>
                                                : run_backward<float>)(shape, rows, saved, sinks_n, saved[3], sums,
                                                                       grad_out, grads,
                                                                       of_sinks_bn.mutable_data_ptr<float>());
    if (sinks_n.defined()) {
      grads[3] = at::zeros_like(sinks_n);
      for (std::int64_t i = 0; i < shape.b; ++i) grads[3].sub_(of_sinks_bn[i]);
    }
    return grads;
  }
};

// Returns whether oneDNN has its small products for this processor. If not, they throw an
// exception.
template <typename T>
bool has_small_products() {
  const std::vector<T> a(4), b(4);
  std::vector<float> c(4);
  try {
    multiply<T>(2, 2, 2, a.data(), 2, b.data(), 2, c.data(), 2, false);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

}  // namespace

double scale_of(const AttentionRule& rule, std::int64_t head_size) {
  return rule.scale.value_or(1 / std::sqrt(static_cast<double>(head_size)));
}

at::Tensor causal_attention(const at::Tensor& q_btnd, const at::Tensor& k_btmd, const at::Tensor& v_btme,
                            const AttentionRule& rule) {
  if (runs_on_gpu(q_btnd)) return gpu_attention(q_btnd, k_btmd, v_btme, rule);
  if (q_btnd.scalar_type() == at::kHalf) {
    return causal_attention(q_btnd.to(at::kFloat), k_btmd.to(at::kFloat), v_btme.to(at::kFloat), rule).to(at::kHalf);
  }
  static const bool has_bf16 = has_small_products<at::BFloat16>();
  static const bool has_fp32 = has_small_products<float>();
  const bool tiled = kernel_dtype(q_btnd) == DType::kBFloat16 ? has_bf16 : has_fp32;
  if (!tiled || q_btnd.size(3) % 2 != 0 || v_btme.size(3) % 2 != 0)
    return attention_by_libtorch(q_btnd, k_btmd, v_btme, rule);
  return TiledAttention::apply(q_btnd, k_btmd, v_btme, where_defined(rule.sinks_n), where_defined(rule.documents_bk),
                               scale_of(rule, q_btnd.size(3)), rule.window);
}

}  // namespace rp::models
