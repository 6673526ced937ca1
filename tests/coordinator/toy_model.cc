#include "tests/coordinator/toy_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "common/check.h"

namespace rp::test {

namespace {

using Vector = std::vector<float>;

float pseudo_random(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15ULL + b * 0xbf58476d1ce4e5b9ULL + c * 0x94d049bb133111ebULL + 1;
  x ^= x >> 31;
  x *= 0xd6e8feb86659fd93ULL;
  x ^= x >> 32;
  return static_cast<float>(x % 4096) / 2048.0F - 1.0F;
}

float load(const std::byte* data, DType dtype, std::size_t i) {
  if (dtype == DType::kFloat32) return reinterpret_cast<const float*>(data)[i];
  return float_from_bf16(reinterpret_cast<const std::uint16_t*>(data)[i]);
}

void store(std::byte* data, DType dtype, std::size_t i, float value) {
  if (dtype == DType::kFloat32) {
    reinterpret_cast<float*>(data)[i] = value;
  } else {
    reinterpret_cast<std::uint16_t*>(data)[i] = bf16_from_float(value);
  }
}

float rounded(DType dtype, float value) {
  return dtype == DType::kFloat32 ? value : float_from_bf16(bf16_from_float(value));
}

// The arithmetic of a layer, shared by reference and executor: the test is about what moves between
// layers.
Vector forward(const Vector& x, const Vector& w, const Vector& u) {
  Vector y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = 0.75F * x[i] + 0.25F * w[i] * x[i];
    if (!u.empty()) y[i] += 0.125F * u[i];
  }
  return y;
}

Vector backward(const Vector& x, const Vector& w, const Vector& gradient, float* w_sum, float* u_sum, bool is_first) {
  Vector result(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float gw = 0.25F * x[i] * gradient[i];
    w_sum[i] = is_first ? gw : w_sum[i] + gw;
    if (u_sum != nullptr) {
      const float gu = 0.125F * gradient[i];
      u_sum[i] = is_first ? gu : u_sum[i] + gu;
    }
    result[i] = 0.75F * gradient[i] + 0.25F * w[i] * gradient[i];
  }
  return result;
}

Vector to_vector(const TensorView& view) {
  Vector values(view.desc.bytes() / sizeof(float));
  std::memcpy(values.data(), view.data, view.desc.bytes());
  return values;
}

TensorView view_of(const Vector& values) {
  TensorView view;
  view.desc = {.dtype = DType::kFloat32, .rank = 1};
  view.desc.shape[0] = static_cast<std::int64_t>(values.size());
  view.data = reinterpret_cast<const std::byte*>(values.data());
  return view;
}

OutputBlock block_of(BlockKind kind, int index, Vector values) {
  auto owner = std::make_shared<Vector>(std::move(values));
  return {.kind = kind, .index = index, .tensors = {view_of(*owner)}, .owner = owner};
}

bool is_tied(const ToyConfig& config, int layer) {
  return config.tied && (layer == 0 || layer == config.num_layers - 1);
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const ToyConfig& config) {
  return out << config.num_layers << " layers, " << config.num_microbatches << " microbatches, "
             << config.rounds_per_step << " rounds a step, asynchronous " << config.asynchronous << ", tied "
             << config.tied << ", clipping " << config.max_grad_norm << ", loss scaling " << config.scales_loss << ", "
             << dtype_bytes(config.dtype) << "-byte weights";
}

ToyConfig random_toy_config(std::mt19937& random) {
  ToyConfig config;
  config.num_layers = draw(random, 2, 9);
  config.num_elements = 32 * draw(random, 1, 4);
  config.num_microbatches = draw(random, 1, 5);
  config.rounds_per_step = draw(random, 0, 2) == 0 ? draw(random, 2, 3) : 1;
  config.num_steps = draw(random, 2, 6);
  config.tied = draw(random, 0, 1) == 1;
  config.asynchronous = draw(random, 0, 1) == 1;
  config.dtype = draw(random, 0, 1) == 1 ? DType::kBFloat16 : DType::kFloat32;
  config.max_grad_norm = draw(random, 0, 2) == 0 ? 0.5 : 0.0;
  return config;
}

Catalogue toy_catalogue(const ToyConfig& config, NodePlace place, Reduce reduce) {
  std::vector<LayerRequest> layers;
  for (int i = 0; i < config.num_layers; ++i) {
    LayerRequest layer{.name = "toy", .arguments_hash = 0, .parameters = {}};
    layer.parameters.push_back({.name = "w", .dtype = config.dtype, .shape = {config.num_elements}});
    if (is_tied(config, i)) {
      layer.parameters.push_back({.name = "u", .dtype = config.dtype, .shape = {config.num_elements}, .tied_group = 0});
    }
    layers.push_back(layer);
  }
  return Catalogue::lay_out({{.name = "",
                              .layers = std::move(layers),
                              .num_copies = config.asynchronous ? 2U : 1U,
                              .with_sums = config.rounds_per_step > 1}},
                            place, reduce);
}

bool same_numbers(const std::vector<double>& a, const std::vector<double>& b) {
  return std::ranges::equal(a, b, [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

float toy_initial_weight(GroupId group, std::uint64_t element) { return pseudo_random(1, group.value(), element); }

Vector toy_input(const ToyConfig& config, int round, int microbatch) {
  // All microbatches have the same size: unequal sizes, as when a batch cannot be split evenly, are
  // handled by the executor.
  Vector values;
  for (int i = 0; i < config.num_elements; ++i) {
    values.push_back(
        pseudo_random(2, static_cast<std::uint64_t>(round * 64 + microbatch), static_cast<std::uint64_t>(i)));
  }
  return values;
}

Vector toy_label(const ToyConfig& config, int round, int microbatch) {
  Vector values;
  for (int i = 0; i < config.num_elements; ++i) {
    values.push_back(
        pseudo_random(3, static_cast<std::uint64_t>(round * 64 + microbatch), static_cast<std::uint64_t>(i)));
  }
  if (round / config.rounds_per_step + 1 == config.overflowing_step) values[0] = std::numeric_limits<float>::infinity();
  return values;
}

AdamW toy_rule() { return {.learning_rate = 0.02, .weight_decay = 0.01}; }

namespace {

// Masters, moments, and the working copies of all versions so far, by weight group.
struct ReferenceState {
  IndexedVector<GroupId, Vector> masters, m, v;
  IndexedVector<GroupId, std::vector<Vector>> versions;
};

GroupId group_of_use(const Catalogue& catalogue, int layer, std::size_t index) {
  return catalogue.uses()[catalogue.uses_of(CatalogueLayer(layer))[index]].group;
}

double run_round(const ToyConfig& config, const Catalogue& catalogue, const IndexedVector<GroupId, Vector>& weights,
                 int round, IndexedVector<UseId, Vector>& sums) {
  IndexedVector<UseId, Vector> accumulators(catalogue.uses().size(), Vector(config.num_elements));
  double total = 0;
  for (int m = 0; m < config.num_microbatches; ++m) {
    std::vector<Vector> x = {toy_input(config, round, m)};
    // uses_of() is sorted by group: layer 0 has the groups (w, u), the last layer (u, w).
    const auto w_group = [&](int layer) {
      return group_of_use(catalogue, layer, is_tied(config, layer) && layer > 0 ? 1 : 0);
    };
    const auto u_group = [&](int layer) { return group_of_use(catalogue, layer, layer > 0 ? 0 : 1); };
    for (int layer = 0; layer < config.num_layers; ++layer) {
      x.push_back(
          forward(x.back(), weights[w_group(layer)], is_tied(config, layer) ? weights[u_group(layer)] : Vector()));
    }
    Vector gradient = toy_label(config, round, m);
    double loss = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i)
      loss += static_cast<double>(x.back()[i]) * static_cast<double>(gradient[i]);
    total += loss;
    for (int layer = config.num_layers; layer-- > 0;) {
      const auto& uses = catalogue.uses_of(CatalogueLayer(layer));
      const UseId w_use = uses[is_tied(config, layer) && layer > 0 ? 1 : 0];
      float* u_sum = is_tied(config, layer) ? accumulators[uses[layer > 0 ? 0 : 1]].data() : nullptr;
      gradient = backward(x[layer], weights[w_group(layer)], gradient, accumulators[w_use].data(), u_sum, m == 0);
    }
  }
  for (const UseId use : sums.indices()) {
    for (std::size_t i = 0; i < sums[use].size(); ++i) sums[use][i] += rounded(config.dtype, accumulators[use][i]);
  }
  return total;
}

Vector working_copy(const ToyConfig& config, const Vector& master) {
  Vector copy = master;
  for (float& value : copy) value = rounded(config.dtype, value);
  return copy;
}

double sum_of_squares(const Vector& gradient) {
  ThreadTeam team(1);
  std::vector<double> sums(num_chunks(gradient.size()));
  const void* pointer = gradient.data();
  sum_squares_of_chunks({.uses = &pointer, .num_uses = 1, .dtype = DType::kFloat32, .num_elements = gradient.size()},
                        sums, team);
  return add_in_order(sums);
}

double norm_of(const Catalogue& catalogue, const IndexedVector<UseId, Vector>& sums) {
  double total = 0;
  for (const GroupId group : catalogue.weight_groups().indices()) {
    Vector gradient(sums[UseId(0)].size());
    for (const UseId use : catalogue.uses().indices()) {
      if (catalogue.uses()[use].group != group) continue;
      for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] += sums[use][i];
    }
    total += sum_of_squares(gradient);
  }
  return std::sqrt(total);
}

}  // namespace

ToyResult toy_reference(const ToyConfig& config) {
  const Catalogue catalogue = toy_catalogue(config);
  const auto n = static_cast<std::size_t>(config.num_elements);
  ReferenceState state;
  for (const GroupId group : catalogue.weight_groups().indices()) {
    Vector master(n);
    for (std::size_t i = 0; i < n; ++i) master[i] = toy_initial_weight(group, i);
    state.masters.push_back(master);
    state.m.push_back(Vector(n));
    state.v.push_back(Vector(n));
    state.versions.push_back({working_copy(config, master)});
  }
  ToyResult result;
  ThreadTeam team(1);
  int num_applied = 0;
  for (int step = 1; step <= config.num_steps; ++step) {
    const int version = std::max(0, step - (config.asynchronous ? 2 : 1));
    IndexedVector<GroupId, Vector> weights;
    for (const auto& versions : state.versions) weights.push_back(versions[version]);
    IndexedVector<UseId, Vector> sums(catalogue.uses().size(), Vector(n));
    for (int r = 0; r < config.rounds_per_step; ++r) {
      const int round = (step - 1) * config.rounds_per_step + r;
      result.losses.push_back(run_round(config, catalogue, weights, round, sums));
    }
    result.norms.push_back(norm_of(catalogue, sums));
    if (config.max_grad_norm > 0 && !std::isfinite(result.norms.back())) {  // the step is skipped
      for (auto& versions : state.versions) versions.push_back(versions.back());
      continue;
    }
    UpdateStep coefficients = update_step_of(toy_rule(), ++num_applied);
    if (config.max_grad_norm > 0 && result.norms.back() > config.max_grad_norm) {
      coefficients.gradient_scale = static_cast<float>(config.max_grad_norm / (result.norms.back() + 1e-6));
    }
    for (const GroupId group : catalogue.weight_groups().indices()) {
      std::vector<const void*> uses;
      for (const UseId use : catalogue.uses().indices()) {
        if (catalogue.uses()[use].group == group) uses.push_back(sums[use].data());
      }
      Vector& master = state.masters[group];
      update_group({.old_master = master.data(),
                    .master = master.data(),
                    .m = state.m[group].data(),
                    .v = state.v[group].data(),
                    .num_elements = n},
                   {.uses = uses.data(), .num_uses = uses.size(), .dtype = DType::kFloat32, .num_elements = n},
                   coefficients, team);
      state.versions[group].push_back(working_copy(config, master));
    }
  }
  for (const Vector& master : state.masters) result.masters.insert(result.masters.end(), master.begin(), master.end());
  return result;
}

void ToyExecutor::begin(const StageTask& task) {
  layers_.assign(static_cast<std::size_t>(config_.num_layers), {});
  for (const UseMemory& memory : task.uses) {
    const UseRecord& use = catalogue_.uses()[memory.use];
    LayerMemory& layer = layers_[use.layer.value()];
    const bool is_u = catalogue_.weight_groups()[use.group].num_uses > 1;
    (is_u ? layer.tied : layer.weight) = memory.weights;
    (is_u ? layer.tied_sum : layer.weight_sum) = memory.accumulator;
  }
}

std::vector<float> ToyExecutor::values_of(const std::byte* weights) const {
  Vector values;
  for (int i = 0; weights != nullptr && i < config_.num_elements; ++i) {
    values.push_back(load(weights, config_.dtype, static_cast<std::size_t>(i)));
  }
  return values;
}

std::vector<std::vector<float>> ToyExecutor::run_forward(const StageTask& task, int microbatch,
                                                         const MicrobatchInputs& inputs) const {
  const Command& command = *task.command;
  std::vector<Vector> x = {to_vector(inputs.tensors(BlockKind::kActivation, command.first_layer).at(0))};
  for (int layer = command.first_layer; layer < command.end_layer; ++layer) {
    if (layer == config_.failing_layer && command.step == 2 && microbatch == config_.num_microbatches - 1) {
      throw LayerFailure(layer, "the toy layer fails", config_.failure_code);
    }
    const LayerMemory& memory = layers_[layer];
    x.push_back(forward(x.back(), values_of(memory.weight), values_of(memory.tied)));
  }
  return x;
}

void ToyExecutor::recompute(const StageTask& task, int microbatch, const MicrobatchInputs& inputs) {
  recomputed_ = run_forward(task, microbatch, inputs);
}

void ToyExecutor::run(const StageTask& task, int microbatch, const MicrobatchInputs& inputs,
                      MicrobatchOutputs& outputs) {
  const Command& command = *task.command;
  const std::vector<Vector> x =
      command.phase == Phase::kBackward ? std::move(recomputed_) : run_forward(task, microbatch, inputs);
  if (command.runs_loss()) {
    const Vector arguments = to_vector(inputs.tensors(BlockKind::kArguments, 0).at(0));
    outputs.losses.num = 1;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      outputs.losses.values[0] += static_cast<double>(x.back()[i]) * static_cast<double>(arguments[i]);
    }
  }
  if (command.phase == Phase::kForward) {
    for (int layer = command.first_layer; layer < command.end_layer; ++layer) {
      if (!command.saves(layer + 1)) continue;
      outputs.blocks.push_back(
          block_of(BlockKind::kActivation, layer + 1, x[static_cast<std::size_t>(layer - command.first_layer) + 1]));
    }
    return;
  }
  const bool fused = command.phase == Phase::kFused;
  Vector gradient = to_vector(fused ? inputs.tensors(BlockKind::kArguments, 0).at(0)
                                    : inputs.tensors(BlockKind::kGradient, command.end_layer).at(0));
  if (fused) {
    RP_ASSERT(config_.scales_loss == (task.loss_scale != 1));
    for (float& value : gradient) value *= static_cast<float>(task.loss_scale);
  }
  for (int layer = command.end_layer; layer-- > command.first_layer;) {
    const LayerMemory& memory = layers_[layer];
    gradient = backward(x[layer - command.first_layer], values_of(memory.weight), gradient, memory.weight_sum,
                        memory.tied_sum, microbatch == 0);
  }
  if (command.wants_input_gradient()) {
    outputs.blocks.push_back(block_of(BlockKind::kGradient, command.first_layer, gradient));
  }
}

void ToyExecutor::end(const StageTask& task, TaskTotals& totals) {
  const auto n = static_cast<std::size_t>(config_.num_elements);
  totals.square_sums.clear();
  totals.layer_times.assign(static_cast<std::size_t>(task.command->end_layer - task.command->first_layer),
                            {1000, 0, 2000});
  const std::uint64_t bytes = static_cast<std::uint64_t>(config_.num_elements) * sizeof(float);
  totals.layer_memory.assign(totals.layer_times.size(),
                             {.input_bytes = bytes, .output_bytes = bytes, .saved_bytes = bytes});
  for (const UseMemory& memory : task.uses) {
    if (memory.accumulator == nullptr) {
      totals.square_sums.push_back(0);
      continue;
    }
    Vector gradient(n);
    for (std::size_t i = 0; i < n; ++i) {
      store(memory.gradient, config_.dtype, i, memory.accumulator[i]);
      gradient[i] = load(memory.gradient, config_.dtype, i);
    }
    totals.square_sums.push_back(sum_of_squares(gradient));
  }
}

}  // namespace rp::test
