#include "tests/random/random_model.h"

#include <algorithm>
#include <map>
#include <random>

#include "common/text.h"
#include "roundpipe/module.h"
#include "tests/coordinator/random_plan.h"
#include "tests/random/decoder_layers.h"
#include "tests/random/packed_layer.h"
#include "tests/random/random_layers.h"

namespace rp::test {

namespace {

// Models up to this seed have no decoder layers and no packed ones: they are the models of
// docs/design/reference-loop.md, whose gradients are known.
constexpr std::uint64_t kLastOfOldKinds = 520;

// The losses of all models. Arguments: label [B, ...] with the sizes of the last x, class [B] or
// [B, T], divisor.

at::Tensor square(const Tensors& outputs, const Tensors& arguments) {
  return (outputs[kX] - arguments[0]).square().sum() / arguments[2];
}

Tensors square_loss(const Tensors& outputs, const Tensors& arguments) { return {square(outputs, arguments)}; }

// The classes are the channels of an image, or the last dimension.
Tensors class_loss(const Tensors& outputs, const Tensors& arguments) {
  const at::Tensor x = outputs[kX].dim() == 4 ? outputs[kX].mean({2, 3}) : outputs[kX];
  const at::Tensor log_probabilities = at::log_softmax(x.reshape({-1, x.size(-1)}), -1);
  return {at::nll_loss(log_probabilities, arguments[1].flatten(), {}, at::Reduction::Sum) / arguments[2]};
}

// Returns several numbers, one of them without a gradient, computed from all outputs of the last
// layer.
Tensors several_losses(const Tensors& outputs, const Tensors& arguments) {
  Tensors numbers = {square(outputs, arguments), (outputs[kX].detach() > 0).sum().to(at::kDouble)};
  for (std::size_t i = 1; i < outputs.size(); ++i) {
    if (outputs[i].defined() && at::isFloatingType(outputs[i].scalar_type()))
      numbers.push_back(outputs[i].sin().sum() / arguments[2]);
  }
  return numbers;
}

Plan drawn_plan(Draw& draw, int num_layers) {
  std::mt19937 random(static_cast<unsigned>(draw.seed()));
  return random_plan(random, num_layers);
}

std::string sizes_text(const std::vector<std::int64_t>& sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text += cat(text.empty() ? "" : "x", size);
  return text;
}

}  // namespace

// Adds layers one by one and tracks what crosses the border behind the last one.
class ModelBuilder {
 public:
  // `has_packed`: true if there are packed layers. `has_decoders`: true if half of the layers on x are
  // decoder layers.
  ModelBuilder(RandomModel& result, Draw& draw, bool has_packed, bool has_decoders)
      : r_(result), draw_(draw), has_packed_(has_packed), has_decoders_(has_decoders) {}

  void build() {
    draw_front();
    const int num_layers = draw_.chance(15) ? draw_.between(1, 2) : draw_.between(3, 9);
    const int num_frozen_below = draw_.chance(25) ? draw_.between(1, 3) : 0;
    const bool all_frozen = draw_.chance(3);
    while (r_.model.num_layers() < num_layers) {
      freezes_ = all_frozen || r_.model.num_layers() < num_frozen_below;
      if (r_.has_list_ && draw_.chance(40)) {
        add_beside_x();
      } else {
        add_on_x();
      }
    }
    r_.label_sizes_ = sizes_;
    r_.is_image_ = sizes_.size() == 3;
    tie();
  }

 private:
  [[nodiscard]] std::int64_t width() const { return sizes_.size() == 3 ? sizes_.front() : sizes_.back(); }
  void set_width(std::int64_t width) { (sizes_.size() == 3 ? sizes_.front() : sizes_.back()) = width; }

  void draw_front() {
    const int form = has_decoders_ ? draw_.pick({1, 3}) : draw_.between(0, 3);
    // MXFP4 needs 32 columns.
    const std::int64_t width = has_decoders_ && draw_.chance(20) ? 32 : draw_.between(4, 12);
    if (form == 0) sizes_ = {width};
    if (form == 1 || form == 3) sizes_ = {draw_.between(2, has_decoders_ ? 9 : 5), width};
    if (form == 2) sizes_ = {draw_.between(2, 5), draw_.between(3, 4), 0};
    if (form == 2) sizes_[2] = sizes_[1];
    r_.has_list_ = draw_.chance(60);
    r_.front_sizes_ = sizes_;
    if (form == 3) {
      r_.num_ids_ = draw_.between(5, 40);
      r_.front_sizes_.pop_back();
      const bool keeps = r_.has_list_ && draw_.chance(50);
      freezes_ = draw_.chance(15);
      add<Embedding>(cat("embedding ", r_.num_ids_), settings(), r_.num_ids_, width, keeps);
      has_ids_ = keeps;
      return;
    }
    if (!r_.has_list_) return;
    has_ids_ = r_.ids_enter_ = draw_.chance(40);
    has_skip_ = r_.skip_enters_ = draw_.chance(30);
  }

