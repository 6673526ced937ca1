#include "launcher/machine/gpu_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "roundpipe/error.h"
#include "tests/launcher/fake_nvml.h"

namespace rp {
namespace {

using testing::HasSubstr;

class GpuListTest : public testing::Test {
 protected:
  GpuListTest() {
    fake_driver() = {};
    fake_driver().cards = equal_cards(4);
  }

  [[nodiscard]] GpuChoice choice(const std::string& asked) const {
    return choose_gpus(parse_gpus("--gpus", asked), observe_gpus(fake_nvml()), variables_);
  }
  // Returns the indices of the chosen cards, such as "0 2".
  [[nodiscard]] std::string chosen(const std::string& asked) const {
    std::string text;
    for (const Gpu& gpu : choice(asked).gpus) {
      text += (text.empty() ? "" : " ") + (gpu.is_instance ? gpu.uuid : std::to_string(gpu.index));
    }
    return text;
  }
  // Expects that the request is refused with this code. Returns the message.
  [[nodiscard]] std::string refusal(const std::string& asked, ExitCode code) const {
    try {
      return "not refused: " + chosen(asked);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
  }
  void see(const std::string& visible_devices) { variables_.visible_devices = visible_devices; }

  CudaVariables variables_;
};

TEST_F(GpuListTest, ANumberTakesTheFirstAListThoseItNamesAndAllTakesAll) {
  EXPECT_EQ(chosen("3"), "0 1 2");
  EXPECT_EQ(chosen("all"), "0 1 2 3");
  EXPECT_EQ(chosen("0,2"), "0 2");
  EXPECT_EQ(chosen("3,"), "3") << "a list of one";
  EXPECT_EQ(chosen("0"), "0") << "no run has no GPU";
  EXPECT_EQ(chosen("2, 1"), "2 1");
}

TEST_F(GpuListTest, ACardMayHaveSeveralWorkers) {
  EXPECT_EQ(chosen("0,0,0,0"), "0 0 0 0");
  EXPECT_EQ(chosen("1,GPU-b1-0000"), "1 1");
}

TEST_F(GpuListTest, AUuidMayBeShortened) {
  EXPECT_EQ(chosen("GPU-c2-0000"), "2");
  EXPECT_EQ(chosen("GPU-c,GPU-a"), "2 0");
}

TEST_F(GpuListTest, NonsenseIsAUsageErrorThatSaysWhatIsAllowed) {
  for (const char* asked : {"two", "0,,2", "-1", "0,x", "GPU-", "", ",", "1.5", "all,0"}) {
    EXPECT_THAT(refusal(asked, ExitCode::kUsage), HasSubstr("allowed: all, a number of GPUs, or a list")) << asked;
  }
  EXPECT_THAT(refusal("65", ExitCode::kUsage), HasSubstr("from 1 to 64"));
  EXPECT_THAT(refusal("65", ExitCode::kUsage), HasSubstr("write a comma behind it"));
  std::string long_list = "0";
  for (int i = 0; i < 64; ++i) long_list += ",0";
  EXPECT_THAT(refusal(long_list, ExitCode::kUsage), HasSubstr("65 workers; allowed: at most 64"));
}

TEST_F(GpuListTest, MissingGpusAreReportedWithThoseThatExist) {
  const std::string too_many = refusal("8", ExitCode::kNoResource);
  EXPECT_THAT(too_many, HasSubstr("--gpus 8: only 4 can be used; visible are 4: 0 NVIDIA Fake 4090 GPU-a0-0000, 1 "));
  EXPECT_THAT(too_many, HasSubstr("ask for at most 4"));
  EXPECT_THAT(refusal("0,9", ExitCode::kNoResource), HasSubstr("--gpus 0,9: there is no GPU 9; visible are 4"));
  EXPECT_THAT(refusal("GPU-f", ExitCode::kNoResource), HasSubstr("there is no GPU GPU-f"));
  fake_driver().cards = {};
  EXPECT_THAT(refusal("all", ExitCode::kNoResource), HasSubstr("--gpus all: no CUDA device: "));
  EXPECT_THAT(refusal("all", ExitCode::kNoResource), HasSubstr("use --device cpu instead"));
}

TEST_F(GpuListTest, ABeginningThatFitsSeveralUuidsIsRefused) {
  fake_driver().cards[1].uuid = "GPU-a9";
  EXPECT_THAT(refusal("GPU-a", ExitCode::kUsage), HasSubstr("GPU-a begins the UUIDs of 2 GPUs"));
}

TEST_F(GpuListTest, CountsWhatCudaVisibleDevicesShowsInItsOrder) {
  see("3,1");
  EXPECT_EQ(chosen("all"), "3 1");
  EXPECT_EQ(chosen("1"), "3");
  EXPECT_EQ(chosen("1,"), "1");
  EXPECT_EQ(chosen("GPU-d"), "3");
  EXPECT_THAT(refusal("3", ExitCode::kNoResource), HasSubstr("visible by CUDA_VISIBLE_DEVICES=3,1 are 2"));
  EXPECT_THAT(refusal("GPU-a", ExitCode::kNoResource), HasSubstr("there is no GPU GPU-a"));
  see("GPU-c, GPU-a0-0000");
  EXPECT_EQ(chosen("all"), "2 0");
}

TEST_F(GpuListTest, CudaVisibleDevicesEndsAtItsFirstWordThatNamesNothing) {
  for (const char* list : {"2,-1,3", "2,9,3", "2,,3", "2,GPU-,3", "2,GPU-f,3", "2,x"}) {
    see(list);
    EXPECT_EQ(chosen("all"), "2") << list;
  }
  for (const char* list : {"", "-1", "NoDevFiles", "9"}) {
    see(list);
    EXPECT_THAT(refusal("all", ExitCode::kNoResource), HasSubstr("none is visible by CUDA_VISIBLE_DEVICES=")) << list;
  }
}

TEST_F(GpuListTest, ACardThatCudaVisibleDevicesNamesTwiceIsRefusedWithTheWayToShareIt) {
  see("1,GPU-b");
  EXPECT_THAT(refusal("all", ExitCode::kUsage), HasSubstr("for several workers on it use --gpus 0,0"));
}

TEST_F(GpuListTest, IndicesOfCardsThatDifferAreNotedUnlessTheirOrderIsSaid) {
  see("1");
  EXPECT_EQ(choice("all").note, "") << "equal cards";
  fake_driver().cards[0].name = "NVIDIA Fake 3090";
  EXPECT_THAT(choice("all").note, HasSubstr("CUDA_DEVICE_ORDER=PCI_BUS_ID"));
  variables_.device_order = "PCI_BUS_ID";
  EXPECT_EQ(choice("all").note, "");
  variables_.device_order.reset();
  see("GPU-b");
  EXPECT_EQ(choice("all").note, "");
}

TEST_F(GpuListTest, CardsThatCannotBeUsedAreLeftOutOfANumberAndRefusedByName) {
  fake_driver().cards[1].compute_mode = nvml::kProhibited;
  EXPECT_EQ(chosen("3"), "0 2 3");
  EXPECT_EQ(chosen("all"), "0 2 3");
  EXPECT_THAT(refusal("4", ExitCode::kNoResource),
              HasSubstr("only 3 can be used; GPU 1 (NVIDIA Fake 4090, GPU-b1-0000): its compute mode"));
  EXPECT_THAT(refusal("0,1", ExitCode::kNoResource), HasSubstr("nvidia-smi -i 1 -c DEFAULT"));
  for (FakeCard& card : fake_driver().cards) card.compute_mode = nvml::kProhibited;
  EXPECT_THAT(refusal("all", ExitCode::kNoResource), HasSubstr("no GPU can be used"));
}

TEST_F(GpuListTest, ACardForOneProcessIsNotShared) {
  fake_driver().cards[2].compute_mode = nvml::kExclusiveProcess;
  EXPECT_EQ(chosen("2,0,0"), "2 0 0");
  EXPECT_THAT(refusal("2,2", ExitCode::kNoResource), HasSubstr("would get 2 workers, but its compute mode allows one"));
}

TEST_F(GpuListTest, MigInstancesAreNamedByUuid) {
  fake_driver().cards[0].in_mig_mode = true;
  fake_driver().cards[0].instances = {"MIG-11", "MIG-12"};
  EXPECT_EQ(chosen("MIG-12,MIG-11"), "MIG-12 MIG-11");
  EXPECT_EQ(chosen("all"), "1 2 3");
  EXPECT_THAT(refusal("0,", ExitCode::kNoResource), HasSubstr("MIG mode"));
  see("MIG-12");
  EXPECT_EQ(chosen("all"), "MIG-12");
  EXPECT_THAT(refusal("MIG-11", ExitCode::kNoResource), HasSubstr("there is no GPU MIG-11"));
}

TEST_F(GpuListTest, AWorkerSeesItsOwnCardAndWithEventsTheOthersBehindIt) {
  const std::vector<Gpu> gpus = choice("2,0,2,1").gpus;
  EXPECT_EQ(visible_devices(gpus, 0, "memops"), "GPU-c2-0000");
  EXPECT_EQ(visible_devices(gpus, 1, "memops"), "GPU-a0-0000");
  EXPECT_EQ(visible_devices(gpus, 0, "events"), "GPU-c2-0000,GPU-a0-0000,GPU-b1-0000");
  EXPECT_EQ(visible_devices(gpus, 3, "events"), "GPU-b1-0000,GPU-c2-0000,GPU-a0-0000");
}

TEST_F(GpuListTest, EventsBetweenMigInstancesAreRefused) {
  fake_driver().cards[0].in_mig_mode = true;
  fake_driver().cards[0].instances = {"MIG-11", "MIG-12"};
  const std::vector<Gpu> gpus = choice("MIG-11,MIG-12").gpus;
  EXPECT_EQ(visible_devices(gpus, 1, "memops"), "MIG-12");
  EXPECT_THROW((void)visible_devices(gpus, 1, "events"), Error);
  EXPECT_EQ(visible_devices(choice("MIG-11,MIG-11").gpus, 1, "events"), "MIG-11") << "one instance may be shared";
}

}  // namespace
}  // namespace rp
