#include <utility>

#include "common/text.h"
#include "train/settings/option_kinds.h"
#include "train/settings/options.h"
#include "train/settings/setting_reader.h"

namespace rp {
namespace {

constexpr Choices<LearningRateSchedule> kSchedules = {{"constant", LearningRateSchedule::kConstant},
                                                      {"linear", LearningRateSchedule::kLinear},
                                                      {"cosine", LearningRateSchedule::kCosine},
                                                      {"wsd", LearningRateSchedule::kWarmupStableDecay}};
constexpr Choices<FinalModel> kFinalModels = {{"last", FinalModel::kLast}, {"best", FinalModel::kBest}};
constexpr Choices<DType> kDTypes = {{"bf16", DType::kBFloat16}, {"fp16", DType::kFloat16}, {"fp32", DType::kFloat32}};
constexpr Choices<FrozenWeights> kFrozenWeights = {{"nf4", FrozenWeights::kNf4},
                                                   {"mxfp4", FrozenWeights::kMxfp4},
                                                   {"fp8", FrozenWeights::kFp8},
                                                   {"none", FrozenWeights::kNone}};
constexpr Choices<RecomputeGrain> kGrains = {{"stage", RecomputeGrain::kStage}, {"layer", RecomputeGrain::kLayer}};

constexpr std::int64_t kMaxSteps = 1'000'000'000;
constexpr double kMaxBeta = 0.999999;
constexpr int kMaxLoraRank = 65536;
constexpr std::int64_t kMaxBatch = 1'000'000;
constexpr std::int64_t kMaxLength = std::int64_t{1} << 24;

void read_max_steps(SettingReader& reader, TrainSettings& s) {
  // Without steps the model is written as it was read; an emulated device reads none.
  reader.read_number("max-steps", s.max_steps, reader.is_emulated() ? 1 : 0, kMaxSteps);
}
std::optional<SettingRow> show_max_steps(const TrainSettings& s) {
  const std::string steps = std::to_string(s.max_steps);
  return SettingRow{"max-steps", steps, s.epochs > 0 ? cat(steps, " (", text_of(s.epochs), " epochs)") : steps};
}

void read_router_bias_update_rate(SettingReader& reader, TrainSettings& s) {
  reader.read_number("router-bias-update-rate", s.router_bias_update_rate, 0.0, 1.0);
  s.parts.corrections = s.router_bias_update_rate > 0;
}
std::optional<SettingRow> show_router_bias_update_rate(const TrainSettings& s) {
  const std::string rate = text_of(s.router_bias_update_rate);
  return SettingRow{"router-bias-update-rate", rate,
                    s.parts.corrections ? rate : "0 (corrections stay as they are in the files)"};
}

void read_no_packing(SettingReader& reader, TrainSettings& s) {
  bool is_padded = !s.is_packed;
  reader.read_switch("no-packing", is_padded);
  s.is_packed = !is_padded;
}
std::optional<SettingRow> show_no_packing(const TrainSettings& s) {
  return SettingRow{"no-packing", text_of(!s.is_packed), text_of(!s.is_packed)};
}

void read_save_every(SettingReader& reader, TrainSettings& s) {
  reader.read_interval("save-every", s.save_every, kMaxSteps);
}
std::optional<SettingRow> show_save_every(const TrainSettings& s) {
  return SettingRow{"save-every", s.save_every.text(), s.save_every.text()};
}

void read_save_total_limit(SettingReader& reader, TrainSettings& s) {
  reader.read_number("save-total-limit", s.save_total_limit, 1, kMaxSteps);
}
std::optional<SettingRow> show_save_total_limit(const TrainSettings& s) {
  const std::string limit = std::to_string(s.num_kept_checkpoints());
  return s.num_kept_checkpoints() == 0 ? SettingRow{"save-total-limit", "", "all"}
                                       : SettingRow{"save-total-limit", limit, limit};
}

void read_resume(SettingReader& reader, TrainSettings& s) {
  if (reader.find("resume") == nullptr) return;
  std::filesystem::path path;
  reader.read_path("resume", path);
  s.resumes_newest_whole = path == "auto";
  if (!s.resumes_newest_whole) s.resume = path;
}
std::optional<SettingRow> show_resume(const TrainSettings& s) {
  if (!s.is_resumed()) return SettingRow{"resume", "", "no"};
  const std::string text = s.resumes_newest_whole ? "auto" : s.resume->string();
  return SettingRow{"resume", text, text};
}

void read_export(SettingReader& reader, TrainSettings& s) {
  if (reader.find("export") != nullptr) reader.read_path("export", s.exported.emplace());
}

}  // namespace

const std::vector<TrainOption>& train_options() {
  static const std::vector<TrainOption> options = {
      path_option(
          spec("model", "DIR", "",
               "Hugging Face directory of the model to start from; on an emulated device also preset:NAME",
               "Hugging Face directory: `config.json`, `*.safetensors`, tokenizer. Families: Llama, Qwen2 and "
               "2.5, Qwen3, Qwen3-MoE, Qwen3.5, GLM-4 with experts, GLM-4.7-Flash, DeepSeek V3, GPT-OSS, "
               "Mistral, Ministral 3, Gemma 3, Gemma 4, SmolLM3, OLMo 3; of multimodal models (`gemma3`, `gemma4`, "
               "`mistral3`, `qwen3_5`, `qwen3_5_moe`) the text part ([adding a model](adding-a-model.md)). The files "
               "may be "
               "[quantised](#quantised-frozen-weights). On [`--device "
               "sim:NAME`](emulated-device.md) its `config.json` is "
               "enough, and a preset (`preset:NAME`) will do"),
          &TrainSettings::model)
          .required(),
      path_option(spec("data", "FILE", "", "Token file, made by tools/prepare_data.py",
                       "Token file, made by [prepare_data.py](tools.md) with this model's tokenizer"),
                  &TrainSettings::data)
          .required(),
      path_option(spec("output", "DIR", "", "Where metrics, checkpoints and the trained model go; new or empty",
                       "New or empty directory for everything below; with `--resume` also the run's own"),
                  &TrainSettings::output)
          .required(),
      positive_option(
          spec("epochs", "X", "3", "How often the data are trained on; or give --max-steps",
               "How often the data are trained on, also parts of it (`0.5`). Steps are made of it: the sequences of X "
               "epochs divided by the batch size, rounded up. Not together with `--max-steps`"),
          &TrainSettings::epochs, 1e6)
          .not_kept(),
      custom_option(
          spec("max-steps", "N", "by --epochs", "Number of optimizer steps",
               "Optimizer steps of the whole run, those before a checkpoint included. 0 trains nothing and writes "
               "the model as it was read, which shows whether its files survive the way"),
          read_max_steps, show_max_steps),
      number_option(spec("batch-size", "B", "16384 tokens", "Sequences a step",
                         "Sequences a step; by default as many as make 16384 tokens, at most 16"),
                    &TrainSettings::batch_size, 1, kMaxBatch),
      number_option(
          spec("num-microbatches", "M", "at most 8", "Microbatches a round; changes the rounding of the result",
               "Parts that a round's sequences are split into, as equal as possible. More of them keep more workers "
               "busy; the number changes the rounding of the result, the number of workers does not"),
          &TrainSettings::num_microbatches, 1, kMaxBatch),
      number_option(spec("sequence-length", "T", "at most 2048",
                         "Tokens a sequence; by default 2048, or as many as the model has positions",
                         "Tokens a sequence; by default 2048, or as many as the model has positions. Longer chats are "
                         "cut, longer texts are cut into pieces"),
                    &TrainSettings::sequence_length, 1, kMaxLength),
      custom_option(
          spec("no-packing", "", "off",
               "One document a sequence, padded; by default several are packed into one, and kept apart",
               "One document a sequence, with padding behind it. By default several are [packed](#packing) into one"),
          read_no_packing, show_no_packing),
      positive_option(
          spec("learning-rate", "X", "by the model",
               "Learning rate of AdamW, at its peak; by default by the number of parameters",
               "Of AdamW, at its peak. By default 1e-5 for models of 7 billion parameters and more, and up to ten "
               "times as much for smaller ones, as 1 / sqrt(parameters); with LoRA 20 times as much. To one digit"),
          &TrainSettings::learning_rate, 10.0),
      number_option(spec("seed", "S", "1", "Seed of the order of the data"), &TrainSettings::seed, 0, UINT64_MAX),
      number_option(spec("rounds-per-step", "R", "1", "Rounds that a step's sequences are split over",
                         "The step's sequences are split evenly over R rounds of B/R; B must be a multiple of R and "
                         "B/R at least M. Takes 4 more bytes of host memory a parameter, and less for activations. On "
                         "processors a round for each worker is the fastest ([memory](memory.md) says what it takes)"),
                    &TrainSettings::rounds_per_step, 1, kMaxBatch),
      switch_option(spec("async", "", "off", "Update during the next round, which uses weights one step older",
                         "The update runs during the next round, which uses weights one step older. Takes 2 (bf16, "
                         "fp16) or 4 (fp32) more bytes a parameter"),
                    &TrainSettings::asynchronous),
      choice_option(spec("dtype", "bf16|fp16|fp32", "bf16",
                         "What the layers compute in; the master weights are fp32; fp16 scales the loss",
                         "What the layers compute in; master weights and moments are fp32. fp16 scales the loss "
                         "([optimizers](optimizers.md#fp16-loss-scaling)): a step whose gradient overflows is left "
                         "out, with a note"),
                    &TrainSettings::dtype, kDTypes),
      number_option(spec("max-grad-norm", "X", "1.0", "Clip the gradient to this global norm; 0: do not clip",
                         "The gradient is scaled down to this global norm; 0: never"),
                    &TrainSettings::max_grad_norm, 0.0, 1e9)
          .shown_where([](const TrainSettings& s) { return s.max_grad_norm == 0; }, "0 (no clipping)"),
      number_option(spec("weight-decay", "X", "0", "Weight decay of AdamW", "Decoupled; of matrices only"),
                    &TrainSettings::weight_decay, 0.0, 1.0),
      switch_option(spec("decay-all", "", "off", "Weight decay of norms and biases, too",
                         "Weight decay of norms, biases and other vectors, too"),
                    &TrainSettings::decays_all),
      number_option(spec("adam-beta1", "X", "0.9", "Decay of AdamW's mean of gradients"), &TrainSettings::beta1, 0.0,
                    kMaxBeta),
      number_option(spec("adam-beta2", "X", "0.999", "Decay of AdamW's mean of their squares"), &TrainSettings::beta2,
                    0.0, kMaxBeta),
      positive_option(spec("adam-epsilon", "X", "1e-8", "What AdamW adds to their root", "What is added to their root"),
                      &TrainSettings::epsilon, 1.0),
      number_option(spec("warmup-steps", "N", "3 % of the steps", "Steps in which the learning rate rises from 0",
                         "Steps in which the learning rate rises linearly from 0"),
                    &TrainSettings::warmup_steps, 0, kMaxSteps)
          .unset_where([](const TrainSettings& s) { return s.warmup_steps < 0; }, "3 % of the steps"),
      choice_option(
          spec("lr-schedule", "constant|linear|cosine|wsd", "cosine",
               "Learning rate after the warm-up; wsd is constant and falls in the last steps",
               "After the warm-up. wsd (warm-up, stable, decay) is constant and falls along a line in the last steps. "
               "What falls reaches its minimum one step behind the last one, so that the last step trains"),
          &TrainSettings::schedule, kSchedules),
      number_option(spec("min-learning-rate", "X", "0", "What the schedule falls to"),
                    &TrainSettings::min_learning_rate, 0.0, 10.0),
      number_option(spec("decay-steps", "N", "10 % of the steps", "The steps in which wsd falls"),
                    &TrainSettings::decay_steps, 0, kMaxSteps)
          .unset_where([](const TrainSettings& s) { return s.decay_steps < 0; }, "10 % of the steps")
          .only_where([](const TrainSettings& s) { return s.schedule == LearningRateSchedule::kWarmupStableDecay; }),
      number_option(spec("z-loss", "X", "0", "Train also X times the squared logarithm of the softmax's denominator",
                         "Train also X times the squared logarithm of the softmax's denominator, for each trained "
                         "token (1e-4 in PaLM, 1e-5 in OLMo 3): logits then do not drift"),
                    &TrainSettings::z_loss, 0.0, 1e3),
      number_option(spec("router-aux-loss", "X", "by the model",
                         "Train also X times the loss that balances experts; by default as config.json says",
                         "Train also X times the loss that [balances experts](#experts); by default "
                         "`router_aux_loss_coef` of a config.json that has `output_router_logits`, else 0"),
                    &TrainSettings::router_aux_loss, 0.0, 1e3)
          .unset_where([](const TrainSettings& s) { return !s.router_aux_loss; }, "by the model"),
      custom_option(
          spec("router-bias-update-rate", "R", "0",
               "Balance experts without a loss: move the routers' corrections by R a step (1e-3 in DeepSeek V3)",
               "[Balance experts without a loss](#experts): after each step, raise by R the routers' corrections of "
               "experts with fewer tokens than the mean, and lower the others (1e-3 in DeepSeek V3). 0 leaves the "
               "corrections as they are in the files, as transformers does. Only for models with such routers (GLM, "
               "DeepSeek V3), and not with LoRA"),
          read_router_bias_update_rate, show_router_bias_update_rate),
      path_option(spec("eval-data", "FILE", "none",
                       "Token file to evaluate on: loss and perplexity, before the first step and every so many",
                       "Token file to [evaluate](#evaluation) on"),
                  &TrainSettings::eval_data)
          .unset_where([](const TrainSettings& s) { return s.eval_data.empty(); }, "none"),
      number_option(spec("eval-share", "X", "0", "Hold out this share of the documents of --data, and evaluate on them",
                         "Hold out this share of the documents of `--data`, from 0 to 0.9, and evaluate on them. Which "
                         "ones depends on the seed alone"),
                    &TrainSettings::eval_share, 0.0, 0.9),
      number_option(spec("eval-every", "N", "10 times a run",
                         "Steps from one evaluation to the next; there is one at the end in any case",
                         "Steps from one evaluation to the next. There is one before the first step and one after the "
                         "last in any case"),
                    &TrainSettings::eval_every, 1, kMaxSteps)
          .unset_where([](const TrainSettings& s) { return s.eval_every == 0; }, "never"),
      number_option(spec("early-stop", "N", "never", "End after N evaluations without a better loss",
                         "End after N evaluations in a row without a better loss"),
                    &TrainSettings::early_stop, 1, kMaxSteps)
          .unset_where([](const TrainSettings& s) { return s.early_stop == 0; }, "never"),
      choice_option(spec("final-model", "last|best", "last",
                         "The model that is written: of the last step, or of the best evaluation",
                         "Which model is written at the end: that of the last step, or of the best evaluation"),
                    &TrainSettings::final_model, kFinalModels),
      number_option(spec("log-every", "N", "20 times a run", "On a terminal: steps from one kept line to the next",
                         "On a terminal: steps from one line that stays above the bar to the next"),
                    &TrainSettings::log_every, 1, kMaxSteps)
          .unset_where([](const TrainSettings& s) { return s.log_every == 0; }, "20 times a run"),
      custom_option(
          spec("save-every", "N|TIME", "15m",
               "Write a checkpoint every N steps, or 90s, 15m, 2h after the last one, and at the end; never: only "
               "by a signal",
               "Write a checkpoint every N steps, or that long after the last one (`90s`, `15m`, `2h`); `never`: "
               "only by a signal, or where the model cannot be written. The last step writes one, too, before the "
               "model. It is written while training goes on ([how](design/checkpoints.md)), which may take up to "
               "its size in free memory. One takes 12 bytes a trained parameter (with `--async` 2 or 4 more)"),
          read_save_every, show_save_every),
      custom_option(
          spec("save-total-limit", "N", "2 by time, else all", "Keep the newest N checkpoints",
               "Keep the newest N checkpoints and delete older ones of this run: once a newer one is on disk, or "
               "before if the disk is full and one stays. What a run kept by default is not deleted by one that "
               "goes on from it"),
          read_save_total_limit, show_save_total_limit),
      choice_option(spec("recompute-grain", "stage|layer", "by the device",
                         "What a backward computes again at once: layer takes less GPU memory, more host memory",
                         "What a backward stage computes again at once: all its layers, or one after the other. The "
                         "default is `layer` on processors and `stage` on GPUs. By layer a worker needs less memory "
                         "(stages may be longer) and the host more: the inputs of all layers. No result changes. "
                         "[rp-plan plan](planning.md) says which is faster"),
                    &TrainSettings::recompute_grain, kGrains)
          .unset_where([](const TrainSettings& s) { return !s.recompute_grain; }, "by the device"),
      number_option(
          spec("lora-rank", "R", "0",
               "Train pairs of rank R next to frozen weights (LoRA); final/ is then an adapter of PEFT",
               "[LoRA](#lora-and-frozen-parts): train a pair of matrices of rank R next to each frozen linear layer. "
               "`final/` is then an adapter of PEFT"),
          [](auto& s) -> auto& { return s.parts.lora.rank; }, 0, kMaxLoraRank)
          .shown_where([](const TrainSettings& s) { return s.parts.lora.rank == 0; }, "0 (no pairs)"),
      positive_option(
          spec("lora-alpha", "X", "the rank", "Pairs are multiplied by alpha / R"),
          [](auto& s) -> auto& { return s.parts.lora.alpha; }, 1e6)
          .for_pairs()
          .unset_where([](const TrainSettings& s) { return s.parts.lora.alpha == 0; }, "the rank"),
      text_option(
          spec("lora-targets", "NAMES", "all-linear",
               "Linear layers with pairs: all-linear, a list as q_proj,v_proj, or a regular expression",
               "Which linear layers have pairs: `all-linear` (those of attention and MLP, not the LM head), a list as "
               "`q_proj,v_proj`, or a regular expression that matches whole names, as `model.layers.7.mlp.up_proj`"),
          [](auto& s) -> auto& { return s.parts.lora.targets; })
          .for_pairs(),
      switch_option(spec("lora-experts", "", "off", "Experts and routers have pairs, too"),
                    [](auto& s) -> auto& { return s.parts.lora.on_experts; })
          .for_pairs(),
      number_option(
          spec("lora-dropout", "P", "0", "Dropout in front of the pairs"),
          [](auto& s) -> auto& { return s.parts.lora.dropout; }, 0.0, 0.99)
          .for_pairs(),
      switch_option(spec("rslora", "", "off", "Pairs are multiplied by alpha / sqrt(R)"),
                    [](auto& s) -> auto& { return s.parts.lora.is_rank_stabilised; })
          .for_pairs(),
      switch_option(spec("dora", "", "off", "Train the length of the weights' rows, too (DoRA)",
                         "Train the length of the weights' rows, too (DoRA); not at experts"),
                    [](auto& s) -> auto& { return s.parts.lora.is_dora; })
          .for_pairs(),
      path_option(spec("adapter", "DIR", "none", "Begin from this adapter of PEFT, with its rank, alpha and targets"),
                  [](auto& s) -> auto& { return s.parts.adapter; })
          .unset_where([](const TrainSettings& s) { return s.parts.adapter.empty(); }, "none"),
      text_option(spec("freeze", "REGEX", "nothing",
                       "Do not train weights whose names match, as model.layers.7.mlp.up_proj.weight",
                       "Do not train weights in whose names this regular expression is found, as in "
                       "`model.layers.7.mlp.up_proj.weight`"),
                  [](auto& s) -> auto& { return s.parts.freeze; })
          .unset_where([](const TrainSettings& s) { return s.parts.freeze.empty(); }, "nothing"),
      text_option(spec("train", "REGEX", "nothing", "Always train weights whose names match, also next to pairs",
                       "Always train the weights in whose names this regular expression is found, also next to pairs"),
                  [](auto& s) -> auto& { return s.parts.train; })
          .unset_where([](const TrainSettings& s) { return s.parts.train.empty(); }, "nothing"),
      choice_option(
          spec("quantize", "nf4|mxfp4|fp8|none", "as the files",
               "Keep frozen weights of linear layers in 4 or 8 bits in host memory and uploads",
               "[Quantise](#quantised-frozen-weights) the frozen weights of linear layers in host memory and "
               "uploads: 4 bits (`nf4`, `mxfp4`) or 8 (`fp8`). Without it they are quantised if they are in "
               "the files; `none`: never"),
          [](auto& s) -> auto& { return s.parts.frozen_weights; }, kFrozenWeights)
          .unset_where([](const TrainSettings& s) { return s.parts.frozen_weights == FrozenWeights::kAsInFiles; },
                       "as the files"),
      switch_option(spec("save-merged", "", "off", "Write merged/, too: the model with its adapter in the weights"),
                    &TrainSettings::saves_merged)
          .for_pairs(),
      custom_option(
          spec("resume", "DIR|auto", "no",
               "Go on from this checkpoint, or the newest one of this output directory; auto: from the newest whole "
               "one of --output, or begin",
               "Go on from a checkpoint; an output directory means its newest one. [auto](#ends): from the newest "
               "one of `--output` that is whole; without any, begin"),
          read_resume, show_resume),
      custom_option(
          spec("export", "CHECKPOINT", "no",
               "Train nothing: write the model of this checkpoint to --output, with the settings of its run",
               "Train nothing: write the model of this checkpoint (an output directory means its newest one) to "
               "`--output`. Needs `--model` and `--output`; all else is as in the run that saved it"),
          read_export, nullptr),
      custom_option(spec("config", "FILE.toml", "", "Read options from a file: batch-size = 8; the command line wins",
                         "See above"),
                    nullptr, nullptr),
      custom_option(spec("help", "", "", "Print this text", "Also `-h`"), nullptr, nullptr),
      custom_option(spec("version", "", "", "Print the version"), nullptr, nullptr),
  };
  return options;
}

std::vector<SettingRow> setting_rows(const TrainSettings& settings) {
  std::vector<SettingRow> rows;
  for (const TrainOption& option : train_options()) {
    if (!option.row) continue;
    if (std::optional<SettingRow> row = option.row(settings)) rows.push_back(std::move(*row));
  }
  return rows;
}

}  // namespace rp