  void describe(const std::string& text) { r_.description += cat(r_.model.num_layers() == 0 ? "" : ", ", text); }

  template <typename Module, typename... Arguments>
  void add(const std::string& text, Arguments... arguments) {
    describe(text);
    add_spec(layer<Module>(arguments...));
  }

  void add_spec(const LayerSpec& spec) {
    r_.model.add(spec);
    r_.reference.add(spec);
  }

  LayerSettings settings() {
    LayerSettings result{.seed = draw_.seed()};
    const int die = draw_.between(0, 99);
    if (freezes_ || die < 12) result.freeze = Freeze::kAll;
    else if (die < 22) result.freeze = Freeze::kFirst;
    return result;
  }

  static std::string frozen_text(const LayerSettings& settings) {
    return settings.freeze == Freeze::kAll ? " frozen" : settings.freeze == Freeze::kFirst ? " partly frozen" : "";
  }

  template <typename Module, typename... Arguments>
  void add_with_weights(const std::string& text, Arguments... arguments) {
    const LayerSettings drawn = settings();
    add<Module>(text + frozen_text(drawn), drawn, arguments...);
  }

  void add_decoder_layer() {
    DrawnDecoderLayer drawn = draw_decoder_layer(
        draw_, {.hidden = width(), .dtype = r_.model.dtype(), .is_frozen = freezes_ || draw_.chance(12)});
    r_.computes_in_fp64 = false;
    if (drawn.draws_numbers) r_.is_by_row = false;
    r_.is_quantised |= drawn.is_quantised;
    describe(drawn.text);
    r_.model.add(std::move(drawn.spec));
    r_.reference.add(std::move(drawn.expanded));
  }

  void add_on_x() {
    if (has_decoders_ && sizes_.size() == 2 && draw_.chance(50)) return add_decoder_layer();
    const bool is_image = sizes_.size() == 3;
    if (has_packed_ && !is_image && draw_.chance(8)) {
      describe(cat("packed ", width()));
      return add_spec(packed_dense(draw_.seed(), width(), r_.model.dtype()));
    }
    const auto act =
        draw_.pick({Activation::kTanh, Activation::kGelu, Activation::kSilu, Activation::kRelu, Activation::kNone});
    const int die = draw_.between(0, 99);
    if (die < 40) {
      const std::int64_t in = width();
      const std::int64_t out = has_skip_ || draw_.chance(50) ? in : draw_.between(4, 12);
      const bool residual = in == out && draw_.chance(50);
      set_width(out);
      const std::string text = cat(in, "-", out, residual ? " residual" : "");
      if (is_image) return add_with_weights<Convolution>("convolution " + text, in, out, act, residual);
      return add_with_weights<Dense>("dense " + text, in, out, act, residual);
    }
    if (die < 48) return add_with_weights<Norm>("norm", width());
    if (die < 55) return add_batch_norm();
    if (die < 62) {
      r_.is_by_row = false;
      return add<Dropout>("dropout", draw_.pick({0.1, 0.5}));
    }
    if (die < 68) return add<Activate>("activation", act);
    if (die < 74) return add<Centered>("centered");
    if (die < 77) return add_with_weights<Wall>("wall", width());
    if (die < 88 && !is_image) return add_with_weights<Experts>("experts", width(), std::int64_t{draw_.between(2, 3)});
    if (has_skip_) return;
    if (die < 92 && sizes_.size() > 1 && !has_ids_) {
      sizes_ = {width()};
      return add<Pool>("pool");
    }
    if (die < 96 && is_image) {
      sizes_ = {sizes_[0] * sizes_[1] * sizes_[2]};
      return add<Flatten>("flatten");
    }
  }

  void add_batch_norm() {
    if (sizes_.size() == 2 || r_.model.dtype() != at::kFloat) return;
    r_.is_by_row = false;
    if (sizes_.size() == 1) r_.min_rows_ = 2;
    if (draw_.chance(40)) return add_with_weights<RunningMean>("running mean", width());
    const bool affine = draw_.chance(70);
    add_with_weights<BatchNorm>(affine ? "batch norm" : "plain batch norm", width(), affine);
  }

