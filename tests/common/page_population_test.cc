#include "common/system/page_population.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace rp {
namespace {

class Pages : public testing::Test {
 protected:
  void map(int protection, std::size_t num_pages) {
    bytes_ = num_pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    void* const data = mmap(nullptr, bytes_, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(data, MAP_FAILED);
    data_ = static_cast<std::byte*>(data);
  }
  ~Pages() override {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  [[nodiscard]] std::size_t num_present() const {
    std::vector<unsigned char> present(bytes_ / static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
    EXPECT_EQ(mincore(data_, bytes_, present.data()), 0);
    return static_cast<std::size_t>(
        std::count_if(present.begin(), present.end(), [](unsigned char page) { return (page & 1) != 0; }));
  }
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

using PagePopulation = Pages;

TEST_F(PagePopulation, MakesEachPagePresentAndKeepsWhatIsInThem) {
  map(PROT_READ | PROT_WRITE, 64);
  data_[5] = std::byte{7};
  ASSERT_LT(num_present(), 64U);
  EXPECT_EQ(populate_pages(data_, bytes_, PageAccess::kWrite), 0);
  EXPECT_EQ(num_present(), 64U);
  EXPECT_EQ(data_[5], std::byte{7});
  EXPECT_EQ(data_[bytes_ - 1], std::byte{0});
}

TEST_F(PagePopulation, SaysWhyTheKernelRefuses) {
  map(PROT_READ, 4);
  EXPECT_EQ(populate_pages(data_, bytes_, PageAccess::kWrite), EINVAL);
  EXPECT_EQ(populate_pages(data_, 0, PageAccess::kWrite), 0);
}

}  // namespace
}  // namespace rp
