#include "train/settings/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/common/documented_options.h"
#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"
#include "train/settings/options.h"

namespace rp {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

// Returns a valid command line, followed by `more`.
Words command(const Words& more = {}) {
  Words words = {"--model",
                 "m",
                 "--data",
                 "d",
                 "--output",
                 "o",
                 "--max-steps",
                 "60",
                 "--batch-size",
                 "8",
                 "--num-microbatches",
                 "4",
                 "--sequence-length",
                 "256",
                 "--learning-rate",
                 "1e-4",
                 "--seed",
                 "7"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Returns command(more) without the named option, so that the option can be given in another form.
Words command_without(const std::string& option, const Words& more) {
  Words words = command();
  const auto at = std::find(words.begin(), words.end(), option);
  words.erase(at, at + 2);
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

void expect_usage(const std::vector<std::string>& parts, const Words& words) {
  expect_error(ExitCode::kUsage, parts, [&] { (void)parse_train_command(words); });
}

TEST(Settings, WhatIsNotGivenHasItsDocumentedDefault) {
  const TrainSettings s = parse_train_command(command()).settings;
  EXPECT_EQ(s.max_steps, 60);
  EXPECT_EQ(s.learning_rate, 1e-4);
  EXPECT_EQ(s.seed, 7U);
  EXPECT_EQ(s.rounds_per_step, 1);
  EXPECT_FALSE(s.asynchronous);
  EXPECT_EQ(s.dtype, DType::kBFloat16);
  EXPECT_EQ(s.max_grad_norm, 1.0);
  EXPECT_EQ(s.weight_decay, 0.0);
  EXPECT_EQ(s.epochs, 0);
  EXPECT_TRUE(s.is_packed);
  EXPECT_EQ(s.warmup_steps, -1);
  EXPECT_EQ(s.schedule, LearningRateSchedule::kCosine);
  EXPECT_EQ(s.min_learning_rate, 0);
  EXPECT_FALSE(s.evaluates());
  EXPECT_FALSE(s.decays_all);
  EXPECT_EQ(s.final_model, FinalModel::kLast);
  EXPECT_EQ(s.save_every.text(), "15m");
  EXPECT_EQ(s.num_kept_checkpoints(), 2);
  EXPECT_FALSE(s.recompute_grain);
  EXPECT_FALSE(s.resume);
}

TEST(Settings, TheDtypeIsOneOfThree) {
  EXPECT_EQ(parse_train_command(command({"--dtype", "fp16"})).settings.dtype, DType::kFloat16);
  EXPECT_EQ(parse_train_command(command({"--dtype", "bf16"})).settings.dtype, DType::kBFloat16);
}

TEST(Settings, EveryOptionReachesItsSetting) {
  const TrainSettings s =
      parse_train_command(command({"--rounds-per-step", "2", "--async", "--dtype", "fp32", "--max-grad-norm=0",
                                   "--weight-decay", "0.1", "--warmup-steps", "5", "--lr-schedule", "cosine",
                                   "--save-every", "20", "--recompute-grain", "layer", "--resume", "r"}))
          .settings;
  EXPECT_EQ(s.sequences_of_round(), 4);
  EXPECT_TRUE(s.asynchronous);
  EXPECT_EQ(s.dtype, DType::kFloat32);
  EXPECT_EQ(s.max_grad_norm, 0.0);
  EXPECT_EQ(s.weight_decay, 0.1);
  EXPECT_EQ(s.warmup_steps, 5);
  EXPECT_EQ(s.schedule, LearningRateSchedule::kCosine);
  EXPECT_EQ(s.save_every.steps, 20);
  EXPECT_EQ(s.num_kept_checkpoints(), 0) << "all";
  EXPECT_EQ(s.recompute_grain, RecomputeGrain::kLayer);
  EXPECT_EQ(*s.resume, "r");
}

TEST(Settings, AllProblemsAreReportedTogether) {
  expect_usage({"4 problems:", "--max-steps must be a whole number from 0", "(got 'ten')",
                "--dtype must be bf16 or fp16 or fp32", "did you mean fp32?", "--num-microbatches",
                "unknown option --batchsize (did you mean --batch-size?)"},
               {"--model",
                "m",
                "--data",
                "d",
                "--output",
                "o",
                "--max-steps",
                "ten",
                "--batch-size",
                "8",
                "--num-microbatches",
                "0",
                "--sequence-length",
                "256",
                "--learning-rate",
                "1e-4",
                "--seed",
                "7",
                "--dtype",
                "fp3",
                "--batchsize",
                "9"});
}

TEST(Settings, AnOptionOfTheLauncherIsRefusedWithItsRightPlace) {
  expect_usage({"--workers is an option of rp-launch: rp-launch --workers ... train"}, command({"--workers", "2"}));
}

TEST(Settings, MissingOptionsAreOneLine) {
  expect_usage({"missing: --model DIR, --data FILE, --output DIR; train --help"}, {});
  expect_usage({"missing: --data FILE; train --help"}, command_without("--data", {}));
}

TEST(Settings, ModelDataAndOutputAreEnough) {
  const TrainSettings s = parse_train_command({"--model", "m", "--data", "d", "--output", "o"}).settings;
  EXPECT_EQ(s.epochs, 3);
  EXPECT_EQ(s.seed, 1U);
  EXPECT_EQ(s.batch_size, 0) << "by the model";
  EXPECT_EQ(s.learning_rate, 0) << "by the model";
}

TEST(Settings, EpochsAndStepsAreGivenOneAtATime) {
  EXPECT_EQ(parse_train_command(command_without("--max-steps", {"--epochs", "1.5"})).settings.epochs, 1.5);
  expect_usage({"--epochs and --max-steps both say how long the run is"}, command({"--epochs", "2"}));
}

TEST(Settings, OfTheScheduleAreRead) {
  const TrainSettings s = parse_train_command(command({"--lr-schedule", "wsd", "--decay-steps", "12",
                                                       "--min-learning-rate", "1e-6", "--warmup-steps", "5"}))
                              .settings;
  const LearningRate rate = s.learning_rate_curve();
  EXPECT_EQ(rate.schedule, LearningRateSchedule::kWarmupStableDecay);
  EXPECT_EQ(rate.at(48), 1e-4);
  EXPECT_LT(rate.at(50), 1e-4);
  EXPECT_EQ(rate.at(61), 1e-6);
  expect_usage({"--min-learning-rate 0.1 is above --learning-rate 0.0001"}, command({"--min-learning-rate", "0.1"}));
  expect_usage({"--decay-steps is for --lr-schedule wsd"}, command({"--decay-steps", "3"}));
}

TEST(Settings, OfTheOptimizerAreRead) {
  const TrainSettings s = parse_train_command(command({"--adam-beta1", "0.8", "--adam-beta2", "0.95", "--adam-epsilon",
                                                       "1e-6", "--decay-all"}))
                              .settings;
  EXPECT_EQ(s.beta1, 0.8);
  EXPECT_EQ(s.beta2, 0.95);
  EXPECT_EQ(s.epsilon, 1e-6);
  EXPECT_TRUE(s.decays_all);
  expect_usage({"--adam-beta1 must be a number from 0"}, command({"--adam-beta1", "1"}));
  expect_usage({"--adam-epsilon must be above 0"}, command({"--adam-epsilon", "0"}));
}

TEST(Settings, OfEvaluationsNeedDataToEvaluateOn) {
  const TrainSettings s = parse_train_command(command({"--eval-share", "0.05", "--eval-every", "7", "--early-stop", "3",
                                                       "--final-model", "best"}))
                              .settings;
  EXPECT_TRUE(s.evaluates());
  EXPECT_EQ(s.eval_every, 7);
  EXPECT_EQ(s.early_stop, 3);
  EXPECT_EQ(s.final_model, FinalModel::kBest);
  EXPECT_TRUE(parse_train_command(command({"--eval-data", "e"})).settings.evaluates());
  expect_usage({"--eval-data and --eval-share both say"}, command({"--eval-data", "e", "--eval-share", "0.1"}));
  expect_usage({"--eval-every needs data to evaluate on"}, command({"--eval-every", "5"}));
  expect_usage({"--early-stop needs data to evaluate on"}, command({"--early-stop", "5"}));
  expect_usage({"--final-model best needs data to evaluate on"}, command({"--final-model", "best"}));
  expect_usage({"--final-model best needs checkpoints"},
               command({"--final-model", "best", "--eval-share", "0.1", "--save-every", "never"}));
}

TEST(Settings, ABatchMustSplitIntoRoundsAndMicrobatches) {
  expect_usage(
      {"--batch-size 3 is too small for --num-microbatches 4", "raise the batch size to 4", "microbatches to 3"},
      command_without("--batch-size", {"--batch-size", "3"}));
  expect_usage({"--batch-size 8 does not split evenly over --rounds-per-step 3", "such as 9"},
               command({"--rounds-per-step", "3"}));
  expect_usage({"(a round has 2 of them)", "raise the batch size to 16"}, command({"--rounds-per-step", "4"}));
}

TEST(Settings, NumbersOutOfTheirRangeAreRefused) {
  expect_usage({"--learning-rate must be above 0"}, command_without("--learning-rate", {"--learning-rate", "0"}));
  expect_usage({"--learning-rate must be a number from 0 to 10 (got 'nan')"},
               command_without("--learning-rate", {"--learning-rate", "nan"}));
  expect_usage({"--seed must be a whole number", "(got '-1')"}, command_without("--seed", {"--seed", "-1"}));
  expect_usage({"--weight-decay must be a number from 0 to 1"}, command({"--weight-decay", "2"}));
  expect_usage({"--warmup-steps 61 is more than --max-steps 60"}, command({"--warmup-steps", "61"}));
  for (const char* wrong : {"0", "-1", "2.5", "15 m", "m", "1d", "1000000001", "300000h", "9223372036854775807h", ""}) {
    expect_usage({"--save-every must be"}, command({"--save-every", wrong}));
  }
  expect_usage({"--save-total-limit must be"}, command({"--save-total-limit", "0"}));
  Words large = command_without("--sequence-length", {"--sequence-length", "16777216"});
  *(std::find(large.begin(), large.end(), "--batch-size") + 1) = "1000";
  expect_usage({"--batch-size 1000 times --sequence-length 16777216 is 16777216000 tokens a step"}, large);
}

TEST(Settings, CheckpointsAreWrittenByStepsByTimeOrNever) {
  const auto read = [](const char* text) { return parse_train_command(command({"--save-every", text})).settings; };
  for (const char* text : {"200", "90s", "15m", "2h", "never"}) EXPECT_EQ(read(text).save_every.text(), text);
  EXPECT_EQ(read("120s").save_every.text(), "2m");
  EXPECT_EQ(read("60m").save_every.seconds, 3600);
  EXPECT_EQ(read("60m").num_kept_checkpoints(), 2);
  EXPECT_FALSE(read("never").save_every.is_on());
  EXPECT_EQ(
      parse_train_command(command({"--save-every", "5", "--save-total-limit", "3"})).settings.num_kept_checkpoints(),
      3);
}

TEST(Settings, ARunGoesOnFromADirectoryOrFindsOneItself) {
  EXPECT_FALSE(parse_train_command(command()).settings.is_resumed());
  const TrainSettings automatic = parse_train_command(command({"--resume", "auto"})).settings;
  EXPECT_TRUE(automatic.resumes_newest_whole);
  EXPECT_FALSE(automatic.resume);
  EXPECT_EQ(*parse_train_command(command({"--resume", "./auto"})).settings.resume, "./auto");
}

TEST(Settings, AnExportTakesThoseOfTheCheckpoint) {
  const auto saved = [](const std::filesystem::path& checkpoint) -> std::map<std::string, std::string> {
    EXPECT_EQ(checkpoint, "run/checkpoint-20");
    std::map<std::string, std::string> values;
    for (const SettingRow& row : setting_rows(parse_train_command(command({"--rounds-per-step", "2"})).settings))
      values[row.name] = row.value;
    for (const char* name : {"model", "data", "output", "resume", "save-every"}) values.erase(name);
    return values;
  };
  const Words words = {"--model", "m", "--output", "o", "--export", "run/checkpoint-20"};
  const TrainSettings s = parse_train_command(words, false, saved).settings;
  EXPECT_EQ(*s.exported, "run/checkpoint-20");
  EXPECT_FALSE(s.is_resumed());
  EXPECT_EQ(s.rounds_per_step, 2);
  EXPECT_EQ(s.sequence_length, 256);
  Words both = words;
  both.insert(both.end(), {"--resume", "auto"});
  expect_error(ExitCode::kUsage, {"--export and --resume are both given"},
               [&] { (void)parse_train_command(both, false, saved); });
  expect_error(ExitCode::kUsage, {"missing: --model DIR, --output DIR"}, [&] {
    (void)parse_train_command({"--export", "run/checkpoint-20"}, false, saved);
  });
}

TEST(Settings, ARunMayHaveNoStepsButNotOnAnEmulatedDevice) {
  const Words words = command_without(
      "--max-steps", {"--max-steps", "0", "--warmup-steps", "5", "--lr-schedule", "cosine", "--save-every", "2"});
  EXPECT_EQ(parse_train_command(words).settings.max_steps, 0);
  expect_error(ExitCode::kUsage, {"--max-steps must be a whole number from 1"}, [] {
    (void)parse_train_command({"--model", "preset:qwen3-1.7b", "--max-steps", "0"}, true);
  });
}

TEST(Settings, WordsThatBelongToNothingAndRepeatedOptionsAreRefused) {
  expect_usage({"'model' belongs to no option"}, command({"model"}));
  expect_usage({"--seed is given more than once"}, command({"--seed", "8"}));
  expect_usage({"save-every"}, command({"--save-every"}));
  expect_usage({"unknown option -x"}, command({"-x"}));
}

TEST(Settings, HelpAndVersionWinOverProblems) {
  EXPECT_EQ(parse_train_command({"--help"}).action, TrainCommand::Action::kHelp);
  EXPECT_EQ(parse_train_command({"-h"}).action, TrainCommand::Action::kHelp);
  EXPECT_EQ(parse_train_command({"--nonsense", "--version"}).action, TrainCommand::Action::kVersion);
  for (const TrainOption& option : train_options())
    EXPECT_THAT(train_help(), HasSubstr(std::string("--") + option.name()));
}

TEST(Settings, TheManualHasTheTableOfTheirOptions) { expect_documented("train.md", option_rows(train_option_specs())); }

TEST(ConfigFile, GivesWhatTheCommandLineDoesNot) {
  const TempDirectory directory;
  const auto file =
      directory.write("run.toml", "learning-rate = 2e-5\nasync = true\nbatch-size = 16\ndtype = \"fp32\"\n");
  const TrainSettings s = parse_train_command(command_without("--learning-rate", {"--config", file.string()})).settings;
  EXPECT_EQ(s.learning_rate, 2e-5);
  EXPECT_TRUE(s.asynchronous);
  EXPECT_EQ(s.dtype, DType::kFloat32);
  EXPECT_EQ(s.batch_size, 8) << "the command line wins";
}

TEST(ConfigFile, ProblemsNameFileAndLineAndAreBadInput) {
  const TempDirectory directory;
  const auto refuse = [&](const std::string& text, const std::vector<std::string>& parts) {
    const auto file = directory.write("run.toml", text);
    expect_refusal(parts, [&] { (void)parse_train_command(command({"--config", file.string()})); });
  };
  refuse("\nsave_every = 3\n", {"run.toml:2: save_every: no such setting (did you mean save-every?)"});
  refuse("weight-decay = -1\n", {"run.toml:1: weight-decay must be a number from 0 to 1 (got '-1')"});
  refuse("save-every = 2.5\n", {"run.toml:1: save-every must be a number of steps, a time as", "(got '2.5')"});
  refuse("async = 1\n", {"run.toml:1: async must be true or false"});
  refuse("save-every = [1]\n", {"run.toml:1: save-every must be a number, a string or true / false"});
  refuse("config = \"x\"\n", {"no such setting"});
  refuse("x = = 1\n", {"run.toml:1:"});
  refuse("weight-decay = 3\nlr-schedule = \"cosin\"\n", {"2 problems", "run.toml:2", "did you mean cosine?"});
  expect_refusal({"nowhere.toml"}, [&] { (void)parse_train_command(command({"--config", "nowhere.toml"})); });
}

TEST(ConfigFile, AProblemBetweenFileAndCommandLineIsOneOfUsage) {
  const TempDirectory directory;
  const auto file = directory.write("run.toml", "rounds-per-step = 3\n");
  expect_usage({"--batch-size 8 does not split evenly over", "run.toml:1: rounds-per-step 3"},
               command({"--config", file.string()}));
}

TEST(Settings, TheHeaderDocumentsEveryOneOfThem) {
  const auto rows = setting_rows(parse_train_command(command()).settings);
  std::size_t num_settings = 0;
  for (const TrainOption& option : train_options()) {
    const std::string name = option.name();
    if (name == "epochs" || name == "decay-steps" || name == "export" || name == "config" || name == "help" ||
        name == "version")
      continue;
    ASSERT_LT(num_settings, rows.size());
    EXPECT_EQ(rows[num_settings++].name, name);
  }
  EXPECT_EQ(rows.size(), num_settings);
}

TEST(Settings, OfASimulatedRunRequireAModelOnly) {
  const TrainSettings by_default = parse_train_command({"--model", "preset:qwen3-32b"}, true).settings;
  EXPECT_EQ(by_default.batch_size, 128);
  EXPECT_EQ(by_default.sequence_length, 2048);
  EXPECT_EQ(by_default.num_microbatches, 16);
  EXPECT_EQ(by_default.max_steps, 12);
  EXPECT_EQ(parse_train_command(command({"--lora-rank", "8"}), true).settings.batch_size, 8)
      << "the command line of a real run is one of these, too";
  expect_error(ExitCode::kUsage, {"missing: --model DIR;"}, [] {
    (void)parse_train_command({"--max-steps", "2"}, true);
  });
  expect_usage({"--model preset:qwen3-32b", "runs on an emulated device only", "else give the folder of a model"},
               {"--model", "preset:qwen3-32b"});
}

TEST(Settings, OfLoraAreRead) {
  const TrainSettings settings =
      parse_train_command(command({"--lora-rank", "8", "--lora-alpha", "16", "--lora-targets", "q_proj,v_proj",
                                   "--lora-experts", "--lora-dropout", "0.05", "--rslora", "--dora", "--freeze", "norm",
                                   "--train", "embed_tokens", "--save-merged"}))
          .settings;
  const LoraSettings lora{.rank = 8,
                          .alpha = 16,
                          .dropout = 0.05,
                          .is_rank_stabilised = true,
                          .is_dora = true,
                          .targets = "q_proj,v_proj",
                          .on_experts = true};
  EXPECT_EQ(settings.parts, (TrainedParts{.lora = lora, .freeze = "norm", .train = "embed_tokens"}));
  EXPECT_TRUE(settings.saves_merged);
  EXPECT_EQ(parse_train_command(command({"--freeze", "norm"})).settings.parts.lora.rank, 0)
      << "parts are frozen without pairs, too";
}

TEST(Settings, ARateOfCorrectionsTrainsThemAndIsNotForLora) {
  EXPECT_FALSE(parse_train_command(command()).settings.parts.corrections);
  const TrainSettings s = parse_train_command(command({"--router-bias-update-rate", "1e-3"})).settings;
  EXPECT_EQ(s.router_bias_update_rate, 1e-3);
  EXPECT_TRUE(s.parts.corrections);
  for (const char* rate : {"-0.001", "nan", "inf", "x"})
    expect_usage({"--router-bias-update-rate", "must be a number from 0 to 1"},
                 command({std::string("--router-bias-update-rate=") + rate}));
  for (const Words& pairs : {Words{"--lora-rank", "8"}, Words{"--adapter", "first"}}) {
    Words words = command({"--router-bias-update-rate", "1e-3"});
    words.insert(words.end(), pairs.begin(), pairs.end());
    expect_usage({"--router-bias-update-rate 0.001", "cannot be combined with LoRA", "no place"}, words);
  }
}

TEST(Settings, OfLoraBelongTogether) {
  for (const char* name : {"--rslora", "--dora", "--lora-experts"})
    expect_usage({name, "is for LoRA", "--lora-rank R"}, command({name}));
  expect_usage({"--lora-alpha is for LoRA"}, command({"--lora-alpha", "16"}));
  expect_usage({"--save-merged is for LoRA", "final/ is the whole model"}, command({"--save-merged"}));
  expect_usage({"--lora-rank 8 cannot be combined with --adapter first", "sets that itself"},
               command({"--adapter", "first", "--lora-rank", "8"}));
  expect_usage({"--lora-dropout must be a number from 0 to 0.99"},
               command({"--lora-rank", "8", "--lora-dropout", "1"}));
  expect_usage({"--lora-alpha must be above 0"}, command({"--lora-rank", "8", "--lora-alpha", "0"}));
  expect_usage({"--freeze is empty", "leave it out"}, command({"--freeze", ""}));
  EXPECT_EQ(parse_train_command(command({"--adapter", "first", "--lora-dropout", "0.1", "--save-merged"}))
                .settings.parts.adapter,
            "first");
}

}  // namespace
}  // namespace rp
