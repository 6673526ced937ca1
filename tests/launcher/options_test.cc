#include "launcher/options/options.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "common/text.h"
#include "roundpipe/error.h"
#include "tests/common/documented_options.h"

namespace rp {
namespace {

ExitCode code_of(const std::vector<std::string>& arguments) {
  try {
    (void)parse_launch_options(arguments);
  } catch (const Error& error) {
    return error.code();
  }
  return ExitCode::kOk;
}

std::string message_of(const std::vector<std::string>& arguments) {
  try {
    (void)parse_launch_options(arguments);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Options, EndAtTheFirstWordThatIsNoneAndTheRestGoesThroughVerbatim) {
  const LaunchOptions options =
      parse_launch_options({"-n", "3", "--tag-output", "train", "--workers", "9", "-x", "--", "--help"});
  EXPECT_EQ(options.workers, 3);
  EXPECT_TRUE(options.tag_output);
  EXPECT_EQ(options.command, (std::vector<std::string>{"train", "--workers", "9", "-x", "--", "--help"}));
}

TEST(Options, TakeTheirValuesInEveryCommonForm) {
  EXPECT_EQ(parse_launch_options({"--workers=4", "train"}).workers, 4);
  EXPECT_EQ(parse_launch_options({"-n4", "train"}).workers, 4);
  EXPECT_EQ(parse_launch_options({"--", "-train"}).command[0], "-train");
  EXPECT_EQ(parse_launch_options({"--prefetch", "0", "train"}).settings.prefetch, false);
  EXPECT_EQ(parse_launch_options({"--help"}).action, LaunchOptions::Action::kHelp);
}

TEST(Options, AWrongOneIsAUsageErrorThatSaysWhatIsAllowed) {
  EXPECT_EQ(code_of({"--wrokers", "2", "train"}), ExitCode::kUsage);
  EXPECT_NE(message_of({"--wrokers=2", "train"}).find("did you mean --workers?"), std::string::npos);
  EXPECT_NE(message_of({"--store", "memdf", "train"}).find("did you mean memfd?"), std::string::npos);
  EXPECT_NE(message_of({"-n", "0", "train"}).find("from 1 to 64"), std::string::npos);
  EXPECT_NE(message_of({"-n", "65", "train"}).find("raise --threads-per-worker"), std::string::npos);
  EXPECT_NE(message_of({"-n", "2x", "train"}).find("\"2x\""), std::string::npos);
  EXPECT_EQ(code_of({"-n"}), ExitCode::kUsage);
  EXPECT_EQ(code_of({"-q", "train"}), ExitCode::kUsage);
  EXPECT_EQ(code_of({"-n", "2"}), ExitCode::kUsage);
  EXPECT_EQ(code_of({"--prefetch", "maybe", "train"}), ExitCode::kUsage);
  EXPECT_EQ(code_of({"--tag-output", "--log-dir", "logs", "train"}), ExitCode::kUsage);
}

TEST(Options, AnEmulatedDeviceHasAName) {
  EXPECT_EQ(code_of({"--device", "sim:rtx4090", "train"}), ExitCode::kOk);
  EXPECT_NE(message_of({"--device", "sim:", "train"}).find("such as sim:rtx4090"), std::string::npos);
  EXPECT_NE(message_of({"--device", "sim", "train"}).find("allowed: cpu, cuda or sim:NAME"), std::string::npos);
}

TEST(Options, GpusMeanTheDeviceCudaAndCudaMeansAllGpus) {
  const LaunchOptions two = parse_launch_options({"--gpus", "2", "train"});
  EXPECT_EQ(two.settings.device, "cuda");
  EXPECT_EQ(two.gpus->kind, GpuRequest::Kind::kCount);
  EXPECT_EQ(two.gpus->count, 2);
  const LaunchOptions all = parse_launch_options({"--device", "cuda", "train"});
  EXPECT_EQ(all.gpus->kind, GpuRequest::Kind::kAll);
  EXPECT_EQ(all.gpus->asked, "--device cuda");
  const LaunchOptions some = parse_launch_options({"--device", "cuda", "-n", "3", "train"});
  EXPECT_EQ(some.gpus->count, 3);
  EXPECT_EQ(some.gpus->asked, "--device cuda with --workers 3");
  EXPECT_EQ(parse_launch_options({"--device", "cpu", "train"}).gpus, std::nullopt);
  EXPECT_EQ(parse_launch_options({"--device", "cuda", "--gpus", "1,2", "train"}).gpus->words,
            (std::vector<std::string>{"1", "2"}));
  EXPECT_EQ(code_of({"--gpus", "0,two", "train"}), ExitCode::kUsage);
  EXPECT_NE(message_of({"--device", "gpu", "train"}).find("GPUs are chosen by --gpus: --gpus all"), std::string::npos);
}

TEST(Options, GpusAndAnotherDeviceContradictEachOtherUnlessOneIsAVariable) {
  EXPECT_EQ(code_of({"--gpus", "2", "--device", "cpu", "train"}), ExitCode::kUsage);
  EXPECT_NE(message_of({"--gpus", "2", "--device", "cpu", "train"}).find("choose one: drop --gpus"), std::string::npos);
  EXPECT_EQ(code_of({"--gpus", "2", "--device", "sim:rtx4090", "train"}), ExitCode::kUsage);
  setenv("RP_GPUS", "2", 1);
  EXPECT_EQ(parse_launch_options({"train"}).gpus->asked, "RP_GPUS 2");
  EXPECT_EQ(parse_launch_options({"--device", "cpu", "train"}).gpus, std::nullopt);
  setenv("RP_DEVICE", "cpu", 1);
  EXPECT_EQ(code_of({"train"}), ExitCode::kUsage) << "two variables, neither of which wins";
  EXPECT_EQ(parse_launch_options({"--gpus", "1", "train"}).settings.device, "cuda");
  unsetenv("RP_GPUS");
  setenv("RP_DEVICE", "cuda", 1);
  EXPECT_EQ(parse_launch_options({"train"}).gpus->asked, "RP_DEVICE cuda");
  unsetenv("RP_DEVICE");
}

TEST(Options, WorkersOfAVariableGiveWayToGpusOfAnOption) {
  setenv("RP_WORKERS", "7", 1);
  EXPECT_EQ(parse_launch_options({"--gpus", "2", "train"}).workers, std::nullopt);
  EXPECT_EQ(parse_launch_options({"--device", "cuda", "train"}).gpus->kind, GpuRequest::Kind::kAll);
  setenv("RP_GPUS", "2", 1);
  EXPECT_EQ(parse_launch_options({"train"}).workers, 7) << "compared with the GPUs when these are known";
  unsetenv("RP_GPUS");
  unsetenv("RP_WORKERS");
}

TEST(Options, HowGpusWaitForEachOtherTravelsInAVariable) {
  const LaunchOptions options = parse_launch_options({"--signals", "events", "train"});
  EXPECT_EQ(options.settings.variables(), (std::vector<std::pair<std::string, std::string>>{{"RP_SIGNALS", "events"}}));
  EXPECT_NE(message_of({"--signals", "event", "train"}).find("did you mean events?"), std::string::npos);
  setenv("RP_SIGNALS", "memops", 1);
  EXPECT_EQ(parse_launch_options({"train"}).settings.signals, "memops");
  EXPECT_EQ(RuntimeSettings::from_environment().signals, "memops");
  unsetenv("RP_SIGNALS");
}

TEST(Options, AVariableIsTheDefaultOfItsOption) {
  setenv("RP_WORKERS", "5", 1);
  setenv("RP_STORE", "nonsense", 1);
  EXPECT_EQ(parse_launch_options({"--store", "shm", "train"}).workers, 5);
  EXPECT_EQ(parse_launch_options({"--store", "shm", "-n", "2", "train"}).workers, 2);
  EXPECT_NE(message_of({"train"}).find("RP_STORE is \"nonsense\""), std::string::npos);
  setenv("RP_STORE", "", 1);
  EXPECT_EQ(parse_launch_options({"train"}).settings.store, std::nullopt);
  unsetenv("RP_WORKERS");
  unsetenv("RP_STORE");
}

TEST(Options, TheDirectoryForTheParametersTravelsInAVariable) {
  EXPECT_EQ(parse_launch_options({"--params-on", "/disk", "train"}).settings.params_on, "/disk");
  setenv("RP_PARAMS_ON", "/other", 1);
  EXPECT_EQ(parse_launch_options({"train"}).settings.params_on, "/other");
  const LaunchOptions options = parse_launch_options({"--params-on=/disk", "train"});
  EXPECT_EQ(options.settings.params_on, "/disk");
  EXPECT_EQ(options.settings.variables(),
            (std::vector<std::pair<std::string, std::string>>{{"RP_PARAMS_ON", "/disk"}}));
  unsetenv("RP_PARAMS_ON");
  EXPECT_EQ(code_of({"--params-on", "", "train"}), ExitCode::kUsage);
}

TEST(Options, TheCheckOfConsistencyIsASwitchThatTravelsInAVariable) {
  setenv("RP_YIELD_TO_ACTIVATIONS", "weights", 1);  // has no option
  EXPECT_EQ(parse_launch_options({"train"}).settings.variables(),
            (std::vector<std::pair<std::string, std::string>>{{"RP_YIELD_TO_ACTIVATIONS", "weights"}}));
  unsetenv("RP_YIELD_TO_ACTIVATIONS");
  EXPECT_EQ(parse_launch_options({"train"}).settings.check_consistency, std::nullopt);
  const LaunchOptions options = parse_launch_options({"--check-consistency", "train"});
  EXPECT_EQ(options.settings.check_consistency, true);
  EXPECT_EQ(options.settings.variables(),
            (std::vector<std::pair<std::string, std::string>>{{"RP_CHECK_CONSISTENCY", "1"}}));
  setenv("RP_CHECK_CONSISTENCY", "1", 1);
  EXPECT_EQ(parse_launch_options({"train"}).settings.check_consistency, true);
  EXPECT_EQ(RuntimeSettings::from_environment().check_consistency, true);
  EXPECT_EQ(parse_launch_options({"--check-consistency=false", "train"}).settings.check_consistency, false);
  setenv("RP_CHECK_CONSISTENCY", "yes", 1);
  EXPECT_NE(message_of({"train"}).find("allowed: 0 or 1"), std::string::npos);
  unsetenv("RP_CHECK_CONSISTENCY");
}

TEST(Options, TheFileOfTheTraceTravelsInAVariable) {
  const LaunchOptions options = parse_launch_options({"--trace", "run.json", "train"});
  EXPECT_EQ(options.settings.trace, "run.json");
  EXPECT_EQ(options.settings.variables(), (std::vector<std::pair<std::string, std::string>>{{"RP_TRACE", "run.json"}}));
  EXPECT_EQ(code_of({"--trace", "", "train"}), ExitCode::kUsage);
  setenv("RP_TRACE", "other.json", 1);
  EXPECT_EQ(parse_launch_options({"train"}).settings.trace, "other.json");
  EXPECT_EQ(RuntimeSettings::from_environment().trace, "other.json");
  unsetenv("RP_TRACE");
}

TEST(Options, AProfileOfTheGpusTravelsInAVariable) {
  const LaunchOptions options = parse_launch_options({"--gpu-profile", "my.json", "train"});
  EXPECT_EQ(options.settings.gpu_profile, "my.json");
  EXPECT_EQ(options.settings.variables(),
            (std::vector<std::pair<std::string, std::string>>{{"RP_GPU_PROFILE", "my.json"}}));
  EXPECT_EQ(code_of({"--gpu-profile", "", "train"}), ExitCode::kUsage);
  setenv("RP_GPU_PROFILE", "rtx4090", 1);
  EXPECT_EQ(parse_launch_options({"train"}).settings.gpu_profile, "rtx4090");
  EXPECT_EQ(RuntimeSettings::from_environment().gpu_profile, "rtx4090");
  unsetenv("RP_GPU_PROFILE");
}

TEST(Options, TheToolOfAWorkerIsAKnownOneOrACommand) {
  using Words = std::vector<std::string>;
  const auto tool = [](const std::string& value) {
    return *parse_launch_options({"--debug-worker", value, "train"}).debug_tool;
  };
  EXPECT_EQ(tool("2").worker, 2);
  EXPECT_EQ(tool("2").command, (Words{"gdb", "--quiet", "--args"}));
  EXPECT_EQ(tool("0=cuda-gdb").command, (Words{"cuda-gdb", "--quiet", "--args"}));
  EXPECT_EQ(tool("0=valgrind").command, (Words{"valgrind"}));
  EXPECT_EQ(tool("0=nsys").command, (Words{"nsys", "profile"}));
  EXPECT_EQ(tool("0=gdb -x a=b  --args").command, (Words{"gdb", "-x", "a=b", "--args"}));
  for (const char* wrong : {"", "gdb", "-1", "64", "1=", "1= "}) {
    EXPECT_THROW((void)tool(wrong), Error) << wrong;
  }
}

TEST(Options, ATimeLimitHasAUnit) {
  EXPECT_EQ(parse_launch_options({"--time-limit", "90s", "train"}).time_limit_seconds, 90);
  EXPECT_EQ(parse_launch_options({"--time-limit=15m", "train"}).time_limit_seconds, 900);
  EXPECT_EQ(parse_launch_options({"--time-limit", "2h", "train"}).time_limit_seconds, 7200);
  for (const char* wrong : {"90", "0s", "-1h", "2d", "h", "9999999999h"}) {
    EXPECT_NE(message_of({"--time-limit", wrong, "train"}).find("allowed: a time as 90s, 15m or 2h"), std::string::npos)
        << wrong;
  }
}

TEST(Options, TheManualAndTheHelpNameExactlyTheOptionsThatThereAre) {
  expect_documented("launcher.md", option_rows(launch_option_specs()));
  for (const OptionSpec& spec : launch_option_specs()) {
    EXPECT_NE(launch_help().find(cat("--", spec.name)), std::string::npos) << spec.name;
  }
}

}  // namespace
}  // namespace rp
