// tests/random/random_layers.h
// The kinds of layers of which random models are made, as torch::nn modules like those that users
// write. Layers of rp::models: see decoder_layers.h.
//
// A list crosses the border between two layers: [x], or [x, skip, ids, aux], of which any but x may
// be absent.
// - x: the main tensor: features [B, W], a sequence [B, T, W] or an image [B, W, H, H]; W is its
//   width
// - skip: a residual stream with the shape of x
// - ids: integers: [B], or [B, T] if x is a sequence
// - aux: one number for each row: [B]
//
// The result of a row never depends on other rows, except in layers that are marked BATCH.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "roundpipe/layer.h"
#include "roundpipe/recompute.h"
#include "tests/random/draw.h"

namespace rp::test {

enum : std::size_t { kX, kSkip, kIds, kAux, kListSize };

enum class Activation { kTanh, kGelu, kSilu, kRelu, kNone };
enum class Freeze { kNone, kFirst, kAll };  // kFirst: only the layer's first parameter

struct LayerSettings {
  std::uint64_t seed = 0;  // for the initial weights
  Freeze freeze = Freeze::kNone;
};

inline at::Tensor activate(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kTanh: return at::tanh(x);
    case Activation::kGelu: return at::gelu(x);
    case Activation::kSilu: return at::silu(x);
    case Activation::kRelu: return at::relu(x);
    case Activation::kNone: break;
  }
  return x;
}

// Return `v`, which has a number for each row or each channel, in a shape that can be combined with
// x.
inline at::Tensor along_rows(const at::Tensor& v, const at::Tensor& x) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(x.dim()), 1);
  sizes[0] = x.size(0);
  return v.reshape(sizes);
}
inline at::Tensor along_width(const at::Tensor& v, const at::Tensor& x) {
  return x.dim() == 4 ? v.reshape({1, v.size(0), 1, 1}) : v;
}

// A layer whose weights have a seed of their own.
struct SeededModule : torch::nn::Module {
  explicit SeededModule(const LayerSettings& settings) : freeze(settings.freeze), draw(settings.seed) {}

  at::Tensor weight(const std::string& name, at::IntArrayRef sizes, double scale, double mean = 0) {
    const bool frozen = freeze == Freeze::kAll || (freeze == Freeze::kFirst && parameters().empty());
    return register_parameter(name, draw.normal(sizes) * scale + mean, !frozen);
  }

  Freeze freeze;
  Draw draw;
};

// A layer that changes x and passes the rest on.
struct OnX : SeededModule {
  using SeededModule::SeededModule;
  virtual at::Tensor apply(const at::Tensor& x) = 0;
  Tensors forward(const Tensors& list) {
    Tensors result = list;
    result[kX] = apply(list[kX]);
    return result;
  }
};

struct Dense : OnX {
  Dense(LayerSettings settings, std::int64_t in, std::int64_t out, Activation act, bool is_residual)
      : OnX(settings),
        w(weight("weight", {out, in}, 1 / std::sqrt(static_cast<double>(in)))),
        b(weight("bias", {out}, 0.1)),
        activation(act),
        residual(is_residual) {}
  at::Tensor apply(const at::Tensor& x) override {
    const at::Tensor y = activate(at::linear(x, w, b), activation);
    return residual ? x + y : y;
  }
  at::Tensor w, b;
  Activation activation;
  bool residual;
};

struct Convolution : OnX {
  Convolution(LayerSettings settings, std::int64_t in, std::int64_t out, Activation act, bool is_residual)
      : OnX(settings),
        w(weight("weight", {out, in, 3, 3}, 1 / std::sqrt(9.0 * static_cast<double>(in)))),
        b(weight("bias", {out}, 0.1)),
        activation(act),
        residual(is_residual) {}
  at::Tensor apply(const at::Tensor& x) override {
    const at::Tensor y = activate(at::conv2d(x, w, b, /*stride=*/1, /*padding=*/1), activation);
    return residual ? x + y : y;
  }
  at::Tensor w, b;
  Activation activation;
  bool residual;
};

