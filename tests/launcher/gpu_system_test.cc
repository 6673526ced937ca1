#include "launcher/machine/gpu_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/common/temp_directory.h"
#include "tests/launcher/fake_nvml.h"

namespace rp {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

// A replacement for /sys in a temporary directory.
class FakeRoot {
 public:
  void put(const std::string& address, const std::string& name, const std::string& text) const {
    const fs::path directory = directory_.path() / "sys/bus/pci/devices" / address;
    fs::create_directories(directory);
    std::ofstream(directory / name) << text << "\n";
  }
  void put_node(const std::string& address, const std::string& text) const { put(address, "numa_node", text); }
  [[nodiscard]] std::string path() const { return directory_.path(); }

 private:
  TempDirectory directory_;
};

class GpuSystemTest : public testing::Test {
 protected:
  GpuSystemTest() { fake_driver() = {}; }
};

TEST_F(GpuSystemTest, ReportsEachCardAsTheDriverAndTheKernelDo) {
  fake_driver().cards = equal_cards(2);
  const FakeRoot root;
  root.put_node("0000:11:00.0", "1");
  const GpuSystem system = observe_gpus(fake_nvml(), root.path());
  EXPECT_EQ(system.missing, "");
  EXPECT_EQ(system.driver, "580.82.07");
  EXPECT_EQ(system.cuda, "13.0");
  ASSERT_EQ(system.gpus.size(), 2U);
  const Gpu& gpu = system.gpus[1];
  EXPECT_EQ(gpu.index, 1);
  EXPECT_EQ(gpu.uuid, "GPU-b1-0000");
  EXPECT_EQ(gpu.pci_address, "0000:11:00.0");
  EXPECT_EQ(gpu.numa_node, 1);
  EXPECT_EQ(system.gpus[0].numa_node, -1) << "a node that the kernel does not tell is unknown";
  EXPECT_EQ(gpu.link, (PcieLink{1, 16}));
  EXPECT_EQ(gpu.most_link, (PcieLink{4, 16}));
  EXPECT_EQ(gpu.capability_major * 10 + gpu.capability_minor, 89);
  EXPECT_EQ(gpu.memory_bytes, 24ULL << 30);
  EXPECT_EQ(gpu.problem, "");
  EXPECT_EQ(fake_driver().num_held, 0) << "the driver is let go again";
}

TEST_F(GpuSystemTest, AMachineWithoutNumaSaysMinusOne) {
  const FakeRoot root;
  root.put_node("0000:10:00.0", "-1");
  EXPECT_EQ(numa_node_of("0000:10:00.0", root.path()), -1);
  EXPECT_EQ(numa_node_of("", root.path()), -1);
}

TEST_F(GpuSystemTest, TheLinkOfACardIsTheOneThatTheKernelReports) {
  const FakeRoot root;
  EXPECT_EQ(card_link_of("0000:10:00.0", root.path()), PcieLink{});
  root.put("0000:10:00.0", "max_link_width", "16");
  for (const auto& [speed, generation] : {std::pair{"2.5 GT/s PCIe", 1},
                                          {"8.0 GT/s PCIe", 3},
                                          {"16.0 GT/s PCIe", 4},
                                          {"32.0 GT/s PCIe", 5},
                                          {"64.0 GT/s PCIe", 6},
                                          {"Unknown", 0}}) {
    root.put("0000:10:00.0", "max_link_speed", speed);
    EXPECT_EQ(card_link_of("0000:10:00.0", root.path()), (PcieLink{generation, 16})) << speed;
  }
  root.put("0000:10:00.0", "max_link_width", "255");
  EXPECT_EQ(card_link_of("0000:10:00.0", root.path()).width, 0) << "255: the kernel does not know";
}

TEST_F(GpuSystemTest, ADriverThatDoesNotStartSaysWhyAndWhatToDo) {
  fake_driver().start = nvml::kDriverNotLoaded;
  EXPECT_THAT(observe_gpus(fake_nvml()).missing,
              HasSubstr("no CUDA device: NVIDIA's driver does not start (Fake Failure); load"));
  fake_driver().start = nvml::kVersionMismatch;
  EXPECT_THAT(observe_gpus(fake_nvml()).missing, HasSubstr("restart the machine"));
  fake_driver().start = nvml::kNoPermission;
  EXPECT_THAT(observe_gpus(fake_nvml()).missing, HasSubstr("/dev/nvidiactl"));
  NvmlTable old = fake_nvml();
  old.error_string = nullptr;
  fake_driver().start = 999;
  EXPECT_THAT(observe_gpus(old).missing, HasSubstr("error 999 of NVML"));
}

TEST_F(GpuSystemTest, ADriverWithoutACardIsNoCudaDevice) {
  EXPECT_THAT(observe_gpus(fake_nvml()).missing, HasSubstr("no CUDA device: the driver runs and sees no NVIDIA GPU"));
  fake_driver().count = 999;
  EXPECT_THAT(observe_gpus(fake_nvml()).missing, HasSubstr("does not count"));
  EXPECT_EQ(fake_driver().num_held, 0);
}

TEST_F(GpuSystemTest, ACardThatCannotBeUsedSaysWhyAndKeepsItsIndex) {
  fake_driver().cards = equal_cards(5);
  fake_driver().cards[0].access = nvml::kGpuIsLost;
  fake_driver().cards[1].access = nvml::kNoPermission;
  fake_driver().cards[2].compute_mode = nvml::kProhibited;
  fake_driver().cards[3].uuid = "";
  fake_driver().cards[4].compute_mode = nvml::kExclusiveProcess;
  const std::vector<Gpu> gpus = observe_gpus(fake_nvml()).gpus;
  ASSERT_EQ(gpus.size(), 5U);
  EXPECT_THAT(gpus[0].problem, HasSubstr("fallen off the bus"));
  EXPECT_THAT(gpus[1].problem, HasSubstr("no access to it (Fake Failure)"));
  EXPECT_THAT(gpus[2].problem, HasSubstr("nvidia-smi -i 2 -c DEFAULT"));
  EXPECT_THAT(gpus[3].problem, HasSubstr("UUID"));
  EXPECT_EQ(gpus[4].problem, "");
  EXPECT_TRUE(gpus[4].exclusive);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(gpus[i].index, i);
}

TEST_F(GpuSystemTest, ACardInMigModeIsKnownByItsInstances) {
  fake_driver().cards = equal_cards(1);
  fake_driver().cards[0].in_mig_mode = true;
  fake_driver().cards[0].instances = {"MIG-1", "MIG-2"};
  const GpuSystem system = observe_gpus(fake_nvml());
  EXPECT_THAT(system.gpus.at(0).problem, HasSubstr("MIG mode"));
  ASSERT_EQ(system.instances.size(), 2U);
  EXPECT_EQ(system.instances[1].uuid, "MIG-2");
  EXPECT_EQ(system.instances[1].pci_address, "0000:10:00.0");
  EXPECT_EQ(system.instances[1].problem, "");
}

TEST_F(GpuSystemTest, AnOldDriverLeavesOnlyItsNewerFiguresUnknown) {
  fake_driver().cards = equal_cards(1);
  const NvmlTable full = fake_nvml();
  const NvmlTable old = {.init = full.init,
                         .shutdown = full.shutdown,
                         .device_count = full.device_count,
                         .device_by_index = full.device_by_index,
                         .uuid = full.uuid,
                         .name = full.name,
                         .memory = full.memory,
                         .pci = full.pci};
  const GpuSystem system = observe_gpus(old);
  EXPECT_EQ(system.driver, "");
  EXPECT_EQ(system.gpus.at(0).link, PcieLink{});
  EXPECT_EQ(system.gpus.at(0).problem, "");
}

TEST(Nvml, AMachineWithoutADriverGetsOneClearMessage) {
  // On a machine with a driver this test is skipped.
  const GpuSystem system = observe_gpus();
  if (system.missing.empty()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_THAT(system.missing, testing::StartsWith("no CUDA device: "));
  EXPECT_THAT(system.missing, HasSubstr("; "));
}

}  // namespace
}  // namespace rp
