#include "models/layers/attention/blocked_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "kernels/blocked_attention.h"
#include "models/layers/documents.h"
#include "models/layers/kernel_call.h"

namespace rp::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns the products [n, i, j] of [n, i, k] and [n, k, j] in fp32.
at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cuda() && a.scalar_type() != at::kFloat) return at::bmm(a, b, at::kFloat);
  return at::bmm(a.to(at::kFloat), b.to(at::kFloat));
}

// Queries, and the keys that one of them sees.
struct Block {
  std::int64_t query = 0, num_queries = 0;
  std::int64_t key = 0, num_keys = 0;
};

// Cuts tensors into blocks, and puts blocks back. Shapes: r queries and c keys of a block, g query heads that share
// keys. Queries of a block are a matrix [b m, g r, ...], its keys and values are [b m, c, ...].
class Blocks {
 public:
  Blocks(const at::Tensor& q_btnd, const at::Tensor& k_btmd, const at::Tensor& documents_bk, std::int64_t window)
      : b_(q_btnd.size(0)),
        t_(q_btnd.size(1)),
        n_(q_btnd.size(2)),
        m_(k_btmd.size(2)),
        window_(window > 0 ? window : t_),
        num_queries_(queries_of_a_block(b_, n_, t_)) {
    const at::Tensor positions = at::arange(t_, q_btnd.options().dtype(at::kLong));
    first_seen_ = (positions - (window_ - 1)).unsqueeze(0);
    if (documents_bk.defined()) first_seen_ = first_seen_.maximum(positions - document_positions(documents_bk, t_));
    positions_t_ = positions;
  }

  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (std::int64_t query = 0; query < t_; query += num_queries_) {
      const std::int64_t end = std::min(t_, query + num_queries_);
      const std::int64_t key = std::max<std::int64_t>(0, query - (window_ - 1));
      visit(Block{query, end - query, key, end - key});
    }
  }

  // Returns x [b, t, m, ...] as [b m, t, ...].
  [[nodiscard]] at::Tensor by_group(const at::Tensor& x) const { return x.transpose(1, 2).reshape({b_ * m_, t_, -1}); }
  [[nodiscard]] at::Tensor from_groups(const at::Tensor& x) const { return x.view({b_, m_, t_, -1}).transpose(1, 2); }

  [[nodiscard]] at::Tensor queries(const at::Tensor& x_btnd, const Block& block) const {
    const at::Tensor rows = x_btnd.narrow(1, block.query, block.num_queries).unflatten(2, {m_, n_ / m_});
    return rows.permute({0, 2, 3, 1, 4}).reshape({b_ * m_, -1, x_btnd.size(3)});
  }
  void put_queries(const at::Tensor& rows, const Block& block, const at::Tensor& x_btnd) const {
    const at::Tensor to = x_btnd.narrow(1, block.query, block.num_queries).unflatten(2, {m_, n_ / m_});
    to.copy_(rows.view({b_, m_, n_ / m_, block.num_queries, -1}).permute({0, 3, 1, 2, 4}));
  }
  // Returns the block's part of [b, n, t], one number for each head and query, as [b m, g r, 1].
  [[nodiscard]] at::Tensor numbers(const at::Tensor& x_bnt, const Block& block) const {
    return x_bnt.narrow(2, block.query, block.num_queries).reshape({b_ * m_, -1, 1});
  }
  void put_numbers(const at::Tensor& numbers, const Block& block, const at::Tensor& x_bnt) const {
    x_bnt.narrow(2, block.query, block.num_queries).copy_(numbers.view({b_, n_, block.num_queries}));
  }

  // Returns scale q k^T, and minus infinity where a query does not see a key: [b m, g r, c].
  [[nodiscard]] at::Tensor scores(const at::Tensor& q, const at::Tensor& k, const Block& block, double scale) const {
    at::Tensor scores = product(q, k.transpose(1, 2)).mul_(scale);
    const at::Tensor keys_c = positions_t_.narrow(0, block.key, block.num_keys);
    const at::Tensor queries_r1 = positions_t_.narrow(0, block.query, block.num_queries).unsqueeze(1);
    const at::Tensor first_br1 = first_seen_.narrow(1, block.query, block.num_queries).unsqueeze(2);
    const at::Tensor hidden_brc = (keys_c > queries_r1).logical_or(keys_c < first_br1);
    scores.view({b_, n_, block.num_queries, block.num_keys})
        .masked_fill_(hidden_brc.unsqueeze(1), -std::numeric_limits<double>::infinity());
    return scores;
  }

 private:
  const std::int64_t b_, t_, n_, m_, window_, num_queries_;
  at::Tensor positions_t_;
  at::Tensor first_seen_;  // [b, t], or [1, t]: the first position that each sees
};