// Layer norm. An image is normalised as a whole, by a group norm with one group. Returns NaN if no
// layer reads its outputs.
struct Norm : OnX {
  Norm(LayerSettings settings, std::int64_t width)
      : OnX(settings), w(weight("weight", {width}, 0.1, 1)), b(weight("bias", {width}, 0.1)) {}
  at::Tensor apply(const at::Tensor& x) override {
    const at::Tensor y = x.dim() == 4 ? at::group_norm(x, 1, w, b) : at::layer_norm(x, w.sizes(), w, b);
    if (!outputs_are_read()) y.data().fill_(std::numeric_limits<double>::quiet_NaN());
    return y;
  }
  at::Tensor w, b;
};

// BATCH. `affine`: has parameters.
struct BatchNorm : OnX {
  BatchNorm(LayerSettings settings, std::int64_t width, bool affine)
      : OnX(settings),
        mean(register_buffer("running_mean", at::zeros({width}))),
        variance(register_buffer("running_var", at::ones({width}))),
        count(register_buffer("num_batches_tracked", at::zeros({}, at::kLong))) {
    if (!affine) return;
    w = weight("weight", {width}, 0.1, 1);
    b = weight("bias", {width}, 0.1);
  }
  at::Tensor apply(const at::Tensor& x) override {
    if (is_training()) count += 1;
    return at::batch_norm(x, w, b, mean, variance, is_training(), 0.1, 1e-5, false);
  }
  at::Tensor mean, variance, count, w, b;
};

// BATCH. Subtracts the mean of the microbatches before this one.
struct RunningMean : OnX {
  RunningMean(LayerSettings settings, std::int64_t width)
      : OnX(settings), mean(register_buffer("mean", at::zeros({width}))), w(weight("weight", {width}, 0.1, 1)) {}
  at::Tensor apply(const at::Tensor& x) override {
    const at::Tensor before = mean.clone();
    if (is_training()) {
      const c10::NoGradGuard no_grad;
      mean.lerp_(x.transpose(1, -1).reshape({-1, mean.size(0)}).mean(0).to(mean.scalar_type()), 0.3);
    }
    return (x - along_width(before.to(x.scalar_type()), x)) * along_width(w, x);
  }
  at::Tensor mean, w;
};

struct Dropout : OnX {
  explicit Dropout(double probability) : OnX({}), p(probability) {}
  at::Tensor apply(const at::Tensor& x) override { return at::dropout(x, p, is_training()); }
  double p;
};

struct Activate : OnX {
  explicit Activate(Activation act) : OnX({}), activation(act) {}
  at::Tensor apply(const at::Tensor& x) override { return activate(x, activation); }
  Activation activation;
};

// Returns outputs that are not dense in memory, and whose gradients come with strides of zero.
struct Centered : OnX {
  Centered() : OnX({}) {}
  at::Tensor apply(const at::Tensor& x) override {
    const at::Tensor centered = x - x.mean(-1, true).expand_as(x);
    return centered.transpose(0, -1).contiguous().transpose(0, -1);
  }
};

// Lets no gradient pass to the layers below.
struct Wall : OnX {
  explicit Wall(LayerSettings settings, std::int64_t width) : OnX(settings), w(weight("weight", {width}, 0.1, 1)) {}
  at::Tensor apply(const at::Tensor& x) override { return x.detach() * along_width(w, x); }
  at::Tensor w;
};

// A mixture of experts that saves its routing for the recompute and throws if it is given another
// routing there.
struct Experts : OnX {
  Experts(LayerSettings settings, std::int64_t width, std::int64_t num)
      : OnX(settings),
        gate(weight("gate", {num, width}, 1)),
        w(weight("experts", {num, width, width}, 1 / std::sqrt(static_cast<double>(width)))) {}
  at::Tensor apply(const at::Tensor& x) override {
    const at::Tensor rows = x.reshape({-1, x.size(-1)});
    const at::Tensor scores = at::linear(rows, gate);
    at::Tensor route = scores.argmax(-1);
    if (is_recomputing()) {
      if (recompute_data().size() != 2 || recompute_data()[0].defined() || !at::equal(route, recompute_data()[1])) {
        throw std::runtime_error("the recompute was given another routing than the forward saved");
      }
      route = recompute_data()[1];
    } else {
      save_for_recompute({at::Tensor(), route});
    }
    at::Tensor sum = at::zeros_like(rows);
    for (std::int64_t e = 0; e < w.size(0); ++e) {
      const at::Tensor chosen = (route == e).nonzero().squeeze(1);
      sum = sum.index_add(0, chosen, at::linear(rows.index_select(0, chosen), w[e]));
    }
    return (rows + at::softmax(scores, -1).gather(1, route.unsqueeze(1)) * sum).reshape(x.sizes());
  }
  at::Tensor gate, w;
};