  void add_beside_x() {
    const int die = draw_.between(0, 99);
    if (die < 25 && has_ids_) return add_with_weights<Lookup>("lookup", std::int64_t{draw_.between(3, 12)}, width());
    if (die < 70) {
      if (!has_skip_) {
        has_skip_ = true;
        return add<OpenSkip>("open skip");
      }
      if (draw_.chance(60)) return add_with_weights<MixSkip>("mix skip", width());
      has_skip_ = false;
      const bool drops = draw_.chance(20);
      return add<CloseSkip>(drops ? "drop skip" : "close skip", drops);
    }
    if (!has_aux_) {
      has_aux_ = true;
      return add_with_weights<OpenAux>("open aux", width());
    }
    has_aux_ = false;
    const bool drops = draw_.chance(40);
    add<CloseAux>(drops ? "drop aux" : "close aux", drops);
  }

  // Ties parameters of the model's dtype and of equal shape, both trained or both frozen, in different
  // layers.
  void tie() {
    using Kind = std::pair<std::vector<std::int64_t>, bool>;
    std::map<Kind, std::vector<ParameterUse>> alike;
    for (int index = 0; index < r_.model.num_layers(); ++index) {
      for (const NamedParameter& parameter : r_.model.layers()[index].make()->parameters()) {
        if (parameter.keeps_dtype) continue;
        alike[{parameter.value.sizes().vec(), parameter.value.requires_grad()}].push_back({index, parameter.name});
      }
    }
    for (const auto& [_, uses] : alike) {
      if (!draw_.chance(35)) continue;
      std::vector<ParameterUse> group = {uses.front()};
      for (const ParameterUse& use : uses) {
        if (use.layer != group.back().layer && draw_.chance(60)) group.push_back(use);
      }
      for (std::size_t i = 1; i < group.size(); ++i) {
        const ParameterUse& other = group[draw_.between(0, static_cast<int>(i) - 1)];
        r_.model.tie(other, group[i]);
        r_.reference.tie(other, group[i]);
        r_.description += cat(", ", other.layer, ".", other.parameter, " = ", group[i].layer, ".", group[i].parameter);
      }
    }
  }

  RandomModel& r_;
  Draw& draw_;
  const bool has_packed_;
  const bool has_decoders_;
  std::vector<std::int64_t> sizes_;  // sizes of x behind the last layer, without rows
  bool has_skip_ = false;
  bool has_ids_ = false;
  bool has_aux_ = false;
  bool freezes_ = false;  // whether the next layer is frozen
};

RandomModel::RandomModel(std::uint64_t model_seed) : seed(model_seed) {
  Draw draw(seed);
  model.set_dtype(draw.chance(20) ? at::kBFloat16 : at::kFloat);
  reference.set_dtype(model.dtype());
  const bool has_new_kinds = seed > kLastOfOldKinds;
  ModelBuilder(*this, draw, has_new_kinds, has_new_kinds && draw.chance(60)).build();
  is_trained_ = false;
  for (const LayerSpec& spec : model.layers()) {
    for (const NamedParameter& parameter : spec.make()->parameters()) is_trained_ |= parameter.value.requires_grad();
  }
  losses = {loss("square", square_loss), loss("class", class_loss), loss("several", several_losses)};
  options.num_microbatches = draw.between(1, 4);
  options.recompute_grain = draw.pick({RecomputeGrain::kStage, RecomputeGrain::kLayer});
  options.rounds_per_step = draw.pick({1, 1, 2, 3});
  options.asynchronous = draw.chance(40);
  options.seed = draw.seed();
  if (draw.chance(70)) options.plan = plan_text(drawn_plan(draw, model.num_layers()), model.num_layers());
  options.name = cat("model of seed ", seed);
  description = cat(at::toString(model.dtype()), " input ", sizes_text(front_sizes_), has_list_ ? " as a list" : "",
                    ": ", description, "; M ", options.num_microbatches, ", rounds ", options.rounds_per_step,
                    options.asynchronous ? ", asynchronous" : "",
                    options.recompute_grain == RecomputeGrain::kLayer ? ", by layer" : "", ", plan ",
                    options.plan.empty() ? "automatic" : options.plan);
}

namespace {

// Fills a call's tensors and options.
class CallDrawer {
 public:
  CallDrawer(const RandomModel& model, Draw& draw) : model_(model), draw_(draw) {}

