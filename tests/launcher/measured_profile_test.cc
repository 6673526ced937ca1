#include "launcher/doctor/measured_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/text.h"
#include "model_files/profile_file.h"
#include "roundpipe/error.h"
#include "tests/common/temp_directory.h"

namespace rp {
namespace {

using testing::HasSubstr;

GpuBandwidth measured_gpu(double up) {
  GpuBandwidth gpu;
  gpu.gpu = {.index = 0, .uuid = "GPU-0", .name = "NVIDIA GeForce RTX 4090", .link = {1, 8}, .most_link = {4, 16}};
  gpu.alone = ProbeFigures{.host_to_device_gbs = up,
                           .device_to_host_gbs = 26,
                           .both_directions_gbs = 20,
                           .copy_latency_us = 8,
                           .register_s_per_gib = 0.1,
                           .memory_gib = 23.5,
                           .usable_gib = 23.03};
  return gpu;
}

ProfileFile<GpuProfile> read_back(const std::string& text) {
  const TempDirectory directory;
  return read_gpu_profile(directory.write("gpu.json", text).string());
}

std::string source_of(const ProfileFile<GpuProfile>& file, const std::string& key) {
  for (const FigureSource& source : file.sources) {
    if (source.key == key) return source.source;
  }
  return "none";
}

TEST(MeasuredProfile, HasWhatWasMeasuredOfTheSlowestAndTheRestOfTheNearestProfile) {
  const ProfileFile<GpuProfile> file =
      read_back(measured_profile({measured_gpu(25), measured_gpu(24.5)}, "580.82", "2026-11-22"));
  const GpuProfile nearest = gpu_profile("rtx4090").profile;
  EXPECT_EQ(file.profile.name, "NVIDIA GeForce RTX 4090, measured");
  EXPECT_EQ(file.profile.host_to_device_gbs, 24.5);
  EXPECT_EQ(file.profile.device_to_host_gbs, 26);
  EXPECT_EQ(file.profile.both_directions_gbs, 20);
  EXPECT_EQ(file.profile.copy_latency_us, 8);
  EXPECT_EQ(file.profile.memory_gib, 23.5);
  EXPECT_DOUBLE_EQ(file.profile.usable_share, 23.03 / 23.5);
  EXPECT_EQ(file.profile.pcie_generation, 4) << "an idle card lowers the one that it has now";
  EXPECT_EQ(file.profile.pcie_lanes, 8);
  EXPECT_EQ(file.profile.gemm_efficiency, nearest.gemm_efficiency);
  EXPECT_EQ(file.profile.memory_gbs, nearest.memory_gbs);
  EXPECT_EQ(source_of(file, "host_to_device"),
            "measured by rp-launch doctor on 2026-11-22: NVIDIA GeForce RTX 4090, driver 580.82, the slowest of 2");
  EXPECT_THAT(source_of(file, "gemm_efficiency"),
              HasSubstr("not measured; as in the profile rtx4090, the nearest to NVIDIA"));
}

TEST(MeasuredProfile, HasProductsAndMemoryAsTheyWereMeasured) {
  GpuBandwidth gpu = measured_gpu(25);
  gpu.alone->bf16_tflops = 140;
  gpu.alone->fp16_accumulate_tflops = 280;
  gpu.alone->memory_gbs = 900;
  GpuBandwidth slower = gpu;
  slower.alone->bf16_tflops = 130;
  const ProfileFile<GpuProfile> file = read_back(measured_profile({gpu, slower}, "580.82", "2026-11-22"));
  const GpuProfile& profile = file.profile;
  EXPECT_DOUBLE_EQ(profile.fp32_accumulate_tflops * profile.gemm_efficiency, 130);
  EXPECT_DOUBLE_EQ(profile.fp16_accumulate_tflops * profile.gemm_efficiency, 280);
  EXPECT_DOUBLE_EQ(profile.memory_gbs * profile.memory_efficiency, 900);
  EXPECT_EQ(profile.fp32_accumulate_tflops, gpu_profile("rtx4090").profile.fp32_accumulate_tflops)
      << "attention is reckoned with it";
  EXPECT_THAT(source_of(file, "gemm_efficiency"),
              HasSubstr("measured (bf16 products) by rp-launch doctor on 2026-11-22"));
  EXPECT_THAT(source_of(file, "attention_efficiency"), HasSubstr("not measured"));
  EXPECT_EQ(unmeasured_text({gpu, slower}), "");
}

TEST(MeasuredProfile, APeakThatIsBelowWhatWasMeasuredIsNoPeak) {
  GpuBandwidth gpu = measured_gpu(25);
  gpu.alone->bf16_tflops = 300;
  gpu.alone->memory_gbs = 3000;
  const GpuProfile profile = read_back(measured_profile({gpu}, "", "2026-11-22")).profile;
  EXPECT_EQ(profile.fp32_accumulate_tflops, 300);
  EXPECT_EQ(profile.gemm_efficiency, 1);
  EXPECT_EQ(profile.memory_gbs, 3000);
  EXPECT_EQ(profile.memory_efficiency, 1);
}

TEST(MeasuredProfile, WithoutProductsThereIsOneLineOfWarning) {
  GpuBandwidth gpu = measured_gpu(25);
  gpu.alone->products_problem = "libcublas.so.13 is not there";
  const ProfileFile<GpuProfile> file = read_back(measured_profile({gpu}, "", "2026-11-22"));
  EXPECT_EQ(file.profile.gemm_efficiency, gpu_profile("rtx4090").profile.gemm_efficiency);
  EXPECT_THAT(source_of(file, "gemm_efficiency"), HasSubstr("not measured"));
  const std::string warning = unmeasured_text({gpu});
  EXPECT_THAT(warning, HasSubstr("were not measured (libcublas.so.13 is not there); the profile has those of rtx4090"));
  EXPECT_EQ(warning.find('\n'), std::string::npos);
}

TEST(MeasuredProfile, TheNearestIsByNameElseByComputeCapability) {
  EXPECT_EQ(nearest_profile({.name = "NVIDIA A100-SXM4-80GB"}), "a100");
  EXPECT_EQ(nearest_profile({.name = "NVIDIA H100 80GB HBM3"}), "h100");
  EXPECT_EQ(nearest_profile({.name = "NVIDIA GeForce RTX 3090 Ti"}), "rtx3090");
  EXPECT_EQ(nearest_profile({.name = "NVIDIA RTX A1000", .capability_major = 8, .capability_minor = 6}), "rtx3090")
      << "no A100";
  EXPECT_EQ(nearest_profile({.name = "NVIDIA L40S", .capability_major = 8, .capability_minor = 9}), "rtx4090");
  EXPECT_EQ(nearest_profile({.name = "New", .capability_major = 12}), "rtx5090");
}

TEST(MeasuredProfile, OfNothingOrOfDifferentGpusIsRefused) {
  EXPECT_THROW((void)measured_profile({}, "", ""), Error);
  GpuBandwidth other = measured_gpu(25);
  other.gpu.name = "NVIDIA GeForce RTX 3090";
  try {
    (void)measured_profile({measured_gpu(25), other}, "", "");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("choose one kind with --gpus"));
  }
  other.alone.reset();
  EXPECT_NO_THROW((void)measured_profile({measured_gpu(25), other}, "", "2026-11-22")) << "one that failed is left out";
}

}  // namespace
}  // namespace rp
