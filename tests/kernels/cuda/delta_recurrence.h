// tests/kernels/cuda/delta_recurrence.h
// Computes the gated delta rule and its gradients in fp64, token by token, as it is defined.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace rp::cuda {

struct DeltaShape {
  std::int64_t sequences = 1, length = 1, key_heads = 1, value_heads = 1, key_size = 16, value_size = 16;

  [[nodiscard]] std::int64_t tokens() const { return sequences * length; }
  [[nodiscard]] std::int64_t keys() const { return tokens() * key_heads * key_size; }
  [[nodiscard]] std::int64_t values() const { return tokens() * value_heads * value_size; }
  [[nodiscard]] std::int64_t gates() const { return tokens() * value_heads; }
};

// The inputs and the gradient of the result. `positions`: the distance of each token from the
// beginning of its document.
struct DeltaArrays {
  DeltaShape shape;
  std::vector<float> q, k, v, decay, beta, grad_o;
  std::vector<std::int64_t> positions;
};

struct DeltaResults {
  std::vector<double> o, grad_q, grad_k, grad_v, grad_decay, grad_beta;
};

// A query or key, and what divides it by its length.
struct UnitRow {
  UnitRow(const float* x, std::int64_t size, double scale) : rows(static_cast<std::size_t>(size)) {
    double squares = 1e-6;
    for (std::int64_t i = 0; i < size; ++i) squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    length = std::sqrt(squares);
    for (std::int64_t i = 0; i < size; ++i) rows[i] = static_cast<double>(x[i]) / length * scale;
  }
  // Adds the gradient of x to `to`.
  void back(const std::vector<double>& grad, double scale, double* to) const {
    double along = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) along += grad[i] * rows[i] / scale;
    for (std::size_t i = 0; i < rows.size(); ++i) to[i] += (grad[i] - along * rows[i] / scale) * scale / length;
  }

  std::vector<double> rows;
  double length = 0;
};

// One value head of one sequence.
class DeltaHeadRecurrence {
 public:
  DeltaHeadRecurrence(const DeltaArrays& arrays, std::int64_t sequence, std::int64_t head, DeltaResults& results)
      : a_(arrays), s_(arrays.shape), sequence_(sequence), head_(head), r_(results) {}

  void run() {
    const auto size = static_cast<std::size_t>(s_.key_size * s_.value_size);
    std::vector<std::vector<double>> states = {std::vector<double>(size)};
    for (std::int64_t t = 0; t < s_.length; ++t) states.push_back(next(t, states.back()));
    std::vector<double> grad(size);
    for (std::int64_t t = s_.length - 1; t >= 0; --t) back(t, states[t], states[t + 1], grad);
  }

 private:
  [[nodiscard]] std::int64_t token(std::int64_t t) const { return sequence_ * s_.length + t; }
  [[nodiscard]] std::int64_t gate(std::int64_t t) const { return token(t) * s_.value_heads + head_; }
  [[nodiscard]] std::int64_t key(std::int64_t t) const {
    return (token(t) * s_.key_heads + head_ / (s_.value_heads / s_.key_heads)) * s_.key_size;
  }
  [[nodiscard]] double scale() const { return 1 / std::sqrt(static_cast<double>(s_.key_size)); }
  [[nodiscard]] UnitRow q(std::int64_t t) const { return {&a_.q[key(t)], s_.key_size, scale()}; }
  [[nodiscard]] UnitRow k(std::int64_t t) const { return {&a_.k[key(t)], s_.key_size, 1}; }
  [[nodiscard]] double factor(std::int64_t t) const {
    return a_.positions[token(t)] == 0 ? 0 : std::exp(static_cast<double>(a_.decay[gate(t)]));
  }

  // Returns v - S^T k for the decayed state and column c.
  [[nodiscard]] double missing(std::int64_t t, const std::vector<double>& before, const std::vector<double>& k_row,
                               std::int64_t c) const {
    double recalled = 0;
    for (std::int64_t i = 0; i < s_.key_size; ++i) recalled += before[i * s_.value_size + c] * factor(t) * k_row[i];
    return static_cast<double>(a_.v[gate(t) * s_.value_size + c]) - recalled;
  }

  std::vector<double> next(std::int64_t t, const std::vector<double>& before) {
    const UnitRow q_row = q(t), k_row = k(t);
    std::vector<double> after(before.size());
    for (std::int64_t c = 0; c < s_.value_size; ++c) {
      const double u = static_cast<double>(a_.beta[gate(t)]) * missing(t, before, k_row.rows, c);
      double& o = r_.o[gate(t) * s_.value_size + c];
      for (std::int64_t i = 0; i < s_.key_size; ++i) {
        after[i * s_.value_size + c] = before[i * s_.value_size + c] * factor(t) + k_row.rows[i] * u;
        o += after[i * s_.value_size + c] * q_row.rows[i];
      }
    }
    return after;
  }

  // Replaces the gradient of the state after the token by that of the state before it.
  void back(std::int64_t t, const std::vector<double>& before, const std::vector<double>& after,
            std::vector<double>& grad) {
    const UnitRow q_row = q(t), k_row = k(t);
    std::vector<double> grad_q(q_row.rows.size()), grad_k(k_row.rows.size());
    const double beta = static_cast<double>(a_.beta[gate(t)]), kept = factor(t);
    for (std::int64_t c = 0; c < s_.value_size; ++c) {
      const double grad_o = static_cast<double>(a_.grad_o[gate(t) * s_.value_size + c]);
      const double u_by_beta = missing(t, before, k_row.rows, c);
      double grad_u = 0;
      for (std::int64_t i = 0; i < s_.key_size; ++i) {
        const std::int64_t at = i * s_.value_size + c;
        grad[at] += q_row.rows[i] * grad_o;
        grad_q[i] += after[at] * grad_o;
        grad_k[i] += grad[at] * beta * u_by_beta;
        grad_u += grad[at] * k_row.rows[i];
      }
      r_.grad_beta[gate(t)] += grad_u * u_by_beta;
      r_.grad_v[gate(t) * s_.value_size + c] = grad_u * beta;
      for (std::int64_t i = 0; i < s_.key_size; ++i) {
        const std::int64_t at = i * s_.value_size + c;
        grad_k[i] -= before[at] * kept * grad_u * beta;
        grad[at] -= k_row.rows[i] * grad_u * beta;
        r_.grad_decay[gate(t)] += grad[at] * before[at] * kept;
        grad[at] *= kept;
      }
    }
    q_row.back(grad_q, scale(), &r_.grad_q[key(t)]);
    k_row.back(grad_k, 1, &r_.grad_k[key(t)]);
  }

  const DeltaArrays& a_;
  const DeltaShape& s_;
  const std::int64_t sequence_, head_;
  DeltaResults& r_;
};

inline DeltaResults run_recurrence(const DeltaArrays& a) {
  const DeltaShape& s = a.shape;
  const auto zeros = [](std::int64_t count) { return std::vector<double>(static_cast<std::size_t>(count)); };
  DeltaResults results = {zeros(s.values()), zeros(s.keys()),  zeros(s.keys()),
                          zeros(s.values()), zeros(s.gates()), zeros(s.gates())};
  for (std::int64_t sequence = 0; sequence < s.sequences; ++sequence) {
    for (std::int64_t head = 0; head < s.value_heads; ++head) DeltaHeadRecurrence(a, sequence, head, results).run();
  }
  return results;
}

}  // namespace rp::cuda