  RandomCall draw(RandomCall::Kind kind, const std::vector<std::int64_t>& front, std::int64_t num_ids, int min_rows) {
    RandomCall call{.kind = kind};
    call.num_microbatches = model_.options.num_microbatches;
    if (draw_.chance(25)) {
      call.num_microbatches = draw_.between(1, 4);
      call.options.num_microbatches = call.num_microbatches;
    }
    rows_ = call.num_microbatches * min_rows + draw_.between(0, 9);
    call.inputs.push_back(num_ids > 0 ? draw_.integers(num_ids, with_rows(front))
                                      : number(draw_.normal(with_rows(front))));
    if (draw_.chance(30)) {
      call.options.plan = plan_text(drawn_plan(draw_, model_.model.num_layers()), model_.model.num_layers());
    }
    if (draw_.chance(30)) call.options.recompute_grain = draw_.pick({RecomputeGrain::kStage, RecomputeGrain::kLayer});
    return call;
  }

  void add_list(RandomCall& call, const std::vector<std::int64_t>& front, bool with_skip, bool with_ids) {
    std::vector<std::int64_t> ids = {rows_};
    if (front.size() == 2) ids.push_back(front[0]);
    call.inputs.push_back(with_skip ? number(draw_.normal(with_rows(front))) : at::Tensor());
    call.inputs.push_back(with_ids ? draw_.integers(50, ids) : at::Tensor());
    call.inputs.emplace_back();
  }

  void add_arguments(RandomCall& call, const std::vector<std::int64_t>& label, bool is_image) {
    std::vector<std::int64_t> classes = {rows_};
    if (label.size() == 2) classes.push_back(label[0]);
    call.arguments.push_back(number(draw_.normal(with_rows(label))));
    call.arguments.push_back(draw_.integers(is_image ? label.front() : label.back(), classes));
    call.arguments.push_back(number(at::scalar_tensor(static_cast<double>(rows_))));
    call.loss = draw_.between(0, static_cast<int>(model_.losses.size()) - 1);
    if (call.loss > 0) call.options.loss = model_.losses[call.loss].name;
  }

 private:
  [[nodiscard]] std::vector<std::int64_t> with_rows(std::vector<std::int64_t> sizes) const {
    sizes.insert(sizes.begin(), rows_);
    return sizes;
  }
  [[nodiscard]] at::Tensor number(const at::Tensor& value) const { return value.to(model_.model.dtype()); }

  const RandomModel& model_;
  Draw& draw_;
  std::int64_t rows_ = 0;
};

}  // namespace

std::vector<RandomCall> RandomModel::draw_calls() const {
  using Kind = RandomCall::Kind;
  Draw draw(seed + 1'000'003);
  CallDrawer drawer(*this, draw);
  std::vector<RandomCall> calls;
  const auto add = [&](Kind kind) {
    calls.push_back(drawer.draw(kind, front_sizes_, num_ids_, min_rows_));
    if (has_list_) drawer.add_list(calls.back(), front_sizes_, skip_enters_, ids_enter_);
    if (kind == Kind::kForwardBackward || kind == Kind::kOutside)
      drawer.add_arguments(calls.back(), label_sizes_, is_image_);
    if (kind == Kind::kForwardBackward) calls.back().options.return_outputs = draw.chance(30);
    if (kind == Kind::kOutside) calls.back().input_gradients = draw.chance(50);
  };
  const bool clips = draw.chance(40);
  const int num_steps = draw.between(3, 5);
  for (int step = 0; step < num_steps; ++step) {
    for (int round = draw.between(1, options.rounds_per_step); round > 0; --round) {
      if (draw.chance(15)) add(Kind::kEvaluate);
      if (draw.chance(10)) add(Kind::kDropped);
      add(is_trained_ && draw.chance(20) ? Kind::kOutside : Kind::kForwardBackward);
    }
    RandomCall& call = calls.emplace_back(RandomCall{.kind = Kind::kStep});
    call.rule = {.learning_rate = draw.pick({1e-3, 0.02}),
                 .beta1 = draw.pick({0.9, 0.4}),
                 .beta2 = draw.pick({0.999, 0.95}),
                 .weight_decay = draw.pick({0.0, 0.1})};
    if (step == 0) call.rule.beta1 = 0;
    if (step > 0 && clips) call.max_grad_norm = draw.pick({0.05, 1.0});
  }
  return calls;
}

}  // namespace rp::test
