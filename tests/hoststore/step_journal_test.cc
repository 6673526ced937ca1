#include "hoststore/step_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "hoststore/store.h"
#include "tests/common/expect_refusal.h"
#include "tests/hoststore/processes.h"
#include "tests/hoststore/small_catalogue.h"

namespace rp {
namespace {

constexpr ProgramIdentity kProgram{.build_id = 1, .fingerprint = 2, .catalogue = 3};

std::vector<std::byte> text(std::size_t size, char value) { return {size, std::byte(value)}; }

std::string read(const StepJournal& journal, int pipeline, std::uint64_t version) {
  const auto record = journal.record(pipeline, Version(version));
  return {reinterpret_cast<const char*>(record.data()), record.size()};
}

std::unique_ptr<StepJournal> make_journal() { return StepJournal::create(Backing::kMemfd, kProgram, 5, {100, 0}); }

std::unique_ptr<StepJournal> attached(const StepJournal& journal) {
  return StepJournal::attach(std::move(test::duplicates({journal.fd()}).front()));
}

TEST(StepJournal, KeepsTheLastTwoRecordsOfEachPipelineForAnotherProcess) {
  const auto journal = make_journal();
  EXPECT_EQ(journal->newest(0), std::nullopt);
  for (std::uint64_t version = 0; version < 6; ++version) {
    journal->write(0, Version(version), text(100 * version, static_cast<char>('a' + version)));
  }
  journal->write(1, Version(7), text(3, 'x'));
  const auto other = attached(*journal);
  EXPECT_EQ(other->num_pipelines(), 2);
  EXPECT_EQ(other->newest(0), Version(5));
  EXPECT_EQ(other->newest(1), Version(7));
  EXPECT_EQ(read(*other, 0, 5), std::string(500, 'f'));
  EXPECT_EQ(read(*other, 0, 4), std::string(400, 'e'));
  EXPECT_EQ(read(*other, 0, 3), "") << "overwritten";
  EXPECT_EQ(read(*other, 1, 7), "xxx");
}

TEST(StepJournal, GrowsWithItsRecords) {
  const auto journal = make_journal();
  const std::span<std::byte> scratch = journal->scratch(0);
  ASSERT_EQ(scratch.size(), 100U);
  for (std::uint64_t version = 0; version < 8; ++version)
    journal->write(0, Version(version), text(1 << (4 + 3 * version), 'a'));
  std::memset(scratch.data(), 7, scratch.size());
  const auto other = attached(*journal);
  EXPECT_EQ(other->record(0, Version(7)).size(), std::size_t{1} << 25);
  EXPECT_EQ(other->record(0, Version(6)).size(), std::size_t{1} << 22);
  EXPECT_EQ(other->scratch(0)[99], std::byte(7));
}

TEST(StepJournal, HasNoRecordOnceItIsInvalid) {
  const auto journal = make_journal();
  journal->write(0, Version(4), text(10, 'a'));
  journal->invalidate(0);
  EXPECT_EQ(attached(*journal)->newest(0), std::nullopt);
  journal->write(0, Version(6), text(10, 'b'));
  EXPECT_EQ(attached(*journal)->newest(0), Version(6));
}

TEST(StepJournal, ADamagedRecordIsNone) {
  const auto journal = make_journal();
  journal->write(0, Version(4), text(10, 'a'));
  const_cast<std::byte&>(journal->record(0, Version(4))[3]) = std::byte('b');
  EXPECT_TRUE(attached(*journal)->record(0, Version(4)).empty());
}

TEST(StepJournal, IsOfOneProgram) {
  const auto journal = make_journal();
  journal->check_identity(kProgram);
  expect_error(ExitCode::kUserError, {"has changed since the run began"},
               [&] { journal->check_identity({.build_id = 1, .fingerprint = 9, .catalogue = 3}); });
  expect_error(ExitCode::kUserError, {"no journal of steps"}, [] {
    Segment other = Segment::create(Backing::kMemfd, "something else");
    other.reserve(4096);
    (void)StepJournal::attach(std::move(test::duplicates({other.fd()}).front()));
  });
}

TEST(StoreRemains, KeepWeightsGradientsAndStateAndNothingElse) {
  StoreSettings settings{.backing = "memfd", .num_workers = 2, .fingerprint = 17};
  settings.arena_limit_bytes = 1 << 20;
  settings.journal_scratch_bytes = {64};
  const Catalogue catalogue = test::small_catalogue();
  std::vector<UniqueFd> descriptors;
  {
    const auto store = Store::create(settings, catalogue);
    *store->parameters(0) = std::byte(1);
    *store->gradients(0) = std::byte(2);
    *store->state(0) = 3;
    store->published(GroupId(0)).publish(Version(9));
    store->journal()->applied(GroupId(0)).publish(Version(9));
    descriptors = test::duplicates(store->descriptors());
  }
  settings.num_workers = 3;
  const auto store = Store::create(settings, catalogue, StoreRemains::of(std::move(descriptors)));
  EXPECT_EQ(*store->parameters(0), std::byte(1));
  EXPECT_EQ(*store->gradients(0), std::byte(2));
  EXPECT_EQ(*store->state(0), 3);
  EXPECT_EQ(store->published(GroupId(0)).observe(), Version(0));
  EXPECT_EQ(store->journal()->applied(GroupId(0)).observe(), Version(9));
  const auto worker = Store::attach(test::duplicates(store->descriptors()));
  EXPECT_EQ(worker->num_workers(), 3);
  EXPECT_EQ(*worker->parameters(0), std::byte(1));
  settings.fingerprint = 18;
  expect_error(ExitCode::kUserError, {"has changed since the run began"}, [&] {
    (void)Store::create(settings, catalogue, StoreRemains::of(test::duplicates(store->descriptors())));
  });
}

}  // namespace
}  // namespace rp