struct BlockedAttention : torch::autograd::Function<BlockedAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q_btnd, const at::Tensor& k_btmd,
                            const at::Tensor& v_btme, const std::optional<at::Tensor>& documents_bk, double scale,
                            std::int64_t window) {
    const at::Tensor documents = documents_bk.value_or(at::Tensor());
    const Blocks blocks(q_btnd, k_btmd, documents, window);
    const at::Tensor k = blocks.by_group(k_btmd), v = blocks.by_group(v_btme);
    const at::Tensor out =
        at::empty({q_btnd.size(0), q_btnd.size(1), q_btnd.size(2), v_btme.size(3)}, q_btnd.options());
    const at::Tensor log_sums =
        at::empty({q_btnd.size(0), q_btnd.size(2), q_btnd.size(1)}, q_btnd.options().dtype(at::kFloat));
    blocks.for_each([&](const Block& block) {
      at::Tensor p = blocks.scores(blocks.queries(q_btnd, block), k.narrow(1, block.key, block.num_keys), block, scale);
      const at::Tensor largest = p.amax(-1, /*keepdim=*/true);
      p.sub_(largest).exp_();
      const at::Tensor sums = p.sum(-1, /*keepdim=*/true);
      blocks.put_numbers(largest + sums.log(), block, log_sums);
      p = p.div_(sums).to(v.scalar_type());
      blocks.put_queries(product(p, v.narrow(1, block.key, block.num_keys)), block, out);
    });
    context->save_for_backward({q_btnd, k_btmd, v_btme, out, log_sums, documents});
    context->saved_data["scale"] = scale;
    context->saved_data["window"] = window;
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &q_btnd = saved[0], &out = saved[3], &grad_out = grad_outputs[0];
    const double scale = context->saved_data["scale"].toDouble();
    const Blocks blocks(q_btnd, saved[1], saved[5], context->saved_data["window"].toInt());
    const at::Tensor k = blocks.by_group(saved[1]), v = blocks.by_group(saved[2]);
    const at::Tensor grad_q = at::empty_like(q_btnd);
    const at::Tensor grad_k = at::zeros(k.sizes(), k.options().dtype(at::kFloat));
    const at::Tensor grad_v = at::zeros(v.sizes(), v.options().dtype(at::kFloat));
    blocks.for_each([&](const Block& block) {
      const auto keys = [&](const at::Tensor& x) { return x.narrow(1, block.key, block.num_keys); };
      const at::Tensor q = blocks.queries(q_btnd, block), grad = blocks.queries(grad_out, block);
      const at::Tensor delta =
          (grad.to(at::kFloat) * blocks.queries(out, block).to(at::kFloat)).sum(-1, /*keepdim=*/true);
      at::Tensor p = blocks.scores(q, keys(k), block, scale).sub_(blocks.numbers(saved[4], block)).exp_();
      keys(grad_v).add_(product(p.to(v.scalar_type()).transpose(1, 2), grad));
      p = p.mul_(product(grad, keys(v).transpose(1, 2)).sub_(delta)).mul_(scale).to(q.scalar_type());
      blocks.put_queries(product(p, keys(k)), block, grad_q);
      keys(grad_k).add_(product(p.transpose(1, 2), q));
    });
    return {grad_q,
            blocks.from_groups(grad_k).to(q_btnd.scalar_type()),
            blocks.from_groups(grad_v).to(q_btnd.scalar_type()),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor blocked_attention(const at::Tensor& q_btnd, const at::Tensor& k_btmd, const at::Tensor& v_btme,
                             const AttentionRule& rule) {
  return BlockedAttention::apply(q_btnd, k_btmd, v_btme, where_defined(rule.documents_bk),
                                 scale_of(rule, q_btnd.size(3)), rule.window);
}

}  // namespace rp::models