// Computes the mean over all dimensions except row and width.
struct Pool : OnX {
  Pool() : OnX({}) {}
  at::Tensor apply(const at::Tensor& x) override { return x.dim() == 4 ? x.mean({2, 3}) : x.mean(1); }
};

struct Flatten : OnX {
  Flatten() : OnX({}) {}
  at::Tensor apply(const at::Tensor& x) override { return x.flatten(1); }
};

// The first layer of a model whose input is integers: x is ids [B, T].
struct Embedding : SeededModule {
  Embedding(LayerSettings settings, std::int64_t num, std::int64_t width, bool keeps)
      : SeededModule(settings), table(weight("weight", {num, width}, 1)), keeps_ids(keeps) {}
  Tensors forward(const Tensors& list) {
    Tensors result = list;
    result[kX] = at::embedding(table, list[kX]);
    if (result.size() > kIds) result[kIds] = keeps_ids ? list[kX] : at::Tensor();
    return result;
  }
  at::Tensor table;
  bool keeps_ids;
};

// Adds a row of a table for each id. The next such layer gets other ids.
struct Lookup : SeededModule {
  Lookup(LayerSettings settings, std::int64_t num, std::int64_t width)
      : SeededModule(settings), table(weight("table", {num, width}, 0.5)) {}
  Tensors forward(const Tensors& list) {
    Tensors result = list;
    at::Tensor found = at::embedding(table, list[kIds].remainder(table.size(0)));
    if (list[kX].dim() == 4) found = found.unsqueeze(2).unsqueeze(3);
    result[kX] = list[kX] + found;
    result[kIds] = list[kIds] + 1;
    return result;
  }
  at::Tensor table;
};

// The residual stream: begins as a copy of x, runs parallel to x, and is added to x or dropped.
struct OpenSkip : SeededModule {
  OpenSkip() : SeededModule({}) {}
  Tensors forward(const Tensors& list) {
    Tensors result = list;
    result[kSkip] = list[kX];
    return result;
  }
};
struct MixSkip : SeededModule {
  MixSkip(LayerSettings settings, std::int64_t width)
      : SeededModule(settings), a(weight("a", {width}, 0.1, 1)), b(weight("b", {width}, 0.1, 0.5)) {}
  Tensors forward(const Tensors& list) {
    const at::Tensor &x = list[kX], &skip = list[kSkip];
    Tensors result = list;
    result[kX] = x * along_width(a, x) + at::tanh(skip);
    result[kSkip] = skip + x * along_width(b, x);
    return result;
  }
  at::Tensor a, b;
};
struct CloseSkip : SeededModule {
  explicit CloseSkip(bool is_dropped) : SeededModule({}), dropped(is_dropped) {}
  Tensors forward(const Tensors& list) {
    Tensors result = list;
    if (!dropped) result[kX] = list[kX] + list[kSkip];
    result[kSkip] = at::Tensor();
    return result;
  }
  bool dropped;
};

// A number for each row that is passed along with x; used, or dropped.
struct OpenAux : SeededModule {
  OpenAux(LayerSettings settings, std::int64_t width) : SeededModule(settings), w(weight("weight", {width}, 0.3)) {}
  Tensors forward(const Tensors& list) {
    Tensors result = list;
    result[kAux] = at::sigmoid((list[kX] * along_width(w, list[kX])).flatten(1).sum(1));
    return result;
  }
  at::Tensor w;
};
struct CloseAux : SeededModule {
  explicit CloseAux(bool is_dropped) : SeededModule({}), dropped(is_dropped) {}
  Tensors forward(const Tensors& list) {
    Tensors result = list;
    if (!dropped) result[kX] = list[kX] * (1 + along_rows(list[kAux], list[kX]));
    result[kAux] = at::Tensor();
    return result;
  }
  bool dropped;
};

}  // namespace rp::test
