#include "launcher/process/process_role.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "hoststore/control.h"
#include "roundpipe/error.h"

namespace rp {
namespace {

class ProcessRoleTest : public testing::Test {
 protected:
  ~ProcessRoleTest() override {
    for (const char* name : {kRoleVariable, kWorkerVariable, kWorkersVariable, kChannelVariable, kLivenessVariable,
                             kFaultBoardVariable, kGpuVariable, kGpuBytesVariable, "RP_STORE"}) {
      unsetenv(name);
    }
  }
  static void set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }
};

TEST_F(ProcessRoleTest, WithoutRpLaunchAProcessIsAlone) {
  set("RP_STORE", "memfd");
  const ProcessRole role = ProcessRole::from_environment();
  EXPECT_EQ(role.role, Role::kAlone);
  EXPECT_FALSE(role.channel.has_value());
  EXPECT_EQ(role.settings.store, "memfd");
}

TEST_F(ProcessRoleTest, AWorkerTakesItsInheritanceAndHidesItFromItsChildren) {
  set(kRoleVariable, "worker");
  set(kWorkerVariable, "2");
  set(kWorkersVariable, "3");
  set(kGpuVariable, "GPU-8932f937");
  for (const char* name : {kChannelVariable, kLivenessVariable, kFaultBoardVariable}) set(name, std::to_string(dup(0)));
  const ProcessRole role = ProcessRole::from_environment();
  EXPECT_EQ(role.role, Role::kWorker);
  EXPECT_EQ(role.worker, 2);
  EXPECT_EQ(role.num_workers, 3);
  EXPECT_EQ(role.gpu.uuid, "GPU-8932f937");
  EXPECT_EQ(fcntl(role.liveness.get(), F_GETFD), FD_CLOEXEC);
  for (const char* name : {kRoleVariable, kWorkerVariable, kWorkersVariable, kChannelVariable, kGpuVariable}) {
    EXPECT_EQ(std::getenv(name), nullptr) << name;
  }
}

// Returns the message of the refusal; "" if the device is allowed.
std::string refusal_of(const ProcessRole& role, const std::string& device) {
  try {
    role.check_device(device);
  } catch (const Error& error) {
    return error.code() == ExitCode::kUsage ? error.what() : "another code";
  }
  return "";
}

TEST_F(ProcessRoleTest, GpusThatOnlyTheProgramAsksForAreRefused) {
  EXPECT_EQ(refusal_of(ProcessRole::from_environment(), "cuda"), "") << "alone it may have the first one";
  for (const char* name : {"coordinator", "worker"}) {
    for (const bool with_gpus : {false, true}) {
      set(kRoleVariable, name);
      set(kWorkerVariable, "0");
      set(kWorkersVariable, "1");
      for (const char* fd : {kChannelVariable, kLivenessVariable, kFaultBoardVariable}) set(fd, std::to_string(dup(0)));
      if (with_gpus)
        set(std::string(name) == "worker" ? kGpuVariable : kGpuBytesVariable,
            std::string(name) == "worker" ? "GPU-1" : "0");
      const ProcessRole role = ProcessRole::from_environment();
      EXPECT_EQ(refusal_of(role, "cpu"), "");
      EXPECT_EQ(refusal_of(role, "sim:rtx4090"), "");
      if (with_gpus) EXPECT_EQ(refusal_of(role, "cuda"), "") << name;
      else EXPECT_NE(refusal_of(role, "cuda").find("rp-launch --gpus"), std::string::npos) << name;
    }
  }
}

TEST_F(ProcessRoleTest, AnInheritanceThatIsIncompleteOrClosedIsAnError) {
  set(kRoleVariable, "coordinator");
  EXPECT_THROW((void)ProcessRole::from_environment(), Error);
  set(kWorkersVariable, "3");
  for (const char* name : {kChannelVariable, kLivenessVariable, kFaultBoardVariable}) set(name, "9999");
  EXPECT_THROW((void)ProcessRole::from_environment(), Error);
}

TEST_F(ProcessRoleTest, AsManyWorkersAsTheStoreHasRoomForAndNoMoreAreTaken) {
  for (const int num_workers : {kMaxWorkers, kMaxWorkers + 1}) {
    set(kRoleVariable, "coordinator");
    set(kWorkersVariable, std::to_string(num_workers));
    for (const char* name : {kChannelVariable, kLivenessVariable, kFaultBoardVariable})
      set(name, std::to_string(dup(0)));
    if (num_workers == kMaxWorkers) {
      EXPECT_EQ(ProcessRole::from_environment().num_workers, kMaxWorkers);
    } else {
      EXPECT_THROW((void)ProcessRole::from_environment(), Error);
    }
  }
}

TEST_F(ProcessRoleTest, AWrongSettingNamesItsVariable) {
  set("RP_STORE", "disk");
  try {
    (void)ProcessRole::from_environment();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_NE(std::string(error.what()).find("RP_STORE"), std::string::npos);
  }
}

}  // namespace
}  // namespace rp
