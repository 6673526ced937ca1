// Updates whose process dies are finished by another, to the same bits.
#include "optimizer/update_journal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "kernels/cpu/update_kernels.h"
#include "optimizer/update.h"
#include "tests/hoststore/processes.h"

namespace rp {
namespace {

constexpr std::uint64_t kPass = 7;
constexpr int kMaxThreads = 4;

// A weight group and its journal in memory that processes share.
class SharedGroup {
 public:
  explicit SharedGroup(std::size_t num_elements, bool has_two_copies = false)
      : num_elements_(num_elements), has_two_copies_(has_two_copies) {
    const std::size_t bytes = kNumArrays * array_bytes() + journal_bytes();
    memory_ = static_cast<std::byte*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    mapped_bytes_ = bytes;
    for (const std::size_t i : {0U, 1U, 2U, 3U}) {
      for (std::size_t e = 0; e < num_elements_; ++e)
        array(i)[e] = static_cast<float>((e * 2'654'435'761U + i) % 1000 + 1) / 500 - (i == 2 ? 0 : 1);
    }
  }
  ~SharedGroup() { munmap(memory_, mapped_bytes_); }
  SharedGroup(const SharedGroup&) = delete;
  SharedGroup& operator=(const SharedGroup&) = delete;

  void update(int num_threads) {
    ThreadTeam team(num_threads);
    UpdateJournal journal = this->journal();
    update_group(state(), gradients(), std::span(&span_, 1), team, journal, kPass);
  }
  void update_without_journal() {
    ThreadTeam team(1);
    update_group(state(), gradients(), std::span(&span_, 1), team);
  }
  [[nodiscard]] UpdateJournal journal() {
    return {memory_ + kNumArrays * array_bytes(), num_chunks(num_elements_), kMaxThreads};
  }
  [[nodiscard]] GroupState state() {
    return {.old_master = array(0),
            .master = array(has_two_copies_ ? 4 : 0),
            .m = array(1),
            .v = array(2),
            .num_elements = num_elements_};
  }
  [[nodiscard]] GroupGradients gradients() {
    gradient_ = array(3);
    return {.uses = &gradient_, .num_uses = 1, .dtype = DType::kFloat32, .num_elements = num_elements_};
  }
  [[nodiscard]] std::size_t num_elements() const { return num_elements_; }
  [[nodiscard]] bool same_bits(const SharedGroup& other) const {
    return std::memcmp(memory_, other.memory_, kNumArrays * array_bytes()) == 0;
  }

 private:
  static constexpr std::size_t kNumArrays = 5;
  [[nodiscard]] std::size_t array_bytes() const { return (num_elements_ * sizeof(float) + 63) / 64 * 64; }
  [[nodiscard]] std::size_t journal_bytes() const {
    return UpdateJournal::bytes(num_chunks(num_elements_), kMaxThreads);
  }
  [[nodiscard]] float* array(std::size_t i) { return reinterpret_cast<float*>(memory_ + i * array_bytes()); }

  const std::size_t num_elements_;
  const bool has_two_copies_;
  std::byte* memory_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  const void* gradient_ = nullptr;
  UpdateSpan span_{
      .begin = 0, .end = num_elements_, .step = update_step_of(AdamW{.learning_rate = 1e-2, .weight_decay = 0.1}, 3)};
};

TEST(UpdateJournal, AnUpdateHasTheSameBitsWithIt) {
  for (const bool has_two_copies : {false, true}) {
    SharedGroup expected(200'123, has_two_copies);
    expected.update_without_journal();
    for (int num_threads = 1; num_threads <= kMaxThreads; ++num_threads) {
      SharedGroup group(200'123, has_two_copies);
      group.update(num_threads);
      EXPECT_TRUE(group.same_bits(expected)) << num_threads;
      group.update(num_threads);
      EXPECT_TRUE(group.same_bits(expected)) << "the same pass again changes nothing";
    }
  }
}

// Dies at any element, with the elements that are being written in any state, and again while the update is finished.
TEST(UpdateJournal, AnUpdateThatDiedAnywhereIsFinished) {
  constexpr std::size_t kElements = 66'003;  // two chunks; the last elements are not a whole vector
  const UpdateStep step = update_step_of(AdamW{.learning_rate = 1e-2, .weight_decay = 0.1}, 3);
  std::mt19937 random(2);
  for (const bool has_two_copies : {false, true}) {
    SharedGroup expected(kElements, has_two_copies);
    expected.update_without_journal();
    for (const std::size_t death : {0U, 1U, 31U, 32U, 33U, 5000U, 65'535U, 65'536U, 66'000U, 66'002U}) {
      SharedGroup group(kElements, has_two_copies);
      ThreadTeam team(1);
      for (const std::size_t dies_at : {death, death + 40, kElements}) {
        UpdateJournal journal = group.journal();
        const auto die = [&](const GroupState& state, std::size_t begin, std::size_t end) {
          const bool dies = dies_at >= begin && dies_at < end;
          // An update of one element less leaves the element's neighbours as those that are being written.
          update_kernels().update(state, group.gradients(), step, begin, dies ? dies_at + 1 : end);
          if (!dies) return;
          const std::size_t first = state.undo->place >> 8, num = state.undo->place >> 1 & 0x7f;
          for (std::size_t i = first; i < first + num; ++i) {
            for (float* array : {state.master, state.m, state.v}) {
              if (random() % 2 == 0) array[i] = std::nanf("");
            }
          }
          throw std::runtime_error("dead");
        };
        try {
          journal.run(kPass, group.state(), 65'536, team, die);
        } catch (const std::runtime_error&) {}
      }
      EXPECT_TRUE(group.same_bits(expected)) << "death at element " << death;
    }
  }
}

TEST(UpdateJournal, AnUpdateWhoseProcessesAreKilledIsFinished) {
  constexpr std::size_t kElements = 1'000'000;
  std::mt19937 random(5);
  SharedGroup expected(kElements);
  expected.update_without_journal();
  int num_killed = 0;
  for (int round = 0; round < 3 || num_killed < 6; ++round) {
    SharedGroup group(kElements);
    for (useconds_t most = 4000;; most += 1000) {  // longer each time, so that slow processes end, too
      const pid_t process = test::start_process([&] {
        group.update(3);
        return true;
      });
      usleep(std::uniform_int_distribution<useconds_t>(0, most)(random));
      kill(process, SIGKILL);
      const int status = test::wait_for_process(process);
      if (status == 0) break;
      ASSERT_TRUE(WIFSIGNALED(status));
      num_killed += group.journal().last_pass() == kPass;
    }
    EXPECT_TRUE(group.same_bits(expected)) << "round " << round;
  }
}

}  // namespace
}  // namespace rp
