#include "common/system/processor.h"

#include <gtest/gtest.h>

namespace rp {
namespace {

TEST(Processor, InstructionsAreThoseThatLibTorchComputesWith) {
  EXPECT_EQ(instructions_of("processor : 0\nflags : fpu avx512f sse avx2 fma\nprocessor : 1\nflags : fpu\n"),
            "avx2 fma avx512f");
  EXPECT_EQ(instructions_of("processor\t: 0\nFeatures\t: fp asimd sve bf16\n"), "asimd sve bf16");
  EXPECT_EQ(instructions_of(""), "unknown");
}

}  // namespace
}  // namespace rp
